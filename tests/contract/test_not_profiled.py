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
