"""What is said of tests without numbers, and that there are none without need."""

import pytest
from support.sessions import run

#: Plugins of pytest that can be switched off.
BUILT_IN = (
    *("assertion", "cacheprovider", "capture", "debugging", "doctest", "faulthandler", "junitxml"),
    *("legacypath", "logging", "monkeypatch", "pastebin", "recwarn", "reports", "setuponly"),
    *("setupplan", "skipping", "stepwise", "subtests", "terminal", "threadexception", "tmpdir"),
    *("unittest", "unraisableexception", "warnings"),
)


@pytest.mark.parametrize("plugin", BUILT_IN)
def test_plugins_of_pytest_may_be_switched_off(pytester: pytest.Pytester, plugin: str) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.max_flops(1)
        def test_mm():
            print("said")
            torch.ones(2, 2) @ torch.ones(2, 2)

        def test_block(torchprof):
            with torchprof:
                torch.ones(2, 2) @ torch.ones(2, 2)
            print(torchprof.table())
        """
    )
    ran = run(pytester, "--torchprof", f"-pno:{plugin}")
    assert ran.statuses == {"test_mm": "over_budget", "test_block": "new"}, ran.out + ran.err
    assert ran.ret == 1


def test_a_test_that_was_measured_when_accepted_is_named_and_no_reason_is_lost(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped tests have no row; each kind of reason has one line, however many tests there are."""
    pytester.makepyfile(
        test_it="""
        import os, pytest, torch, unittest
        LATER = "LATER" in os.environ
        runs = []

        @pytest.mark.parametrize("i", range(30))
        def test_skipped(i): pytest.skip("not here")

        @pytest.mark.parametrize("i", range(25))
        def test_twice(i):
            runs.append(i)
            assert runs.count(i) == 1, f"{i} again"

        def test_known():
            if LATER:
                with torch.profiler.profile(): pass

        class TestUnit(unittest.TestCase):
            def test_skipped(self):
                if LATER: self.skipTest("not now")
        """
    )
    run(pytester, "--accept")
    monkeypatch.setenv("LATER", "1")
    for option in ("-q", "-v"):
        ran = run(pytester, "--torchprof", option)
        (line,) = (one for one in ran.out.splitlines() if "not compared with the baseline" in one)
        assert line.endswith("and profiler sessions cannot be nested (test_it.py::test_known)")
    table = ran.out.partition("= torchprof =")[2]
    assert "test_skipped[0]  " not in table
    assert "not profiled: skipped (31 tests: " in table
    assert "not profiled: cannot be run twice: AssertionError: 0 again" in table
    assert ran.ret == 0
    strict = run(pytester, "--torchprof", "--torchprof-strict", "-k", "known or Unit")
    assert (strict.outcomes["failed"], strict.outcomes["skipped"]) == (1, 1), strict.out
    assert "1 failed by --torchprof-strict" in strict.out
