"""Ask one question of many traces, and add up the answers."""

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
from pytest_torchprof.core.process import blocks_apart, give_back_memory
from pytest_torchprof.trace.ranks import JobFacts, job_facts, rank_in_name, rank_of, require_regular
from pytest_torchprof.trace.read import peek, read_trace

if TYPE_CHECKING:
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
        settings: what the part depends on.
        rank: traces that say they are of another rank are skipped.
        room: the folder for copies of remote files; the system's if None.
    """

    function: str
    settings: Mapping[str, Any]
    rank: int | None = None
    room: str | None = None


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
    """

    claim: int | None
    part: Part | None = None
    error: TorchprofError | None = None
    foreign: bool = False


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
            part = _part(question, source, path, progress)
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
    return Answer(claim, part)


def _part(question: Question, source: Source, path: Path, progress: ReadProgress | None) -> Part:
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
