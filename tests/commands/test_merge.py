"""`torchprof merge`: one report of several shards."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import Say, say
from support.hostile import EVERY, assert_json, assert_terminal, in_utf8
from support.stored_reports import ENVIRONMENT, finding, metric, report, save, test

from pytest_torchprof.core.errors import ReportError
from pytest_torchprof.render.report import merged, of_document

__all__ = ["say"]  # a fixture

OTHER = {**ENVIRONMENT, "host": "runner-2"}
A = test("t.py::test_a", findings=[finding()], later={"kept": 1})
B = test("t.py::test_b", status="not_profiled", reason="skipped", outcome="skipped", metrics={})
C = test("t.py::test_c", metrics={"wall_ms": metric(None, "ms"), "ops": metric(2**62)})


def join(*documents: dict[str, Any]) -> dict[str, Any]:
    """Merge reports that are called a, b, …"""
    return merged(
        {name: of_document(d, name) for name, d in zip("abcdef", documents, strict=False)}
    )


def test_shards_become_one_report_that_is_valid(say: Say, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    a = save(tmp_path / "a.json", report(A))
    b = save(tmp_path / "b.json", report(B, C, environment=OTHER, errors=["late"]))
    out = tmp_path / "new" / "all.json"
    assert (0, "", "") == say("merge", a, b, "-o", out)
    found = assert_json(out.read_text("utf-8"))
    assert ["t.py::test_a", "t.py::test_b", "t.py::test_c"] == [t["nodeid"] for t in found["tests"]]
    assert ["late"] == found["errors"]
    schema = json.loads((files("pytest_torchprof") / "schemas/torchprof-report-1.json").read_text())
    assert [] == [e.message for e in jsonschema.Draft202012Validator(schema).iter_errors(found)]


def test_one_report_stays_as_it_is() -> None:
    whole = report(A, B, C, errors=["e"], interrupted=True, later=[1])
    assert whole == join(whole)


def test_a_test_keeps_all_that_a_newer_version_wrote() -> None:
    assert [A, B] == join(report(A), report(B))["tests"]


def test_what_machines_do_not_share_is_kept_with_their_tests() -> None:
    found = join(report(A), report(B, environment={**OTHER, "cpu_capability": "AVX2"}))
    assert "host" not in found["environment"]
    assert "cpu, torch 2.13" == found["environment"]["key"]
    assert [{"host": "runner-1"}, {"host": "runner-2", "cpu_capability": "AVX2"}] == [
        one["environment"] for one in found["tests"]
    ]


def test_a_merged_report_can_be_merged_again() -> None:
    third = {**ENVIRONMENT, "host": "runner-3"}
    twice = join(join(report(A), report(B, environment=OTHER)), report(C, environment=third))
    assert ["runner-1", "runner-2", "runner-3"] == [
        one["environment"]["host"] for one in twice["tests"]
    ]


def test_a_shard_in_which_no_test_started_has_no_environment_to_compare() -> None:
    found = join(report(environment={}), report(A), report(environment={}, interrupted=True))
    assert {**report(A), "interrupted": True} == found
    assert {} == join(report(environment={}))["environment"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", "cpu, torch 2.14"),
        ("torch_version", "2.14.0"),
        ("threads", 4),
        ("accelerator", "NVIDIA H100"),
        ("device_type", "cuda"),
    ],
)
def test_other_environments_are_an_error_that_says_what_differs(field: str, value: object) -> None:
    with pytest.raises(ReportError) as error:
        join(report(A), report(B, environment={**ENVIRONMENT, field: value}))
    assert "a and b are of different environments" in str(error.value)
    assert f"{field} is {ENVIRONMENT[field]!r} and {value!r}" in str(error.value)


def test_the_same_test_with_the_same_results_is_there_once() -> None:
    assert [A, B] == join(report(A), report(A, B))["tests"]
    on_two_hosts = join(report(A), report(A, environment=OTHER))
    assert [{"host": "runner-1"}] == [one["environment"] for one in on_two_hosts["tests"]]


def test_the_same_test_with_other_results_is_an_error() -> None:
    other = test("t.py::test_a", metrics={"ops": metric(4)})
    message = r"'t.py::test_a' is in a and in b: its results differ; merge reports of shards"
    with pytest.raises(ReportError, match=message):
        join(report(A), report(other))


def test_an_error_names_the_whole_test_and_the_whole_environment() -> None:
    nodeid = "tests/models/test_attention.py::TestFused::test_forward[sdpa-bfloat16-causal-4096]"
    with pytest.raises(ReportError) as error:
        join(report(test(nodeid)), report(test(nodeid, metrics={"ops": metric(4)})))
    assert f"{nodeid!r} is in a and in b" == error.value.what
    long = {**ENVIRONMENT, "key": "NVIDIA H100 80GB HBM3, torch 2.13, deterministic"}
    with pytest.raises(ReportError) as error:
        join(report(A), report(B, environment=long))
    assert repr(long["key"]) in error.value.found


def test_a_name_without_end_is_cut_in_the_middle() -> None:
    nodeid = f"t.py::test[{'x' * 10_000}-end]"
    with pytest.raises(ReportError) as error:
        join(report(test(nodeid)), report(test(nodeid, metrics={"ops": metric(4)})))
    assert "'t.py::test[xxx" in error.value.what
    assert "xxx-end]' is in a and in b" in error.value.what
    assert len(error.value.what) < 400


def test_unknown_keys_are_kept() -> None:
    assert 1 == join(report(later=1), report(), report(later=1))["later"]


@given(st.lists(st.integers(0, 9), unique=True), st.integers(0, 10))
def test_no_test_is_lost_or_doubled_wherever_the_suite_is_cut(ids: list[int], cut: int) -> None:
    tests = [test(f"t.py::test_{n}") for n in ids]
    assert report(*tests) == join(report(*tests[:cut]), report(*tests[cut:]))


def test_an_environment_of_a_test_that_is_none_is_one_line(say: Say, tmp_path: Path) -> None:
    a = save(tmp_path / "a.json", report(test("t", environment=3)))
    status, _, err = say("merge", a, "-o", tmp_path / "all.json")
    assert (2, 1, True) == (
        status,
        err.count("\n"),
        "$.tests[0].environment" in err.replace("[...]", "[0]"),
    )


def test_hostile_names_go_through(say: Say, tmp_path: Path) -> None:
    text = in_utf8(EVERY) + "<script>]]>" + "x" * 10_000
    a = save(tmp_path / "a.json", report(test(text, metrics={text: metric(1)})))
    out = tmp_path / "all.json"
    assert 0 == say("merge", a, "-o", out)[0]
    assert text == assert_json(out.read_text("utf-8"))["tests"][0]["nodeid"]
    b = save(tmp_path / "b.json", report(test(text)))
    status, _, err = say("merge", a, b, "-o", out)
    assert (2, 1) == (status, err.count("\n"))
    assert len(err) < 1000
    assert_terminal(err)


def test_an_output_that_is_an_input_or_another_file_is_not_replaced(
    say: Say, tmp_path: Path
) -> None:
    a = save(tmp_path / "a.json", report(A))
    other = tmp_path / "notes.md"
    other.write_text("mine", "utf-8")
    for target, message in ((a, "this is one of the reports"), (other, "is not a report")):
        before = target.read_bytes()
        status, out, err = say("merge", a, "-o", target)
        assert (2, "", 1) == (status, out, err.count("\n"))
        assert message in err
        assert before == target.read_bytes()


def test_an_output_that_cannot_be_written_is_one_line(say: Say, tmp_path: Path) -> None:
    a = save(tmp_path / "a.json", report(A))
    status, out, err = say("merge", a, "-o", a / "below.json")
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "cannot be written" in err


def test_without_an_output_or_with_a_bad_report_nothing_is_written(
    say: Say, tmp_path: Path
) -> None:
    a = save(tmp_path / "a.json", report(A))
    out = tmp_path / "all.json"
    for arguments in ([a], [a, tmp_path / "missing.json", "-o", out]):
        status, _, err = say("merge", *arguments)
        assert (2, 1) == (status, err.count("\n"))
    assert not out.exists()
