"""The values that all layers share: measured numbers, verdicts, samples, scopes, settings."""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import field as struct_field
from msgspec.structs import replace

from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.core.records import Frozen, Sendable
from pytest_torchprof.core.scopes import SCOPES
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.core.unknown import Reason  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self


# ---- Repeated measurements of one number: how many, and how far apart.

#: A spread above this is noisy.
NOISY = 0.1

#: Of more values than these, only the quartiles are kept: they say as much.
MOST_ROUNDS = 100

#: Metrics of rounds that are compared as multiples of the reference kernel's time.
NORMALISED = ("wall_ms", "cpu_ms")


class Sample(Frozen, frozen=True):
    """Measured values of one quantity, in its unit: their number and quartiles.

    ``low`` and ``high`` are the first and the third quartile. ``rounds`` are the values in the
    order in which they were measured, if there are several and at most `MOST_ROUNDS`.
    """

    n: int
    median: float
    low: float
    high: float
    minimum: float
    rounds: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Summarize one or more values; raises ValueError for none."""
        import numpy as np  # not of what a plain run of pytest loads

        column = np.fromiter(values, np.float64)
        if not len(column):
            raise ValueError("a sample needs at least one value")
        if len(column) == 1:  # the usual case, and quantiles are slow
            return cls(1, *column.tolist() * 4)
        low, median, high = np.quantile(column, (0.25, 0.5, 0.75)).tolist()
        kept = tuple(column.tolist()) if len(column) <= MOST_ROUNDS else ()
        return cls(len(column), median, low, high, float(column.min()), kept)

    def scaled(self, factor: float) -> Sample:
        """The same sample in another unit."""
        return Sample(
            self.n,
            self.median * factor,
            self.low * factor,
            self.high * factor,
            self.minimum * factor,
            tuple(value * factor for value in self.rounds),
        )

    @property
    def spread(self) -> float | None:
        """Half the quartile distance, relative to the median; None for a single value."""
        if self.n < 2 or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median

    @property
    def noisy(self) -> bool:
        """Whether a reader should be warned."""
        return self.spread is not None and self.spread > NOISY


class Normalised(Frozen, frozen=True):
    """The fastest round, divided by the fastest run of the reference kernel between the rounds.

    ``values`` by metric, from ``n`` rounds; the kernel's own wall time, and the ``conditions``
    that, like the machine, must be equal to compare two. ``page_faults``: the fewest in a round.
    ``own``: the same of times and rates that the test records; of a rate, the highest times the
    kernel's time. ``others``: the least share of a round's CPU time that other threads took.
    ``thread``: the test's own thread's CPU time in the fastest round, if known.
    ``one_thread``: the least CPU time of ``more`` rounds that have one intra-op thread, if any.
    ``kernel_ms``: the kernel's own CPU time, if known.
    """

    values: Mapping[str, float]
    n: int
    reference_ms: float
    conditions: str
    page_faults: int = 0
    own: Mapping[str, float] = struct_field(default_factory=dict)
    others: float = 0.0
    thread: float | None = None
    one_thread: float | None = None
    more: int = 0
    kernel_ms: float | None = None

    @property
    def cpu(self) -> float | None:
        """CPU time, if possible of one thread: several wait for each other in a loop."""
        return self.one_thread or self.values.get("cpu_ms")

    def ms(self, multiple: float) -> float:
        """A multiple of the kernel's CPU time, at the speed at which it ran."""
        return multiple * (self.kernel_ms or self.reference_ms)

    def stored(self) -> dict[str, Any]:
        """As stored in a baseline, on one line."""
        rounded: dict[str, Any] = {name: round(value, 6) for name, value in self.values.items()}
        if self.own:
            rounded["own"] = dict(self.own)
        if self.one_thread is not None:
            rounded["one_thread"] = round(self.one_thread, 6)
        return {
            **rounded,
            "conditions": self.conditions,
            "n": self.n,
            "page_faults": self.page_faults,
            "reference_ms": round(self.reference_ms, 6),
        }

    @classmethod
    def read(cls, stored: object) -> Normalised | None:
        """Read from a baseline; None if missing or invalid."""
        if not isinstance(stored, Mapping):
            return None
        values = {name: stored[name] for name in NORMALISED if is_positive(stored.get(name))}
        n, reference, conditions = (stored.get(k) for k in ("n", "reference_ms", "conditions"))
        if not values or not isinstance(n, int) or not is_positive(reference):
            return None
        faults = stored.get("page_faults")
        faults = faults if isinstance(faults, int) else 0
        own = stored.get("own")
        own = own if isinstance(own, Mapping) else {}
        kept = {str(name): value for name, value in own.items() if is_positive(value)}
        alone = stored.get("one_thread")
        found = cls(values, n, float(reference), str(conditions), faults, kept)  # type: ignore[arg-type]
        return replace(found, one_thread=alone) if is_positive(alone) else found


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and 0 < value < math.inf


