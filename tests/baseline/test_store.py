"""Baseline files as pure values: layout, merging, pruning, round trips."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_torchprof.baseline.store import (
    BASELINE_SCHEMA,
    SECTIONS,
    Change,
    Details,
    Entry,
    detail_path,
    entry_of,
    load,
    orphans,
    project_of,
    render,
    update,
)
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.values import Baseline, Detail, DetailRow

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
leaves: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
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
    lambda more, tests: {**more, "schema": BASELINE_SCHEMA, "tests": tests},
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
                    "zero": ["kernels"],
                }
            },
        },
        "schema": BASELINE_SCHEMA,
    }
    assert """\
{
  "schema": "torchprof-baseline/2",
  "tests": {
    "test_a[é::1]": {
      "cpu, torch 2.13": {
        "metrics": {
          "flops": 10,
          "ops": 2
        },
        "times": {"machine": "x", "wall_ms": 1.5},
        "zero": ["kernels"]
      }
    },
    "test_b": {}
  }
}
""" == render(data)


@pytest.mark.thorough
@given(files)
def test_what_is_rendered_reads_back_equal(data: dict[str, Any]) -> None:
    assert data == json.loads(render(data))


@pytest.mark.thorough
@given(files)
def test_the_text_does_not_depend_on_the_order_of_keys(data: dict[str, Any]) -> None:
    def backwards(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return value

    assert render(data) == render(backwards(data))


@pytest.mark.thorough
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
    found = entry_of(load(path), test, environment, details=Details(path))
    assert replace(baseline, detail=Detail()) == found


@pytest.mark.thorough
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
    files = path, detail_path(path)
    stamps = [file.stat().st_mtime_ns for file in files]
    again = update(path, [Entry("test_a", CPU, baseline)], existing=["test_a"])
    assert ({}, [], []) == (again.changed, again.added, again.pruned)
    assert stamps == [file.stat().st_mtime_ns for file in files]


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
    path = file_of(tmp_path, {"schema": BASELINE_SCHEMA, "tests": tests})
    assert expected == entry_of(load(path), test, environment)


def test_changes_are_reported_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "test_it.json"
    first = update(path, [entry(ops=1, flops=2, kernels=3)], existing=None)
    assert (["test_a"], {}, path) == (first.added, first.changed, first.path)
    second = update(path, [entry(ops=1, flops=5, syncs=0)], existing=None)
    expected = [Change("test_a", "flops", 2, 5), Change("test_a", "syncs", None, 0)]
    assert ([], {"test_a": expected}) == (second.added, second.changed)


def test_changes_of_findings_are_listed_by_rule(tmp_path: Path) -> None:
    before, now = Baseline(findings={"a": 1, "b": 2}), Baseline(findings={"a": 3, "b": 2})
    path = tmp_path / "test_it.json"
    update(path, [Entry("test_a", CPU, before)], existing=None)
    (change,) = update(path, [Entry("test_a", CPU, now)], existing=None).changed["test_a"]
    assert Change("test_a", "findings", 1, 3, rule="a") == change
    assert "findings[rule=a]" == change.label


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
        "schema": BASELINE_SCHEMA,
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
    path = file_of(tmp_path, {"schema": BASELINE_SCHEMA, "tests": tests})
    done = update(path, [], existing=existing, environment=CPU)
    found = load(path)
    assert found is not None
    assert (left, pruned) == (sorted(found["tests"]), done.pruned)


def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    update(path, [], existing=None)
    assert not path.exists()


# -------------------------------------------------------------------- files as they come


def of_entry(text: str) -> str:
    """A file of one entry that reads so."""
    return f'{{"schema": "{BASELINE_SCHEMA}", "tests": {{"test_a": {{"{CPU}": {text}}}}}}}'


ODD = {
    "operators": '{"operators": {"aten::mm": 3}}',
    "operators of text": '{"operators": {"aten::mm": {"calls": "3"}}}',
    "kernels": '{"kernels": {"gemm": {"calls": 3}}}',
    "findings": '{"findings": {"host-sync": null}}',
    "a truth": '{"metrics": {"ops": true}}',
    "no sections": "[]",
    "metrics in a list": '{"metrics": []}',
    "half a range": '{"unstable": {"ops": [1]}}',
    "400 digits": f'{{"metrics": {{"ops": {"9" * 400}}}}}',
    "5,000 digits": f'{{"metrics": {{"ops": {"9" * 5000}}}}}',
    "400 digits of a time": f'{{"times": {{"wall_ms": {"9" * 400}}}}}',
    "400 digits within": f'{{"times": {{"normalised": {{"wall_ms": [{"9" * 400}]}}}}}}',
    "minus": f'{{"metrics": {{"ops": -{"9" * 400}}}}}',
    "beyond floats": '{"metrics": {"ops": 1e999}}',
    "NaN": '{"metrics": {"ops": NaN}}',
    "infinite": '{"times": {"wall_ms": Infinity}}',
    "deep": f'{{"more": {"[" * 99999}{"]" * 99999}}}',
    "lone surrogate": '{"metrics": {"\\ud800": 1}}',
    "no text": '{"metrics": {"\x00": 1}}',
}


@pytest.mark.parametrize("case", ODD)
def test_unusable_files_get_one_short_line(tmp_path: Path, case: str) -> None:
    path = tmp_path / "test_it.json"
    path.write_text(of_entry(ODD[case]), "utf-8")
    for what in (lambda: load(path), lambda: update(path, [entry(ops=1)], existing=[])):
        with pytest.raises(BaselineError) as caught:
            what()
        message = str(caught.value)
        assert message.startswith(f"baseline {path} is ")
        assert message.endswith("Restore it from version control, or delete it and accept again.")
        assert ("\n" not in message, len(message) < 500) == (True, True)
    assert of_entry(ODD[case]) == path.read_text("utf-8")


def test_a_flaw_is_named_with_its_test_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    path.write_text(of_entry(ODD["operators"]), "utf-8")
    with pytest.raises(BaselineError) as caught:
        load(path)
    where = f"Expected `object`, got `int`, at `operators[...]`, in 'test_a', '{CPU}'. Restore"
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"), [("{\n  x}", "line 2, column 3"), ("x", "line 1, column 1")]
)
def test_invalid_json_is_reported_with_line_and_column(
    tmp_path: Path, text: str, place: str
) -> None:
    path = tmp_path / "test_it.json"
    path.write_text(text, "utf-8")
    with pytest.raises(BaselineError, match=f"is not JSON: .* at {place}. Restore"):
        load(path)


def test_a_file_with_the_mark_that_windows_puts_first_is_read(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    path.write_bytes(b"\xef\xbb\xbf" + of_entry('{"metrics": {"ops": 1}}').encode())
    assert Baseline(metrics={"ops": 1}) == entry_of(load(path), "test_a", CPU)


@fresh
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda s: s.encode("utf-8", "ignore")))
def test_no_bytes_make_reading_fail_in_another_way(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "test_it.json"
    path.write_bytes(data)
    with pytest.raises(BaselineError):
        load(path)


@pytest.mark.thorough
@fresh
@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_no_value_in_any_place_makes_reading_fail_in_another_way(
    tmp_path: Path, value: Any
) -> None:
    path = tmp_path / "test_it.json"
    for section in SECTIONS:
        path.write_text(of_entry(json.dumps({section: value})), "utf-8")
        try:
            found = entry_of(load(path), "test_a", CPU)
        except BaselineError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most values are none, but not all
        else:
            assert getattr(found, section) == value


def test_an_undecodable_name_is_stored_and_found(tmp_path: Path) -> None:
    path, name = tmp_path / "test_it.json", "test_a[\udcff]"
    update(path, [Entry(name, CPU, Baseline(metrics={"ops": 1, "\udcfe": 2}))], existing=[name])
    assert Baseline(metrics={"ops": 1, "\\udcfe": 2}) == entry_of(load(path), name, CPU)
    assert ["test_a[\\udcff]"] == list(load(path)["tests"])  # type: ignore[index]


# -------------------------------------------------------------------- merge conflicts


def conflicted(ours: Any, theirs: Any, base: Any = None) -> str:
    """A file as git leaves it, each side on lines of its own."""
    middle = f"||||||| base\n{json.dumps(base, indent=1)}\n" if base is not None else ""
    one, other = (json.dumps(side, indent=1) for side in (ours, theirs))
    return f"<<<<<<< HEAD\n{one}\n{middle}=======\n{other}\n>>>>>>> feature\n"


def document(**tests: Any) -> dict[str, Any]:
    return {"schema": BASELINE_SCHEMA, "tests": tests}


@pytest.mark.parametrize("base", [None, document(test_a={CPU: {"metrics": {"ops": 9}}})])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_accepting_settles_a_conflict_and_loses_no_test_of_either_side(
    tmp_path: Path, base: Any, end: str
) -> None:
    def of(ops: int) -> Any:
        return {"metrics": {"ops": ops}}

    ours = document(test_a={CPU: of(1)}, test_b={CPU: of(1)}, test_ours={CPU: of(3)})
    theirs = document(
        test_a={CPU: of(2), GPU: of(7)}, test_b={CPU: of(2)}, test_theirs={CPU: of(4)}
    )
    path = tmp_path / "test_it.json"
    text = conflicted(ours, theirs | {"more": 1}, base)
    path.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(BaselineError, match="conflict markers: resolve them, or accept again, "):
        load(path)
    done = update(path, [entry(ops=5)], existing=None)
    expected = document(
        test_a={CPU: {s: {} for s in SECTIONS} | of(5), GPU: of(7)},
        test_b={CPU: of(1)}, test_ours={CPU: of(3)}, test_theirs={CPU: of(4)},
    )  # fmt: skip
    assert (expected | {"more": 1}, ["test_b"]) == (load(path), done.disputed)


def test_a_part_in_conflict_is_settled_among_lines_of_both(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    lines = render(document(test_a={CPU: {"metrics": {"flops": 1, "ops": 2}}})).splitlines()
    at = next(number for number, line in enumerate(lines) if '"ops"' in line)
    other = lines[at].replace("2", "3")
    lines[at : at + 1] = ["<<<<<<< a", lines[at], "=======", other, ">>>>>>> b"]
    path.write_text("\n".join(lines), "utf-8")
    assert ["test_a"] == update(path, [], existing=None).disputed
    assert {"flops": 1, "ops": 2} == entry_of(load(path), "test_a", CPU).metrics  # type: ignore[union-attr]


def test_a_conflict_with_a_side_that_is_not_a_baseline_stays(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    text = conflicted(document(), 7)
    path.write_text(text, "utf-8")
    with pytest.raises(BaselineError, match="one side is not a whole baseline: resolve them"):
        update(path, [entry(ops=5)], existing=None)
    assert text == path.read_text("utf-8")


# -------------------------------------------------------------------- several at once


def write_many(path: Path, number: int) -> None:
    """What one process of a race does."""
    for turn in range(5):
        update(path, [entry(f"test_{number}_{turn}", ops=number)], existing=None)


@pytest.mark.filterwarnings("ignore:.* is multi-threaded, use of fork:DeprecationWarning")
def test_accepts_of_one_file_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "test_it.json"
    details = detail_path(path)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(path, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    expected = {f"test_{number}_{turn}" for number in range(4) for turn in range(5)}
    assert expected == set((load(path) or {})["tests"])
    assert expected == {json.loads(line)["test"] for line in details.read_text().splitlines()}
    assert {path, details} == set(path.parent.iterdir())


def test_projects_that_share_a_folder_do_not_prune_each_other(tmp_path: Path) -> None:
    store = tmp_path / "store"
    path = store / "test_it.json"
    one, other = (project_of(str(store), tmp_path / name) for name in ("one", "other"))
    assert (None, True) == (project_of("__torchprof__", tmp_path), one != other)
    for project, name in ((one, "test_one"), (other, "test_other")):
        update(path, [entry(name, ops=1)], existing=[name], environment=CPU, project=project)
    assert {"test_one", "test_other"} == set((load(path) or {})["tests"])
    done = update(path, [], existing=["test_new"], environment=CPU, project=one)
    assert (["test_one"], {"test_other"}) == (done.pruned, set((load(path) or {})["tests"]))
    # What a version wrote that did not note whose it is, is somebody's; once it is ours, it is.
    update(path, [entry("test_old", ops=1)], existing=None)
    assert [] == update(path, [], existing=[], environment=CPU, project=one).pruned
    update(path, [entry("test_old", ops=1)], existing=None, project=one)
    assert ["test_old"] == update(path, [], existing=[], environment=CPU, project=one).pruned


def test_baselines_of_another_project_are_not_named_as_left_behind(tmp_path: Path) -> None:
    store, tests = tmp_path / "store", tmp_path / "tests"
    project = project_of(str(store), tmp_path)
    for name, whose in (("test_ours", project), ("test_theirs", "somebody")):
        update(store / f"{name}.json", [entry(ops=1)], existing=None, project=whose)
    assert [store / "test_ours.json"] == orphans(tests, store, project)


def test_a_bound_is_kept_with_its_chip(tmp_path: Path) -> None:
    """Without one, a bound that was accepted stays, and so does its chip."""
    path = tmp_path / "test_x.json"
    for chip, kept in ((None, None), ("T4", "T4"), (None, "T4"), ("L4", "L4")):
        accepted = Baseline(metrics={"ops": 1, **({"bound_ms": 1.0} if chip else {})}, chip=chip)
        update(path, [Entry("test_a", CPU, accepted)], existing=None)
        found = entry_of(load(path), "test_a", CPU)
        assert found is not None
        assert kept == found.chip


# -------------------------------------------------------------------- version 1, and details

OLD = {"metrics": {"flops": 0, "ops": 3}, "operators": {"aten::mm": {"calls": 3}}, "kernels": {}}


def detailed(test: str = "test_a", rows: int = 1, **metrics: float) -> Entry:
    """An entry with so many rows of detail."""
    made = [DetailRow("a.py::f", f"aten::op{n}", calls=n) for n in range(rows)]
    operators = {row.operator: {"calls": row.calls} for row in made}
    baseline = Baseline(metrics, operators, detail=Detail(tuple(made), {"a.py::f": 1}))
    return Entry(test, CPU, baseline)


def detail_of(path: Path, test: str = "test_a") -> Detail | None:
    """What explains the test's numbers."""
    found = entry_of(load(path), test, CPU, details=Details(path))
    assert found is not None
    return found.detail


