"""The JSON Schemas that users get, and real baselines and reports held against them."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
from support.handmade_rows import EVERY, Fake
from support.histories import Repository
from support.sessions import read_baseline, run

from pytest_torchprof.cli import main
from pytest_torchprof.core.values import Better, Compare, MetricStatus, TestStatus
from pytest_torchprof.verdict.metrics import METRICS, Klass

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "__torchprof__").glob("*.json"))

#: A test for each thing that a report can say.
TESTS = """
    import pytest
    import torch

    X = torch.ones(32, 8)

    def rows():
        return torch.stack([X[i] * 2 for i in range(32)])

    def test_passes(): X + X
    def test_fails(): assert torch.ones(1) == 2
    def test_skips(): pytest.skip("reason")

    @pytest.mark.xfail
    def test_xfails(): raise ValueError

    @pytest.mark.xfail
    def test_xpasses(): X + X

    @pytest.fixture
    def broken(): raise ValueError
    def test_errs(broken): pass

    def test_finds(): rows()

    @pytest.mark.allow_antipatterns("for-loop-indexing", reason="reason")
    @pytest.mark.torchprof(rounds=5)
    def test_allows(): rows()

    @pytest.mark.max_ops(1)
    @pytest.mark.max_ops(9, op="aten::add")
    def test_is_over_budget(): X + X + X

    @pytest.mark.max_kernels(1)
    @pytest.mark.no_antipatterns("host-sync")
    def test_is_not_checked(): X + X

    @pytest.mark.max_flops(10**9)
    def test_has_a_lower_bound(): torch.fft.fft(X)

    @pytest.mark.max_metric("unheard_of", 1)
    def test_records(torchprof):
        torchprof.record("n", 1, compare="exact")
        with torchprof("part"):
            torchprof.record("s", 1.5, unit="s", better="higher")
            torchprof.record("shown", 1.5, compare="never")
            X + X

    def test_profiles_itself():
        with torch.profiler.profile():
            pass
