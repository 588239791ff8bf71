"""Ask one question of many traces, and add up the answers."""

from __future__ import annotations

import gc
import os
import pickle
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace as with_source
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

import pytest_torchprof
from pytest_torchprof.api import Trace
from pytest_torchprof.core.errors import OtherJsonError, TorchprofError, TraceError
from pytest_torchprof.core.files import cache_folder, replacing, system_message
from pytest_torchprof.core.process import blocks_apart, give_back_memory
from pytest_torchprof.trace.ranks import JobFacts, job_facts, rank_in_name, rank_of, require_regular
from pytest_torchprof.trace.read import WANTED, peek, read_trace

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator, Mapping

    from pytest_torchprof.fleet.sources import Source
    from pytest_torchprof.trace.read import ReadProgress


# ---- Ask one question of one trace: what a worker does.

#: Of a file whose trace is not left to the next automatic collection.
_LARGE_BYTES = 2**20


class Question(NamedTuple):
    """What is asked of each trace.

    Attributes:
        function: ``module:function`` below the package; from a `Trace` and the settings it makes a
            part: something small that can be pickled.
        settings: what the part depends on; values with a stable ``repr``.
        rank: traces that say they are of another rank are skipped.
        cache: the folder of the cache, if there is one.
        room: the folder for copies of remote files; the system's if None.
    """

    function: str
    settings: Mapping[str, Any]
    rank: int | None = None
    cache: str | None = None
    room: str | None = None

    @property
    def key(self) -> str:
        """The question as a text, for the cache."""
        return f"{self.function} {sorted(self.settings.items())!r}"


class Part(NamedTuple):
    """What a trace has answered.

    Attributes:
        own_rank: the rank that the trace itself says.
        job: what tells one job from several; its source is empty.
        warnings: what was wrong with the file.
        body: what the question's function has made.
    """

    own_rank: int | None
    job: JobFacts
    warnings: tuple[str, ...]
    body: Any


class Answer(NamedTuple):
    """What has become of one source.

    Without a part, there is an ``error``; with neither, the source is of another rank, ``claim``.
    ``foreign``: it is other JSON, such as a configuration, so it is no rank that is missing.
    ``cached``: the part was in the cache.
    """

    claim: int | None
    part: Part | None = None
    error: TorchprofError | None = None
    foreign: bool = False
    cached: bool = False


def answer(question: Question, source: Source, progress: ReadProgress | None = None) -> Answer:
    """Ask the question of this trace; whatever is wrong with the file is in the answer."""
    name = source.path
    claim = rank_in_name(name)
    try:
        with _as_file(question, source) as path:
            own = _peeked(path) if question.rank is not None else None
            claim = claim if own is None else own
            if question.rank is not None and claim not in {None, question.rank}:
                return Answer(claim)
            part, cached = _part(question, source, path, progress)
    except TorchprofError as error:
        # A file with a rank in its name was meant to be one.
        foreign = isinstance(error, OtherJsonError) and rank_in_name(Path(name.name)) is None
        return Answer(claim, None, _named(error, source), foreign)
    except MemoryError:
        full = TraceError(f"{source.shown}: not enough memory for this trace")
        return Answer(claim, None, full)
    finally:
        if source.size > _LARGE_BYTES:
            gc.collect()  # a trace and what was derived from it refer to each other
            give_back_memory()
    claim = claim if part.own_rank is None else part.own_rank
    return Answer(claim, part, cached=cached)


def _part(
    question: Question, source: Source, path: Path, progress: ReadProgress | None
) -> tuple[Part, bool]:
    if question.cache is None or not path.is_file():  # a pipe can only be read once
        return _made(question, source, path, progress), False

    cache = Cache(question.cache, question.key)
    try:
        content = content_digest(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{source.shown}: cannot be read", system_message(error), WANTED
        ) from error
    if (found := cache.load(content)) is not None:
        return found[0], True
    part = _made(question, source, path, progress)
    cache.store(content, part)
    return part, False


