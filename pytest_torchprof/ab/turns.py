"""The turns of one test, in a worker: time its calls, and set up its fixtures on request.

Like reruns, they all happen inside the call phase of a single pytest run of the test. So every
plugin's environment is in place, and a turn on the same fixtures costs only its calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_torchprof.ab.messages import Turn
from pytest_torchprof.capture.collecting import collect
from pytest_torchprof.capture.memory_layout import TurnLayout, move_to
from pytest_torchprof.capture.timed_calls import GarbageControl, Meter
from pytest_torchprof.core.errors import error_line
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.session.runs.outcome import functional_failure
from pytest_torchprof.session.runs.reruns import Runner

if TYPE_CHECKING:
    from pytest_torchprof.session.runs.gather import Gatherer

_Result = TypeVar("_Result")

#: After this many turns, the output that the test printed is dropped.
_DROP_OUTPUT = 64

#: ("turn", calls, fresh, processor) or ("done",).
WorkerCommand = tuple[Any, ...]


class TurnRunner(Runner):
    """Runs a test like `Runner`, then serves its turns until told to stop."""

    def __init__(
        self,
        ask: Callable[[pytest.Item, Gatherer], WorkerCommand],
        answer: Callable[[WorkerCommand], WorkerCommand],
    ) -> None:
        super().__init__()
        #: Reports that the test has been profiled, and returns the first command.
        self._ask = ask
        #: Reports a turn, and returns the next command.
        self._answer = answer
        self._turns: Turns | None = None
        self._garbage = GarbageControl()

    def call(self, item: pytest.Item, gatherer: Gatherer) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, the profiled one, the turns."""
        result = None
        try:
            result = yield from super().call(item, gatherer)
        except (Exception, pytest.fail.Exception):
            # Its own assertions on measured numbers do not matter here.
            if not gatherer.asked.stats_read:
                raise
        if gatherer.timed:
            self.rerunning = True
            try:
                self._serve(item, gatherer)
            finally:
                self.rerunning = False
        return result

    def settle(self) -> None:
        """Everything is loaded: exclude it from garbage collection from here on."""
        self._garbage.settle()

    def measured_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: it contains only what is timed."""
        if self._turns is None:
            return (yield from super().measured_call(item))
        return (yield from self._turns.first_call(item))

    def _serve(self, item: pytest.Item, gatherer: Gatherer) -> None:
        command = self._ask(item, gatherer)
        gatherer.forget()  # frees memory and the numbers for comparisons
        if command[0] != "turn":
            return
        late = self._end_first(item)
        with self._apart(item, gatherer), warnings.catch_warnings():
            self._garbage.settle()
            warnings.showwarning = _nothing
            while command[0] == "turn":
                turns = Turns(item, self._answer, command, late, lambda: self.subtest_failed)
                error = self._renew(item, gatherer) or self._run_turns(item, turns)
                command, late = turns.end(error)

    def _run_turns(self, item: pytest.Item, turns: Turns) -> BaseException | None:
        """One setup and call phase: a turn, and those that follow on the same fixtures."""
        self.subtest_failed = False
        self._turns = self.regions = turns
        try:
            item.ihook.pytest_runtest_setup(item=item)
            item.ihook.pytest_runtest_call(item=item)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self._turns = self.regions = None
        return None


class Turns:
    """Turns on one set of fixtures. For the ``torchprof`` fixture, the timer of its region."""

    def __init__(
        self,
        item: pytest.Item,
        answer: Callable[[WorkerCommand], WorkerCommand],
        command: WorkerCommand,
        late: BaseException | None,
        failed_subtest: Callable[[], bool],
    ) -> None:
        self._item = item
        self._answer = answer
        self._failed_subtest = failed_subtest
        _, self._calls, _, self._processor = command
        #: A failure after the last turn was reported; reported with the next one.
        self._late = late
        self._meter = Meter()
        self._number = 0
        self._layout = TurnLayout()
        #: The next command, once one needs other fixtures.
        self._next: WorkerCommand | None = None
        self._first = True
        self._sections = len(item._report_sections)  # noqa: SLF001 - as in reruns
        self._properties = len(item.user_properties)

    # ---------------------------------------------------------------- of the test's calls

    def first_call(self, _: pytest.Item) -> Generator[None, Any, Any]:
        """The call that pytest makes, and then the requested ones."""
        collect()
        move_to(self._processor)
        with self._meter.one():
            result = yield
        self._first = False
        if self._next is None:
            self._turn(self._item.runtest, self._calls - 1)
            self._go_on(self._item.runtest)
        return result

    def end(self, error: BaseException | None) -> tuple[WorkerCommand, BaseException | None]:
        """The next command, and a failure that is still to be reported."""
        if self._next is None:
            return self._tell(error), None
        return self._next, error

    # ---------------------------------------------------------------- of its region

    def enter(self) -> None:
        """Start timing: only the region of the call counts."""
        self._meter.enter()

    def leave(self) -> None:
        """Stop timing."""
        self._meter.leave()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Turns call this function instead of the test."""
        if not self._first or self._next is not None:
            return self._in_region(function)
        self._meter.elsewhere = True
        result = function()

        def again() -> None:
            nonlocal result
            result = function()

        self._turn(again, self._calls)
        self._go_on(again)
        return result

    def _in_region(self, function: Callable[[], _Result]) -> _Result:
        self.enter()
        try:
            return function()
        finally:
            self.leave()

    # ---------------------------------------------------------------- turns

    def _go_on(self, call: Callable[[], object]) -> None:
        """More turns, until one needs new fixtures."""
        assert self._next is not None  # noqa: S101 - a turn was announced
        while self._next[0] == "turn" and not self._next[2]:
            _, calls, _, self._processor = self._next
            self._turn(call, calls)

    def _turn(self, call: Callable[[], object], count: int) -> None:
        """Time this many calls, report them with earlier ones, and keep the next command."""
        self._drop()
        error: BaseException | None = None
        try:
            if count:
                self._layout.renew(self._processor)
                self._meter.time(call, count)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as raised:  # noqa: BLE001 - any outcome of a call is caught here
            error = raised
        self._next = self._tell(error)

    def _tell(self, error: BaseException | None) -> WorkerCommand:
        failed = functional_failure(self._item)
        if self._failed_subtest():
            failed = because(Why.SUBTESTS_FAILED)
        error, self._late = self._late or error, None
        why = None
        if error is not None:
            why = because(Why.ERROR, message=error_line(error))
        elif failed is not None:
            why = because(Why.UNRAISED_FAILURE, why=failed)
        wall, cpu, spent = self._meter.take()
        return self._answer(("turn", Turn(wall.tobytes(), cpu.tobytes(), spent, why).sent()))

    def _drop(self) -> None:
        """Drop what would grow from turn to turn."""
        del self._item._report_sections[self._sections :]  # noqa: SLF001 - as in reruns
        del self._item.user_properties[self._properties :]
        manager = self._item.config.pluginmanager
        logging = manager.getplugin("logging-plugin")
        for name in ("caplog_handler", "report_handler"):
            handler = getattr(logging, name, None)
            if handler is not None and handler.records:
                handler.clear()
        self._number += 1
        if not self._number % _DROP_OUTPUT:
            capture = manager.getplugin("capturemanager")
            if capture is not None and capture.is_globally_capturing():
                capture.read_global_capture()


def _nothing(*_: object, **__: object) -> None:
    """Warnings in turns are repetitions."""
