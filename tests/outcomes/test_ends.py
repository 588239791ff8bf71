"""Sessions and tests that are cut short end as without us: interrupts, exits, time limits."""

from __future__ import annotations

import pytest
from support.outcomes import same
from support.sessions import run

ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
BOTH = pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="reruns"),
        pytest.param(ONLY_RUN, id="only-run", marks=pytest.mark.thorough),
    ],
)


@pytest.mark.one_in(4)
@BOTH
@pytest.mark.parametrize(
    "ending",
    [
        "raise KeyboardInterrupt",
        "pytest.exit('enough', 5)",
        "request.session.shouldstop = 'x'",
        "request.session.shouldfail = 'x'",
    ],
)
def test_a_test_that_ends_the_session(
    pytester: pytest.Pytester, ending: str, args: tuple[str, ...]
) -> None:
    source = f"""
        import pytest
        import torch

        @pytest.fixture(scope="module", autouse=True)
        def wide():
            yield
            print("wide end")

        def test_before(): torch.ones(2)
        def test_ends(request, tmp_path):
            {ending}
        def test_never(): pass
    """
    seen = same(pytester, source, "-s", *args, ordered=False)
    assert "new" == seen.statuses["test_before"]
    assert "test_never" not in seen.statuses


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("late", "which"), [(False, "timed run"), (True, "teardown of an extra run")]
)
def test_an_interrupt_in_an_extra_run_is_reported_as_such(
    pytester: pytest.Pytester, late: bool, which: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        runs = []
        @pytest.fixture
        def interrupted():
            runs.append(1)
            yield
            if {late} and len(runs) == 2: raise KeyboardInterrupt
        def test_before(): torch.ones(2)
        def test_interrupted(interrupted):
            if not {late} and len(runs) == 2: raise KeyboardInterrupt
        def test_never(): pass
        """
    )
    ran = run(pytester, "--torchprof", "-q")
    assert pytest.ExitCode.INTERRUPTED == ran.ret
    assert {"test_before": "new"} == ran.statuses
    assert ran.report["interrupted"]
    message = (
        f"test_it.py::test_interrupted passed, and was interrupted in an extra run by torchprof, "
        f"its {which}; @pytest.mark.torchprof(enabled=False) leaves the test out"
    )
    assert message in ran.out


@pytest.mark.parametrize(
    ("method", "func_only"),
    [
        pytest.param("signal", "false", marks=pytest.mark.thorough),
        pytest.param("thread", "false", marks=pytest.mark.thorough),
        pytest.param("thread", "true", marks=pytest.mark.thorough),
    ],
)
def test_a_time_limit_is_for_one_run(
    pytester: pytest.Pytester, method: str, func_only: str
) -> None:
    source = """
        import time
        import pytest

        @pytest.fixture
        def slow_end():
            yield
            time.sleep(0.02)

        @pytest.fixture(scope="class")
        def slow_class():
            yield
            time.sleep(0.05)

        @pytest.mark.usefixtures("slow_class")
        class TestIt:
            @pytest.mark.timeout(3)  # all runs take longer, and one does not on a busy machine
            def test_takes_its_time(self, slow_end): time.sleep(0.15)
        def test_after(): pass
    """
    args = [f"--timeout-method={method}", f"-otimeout_func_only={func_only}", "--timeout=60"]
    args += ["--torchprof-rounds=19"]
    seen = same(pytester, source, *args, needs=["timeout"])
    assert {"TestIt::test_takes_its_time": "new", "test_after": "new"} == seen.statuses


@pytest.mark.thorough
def test_a_test_over_its_time_limit_fails(pytester: pytest.Pytester) -> None:
    source = """
        import time
        import pytest
        runs = []

        @pytest.fixture
        def slow_end():
            yield
            time.sleep(60)

        @pytest.mark.timeout(0.3)
        def test_is_over(): time.sleep(60)

        @pytest.mark.timeout(2)
        def test_is_over_with_its_teardown(slow_end): time.sleep(0.1)

        def test_after(): pass
    """
    seen = same(pytester, source, "--timeout-method=signal", needs=["timeout"], ordered=False)
    assert "failed" == seen.statuses["test_is_over"]
    assert "new" == seen.statuses["test_after"]


@pytest.mark.thorough
def test_alarms_and_watchdogs(pytester: pytest.Pytester) -> None:
    source = """
        import faulthandler
        import signal
        import time
        import pytest

        def test_alarm():
            rung = []
            signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            time.sleep(0.05)
            assert rung
        @pytest.fixture(scope="class")
        def slow_class():
            yield
            time.sleep(0.05)
        @pytest.mark.usefixtures("slow_class")
        class TestIt:
            @pytest.mark.torchprof(rounds=9)  # all runs together are over the time limit
            def test_slow(self): time.sleep(0.2)
        def test_watchdog(capfd):
            faulthandler.dump_traceback_later(0.02, file=2)
            while not capfd.readouterr().err: time.sleep(0.001)
            faulthandler.cancel_dump_traceback_later()
            capfd.readouterr()  # the rest of it
        def test_alarm_left():
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, 30)
        def test_alarm_runs():
            assert 20 < signal.setitimer(signal.ITIMER_REAL, 0)[0] <= 30
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    """
    seen = same(pytester, source, "-ofaulthandler_timeout=2", subprocess=True)
    assert "new" == seen.statuses["test_alarm"] == seen.statuses["TestIt::test_slow"]