def _made(question: Question, source: Source, path: Path, progress: ReadProgress | None) -> Part:
    large = source.size > _LARGE_BYTES
    with blocks_apart(_LARGE_BYTES) if large else nullcontext():
        events = with_source(read_trace(path, progress=progress), source=source.shown)
    if large:
        give_back_memory()
    function: Callable[[Trace, Mapping[str, Any]], Any]
    function = resolve_name(f"pytest_torchprof.{question.function}")
    body = function(Trace(events, Path(source.shown)), question.settings)
    job = replace(job_facts(events), source="", rank=None)
    return Part(rank_of(events.metadata), job, events.warnings, body)


@contextmanager
def _as_file(question: Question, source: Source) -> Iterator[Path]:
    if not source.remote:
        path = Path(source.address)
        if not source.named:
            require_regular(path)
        yield path
        return
    from pytest_torchprof.fleet.sources import local_copy

    with local_copy(source.address, question.room) as path:
        yield path


def _peeked(path: Path) -> int | None:
    """The rank in a file's metadata; a pipe can only be read once."""
    if path.is_file():
        with suppress(TraceError):
            return rank_of(peek(path))
    return None


def _named(error: TorchprofError, source: Source) -> TorchprofError:
    """The error with the source's name, instead of that of its copy."""
    if not source.remote:
        return error
    what = error.what.partition(": ")
    return type(error)(f"{source.shown}: {what[2]}", error.found, error.next_step)


# ---- What was found in a trace, kept under a hash of its content, the question, and our code.
#
# The files are pickles, as only this user's commands write and read them: a file of another user
# is not read, nor one that is incomplete.

_CHUNK = 2**20
_HASH_BYTES = 32
#: Files that were not used for so long are removed.
_KEPT_S = 30 * 24 * 3600
_SUFFIX = ".part"


def _hash(data: bytes = b"") -> hashlib.blake2b:
    try:
        from _blake2 import blake2b  # that of hashlib, which would load OpenSSL, 4 MiB, as well
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=_HASH_BYTES)


@lru_cache(maxsize=1)
def code_digest() -> str:
    """A hash of this package's sources, and of what else decides the last digit: numpy."""
    found = _hash(np.__version__.encode())
    root = Path(pytest_torchprof.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"\0{path.relative_to(root).as_posix()}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def content_digest(path: Path) -> str:
    """A hash of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    found = _hash()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def default_folder() -> str | None:
    """Where parts are kept; None if the user has no home."""
    try:
        return str(cache_folder() / "parts")
    except RuntimeError:
        return None


class Cache:
    """Parts in a folder, of one question."""

    def __init__(self, folder: str, question: str) -> None:
        self._folder = Path(folder)
        self._question = question

    def path_of(self, content: str) -> Path:
        """The file of the part of a trace with this content."""
        key = f"{content}\0{self._question}\0{code_digest()}"
        name = _hash(key.encode()).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"

    def load(self, content: str) -> tuple[Any] | None:
        """The part, in a tuple; None if there is none, or not a whole one of this user's."""
        path = self.path_of(content)
        try:
            with path.open("rb") as file:
                if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                digest, data = file.read(_HASH_BYTES), file.read()
            if _hash(data).digest() != digest:
                return None
            part = pickle.loads(data)  # noqa: S301 - see the module's docstring
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is made anew
            return None
        with suppress(OSError):
            os.utime(path)
        return (part,)

    def store(self, content: str, part: Any) -> None:
        """Keep a part; where that is not possible (a full disk), do nothing."""
        data = pickle.dumps(part, protocol=5)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self.path_of(content)) as file:
                file.write(_hash(data).digest())
                file.write(data)


def remove_old(folder: str) -> None:
    """Remove the parts that were not used for a month."""
    oldest = time.time() - _KEPT_S
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                if entry.name.endswith(_SUFFIX) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)  # noqa: PTH108 - as scandir names it