"""


def schema_of(kind: str) -> Any:
    version = {"baseline": 2}.get(kind, 1)
    file = files("pytest_torchprof") / "schemas" / f"torchprof-{kind}-{version}.json"
    return json.loads(file.read_text("utf-8"))


def faults(kind: str, document: Any) -> list[str]:
    """What the schema has against it; none for a document that is right."""
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@pytest.mark.parametrize("kind", ["baseline", "report", "run"])
def test_a_schema_is_one_of_draft_2020_12(kind: str) -> None:
    schema = schema_of(kind)
    assert "https://json-schema.org/draft/2020-12/schema" == schema["$schema"]
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_words_of_the_schema_are_those_of_the_code() -> None:
    defs = schema_of("report")["$defs"]
    test, metric = defs["test"]["properties"], defs["metric"]["properties"]
    assert set(test["status"]["enum"]) == set(get_args(TestStatus))
    run_test = schema_of("run")["$defs"]["test"]["properties"]
    assert set(run_test["status"]["enum"]) == set(get_args(TestStatus))
    own = run_test["own"]["additionalProperties"]["properties"]
    assert {*own["class"]["enum"]} == {*get_args(Compare)}
    assert {*own["better"]["enum"]} == {*get_args(Better)}
    assert set(metric["status"]["enum"]) == set(get_args(MetricStatus))
    assert {*metric["class"]["enum"]} == {*get_args(Klass)} == {"advice", *get_args(Compare)}
    assert {metric.klass for metric in METRICS.values()} == {*get_args(Klass)} - {"never"}
    assert {*metric["better"]["enum"]} == {*get_args(Better)}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_committed_baselines_are_valid(path: Path) -> None:
    assert [] == faults("baseline", json.loads(path.read_text("utf-8")))


def test_there_are_committed_baselines() -> None:
    assert EXAMPLES


def test_what_accept_writes_is_valid(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    run(pytester, "--accept", "--torchprof-time=gate", "--torchprof-rounds=3")
    written = read_baseline(pytester)
    assert {"test_passes", "test_finds"} <= written["tests"].keys()
    assert any("normalised" in e["times"] for t in written["tests"].values() for e in t.values())
    assert [] == faults("baseline", written)


@pytest.mark.thorough
def test_a_report_of_failures_findings_and_tests_that_were_not_profiled_is_valid(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=TESTS)
    run(pytester, "--accept")
    pytester.makepyfile(test_it=TESTS.replace("def test_passes(): X", "def test_passes(): X + X"))
    pytester.makeconftest("""
        from pytest_torchprof import rule

        @rule("broken", fix="mend it")
        def broken(trace):
            "Raises."
            raise KeyError("of mine")

        def pytest_torchprof_rules():
            return [broken]
    """)
    report = run(pytester, "--torchprof", "--torchprof-traces=traces").report
    tests = report["tests"]
    assert [] == faults("report", report)
    assert {"ok", "regressed", "over_budget", "not_profiled"} <= {t["status"] for t in tests}
    outcomes = {"passed", "failed", "skipped", "xfailed", "xpassed", "error"}
    assert outcomes == {t["outcome"] for t in tests}
    assert {True} == {f["accepted"] for t in tests for f in t["findings"]}
    assert any("at_least" in m for t in tests for m in t["metrics"].values())
    assert any(t["trace"] for t in tests)
    assert report["errors"]


@pytest.mark.thorough
@pytest.mark.parametrize("in_git", [False, True])
def test_a_document_of_a_history_is_valid(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, in_git: bool
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(pytester.path.parent))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    pytester.makepyfile(test_it=TESTS)
    if in_git:
        Repository(pytester.path).commit()
    run(pytester, "--torchprof", "--torchprof-ci=off", "--torchprof-history=runs")
    (path,) = (pytester.path / "runs").iterdir()
    document = json.loads(path.read_text("utf-8"))
    assert in_git == bool(document["commit"])
    assert [] == faults("run", document)
    tests = {test["nodeid"].partition("::")[2]: test for test in document["tests"]}
    assert {"exact", "time", "never"} >= {o["class"] for o in tests["test_records"]["own"].values()}
    assert tests["test_records"]["regions"]["part"]["metrics"]
    assert {"ok", "new", "over_budget", "not_profiled"} & {t["status"] for t in tests.values()}


@pytest.mark.thorough
def test_a_report_of_a_session_that_was_interrupted_is_valid(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): raise KeyboardInterrupt")
    report = run(pytester, "--torchprof").report
    assert report["interrupted"]
    assert [] == faults("report", report)


def test_the_report_of_ab_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Fake(EVERY).install(monkeypatch)
    main(["ab", "main", "--", f"--torchprof-json={tmp_path / 'report.json'}"])
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert all("ab" in test for test in report["tests"])
    assert [] == faults("report", report)


BASELINE: dict[str, Any] = {
    "schema": "torchprof-baseline/2",
    "tests": {"test_a": {"cpu, torch 2.13": {}}},
}
METRIC = {"value": 1, "unit": "1", "class": "exact", "baseline": None, "limit": None}
TEST: dict[str, Any] = {
    "nodeid": "test_a.py::test_a",
    "outcome": "passed",
    "status": "ok",
    "reason": None,
    "metrics": {"ops": {**METRIC, "status": "ok"}},
    "findings": [],
    "unchecked": {},
    "trace": None,
}
REPORT: dict[str, Any] = {"schema": "torchprof-report/1", "environment": {}, "tests": [TEST]}


def test_keys_of_later_versions_are_allowed() -> None:
    assert [] == faults("baseline", {**BASELINE, "later": 1})
    assert [] == faults("report", {**REPORT, "tests": [{**TEST, "later": {}}], "later": 1})


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.update(schema="torchprof-baseline/3"),
        lambda b: b.pop("tests"),
        lambda b: b["tests"]["test_a"]["cpu, torch 2.13"].update(metrics={"ops": "1"}),
        lambda b: b["tests"]["test_a"]["cpu, torch 2.13"].update(findings={"host-sync": 0.5}),
        lambda b: b["tests"].update(test_a=[]),
    ],
)
def test_an_invalid_baseline_is_reported(change: Callable[[Any], object]) -> None:
    wrong = deepcopy(BASELINE)
    change(wrong)
    assert faults("baseline", wrong)


@pytest.mark.parametrize(
    "change",
    [
        lambda test: test.update(status="fine"),
        lambda test: test.update(outcome="passes"),
        lambda test: test.pop("unchecked"),
        lambda test: test["metrics"].update(ops={**METRIC, "status": "not_measured"}),
        lambda test: test["metrics"].update(ops={**METRIC, "value": None, "status": "ok"}),
        lambda test: test["metrics"].update(ops={**METRIC, "status": "ok", "n": 3}),
        lambda test: test.update(findings=[{"rule": "host-sync"}]),
        lambda test: test.update(ab={"verdict": "slower"}),
    ],
)
def test_an_invalid_report_is_reported(change: Callable[[Any], object]) -> None:
    wrong = deepcopy(REPORT)
    change(wrong["tests"][0])
    assert faults("report", wrong)
