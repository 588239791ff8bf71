"""What a thread of the host does at a time, asked for in stretches of time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.analysis import idle_causes
from pytest_torchprof.analysis.idle_causes import Timeline, nested_ends
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


@given(INTERVALS, st.lists(st.integers(0, 60), min_size=2, max_size=9), st.sampled_from([1, 2, 5]))
def test_stretches_of_time_are_as_in_all_of_it(
    intervals: list[tuple[int, int]], cuts: list[int], block: int
) -> None:
    trace = trace_of(intervals)
    expected = innermost(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle_causes, "_AT_ONCE", block)
        timeline = Timeline(trace, 0, nested_ends(trace))
        for begin, end in pairwise(cuts):  # later ones may be earlier in time
            timeline.begin_at(begin)
            times, state = timeline.until(end)
            at = times.searchsorted(np.arange(begin, end), side="right") - 1
            assert state[at].tolist() == expected[begin:end]
            assert (np.diff(times.astype(float)) >= 0).all()
