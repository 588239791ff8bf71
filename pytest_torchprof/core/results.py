"""Values that the layers share: measurements, findings, budgets, verdicts and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.core.own_metrics import OwnMetric  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.reasons import Reason  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.samples import Normalised, Sample  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.scopes import SCOPES
from pytest_torchprof.core.structs import Frozen, Sendable

MetricStatus = Literal[
    "ok", "regressed", "improved", "new", "over_budget", "not_measured", "advisory"
]
TestStatus = Literal["ok", "regressed", "over_budget", "improved", "new", "not_profiled"]


class MissingValue(Frozen, frozen=True, omit_defaults=True, gc=False):
    """A metric without a value, and why; users see it as `NotMeasured`, with the reason in words.

    ``at_hand`` is a number that limits are checked against, but that is not compared with a
    baseline, since another run may differ. ``at_least``: it is a lower bound, so a limit below it
    is exceeded, and one above it is not checked.
    """

    reason: Reason
    at_hand: int | None = None
    at_least: bool = False


Number = int | float
Value = Number | MissingValue


@dataclass(frozen=True)
class Finding:
    """An anti-pattern match: the rule's code, count, place, fix, and cost.

    ``location`` is ``file:line`` in the user's code, or the path of operators if the line is
    unknown; ``path`` is that path, ``module`` the path of the first enclosing ``nn.Module``,
    ``modules`` the number of such modules, None if none is known. ``cost_ms`` and ``bytes`` are
    estimates for this run, None if unknown: the ms to gain, on the device if the trace has one, and
    bytes that are moved needlessly.
    ``accepted``: it fails no test, because the baseline or a marker (with ``reason``) accepts it.
    ``gated``: it is compared with a baseline; else it is advice, which no baseline accepts.
    """

    rule: str
    count: int
    message: str
    location: str | None = None
    fix: str = ""
    accepted: bool = False
    cost_ms: float | None = None
    bytes: int | None = None
    path: str | None = None
    module: str | None = None
    reason: str | None = None
    modules: int | None = None
    gated: bool = True


class Budget(Frozen, frozen=True):
    """Inclusive limits on one metric, for the whole test or a part of it.

    ``limit`` is the most, ``least`` the least. A part is what runs below operators, modules or
    regions of this name or glob, or are kernels of it; see `Events.within`. ``rules`` are the rules
    whose findings count, if not all. ``on``: the device, compute capability or device type where
    it is in force, if not everywhere. ``source``: where it stands, if not in a marker.
    ``unit``: that of the limits of a user's own metric, if they name one, canonical if it has a
    scale (`core.units.SCALES`); empty for the metric's. ``rank``: it limits one rank of the
    test alone, or another process; ``each``: it limits each of them.
    """

    metric: str
    limit: Number | None = None
    op: str | None = None
    module: str | None = None
    rules: tuple[str, ...] = ()
    kernel: str | None = None
    region: str | None = None
    least: Number | None = None
    on: str | None = None
    source: str = ""
    unit: str = ""
    rank: str | None = None
    each: bool = False

    @property
    def part(self) -> tuple[str, str] | None:
        """The kind of scope and its name or glob; None for all that runs."""
        named = ((kind, getattr(self, kind)) for kind in SCOPES)
        return next(((kind, name) for kind, name in named if name is not None), None)

    def tightened(self, other: Budget) -> Budget:
        """This budget with the limits of another one, too: the tighter of each.

        >>> Budget("ops", 5).tightened(Budget("ops", 3, least=1)).limit
        3
        """
        limits = [one.limit for one in (self, other) if one.limit is not None]
        leasts = [one.least for one in (self, other) if one.least is not None]
        return replace(
            self,
            limit=min(limits, default=None),
            least=max(leasts, default=None),
            source=self.source or other.source,
        )

    @property
    def scoped(self) -> bool:
        """Whether it limits only a part."""
        return self.part is not None or bool(self.rules) or self.rank is not None or self.each

    @property
    def label(self) -> str:
        """The metric with its scope, as reports name it: ``kernels[op=aten::mm]``."""
        parts = [] if self.part is None else ["=".join(self.part)]
        parts += (
            []
            if self.rank is None
            else [f"rank={self.rank}" if self.rank.isdecimal() else self.rank]
        )
        parts += ["each"] if self.each else []
        if parts:
            return f"{self.metric}[{','.join(parts)}]"
        return of_rules(self.metric, self.rules) if self.rules else self.metric


def named_rank(rank: str) -> str:
    """A rank, or another process of the test, in a sentence or a label.

    >>> named_rank("0"), named_rank("process 1")
    ('rank 0', 'process 1')
    """
    return f"rank {rank}" if rank.isdecimal() else rank


def of_rules(metric: str, rules: Iterable[str]) -> str:
    """The metric of these rules alone, as reports name it.

    >>> of_rules("findings", ["host-sync"])
    'findings[rule=host-sync]'
    """
    return f"{metric}[rule={','.join(rules)}]"


class Range(Sendable, frozen=True):
    """The accepted values of a metric that varies, both ends included."""

    low: Number
    high: Number

    @classmethod
    def of(cls, *values: Number) -> Range:
        """The smallest range that holds these values.

        >>> Range.of(3, 1, 2)
        Range(low=1, high=3)
        """
        return cls(min(values), max(values))


class Unstable(Sendable, frozen=True):
    """What two profiled runs of one test differ in.

    ``ranges`` are those of metrics, by label, with their ``units``, and ``operators`` those of
    operators' calls. ``drawn``: the seeds differed, and what the test draws depends on them.
    """

    ranges: Mapping[str, Range]
    units: Mapping[str, str]
    operators: Mapping[str, Range]
    drawn: bool


class Verdict(Frozen, frozen=True, omit_defaults=True, gc=False):
    """One metric of one test against its baseline and its limits, with the numbers.

    ``scope`` is its budget, if that covers only a part of the test. ``sample`` summarizes the
    repeated measurements whose median is the value. ``multiples``: the accepted and the new
    multiple of the reference kernel's time, if these were compared. ``at_least``: the value is a
    lower bound, and already over the limit or what was accepted. ``region``: it is of that one.
    ``source``: where the limit stands, if not in a marker. ``own``: what is declared of the metric,
    if it is the user's own. ``baseline_range``: what is accepted, if that varies.
    ``tolerance`` and ``margin``: the share and the amount by which it may differ.
    """

    metric: str
    value: Value
    status: MetricStatus
    baseline: Number | None = None
    limit: Number | None = None
    tolerance: float = 0.0
    reason: Reason | None = None
    sample: Sample | None = None
    multiples: tuple[float, float] | None = None
    at_least: bool = False
    scope: Budget | None = None
    least: Number | None = None
    region: str | None = None
    source: str = ""
    own: OwnMetric | None = None
    baseline_range: Range | None = None
    margin: float = 0.0

    @property
    def limited(self) -> bool:
        """Whether it has a limit, upper or lower."""
        return self.limit is not None or self.least is not None

    @property
    def is_below(self) -> bool:
        """Whether the value is below the lower limit, or what has the limit did not run."""
        if self.least is None:
            return False
        if isinstance(self.value, MissingValue):
            return self.status == "over_budget"
        return self.value < self.least

    @property
    def label(self) -> str:
        """The metric with its scope, as reports name it; in a region, after its name."""
        if self.region is not None:
            return f"{self.region}: {self.metric}"
        return self.metric if self.scope is None else self.scope.label


class RegionRecord(Sendable, frozen=True):
    """The result of a named region of a test; ``laps``: how often it was entered."""

    laps: int
    metrics: Mapping[str, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


class Record(Sendable, frozen=True, omit_defaults=True):
    """The result of one test, as workers send it and reports show it.

    ``metrics`` are the verdicts by label. ``unchecked`` maps unchecked rules to the reason.
    ``trace`` is the path of the kept trace file. ``outcome`` is pytest's, None until the test is
    over. ``strict``: it fails for ``--torchprof-strict`` alone. ``regions`` are those that the test
    has named. ``message``: with which the plugin failed the test. ``ranks`` are the metrics of each
    process, by rank or number, if there were several. ``unstable``: what a run with another seed
    differs in, if there was one. ``has_baseline``: of a test that was not measured.
    """

    nodeid: str
    status: TestStatus
    reason: Reason | None = None
    metrics: Mapping[str, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unchecked: Mapping[str, Reason] = field(default_factory=dict)
    trace: str | None = None
    outcome: str | None = None
    strict: bool = False
    regions: Mapping[str, RegionRecord] = field(default_factory=dict)
    message: str | None = None
    ranks: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    unstable: Unstable | None = None
    has_baseline: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether it passed, and was measured when it was accepted, but not now."""
        return self.has_baseline and self.outcome == "passed"


