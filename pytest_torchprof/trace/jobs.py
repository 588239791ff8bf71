"""Tell whether traces are the ranks of one job or come from several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_torchprof.trace.ranks import rank_in_name, rank_of, short_names

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: A trace, and its name in a message.
_Named: TypeAlias = "tuple[str, Events]"

#: Ranks of one job are recorded together; their hosts' clocks differ by less than this.
_APART_NS = 60 * 10**9


def several_jobs(traces: Sequence[Events]) -> str:
    """Why these are not the ranks of one job; empty if they may be.

    In one job, each rank occurs once. All ranks are recorded at one time, and have the same number
    of ranks, which is at least the number of traces; all of them are distributed, or none. Traces
    without any rank, even in their names, are of one job only if they were recorded together.
    """
    if len(traces) < 2:
        return ""
    named = list(zip(_names(traces), traces, strict=True))
    return next(filter(None, (check(named) for check in _CHECKS)), "")


def _names(traces: Sequence[Events]) -> list[str]:
    names = short_names([Path(trace.source) for trace in traces])
    return [name if trace.source else "a trace" for name, trace in zip(names, traces, strict=True)]


def _rank(trace: Events) -> int | None:
    own = rank_of(trace.metadata)
    return rank_in_name(Path(trace.source)) if own is None else own


def _info(trace: Events) -> dict[str, Any]:
    info = trace.metadata.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _world(trace: Events) -> int | None:
    size = _info(trace).get("world_size")
    return size if type(size) is int and size > 0 else None


def _twice(traces: Sequence[_Named]) -> str:
    by_rank: dict[int, list[str]] = {}
    for name, trace in traces:
        if (rank := _rank(trace)) is not None:
            by_rank.setdefault(rank, []).append(name)
    for rank, (first, *others) in sorted(by_rank.items()):
        if others[1:]:
            return f"{first}, {others[0]} and {len(others) - 1} more all claim rank {rank}"
        if others:
            return f"{first} and {others[0]} both claim rank {rank}"
    return ""


def _sizes(traces: Sequence[_Named]) -> str:
    known = [(size, name) for name, trace in traces if (size := _world(trace)) is not None]
    for (size, name), (other, second) in combinations(known, 2):
        if size != other:
            return f"{name} belongs to a job of size {size}, {second} to one of size {other}"
    if known and known[0][0] < len(traces):
        size, name = known[0]
        return f"{name} belongs to a job of size {size}, but there are {len(traces)} traces"
    return ""


def _mixed(traces: Sequence[_Named]) -> str:
    ranked = [name for name, trace in traces if _info(trace)]
    alone = [name for name, trace in traces if _rank(trace) is None]
    if ranked and alone:
        return f"{ranked[0]} belongs to a distributed job, {alone[0]} does not"
    return ""


def _times(traces: Sequence[_Named]) -> str:
    spans = sorted((*_span(trace), name) for name, trace in traces if len(trace))
    ranked = all(_rank(trace) is not None for _, trace in traces)
    allowed = _APART_NS if ranked else 0
    until, last = None, ""
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
