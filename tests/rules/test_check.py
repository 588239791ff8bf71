"""What runs the rules: their triggers, what they need, and what they raise."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.places.place import NO_PARTS, Parts, Place
from pytest_torchprof.rules.check import check, nothing_seen
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import NO_MATCHES_OF_CALLS, Matches, Rule, Threshold, rule
from pytest_torchprof.trace.names import REGION, selected_operators
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from pytest_torchprof.rules.rule import Triggers
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: In its package, its function hides it.
NAMES = import_module("pytest_torchprof.trace.names")
CHECK = import_module("pytest_torchprof.rules.check")
DATA = Path(__file__).parents[1] / "data"


def always(code: str, triggers: Triggers, needs: str = "") -> Rule:
    """A rule that matches once, wherever it is asked."""

    @rule(code, fix="", triggers=triggers, needs=needs, times=Threshold(2, "1", "once is fine"))
    def found(_: Events, **__: float) -> Matches:
        """A match."""
        return Matches(np.array([-1]), "here")

    return found


@pytest.fixture
def trace(tmp_path: Path) -> Events:
    b = TraceBuilder()
    b.op("aten::add", [[4], [4]])
    b.op("aten::mm", [[4, 4], [4, 4]])
    return read_trace(b.save(tmp_path / "x.json"))


@pytest.mark.parametrize(
    ("triggers", "asked"),
    [
        (None, True),
        ("aten::mm", True),
        ("aten::m", True),
        ("mm", False),
        ("aten::mm$", True),
        ("aten::(bmm|mm)$", True),
        ("aten::(?:bmm|mm)$", True),
        ("aten::sub|aten::add", True),
        (r"(a)ten::(m)\2$", True),
        ("aten::bmm", False),
        ("", True),
    ],
)
def test_a_rule_runs_where_its_trigger_occurs(
    trace: Events, triggers: str | None, asked: bool
) -> None:
    others = [always("other", "aten::nothing"), always("another", "aten::add|x")]
    for rules in ([always("one", triggers)], [*others, always("one", triggers)]):
        for _ in range(2):  # what is known of a name is kept
            assert asked is ("one" in check(trace, rules).counts)


@pytest.mark.parametrize(
    ("triggers", "asked"),
    [
        ({}, True),
        ({"aten::mm$": 1, "aten::add$": 1}, True),
        ({"aten::mm$": 1, "aten::bmm$": 1}, False),
        ({"aten::": 2}, True),
        ({"aten::": 3}, False),
        ({"aten::": "times"}, True),
        ({"aten::mm$": "times"}, False),
    ],
)
def test_a_rule_runs_where_each_trigger_occurs_often_enough(
    trace: Events, triggers: Triggers, asked: bool
) -> None:
    one = always("one", triggers)
    assert asked is ("one" in check(trace, [one]).counts)


def test_a_threshold_that_a_user_sets_counts_for_its_trigger(trace: Events) -> None:
    one = always("one", {"aten::": "times"})
    for times, asked in [(1, True), (2.5, True), (3, False)]:
        checked = check(trace, [one], thresholds={"one": {"times": times}})
        assert asked is ("one" in checked.counts)


def test_a_trigger_must_name_an_existing_threshold() -> None:
    with pytest.raises(
        ValueError, match="rule one: triggers name 'time', which is not a threshold"
    ):
        always("one", {"aten::": "time"})


def test_a_rule_that_is_new_to_a_trace_runs_too(trace: Events) -> None:
    for letter in "am":  # nobody has looked for these names before
        assert {"new": 1} == check(trace, [always("new", f"aten::{letter}[dm]+$")]).counts


def test_the_cache_of_names_does_not_grow_forever(
    trace: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NAMES, "_MOST_KNOWN", 1)
    rules = [always("one", "aten::mm")]
    for _ in range(3):
        assert {"one": 1} == check(trace, rules).counts


def test_a_trace_without_host_events_leaves_all_rules_unchecked(tmp_path: Path) -> None:
    empty = read_trace(TraceBuilder().save(tmp_path / "x.json"))
    assert {"one", "two"} == check(
        empty, [always("one", None), always("two", "x")]
    ).unchecked.keys()
    assert nothing_seen(empty) == because(*Why.NO_OPERATORS)


def test_a_measured_region_without_operators_is_a_true_zero(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.metadata("torchprof", {"wall_ms": 1.0})
    with b.annotation(REGION):
        pass
    assert nothing_seen(read_trace(b.save(tmp_path / "x.json"))) is None
    lost = TraceBuilder()
    lost.metadata("torchprof", {"wall_ms": 1.0})
    lost.op("aten::add")
    why = nothing_seen(read_trace(lost.save(tmp_path / "y.json")))
    assert why == because(*Why.NO_REGION)


def test_places_are_computed_once_for_all_rules(trace: Events) -> None:
    asked = []

    def placing(trace: Events, events: Ints, parts: Parts = NO_PARTS) -> tuple[list[Place], Ints]:
        asked.append(len(events))
        return [Place("a.py:1"), Place("b.py:2")], np.arange(len(events)) % 2

    @rule("both", fix="")
    def both(trace: Events) -> Matches:
        """Both."""
        return Matches(selected_operators(trace, "aten::add", "aten::mm"), "an operator")

    found = check(trace, [always("one", None), both]).findings(placing)
    assert [3] == asked
    places = {(f.rule, f.location) for f in found}
    assert {("one", "a.py:1"), ("both", "b.py:2"), ("both", "a.py:1")} == places
    assert () == check(trace, []).findings(placing)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (
            [Place("a.py:1", "mm", "net.0"), Place("a.py:1", "mm", "net.1")],
            {("a.py:1", "net.*", 2, 3)},
        ),
        (
            [Place("a.py:1", "mm", "net.0"), Place("a.py:1", "net > mm", "net.0")],
            {("a.py:1", "net.0", 1, 3)},
        ),
        ([Place("a.py:1", "mm"), Place("a.py:1", "mm", "net.0")], {("a.py:1", "net.0", 1, 3)}),
        ([Place("a.py:1", "mm"), Place("a.py:1", "add")], {("a.py:1", None, None, 3)}),
        (
            [Place("a.py:1", "mm", "net.0"), Place("a.py:2", "mm", "net.0")],
            {("a.py:1", "net.0", 1, 2), ("a.py:2", "net.0", 1, 1)},
        ),
        (
            [Place(None, "mm", "net.0"), Place(None, "mm", "net.1")],
            {("mm", "net.*", 2, 3)},
        ),
        (
            [Place(None, "mm", "net.0.a"), Place(None, "mm", "net.1.b")],
            {("mm", "net.0.a", 1, 2), ("mm", "net.1.b", 1, 1)},
        ),
    ],
    ids=["two modules", "two paths", "one known", "no module", "two lines", "layers", "no lines"],
)
def test_one_line_that_several_modules_run_is_one_finding(
    trace: Events,
    places: list[Place],
    expected: set[tuple[str | None, str | None, int | None, int]],
) -> None:
    @rule("all", fix="")
    def every(_: Events) -> Matches:
        """Three times."""
        return Matches(np.array([0, 0, 0]), "an operator")

    found = check(trace, [every]).findings(lambda *_: (places, np.array([0, 1, 0])))
    assert expected == {(f.location, f.module, f.modules, f.count) for f in found}


def test_a_line_that_the_rule_knows_is_one_finding_whatever_runs_it(trace: Events) -> None:
    @rule("all", fix="")
    def every(_: Events) -> Matches:
        """Twice."""
        return Matches(np.array([0, 0]), "an operator", location=["a.py:1", "a.py:1"])

    places = [Place("b.py:1", "mm", "net.0"), Place("b.py:2", "mm", "net.1")]
    (found,) = check(trace, [every]).findings(lambda *_: (places, np.array([0, 1])))
    assert ("a.py:1", "net.*", 2, 2) == (found.location, found.module, found.modules, found.count)


def test_one_look_for_all_expressions_finds_what_each_finds(
    trace: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*trace.names, "aten::mm", "Optimizer.step#SGD.step", "cudaLaunchKernel", "nothing"]
    monkeypatch.setattr(NAMES, "_KNOWN", {})
    one_by_one = NAMES.learn(names)
    assert any(one_by_one)
    monkeypatch.setattr(NAMES, "_KNOWN", {})
    monkeypatch.setattr(NAMES, "_MANY", -1)
    assert one_by_one == NAMES.learn(names)


def test_a_name_is_looked_at_once_in_a_process(
    trace: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [always(f"r{n}", f"aten::(nothing{n}|mm)$") for n in range(80)]
    assert 80 == len(check(trace, rules).counts)
    monkeypatch.setattr(NAMES, "_all_of", None)
    assert 80 == len(check(trace, rules).counts)
    assert 2 == len(selected_operators(trace, "aten::mm", "aten::add"))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["[4] cast"] * 2, {"[4] cast": 2}),
        (["[4, 2] cast", "[5, 2] cast"], {"[…] cast": 2}),
        (["[4] cast", "[4] copied"], {"[4] cast": 1, "[4] copied": 1}),
        (["4 nodes", "5 nodes"], {"4 nodes": 1, "5 nodes": 1}),
        (["1 layer kept", "5 layers kept"], {"several layers kept": 2}),
        (
            ["A updates 36 parameters one by one", "A updates 31 parameters one by one"],
            {"A updates several parameters one by one": 2},
        ),
    ],
)
def test_matches_of_several_sizes_at_one_place_are_one_finding(
    trace: Events, messages: list[str], expected: dict[str, int]
) -> None:
    @rule("sizes", fix="")
    def sizes(trace: Events) -> Matches:
        """Matches of some sizes."""
        return Matches(np.repeat(selected_operators(trace, "aten::mm"), 2), messages)

    found = check(trace, [sizes]).findings()
    assert expected == {one.message: one.count for one in found}


def test_a_finding_has_the_path_of_its_own_events(trace: Events) -> None:
    @rule("two", fix="")
    def two(trace: Events) -> Matches:
        """Two operators on one line."""
        return Matches(
            selected_operators(trace, "aten::add", "aten::mm"), ["aten::add", "aten::mm"]
        )

    def on_one_line(
        trace: Events, events: Ints, parts: Parts = NO_PARTS
    ) -> tuple[list[Place], Ints]:
        del trace, parts
        names = ["aten::add", "aten::mm"]
        return [Place("model.py:7", name) for name in names], np.arange(len(events))

    found = check(trace, [two]).findings(on_one_line)
    assert {("model.py:7", one.message) for one in found} == {(f.location, f.path) for f in found}
    assert 2 == len(found)


def test_a_rule_that_says_that_times_decide_is_not_compared_with_a_baseline() -> None:
    """Its matches may change with the machine, and would fail tests that did not change."""
    by_time = {r.code for r in RULES.values() if "Times decide here" in " ".join(r.page.split())}
    assert "launch-bound" in by_time
    assert by_time <= {code for code, one in RULES.items() if one.timed}


def test_own_rules_whose_answers_are_not_checked_in_use_answer_rightly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CHECK, "is_own", lambda _: False)
    found = set[str]()
    for path in sorted(DATA.rglob("*.json.gz")):
        checked = check(read_trace(path), RULES.values())
        assert not checked.errors, path.name
        found |= checked.counts.keys()
    assert len(found) > 10


def test_a_rule_that_needs_only_calls_is_asked_once_for_all_traces_of_them(tmp_path: Path) -> None:
    asked: list[float] = []

    def recorded(*names: str) -> Events:
        b = TraceBuilder()
        for name in names:
            b.op(name, [[len(asked)]])
        return read_trace(b.save(tmp_path / f"{len(asked)}.json"))

    def find(_: Events, *, times: float) -> Matches:
        """No match."""
        asked.append(times)
        return NO_MATCHES_OF_CALLS

    make = rule("by-calls", fix="", triggers="aten::add", times=Threshold(2, "1", "once is fine"))
    users = make(find)
    check(recorded("aten::add"), [users])
    check(recorded("aten::add"), [users])
    assert asked == [2, 2]  # a rule of a user's may look at more before it returns what ours found
    asked.clear()
    find.__module__ = RULES["float64"].find.__module__
    by_calls = make(find)

    every = [by_calls, always("other", "aten::add")]
    for _ in range(3):
        assert check(recorded("aten::add", "aten::mm"), every).counts == {"other": 1}
    assert asked == [2]
    check(recorded("aten::add", "aten::bmm"), every)
    assert asked == [2, 2]
    check(recorded("aten::add", "aten::mm").within(op="aten::mm"), every)
    assert asked == [2, 2, 2]
    check(recorded("aten::add", "aten::mm"), every, thresholds={"by-calls": {"times": 1}})
    assert asked == [2, 2, 2, 1]
