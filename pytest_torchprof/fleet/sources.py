"""The traces that words of a command line stand for: files, folders, globs, and URLs."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.trace.ranks import (
    TRACE_NAMES,
    natural_key,
    nothing_found,
    size_of,
    traces_in,
)
from pytest_torchprof.trace.stream import WANTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SCHEME = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?[]")
#: Between scheme and host: a user and a password. After a question mark: perhaps a signature.
_SECRET = re.compile(r"(?<=://)[^/@]*@|\?[^:]*")


class Source(NamedTuple):
    """A file that should be a trace.

    Attributes:
        address: path, or URL.
        named: the user named this file. Other files were found in a folder or by a glob.
        size: bytes, as stored; 0 if unknown.
        remote: whether it is a URL, which fsspec reads.
    """

    address: str
    named: bool
    size: int
    remote: bool = False

    @property
    def shown(self) -> str:
        """The address without credentials."""
        return shown_address(self.address) if self.remote else self.address

    @property
    def path(self) -> Path:
        """Its name and folder, for the rank in them."""
        return Path(self.shown.partition("::")[0])


def shown_address(address: str) -> str:
    """A URL without user, password, and query.

    >>> shown_address("https://me:secret@host/a.json?signature=x")
    'https://host/a.json'
    """
    return _SECRET.sub("", address)


def scheme_of(word: str) -> str:
    """The scheme of a URL, empty for a path; of a chain, that of its first file system.

    >>> scheme_of("s3://bucket/a.json"), scheme_of("zip://*.json::a.zip"), scheme_of("a:b.json")
    ('s3', 'zip', '')
    """
    found = _SCHEME.match(word)
    return found[1].lower() if found else ""


def is_many(words: Sequence[str]) -> bool:
    """Whether a word is a URL or a glob, which the shell has not replaced."""
    return any(scheme_of(word) or _is_glob(word) for word in words)


def find_sources(words: Sequence[str]) -> list[Source]:
    """Each file once, in the given order; those of a folder or glob by name, numbers by value.

    A file that is named and missing is one of them.

    Raises:
        TraceError: a folder or URL that cannot be listed, a glob without a match, or no file.
    """
    found: dict[str, Source] = {}
    for word in words:
        for key, source in _of_word(word):
            known = found.get(key, source)
            found[key] = known._replace(named=known.named or source.named)
    if not found:
        raise nothing_found([Path(word) for word in words], [])
    return list(found.values())


def _of_word(word: str) -> Iterator[tuple[str, Source]]:
    scheme = scheme_of(word)
    if scheme == "file" and "::" not in word:
        word, scheme = word[len("file://") :], ""
    if scheme:
        from pytest_torchprof.fleet.remote import list_remote

        yield from ((source.address, source) for source in list_remote(word))
        return
    if _is_glob(word):
        matches = [Path(name) for name in glob.glob(word, recursive=True)]  # noqa: PTH207 - absolute ones, too
        if not matches:
            raise TraceError(f"{word}: no file matches", "", WANTED)
        traces = [path for path in matches if path.is_dir() or _is_trace_name(path)]
        for path in sorted(traces or matches, key=natural_parts):
            yield from _of_path(path, named=False)
        return
    yield from _of_path(Path(word), named=True)


def natural_parts(path: PurePath) -> list[list[tuple[int, str]]]:
    """Sort key for paths: part by part, numbers by value."""
    return [natural_key(PurePath(part)) for part in path.parts]


def _of_path(path: Path, *, named: bool) -> Iterator[tuple[str, Source]]:
    try:
        inside = traces_in(path) if path.is_dir() else None
        for file in [path] if inside is None else inside:
            own = named and inside is None
            yield os.path.realpath(file), Source(str(file), own, size_of(file))
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read", system_message(error), WANTED) from error
    if named and inside == []:
        raise nothing_found([path], [])


def _is_trace_name(path: PurePath) -> bool:
    return path.name.lower().endswith(TRACE_NAMES)


def _is_glob(word: str) -> bool:
    if not _MAGIC.search(word):
        return False
    try:
        return not Path(word).exists()  # a name may have such characters
    except (OSError, ValueError):
        return False