# ---- Metrics that users define: what they declare of one, and the numbers that they may give.
#
# A test may record numbers without profiling, so this loads nothing.

Better = Literal["lower", "higher"]
Compare = Literal["exact", "near", "time", "never"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "better": ("lower", "higher"),
    "compare": ("exact", "near", "time", "never"),
}
#: Attributes of a region's numbers, keys beside times in a baseline, and an argument of markers.
_RESERVED = frozenset(
    {"laps", "table", "assert_expected_inline", "machine", "normalised", "metric", "own"}
)
_LONGEST_UNIT = 20
#: Beyond this, a baseline holds no number.
_LARGEST = 2**63 - 1


class OwnMetric(Sendable, frozen=True):
    """A metric that a test records, or that a user's function finds in a trace.

    ``unit`` is any text; empty where only a limit names the metric. ``compare``: ``exact`` must
    equal the baseline, ``near`` may differ by 1 %, ``time`` follows ``--torchprof-time``, and
    ``never`` is not stored. ``recorded``: by the test, not found in a trace.
    """

    name: str
    unit: str = "1"
    better: Better = "lower"
    compare: Compare = "exact"
    recorded: bool = False


def declared(
    name: object,
    unit: object,
    better: object,
    compare: object,
    *,
    taken: Collection[str],
    recorded: bool = False,
) -> OwnMetric:
    """The metric that a user declares; ``taken`` are the names of others.

    Raises:
        SettingsError: an argument is invalid, or the name is taken.
    """
    __tracebackhide__ = True  # of a test, which passes them
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise SettingsError(
            f"a metric cannot be named {_shown(name)}",
            "it is not an identifier",
            'name it like a variable, "tokens_per_s"',
        )
    if name in taken or name in _RESERVED:
        raise SettingsError(
            f"a metric of one's own cannot be named {name!r}",
            "torchprof has a meaning for this name" if name in _RESERVED else "it is taken",
            "give it another name",
        )
    if not isinstance(unit, str) or not unit or len(unit) > _LONGEST_UNIT or unit.split() != [unit]:
        raise SettingsError(
            f"{name}: {_shown(unit)} is not a unit",
            "a unit is a short text without spaces",
            'write unit="1/s", or "1" for a plain number',
        )
    for what, given in {"better": better, "compare": compare}.items():
        if given not in _CHOICES[what]:
            known = ", ".join(_CHOICES[what])
            hint = near(str(given), _CHOICES[what], listed=True)
            raise SettingsError(f"{name}: {what}={_shown(given)} is not one of {known}", "", hint)
    return OwnMetric(name, unit, better, compare, recorded)  # type: ignore[arg-type]


def number_of(value: Any, name: str) -> int | float:
    """The number that a user gives for a metric; of a tensor or an array, its only element.

    Raises:
        SettingsError: it is no finite number.

    >>> number_of(3, "tokens"), number_of(0.5, "loss")
    (3, 0.5)
    """
    __tracebackhide__ = True
    kind = type(value)
    found = ""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        found = "it is a truth value"
    elif not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        found = f"{kind.__name__} is not a number"
    else:
        try:
            number = _plain(value)
        except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError) as error:
            found = str(error).partition("\n")[0] or type(error).__name__
        else:
            if -_LARGEST <= number <= _LARGEST:
                return number
            endless = number != number or number in (float("inf"), float("-inf"))  # noqa: PLR0124
            found = "it is not finite" if endless else "it is too large"
    raise SettingsError(
        f"{name} cannot be {_shown(value)}", found, "record a finite number, such as seconds"
    )


