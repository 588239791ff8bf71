"""Which of the paths of lines around several events is the place of all of them, or of most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.places.place import clear_of, shared

#: main > train > (step, result); main > predict > (first, second).
MAIN, TRAIN, STEP, RESULT, PREDICT, FIRST, SECOND = range(7)
CHAIN = [(-1, 0), (MAIN, 1), (TRAIN, 2), (TRAIN, 3), (MAIN, 4), (PREDICT, 5), (PREDICT, 6)]
TREES = st.integers(1, 12).flatmap(
    lambda size: st.tuples(*(st.integers(-1, number - 1) for number in range(size)))
)


@pytest.mark.parametrize(
    ("paths", "others", "place"),
    [
        ({FIRST: 2, SECOND: 1}, [], PREDICT),
        ({RESULT: 2, FIRST: 20}, [STEP], PREDICT),
        ({RESULT: 20, FIRST: 2}, [STEP], RESULT),
        ({RESULT: 10, FIRST: 8, SECOND: 8}, [STEP], PREDICT),
        ({RESULT: 2, FIRST: 2}, [STEP], RESULT),
        ({FIRST: 2, RESULT: 2}, [STEP], PREDICT),
        ({FIRST: 1, SECOND: 2}, [FIRST], SECOND),
        ({FIRST: 2, SECOND: 1}, [FIRST], FIRST),
        ({MAIN: 3, FIRST: 1}, [STEP], MAIN),
        ({STEP: 1, RESULT: 1}, [SECOND], TRAIN),
    ],
)
def test_the_place_is_around_most_and_not_around_others(
    paths: dict[int, int], others: list[int], place: int
) -> None:
    assert place == clear_of(shared(paths, CHAIN), paths, others, CHAIN)


def test_without_a_common_path_it_is_the_root_of_most() -> None:
    chain = [(-1, 0), (-1, 1), (1, 2)]
    assert 1 == clear_of(-1, {0: 1, 2: 2}, [], chain)
    assert 2 == clear_of(-1, {0: 1, 2: 2}, [1], chain)
    assert -1 == clear_of(-1, {}, [], chain)


def test_a_function_that_others_call_too_is_left_for_its_caller() -> None:
    # main > (act, train); both call a function, whose line 7 is around what runs.
    chain = [(-1, 0), (0, 1), (0, 2), (1, 7), (2, 7), (2, 8)]
    assert 1 == clear_of(3, {3: 4}, [4], chain)
    assert 3 == clear_of(3, {3: 4}, [5], chain)
    # The callers share a line as well.
    assert 0 == clear_of(1, {1: 4}, [3], [(-1, 5), (0, 6), (-1, 9), (2, 6)])
    # What encloses both is no place.
    assert 1 == clear_of(1, {1: 4}, [2], [(-1, 0), (0, 6), (0, 6)])


@pytest.mark.thorough
@given(TREES, st.data())
def test_the_place_encloses_no_other_unless_all_lines_of_most_do(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    chain = [(parent, number) for number, parent in enumerate(parents)]
    some = st.integers(0, len(chain) - 1)
    paths = data.draw(st.dictionaries(some, st.integers(1, 9), min_size=1))
    others = data.draw(st.lists(some))
    place = clear_of(shared(paths, chain), paths, others, chain)
    inside = [path for path in paths if place in around(path, chain)]
    assert inside
    assert place in paths or not any(place in around(other, chain) for other in others)


def around(path: int, chain: list[tuple[int, int]]) -> set[int]:
    """The path itself, and those that enclose it."""
    found = set[int]()
    while path >= 0:
        found.add(path)
        path = chain[path][0]
    return found
