"""The rule about collections of garbage that keep the device idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import measured_ns
from pytest_torchprof.analysis.idle_causes import COLLECT, Cause, idle_parts, paused_ns
from pytest_torchprof.analysis.missing import pauses_gap
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.places.place import Owner, frame_of, owner_of
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, Kind, Names, events_named
from pytest_torchprof.trace.tree import has_frames, marked

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Below this share of the span, what the rule cannot see would be no finding either.
_SHARE: Final = 0.05
#: Collections below this share of the longest do not make it one that is repeated.
_ALIKE: Final = 0.1
_COLLECTIONS: Final = Names(COLLECT)


def _unseen_collections(trace: Events) -> Reason | None:
    """Where the host runs Python for long while the device is idle, Python functions.

    A live test has none, and its collections take no time.
    """
    if trace.region is not None or not trace.has(*DEVICE_KINDS) or has_frames(trace):
        return None
    parts = idle_parts(trace)
    if parts.ns[parts.cause == int(Cause.PYTHON)].sum() < _SHARE * measured_ns(trace):
        return None
    return because("no_stacks", "recorded without Python functions (with_stack=True records them)")


@rule(
    "gc-pause",
    fix="gc.freeze() before the loop, and no gc.collect() in it, or one in many steps; "
    "gc.disable() if the loop makes no cycles",
    triggers={COLLECT: "collections"},
    ready=pauses_gap,
    blind=_unseen_collections,
    sees_host=True,
    timed=True,
    share=Threshold(_SHARE, "1", "less is not worth a change"),
    collections=Threshold(3, "1", "once or twice is cleanup, as between parts of a program"),
)
def gc_pause(trace: Events, *, share: float, collections: float) -> Matches:
    """Python collects garbage again and again while the device waits.

    ## What it does

    Counts calls of `gc.collect` during which the device was idle, if there are `collections` (3) or
    more, and together they keep it idle for `share` (0.05) or more of its span; without an
    accelerator, their durations count. They are known by the Python functions of the trace
    (`with_stack=True`), or by annotations named so, such as `record_function("gc.collect")`.

    Not counted: what torch itself collects, and what Python starts by itself, which leaves no
    event. Times decide here, so the matches are not compared with a baseline.

    ## Why it is slow

    A collection looks at every object that may be part of a cycle, and a program that has imported
    torch has hundreds of thousands: it takes 50 to 200 ms, in which nothing is launched. Tensors
    are freed without it when their last reference is gone.

    ## Example

    ```python
    for batch in batches:
        step(batch)
        gc.collect()
    ```

    ## Use instead

    ```python
    gc.collect()
    gc.freeze()  # what exists now is not looked at again
    for batch in batches:
        step(batch)
    ```
    """
    rows = events_named(trace, _COLLECTIONS)
    rows = rows[trace.selection[rows] & (trace.kind[rows] != Kind.RUNTIME)]
    parent, _ = trace.frames
    rows = rows[~nesting.below(marked(trace, rows), parent, rows)]
    rows = rows[~_of_torch(trace, parent[rows])]
    cost = paused_ns(trace, rows, Cause.COLLECTING)
    rows, cost = rows[cost > 0], cost[cost > 0]
    repeated = np.count_nonzero(cost >= _ALIKE * cost.max(initial=0))
    if repeated < collections or cost.sum() < share * measured_ns(trace):
        return NO_MATCHES
    message = "Python collects garbage, and nothing else runs"
    return Matches(rows, message, None, cost, span_ns=around(trace, rows))


def _of_torch(trace: Events, callers: Ints) -> Bools:
    """Which of these functions are torch's own, or Python's."""
    frames = [frame_of(trace.names[trace.name[row]]) if row >= 0 else None for row in callers]
    return np.array(
        [one is not None and owner_of(one.file) == Owner.MACHINERY for one in frames], bool
    )
