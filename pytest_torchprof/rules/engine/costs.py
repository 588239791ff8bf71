"""What findings cost: what the device would gain, no time counted twice.

A finding costs at most what the stretches of its matches are worth: where a trace has all of a
device's work, the exposed time of what they launched and the idle time that the host caused in
them (see `analysis.device_gain`), else their length. Where several findings claim the same stretch
and their claims exceed its worth, each gets its share of it. So all together cost at most what the
trace is worth, and what two rules say about the same time is counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_gain import Elapsed, gain
from pytest_torchprof.analysis.idle import idle, spans_of
from pytest_torchprof.analysis.unprofiled_time import slowdown_share
from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from numpy.typing import NDArray

    from pytest_torchprof.analysis.device_gain import Gain
    from pytest_torchprof.rules.engine.rule import Matches, Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

    Floats: TypeAlias = NDArray[np.float64]


class Claims(Frozen, frozen=True):
    """What matches claim, in columns: the finding that each is of, ns (-1 if unknown), and when its
    stretch begins and ends.

    ``elsewhere`` marks those whose ns are from another run.
    """

    finding: Ints
    ns: Ints
    begin: Ints
    end: Ints
    elsewhere: Bools


def costs_ms(
    trace: Events, matches: Mapping[Rule, Matches], finding: Ints, count: int
) -> list[float | None]:
    """What each of ``count`` findings costs, in ms without the profiler; None if unknown.

    ``finding``: the number of the finding that each match is of, for the matches of all rules in
    order.
    """
    claims = _claims(trace, matches, finding)
    other = claims.elsewhere.any()
    own = _costs_ns(trace, _where(claims, ~claims.elsewhere) if other else claims, count)
    if isinstance(gain(trace), Elapsed):
        own *= slowdown_share(trace)
    total = float(own.sum())
    own *= min(span_ns(trace) / total, 1) if total else 1
    if other:
        noted = _where(claims, claims.elsewhere & (claims.ns >= 0))
        own += np.bincount(noted.finding, noted.ns, count)
    matched = np.bincount(claims.finding, minlength=count) > 0
    known = matched & (np.bincount(claims.finding, claims.ns < 0, count) == 0)
    return [
        ns / 1e6 if all_ else None for ns, all_ in zip(own.tolist(), known.tolist(), strict=True)
    ]


def _claims(trace: Events, matches: Mapping[Rule, Matches], finding: Ints) -> Claims:
    # What dynamo recorded is from an earlier run, which was not profiled.
    noted = trace.facts.compiled is not None
    ns, begin, end = (np.concatenate(column) for column in zip(
        *(_claimed(trace, found) for found in matches.values()), strict=True
    ))  # fmt: skip
    elsewhere = np.repeat(
        [noted and rule.gated_by is not None for rule in matches], [*map(len, matches.values())]
    )
    return Claims(finding, ns, begin, end, elsewhere)


def _claimed(trace: Events, found: Matches) -> tuple[Ints, Ints, Ints]:
    """What each match costs, if all its stretch is worth is its own; begin and end of that."""
    rows, known = np.maximum(found.event, 0), found.event >= 0
    ns = found.cost_ns
    if found.span_ns is not None:
        begin, end = found.span_ns
    elif ns is None:
        begin = np.where(known, trace.ts[rows], 0)
        end = begin + np.where(known, trace.dur[rows], 0)
    else:
        begin, end = (np.full(len(found), time) for time in trace.once(span))
    if ns is None:
        # All that the stretch is worth.
        told = known if found.span_ns is None else np.ones(len(found), bool)
        ns = np.where(told, np.iinfo(np.int64).max, -1)
    return ns, begin, end


def _where(claims: Claims, chosen: Bools) -> Claims:
    finding, ns, begin, end = (
        column[chosen] for column in (claims.finding, claims.ns, claims.begin, claims.end)
    )
    return Claims(finding, ns, begin, end, claims.elsewhere[chosen])


def _costs_ns(trace: Events, claims: Claims, count: int) -> Floats:
    measure = gain(trace)
    known = claims.ns >= 0
    ns = np.minimum(claims.ns, measure.between(claims.begin, claims.end))[known]
    claimed = np.bincount(claims.finding[known], ns, count)
    owner, begin, end = _merged(claims.finding[known], claims.begin[known], claims.end[known])
    worth = np.bincount(owner, measure.between(begin, end), count)
    # Of each moment that a finding covers, it claims this share.
    rate = np.minimum(np.divide(claimed, worth, out=np.zeros(count), where=worth > 0), 1)
    if count == 1:  # which shares nothing
        return rate * worth
    return _shared(measure, rate, owner, begin, end)


def _shared(measure: Gain | Elapsed, rate: Floats, owner: Ints, begin: Ints, end: Ints) -> Floats:
    """What findings get of their stretches, if moments are divided that are claimed twice."""
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times, place = times[order], np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    change = np.concatenate([rate[owner], -rate[owner]])[order]
    claimed = np.cumsum(change)[:-1]
    worth = measure.between(times[:-1], times[1:]) / np.maximum(claimed, 1)
    until = np.concatenate([[0], np.cumsum(worth)])
    first, last = place[: len(owner)], place[len(owner) :]
    return rate * np.bincount(owner, until[last] - until[first], len(rate))


def _merged(owner: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The union of each owner's stretches, as disjoint ones: owner, begin, end."""
    end = np.maximum(begin, end)
    if len(owner) < 2:
        return owner, begin, end
    order = np.lexsort((begin, owner))
    owner, begin, end = owner[order], begin[order], end[order]
    zero = begin.min()
    # Those of each owner come later than all of the previous one.
    shift = owner * (end.max() - zero + 1) - zero
    reach = np.maximum.accumulate(end + shift)
    first = np.flatnonzero(np.append(True, (begin + shift)[1:] > reach[:-1]))
    last = np.append(first[1:], len(owner)) - 1
    return owner[first], begin[first], (reach - shift)[last]


def around(trace: Events, events: Ints) -> tuple[Ints, Ints]:
    """When each of these events begins and ends, as `Matches.span_ns`."""
    return trace.ts[events], trace.ts[events] + trace.dur[events]


def launched_between(trace: Events, events: Ints) -> tuple[int, int]:
    """When the host began to launch the first of these device events, and ended with the last."""
    call = np.where(trace.launch[events] >= 0, trace.launch[events], events)
    return int(trace.ts[call].min()), int((trace.ts[call] + trace.dur[call]).max())


def span(trace: Events) -> tuple[int, int]:
    """From the first to the last selected event, on host and device."""
    rows = np.flatnonzero(trace.selection)
    if not len(rows):
        return trace.region or (0, 0)
    return int(trace.ts[rows].min()), int((trace.ts[rows] + trace.dur[rows]).max())


def span_ns(trace: Events) -> int:
    """How long the selected part of the trace lasted, without the profiler if that is known: of its
    devices, where gains are theirs.
    """
    begin, end = trace.once(span)
    slowed = slowdown_share(trace)
    if isinstance(gain(trace), Elapsed):
        return int(max(end - begin, 0) * slowed)
    of_devices = np.array(list(spans_of(trace).values()), np.int64)
    begin, end = int(of_devices[:, 0].min()), int(of_devices[:, 1].max())
    (unused,) = idle(trace).between(np.array([begin]), np.array([end])).tolist()
    return int(end - begin - unused * (1 - slowed))
