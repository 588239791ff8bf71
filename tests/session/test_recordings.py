"""Which of a test's runs counts for what it records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import MissingValue, OwnMetric
from pytest_torchprof.session.measurement import RunRecordings

if TYPE_CHECKING:
    from pytest_torchprof.session.runs import Run

#: Runs by their first letters; the first one of a test in capitals.
_KINDS = {"w": "warmup", "r": "round", "p": "profile", "n": "numbers", "l": "lines"}


def value_of(runs: str, compare: str, *, better: str = "lower", long: bool = False) -> object:
    """What counts if the first run records 1, the second 2, and so on."""
    metric = OwnMetric("n", "1", cast("Any", better), cast("Any", compare), recorded=True)
    recordings = RunRecordings()
    if long:
        recordings.count_first()
    for number, letter in enumerate(runs, 1):
        run = SimpleNamespace(kind=_KINDS[letter.lower()], first=letter.isupper())
        recordings.note(cast("Run", run), None, metric, number)
    found = recordings.taken()[None]["n"].value
    return found.reason.code if isinstance(found, MissingValue) else found


@pytest.mark.parametrize(
    ("runs", "time", "exact"),
    [
        ("Wrp", 2, 3),
        ("Wrrrp", 3, 5),
        ("Rp", 1, 2),
        ("P", "recorded_in_no_round", 1),
        ("Wp", "recorded_in_no_round", 2),
        ("Wrpp", 2, 4),  # the first profiled run compiled
        ("Wrpl", 2, 3),
        ("Wrn", 2, 3),
        ("Wr", 2, 1),
        ("W", "recorded_in_no_round", 1),
    ],
)
def test_the_run_that_counts(runs: str, time: object, exact: object) -> None:
    assert [time, time] == [value_of(runs, compare) for compare in ("time", "never")]
    assert [exact, exact] == [value_of(runs, compare) for compare in ("exact", "near")]


def test_a_long_first_run_is_a_timed_round() -> None:
    assert 1 == value_of("Wp", "time", long=True)


@pytest.mark.parametrize(("better", "best"), [("lower", 1), ("higher", 4)])
def test_the_best_round_is_the_best_of_their_medians(better: str, best: float) -> None:
    metric = OwnMetric("n", "s", cast("Any", better), "time", recorded=True)
    recordings = RunRecordings()
    for values in ([0, 1, 5], [2, 4, 4], [2]):
        run = SimpleNamespace(kind="round", first=False)
        for value in values:
            recordings.note(cast("Run", run), "part", metric, value)
    found = recordings.taken()["part"]["n"]
    assert (best, 2, 3) == (found.best, found.value, found.sample and found.sample.n)


def test_what_is_not_known_has_the_reason() -> None:
    why = because(*Why.NO_DEVICE)
    metric, recordings = OwnMetric("n", recorded=True), RunRecordings()
    run = cast("Run", SimpleNamespace(kind="profile", first=False))
    recordings.note(run, None, metric, why)
    recordings.note(None, "part", metric, 3)
    taken = recordings.taken()
    assert MissingValue(why) == taken[None]["n"].value
    assert (
        MissingValue(
            because("recorded_outside_call", "recorded in a fixture, outside the test's call phase")
        )
        == taken["part"]["n"].value
    )
