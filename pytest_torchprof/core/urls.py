"""Addresses of files elsewhere, which fsspec reads and writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import error_line

if TYPE_CHECKING:
    from pytest_torchprof.core.errors import TorchprofError

_SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
#: Between scheme and host: a user and a password. After a question mark: perhaps a signature.
_SECRET = re.compile(r"(?<=://)[^/@]*@|\?[^:]*")
#: Schemes whose file systems are packages of their own, and our extras that bring them.
_EXTRAS = {"s3": "history-s3", "s3a": "history-s3", "gs": "history-gs", "gcs": "history-gs"}


def scheme_of(word: str) -> str:
    """The scheme of a URL, empty for a path; of a chain, that of its first file system.

    >>> scheme_of("s3://bucket/a.json"), scheme_of("zip://*.json::a.zip"), scheme_of("a:b.json")
    ('s3', 'zip', '')
    """
    found = _SCHEME.match(word)
    return found[1].lower() if found else ""


def shown_address(address: str) -> str:
    """A URL without user, password, and query.

    >>> shown_address("https://me:secret@host/a.json?signature=x")
    'https://host/a.json'
    """
    return _SECRET.sub("", address)


def file_system(address: str, what: str, kind: type[TorchprofError]) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        TorchprofError: no such scheme, or no package for it; of this kind, and with this text.
    """
    try:
        import fsspec.core

        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        extra = _EXTRAS.get(scheme_of(address))
        step = f"pip install 'pytest-torchprof[{extra}]'" if extra else "install that package"
        raise kind(what, str(error), step) from None
    except Exception as error:  # noqa: BLE001 - each file system raises its own
        raise kind(what, error_line(error)) from None
    return system, str(path)
