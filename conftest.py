import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import _pytest.pytester
import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "support.command_line"]

# A busy machine draws and runs examples slowly, and that is no fault.
settings.register_profile(
    "any machine",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("any machine")


class _SysModulesSnapshot(_pytest.pytester.SysModulesSnapshot):
    """What registers operators or types when it is loaded must not be loaded twice.

    ``pytester`` forgets the modules that an inner session was the first to load.
    """

    def restore(self) -> None:
        loaded = [
            (name, module)
            for name, module in sys.modules.items()
            if name.partition(".")[0] in ("functorch", "numpy", "torch")
            and getattr(module, "__spec__", None) is not None
        ]
        super().restore()
        for name, module in loaded:
            sys.modules.setdefault(name, module)


_pytest.pytester.SysModulesSnapshot = _SysModulesSnapshot


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than processors, since many tests wait for what they have started."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``one_in(n)``, every n-th case is run at once, the others are thorough."""
    seen: Counter[str] = Counter()
    for item in items:
        for mark in item.iter_markers("one_in"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker("thorough")
            seen[test] += 1


def pytest_collection_finish() -> None:
    """What tests write is compiled anew each time: they change a file twice within a second."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner sessions print the same everywhere: pytest cuts its summary lines, but not in CI.

    Nor do they wait for the disk.
    """
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """What is started in the background ignores these, and so would those that a test sends to."""
    usual = {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}
    numbers = {getattr(signal, name): how for name, how in usual.items() if hasattr(signal, name)}
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, numbers[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
