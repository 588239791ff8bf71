"""The traces that words of a command line stand for: files, folders, globs, and URLs."""

from __future__ import annotations

import glob
import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.errors import TraceError, error_line
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.urls import file_system, scheme_of, shown_address
from pytest_torchprof.trace.ranks import TRACE_NAMES, natural_key, nothing_found, size_of, traces_in
from pytest_torchprof.trace.read import WANTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAGIC = re.compile(r"[*?[]")


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
    def missing(self) -> bool:
        """Whether the user named a file that is not there."""
        return self.named and not self.remote and not os.path.lexists(self.address)

    @property
    def path(self) -> Path:
        """Its name and folder, for the rank in them."""
        return Path(self.shown.partition("::")[0])


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


# ---- Traces at URLs, through fsspec: list them, and copy one to read it.

#: In a URL of the web, a question mark begins its query.
_WEB_MAGIC = re.compile(r"[*]")


def list_remote(word: str) -> list[Source]:
    """The file at this URL, the traces in this folder, or those that match this glob.

    Raises:
        TraceError: no such scheme or file, no package for it, no access, or nothing matches.
    """
    system, path = _opened(word)
    shown = shown_address(word)
    named = False
    try:
        is_web = scheme_of(word) in {"http", "https"}
        if (_WEB_MAGIC if is_web else _MAGIC).search(path):
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
            f"{shown}: cannot be read", error_line(error), "check the address and your access"
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
                error_line(error),
                "check the address and your access",
            ) from None
        yield target


def _opened(address: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    return file_system(address, f"{shown_address(address)}: cannot be opened", TraceError)


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
