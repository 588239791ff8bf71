"""A time limit for each run after the first, so that a run that blocks cannot stop the session.

A test that never releases a lock, a port or a file passes once and blocks when it is rerun. A run
that ends the process cannot be stopped, but Python's fault handler prints its name in a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

from pytest_torchprof.capture.limited import Limited
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.processes import ticks_now
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.render.reason_texts import HOW_TO_LEAVE_OUT, in_words
from pytest_torchprof.session.isolation.time_limits import timeout_of

if TYPE_CHECKING:
    import pytest

#: A rerun may take this many seconds plus this many times the first run. A profiled run of a
#: loop of small operators takes five times as long, with stacks seven times.
LEAST_S, TIMES = 60.0, 20
#: A shorter pytest-timeout limit applies, but at least this many times the first run.
TIMES_OF_TIMEOUT = 10
_RUN_NAMES = {
    "warmup": "warm-up run",
    "round": "timed run",
    "pairs": "run that compares callables",
    "profile": "profiled run",
    "modules": "run that marks modules",
    "threads": "profiled run of all threads",
    "numbers": "run that compares regions",
    "tensors": "run that identifies tensors",
    "reseeded": "run with another seed",
    "lines": "run that locates lines",
    "": "teardown of an extra run",
}


class Overdue(BaseException):
    """A run did not finish within its limit; raised wherever the run is, like an interrupt."""

    def __init__(self, run: str, limit_s: float) -> None:
        self.reason = because(Why.RERUN_OVERDUE, run=run, limit_s=limit_s)
        super().__init__(in_words(self.reason))


class Deadline:
    """The time limit for extra runs of one test, whose first run took ``first_s`` seconds."""

    def __init__(self, item: pytest.Item, first_s: float) -> None:
        self._nodeid = item.nodeid
        #: Which extra run of which test Ctrl-C interrupted, if any.
        self.interrupted: str | None = None
        #: Whether the last run has failed; what it has started is ended after its teardown.
        self._failed = False
        self._began = 0
        self._calls: dict[str, Callable[[Callable[[], None]], None]] = {}
        self.limit_s = LEAST_S + TIMES * first_s
        if (theirs := timeout_of(item)) is not None:
            self.limit_s = min(self.limit_s, max(theirs, TIMES_OF_TIMEOUT * first_s))

    def run(self, kind: str, function: Callable[[], None], *, more_s: float = 0.0) -> None:
        """Call the function, a run of this kind or, if the kind is empty, a teardown.

        ``more_s``: seconds that the run may take longer, because the test asks for them. Processes
        that it has started are ended if it did not finish, and after the teardown if it failed.

        Raises:
            Overdue: it did not finish in time. Errors of the function pass through.
        """
        what = _RUN_NAMES.get(kind, kind)
        if kind:
            self._began, self._failed = ticks_now(), True
        try:
            self._limited(what, function, self.limit_s + more_s)
            self._failed &= not kind
        except Overdue:
            self._end_processes()  # for which the teardown might wait
            raise
        except KeyboardInterrupt:
            self.interrupted = (
                f"{self._nodeid} passed, and was interrupted in an extra run by torchprof, "
                f"its {what}; {HOW_TO_LEAVE_OUT}"
            )
            raise
        finally:
            if self._failed and not kind:
                self._end_processes()

    def note_failure(self) -> None:
        """The last run has failed, though it has not raised."""
        self._failed = True

    def _end_processes(self) -> None:
        from pytest_torchprof.capture.children.leftover import end_processes

        end_processes(self._began)

    def _limited(self, what: str, function: Callable[[], None], limit_s: float) -> None:
        call = self._calls.get(what)
        if call is None:
            call = self._calls[what] = _named(f"{what} of {self._nodeid}; {HOW_TO_LEAVE_OUT}")
        with Limited(limit_s, lambda: Overdue(what, limit_s)), PATCH_GUARD.suspended:
            call(function)


def _named(name: str) -> Callable[[Callable[[], None]], None]:
    """A caller whose frame has this name, for tools that print stacks."""
    code = _call.__code__.replace(co_name=name.encode("ascii", "replace").decode())
    return FunctionType(code, {})


def _call(function: Callable[[], None]) -> None:
    function()
