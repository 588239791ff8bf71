"""Baseline files as pure values: layout, merging, pruning, round trips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_torchprof.baseline.store import (
    SCHEMA,
    SECTIONS,
    Change,
    Entry,
    entry_of,
    load,
    render,
    update,
)
from pytest_torchprof.stats import Baseline

CPU, GPU = "cpu, torch 2.13", "NVIDIA H200, torch 2.13"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.dictionaries(texts, st.integers(0, 2**63) | st.floats(0, 1e18), max_size=4)
rows = st.dictionaries(texts, st.dictionaries(texts, st.integers(0, 2**63), max_size=3), max_size=3)
baselines = st.builds(
    Baseline,
    metrics=names,
    operators=rows,
    kernels=st.dictionaries(texts, st.integers(0, 10**6), max_size=3),
    findings=st.dictionaries(texts, st.integers(0, 10**6), max_size=3),
    times=st.dictionaries(texts, st.floats(0, 1e9) | texts, max_size=3),
)
leaves: Any = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
#: A file as a newer version may have written it: with keys that this one does not know.
entries = st.builds(
    lambda known, more: {**{k: v for k, v in more.items() if k not in SECTIONS}, **known},
    st.fixed_dictionaries({"metrics": names, "operators": rows}),
    st.dictionaries(texts, values, max_size=2),
)
files = st.builds(
    lambda more, tests: {**more, "schema": SCHEMA, "tests": tests},
    st.dictionaries(texts, values, max_size=2),
    st.dictionaries(texts, st.dictionaries(texts, entries, max_size=2), max_size=3),
)
fresh = settings(suppress_health_check=list(HealthCheck))  # `tmp_path` is written anew


def file_of(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "test_it.json"
    path.write_text(json.dumps(data), "utf-8")
    return path


def entry(test: str = "test_a", environment: str = CPU, **metrics: float) -> Entry:
    return Entry(test, environment, Baseline(metrics=metrics))


# -------------------------------------------------------------------- layout


def test_the_layout_is_sorted_with_one_metric_a_line_and_a_trailing_newline() -> None:
    data = {
        "tests": {
            "test_b": {},
            "test_a[é::1]": {
                CPU: {
                    "times": {"wall_ms": 1.5, "machine": "x"},
                    "metrics": {"ops": 2, "flops": 10},
                    "operators": {"aten::mm": {"flops": 10, "calls": 1}},
                }
            },
        },
        "schema": SCHEMA,
    }
    assert """\
{
  "schema": "torchprof-baseline/1",
  "tests": {
    "test_a[é::1]": {
      "cpu, torch 2.13": {
        "metrics": {
          "flops": 10,
          "ops": 2
        },
        "operators": {
          "aten::mm": {"calls": 1, "flops": 10}
        },
        "times": {
          "machine": "x",
          "wall_ms": 1.5
        }
      }
    },
    "test_b": {}
  }
}
""" == render(data)


@given(files)
def test_what_is_rendered_reads_back_equal(data: dict[str, Any]) -> None:
    assert data == json.loads(render(data))


@given(files)
def test_the_text_does_not_depend_on_the_order_of_keys(data: dict[str, Any]) -> None:
    def backwards(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return value

    assert render(data) == render(backwards(data))


@given(files)
def test_the_text_ends_in_one_newline_and_has_no_trailing_blanks(data: dict[str, Any]) -> None:
    text = render(data)
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")
    assert [] == [line for line in text.split("\n") if line != line.rstrip(" ")]


# -------------------------------------------------------------------- round trips


@fresh
@given(texts, texts, baselines)
def test_what_is_written_is_read(
    tmp_path: Path, test: str, environment: str, baseline: Baseline
) -> None:
    path = tmp_path / "test_it.json"
    path.unlink(missing_ok=True)
    update(path, [Entry(test, environment, baseline)], existing=None)
    assert baseline == entry_of(load(path), test, environment)


@fresh
@given(files, texts, baselines)
def test_an_update_of_one_test_leaves_everything_else_as_it_was(
    tmp_path: Path, data: dict[str, Any], test: str, baseline: Baseline
) -> None:
    path = file_of(tmp_path, data)
    update(path, [Entry(test, CPU, baseline)], existing=None)
    found = load(path)
    assert found is not None
    found["tests"][test].pop(CPU)
    if not found["tests"][test] and test not in data["tests"]:
        del found["tests"][test]
    expected = json.loads(json.dumps(data))
    expected["tests"].get(test, {}).pop(CPU, None)
    assert expected == found


@fresh
@given(baselines)
def test_a_second_update_writes_nothing(tmp_path: Path, baseline: Baseline) -> None:
    path = tmp_path / "test_it.json"
    path.unlink(missing_ok=True)
    update(path, [Entry("test_a", CPU, baseline)], existing=["test_a"])
    path.chmod(0o600)
    stamp = path.stat().st_mtime_ns
    again = update(path, [Entry("test_a", CPU, baseline)], existing=["test_a"])
    assert ({}, [], [], stamp) == (
        again.changed, again.added, again.pruned, path.stat().st_mtime_ns,
    )  # fmt: skip


# -------------------------------------------------------------------- merging


def test_there_is_no_file_and_no_entry() -> None:
    assert None is load(Path("/no/such/file.json"))
    assert None is entry_of(None, "test_a", CPU)


@pytest.mark.parametrize(
    ("test", "environment", "expected"),
    [
        ("test_a", CPU, Baseline(metrics={"ops": 1})),
        ("test_a", GPU, None),
        ("test_b", CPU, None),
    ],
)
def test_an_entry_is_that_of_test_and_environment(
    tmp_path: Path, test: str, environment: str, expected: Baseline | None
) -> None:
    tests = {"test_a": {CPU: {"metrics": {"ops": 1}}}}
    path = file_of(tmp_path, {"schema": SCHEMA, "tests": tests})
    assert expected == entry_of(load(path), test, environment)


def test_changes_are_told_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "test_it.json"
    first = update(path, [entry(ops=1, flops=2, kernels=3)], existing=None)
    assert (["test_a"], {}, path) == (first.added, first.changed, first.path)
    second = update(path, [entry(ops=1, flops=5, syncs=0)], existing=None)
    expected = [Change("test_a", "flops", 2, 5), Change("test_a", "syncs", None, 0)]
    assert ([], {"test_a": expected}) == (second.added, second.changed)


def test_a_metric_that_was_not_measured_this_time_stays(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    update(path, [entry(ops=1, kernels=3)], existing=None)
    update(path, [entry(ops=2)], existing=None)
    found = entry_of(load(path), "test_a", CPU)
    assert found is not None
    assert {"ops": 2, "kernels": 3} == found.metrics


@pytest.mark.parametrize(
    ("ops", "times_changed", "expected"), [(1, False, 5), (1, True, 9), (2, False, 9)]
)
def test_times_alone_are_written_only_when_asked(
    tmp_path: Path, ops: int, times_changed: bool, expected: int
) -> None:
    path = tmp_path / "test_it.json"
    update(path, [Entry("test_a", CPU, Baseline({"ops": 1}, times={"wall_ms": 5}))], existing=None)
    now = Entry("test_a", CPU, Baseline({"ops": ops}, times={"wall_ms": 9}), times_changed)
    update(path, [now], existing=None)
    found = entry_of(load(path), "test_a", CPU)
    assert found is not None
    assert {"wall_ms": expected} == found.times


def test_unknown_keys_survive_on_every_level(tmp_path: Path) -> None:
    data = {
        "schema": SCHEMA,
        "tests": {"test_a": {CPU: {"metrics": {"ops": 1, "new": 4}, "news": [1]}, GPU: {"x": 1}}},
        "more": {"deep": [{"b": 1, "a": None}]},
    }
    path = file_of(tmp_path, data)
    update(path, [entry(ops=2)], existing=["test_a"], environment=CPU)
    found = load(path)
    assert found is not None
    assert ({"deep": [{"b": 1, "a": None}]}, {"x": 1}) == (
        found["more"], found["tests"]["test_a"][GPU],
    )  # fmt: skip
    mine = found["tests"]["test_a"][CPU]
    assert ([1], {"ops": 2, "new": 4}) == (mine["news"], mine["metrics"])


# -------------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    ("existing", "left", "pruned"),
    [
        (None, ["test_a", "test_b", "test_c"], []),
        (["test_a", "test_b", "test_c"], ["test_a", "test_b", "test_c"], []),
        (["test_a"], ["test_a", "test_c"], ["test_b"]),
        ([], ["test_c"], ["test_a", "test_b"]),
    ],
)
def test_tests_that_are_gone_are_pruned_where_the_device_is_the_same(
    tmp_path: Path, existing: list[str] | None, left: list[str], pruned: list[str]
) -> None:
    old = "cpu, torch 2.6"
    tests: Any = {"test_a": {CPU: {}}, "test_b": {CPU: {}, old: {}}, "test_c": {GPU: {}}}
    path = file_of(tmp_path, {"schema": SCHEMA, "tests": tests})
    done = update(path, [], existing=existing, environment=CPU)
    found = load(path)
    assert found is not None
    assert (left, pruned) == (sorted(found["tests"]), done.pruned)


def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    update(path, [], existing=None)
    assert not path.exists()