def _plain(value: Any) -> int | float:
    """An int if it is whole by its type, otherwise a float."""
    if hasattr(type(value), "plain"):  # a number of a region
        value = value.plain()
    elif hasattr(value, "dtype") and hasattr(value, "item"):  # of a tensor or an array
        value = value.item()
    if isinstance(value, float):
        return float(value)
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _shown(value: object) -> str:
    """A value in a message, shortened; one that cannot be shown has its type."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print the largest
    return " ".join(reprlib.repr(value).split())


# ---- Values that the layers share: measurements, findings, budgets, verdicts and records.

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
    ``listed``: reports show it, and not only the JSON report; see `verdict.findings.is_listed`.
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
    listed: bool = True


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


# ---- What explains a test's numbers: which operators each function of the user calls.


class DetailRow(Sendable, frozen=True, array_like=True):
    """What the calls of one operator in one function do that compute; ``share``: of CPU time.

    ``function`` is ``path/to/file.py::Class.method``, empty where it is unknown; ``operator`` is
    the one that the function calls, and ``dtype`` the widest that it computes in. ``texts``: how
    many of the calls are on a line, by a digest of its text.
    """

    function: str
    operator: str
    dtype: str = ""
    calls: int = 0
    flops: int = 0
    bytes: int = 0
    share: float = 0.0
    texts: Mapping[str, int] = {}

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from other rows."""
        return self.function, self.operator, self.dtype


class HeldRow(Sendable, frozen=True, array_like=True):
    """Bytes that one operator of one function allocated, those live at the peak, those left."""

    function: str
    operator: str
    allocated: int
    peak: int
    left: int


class Detail(Sendable, frozen=True, omit_defaults=True):
    """The rows of a test, and how often each function began: by callee and then by caller.

    ``grad``: by function, how many of its calls ran where autograd records; None if unknown.
    """

    rows: tuple[DetailRow, ...] = ()
    runs: Mapping[str, int] = struct_field(default_factory=dict)
    calls: Mapping[str, Mapping[str, int]] = struct_field(default_factory=dict)
    held: tuple[HeldRow, ...] = ()
    grad: Mapping[str, int] | None = None


CauseOf: TypeAlias = Literal[
    "runs_more_often",
    "new_operators",
    "larger_inputs",
    "other_dtype",
    "kept_memory",
    "loader",
    "compilation",
    "finding",
    "slower",
    "unknown",
]


#: Kind, place, and what tells those of one place, or of none, apart.
CauseKey: TypeAlias = tuple[str, str | None, int | None, str | None, str]


def cause_key(
    kind: str, file: str | None, line: int | None, finding: str | None, message: str
) -> CauseKey:
    """What the same cause in another test has in common with it."""
    words = "" if line else "".join(one for one in message if not one.isdigit())
    return kind, file, line, finding if kind in ("finding", "compilation") else None, words


class Cause(Sendable, frozen=True, omit_defaults=True):
    """What changed in the user's code, and where; ``line`` 0 where it is unknown.

    ``metrics``: how much of each change it accounts for, in the metric's unit. ``evidence``: lines
    that show it. ``fix`` is that of the ``finding``, a rule's code.
    """

    kind: CauseOf
    message: str
    file: str | None = None
    line: int = 0
    function: str | None = None
    metrics: Mapping[str, Number] = struct_field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    finding: str | None = None
    fix: str | None = None

    @property
    def key(self) -> CauseKey:
        """What the same cause in another test has in common with it."""
        return cause_key(self.kind, self.file, self.line, self.finding, self.message)

    @property
    def place(self) -> str | None:
        """``file:line``, None where it is unknown."""
        return None if self.file is None else f"{self.file}:{self.line}" if self.line else self.file

    @property
    def headline(self) -> str:
        """``model.py:59 (Block.forward): clone ×6 is new``."""
        function = f" ({self.function})" if self.function and self.file else ""
        return f"{self.place or ''}{function}{': ' if self.file else ''}{self.message}"


