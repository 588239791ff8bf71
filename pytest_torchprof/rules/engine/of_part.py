"""Which matches of a trace belong to a part of it, such as a step, and what of their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.device_gain import Elapsed, gain
from pytest_torchprof.rules.engine.costs import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.engine.costs import Floats
    from pytest_torchprof.rules.engine.rule import Matches
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


def of_part(found: Matches, part: Events) -> Matches:
    """The matches in the selected part.

    A match belongs to the part that has its event, and is counted there, so counts of disjoint
    parts add up. One of a stretch of events has in a part the share of its cost that the events
    there are of all. Of others, a part has what their stretches are worth in it: the device may be
    idle in one step because of a wait in the previous one, and what is one match of the whole
    trace, such as that launches keep a device idle, costs each step.
    """
    if found.parts is not None:
        return _by_events(found, found.parts, part)
    inside = (found.event >= 0) & part.selection[found.event]
    if found.span_ns is None or found.cost_ns is None:
        return found.where(inside)
    share = _shares(found, part, inside)
    kept = inside | (share > 0)
    count = inside.astype(np.int64) if found.count is None else found.count
    return replace(found, cost_ns=_scaled(found.cost_ns, share), count=count).where(kept)


def _by_events(found: Matches, parts: Sequence[Ints], part: Events) -> Matches:
    mine = [events[part.selection[events]] for events in parts]
    kept = np.array([len(events) > 0 for events in mine], bool)
    event = [
        one if one >= 0 and part.selection[one] else int(events[0]) if len(events) else -1
        for one, events in zip(found.event.tolist(), mine, strict=True)
    ]
    share = np.array([len(a) / max(len(b), 1) for a, b in zip(mine, parts, strict=True)])
    cost = None if found.cost_ns is None else _scaled(found.cost_ns, share)
    if found.count is None:
        count = ((found.event >= 0) & part.selection[found.event]).astype(np.int64)
    else:
        count = np.rint(found.count * share).astype(np.int64)
    return replace(
        found,
        event=np.array(event, np.int64),
        parts=mine,
        cost_ns=cost,
        count=count,
    ).where(kept)


def _scaled(cost_ns: Ints, share: Floats) -> Ints:
    return np.where(cost_ns < 0, cost_ns, cost_ns * share).astype(np.int64)


def _shares(found: Matches, part: Events, inside: Bools) -> Floats:
    """How much of each match's stretch the part has, of what it is worth."""
    if found.span_ns is None:
        return inside.astype(float)
    begin, end = found.span_ns
    whole, mine = gain(part.whole), gain(part)
    if not isinstance(whole, Elapsed) and not isinstance(mine, Elapsed):
        worth = whole.between(begin, end)
        own = np.divide(mine.between(begin, end), worth, out=np.zeros(len(worth)), where=worth > 0)
        return np.where(worth > 0, np.minimum(own, 1), inside)
    since, until = part.once(span)
    rows = np.maximum(found.event, 0)
    around = (found.event < 0) | (
        (part.ts[rows] < until) & (part.ts[rows] + part.dur[rows] > since) & ~inside
    )
    overlap = np.maximum(np.minimum(end, until) - np.maximum(begin, since), 0)
    share = np.where(around, overlap / np.maximum(end - begin, 1), 0.0)
    return np.where(inside, 1.0, share)