def test_version_1_is_read_and_an_entry_is_rewritten_when_it_is_accepted(tmp_path: Path) -> None:
    old = {"schema": "torchprof-baseline/1", "tests": {"test_a": {CPU: OLD}, "test_b": {CPU: OLD}}}
    path = file_of(tmp_path, old)
    read = Baseline({"flops": 0, "dispatches": 3}, {"aten::mm": {"calls": 3}})
    assert read == entry_of(load(path), "test_a", CPU, details=Details(path))
    update(path, [detailed(flops=0, ops=2, dispatches=3)], existing=None)
    found = load(path) or {}
    new = {"metrics": {"ops": 2, "dispatches": 3}, "zero": ["flops"], "findings": {}, "times": {}}
    assert (BASELINE_SCHEMA, new) == (found["schema"], found["tests"]["test_a"][CPU])
    assert OLD == found["tests"]["test_b"][CPU]
    assert read == entry_of(found, "test_b", CPU, details=Details(path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: text.replace('"rows":[', '"rows":[7,'),
        lambda text: text.replace('"numbers":"', '"numbers":"0'),
        lambda text: f"<<<<<<< a\n{text}=======\n>>>>>>> b\n".replace(
            '"numbers":"', '"numbers":"0'
        ),
        lambda text: "\0",
    ],
)
def test_a_detail_that_is_missing_damaged_or_of_other_numbers_is_none_and_is_mended(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    path = tmp_path / "test_it.json"
    update(path, [detailed(ops=1)], existing=None)
    whole = detail_path(path).read_text("utf-8")
    detail_path(path).write_text(damage(whole), "utf-8")
    assert {"ops": 1} == entry_of(load(path), "test_a", CPU, details=Details(path)).metrics  # type: ignore[union-attr]
    assert detail_of(path) is None
    assert not update(path, [detailed(ops=1)], existing=None).touched
    assert whole == detail_path(path).read_text("utf-8")


def test_of_both_sides_of_a_merge_the_line_for_the_accepted_numbers_holds(tmp_path: Path) -> None:
    path, sides = tmp_path / "test_it.json", []
    for ops in (2, 1):
        update(path, [detailed(rows=ops, ops=ops)], existing=None)
        sides.append(detail_path(path).read_text("utf-8"))
    merged = f"<<<<<<< a\n{sides[1]}=======\n{sides[0]}>>>>>>> b\n"
    for text in (merged, sides[0] + sides[1]):  # git's driver "union" leaves the latter
        detail_path(path).write_text(text, "utf-8")
        assert detail_of(path) == detailed(rows=1).baseline.detail
        update(path, [], existing=None)
        assert sides[1] == detail_path(path).read_text("utf-8")


def test_the_line_of_a_test_that_is_gone_goes(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    update(path, [detailed(ops=1), detailed("test_b", ops=2)], existing=None)
    update(path, [], existing=["test_b"], environment=CPU)
    assert [True, False] == [f'"test_{x}"' in detail_path(path).read_text() for x in "ba"]
    assert detail_of(path, "test_b") is not None
