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
from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render.table import sum_of
from pytest_torchprof.trace.ranks import JobFacts, job_facts, rank_in_name, rank_of, require_regular
from pytest_torchprof.trace.read import peek, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


# ---- Rows of many traces as rows of all: sums that are exact, so that no order changes a digit.

Row = dict[str, Any]


class Merging(NamedTuple):
    """How the rows of a table become rows of all traces.

    What no field of this names is kept where all traces agree, and unknown where they do not.

    Attributes:
        keys: rows that agree in these are one.
        spread: the time or size whose smallest and largest trace are told.
        sums: added up; unknown if a part is.
        largest: the largest of all.
        weighted: rates; their mean, weighted by ``weight``.
        weight: a field of ``sums``.
        names: names with their counts, which are added up; a single name counts ``calls`` times.
    """

    keys: tuple[str, ...]
    spread: str
    sums: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    weight: str = ""
    names: tuple[str, ...] = ()

    @property
    def added(self) -> tuple[str, str, str]:
        """The fields that a merged row has beside those of the table: traces, least, and most."""
        unit = self.spread.rpartition("_")[2]
        return "traces", f"min_{unit}", f"max_{unit}"


def merged_rows(how: Merging, each: Iterable[tuple[int, Sequence[Row]]]) -> list[tuple[Row, int]]:
    """Rows of all traces, in the order of their keys, and the trace with the most of each, or -1.

    ``each``: numbers of traces, and their rows.
    """
    found: dict[tuple[str, ...], list[tuple[int, Row]]] = {}
    for trace, rows in each:
        for row in rows:
            key = tuple(repr(row.get(field)) for field in how.keys)
            found.setdefault(key, []).append((trace, row))
    return [_merged(how, found[key]) for key in sorted(found)]


def _merged(how: Merging, parts: Sequence[tuple[int, Row]]) -> tuple[Row, int]:
    """One row of all traces, and the trace with the most; the first where several have it."""
    special = {*how.sums, *how.largest, *how.weighted, *how.names, "share"}
    rows = [row for _, row in parts]
    out: Row = {}
    for row in rows:
        for field, value in row.items():
            if field not in special and out.setdefault(field, value) != value:
                out[field] = None
    out |= {field: _sum(row.get(field) for row in rows) for field in how.sums}
    for field in how.weighted:
        total = _sum(_product(row.get(field), row.get(how.weight)) for row in rows)
        out[field] = None if total is None or not out[how.weight] else total / out[how.weight]
    out |= {field: _most(row.get(field) for row in rows) for field in how.largest}
    out |= {field: _counted(field, rows) for field in how.names}
    of_trace: dict[int, list[float | None]] = {}
    for trace, row in parts:
        of_trace.setdefault(trace, []).append(row.get(how.spread))
    both = _most if how.spread in how.largest else _sum
    known = {trace: value for trace, own in of_trace.items() if (value := both(own)) is not None}
    least, most = min(known.values(), default=None), max(known.values(), default=None)
    out |= dict(zip(how.added, (len(of_trace), least, most), strict=True))
    return out, min((trace for trace, value in known.items() if value == most), default=-1)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown if a part is."""
    parts = list(values)
    return None if None in parts else sum_of(parts)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _product(rate: float | None, weight: float | None) -> float | None:
    return None if rate is None or weight is None else rate * weight


def _counted(field: str, rows: Sequence[Row]) -> CountedNames | None:
    counts: dict[str, int] = {}
    for row in rows:
        value = row.get(field)
        one = [] if value is None else [(str(value), row.get("calls") or 0)]
        for name, count in value.parts if isinstance(value, CountedNames) else one:
            counts[name] = counts.get(name, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return CountedNames(ordered) if counts else None