class RegionRecord(Sendable, frozen=True):
    """The result of a named region of a test; ``laps``: how often it was entered."""

    laps: int
    metrics: Mapping[str, Verdict] = struct_field(default_factory=dict)
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
    metrics: Mapping[str, Verdict] = struct_field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unchecked: Mapping[str, Reason] = struct_field(default_factory=dict)
    trace: str | None = None
    outcome: str | None = None
    strict: bool = False
    regions: Mapping[str, RegionRecord] = struct_field(default_factory=dict)
    message: str | None = None
    ranks: Mapping[str, Mapping[str, Value]] = struct_field(default_factory=dict)
    unstable: Unstable | None = None
    has_baseline: bool = False
    causes: tuple[Cause, ...] = ()

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
    ``findings_in_tests`` are the part of ``found`` in tests' own files, which is not compared.
    """

    metrics: Mapping[str, Value]
    operators: Mapping[str, Mapping[str, int]] = struct_field(default_factory=dict)
    kernels: Mapping[str, int] = struct_field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    found: Mapping[str, int] = struct_field(default_factory=dict)
    unchecked: Mapping[str, Reason] = struct_field(default_factory=dict)
    gated: Mapping[str, str] = struct_field(default_factory=dict)
    scoped: Mapping[str, Value] = struct_field(default_factory=dict)
    samples: Mapping[str, Sample] = struct_field(default_factory=dict)
    normalised: Normalised | None = None
    regions: Mapping[str, Profile] = struct_field(default_factory=dict)
    laps: int | None = None
    own: Mapping[str, OwnMetric] = struct_field(default_factory=dict)
    ranks: Mapping[str, Mapping[str, Value]] = struct_field(default_factory=dict)
    findings_in_tests: Mapping[str, int] = struct_field(default_factory=dict)

    @property
    def compared(self) -> dict[str, int]:
        """The part of ``found`` that is compared rule by rule: that of the library under test."""
        own = self.findings_in_tests
        return {
            rule: max(count - own.get(rule, 0), 0)
            for rule, count in self.found.items()
            if rule not in self.gated
        }


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
    ``chip`` is the one that bounds were estimated for. ``detail`` explains the numbers.
    ``findings_in_tests`` are those in tests' own files, which are not compared: they tell that
    places need not be looked for.
    """

    metrics: Mapping[str, Number] = struct_field(default_factory=dict)
    operators: Mapping[str, Mapping[str, int]] = struct_field(default_factory=dict)
    kernels: Mapping[str, int] = struct_field(default_factory=dict)
    findings: Mapping[str, int] = struct_field(default_factory=dict)
    findings_in_tests: Mapping[str, int] = struct_field(default_factory=dict)
    times: Mapping[str, Any] = struct_field(default_factory=dict)
    cpu_capability: str | None = None
    regions: Mapping[str, Baseline] = struct_field(default_factory=dict)
    laps: int | None = None
    own: Mapping[str, Number] = struct_field(default_factory=dict)
    unstable: Mapping[str, Range] = struct_field(default_factory=dict)
    seed: int | None = None
    draws: bool = False
    advises: bool = False
    ranks: Mapping[str, Mapping[str, Number]] = struct_field(default_factory=dict)
    chip: str | None = None
    detail: Detail | None = None


# ---- Names with their counts, as one text that still knows its parts.


class CountedNames(str):
    """Names with their counts; a single name alone.

    It is text in the Python API and in JSON. Tables shorten and cut its ``parts``.

    >>> names = CountedNames([("gemm", 3), ("fill", 2)])
    >>> print(names, names.parts)
    gemm ×3, fill ×2 (('gemm', 3), ('fill', 2))
    >>> print(CountedNames([("gemm", 3)]))
    gemm
    """

    __slots__ = ("counted", "parts")
    parts: tuple[tuple[str, int], ...]
    counted: bool

    def __new__(cls, parts: Sequence[tuple[str, int]], counted: bool | None = None) -> Self:
        """Join the parts; ``counted``: with counts, by default only of several."""
        counted = len(parts) > 1 if counted is None else counted
        whole = [f"{name} ×{count}" if counted else name for name, count in parts]
        made = super().__new__(cls, ", ".join(whole))
        made.parts, made.counted = tuple(parts), counted
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """For copies and pickles."""
        return (self.parts, self.counted)

    def renamed(self, change: Callable[[str], str]) -> CountedNames:
        """With each name changed; names that become equal are counted together.

        >>> print(CountedNames([("f<1>", 3), ("g", 1), ("f<2>", 2)]).renamed(lambda name: name[0]))
        f ×5, g ×1
        >>> print(CountedNames([("f<1>", 3), ("f<2>", 2)]).renamed(lambda name: name[0]))
        f ×5
        """
        total: dict[str, int] = {}
        for name, count in self.parts:
            total[change(name)] = total.get(change(name), 0) + count
        return CountedNames(list(total.items()), self.counted)


