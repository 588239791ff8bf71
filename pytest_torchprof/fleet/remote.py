"""Traces at URLs, through fsspec: list them, and copy one to read it."""

from __future__ import annotations

import re
import tempfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.fleet.sources import Source, natural_parts, scheme_of, shown_address
from pytest_torchprof.trace.ranks import TRACE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Schemes whose file systems are packages of their own, and our extras that bring them.
_EXTRAS = {"s3": "history-s3", "s3a": "history-s3", "gs": "history-gs", "gcs": "history-gs"}
#: In a URL of the web, a question mark begins its query.
_MAGIC = {"http": re.compile(r"[*]"), "https": re.compile(r"[*]")}
_ANY_MAGIC = re.compile(r"[*?[]")


def list_remote(word: str) -> list[Source]:
    """The file at this URL, the traces in this folder, or those that match this glob.

    Raises:
        TraceError: no such scheme or file, no package for it, no access, or nothing matches.
    """
    system, path = _opened(word)
    shown = shown_address(word)
    named = False
    try:
        if _MAGIC.get(scheme_of(word), _ANY_MAGIC).search(path):
            found = list(system.glob(path, detail=True).values())
            traces = [one for one in found if _is_trace(one)]
            found = traces or [one for one in found if one.get("type") == "file"]
        elif path.lower().endswith(TRACE_NAMES) or not system.isdir(path):
            found, named = [system.info(path)], True
        else:
            found = [one for one in system.ls(path, detail=True) if _is_trace(one)]
    except FileNotFoundError:
        raise TraceError(f"{shown}: not found", "", "check the address") from None
    except Exception as error:  # noqa: BLE001 - each file system raises its own
        raise TraceError(
            f"{shown}: cannot be read", _text(error), "check the address and your access"
        ) from None
    if not found:
        raise TraceError(f"{shown}: no trace found", "", "check the address")
    found.sort(key=lambda one: natural_parts(PurePosixPath(one["name"])))
    return [
        Source(_address(word, str(one["name"])), named, int(one.get("size") or 0), remote=True)
        for one in found
    ]


@contextmanager
def local_copy(address: str, folder: str | None) -> Iterator[Path]:
    """A copy of this file, in a folder of its own within ``folder``, removed on leaving.

    Raises:
        TraceError: it cannot be copied.
    """
    system, path = _opened(address)
    with tempfile.TemporaryDirectory(prefix="torchprof-", dir=folder) as room:
        target = Path(room) / "trace"
        try:
            system.get_file(path, str(target))
        except Exception as error:  # noqa: BLE001 - each file system raises its own
            raise TraceError(
                f"{shown_address(address)}: cannot be read",
                _text(error),
                "check the address and your access",
            ) from None
        yield target


def _opened(address: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    shown = shown_address(address)
    try:
        import fsspec.core

        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        extra = _EXTRAS.get(scheme_of(address))
        step = f"pip install 'pytest-torchprof[{extra}]'" if extra else "install that package"
        raise TraceError(f"{shown}: cannot be opened", str(error), step) from None
    except Exception as error:  # noqa: BLE001 - each file system raises its own
        raise TraceError(f"{shown}: cannot be opened", _text(error)) from None
    return system, str(path)


def _is_trace(one: dict[str, Any]) -> bool:
    return one.get("type") == "file" and str(one["name"]).lower().endswith(TRACE_NAMES)


def _address(word: str, path: str) -> str:
    """The URL of a file that was found at a URL.

    >>> _address("s3://bucket/*.json", "bucket/a.json")
    's3://bucket/a.json'
    >>> _address("zip://*.json::s3://bucket/a.zip", "a.json")
    'zip://a.json::s3://bucket/a.zip'
    """
    if "://" in path:
        return path
    start = word.index("://") + len("://")
    _, chain, rest = word[start:].partition("::")
    return f"{word[:start]}{path}{chain}{rest}"


def _text(error: Exception) -> str:
    """An error of a file system in a line: its kind, as some have no text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
