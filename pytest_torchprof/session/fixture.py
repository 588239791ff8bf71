"""The ``torchprof`` fixture: measures a block or a callable, and hands out its numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.session.fixture_stats import Stats, Unchecked

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_torchprof.baseline.sources import Sources
    from pytest_torchprof.capture.timed_calls import Regions
    from pytest_torchprof.session.gather import Gatherer
    from pytest_torchprof.session.hooks import TorchprofSession
    from pytest_torchprof.session.one_run import Run
    from pytest_torchprof.session.reruns import Runner

Result = TypeVar("Result")


class Torchprof:
    """What a test gets for the argument ``torchprof``. Without profiling it does nothing."""

    def __init__(
        self,
        runner: Runner | None = None,
        gatherer: Gatherer | None = None,
        *,
        sources: Sources | None = None,
        accept_command: str = "",
        mute: bool = False,
    ) -> None:
        self._runner = runner
        self._gatherer = gatherer
        #: Test files as they were compiled, while accepting.
        self._sources = sources
        self._accept_command = accept_command
        self._mute = mute
        self._entered = False
        self._metrics: dict[str, Any] | None = None

    # ---------------------------------------------------------------- measuring

    def __enter__(self) -> Self:
        """Begin the measured region: what is outside it is not measured."""
        if self._regions is not None:
            self._regions.enter()
            return self
        run = self._runner.run if self._runner else None
        if run is None or self._gatherer is None or self._taken():
            return self
        run.cancel()
        self._gatherer.asked.note_region()
        self._entered = True
        run.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it; in the profiled run `stats` is there from here on."""
        if self._regions is not None:
            self._regions.leave()
            return
        run = self._runner.run if self._runner else None
        if run is None or not self._entered:
            return
        if kind is None:
            run.end()
        else:
            self._left_with(kind, run)

    def __call__(
        self,
        function: Callable[[], Result],
        *,
        rounds: int | None = None,
        warmup: int | None = None,
        min_time: float | None = None,
    ) -> Result:
        """Measure a callable within this one run: warm-up calls, timed calls, a profiled call.

        Timed calls go on until they have taken ``min_time`` seconds. Returns the last result.
        Raises ValueError for negative counts, and whatever the callable raises.
        """
        __tracebackhide__ = True
        counts: dict[str, Any] = {"rounds": rounds, "warmup": warmup}
        for name, count in counts.items():
            if count is not None and not (isinstance(count, int) and count >= 0):
                raise ValueError(f"{name} must be a whole number of 0 or more, not {count!r}")
        if min_time is not None and not 0 <= min_time < math.inf:
            raise ValueError(f"min_time must be seconds, 0 or more, not {min_time!r}")
        if self._regions is not None:
            return self._regions.call(function)
        outer = self._runner.run if self._runner else None
        gatherer = self._gatherer
        if outer is None or gatherer is None or gatherer.reason is not None or self._taken():
            return function()
        from pytest_torchprof.capture.real import muted
        from pytest_torchprof.session.one_run import Run
        from pytest_torchprof.session.plan import EXTRA_KINDS

        outer.cancel()
        gatherer.asked.note_region(complete=True)
        gatherer.replan(gatherer.plan.with_counts(warmup=warmup, rounds=rounds, min_time=min_time))
        for kind in gatherer.runs_of(gatherer.plan.kinds):
            run = Run(kind, gatherer, first=False)
            # The profiled call is one more than asked for, and torch's profiler writes too.
            extra = self._mute and kind not in ("warmup", "round")
            with muted(1, 2) if extra else nullcontext():
                if kind in EXTRA_KINDS:
                    self._again(function, run)
                else:
                    result = self._measure(function, run)
        self._entered = True
        return result

    @property
    def _regions(self) -> Regions | None:
        return self._runner.regions if self._runner else None

    def _measure(self, function: Callable[[], Result], run: Run) -> Result:
        __tracebackhide__ = True
        if run.kind == "round":
            from pytest_torchprof.capture.shelter import SHELTER

            with SHELTER:
                run.gatherer.rounds.before_round()
        run.begin()
        try:
            result = function()
        except BaseException as error:
            self._left_with(type(error), run)
            raise
        run.end()
        return result

    def _again(self, function: Callable[[], Any], run: Run) -> None:
        """A call for what is not known yet: all else about it is nobody's matter."""
        with run.gatherer.extra():
            try:
                self._measure(function, run)
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001
                run.gatherer.refuse(f"it raised {type(error).__name__} when run once more")

    def _left_with(self, kind: type[BaseException], run: Run) -> None:
        run.cancel()
        if self._gatherer is not None:
            self._gatherer.asked.note_raised(kind)

    def _taken(self) -> bool:
        """Whether this test has measured a region already: numbers of two would be of neither."""
        if not self._entered or self._gatherer is None:
            return False
        self._gatherer.refuse(
            "the test measures more than one region through the fixture", timed=False
        )
        return True

    # ---------------------------------------------------------------- numbers

    @property
    def stats(self) -> Stats:
        """Measured metrics by name."""
        return Stats(self.metric)

    def table(self, sort_by: str = "self_cpu_ms", limit: int = 10) -> str:
        """Operators of the measured region, as text; empty in runs that are not profiled.

        What the profiled run prints of it is shown after the first run's output.

        Raises:
            SettingsError: ``sort_by`` is not a column.
        """
        __tracebackhide__ = True
        gatherer = self._gatherer
        if gatherer is None:
            return ""
        from pytest_torchprof.capture.shelter import SHELTER

        with SHELTER:
            from pytest_torchprof.render.ops_table import COLUMNS, ops_table

        if sort_by not in COLUMNS:
            raise SettingsError(f"there is no column {sort_by!r}. {near(sort_by, COLUMNS)}")
        gatherer.asked.note_table()
        if gatherer.trace is None:
            return ""
        with SHELTER:
            text = ops_table(gatherer.trace, sort_by, limit)
        gatherer.asked.note_table(text)
        return text

    def assert_expected_inline(self, expected: str) -> None:
        """Compare ``name value`` lines with what was measured; ``--accept`` rewrites the literal.

        An empty text is filled with FLOPs and operators; add a line for any other metric.
        """
        __tracebackhide__ = True
        if self._gatherer is None:
            return
        from pytest_torchprof.capture.shelter import SHELTER

        caller = sys._getframe(1)  # noqa: SLF001 - what inspect.currentframe() is, one up
        with SHELTER:
            self._compare_inline(expected, caller, self._gatherer)

    def _compare_inline(self, expected: str, caller: FrameType, gatherer: Gatherer) -> None:
        __tracebackhide__ = True
        from pytest_torchprof.baseline.inline import (
            expected_metrics,
            holds,
            located,
            refusal,
            render_inline,
        )
        from pytest_torchprof.core.results import NotMeasured

        names = expected_metrics(expected)
        values = self._values()
        if values is None:
            return
        missing = [name for name in names if isinstance(values[name], NotMeasured)]
        gatherer.asked.note_stats(read=True, unchecked=missing)
        if missing:  # no number is no text to compare with, and none to write
            return
        if holds(expected, values):
            return
        actual = render_inline(values, names, expected)
        if self._sources is not None:
            gatherer.asked.note_edit(located(caller, actual, expected, self._sources))
            return
        from pytest_torchprof.render import escape
        from pytest_torchprof.render.failure import inline_changes, inline_mismatch
        from pytest_torchprof.session.own_failure import OwnFailure

        message = inline_mismatch(expected, actual, self._accept_command, refusal(caller, expected))
        changes = inline_changes(expected, actual).items()
        gatherer.asked.note_mismatch({name: before for name, (before, _) in changes})
        raise OwnFailure(escape.block(message))

    def metric(self, name: str) -> Any:
        """One measured metric, or an `Unchecked`; what `stats` reads."""
        __tracebackhide__ = True
        from pytest_torchprof.core.results import NotMeasured

        values = self._values()
        if values is None or self._gatherer is None:
            return Unchecked("this run is not profiled")
        value = values[name]
        if not isinstance(value, NotMeasured):
            self._gatherer.asked.note_stats(read=True)
            return value
        self._gatherer.asked.note_stats(read=True, unchecked=[name])
        return Unchecked(value.reason)

    def _values(self) -> dict[str, Any] | None:
        __tracebackhide__ = True
        gatherer = self._gatherer
        if gatherer is None:
            return None
        gatherer.asked.note_stats()
        if (
            self._runner
            and self._runner.run
            and not gatherer.asked.own_region
            and not gatherer.reason
        ):
            # Without a region there never are numbers, and every assertion would hold for ever.
            raise SettingsError(
                "the torchprof fixture has no numbers to compare",
                "no region of this test was measured before this line",
                "put the work into `with torchprof:`, or call torchprof(function)",
            )
        if gatherer.trace is None:
            return None
        if self._metrics is None:
            from pytest_torchprof.capture.shelter import SHELTER

            with SHELTER:
                self._metrics = gatherer.values()
        return self._metrics


def handle_for(session: TorchprofSession, item: pytest.Item) -> Torchprof:
    """The handle of one run of one test; inert where the test is not to be profiled."""
    from pytest_torchprof.session.accept import command_for

    gatherer = session.gatherer_of(item)
    return Torchprof(
        session.runner,
        gatherer,
        sources=session.sources,
        accept_command=command_for(item.config, item.nodeid),
        mute=item.config.getoption("capture", "fd") != "fd",
    )
