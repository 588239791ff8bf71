"""Decide on each metric: a `Verdict` from measured and accepted values; and the test's status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import (
    Baseline,
    Budget,
    MetricStatus,
    MissingValue,
    Number,
    Profile,
    TestStatus,
    Value,
    Verdict,
)
from pytest_torchprof.core.samples import NORMALISED, Normalised
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import alike
from pytest_torchprof.verdict.metric import tolerant
from pytest_torchprof.verdict.other_machine import explains_not, varies_by_cpu
from pytest_torchprof.verdict.own_limits import in_units, with_own, without_value
from pytest_torchprof.verdict.own_metrics import metric_of, row_of
from pytest_torchprof.verdict.scopes import DID_NOT_RUN
from pytest_torchprof.verdict.unstable import accepted_findings, outside, range_of, within
from pytest_torchprof.verdict.vacuous import not_vacuous

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Tolerance
    from pytest_torchprof.verdict.metric import Metric

#: Stored times allow no tighter tolerance: at 5 %, many comparisons of identical code fail, while
#: 25 % still catches nearly every slowdown of 50 %. Source: measured, see docs/time-in-ci.md.
TIME_TOLERANCE = 0.25

#: From this factor on, a longer time is no improvement; what the clock's own noise is, in ms.
_SLOWER, _CLOCK_MS = 1.5, 1.0
#: How far another order of the same operators moves a peak. Source: 12 tests of peft, up to 5.5 %.
_ORDER_SHARE = 0.1

_NO_LIMITS = Budget("")
#: Nothing of its name ran, or nothing was recorded there.
_NOT_RUN = DID_NOT_RUN - {Why.SCOPE_UNKNOWN}
_NOT_RUN |= {Why.NOT_RECORDED_IN, Why.NO_SUCH_METRIC, Why.NO_SUCH_METRIC_NEAR}


class Policy(Frozen, frozen=True):
    """How strictly to compare.

    ``time_note`` says why a gate on time only advises, if it does; ``cpu_note`` why what the CPU's
    instruction set decides does; ``chip_note`` why bounds do. ``tolerances``: see
    `verdict.metric.tolerant`.
    """

    time: Literal["advisory", "gate", "off"] = "advisory"
    strict: bool = False
    time_note: Reason | None = None
    cpu_note: Reason | None = None
    chip_note: Reason | None = None
    tolerances: tuple[Tolerance, ...] = ()

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
    if baseline is not None and changed and (lost := _gradients_kept(profile, baseline)):
        verdicts = [
            replace(v, status="regressed", reason=lost)
            if v.metric == "ops" and v.status in ("ok", "improved", "advisory")
            else v
            for v in verdicts
        ]
    verdicts += without_value(profile, baseline, whole)
    for budget in budgets:
        if not budget.scoped:
            continue
        value = profile.scoped.get(budget.label, MissingValue(because(Why.WAS_NOT_MEASURED)))
        if budget.source and isinstance(value, MissingValue) and value.reason.why in _NOT_RUN:
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
    if wall.multiples is None and why is not None and why.why is Why.OTHER_MACHINE:
        return None
    for one in times.values() if why is not None else [wall]:
        before, now = one.multiples or (one.baseline, one.value)
        if isinstance(now, MissingValue) or before is None or now < _SLOWER * before:
            return None
    if wall.value - wall.baseline < _CLOCK_MS:
        return None
    return because(Why.SLOWER_WITH_LESS, before=wall.baseline, now=wall.value)


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
    why = because(Why.ORDER_CHANGED)
    return [replace(v, status="advisory", reason=why) if v in changed else v for v in verdicts]


def _gradients_kept(profile: Profile, baseline: Baseline) -> Reason | None:
    """Evidence of a forgotten ``zero_grad``, which does less work but is no improvement."""

    def total(operators: Mapping[str, Mapping[str, int]], column: str, prefix: str = "") -> int:
        return sum(row.get(column, 0) for name, row in operators.items() if name.startswith(prefix))

    before, now = (total(o, "accumulations") for o in (baseline.operators, profile.operators))
    zeroed = [
        o.get("aten::zero_", {}).get("calls", 0) for o in (baseline.operators, profile.operators)
    ]
    varies = "ops" in baseline.unstable
    if (
        not varies and now > before and zeroed[1] - zeroed[0] < now - before
    ):  # else they start from zero
        return because(Why.GRADIENTS_ADD_UP, before=before, now=now)
    steps, zeros = (
        [total(o, "calls", f"Optimizer.{what}#") for o in (baseline.operators, profile.operators)]
        for what in ("step", "zero_grad")
    )
    if zeros[1] < zeros[0] and steps[1] >= steps[0] > 0:
        return because(Why.FEWER_ZERO_GRADS, before=zeros[0], now=zeros[1], steps=steps[1])
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
            because(Why.CHANGED, name=rule, before=before, now=now)
            for rule, (before, now) in more.items()
        )
        # The total does not show it.
        reason = None if total > accepted else because(Why.MORE_MATCHES, rules=rules)
        return replace(verdict, value=total, status="regressed", baseline=accepted, reason=reason)
    return replace(verdict, status="improved" if total < accepted else "ok", baseline=accepted)


def _scoped(metric: Metric, budget: Budget, value: Value, baseline: Baseline | None) -> Verdict:
    if isinstance(value, MissingValue):
        verdict = _unmeasured(metric, value, None, budget)
        if value.reason.why in DID_NOT_RUN:
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
    if note is not None:
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
        why = because(Why.FEW_ROUNDS, before=before.n, now=profile.normalised.n)
    return replace(verdict, status=status, tolerance=share, reason=why, multiples=multiples)


#: A time accepted from this many times fewer rounds is higher than necessary.
FEW = 10


def normalised_gap(now: Normalised | None, before: Normalised | None, metric: str) -> Reason | None:
    """Why a time is not comparable as a multiple of the reference kernel's; None if it is."""
    if now is None or metric not in now.values:
        return because(Why.NO_REFERENCE)
    if before is None or metric not in before.values:
        return because(Why.NO_REFERENCE_BEFORE)
    if now.conditions != before.conditions:
        return because(Why.OTHER_CONDITIONS, before=before.conditions, now=now.conditions)
    faults = abs(now.page_faults - before.page_faults)
    fastest_ms = min(one.values[metric] * one.reference_ms for one in (now, before))
    if faults > _FEW_FAULTS and faults * _PAGE_FAULT_MS > _FAULTS_SHARE * fastest_ms:
        return because(Why.OTHER_PAGE_FAULTS, before=before.page_faults, now=now.page_faults)
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
