"""Questions about arrays of events and their parents."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.trace import nesting


@given(st.lists(st.integers(-3, 5)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    found = nesting.distinct(np.array(values, np.int32))
    assert found.dtype == np.int32
    assert np.unique(np.array(values, np.int32)).tolist() == found.tolist()


@given(st.lists(st.integers(-3, 5)), st.lists(st.integers(-3, 5) | st.just(2**40)))
def test_values_among_others_are_those_of_numpy(values: list[int], known: list[int]) -> None:
    here = np.array(values, np.int64)
    assert np.isin(here, known).tolist() == nesting.among(here, known).tolist()


@pytest.mark.parametrize(
    ("most", "width"), [(2**30 - 1, np.int32), (2**30, np.int64), (2**62, np.int64)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_are_narrow_if_all_fit(most: int, width: type, sign: int) -> None:
    column = np.array([0, sign * most], np.int64)
    narrow = nesting.narrow(column)
    assert (width, column.tolist()) == (narrow.dtype.type, narrow.tolist())


def test_they_import_nothing_more() -> None:
    code = (
        "import sys; import numpy as np; from pytest_torchprof.trace import nesting\n"
        "before = set(sys.modules); nesting.distinct(np.arange(3))\n"
        "nesting.among(np.arange(3), [2**40, 1])\n"
        "print(set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set()" == done.stdout.strip()


@st.composite
def _forests(draw: st.DrawFn) -> tuple[list[int], list[bool]]:
    """The parent of each event, an earlier one or -1, and whether it is a root."""
    count = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, at - 1)) for at in range(count)]
    return parents, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(_forests())
def test_an_event_is_below_a_root_if_climbing_finds_one(
    forest: tuple[list[int], list[bool]],
) -> None:
    parents, roots = forest

    def climbs(event: int) -> bool:
        above = parents[event]
        return above >= 0 and (roots[above] or climbs(above))

    found = nesting.below(np.array(roots), np.array(parents), np.arange(len(parents)))
    assert [climbs(event) for event in range(len(parents))] == found.tolist()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 3), st.booleans())))
def test_few_threads_are_nested_like_many(made: list[tuple[int, int, int, bool]]) -> None:
    """Those are taken thread by thread, and these in one order of all events."""
    made.sort(key=lambda event: (event[0], -event[1]))
    columns = np.array(made, np.int64).reshape(-1, 4)
    ts, dur, thread, rows = columns.T
    arguments = ts, dur, thread.astype(np.int32), rows.astype(bool)
    few = nesting.nest(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_FEW_THREADS", 0)
        many = nesting.nest(*arguments)
    assert [column.tolist() for column in few] == [column.tolist() for column in many]
    chosen = arguments[3]
    assert set(few[1][~chosen].tolist()) <= {-1}
    alone = nesting.nest(ts[chosen], dur[chosen], arguments[2][chosen])
    assert alone[1].tolist() == few[1][chosen].tolist()
    places = np.append(chosen.nonzero()[0], -1)
    assert places[alone[0]].tolist() == few[0][chosen].tolist()


def test_an_event_is_enclosed_by_the_innermost_of_those_asked_for() -> None:
    """Also where something else is in between, which once had the search go round for ever."""
    #                  row  no   row  row  after, on the same thread
    start = np.array([0, 10, 20, 30, 200])
    lasting = np.array([100, 80, 40, 10, 10])
    thread = np.zeros(6, np.int32)
    parent, _ = nesting.nest(start, lasting, thread[:5])
    ts, end = np.append(start, 0), np.append(start + lasting, 0)
    found = {}
    for when in (35, 50, 70, 95, 150):
        ts[5] = when
        rows, above = np.array([0, 2, 3, 4]), np.append(parent, -1)
        found[when] = nesting.enclosing(ts, end, above, rows, thread, np.array([5])).tolist()
    assert found == {35: [3], 50: [2], 70: [0], 95: [0], 150: [-1]}
