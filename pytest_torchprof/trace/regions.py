"""Regions within the measured one: ``record_function`` labels, and those that a test has named."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import REGION, REGION_MARK, region_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


#: torch's own annotation of a DataLoader with workers.
_WORKERS = late(r"^enumerate\(DataLoader\)#_MultiProcessing")


def uses_workers(trace: Events) -> bool:
    """Whether a DataLoader with workers was iterated over."""
    return trace.region is not None and any(map(_WORKERS.match, trace.names))


def received(trace: Events) -> Ints:
    """What makes tensors of the batches of workers: how many have come by now is chance.

    That is an `empty` and a `set_` each, and the memory that a worker has filled before.
    """
    memory = trace.memory.event
    rows = np.concatenate([trace.is_kind(Kind.OP).nonzero()[0], memory])
    rows = rows[np.lexsort((rows, trace.thread[rows]))]
    empty, filled = trace.named("aten::empty")[rows], trace.named("aten::set_")[rows]
    near = trace.thread[rows[1:]] == trace.thread[rows[:-1]]
    made = (empty[:-1] & filled[1:] & near).nonzero()[0]
    before = made[(made > 0) & near[made - 1]] - 1
    before = before[np.isin(rows[before], memory)]
    found: Ints = rows[np.concatenate([made, made + 1, before])]
    return found


def named_regions(trace: Events) -> dict[str, int]:
    """The regions that the test has named, in the order in which they began, and their laps."""
    return dict(trace.whole.once(_named_regions))


def _named_regions(trace: Events) -> dict[str, int]:
    if not any(name.startswith(REGION_MARK) for name in trace.names):
        return {}
    marks = trace.is_kind(Kind.ANNOTATION) & trace.in_region
    marks &= trace.names_where(lambda name: name.startswith(REGION_MARK))
    names = [region_name(trace.names[number]) for number in trace.name[marks].tolist()]
    return dict(Counter(names))


def laps_of(trace: Events, what: str) -> Ints:
    """The annotations of this name or glob in the measured region, in time order.

    A test's own regions alone have their mark before the name.
    """
    return trace.once(_laps, what)


def _laps(trace: Events, what: str) -> Ints:
    named = trace.names_where(
        lambda name: name == what or (name != REGION and is_of_name(what, region_name(name)))
    )
    found: Ints = (named & trace.is_kind(Kind.ANNOTATION) & trace.in_region).nonzero()[0]
    return found


def within_laps(trace: Events, laps: Ints) -> Bools:
    """What ran while any of these annotations was open, in any thread; device events by launch."""
    begin, end = np.sort(trace.ts[laps]), np.sort(trace.ts[laps] + trace.dur[laps])
    opened = np.searchsorted(begin, trace.ts, side="right")
    inside: Bools = (opened > np.searchsorted(end, trace.ts, side="right")) & trace.in_region
    if len(device := trace.device_rows):
        launch = trace.launch[device]
        inside[device] = np.where(launch >= 0, inside[launch], inside[device])
    return inside
