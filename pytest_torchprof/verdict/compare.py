"""Decide on each metric: a `Verdict` from measured and accepted values; and the test's status."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.units import alike
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import (
    CPU_SEPARATOR,
    NORMALISED,
    Baseline,
    Budget,
    MetricStatus,
    MissingValue,
    Normalised,
    Number,
    Profile,
    Range,
    TestStatus,
    Unstable,
    Value,
    Verdict,
    of_rules,
)
from pytest_torchprof.verdict.metrics import METRICS, tolerant
from pytest_torchprof.verdict.own import (
    DID_NOT_RUN,
    in_units,
    metric_of,
    row_of,
    with_own,
    without_value,
)

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Tolerance
    from pytest_torchprof.verdict.metrics import Metric
    from pytest_torchprof.verdict.profile import Measured


# ---- Numbers of a CPU with another instruction set, or of another chip, only advise.

#: Of these, one CPU needs more than another, to change the layout of a tensor. Source: 1,468
#: examples of torch 2.13 with oneDNN's instructions up to AVX2 and SSE41, and models on AVX-512.
_LAYOUTS = late(
    r"^aten::(empty|clone|contiguous|copy_|_?to(_copy)?$|as_strided|select|slice|view|resize_)"
    r"|conv|mkldnn|onednn|nnpack"
)
#: What no CPU decides.
_SAME = frozenset({"host_reads"})


def other_cpu(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why what a CPU decides is not comparable with the baseline; None if it is."""
    accepted = baseline.cpu_capability if baseline is not None else None
    if accepted is None or measured.cpu_capability in accepted.split(CPU_SEPARATOR):
        return None
    return because(
        "other_cpu",
        (
            "the baseline is of a CPU with other instructions ({accepted}, here "
            "{here}), which decide how convolutions and 16-bit products run, so "
            "operators and CPU memory only advise: accept here too"
        ),
        accepted=accepted,
        here=measured.cpu_capability,
    )


