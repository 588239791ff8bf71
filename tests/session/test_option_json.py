"""--torchprof-json: the machine-readable report."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from support.sessions import ADD, accept, doctor, run

from pytest_torchprof.verdict.metrics import METRICS

ALL = """
    import pytest
    import torch

    X = torch.ones(4)

    def test_ok(): X + X

    def test_regressed(): X + X

    def test_improved(): X + X

    @pytest.mark.max_ops(0)
    def test_over_budget(): X + X

    @pytest.mark.max_allocated_cpu_bytes("1 MiB", op="aten::add")
    def test_scoped(): X + X

    @pytest.mark.parametrize("a", ["x::y z"])
    def test_parameter(a): X + X

    def test_fails(): assert X is None

    def test_skips(): pytest.skip("not today")

    @pytest.mark.skip
    def test_marked(): pass

    @pytest.mark.xfail
    def test_xfails(): raise ValueError

    @pytest.mark.xfail
    def test_xpasses(): X + X

    @pytest.fixture
    def broken(): raise ValueError

    def test_setup(broken): pass

    @pytest.fixture
    def fragile():
        yield
        raise ValueError("late")

    def test_teardown(fragile): pass
"""
STATUSES = {
    "test_ok": ("passed", "ok", None),
    "test_regressed": ("failed", "regressed", None),
    "test_improved": ("passed", "improved", None),
    "test_over_budget": ("failed", "over_budget", None),
    "test_scoped": ("passed", "ok", None),
    "test_parameter[x::y z]": ("passed", "ok", None),
    "test_fails": ("failed", "not_profiled", "failed"),
    "test_skips": ("skipped", "not_profiled", "skipped"),
    "test_marked": ("skipped", "not_profiled", "skipped"),
    "test_xfails": ("xfailed", "not_profiled", "xfailed"),
    "test_xpasses": ("xpassed", "ok", None),
    "test_setup": ("error", "not_profiled", "setup failed"),
    "test_teardown": ("error", "not_profiled", "teardown failed: ValueError: late"),
}


def test_the_report_lists_every_test_with_its_outcome(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ALL)
    run(pytester, "--accept")
    doctor(pytester, "test_regressed", ops=0)
    doctor(pytester, "test_improved", ops=2)
    ran = run(pytester, "--torchprof")
    assert ["schema", "environment", "tests"] == list(ran.report)
    assert "torchprof-report/1" == ran.report["schema"]
    assert "torch" in ran.report["environment"]["key"]

    for name, test in ran.tests.items():
        assert f"test_it.py::{name}" == test["nodeid"]
        keys = ["nodeid", "outcome", "status", "reason", "metrics", "findings"]
        keys += ["causes", "unchecked", "trace"]
        keys += ["message"] if test["status"] in ("regressed", "over_budget") else []
        assert keys == list(test)
        for metric, row in test["metrics"].items():
            more = {"reason"}
            if "rounds" in METRICS[metric.partition("[")[0]].needs and row["value"] is not None:
                more |= {"n", "low", "high", "min", "spread", "normalised", "normalised_baseline"}
            assert {"value", "unit", "class", "baseline", "limit", "status"} == row.keys() - more
            kind = METRICS[metric.partition("[")[0]]
            assert (kind.unit, kind.klass) == (row["unit"], row["class"])
            assert (row["status"] == "not_measured") is (row["value"] is None)
            assert row["value"] is not None or row["reason"]
    found = {n: (t["outcome"], t["status"], t["reason"]) for n, t in ran.tests.items()}
    assert STATUSES == found
    usual = [name for name, metric in METRICS.items() if not metric.on_request]
    assert usual == list(ran.tests["test_ok"]["metrics"])


@pytest.mark.thorough
def test_a_metric_holds_value_baseline_limit_and_status(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch
        X = torch.ones(4)

        @pytest.mark.max_ops(5)
        @pytest.mark.max_ops(3, op="aten::mul")
        def test_add(): X * X
        """
    )
    accept(pytester)
    doctor(pytester, ops=0)
    metrics = run(pytester, "--torchprof").tests["test_add"]["metrics"]
    row = {"value": 1, "unit": "1", "class": "exact"}
    assert {**row, "baseline": 0, "limit": 5, "status": "regressed"} == metrics["ops"]
    scoped = {**row, "baseline": None, "limit": 3, "status": "ok"}
    assert scoped == metrics["ops[op=aten::mul]"]


