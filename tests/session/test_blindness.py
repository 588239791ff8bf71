"""What was not measured never passes for measured."""

from __future__ import annotations

import pytest
import torch
from support.sessions import accept, doctor, run

from pytest_torchprof.capture.sessions import sees_threads
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import Rule

POOL = """
    from concurrent.futures import ThreadPoolExecutor
    import pytest
    import torch

    POOL = ThreadPoolExecutor(1)
    X = torch.ones(64, 64)

    def work():
        for _ in range(20):
            X @ X

    {marker}
    def test_it():
        POOL.submit(work).result()
        torch.ones(1)
"""


def test_work_in_a_pool_that_was_there_before_is_counted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=POOL.format(marker=""))
    record = run(pytester, "--torchprof").tests["test_it"]
    if not sees_threads():  # the report says so, and invents no number
        assert record["metrics"]["flops"]["value"] is None
        assert "this torch cannot profile them" in record["metrics"]["flops"]["reason"]
        return
    assert record["metrics"]["flops"]["value"] == 20 * 2 * 64**3
    assert "all threads" in record["metrics"]["peak_cpu_bytes"]["reason"]


def test_a_module_budget_is_not_checked_where_threads_work(pytester: pytest.Pytester) -> None:
    marker = '@pytest.mark.max_flops(10, module="Linear")'
    pytester.makepyfile(test_it=POOL.format(marker=marker))
    record = run(pytester, "--torchprof").tests["test_it"]
    assert record["metrics"]["flops[module=Linear]"]["status"] == "not_measured"


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="a device is what this is to lack")
def test_no_antipatterns_of_a_device_is_not_checked_without_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule("host-sync", lambda _: [], "", "cudaStreamSynchronize", frozenset({"device"}))
    monkeypatch.setitem(RULES, "host-sync", rule)
    pytester.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.no_antipatterns("host-sync")
        def test_it(): pass
        """
    )
    accept(pytester)
    assert run(pytester, "--torchprof").tests["test_it"]["outcome"] == "passed"
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert strict.tests["test_it"]["outcome"] == "failed"
    assert "the budget findings[rule=host-sync] could not be checked" in strict.out


def test_a_baseline_metric_that_is_gone_or_not_a_number_is_reported(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it="def test_add(): pass")
    accept(pytester)
    doctor(pytester, "test_add", ops="3")
    ran = run(pytester, "--torchprof")
    assert ran.tests["test_add"]["outcome"] == "failed"
    assert "metrics must be numbers" in ran.out


def test_numbers_that_are_not_there_can_be_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        def test_it(torchprof):
            with torchprof:
                pass
            print(f"{torchprof.stats.wall_ms:.2f} {torchprof.stats.flops // 2:d}")
            assert float(torchprof.stats.kernels) != 1
        """
    )
    assert run(pytester, "--torchprof").tests["test_it"]["outcome"] == "passed"
    assert run(pytester).outcomes["passed"] == 1


def test_strict_fails_a_test_whose_numbers_were_never_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        def test_it(torchprof):
            with torchprof: pass
            with torchprof: pass
            assert torchprof.stats.ops == 999
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-strict")
    assert ran.tests["test_it"]["outcome"] == "failed"


def test_a_benchmark_of_another_plugin_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        @pytest.fixture
        def benchmark(): return lambda f: f()
        """
    )
    pytester.makepyfile(test_it="def test_it(benchmark): benchmark(int)")
    record = run(pytester, "--torchprof").tests["test_it"]
    assert (record["outcome"], record["status"]) == ("passed", "not_profiled")


def test_a_failure_that_another_plugin_reports_is_not_accepted(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call":
                report.outcome, report.longrepr = "failed", "checks failed"
            return report
        """
    )
    pytester.makepyfile(test_it="def test_it(): pass")
    run(pytester, "--accept")
    assert not (pytester.path / "__torchprof__").exists()


def test_a_rerun_leaves_the_environment_as_the_first_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import os
        def test_a(): os.environ["TORCHPROF_X"] = os.environ.get("TORCHPROF_X", "") + "a"
        def test_b(): assert os.environ.pop("TORCHPROF_X") == "a"
        """
    )
    ran = run(pytester, "--torchprof")
    assert ran.tests["test_a"]["outcome"] == ran.tests["test_b"]["outcome"] == "passed", ran.out


def test_strict_fails_a_test_that_has_a_baseline_and_is_not_profiled_any_more(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    accept(pytester)
    pytester.makepyfile(
        test_it="""
        import torch
        def test_it():
            with torch.profiler.profile(): pass
        """
    )
    assert run(pytester, "--torchprof").tests["test_it"]["outcome"] == "passed"
    ran = run(pytester, "--torchprof", "--torchprof-strict")
    assert ran.tests["test_it"]["outcome"] == "failed"
    assert "has a baseline and could not be measured" in ran.out


def test_a_thread_that_only_wakes_up_changes_no_finding(pytester: pytest.Pytester) -> None:
    """As a progress bar's monitor does; which tensor is which is asked for nonetheless."""
    pytester.makepyfile(
        test_it="""
        import threading, time
        import torch

        BUSY, X = threading.Event(), torch.ones(1000, 100, dtype=torch.int64)

        def monitor():
            while BUSY.wait():
                sum(range(10_000))

        threading.Thread(target=monitor, daemon=True).start()

        def work():
            for _ in range(10):
                X.float()

        def test_alone():
            work()

        def test_beside():
            BUSY.set()
            work()
            time.sleep(0.01)
            BUSY.clear()
        """
    )
    tests = run(pytester, "--torchprof").tests
    found = {
        name: [(f["rule"], f["count"]) for f in one["findings"]] for name, one in tests.items()
    }
    assert found == {name: [("repeated-cast", 9)] for name in ("test_alone", "test_beside")}