class Profile(Frozen, frozen=True):
    """What one test measured: metrics, operators, kernels and findings, all ready for JSON.

    ``found`` counts the matches, possibly 0, of each rule that was checked and that no marker
    allows; ``unchecked`` maps other rules to the reason; ``gated`` maps rules to the metric that
    is compared with the baseline in their place, if any. ``regions`` are the profiles of the test's
    named regions, each entered ``laps`` times. ``own`` are the metrics that the user has defined.
    ``ranks`` are those of each process, by rank or number, if the test has started any.
    """

    metrics: Mapping[str, Value]
    operators: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    found: Mapping[str, int] = field(default_factory=dict)
    unchecked: Mapping[str, Reason] = field(default_factory=dict)
    gated: Mapping[str, str] = field(default_factory=dict)
    scoped: Mapping[str, Value] = field(default_factory=dict)
    samples: Mapping[str, Sample] = field(default_factory=dict)
    normalised: Normalised | None = None
    regions: Mapping[str, Profile] = field(default_factory=dict)
    laps: int | None = None
    own: Mapping[str, OwnMetric] = field(default_factory=dict)
    ranks: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @property
    def compared(self) -> dict[str, int]:
        """The part of ``found`` that is compared rule by rule."""
        return {rule: count for rule, count in self.found.items() if rule not in self.gated}


#: Between the instruction sets of CPUs that have the same numbers.
CPU_SEPARATOR = ", "


class Baseline(Frozen, frozen=True):
    """The accepted numbers of one test in one environment, as stored.

    ``cpu_capability`` is the CPU's instruction set, where the numbers depend on it, or several.
    ``regions`` are those that the test has named, each entered ``laps`` times. ``own`` are the
    values of metrics that the user has defined; their times are in ``times``. ``unstable`` are the
    ranges of metrics that vary. ``seed`` is the one that a test was accepted with, if it uses
    random generators. Not stored are ``draws``: what it draws depends on the seed; and ``advises``:
    what lies outside of a range only advises.
    ``ranks`` are metrics of each process, by rank or number: they tell which changed the sum.
    ``chip`` is the one that bounds were estimated for.
    """

    metrics: Mapping[str, Number] = field(default_factory=dict)
    operators: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, Any] = field(default_factory=dict)
    cpu_capability: str | None = None
    regions: Mapping[str, Baseline] = field(default_factory=dict)
    laps: int | None = None
    own: Mapping[str, Number] = field(default_factory=dict)
    unstable: Mapping[str, Range] = field(default_factory=dict)
    seed: int | None = None
    draws: bool = False
    advises: bool = False
    ranks: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)
    chip: str | None = None