def test_a_test_that_never_is_profiled_has_no_metrics(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_fails(): assert 0")
    test = run(pytester, "--torchprof").tests["test_fails"]
    assert ({}, [], None) == (test["metrics"], test["findings"], test["trace"])


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "pytest.exit('enough')"])
def test_an_interrupted_session_leaves_a_report(pytester: pytest.Pytester, end: str) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest
        def test_before(): pass
        def test_end(): {end}
        def test_after(): pass
        """
    )
    ran = run(pytester, "--torchprof")
    assert pytest.ExitCode.INTERRUPTED == ran.ret
    assert "new" == ran.statuses["test_before"]
    assert "test_after" not in ran.tests
    assert ran.report["interrupted"]


@pytest.mark.thorough
def test_a_session_that_dies_leaves_no_report_of_an_earlier_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_reads(): print(open('report.json').read())")
    (pytester.path / "report.json").write_text(
        '{"schema": "torchprof-report/1", "tests": ["of an earlier session"]}', "utf-8"
    )
    ran = run(pytester, "--torchprof", "-rP", fresh=False)
    assert '"tests": []' in ran.out
    assert '"interrupted": true' in ran.out
    assert "interrupted" not in ran.report


@pytest.mark.thorough
def test_a_session_that_stops_at_a_failure_leaves_a_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_a(): assert 0\ndef test_b(): pass")
    ran = run(pytester, "--torchprof", "-x")
    assert ({"test_a": "not_profiled"}, 1) == (ran.statuses, ran.ret)


def test_a_session_without_tests_leaves_an_empty_report(pytester: pytest.Pytester) -> None:
    ran = run(pytester, "--torchprof")
    assert ([], pytest.ExitCode.NO_TESTS_COLLECTED) == (ran.report["tests"], ran.ret)


def test_a_relative_path_is_below_the_folder_where_pytest_was_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile(test_it=ADD)
    below = pytester.mkdir("below")
    monkeypatch.chdir(below)
    run(pytester, "--torchprof", "--torchprof-json=new/out.json", "..")
    report = json.loads((below / "new" / "out.json").read_text("utf-8"))
    assert "torchprof-report/1" == report["schema"]


def test_a_folder_is_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    (pytester.path / "report.json").mkdir()
    (pytester.path / "report.json" / "x").touch()
    ran = run_without_report(pytester)
    assert pytest.ExitCode.USAGE_ERROR == ran.ret
    (line,) = (line for line in ran.errlines if line.startswith("ERROR"))
    assert line.endswith("report.json is a folder; name a file in it")


def run_without_report(pytester: pytest.Pytester) -> pytest.RunResult:
    from support.sessions import NO_OTHER_PLUGINS

    options = ("--torchprof", "--torchprof-json=report.json")
    return pytester.runpytest_inprocess(*NO_OTHER_PLUGINS, *options)


@pytest.mark.thorough
def test_under_xdist_there_is_one_report_of_all_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD, test_other="def test_fails(): assert 0")
    ran = run(pytester, "--torchprof", "-n2", needs=["xdist"])
    found = {n: (t["outcome"], t["status"]) for n, t in ran.tests.items()}
    assert {"test_add": ("passed", "new"), "test_fails": ("failed", "not_profiled")} == found
    assert 1 == ran.metric("ops")["value"]
    assert "torch" in ran.report["environment"]["key"]


def test_a_device_a_pipe_and_a_stream_are_written_to_and_stay(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_ok(): pass")
    pipe, read = pytester.path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    for name in ("/dev/null", pipe):
        assert 0 == run(pytester, "--torchprof", f"--torchprof-json={name}").ret
    reader.join()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert pipe.is_fifo()
    assert "torchprof-report/1" == json.loads(read[0])["schema"]


def test_a_users_file_beside_the_report_is_not_touched(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_ok(): pass")
    (pytester.path / "mine").write_text("mine", "utf-8")
    beside = pytester.path / ".report.json.tmp"
    beside.symlink_to("mine")
    assert 0 == run(pytester, "--torchprof").ret
    assert ("mine", True) == ((pytester.path / "mine").read_text("utf-8"), beside.is_symlink())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file/report.json", "Not a directory"),
        ("/dev/full", "No space left on device"),
        ("x" * 256, "File name too long"),
    ],
)
def test_a_report_that_has_no_place_is_one_line_and_fails_the_session(
    pytester: pytest.Pytester, name: str, why: str
) -> None:
    pytester.makepyfile(test_it="def test_ok(): pass")
    (pytester.path / "file").touch()
    ran = run(pytester, "--torchprof", f"--torchprof-json={name}")
    assert (pytest.ExitCode.TESTS_FAILED, {"passed": 1}) == (ran.ret, ran.outcomes)
    (line,) = (line for line in ran.result.outlines if line.startswith("ERROR"))
    assert line.startswith("ERROR: report ")
    assert line.endswith(f" cannot be written: {why}; name another with --torchprof-json")


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "text", ["def test_a(): pass\n", '{"schema": "torchprof-baseline/2", "tests": {}}', "[]", "{}"]
)
def test_a_report_never_replaces_a_file_of_another_kind(
    pytester: pytest.Pytester, text: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    target = pytester.path / "target"
    target.write_text(text)
    ways = [("--torchprof-json", "target"), ("--torchprof-json=target", "-n1")]
    for args in ways if text == "[]" else ways[:1]:
        result = pytester.runpytest_subprocess("--torchprof", *args)
        assert pytest.ExitCode.USAGE_ERROR == result.ret
        result.stderr.fnmatch_lines(["*--torchprof-json: *target is not replaced: it exists and *"])
        assert text == target.read_text()


def test_a_report_replaces_an_earlier_one_or_an_empty_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    target = pytester.path / "target.json"
    target.touch()
    for _ in range(2):
        args = ("-p", "no:asyncio", "--torchprof", "--torchprof-json", "target.json")
        result = pytester.runpytest_inprocess(*args)
        assert pytest.ExitCode.OK == result.ret
    assert "torchprof-report/1" in target.read_text()