# ---- Measured numbers that know their unit and where they come from, so that assertions show
# both.


class Source(NamedTuple):
    """Where a number comes from: a metric of a region of the test that ``owner`` measured.

    ``lap`` is None for all laps together.
    """

    owner: Any
    region: str
    metric: str
    lap: int | None = None

    @property
    def part(self) -> str:
        """The region as failures name it, with the lap in brackets."""
        return self.region if self.lap is None else f"{self.region}[{self.lap}]"

    def __str__(self) -> str:
        return f"{self.part}.{self.metric}"


class RegionNumber(float):
    """A number with the text of its expression, its unit and its sources.

    A ``float`` in all respects, since ``0.6 * count`` of an ``int`` forgets the count. A whole one
    formats and serves as an index like an ``int``.
    """

    whole: bool
    unit: str
    text: str
    sources: tuple[Source, ...]

    def __repr__(self) -> str:
        """With its unit and origin: ``3 MiB (plain.peak_cpu_bytes)``."""
        shown = format_quantity(self.plain(), self.unit) if self.unit else f"{self.plain():g}"
        return f"{shown} ({self.text})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """The number alone in this format; without one, with its unit and origin."""
        return format(self.plain(), spec) if spec else repr(self)

    def __reduce__(self) -> Any:
        """Another process, or a copy, has the number alone."""
        return type(self.plain()), (self.plain(),)

    def plain(self) -> int | float:
        """The number alone."""
        value = float.__add__(self, 0.0)
        return int(value) if self.whole else value

    def __index__(self) -> int:
        """The number, if it is whole."""
        if not self.whole:
            raise TypeError(f"{self!r} is not a whole number")
        return int(self)


def region_number(value: float, unit: str, text: str, *sources: Source) -> RegionNumber:
    """A number with its unit and its origin.

    >>> peak = region_number(3 * 2**20, "B", "plain.peak_cpu_bytes")
    >>> peak, 0.5 * peak, peak > 2**20
    (3 MiB (plain.peak_cpu_bytes), 1.5 MiB (0.5 * plain.peak_cpu_bytes), True)
    """
    made = RegionNumber(value)
    made.whole, made.unit, made.text, made.sources = isinstance(value, int), unit, text, sources
    return made


_KEEPS_UNIT = frozenset({"+", "-", "%", "//"})


def _operation(sign: str, function: Callable[[Any, Any], Any]) -> None:
    """Define an operator, both ways round."""

    def apply(one: Any, other: Any, *, turned: bool) -> Any:
        plain = other.plain() if isinstance(other, RegionNumber) else other
        if not isinstance(plain, int | float):
            return NotImplemented
        left, right = (plain, one.plain()) if turned else (one.plain(), plain)
        value = function(left, right)
        left, right = (other, one) if turned else (one, other)
        units = [side.unit if isinstance(side, RegionNumber) else "" for side in (left, right)]
        return region_number(
            value,
            _unit(sign, *units),
            f"{_text(left)} {sign} {_text(right)}",
            *one.sources,
            *(other.sources if isinstance(other, RegionNumber) else ()),
        )

    setattr(RegionNumber, f"__{function.__name__}__", partialmethod(apply, turned=False))
    setattr(RegionNumber, f"__r{function.__name__}__", partialmethod(apply, turned=True))


def _unit(sign: str, left: str, right: str) -> str:
    """The unit of a result; empty where it has none that we have a name for."""
    if sign in _KEEPS_UNIT:
        return left or right
    if sign == "*":
        return left or right if not (left and right) else ""
    return left if sign == "/" and not right else ""


def _text(side: Any) -> str:
    if not isinstance(side, RegionNumber):
        return f"{side}"
    return f"({side.text})" if " " in side.text else side.text


for _sign, _function in {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}.items():
    _operation(_sign, _function)


def in_unit_of(number: object, other: object) -> str:
    """The text of ``other``: a plain number in the unit of the ``number`` that it is compared with.

    >>> in_unit_of(region_number(2048, "B", "decode.peak_cpu_bytes"), 1024)
    '1 KiB'
    """
    plain = isinstance(other, int | float) and not isinstance(other, RegionNumber)
    if plain and isinstance(number, RegionNumber) and number.unit:
        return format_quantity(other, number.unit)  # type: ignore[arg-type]
    return repr(other)


# ---- Which steps of a trace are asked for: one by its number, or those from one to before
# another.

_ONE: Final = re.compile(r"\d{1,18}")
_SLICE: Final = re.compile(r"(\d{1,18})?:(\d{1,18})?")


class StepRange(Frozen, frozen=True):
    """Numbers of steps from ``first`` to before ``stop``; None has no limit there.

    >>> StepRange.parse("3"), StepRange.parse("2:5"), StepRange.parse(":4").stop
    (StepRange(first=3, stop=4), StepRange(first=2, stop=5), 4)
    """

    first: int | None = None
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """From ``N`` or ``A:B``, as a slice of Python, whose ends may be missing.

        Raises:
            ValueError: another text. Numbers are those of the steps, so none is negative.
        """
        text = text.strip()
        if _ONE.fullmatch(text):
            return cls(int(text), int(text) + 1)
        if (found := _SLICE.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is not N or A:B")
        first, stop = (None if end is None else int(end) for end in found.groups())
        return cls(first, stop)

    @property
    def is_one(self) -> bool:
        """Whether it is a single number."""
        return self.first is not None and self.stop == self.first + 1

    def __str__(self) -> str:
        """As it is written on the command line.

        >>> str(StepRange(3, 4)), str(StepRange(2)), str(StepRange())
        ('3', '2:', ':')
        """
        if self.is_one:
            return str(self.first)
        return ":".join("" if end is None else str(end) for end in (self.first, self.stop))


#: Every step.
ALL_STEPS: Final = StepRange()


# ---- The user's settings, as one frozen value.

#: Seconds of rounds for a time gate, unless the number of rounds is given.
#: `python -m benchmarks.gate` measures what that achieves.
GATE_TIME_S = 1.0


@dataclass(frozen=True)
class Tolerance:
    """By which ``share``, or which ``amount`` in this ``unit``, metrics of a glob may differ."""

    glob: str
    unit: str = "%"
    share: float | None = None
    amount: float | None = None

    def is_for(self, metric: str, unit: str) -> bool:
        """Whether the metric of this unit may differ so."""
        return fnmatchcase(metric, self.glob) and self.unit in ("%", unit)


@dataclass(frozen=True)
class Settings:
    """Options after applying command line, marker, ini file and default.

    ``threads`` are the intra-op CPU threads of the profiled run, None for the user's own number.
    ``seed`` is that of a test's runs after its first, None for none. ``json``, ``html``,
    ``markdown`` and ``traces`` are absolute. ``thresholds``: rule → name → value, if not default.
    ``min_time`` is in seconds. ``started_ns``: when pytest began (`time.time_ns`). ``given`` are
    the names of options that were set. ``history`` is a URL or an absolute path.
    ``checks_stable``: profile each test once more, with another seed.
    ``seed_imports``: files are imported, and wider fixtures set up, with that seed, too: True for
    all generators, None for NumPy's and torch's where nobody has seeded them.
    ``device`` is the chip for which a device's work is estimated. ``tolerances`` are in order.
    """

    enabled: bool
    select: Literal["all", "marked"]
    accept: bool
    strict: bool
    warmup: int
    rounds: int
    min_time: float
    time: Literal["advisory", "gate", "off"]
    baselines: str
    json: Path | None
    html: Path | None
    markdown: Path | None
    traces: Path | None
    traces_of: Literal["failed", "all"]
    columns: tuple[str, ...]
    sort: str | None
    top: int
    ignore: frozenset[str]
    threads: int | None
    seed: int | None
    ci: Literal["auto", "github", "gitlab", "off"]
    junit: bool = False
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    started_ns: int = 0
    history: str | None = None
    checks_stable: bool = False
    seed_imports: bool | None = None
    device: str | None = None
    tolerances: tuple[Tolerance, ...] = ()

    @property
    def gate_time_s(self) -> float:
        """Seconds of rounds by default; 0 if their number was given or does not matter."""
        free = self.time == "gate" and not self.given & {"rounds", "min_time"}
        return GATE_TIME_S if free else 0.0


# ---- Words in a list of columns that stand for several.

#: All metrics of users' own.
OWN_COLUMNS = "own"
