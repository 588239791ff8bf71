"""Collect the timed rounds of one test, and what else the machine did during them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

from pytest_torchprof.capture.busy import BusyWatch
from pytest_torchprof.capture.collecting import collect
from pytest_torchprof.capture.reference import Lap, conditions, run_reference
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.capture.watchdog import NEED_UNKNOWN, Need
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.samples import Sample
from pytest_torchprof.trace.facts import Facts, Quantity, ReferenceNote, RegionTimes

if TYPE_CHECKING:
    from pytest_torchprof.capture.stopwatch import LapTime, Round

#: A call this long needs no round of its own: the warm-up's time serves.
LONG_CALL_NS = 10_000_000_000

#: Limits for a test that spends its time on fixtures: this many rounds, or this many times the
#: requested seconds, fixtures included.
MOST_ROUNDS, MOST_TIMES = 10_000, 2

#: Runs of the reference kernel before a round; the first of several find cold caches.
_LAPS, _FIRST_LAPS = 3, 5
#: How long laps stay valid, so that short rounds can share them.
_LAPS_HOLD_NS = 10_000_000
#: Short tests share laps if their times only advise and are not being accepted.
_SHARED_LAPS_HOLD_NS = 100_000_000

#: More laps of a region are not stored one by one.
MOST_LAPS = 1_000

NO_ROUNDS = because(Why.NO_ROUNDS)


class RecentLaps:
    """The reference kernel's latest laps, of any test in the session."""

    def __init__(self) -> None:
        self._laps: tuple[Lap, ...] = ()
        self._ended_ns = 0

    def keep(self, laps: Iterable[Lap], ended_ns: int) -> None:
        """Replace the laps by newer ones."""
        self._laps, self._ended_ns = tuple(laps), ended_ns

    @property
    def laps(self) -> tuple[Lap, ...]:
        """The laps, if they ended recently enough."""
        return self._laps if REAL.clock() - self._ended_ns < _SHARED_LAPS_HOLD_NS else ()


