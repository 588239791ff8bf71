"""Turn a rule's matches into findings: one per message and place, with plausible costs.

One line that several modules run is one place.

A finding costs at most the span of its matches, and all findings together at most the span of the
trace: rules may count the same time twice, and parallel work adds up to more. For a test that was
timed without the profiler, costs are scaled to such a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.unprofiled_time import slowdown_share
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.results import Finding
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Place
    from pytest_torchprof.rules.engine.rule import Matches, Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


#: Shapes in messages, and the placeholder for several.
_SIZES = late(r"\[\d+(, \d+)*\]")
_SEVERAL = "[…]"


@dataclass
class _Group:
    """Sums over matches with one place, and one message except for sizes; -1 bytes if unknown.

    ``place``: the first match's; ``modules``: the paths of all, in order.
    """

    message: str
    place: Place
    count: int = 0
    ns: int = 0
    bytes: int = -1
    begin: int = np.iinfo(np.int64).max
    end: int = np.iinfo(np.int64).min
    modules: dict[str, None] = field(default_factory=dict)

    @property
    def cost_ms(self) -> float:
        return max(min(self.ns, self.end - self.begin), 0) / 1e6


def grouped(
    trace: Events, rule: Rule, found: Matches, places: Sequence[Place], place: Ints
) -> list[Finding]:
    """The findings of one rule; ``place`` is the position in ``places`` of each match."""
    cost = found.cost_ns
    if cost is None:
        cost = np.where(found.event >= 0, trace.dur[found.event], 0)
    begin, end = _spans(trace, found)
    # Several paths of operators may lead to one line, and several modules may run it.
    lines: dict[tuple[str | None, str | None], int] = {}
    line = [
        lines.setdefault((p.location, None) if p.location else (p.path, p.module), i)
        for i, p in enumerate(places)
    ]
    groups: dict[tuple[int, str, str | None, str], _Group] = {}
    for at, message, own, fix, count, ns, moved, since, until in zip(
        place.tolist(),
        repeat(found.message) if isinstance(found.message, str) else found.message,
        repeat(None) if found.location is None else found.location,
        repeat(rule.fix) if found.fix is None else found.fix,
        repeat(1) if found.count is None else found.count.tolist(),
        cost.tolist(),
        repeat(0) if found.bytes is None else found.bytes.tolist(),
        begin.tolist(),
        end.tolist(),
        strict=False,
    ):
        # Several sizes at one place have one cause: batches and sequences differ in size each time.
        key = (-1 if own else line[at], _SIZES.sub("", message), own, fix)
        group = groups.setdefault(key, _Group(message, places[at]))
        if group.message != message:
            group.message = _SIZES.sub(_SEVERAL, message)
        if (module := places[at].module) is not None:
            group.modules[module] = None
        group.count += count
        group.ns += ns
        group.begin, group.end = min(group.begin, since), max(group.end, until)
        if moved >= 0:
            group.bytes = max(group.bytes, 0) + moved
    return [
        Finding(
            rule=rule.code,
            count=group.count,
            message=group.message,
            location=own or group.place.location or group.place.path,
            fix=fix,
            cost_ms=group.cost_ms,
            bytes=None if found.bytes is None or group.bytes < 0 else group.bytes,
            path=group.place.path,
            module=next(iter(group.modules), None),
            modules=len(group.modules) or None,
        )
        for (_, _, own, fix), group in groups.items()
    ]


def within_span(trace: Events, found: list[Finding], elsewhere: Collection[str]) -> list[Finding]:
    """The findings with costs whose sum is at most the span of the trace: all scaled by the same
    factor, to the time without the profiler if known.

    ``elsewhere`` are rules whose costs are from another run.
    """
    begin, end = trace.once(_span)
    total = sum(one.cost_ms for one in found if one.rule not in elsewhere)
    share = min(max(end - begin, 0) / 1e6 / total, 1) if total else 1
    share *= slowdown_share(trace)
    if share == 1:
        return found
    return [
        one if one.rule in elsewhere else replace(one, cost_ms=one.cost_ms * share) for one in found
    ]


def _spans(trace: Events, found: Matches) -> tuple[Ints, Ints]:
    """Start and end of each match."""
    if found.span_ns is not None:
        return found.span_ns
    if found.cost_ns is None:
        rows = np.maximum(found.event, 0)
        return trace.ts[rows], trace.ts[rows] + trace.dur[rows]
    none = np.zeros(len(found), np.int64)
    return none, none + np.iinfo(np.int64).max // 2


def _span(trace: Events) -> tuple[int, int]:
    """From the first to the last selected event, on host and device."""
    rows = np.flatnonzero(trace.selection)
    if not len(rows):
        return trace.region or (0, 0)
    return int(trace.ts[rows].min()), int((trace.ts[rows] + trace.dur[rows]).max())


def reach(trace: Events, events: Ints) -> tuple[Ints, Ints]:
    """Start of each of these host events, and end of the event and all that it launched."""
    begin, end = trace.ts[events], trace.ts[events] + trace.dur[events]
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS) & (trace.launch >= 0))
    launch = trace.launch[device]
    order = np.lexsort((launch, trace.thread[launch]))
    device, launch = device[order], launch[order]
    done = trace.ts[device] + trace.dur[device]
    for thread in nesting.distinct(trace.thread[events]).tolist():
        asked = np.flatnonzero(trace.thread[events] == thread)
        mine = np.flatnonzero(trace.thread[launch] == thread)
        called, over = trace.ts[launch[mine]], done[mine]
        first = np.searchsorted(called, begin[asked])
        last = np.searchsorted(called, end[asked], side="right")
        for at, a, b in zip(asked.tolist(), first.tolist(), last.tolist(), strict=True):
            end[at] = max(end[at], over[a:b].max(initial=end[at]))
    return begin, end
