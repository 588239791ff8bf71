"""Ask one question of one trace: what a worker does."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace as with_source
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pytest_torchprof.api import Trace
from pytest_torchprof.core.errors import OtherJsonError, TorchprofError, TraceError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.heap import blocks_apart, give_back_memory
from pytest_torchprof.trace.jobs import JobFacts, job_facts
from pytest_torchprof.trace.ranks import rank_in_name, rank_of, require_regular
from pytest_torchprof.trace.read import peek, read_trace
from pytest_torchprof.trace.stream import WANTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytest_torchprof.fleet.sources import Source
    from pytest_torchprof.trace.stream import ReadProgress


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
    from pytest_torchprof.fleet.cache import Cache, content_digest

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
    from pytest_torchprof.fleet.remote import local_copy

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