def other_chip(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why estimates for a chip are not comparable with the baseline; None if they are."""
    accepted, here = baseline.chip if baseline is not None else None, measured.trace.facts.chip
    if accepted is None or here is None or accepted == here:
        return None
    return because(
        "other_chip",
        ("bound_ms only advises: the baseline's is of {accepted}, and this one of {here}"),
        accepted=accepted,
        here=here,
    )


def varies_by_cpu(metric: Metric) -> bool:
    """Whether the metric counts what a CPU decides: operators and the host's memory.

    Of a device's work, what the host reads is decided by the program alone.
    """
    if metric.name in _SAME:
        return False
    counts = not (metric.of_device or metric.needs.isdisjoint({"operators", "memory"}))
    return metric.on_request or counts


def explains_not(baseline: Baseline, profile: Profile) -> bool:
    """Whether more operators are not due to the CPU: they are none that change layouts."""
    before, now = (
        sum(
            row.get("calls", 0)
            for name, row in one.operators.items()
            if "#" not in name and not _LAYOUTS.search(name)
        )
        for one in (baseline, profile)
    )
    return bool(baseline.operators) and now > before


# ---- Metrics that vary with the values that a test draws: their ranges, and comparing with one.


def reseeded(measured: Measured) -> Measured | None:
    """What the run with another seed measured, as if it were the profiled one; None without it."""
    if measured.reseeded is None:
        return None
    return replace(
        measured,
        checked=measured.reseeded,
        budgets=(),
        recorded=measured.recorded_reseeded,
        reseeded=None,
    )


def unstable(
    profile: Profile, other: Profile, *, drawn: bool, tolerances: Sequence[Tolerance] = ()
) -> Unstable | None:
    """What two runs of a test differ in, the test's regions included; None if in nothing.

    ``drawn``: what the test draws depends on the seed, which differs between the two.
    """
    found = _ranges(profile, other, tolerances)
    for name in sorted(profile.regions.keys() & other.regions.keys()):
        more = _ranges(profile.regions[name], other.regions[name], tolerances)
        found |= {f"{name}: {label}": one for label, one in more.items()}
    if not found:
        return None
    calls = [
        {operator: row.get("calls", 0) for operator, row in one.operators.items()}
        for one in (profile, other)
    ]
    operators = {
        name: Range.of(calls[0].get(name, 0), calls[1].get(name, 0))
        for name in sorted(calls[0].keys() | calls[1].keys())
        if calls[0].get(name, 0) != calls[1].get(name, 0)
    }
    return Unstable(
        {label: one for label, (one, _) in found.items()},
        {label: unit for label, (_, unit) in found.items()},
        operators,
        drawn,
    )


def ranges_of(
    profile: Profile,
    other: Profile | None,
    baseline: Baseline | None,
    tolerances: Sequence[Tolerance] = (),
) -> dict[str, Range]:
    """The ranges to store with these numbers, by metric; of findings, by rule.

    Without an ``other`` run, those of the baseline that still hold.
    """
    if other is None:
        if baseline is None or not baseline.unstable:
            return {}
        now = {**profile.metrics, **{findings_label(r): n for r, n in profile.compared.items()}}
        kept = baseline.unstable
        return {label: one for label, one in kept.items() if _holds(one, now.get(label))}
    return {label: one for label, (one, _) in _ranges(profile, other, tolerances).items()}


def _ranges(
    profile: Profile, other: Profile, tolerances: Sequence[Tolerance]
) -> dict[str, tuple[Range, str]]:
    """By label, the range of each metric that differs, and its unit.

    What differs within its tolerance has one only where something differs by more.
    """
    found, more = dict[str, tuple[Range, str]](), False
    for name, value in profile.metrics.items():
        metric = tolerant(row_of(name, profile.own), tolerances)
        again = other.metrics.get(name)
        if isinstance(value, MissingValue) or isinstance(again, MissingValue) or again is None:
            continue
        if _may_vary(metric) and value != again:
            low, high = sorted((value, again), key=abs)
            more = more or not alike(low, high, metric.tolerance, metric.margin)
            found[name] = Range.of(value, again), metric.unit
    for rule, count in profile.compared.items():
        again = other.compared.get(rule)
        if again is not None and again != count:
            found[findings_label(rule)] = Range.of(count, again), "1"
            more = True
    return found if more else {}


def _holds(known: Range, value: Value | None) -> bool:
    if value is None or isinstance(value, MissingValue):
        return False
    return known.low <= value <= known.high


def findings_label(rule: str) -> str:
    """The label of a rule's findings among the ranges.

    >>> findings_label("host-sync")
    'findings[rule=host-sync]'
    """
    return of_rules("findings", [rule])


def _may_vary(metric: Metric) -> bool:
    """Whether the profiled run decides it; findings vary rule by rule."""
    told = metric.of_region or metric.own is not None
    return metric.stored and told and metric.name != "findings"


# -------------------------------------------------------------------- comparing


def within(baseline: Baseline | None, label: str, value: Number, accepted: Number) -> Number:
    """What to compare a value with: itself within its accepted range, or the range's nearer end.

    Without a range it is the accepted value. A range that does not hold that value is out of date,
    as a version that knows of none may leave it. Itself, too, if the range only advises.
    """
    known = range_of(baseline, label, accepted)
    if known is None:
        return accepted
    advises = baseline is not None and baseline.advises
    return value if advises else min(max(value, known.low), known.high)


def advising(baseline: Baseline | None, *, strict: bool) -> Baseline | None:
    """The baseline, of which ranges only advise unless ``strict``, if it was accepted without seed.

    What varies from run to run with the same seed has no range that two runs could show: it may be
    a race, or values of a generator that is the test's own.
    """
    if strict or baseline is None or baseline.seed is not None:
        return baseline
    if not (baseline.unstable or any(one.unstable for one in baseline.regions.values())):
        return baseline
    regions = {name: replace(one, advises=True) for name, one in baseline.regions.items()}
    return replace(baseline, advises=True, regions=regions)


def range_of(baseline: Baseline | None, label: str, accepted: Number) -> Range | None:
    """The accepted range of a metric, if it has one that holds its accepted value."""
    known = baseline.unstable.get(label) if baseline is not None else None
    return known if known is not None and known.low <= accepted <= known.high else None


def accepted_findings(baseline: Baseline, found: Mapping[str, int]) -> dict[str, int]:
    """By rule, how many findings are accepted, given how many there are now."""
    if not baseline.unstable:
        return {rule: baseline.findings.get(rule, 0) for rule in found}
    return {
        rule: int(within(baseline, findings_label(rule), now, baseline.findings.get(rule, 0)))
        for rule, now in found.items()
    }


def outside(known: Range, unit: str) -> Reason:
    """Why a value beyond its accepted range differs."""
    return because(
        "outside_range",
        "accepted from {low:{unit}} to {high:{unit}}, as it varies",
        low=known.low,
        high=known.high,
        unit=unit,
    )


# ---- Limits that hold only because nothing ran count as not checked.

NOTHING = because(
    "nothing_ran",
    (
        "no operator ran in the profiled run; if an earlier run keeps the result, "
        "use warmup=0, rounds=0"
    ),
)
NOTHING_ON_DEVICE = because(
    "nothing_on_device",
    (
        "nothing ran on the device in the profiled run; if an earlier run keeps "
        "the result, use warmup=0, rounds=0"
    ),
)
NO_PRODUCT = because(
    "no_product",
    (
        "no product ran in the profiled run; if an earlier run keeps the result, "
        "use warmup=0, rounds=0"
    ),
)
#: A limit of 0 on one of these asks that nothing runs; on others, that what runs does no harm.
_AMOUNTS = frozenset({"ops", "dispatches", "flops", "kernels"})


def not_vacuous(verdict: Verdict, profile: Profile, baseline: Baseline | None) -> Verdict:
    """The verdict; *not measured* if its limit holds only because nothing happened.

    The value stays a true zero. A baseline of zero shows that it is intended.
    """
    if verdict.limit is None and (verdict.metric, verdict.status) != ("ops", "improved"):
        return verdict
    metric = metric_of(verdict)
    why = _nothing(metric, profile, baseline)
    if why is None and metric.name == "flops" and verdict.value == 0:
        why = None if baseline is not None and baseline.metrics.get("flops") == 0 else NO_PRODUCT
    if why is None:
        return verdict
    if verdict.metric == "ops" and verdict.status == "improved":
        return replace(verdict, reason=why)
    if verdict.status in ("over_budget", "not_measured"):
        return verdict
    if verdict.limit == 0 and metric.name in _AMOUNTS:
        return verdict
    return replace(verdict, status="not_measured", reason=why)


def _nothing(metric: Metric, profile: Profile, baseline: Baseline | None) -> Reason | None:
    """Why the metric had nothing to measure; None if it had, or if that was accepted."""
    if not metric.of_region:
        return None
    accepted = {} if baseline is None else baseline.metrics
    if profile.metrics.get("dispatches") == 0 and not profile.kernels:
        return None if accepted.get("dispatches", accepted.get("ops")) == 0 else NOTHING
    if metric.of_device and not _on_device(profile):
        return None if accepted.get("kernels") == 0 else NOTHING_ON_DEVICE
    return None


def _on_device(profile: Profile) -> bool:
    """Whether anything ran on the device, or that is unknown."""
    if profile.kernels or profile.metrics.get("kernels") != 0:
        return True
    values = (profile.metrics.get(name) for name, m in METRICS.items() if m.of_device)
    return any(value for value in values if not isinstance(value, MissingValue))


#: Stored times allow no tighter tolerance: at 5 %, many comparisons of identical code fail, while
#: 25 % still catches nearly every slowdown of 50 %. Source: measured, see docs/time-in-ci.md.
TIME_TOLERANCE = 0.25

#: From this factor on, a longer time is no improvement; what the clock's own noise is, in ms.
_SLOWER, _CLOCK_MS = 1.5, 1.0
#: How far another order of the same operators moves a peak. Source: 12 tests of peft, up to 5.5 %.
_ORDER_SHARE = 0.1

_NO_LIMITS = Budget("")
#: Nothing of its name ran, or nothing was recorded there.
_NOT_RUN = DID_NOT_RUN - {Why.SCOPE_UNKNOWN.code}
_NOT_RUN |= {one.code for one in (Why.NOT_RECORDED_IN, Why.NO_SUCH_METRIC, Why.NO_SUCH_METRIC_NEAR)}


class Policy(Frozen, frozen=True):
    """How strictly to compare.

    ``time_note`` says why a gate on time only advises, if it does; ``cpu_note`` why what the CPU's
    instruction set decides does; ``chip_note`` why bounds do. ``tolerances``: see
    `verdict.metrics.tolerant`. ``other_machine``: the accepted times are of one.
    """

    time: Literal["advisory", "gate", "off"] = "advisory"
    strict: bool = False
    time_note: Reason | None = None
    cpu_note: Reason | None = None
    chip_note: Reason | None = None
    tolerances: tuple[Tolerance, ...] = ()
    other_machine: bool = False

    @property
    def notes(self) -> tuple[Reason, ...]:
        """Why changes that another machine explains only advise."""
        return tuple(note for note in (self.cpu_note, self.chip_note) if note is not None)

    def note_on(self, metric: Metric) -> Reason | None:
        """Why a change of the metric only advises, if it does."""
        return (self.chip_note if metric.of_chip else None) or (
            self.cpu_note if varies_by_cpu(metric) else None
        )


def compare(
    profile: Profile, baseline: Baseline | None, budgets: Sequence[Budget], policy: Policy
) -> list[Verdict]:
    """Return a verdict per metric, in the table's order, then one per scoped budget."""
    budgets, refused = in_units(budgets, profile.own)
    whole = {b.metric: b for b in budgets if not b.scoped}
    verdicts = [
        _verdict(
            tolerant(row_of(name, profile.own), policy.tolerances),
            profile,
            baseline,
            whole.get(name, _NO_LIMITS),
            policy,
        )
        for name in profile.metrics
    ]
    samples = profile.samples
    verdicts = [
        replace(v, sample=samples[v.metric]) if v.metric in samples else v for v in verdicts
    ]
    if baseline is not None:
        verdicts = [
            _by_rule(v, profile, baseline) if v.metric == "findings" else v for v in verdicts
        ]
    if baseline is not None and policy.cpu_note is not None and explains_not(baseline, profile):
        verdicts = [
            replace(v, status="regressed", reason=None)
            if v.metric == "ops" and v.reason == policy.cpu_note and _is_more(v)
            else v
            for v in verdicts
        ]
    if baseline is not None:
        verdicts = _reordered(verdicts, profile, baseline)
    changed = baseline is not None and profile.operators != baseline.operators
    if (
        baseline is not None
        and baseline.operators  # else its detail is missing
        and changed
        and (lost := gradients_kept(baseline.operators, profile.operators, set(baseline.unstable)))
    ):
        verdicts = [
            replace(v, status="regressed", reason=lost)
            if v.metric == "ops" and v.status in ("ok", "improved", "advisory")
            else v
            for v in verdicts
        ]
    if baseline is not None and policy.time != "off":
        verdicts = _slow_beyond_doubt(verdicts, profile, baseline, policy)
    verdicts += without_value(profile, baseline, whole)
    for budget in budgets:
        if not budget.scoped:
            continue
        value = profile.scoped.get(budget.label, MissingValue(because(*Why.WAS_NOT_MEASURED)))
        if budget.source and isinstance(value, MissingValue) and value.reason.code in _NOT_RUN:
            continue  # a limit of the project is for the tests in which that part runs
        verdicts.append(_scoped(row_of(budget.metric, profile.own), budget, value, baseline))
    verdicts = with_own([*verdicts, *refused], profile.own)
    return [not_vacuous(verdict, profile, baseline) for verdict in verdicts]


def status_of(verdicts: Iterable[Verdict], *, has_baseline: bool) -> TestStatus:
    """The worst status of the test's metrics."""
    seen = {verdict.status for verdict in verdicts}
    if "over_budget" in seen:
        return "over_budget"
    if "regressed" in seen:
        return "regressed"
    if not has_baseline:
        return "new"
    return "improved" if "improved" in seen else "ok"


def slower_with_less(verdicts: Sequence[Verdict], policy: Policy) -> Reason | None:
    """Why less work is no improvement: the time is longer, by the CPU's too if others used it."""
    times = {v.metric: v for v in verdicts if v.metric in NORMALISED and v.baseline is not None}
    wall, why = times.get("wall_ms"), policy.time_note
    if wall is None or wall.baseline is None or isinstance(wall.value, MissingValue):
        return None
    if wall.multiples is None and why is not None and why.code == Why.OTHER_MACHINE.code:
        return None
    for one in times.values() if why is not None else [wall]:
        before, now = one.multiples or (one.baseline, one.value)
        if isinstance(now, MissingValue) or before is None or now < _SLOWER * before:
            return None
    if wall.value - wall.baseline < _CLOCK_MS:
        return None
    return because(
        "slower_with_less",
        "less work, but slower, so not improved: wall_ms {before:ms} → {now:ms}",
        before=wall.baseline,
        now=wall.value,
    )


# ---- The same work in many times the CPU time is red, whatever else is asked of times.
#
# CPU time, as a multiple of the reference kernel's, depends little on what else the machine does,
# if it is that of one thread: several wait for each other in a loop, and on a busy machine 50 us of
# work become 10 ms of CPU time. Once, it may be far off; the least of several rounds is not.

#: From this factor on, if as many further rounds, of one thread, agree.
SLOW, CONFIRMING = 3.0, 5
SLOW_CODE = "slow_beyond_doubt"
#: It must be longer by this many runs of the reference kernel, too, of 0.2 ms: less is the luck of
#: caches. Beside ten programs on two processors, 0.08 ms were 0.41 ms in six rounds. Or shorter by
#: so many, to be worth a diff.
_LEAST_MORE = 5.0
#: Where other threads than the test's own took more than this share, CPU time says little. Of a
#: test to be accepted, a round of one thread says more.
_OTHERS = 0.2
#: A page fault takes 2 us, and more where the system is slow; see `_PAGE_FAULT_MS`, which is low.
_SLOW_FAULT_MS = 0.004
#: Beside programs that use the memory, too, a thread may move no more than 10 GB a second: tests
#: that do little else took 3.0 to 4.4 times as long on 2 processors (`benchmarks.slow`).
_SLOW_BYTE_MS = 1e-7
#: Larger factors are said without a fraction.
_ROUND = 10


def slowness(now: Normalised | None, before: Normalised | None) -> float | None:
    """How many times the accepted CPU time a test takes; None if the two do not compare.

    Page faults that it did not have are left out: whether memory is reused is the luck of a
    process.
    """
    if now is None or before is None or now.conditions != before.conditions:
        return None
    if now.cpu is None or before.cpu is None:
        return None
    faults_ms = max(0, now.page_faults - before.page_faults) * _SLOW_FAULT_MS
    return (now.cpu - faults_ms / now.ms(1.0)) / before.cpu


def is_slow(now: Normalised | None, before: Normalised | None, share: float = SLOW) -> bool:
    """Whether it takes so many times the accepted CPU time, by more than short tests do by luck."""
    ratio = slowness(now, before)
    if ratio is None or before is None or before.cpu is None or ratio < share:
        return False
    return (ratio - 1) * before.cpu >= _LEAST_MORE


def needs_more(now: Normalised, before: Normalised | None, *, accepts: bool) -> bool:
    """Whether a round of one thread is needed, given these times so far.

    To confirm a time that is far too long, as long as it still is longer; or ``accepts`` one of
    several threads.
    """
    if accepts and not now.more and now.others > _OTHERS:
        return True
    if now.more:
        return now.more < CONFIRMING and is_slow(now, before, _SLOWER)
    if before is None or before.cpu is None or not is_slow(now, before):
        return False
    # Threads that spin between two operators take CPU time, and nobody waits for them.
    wall, known = now.values.get("wall_ms"), before.values.get("wall_ms")
    own = now.thread or now.values["cpu_ms"]
    waits = wall is None or known is None or wall >= _SLOWER * known
    return now.others <= _OTHERS or waits or own >= _SLOWER * before.cpu


def _slow_beyond_doubt(
    verdicts: list[Verdict], profile: Profile, baseline: Baseline, policy: Policy
) -> list[Verdict]:
    """CPU time that is *regressed*: many times the accepted one, and confirmed.

    A test of several processes may wait for them in a loop, and for a device.
    """
    now, before = profile.normalised, _accepted_times(baseline)
    cpu = next((v for v in verdicts if v.metric == "cpu_ms"), None)
    if now is None or before is None or cpu is None or policy.other_machine or profile.ranks:
        return verdicts
    if now.more < CONFIRMING or now.others > _OTHERS or cpu.status == "over_budget":
        return verdicts
    share = max(SLOW, 1 + tolerant(METRICS["cpu_ms"], policy.tolerances).tolerance)
    if profile.kernels:
        busy_ms = profile.metrics.get("cuda_busy_ms", MissingValue(NOTHING_ON_DEVICE))
        if isinstance(busy_ms, MissingValue):
            return verdicts
        now = replace(now, one_thread=(now.cpu or 0.0) - busy_ms / now.ms(1.0))
    moved = profile.metrics.get("moved_bytes")
    moved_ms = moved * _SLOW_BYTE_MS if isinstance(moved, int) else 0.0
    alone = replace(now, one_thread=(now.cpu or 0.0) - moved_ms / now.ms(1.0))
    if not is_slow(now, before, share) or not is_slow(alone, before, share):
        return verdicts
    assert now.cpu is not None and before.cpu is not None  # noqa: S101, PT018 - it is slow
    known, ratio = (before.cpu, now.cpu), slowness(now, before) or 0.0
    why = because(
        SLOW_CODE,
        "CPU time {before:ms} → {now:ms} ({times}), confirmed by {rounds} more rounds",
        before=now.ms(before.cpu),
        now=now.ms(now.cpu),
        times=_times(ratio),
        rounds=now.more,
    )
    red = replace(cpu, status="regressed", tolerance=share - 1, multiples=known, reason=why)
    return [red if v is cpu else v for v in verdicts]


def _times(ratio: float) -> str:
    """``×13``, ``×2.9``: never more than it is, as it may be just below a limit."""
    return f"×{ratio:.0f}" if ratio >= _ROUND else f"×{int(ratio * 10) / 10}"


_TIMES = ("cpu_ms", "wall_ms")


def _accepted_times(baseline: Baseline | None) -> Normalised | None:
    return None if baseline is None else Normalised.read(baseline.times.get("normalised"))


def has_sped_up(profile: Profile, baseline: Baseline | None) -> bool:
    """Whether the CPU time is so much less that it is worth a diff to accept it.

    Else nothing would show that it becomes as long as before.
    """
    now, before = profile.normalised, _accepted_times(baseline)
    if now is None or before is None or now.others > _OTHERS or not slowness(now, before):
        return False
    assert now.cpu is not None and before.cpu is not None  # noqa: S101, PT018 - there is a ratio
    return before.cpu >= max(SLOW * now.cpu, now.cpu + _LEAST_MORE)


def _ratio(verdict: Verdict, policy: Policy) -> float | None:
    """How many times the accepted time it is; None if that is not known."""
    before, now = verdict.multiples or (verdict.baseline, verdict.value)
    if isinstance(now, MissingValue) or not before:
        return None
    return None if policy.other_machine and verdict.multiples is None else now / before


def told_slow(
    verdicts: Sequence[Verdict], profile: Profile, baseline: Baseline | None, policy: Policy
) -> Reason | None:
    """A sentence on CPU time that is far longer than accepted, whether it is red or advice."""
    now, before = profile.normalised, _accepted_times(baseline)
    cpu, wall = (next((v for v in verdicts if v.metric == name), None) for name in _TIMES)
    if now is None or cpu is None or cpu.baseline is None or isinstance(cpu.value, MissingValue):
        return None
    if cpu.status == "regressed":
        return cpu.reason
    ratio, pair = slowness(now, before), (cpu.baseline, cpu.value)
    compares = ratio is not None and not policy.other_machine
    if ratio is not None and before is not None and before.cpu and now.cpu:
        pair = now.ms(before.cpu), now.ms(now.cpu)
    else:
        ratio = _ratio(cpu, policy)
    if not ratio:
        return None
    waited = _ratio(wall, policy) if wall is not None else None
    if now.others > _OTHERS or pair[1] - pair[0] < _CLOCK_MS or (waited or 0) < _SLOWER:
        return None
    if ratio < (_SLOWER if compares else SLOW):
        return None
    return because(
        "slow_advice",
        "CPU time {before:ms} → {now:ms} ({times}): only advice",
        before=pair[0],
        now=pair[1],
        times=_times(ratio),
    )


def _reordered(verdicts: list[Verdict], profile: Profile, baseline: Baseline) -> list[Verdict]:
    """Peaks alone only advise, up to a limit, where the same operators allocated as much."""
    changed = [v for v in verdicts if v.status in ("regressed", "improved")]
    before, now = (
        {
            (name, column): value
            for name, row in operators.items()
            for column, value in row.items()
            if value and not column.startswith(("peak_", "estimated_"))
        }
        for operators in (baseline.operators, profile.operators)
    )
    if not before or before != now or dict(baseline.kernels) != dict(profile.kernels):
        return verdicts
    for v in changed:
        if not metric_of(v).largest or isinstance(v.value, MissingValue) or v.baseline is None:
            return verdicts
        if not alike(v.baseline, v.value, _ORDER_SHARE):
            return verdicts
    why = because(*Why.ORDER_CHANGED)
    return [replace(v, status="advisory", reason=why) if v in changed else v for v in verdicts]


def gradients_kept(
    before: Mapping[str, Mapping[str, int]],
    now: Mapping[str, Mapping[str, int]],
    unstable: Collection[str] = (),
) -> Reason | None:
    """Evidence, in the counts of all operators, of a forgotten ``zero_grad``.

    It does less work, but is no improvement.
    """

    def total(column: str, prefix: str = "") -> tuple[int, int]:
        was, is_ = (
            sum(row.get(column, 0) for name, row in one.items() if name.startswith(prefix))
            for one in (before, now)
        )
        return was, is_

    was, is_ = total("accumulations")
    zeros = total("calls", "aten::zero_")
    if "ops" not in unstable and is_ - was > max(zeros[1] - zeros[0], 0):  # else from zero
        return because(
            "gradients_add_up",
            ("gradients add up in aten::add_ {before} → {now} times: is a zero_grad missing?"),
            before=was,
            now=is_,
        )
    steps, zeros = (total("calls", f"Optimizer.{what}#") for what in ("step", "zero_grad"))
    if zeros[1] < zeros[0] and steps[1] >= steps[0] > 0:
        return because(
            "fewer_zero_grads",
            "Optimizer.zero_grad was called {before} → {now} times in {steps} steps",
            before=zeros[0],
            now=zeros[1],
            steps=steps[1],
        )
    return None


def new_findings(profile: Profile, baseline: Baseline | None) -> dict[str, tuple[int, int]]:
    """Rule → (accepted, now), for rules that match more often than accepted."""
    before = baseline or Baseline()
    known = accepted_findings(before, profile.compared)
    pairs = {rule: (known[rule], n) for rule, n in profile.compared.items()}
    for rule, metric in profile.gated.items():
        if not metric:  # advice, which is in no baseline
            pairs[rule] = 0, profile.found.get(rule, 0)
        accepted = before.metrics.get(metric, 0 if baseline is None else None)
        now = profile.metrics.get(metric)
        if accepted is not None and isinstance(now, int) and rule in profile.found:
            pairs[rule] = int(accepted), now
    return {rule: pair for rule, pair in pairs.items() if pair[1] > pair[0]}


def _is_more(verdict: Verdict) -> bool:
    value, accepted = verdict.value, verdict.baseline
    return not isinstance(value, MissingValue) and accepted is not None and value > accepted


def _by_rule(verdict: Verdict, profile: Profile, baseline: Baseline) -> Verdict:
    """Compare findings rule by rule: fewer of one rule do not make up for more of another."""
    unknown = isinstance(verdict.value, MissingValue)
    if not profile.found:
        return verdict
    if verdict.baseline is None and not (unknown or verdict.status == "over_budget"):
        return verdict  # the baseline predates findings
    # Skip rules that were not checked now, and rules gated by a metric of their own.
    found = profile.compared
    accepted = sum(accepted_findings(baseline, found).values())
    total = sum(found.values())
    apart = sum(profile.found.values()) - total
    more = {rule: pair for rule, pair in new_findings(profile, baseline).items() if rule in found}
    if unknown and not more:
        return verdict
    if more and not verdict.limited:  # a limit counts the others, too
        apart = 0
    accepted, total = accepted + apart, total + apart
    if verdict.status == "over_budget":
        return replace(verdict, baseline=accepted)
    if more:
        rules = tuple(
            because(*Why.CHANGED, name=rule, before=before, now=now)
            for rule, (before, now) in more.items()
        )
        # The total does not show it.
        reason = None if total > accepted else because("more_matches", "{rules:, }", rules=rules)
        return replace(verdict, value=total, status="regressed", baseline=accepted, reason=reason)
    return replace(verdict, status="improved" if total < accepted else "ok", baseline=accepted)


def _scoped(metric: Metric, budget: Budget, value: Value, baseline: Baseline | None) -> Verdict:
    if isinstance(value, MissingValue):
        verdict = _unmeasured(metric, value, None, budget)
        if value.reason.code in DID_NOT_RUN:
            # What did not run has reached nothing, and exceeded nothing, if it ever ran.
            if budget.least is not None:
                verdict = replace(verdict, status="over_budget")
            elif budget.limit == 0 and _has_run(budget, baseline):
                verdict = replace(verdict, status="ok")
        return replace(verdict, scope=budget)
    verdict = _limited(budget, value, None)
    return replace(verdict, scope=budget)


def _has_run(budget: Budget, baseline: Baseline | None) -> bool:
    """Whether the part that the budget names ran when the test was accepted."""
    if baseline is None or budget.part is None:
        return False
    how, what = budget.part
    known = {"op": baseline.operators, "kernel": baseline.kernels, "region": baseline.regions}
    return any(is_of_name(what, name) for name in known.get(how, ()))


def _limited(budget: Budget, value: Number, accepted: Number | None) -> Verdict:
    """The verdict of the limits alone; both are inclusive."""
    over = budget.limit is not None and value > budget.limit
    under = budget.least is not None and value < budget.least
    status: MetricStatus = "over_budget" if over or under else "ok"
    return Verdict(
        budget.metric,
        value,
        status,
        accepted,
        limit=budget.limit,
        least=budget.least,
        source=budget.source,
    )


def _unmeasured(
    metric: Metric, value: MissingValue, accepted: Number | None, budget: Budget
) -> Verdict:
    """Check limits against the number at hand. A lower bound can only exceed the upper limit, or
    what was accepted, and reach the lower one.
    """
    name, known, why = metric.name, value.at_hand, value.reason
    limit, least = budget.limit, budget.least
    if known is not None and (limit is not None or least is not None):
        found = _limited(budget, known, None)
        over = limit is not None and known > limit
        reached = limit is None and found.status == "ok"
        if over or reached or not value.at_least:
            return replace(found, reason=why, at_least=value.at_least)
    # Memory is left out: what else ran may have freed some of it.
    counts = metric.klass == "exact" and metric.unit != "B" and metric.own is None
    if counts and value.at_least and known is not None and accepted is not None:
        status = _against(known, accepted, metric)
        if status == "regressed":
            return Verdict(
                name,
                known,
                status,
                accepted,
                limit,
                metric.tolerance,
                why,
                at_least=True,
                least=least,
            )
    return Verdict(name, value, "not_measured", accepted, limit, reason=why, least=least)


def _verdict(
    metric: Metric,
    profile: Profile,
    baseline: Baseline | None,
    budget: Budget,
    policy: Policy,
) -> Verdict:
    value, accepted = profile.metrics[metric.name], _accepted(metric, baseline)
    if isinstance(value, MissingValue):
        return _unmeasured(metric, value, accepted, budget)
    limited = None if budget is _NO_LIMITS else _limited(budget, value, accepted)
    if limited and limited.status == "over_budget":
        return limited
    found = _against_accepted(metric, value, accepted, profile, baseline, policy)
    limits = {"limit": budget.limit, "least": budget.least, "source": budget.source}
    return replace(found, **limits) if limited else found


def _against_accepted(
    metric: Metric,
    value: Number,
    accepted: Number | None,
    profile: Profile,
    baseline: Baseline | None,
    policy: Policy,
) -> Verdict:
    apart = baseline is not None and not metric.compared
    if apart or (metric.klass == "time" and policy.time == "off"):
        return Verdict(metric.name, value, "ok")
    if accepted is None:
        gated = policy.time == "gate" and metric.name in GATED_TIMES
        return Verdict(metric.name, value, "new", reason=policy.time_note if gated else None)
    if metric.klass == "time":
        verdict = Verdict(metric.name, value, "ok", accepted)
        return _of_time(metric, verdict, profile, baseline, policy)
    known = range_of(baseline, metric.name, accepted)
    reference = accepted if known is None else within(baseline, metric.name, value, accepted)
    status = _against(value, reference, metric)
    note = policy.note_on(metric) if status != "ok" else None
    if note is not None or (status != "ok" and metric.klass == "advice"):
        status = "advisory"
    elif known is not None and not known.low <= value <= known.high:
        note = outside(known, metric.unit)
        status = "advisory" if baseline is not None and baseline.advises else status
    shown = Verdict(metric.name, value, status, accepted, None, metric.tolerance, note)
    return replace(shown, margin=metric.margin, baseline_range=known)


def _of_time(
    metric: Metric,
    verdict: Verdict,
    profile: Profile,
    baseline: Baseline | None,
    policy: Policy,
) -> Verdict:
    """Compare times of rounds as multiples of the reference kernel's, if both have them."""
    name, why, multiples, before = metric.name, policy.time_note, None, None
    if baseline and (name in NORMALISED or metric.own is not None):
        before = Normalised.read(baseline.times.get("normalised"))
    if name in NORMALISED:
        gap = normalised_gap(profile.normalised, before, name)
        why = why or gap
        if not gap and before and profile.normalised:
            multiples = before.values[name], profile.normalised.values[name]
    elif metric.own is not None and metric.own.recorded:
        gap = normalised_gap(profile.normalised, before, "wall_ms")
        now_own = profile.normalised.own if profile.normalised else {}
        if not gap and before and name in now_own and name in before.own:
            multiples = before.own[name], now_own[name]
        why = why or gap
    before_ms, value = verdict.baseline, verdict.value
    assert before_ms is not None and not isinstance(value, MissingValue)  # noqa: S101, PT018 - by callers
    accepted, now = multiples or (before_ms, value)
    share = max(TIME_TOLERANCE, metric.tolerance)
    status = _against(now, accepted, metric._replace(tolerance=share, margin=0.0))
    if metric.margin and alike(before_ms, value, 0, metric.margin):
        status = "ok"
    gated = name in GATED_TIMES or (metric.own is not None and multiples is not None)
    if policy.time != "gate" or not gated:
        why, status = None, "ok" if status == "ok" else "advisory"
    elif why is not None:
        status = "ok" if status == "ok" else "advisory"
    elif multiples and before and profile.normalised and before.n * FEW < profile.normalised.n:
        why = because(
            "few_rounds",
            (
                "the baseline is of {before: round}, and this of {now}: --accept "
                "--torchprof-time=gate takes it anew"
            ),
            before=before.n,
            now=profile.normalised.n,
        )
    return replace(verdict, status=status, tolerance=share, reason=why, multiples=multiples)


#: A time accepted from this many times fewer rounds is higher than necessary.
FEW = 10


def normalised_gap(now: Normalised | None, before: Normalised | None, metric: str) -> Reason | None:
    """Why a time is not comparable as a multiple of the reference kernel's; None if it is."""
    if now is None or metric not in now.values:
        return because("no_reference", "the reference kernel did not run")
    if before is None or metric not in before.values:
        return because(
            "no_reference_before",
            (
                "the baseline has no time relative to the reference kernel: --accept "
                "--torchprof-time=gate takes it anew"
            ),
        )
    if now.conditions != before.conditions:
        return because(
            "other_conditions",
            (
                "the baseline's times are of {before}, not {now}: --accept "
                "--torchprof-time=gate takes it anew"
            ),
            before=before.conditions,
            now=now.conditions,
        )
    faults = abs(now.page_faults - before.page_faults)
    fastest_ms = min(one.values[metric] * one.reference_ms for one in (now, before))
    if faults > _FEW_FAULTS and faults * _PAGE_FAULT_MS > _FAULTS_SHARE * fastest_ms:
        return because(
            "other_page_faults",
            (
                "{before:,} → {now:,} page faults a round: whether memory is reused is the "
                "luck of a process, so time only advises"
            ),
            before=before.page_faults,
            now=now.page_faults,
        )
    return None


#: Large temporary tensors are either reused from round to round or fetched from the system each
#: time. The heap's layout at process start decides which, and the same code can take seven times as
#: long. 8 MiB tensors on glibc: 4,096 faults, 6 ms. A few faults always happen.
_PAGE_FAULT_MS, _FAULTS_SHARE, _FEW_FAULTS = 0.001, 0.1, 50


#: Wall time of unprofiled rounds, and device times. CPU time only advises: a waiting test has
#: little, and spinning idle threads are not the test's work. Host times of the profiled run include
#: the profiler's own cost.
GATED_TIMES = frozenset({"wall_ms", "self_cuda_ms", "cuda_busy_ms"})


def _accepted(metric: Metric, baseline: Baseline | None) -> Number | None:
    if baseline is None or not metric.compared:
        return None
    kept = baseline.metrics if metric.own is None else baseline.own
    source: Mapping[str, Number] = kept if metric.stored else baseline.times
    value: object = source.get(metric.name)
    if type(value) is float:
        return value if math.isfinite(value) else None
    return value if type(value) is int else None


def _against(value: Number, accepted: Number, metric: Metric) -> MetricStatus:
    """The status of a change; one of exactly the tolerance is ok."""
    if alike(accepted, value, metric.tolerance, metric.margin):
        return "ok"
    return "regressed" if (value > accepted) == (metric.better == "lower") else "improved"
