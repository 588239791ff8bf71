"""The fixture `torchprof`: regions, comparisons, and their numbers."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import pytest

from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.session.stats import Stats, Unchecked
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from pytest_torchprof.baseline.inline import Sources
    from pytest_torchprof.capture.clock import Regions
    from pytest_torchprof.core.values import OwnMetric, Settings, Tolerance
    from pytest_torchprof.session.comparing import AbResult
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.runs import Run, Runner
    from pytest_torchprof.trace.events import Events


# ---- Named regions of a test: ``with torchprof("decode"):``, and their numbers.


class NamedRegions:
    """The named regions of one run of a test: which are open, and how often each was entered.

    They are checked in every run, also without profiling, so that a wrong name is found at once.
    """

    def __init__(self, gatherer: Gatherer | None) -> None:
        self._gatherer = gatherer
        #: What marks or times an open region, and whether the profiler sees it.
        self._open: dict[str, tuple[AbstractContextManager[object] | None, bool]] = {}
        self.laps: Counter[str] = Counter()

    def enter(self, name: str, run: Run | None) -> None:
        """A region begins.

        Raises:
            SettingsError: it is open already.
        """
        __tracebackhide__ = True
        if name in self._open:
            raise SettingsError(
                f"the region {name!r} is entered while it is open",
                "its numbers would count this part twice",
                "give the inner region another name",
            )
        self.laps[name] += 1
        if self._gatherer is not None:
            self._gatherer.asked.names_regions = True
        mark = run.mark(name) if run is not None else None
        captures = run is not None and run.captures
        if self._gatherer is not None and captures and mark is None:
            from pytest_torchprof.core.unknown import because

            gap = because(
                "region_elsewhere", "region {name} was entered in another thread", name=name
            )
            self._gatherer.asked.region_gaps.setdefault(name, gap)
        self._open[name] = mark, captures
        if mark is not None:
            mark.__enter__()

    def leave(self, name: str, error: type[BaseException] | None) -> None:
        """It ends, maybe with an error, so that its numbers are those of a part."""
        mark, captures = self._open.pop(name, (None, False))
        if mark is None or self._gatherer is None:
            return
        mark.__exit__(None if captures else error, None, None)
        # A generator may be closed as late as at the end of the process.
        if error is not None and captures and not sys.is_finalizing():
            from pytest_torchprof.core.unknown import Why, because

            reason = because(*Why.REGION_RAISED, name=name, error=error.__name__)
            self._gatherer.asked.region_gaps.setdefault(name, reason)

    @property
    def innermost(self) -> str | None:
        """The region that was entered last and is open."""
        return next(reversed(self._open), None)

    def check_known(self, name: str) -> None:
        """Check that there are numbers to ask for.

        Raises:
            SettingsError: the region was not entered in this run, or is open.
        """
        __tracebackhide__ = True
        if name in self._open:
            raise SettingsError(
                f"the region {name!r} has no numbers to compare",
                "this line is within the region",
                "move it behind the `with` block",
            )
        if name not in self.laps:
            known = near(name, self.laps) if self.laps else "No region was entered."
            raise SettingsError(f"there is no region {name!r}. {known}")


class NamedRegion:
    """``torchprof("decode")``: a region to enter, as often as one likes."""

    def __init__(self, regions: NamedRegions, name: str, run: Run | None) -> None:
        self._regions, self._name, self._run = regions, name, run

    def __enter__(self) -> Self:
        """Begin a lap of the region."""
        __tracebackhide__ = True
        self._regions.enter(self._name, self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        self._regions.leave(self._name, kind)


class RegionStats(Stats):
    """The numbers of a named region, each metric an attribute: ``torchprof["decode"].flops``.

    They compare, add, and multiply. Exact metrics are sums over the laps, and peaks the largest.
    In runs without numbers, every comparison holds.
    """

    def __init__(self, handle: Any, name: str, lap: int | None = None) -> None:
        super().__init__(lambda metric: handle.region_metric(name, metric, lap), handle.own_names)
        self._handle, self._name, self._lap = handle, name, lap

    def __repr__(self) -> str:
        lap = "" if self._lap is None else f", lap {self._lap}"
        return f"<region {self._name!r}{lap}>"

    @property
    def laps(self) -> list[RegionStats]:
        """The numbers of each lap, in order."""
        return [
            RegionStats(self._handle, self._name, lap)
            for lap in range(self._handle.region_laps(self._name))
        ]

    def table(self, sort_by: str = "self_cpu_ms", limit: int = 10) -> str:
        """Operators of the region as a text table; empty in runs without numbers.

        Raises:
            SettingsError: ``sort_by`` is not a column.
        """
        __tracebackhide__ = True
        shown: str = self._handle.region_table(self._name, self._lap, sort_by, limit)
        return shown

    def assert_expected_inline(self, expected: str) -> None:
        """Compare ``name value`` lines with the region; ``--accept`` rewrites the literal."""
        __tracebackhide__ = True
        caller = sys._getframe(1)  # noqa: SLF001 - what inspect.currentframe() is, one up
        self._handle.compare_region_inline(self._name, self._lap, expected, caller)


# ---- What a test records: ``torchprof.record("tokens_per_s", …)``, checked in every run alike.


class Records:
    """What one run of a test records; ``defined`` tells the names of metrics that hooks define.

    All is checked without profiling, too, so that a wrong call fails in each run.
    """

    def __init__(
        self, gatherer: Gatherer | None, defined: Callable[[], Collection[str]] | None
    ) -> None:
        self._gatherer = gatherer
        self._defined = defined
        self._known: dict[str, OwnMetric] = {}

    @property
    def names(self) -> Collection[str]:
        """The names of the metrics that this run has recorded, or that hooks define."""
        return {*self._known, *(self._defined() if self._defined is not None else ())}

    def add(
        self,
        name: object,
        value: object,
        declaration: tuple[str, str, str],
        region: str | None,
        run: Run | None,
        *,
        kept: bool,
    ) -> None:
        """Record a value; ``declaration`` has the unit, what is better, and how to compare.

        Raises:
            SettingsError: an argument is invalid, the name is another metric's, or an earlier call
                has declared something else.
        """
        __tracebackhide__ = True
        from pytest_torchprof.core.values import declared, number_of

        known = self._known.get(name) if isinstance(name, str) else None
        if known is None or (known.unit, known.better, known.compare) != declaration:
            defined = self._defined() if self._defined is not None else ()
            made = declared(name, *declaration, taken=(*METRICS, *defined), recorded=True)
            if known is not None:
                raise _contradiction(known, made)
            known = self._known[made.name] = made
        number = value.why if isinstance(value, Unchecked) else number_of(value, known.name)
        if kept and self._gatherer is not None:
            self._gatherer.recordings.note(run, region, known, number)


def _contradiction(known: OwnMetric, made: OwnMetric) -> SettingsError:
    what = next(one for one in ("unit", "better", "compare") if _of(known, one) != _of(made, one))
    return SettingsError(
        f"{known.name} is recorded twice with another {what}",
        f"first {_of(known, what)!r}, then {_of(made, what)!r}",
        "make them equal, or give one another name",
    )


def _of(metric: OwnMetric, what: str) -> str:
    value: str = getattr(metric, what)
    return value


# ---- What the ``torchprof`` fixture tells of the measured numbers: metrics, tables,
# expectations.


class Numbers:
    """The numbers of one run of a test; in runs without any, every comparison holds."""

    def __init__(
        self,
        runner: Runner | None,
        gatherer: Gatherer | None,
        sources: Sources | None,
        accept_command: str,
        defined: Callable[[], Collection[str]] | None = None,
        tolerances: Sequence[Tolerance] = (),
    ) -> None:
        self._runner = runner
        self._gatherer = gatherer
        #: The source of test files, while accepting.
        self._sources = sources
        self._accept_command = accept_command
        self._tolerances = tolerances
        #: Within the region, which has no numbers before its end.
        self._is_open = False
        #: There was another region without a name, so there are no numbers.
        self._several = False
        self._metrics: dict[str, Any] | None = None
        self._named = NamedRegions(gatherer)
        self._records = Records(gatherer, defined)
        #: The call of a measured callable that runs now.
        self._inner: Run | None = None

    @property
    def _run(self) -> Run | None:
        """What runs now: a call of a measured callable, or the test."""
        return self._inner or (self._runner.run if self._runner else None)

    def __getitem__(self, name: str) -> RegionStats:
        """The numbers of a named region.

        Raises:
            SettingsError: this run did not enter it, or is still within.
        """
        __tracebackhide__ = True
        self._named.check_known(name)
        return RegionStats(self, name)

    @property
    def stats(self) -> Stats:
        """Measured metrics by name."""
        return Stats(self.metric, self.own_names)

    def own_names(self) -> Collection[str]:
        """The names of metrics that the test has recorded in this run, or that hooks define."""
        return self._records.names

    def table(self, sort_by: str = "self_cpu_ms", limit: int = 10) -> str:
        """Operators of the measured region as a text table; empty in unprofiled runs.

        If the profiled run prints it, it is shown after the first run's output.

        Raises:
            SettingsError: ``sort_by`` is not a column.
        """
        __tracebackhide__ = True
        return self._table(sort_by, limit)

    def region_table(self, name: str, lap: int | None, sort_by: str, limit: int) -> str:
        """The same for a named region; `RegionStats.table` calls it."""
        __tracebackhide__ = True
        from pytest_torchprof.verdict.profile import view_of

        self._named.check_known(name)
        if self._gatherer is None:
            return ""
        if not self._has_numbers():
            self._gatherer.asked.table_asked = True
            self._note_early(f"{name}: table", compared=False)
            return ""

        return self._table(sort_by, limit, lambda trace: view_of(trace, name, lap))

    def _table(
        self, sort_by: str, limit: int, part: Callable[[Events], Events] = lambda trace: trace
    ) -> str:
        __tracebackhide__ = True
        gatherer = self._gatherer
        if gatherer is None:
            return ""

        from pytest_torchprof.render.table import OPS_COLUMNS, ops_table

        if sort_by not in OPS_COLUMNS:
            raise SettingsError(f"there is no column {sort_by!r}. {near(sort_by, OPS_COLUMNS)}")
        self._check_ended("to show")
        gatherer.asked.table_asked = True
        if gatherer.trace is None:
            return ""
        text = ops_table(part(gatherer.trace), sort_by, limit)
        gatherer.asked.table_asked = True
        gatherer.asked.tables.append(text)
        return text

    def assert_expected_inline(self, expected: str) -> None:
        """Compare ``name value`` lines with what was measured; ``--accept`` rewrites the literal.

        Empty text is filled with FLOPs and operators; add a line for any other metric.
        """
        __tracebackhide__ = True
        if self._gatherer is None:
            return

        caller = sys._getframe(1)  # noqa: SLF001 - what inspect.currentframe() is, one up
        self._compare_inline(expected, caller, self._gatherer, self._values)

    def compare_region_inline(
        self, name: str, lap: int | None, expected: str, caller: FrameType
    ) -> None:
        """The same for a named region; `RegionStats.assert_expected_inline` calls it."""
        __tracebackhide__ = True
        self._named.check_known(name)
        gatherer = self._gatherer
        if gatherer is None:
            return

        def values() -> Mapping[str, Any] | None:
            gatherer.asked.stats_asked = True
            if self._has_numbers():
                return gatherer.region_values(name, lap)
            self._note_early(f"{name}: inline expectation")
            return None

        self._compare_inline(expected, caller, gatherer, values, f"{name}: ")

    def _compare_inline(
        self,
        expected: str,
        caller: FrameType,
        gatherer: Gatherer,
        measured: Callable[[], Mapping[str, Any] | None],
        prefix: str = "",
    ) -> None:
        __tracebackhide__ = True
        from pytest_torchprof.baseline.inline import (
            DEFAULT_METRICS,
            expected_metrics,
            holds,
            located,
            refusal,
            render_inline,
            unknown_now,
        )
        from pytest_torchprof.core.values import MissingValue
        from pytest_torchprof.render import escape

        names = expected_metrics(expected)
        values = measured()
        if values is None:
            return
        missing = [name for name in names if isinstance(values[name], MissingValue)]
        gatherer.asked.read_stats(*(f"{prefix}{one}" for one in missing))
        if holds(expected, values, self._tolerances):
            return
        if self._sources is not None:
            unknown = unknown_now(expected, values)
            left = [name for name in names if name not in unknown]
            names = left or [name for name in DEFAULT_METRICS if name not in unknown]
        actual = render_inline(values, names, expected, self._tolerances)
        if not actual:  # nothing to compare or to write
            return
        if self._sources is not None:
            gatherer.asked.edits.append(located(caller, actual, expected, self._sources))
            return
        from pytest_torchprof.render.failure import inline_changes, inline_mismatch
        from pytest_torchprof.session.verdicts import OwnFailure

        message = inline_mismatch(expected, actual, self._accept_command, refusal(caller, expected))
        changes = inline_changes(expected, actual).items()
        # Not empty, even if it expects no metric that there is: that of other comparisons is.
        told = {"": ""} | {f"{prefix}{name}": old for name, (old, _) in changes}
        gatherer.asked.mismatch = told
        raise OwnFailure(escape.block(message))

    def metric(self, name: str) -> Any:
        """One measured metric, or an `Unchecked`; `stats` reads it."""
        __tracebackhide__ = True
        from pytest_torchprof.core.unknown import Why, because
        from pytest_torchprof.core.values import MissingValue

        values = self._values()
        if values is None or self._gatherer is None:
            return Unchecked(because(*Why.RUN_NOT_PROFILED))
        if name in self.own_names():
            missing = MissingValue(because(*Why.WAS_NOT_MEASURED))
            value = self._gatherer.values().get(name, missing)
        elif name in values:
            value = values[name]
        else:
            value = self._on_request(name)
        if not isinstance(value, MissingValue):
            self._gatherer.asked.read_stats()
            return value
        self._gatherer.asked.read_stats(name)
        return Unchecked(value.reason)

    def _on_request(self, name: str) -> Any:
        """A metric that is measured only for tests that ask for it, as this one does now."""
        from pytest_torchprof.core.unknown import Why, because
        from pytest_torchprof.core.values import MissingValue
        from pytest_torchprof.verdict.metrics import METRICS, measure

        trace = None if self._gatherer is None else self._gatherer.trace
        if trace is None:
            return MissingValue(because(*Why.WAS_NOT_MEASURED))
        return measure(METRICS[name], trace)

    def region_metric(self, name: str, metric: str, lap: int | None) -> Any:
        """One metric of a named region, or an `Unchecked`; `RegionStats` reads it."""
        __tracebackhide__ = True

        from pytest_torchprof.core.unknown import Why, because

        self._named.check_known(name)
        gatherer, label = self._gatherer, f"{name}: {metric}"
        if gatherer is None:
            return Unchecked(because(*Why.RUN_NOT_PROFILED))
        gatherer.asked.stats_asked = True
        if not self._has_numbers():
            self._note_early(label)
            return Unchecked(because(*Why.RUN_NOT_PROFILED))

        from pytest_torchprof.core.values import MissingValue, Source, region_number
        from pytest_torchprof.verdict.metrics import METRICS

        own = gatherer.own(metric) if metric not in METRICS else None
        values = gatherer.region_values(name, lap)
        missing = MissingValue(because(*Why.NOT_RECORDED_IN, name=metric, region=name))
        value = values.get(metric, missing)
        if isinstance(value, MissingValue):
            gatherer.asked.read_stats(label)
            return Unchecked(value.reason)
        gatherer.asked.read_stats()
        source = Source(gatherer, name, metric, lap)
        unit = METRICS[metric].unit if own is None else own.unit
        return region_number(value, unit, str(source), source)

    def region_laps(self, name: str) -> int:
        """How often this run entered a named region, or the call that was measured."""
        if self._gatherer is not None and self._has_numbers():
            return self._gatherer.laps_of(name)
        return self._named.laps[name]

    def _has_numbers(self) -> bool:
        """Whether the numbers of named regions are known now: not before their capture is over."""
        captures = self._run is not None and self._run.captures
        return self._gatherer is not None and self._gatherer.trace is not None and not captures

    def _note_early(self, label: str, *, compared: bool = True) -> None:
        if self._run is not None and self._run.captures and self._gatherer is not None:
            self._gatherer.asked.early[label] = compared

    def _values(self) -> dict[str, Any] | None:
        __tracebackhide__ = True
        gatherer = self._gatherer
        if gatherer is None:
            return None
        gatherer.asked.stats_asked = True
        self._check_ended("to compare")
        if (
            self._runner
            and self._runner.run
            and not gatherer.asked.own_region
            and not gatherer.reason
        ):
            # Without a region there are never numbers, so every assertion would pass.
            raise SettingsError(
                "the torchprof fixture has no numbers to compare",
                "no region of this test was measured before this line",
                "put the work into `with torchprof:`, or call torchprof(function)",
            )
        if gatherer.trace is None:
            return None
        if self._metrics is None:
            self._metrics = gatherer.values()
        return self._metrics

    def _check_ended(self, purpose: str) -> None:
        """Reject a question that no run would answer.

        Raises:
            SettingsError: the region is open, or it is not the only one.
        """
        __tracebackhide__ = True
        if self._several:
            raise SettingsError(
                f"the torchprof fixture has no numbers {purpose}",
                "the test measures more than one region without a name",
                'name them, as in `with torchprof("decode"):`',
            )
        if self._is_open:
            raise SettingsError(
                f"the torchprof fixture has no numbers {purpose}",
                "this line is within the measured region",
                "move it behind the `with` block, or behind the call of torchprof(function)",
            )


# ---- The ``torchprof`` fixture: measures a block or a callable, and gives its numbers.

_Result = TypeVar("_Result")


class Torchprof(Numbers):
    """The value of the ``torchprof`` fixture. Without profiling it does nothing."""

    def __init__(
        self,
        runner: Runner | None = None,
        gatherer: Gatherer | None = None,
        *,
        sources: Sources | None = None,
        accept_command: str = "",
        tolerances: Sequence[Tolerance] = (),
        mute: bool = False,
        defined: Callable[[], Collection[str]] | None = None,
    ) -> None:
        super().__init__(runner, gatherer, sources, accept_command, defined, tolerances)
        self._mute = mute
        self._entered = False
        #: The number of runs so far when a block began outside the call phase.
        self._began_outside: int | None = None

    # ---------------------------------------------------------------- measuring

    def __enter__(self) -> Self:
        """Begin the measured region; code outside it is not measured."""
        __tracebackhide__ = True
        if self._regions is not None:
            self._regions.enter()
            return self
        run = self._runner.run if self._runner else None
        if self._gatherer is None:
            return self
        if run is None:
            self._began_outside = self._gatherer.runs
            return self
        if self._taken() or run.is_bound:
            return self
        run.cancel()
        self._gatherer.asked.own_region = True
        self._entered = self._is_open = True
        run.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it; from here on, `stats` has values in the profiled run."""
        if self._regions is not None:
            self._regions.leave()
            return
        run = self._runner.run if self._runner else None
        # A fixture may yield within its block, which then holds the whole call phase.
        if run is None and self._gatherer and self._began_outside == self._gatherer.runs:
            self._refuse_outside()
        self._began_outside = None
        if run is None or not self._entered:
            return
        self._is_open = False
        if kind is None:
            run.end()
            run.gatherer.settle()  # the test may ask for its numbers now
        else:
            self._left_with(kind, run)

    @overload
    def __call__(self, what: str, /) -> NamedRegion: ...
    @overload
    def __call__(
        self,
        what: Callable[[], _Result],
        /,
        *,
        rounds: int | None = None,
        warmup: int | None = None,
        min_time: float | None = None,
    ) -> _Result: ...
    def __call__(self, what: Any, /, **counts: Any) -> Any:
        """A named region to enter, ``with torchprof("decode"):``, or a callable to measure.

        Raises:
            SettingsError: a region without a name.
        """
        __tracebackhide__ = True
        if isinstance(what, str):
            if counts or not what.strip() or "\n" in what:
                raise SettingsError(
                    f"torchprof({what!r}) is no named region",
                    "it has further arguments" if counts else "its name is empty or has lines",
                    'write `with torchprof("decode"):`',
                )
            return NamedRegion(self._named, what, self._run)
        return self.measure_function(what, **counts)

    def measure_function(
        self,
        function: Callable[[], _Result],
        *,
        rounds: int | None = None,
        warmup: int | None = None,
        min_time: float | None = None,
    ) -> _Result:
        """Measure a callable in this one run: warm-up calls, timed calls, a profiled call.

        Timed calls repeat for at least ``min_time`` seconds. Returns the last result.
        Raises ValueError for negative counts, and whatever the callable raises.
        """
        __tracebackhide__ = True
        counts: dict[str, Any] = {"rounds": rounds, "warmup": warmup}
        for name, count in counts.items():
            if count is not None and not (isinstance(count, int) and count >= 0):
                raise ValueError(f"{name} must be a whole number of 0 or more, not {count!r}")
        if min_time is not None and not 0 <= min_time < math.inf:
            raise ValueError(f"min_time must be a number of seconds, 0 or more, not {min_time!r}")
        if self._regions is not None:
            return self._regions.call(function)
        outer = self._runner.run if self._runner else None
        gatherer = self._gatherer
        if outer is None:
            self._refuse_outside()
        if outer is None or gatherer is None or gatherer.reason is not None or self._taken():
            return function()
        if outer.is_bound:
            return function()
        if outer.kind == "pairs":  # an earlier run has measured it
            return function()
        from pytest_torchprof.capture.patches import muted
        from pytest_torchprof.session.plan import EXTRA_KINDS
        from pytest_torchprof.session.runs import Run

        outer.cancel()
        gatherer.asked.own_region = gatherer.asked.complete = True
        gatherer.recordings.count_calls()
        gatherer.replan(gatherer.plan.with_counts(warmup=warmup, rounds=rounds, min_time=min_time))
        for kind in gatherer.runs_of(gatherer.plan.kinds):
            run = Run(kind, gatherer, first=False)
            # The user did not ask for the profiled call, and torch's profiler writes output too.
            extra = self._mute and kind not in ("warmup", "round")
            with muted(1, 2) if extra else nullcontext():
                if kind in EXTRA_KINDS:
                    self._again(function, run)
                else:
                    result = self._measure(function, run)
        self._entered = True
        return result

    def record(
        self,
        name: str,
        value: Any,
        unit: str = "1",
        better: Literal["lower", "higher"] = "lower",
        compare: Literal["exact", "near", "time", "never"] = "time",
    ) -> None:
        """Record a metric of one's own, of the innermost open named region, or else of the test.

        ``compare``: ``time``, for all that depends on time, is the median over timed rounds, and
        only advises; ``exact`` and ``near``, within 1 %, are the last value of the profiled
        run, or else of the first; ``never`` is taken like a time, and not stored. ``value`` is a
        number, or has one element.

        Raises:
            SettingsError: an argument is invalid, the name is another metric's, or an earlier call
                has declared something else; with and without ``--torchprof``.
        """
        __tracebackhide__ = True
        declaration = unit, better, compare
        kept = self._regions is None
        self._records.add(name, value, declaration, self._named.innermost, self._run, kept=kept)

    def ab(
        self,
        a: Callable[..., object],
        b: Callable[..., object],
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], tuple[Any, ...]] | None = None,
        min_time: float = 1.0,
        threshold: float | str = 0.02,
        timeout: float = 60.0,
    ) -> AbResult:
        """Compare the times of two callables, called in turn in a run of their own.

        Up to ``min_time`` seconds each, as `torchprof ab` does; smaller changes than ``threshold``
        are ignored. ``setup`` makes fresh ``args`` for each call, untimed. Every other run, and one
        without ``--torchprof``, calls each once, and all comparisons of the result hold.

        Raises:
            SettingsError, UnitError: invalid arguments. Whatever a callable raises passes through,
            and the test fails if one takes longer than ``timeout`` seconds.
        """
        __tracebackhide__ = True
        from pytest_torchprof.session.comparing import compare, wanted

        if self._regions is None and (self._runner is None or self._runner.run is None):
            self._refuse_outside()
        made = wanted(a, b, args, kwargs, setup, min_time, threshold, timeout)
        return compare(made, self._runner, self._gatherer)

    @property
    def _regions(self) -> Regions | None:
        return self._runner.regions if self._runner else None

    def _measure(self, function: Callable[[], _Result], run: Run) -> _Result:
        __tracebackhide__ = True
        if run.kind in ("round", "alone"):
            run.gatherer.rounds.before_round()
        run.begin()
        self._is_open, self._inner = True, run
        try:
            result = function()
        except BaseException as error:
            self._left_with(type(error), run)
            raise
        finally:
            self._is_open, self._inner = False, None
        run.end()
        run.gatherer.settle()
        return result

    def _again(self, function: Callable[[], Any], run: Run) -> None:
        """A call for an extra run, whose errors are ignored."""
        from pytest_torchprof.core.unknown import because

        with run.gatherer.extra():
            try:
                self._measure(function, run)
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001
                kind = type(error).__name__
                run.gatherer.refuse(
                    because("call_raised", "it raised {error} when run once more", error=kind)
                )

    def _left_with(self, kind: type[BaseException], run: Run) -> None:
        run.cancel()
        if self._gatherer is not None:
            self._gatherer.asked.raised = kind.__name__

    def _refuse_outside(self) -> None:
        """Refuse a region in a fixture, which no run of the test measures."""
        if self._gatherer is not None:
            from pytest_torchprof.core.unknown import because

            self._gatherer.refuse(
                because(
                    "region_outside_call",
                    (
                        "a fixture measured a region before or after the test itself; measure in "
                        "the test, or yield within the fixture's block"
                    ),
                ),
                timed=False,
            )

    def _taken(self) -> bool:
        """Whether this test has measured a region already; only one is supported.

        Raises:
            SettingsError: its numbers were asked for, and there will be none.
        """
        __tracebackhide__ = True
        from pytest_torchprof.core.unknown import because

        if not self._entered or self._gatherer is None:
            return False

        self._gatherer.refuse(
            because("two_regions", "the test measures more than one region through the fixture"),
            timed=False,
        )
        self._several = True
        if self._gatherer.asked.stats_asked:
            self._check_ended("to compare")
        return True


# ---- The ``torchprof`` fixture's value for one run of one test.


class ProfilingSession(Protocol):
    """What the fixture needs from the plugin object that profiles tests."""

    @property
    def runner(self) -> Runner:
        """What runs the tests."""

    @property
    def sources(self) -> Sources | None:
        """The source of test files, while accepting."""

    @property
    def settings(self) -> Settings:
        """The session's settings."""

    def gatherer_of(self, item: pytest.Item) -> Gatherer | None:
        """The test's gatherer; None if it is not being profiled."""


def handle_for(session: ProfilingSession, item: pytest.Item) -> Torchprof:
    """The handle for one run of one test; inert if the test is not profiled."""
    from pytest_torchprof.session.known import names_for
    from pytest_torchprof.session.verdicts import command_for

    gatherer = session.gatherer_of(item)
    return Torchprof(
        session.runner,
        gatherer,
        sources=session.sources,
        tolerances=session.settings.tolerances,
        accept_command=command_for(item.config, item.nodeid),
        defined=names_for(item),
        mute=item.config.getoption("capture", "fd") != "fd",
    )