@dataclass
class Rounds:
    """Collects rounds until there are enough.

    ``min_time_s``: their least total duration in seconds. ``time`` is what to do about a time
    difference: if nothing, the reference kernel does not run. Only a gate checks whether the
    machine was quiet, and runs rounds with ``threads`` intra-op threads (None: unchanged), because
    with several threads one process may take 1.8 times as long as another with the same code.
    """

    min_time_s: float = 0.0
    time: Literal["advisory", "gate", "off"] = "advisory"
    threads: int | None = None
    #: Whether laps of the test before may be used.
    shares: bool = False
    recent: RecentLaps = field(default_factory=RecentLaps)
    #: By how much the process grew in earlier runs, without the profiler.
    needs: Need = NEED_UNKNOWN
    timed: list[Round] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    busy: tuple[Reason, ...] = ()
    #: Threads of the rounds; a profiled run has one.
    _conditions: str = ""
    _watch: BusyWatch | None = None
    _began: int | None = None
    _spent_ns: int = 0
    _lap_ended: int = 0

    def __len__(self) -> int:
        return len(self.timed)

    def add(self, one: Round) -> None:
        """One more."""
        self.timed.append(one)
        self._spent_ns += one.wall_ns

    def needed(self, one: Need) -> None:
        """By how much the process grew in one more run without the profiler."""
        self.needs = self.needs.after(one)

    def watch(self) -> None:
        """Start watching what else runs on the machine."""
        self._watch = BusyWatch() if self.time == "gate" else None

    def before_round(self, *, collected: bool = False) -> None:
        """Run the reference kernel untimed; ``collected``: garbage was just collected."""
        if self._began is None:
            self._began = REAL.clock()
            self.watch()
        if not collected:
            collect(1)
        shared = self.recent.laps if self.shares and not self.laps else ()
        if shared:
            self.laps += shared
            return
        if self.time != "off" and REAL.clock() - self._lap_ended > _LAPS_HOLD_NS:
            made = run_reference(_LAPS if self.laps else _FIRST_LAPS)
            self.laps += made
            self._lap_ended = REAL.clock()
            if len(made) == _FIRST_LAPS:
                self.recent.keep(made, self._lap_ended)

    @property
    def gated_threads(self) -> int | None:
        """Intra-op threads of rounds whose times are stored for a gate."""
        return self.threads if self.time == "gate" else None

    @property
    def wants_more(self) -> bool:
        """Whether the requested time is not yet used up."""
        wanted = self.min_time_s * 1e9
        if not wanted or len(self.timed) >= MOST_ROUNDS:
            return False
        if self._began is not None and REAL.clock() - self._began > MOST_TIMES * wanted:
            return False
        return self._spent_ns < wanted and not self.has_long

    @property
    def has_long(self) -> bool:
        """Whether the last round was so long that no more are needed."""
        return bool(self.timed) and self.timed[-1].wall_ns > LONG_CALL_NS

    def end(self) -> None:
        """After the last round, find out what else ran on the machine."""
        if not self.timed or self.time == "off":
            return
        first_only = not self.laps  # the first run uses the test's own threads
        if first_only:
            self.laps += run_reference(_FIRST_LAPS)
        self._conditions = conditions(None if first_only else self.gated_threads)
        if self._watch is not None:
            self.busy, self._watch = self._watch.explain(), None

    def facts(self) -> Facts:
        """For the trace's metadata: a sample of each quantity, or why there is none."""
        if not self.timed:
            none = Quantity.of(NO_ROUNDS)
            return Facts(wall_ms=none, cpu_ms=none, instructions=none)
        return Facts(
            wall_ms=_quantity([one.wall_ns / 1e6 for one in self.timed]),
            cpu_ms=_quantity([one.cpu_ns / 1e6 for one in self.timed]),
            instructions=_quantity([one.instructions for one in self.timed]),
            reference=self._reference() if self.laps else None,
            regions=self._regions() or None,
        )

    def _regions(self) -> dict[str, RegionTimes]:
        names = dict.fromkeys(name for one in self.timed for name in one.laps)
        return {
            name: _region_times(name, [one.laps.get(name, ()) for one in self.timed])
            for name in names
        }

    def _reference(self) -> ReferenceNote:
        return ReferenceNote(
            wall_ms=min(lap.wall_ns for lap in self.laps) / 1e6,
            cpu_ms=min(lap.cpu_ns for lap in self.laps) / 1e6,
            n=len(self.laps),
            conditions=self._conditions,
            page_faults=min(one.page_faults for one in self.timed),
        )


def _region_times(name: str, rounds: Sequence[Sequence[LapTime | Reason]]) -> RegionTimes:
    """Times of a region from its laps in each round, or why there is none."""
    times = [[lap for lap in laps if not isinstance(lap, Reason)] for laps in rounds]
    gap = next((lap for laps in rounds for lap in laps if isinstance(lap, Reason)), None)
    if len({len(laps) for laps in rounds}) > 1:
        gap = because(Why.LAPS_DIFFER, name=name)
    if gap is not None:
        return RegionTimes(wall_ms=Quantity.of(gap), cpu_ms=Quantity.of(gap))
    return RegionTimes(
        wall_ms=_quantity([sum(lap.wall_ns for lap in laps) / 1e6 for laps in times]),
        cpu_ms=_quantity([sum(lap.cpu_ns for lap in laps) / 1e6 for laps in times]),
        count=len(times[0]),
        laps=tuple(
            (median(lap.wall_ns for lap in same) / 1e6, median(lap.cpu_ns for lap in same) / 1e6)
            for same in zip(*times, strict=True)
        )[:MOST_LAPS],
    )


def _quantity(values: Sequence[float | Reason]) -> Quantity:
    """A sample of the numbers; where there are none, the first reason."""
    known = [value for value in values if not isinstance(value, Reason)]
    gaps = [value for value in values if isinstance(value, Reason)]
    return Quantity.of(Sample.of(known) if known else gaps[0])
