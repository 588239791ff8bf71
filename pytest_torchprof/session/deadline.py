"""A limit for each run after the first, which ran to its end: what blocks must not hold a session.

A test that takes a lock, a port or a file for good passes once and blocks when it is run again. A
run that ends the process cannot be helped, but its name is among the frames that Python's fault
handler prints.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.bell import Bell
from pytest_torchprof.capture.shelter import SHELTER

if TYPE_CHECKING:
    import pytest

#: A rerun may take so many seconds, and so many times what the first run has taken besides: a
#: profiled run of a loop of small operators takes five times as long, with stacks seven times.
LEAST_S, TIMES = 60.0, 20
#: Where pytest-timeout gives a test less than that, its seconds; or so many times the first run.
TIMES_OF_TIMEOUT = 10
#: Until it is heard: a test may catch what is raised in it.
_AGAIN_S = 1.0

HOW_TO_LEAVE_OUT = "@pytest.mark.torchprof(enabled=False) leaves the test out"

_SAID = {
    "warmup": "warm-up run",
    "round": "timed run",
    "profile": "profiled run",
    "modules": "run that marks modules",
    "threads": "profiled run of all threads",
    "tensors": "run that tells tensors apart",
    "lines": "run that locates lines",
    "": "teardown of an extra run",
}


class Overdue(BaseException):
    """A run did not end within its limit; raised where it is, as an interrupt would be."""


class Deadline:
    """The limit of further runs of one test, of which the first took ``first_s`` seconds."""

    def __init__(self, item: pytest.Item, first_s: float) -> None:
        self._nodeid = item.nodeid
        #: Which run of which test Ctrl-C has ended, where it was one of these.
        self.interrupted: str | None = None
        self._calls: dict[str, Callable[[Callable[[], None]], None]] = {}
        self.limit_s = LEAST_S + TIMES * first_s
        if (theirs := timeout_of(item)) is not None:
            self.limit_s = min(self.limit_s, max(theirs, TIMES_OF_TIMEOUT * first_s))

    def run(self, kind: str, function: Callable[[], None]) -> None:
        """Call the function, which is a run of this kind or, without one, a teardown.

        Raises:
            Overdue: it did not end in time; and whatever it raises.
        """
        what = _SAID.get(kind, kind)
        try:
            self._limited(what, function)
        except KeyboardInterrupt:
            self.interrupted = (
                f"{self._nodeid} passed, and was interrupted in an extra run by torchprof, "
                f"its {what}; {HOW_TO_LEAVE_OUT}"
            )
            raise

    def _limited(self, what: str, function: Callable[[], None]) -> None:
        call = self._calls.get(what)
        if call is None:
            call = self._calls[what] = _named(f"{what} of {self._nodeid}; {HOW_TO_LEAVE_OUT}")
        here = threading.current_thread() is threading.main_thread()
        if not (here and hasattr(signal, "setitimer")):  # only there, and with timers, one is heard
            with SHELTER.lifted:
                call(function)
            return
        over = False

        def ring() -> None:
            if not over:
                raise Overdue(
                    f"its {what} did not finish within {self.limit_s:.2g} s; {HOW_TO_LEAVE_OUT}"
                )

        with Bell(self.limit_s, _AGAIN_S, ring):
            try:
                with SHELTER.lifted:
                    call(function)
            finally:
                over = True


def timeout_of(item: pytest.Item) -> float | None:
    """Seconds that pytest-timeout gives the test; None where it has no limit."""
    settings = timeout_settings(item)
    return float(settings.timeout) if settings is not None else None


def timeout_settings(item: pytest.Item) -> Any:
    """What pytest-timeout has for the test; None where it has no limit."""
    module = sys.modules.get("pytest_timeout")
    settings_of: Callable[..., Any] | None = getattr(module, "_get_item_settings", None)
    if settings_of is None or not item.config.pluginmanager.is_registered(module):
        return None
    if not getattr(item.config, "_env_timeout", True) and not item.get_closest_marker("timeout"):
        return None  # as it will find itself, in a while
    settings = settings_of(item)
    return settings if settings.timeout and settings.timeout > 0 else None


def _named(name: str) -> Callable[[Callable[[], None]], None]:
    """What calls a function in a frame of this name, for whoever prints frames."""
    code = _call.__code__.replace(co_name=name.encode("ascii", "replace").decode())
    return FunctionType(code, {})


def _call(function: Callable[[], None]) -> None:
    function()
