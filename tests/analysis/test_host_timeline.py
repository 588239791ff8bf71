"""What a thread of the host does at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.analysis.idle_causes import Host
from pytest_torchprof.trace.arguments import Arguments
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.names import Kind

#: Begin and duration: some nest, some only overlap, some have no duration.
INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=30)


def trace_of(intervals: list[tuple[int, int]]) -> Events:
    ordered = sorted(intervals, key=lambda one: (one[0], -one[1]))
    count = len(ordered)
    ts, dur = (np.array(column, np.int64) for column in zip(*ordered, strict=True))
    zeros = np.zeros(count, np.int32)
    kinds = np.full(count, int(Kind.OP), np.int8)
    return Events(ts, dur, kinds, zeros, zeros, ["op"], Arguments.of([None] * count))


def innermost(trace: Events) -> list[int]:
    """What runs in each unit of time: the deepest of those open, each at most as long as what it is
    nested in; the last one to begin, where some only overlap.
    """
    parent, _ = trace.frames
    ends = (trace.ts + trace.dur).tolist()
    for i, above in enumerate(parent.tolist()):
        if above >= 0:
            ends[i] = min(ends[i], ends[above])
    changes = []
    for i, begin in enumerate(trace.ts.tolist()):
        if trace.dur[i] and ends[i] > begin:
            depth = int(trace.depth[i])
            changes += [(begin, 1 + depth, i, i), (ends[i], -1 - depth, i, int(parent[i]))]
    state, found = -1, []
    for now in range(70):
        for when, _, _, after in sorted(changes):
            if when == now:
                state = after
        found.append(state)
    return found


@given(INTERVALS)
def test_what_a_thread_does_at_each_time_is_the_innermost_event(
    intervals: list[tuple[int, int]],
) -> None:
    trace = trace_of(intervals)
    times, state = Host(trace).timeline(0)
    at = times.searchsorted(np.arange(70), side="right") - 1
    assert state[at].tolist() == innermost(trace)
    assert (np.diff(times.astype(float)) >= 0).all()
