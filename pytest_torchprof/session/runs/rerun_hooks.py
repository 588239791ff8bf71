"""The hooks through which a `Runner` sees a test, for every plugin class that runs tests."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_torchprof.session.runs.reruns import Runner


class RunningHooks:
    """Base class of a plugin that has a `Runner` and makes it `call` its tests."""

    runner: Runner

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtest_call")
    def pytest_measured_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the innermost part of the call phase."""
        return (yield from self.runner.measured_call(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Tear down the last rerun, silently."""
        return (yield from self.runner.end_last_run(item))

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtest_teardown")
    def pytest_first_teardown(self) -> Generator[None, Any, Any]:
        """Report the first run's teardown."""
        return (yield from self.runner.teardown())

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """Set no pytest-timeout limit during reruns."""
        return True if self.runner.timers_off else None

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool | None:
        """Cancel no pytest-timeout limit during reruns."""
        return True if self.runner.timers_off else None
