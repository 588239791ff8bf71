"""Which matches of a trace belong to some of its steps, and what of their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.trace.steps import chosen_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.engine.rule import Matches
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


def of_steps(found: Matches, trace: Events) -> Matches:
    """The matches in the selected steps.

    A match belongs to the step of its event. One of a stretch of events has in a step the share of
    its cost that the events there are of all; one whose event is around steps, or unknown, has that
    of the time of its stretch.
    """
    if found.parts is not None:
        return _by_parts(found, found.parts, trace)
    inside = (found.event >= 0) & trace.selection[found.event]
    if found.span_ns is None or found.cost_ns is None or inside.all():
        return found.where(inside)
    begin, end = found.span_ns
    rows = np.maximum(found.event, 0)
    around = _covered(trace, trace.ts[rows], trace.ts[rows] + trace.dur[rows]) > 0
    around |= found.event < 0
    share = _covered(trace, begin, end) / np.maximum(end - begin, 1)
    share[~around] = 0
    share[inside] = 1
    known = found.cost_ns >= 0
    cost = np.where(known, found.cost_ns * share, found.cost_ns).astype(np.int64)
    return replace(found, cost_ns=cost).where(inside | (share > 0))


def _by_parts(found: Matches, parts: Sequence[Ints], trace: Events) -> Matches:
    mine = [events[trace.selection[events]] for events in parts]
    kept = np.array([len(events) > 0 for events in mine], bool)
    event = np.array(
        [
            one if one >= 0 and trace.selection[one] else events[0] if len(events) else -1
            for one, events in zip(found.event.tolist(), mine, strict=True)
        ],
        np.int64,
    )
    cost = found.cost_ns
    if cost is not None:
        share = np.array([len(a) / max(len(b), 1) for a, b in zip(mine, parts, strict=True)])
        cost = np.where(cost >= 0, cost * share, cost).astype(np.int64)
    return replace(found, event=event, parts=mine, cost_ns=cost).where(kept)


def _covered(trace: Events, begin: Ints, end: Ints) -> Ints:
    """How long each of these times is within the selected steps, in ns."""
    chosen = chosen_steps(trace)
    total = np.zeros(len(begin), np.int64)
    if chosen is None:
        return total
    steps, numbers = chosen
    for one in np.flatnonzero(np.isin(steps.number, numbers)).tolist():
        since, until = steps.begin[one], steps.end[one]
        total += np.maximum(np.minimum(end, until) - np.maximum(begin, since), 0)
    return total
