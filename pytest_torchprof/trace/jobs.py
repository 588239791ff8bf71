"""Tell whether traces are the ranks of one job or come from several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.ranks import rank_in_name, rank_of, short_texts, world_size_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: Ranks of one job are recorded together; their hosts' clocks differ by less than this.
_APART_NS = 60 * 10**9


class JobFacts(Frozen, frozen=True):
    """What one trace says about its job.

    ``source`` is empty if it is not from a file. ``start_ns`` and ``end_ns`` are since the epoch if
    the trace has its base; None without events.
    """

    source: str
    rank: int | None
    world_size: int | None
    distributed: bool
    start_ns: int | None
    end_ns: int | None


#: A trace, and its name in a message.
_Named: TypeAlias = tuple[str, JobFacts]


def job_facts(trace: Events) -> JobFacts:
    """What this trace says about its job."""
    info = trace.metadata.get("distributedInfo")
    own = rank_of(trace.metadata)
    start, end = _span(trace) if len(trace) else (None, None)
    return JobFacts(
        trace.source,
        rank_in_name(Path(trace.source)) if own is None else own,
        world_size_of(trace.metadata),
        isinstance(info, dict) and bool(info),
        start,
        end,
    )


def several_jobs(traces: Sequence[Events]) -> str:
    """Why these are not the ranks of one job; empty if they may be. See `not_one_job`."""
    return not_one_job([job_facts(trace) for trace in traces])


def not_one_job(traces: Sequence[JobFacts]) -> str:
    """Why these are not the ranks of one job; empty if they may be.

    In one job, each rank occurs once. All ranks are recorded at one time, and have the same number
    of ranks, which is at least the number of traces; all of them are distributed, or none. Traces
    without any rank, even in their names, are of one job only if they were recorded together.
    """
    if len(traces) < 2:
        return ""
    named = list(zip(_names(traces), traces, strict=True))
    return next(filter(None, (check(named) for check in _CHECKS)), "")


def _names(traces: Sequence[JobFacts]) -> list[str]:
    names = short_texts([trace.source for trace in traces])
    return [name if trace.source else "a trace" for name, trace in zip(names, traces, strict=True)]


def _twice(traces: Sequence[_Named]) -> str:
    by_rank: dict[int, list[str]] = {}
    for name, trace in traces:
        if trace.rank is not None:
            by_rank.setdefault(trace.rank, []).append(name)
    for rank, (first, *others) in sorted(by_rank.items()):
        if others[1:]:
            return f"{first}, {others[0]} and {len(others) - 1} more all claim rank {rank}"
        if others:
            return f"{first} and {others[0]} both claim rank {rank}"
    return ""


def _sizes(traces: Sequence[_Named]) -> str:
    known = [(size, name) for name, trace in traces if (size := trace.world_size) is not None]
    for other, second in known:
        size, name = known[0]
        if size != other:
            return f"{name} belongs to a job of size {size}, {second} to one of size {other}"
    if known and known[0][0] < len(traces):
        size, name = known[0]
        return f"{name} belongs to a job of size {size}, but there are {len(traces)} traces"
    return ""


def _mixed(traces: Sequence[_Named]) -> str:
    ranked = [name for name, trace in traces if trace.distributed]
    alone = [name for name, trace in traces if trace.rank is None]
    if ranked and alone:
        return f"{ranked[0]} belongs to a distributed job, {alone[0]} does not"
    return ""


def _times(traces: Sequence[_Named]) -> str:
    spans = sorted(
        (trace.start_ns, trace.end_ns, name)
        for name, trace in traces
        if trace.start_ns is not None and trace.end_ns is not None
    )
    ranked = all(trace.rank is not None for _, trace in traces)
    allowed = _APART_NS if ranked else 0
    until: int | None = None
    last = ""
    for start, end, name in spans:
        if until is not None and start - until > allowed:
            return f"{name} begins {_lasting(start - until)} after {last} ends"
        if until is None or end < until:  # the first to end must still run when the last begins
            until, last = end, name
    return ""


def _span(trace: Events) -> tuple[int, int]:
    """Nanoseconds since the epoch, if the trace has its base."""
    base = trace.metadata.get("baseTimeNanoseconds")
    zero = base if type(base) is int else 0
    return zero + int(trace.ts[0]), zero + int((trace.ts + trace.dur).max())


def _lasting(ns: int) -> str:
    """A duration in a suitable unit.

    >>> _lasting(5_000_000), _lasting(90 * 10**9), _lasting(2 * 86_400 * 10**9)
    ('5 ms', '90 s', '2 days')
    """
    for size, unit in ((86_400 * 10**9, "days"), (60 * 10**9, "min"), (10**9, "s")):
        if ns >= 2 * size:
            return f"{ns / size:.0f} {unit}"
    return f"{ns / 1e6:.3g} ms"


_CHECKS: tuple[Callable[[Sequence[_Named]], str], ...] = (_twice, _sizes, _mixed, _times)
