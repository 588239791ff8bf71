"""Metrics that vary with the values that a test draws: their ranges, and comparing with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import Baseline, MissingValue, Range, Unstable, of_rules
from pytest_torchprof.core.units import alike
from pytest_torchprof.verdict.metric import tolerant
from pytest_torchprof.verdict.own_metrics import row_of

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number, Profile, Value
    from pytest_torchprof.core.settings import Tolerance
    from pytest_torchprof.verdict.measured import Measured
    from pytest_torchprof.verdict.metric import Metric


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
    return because(Why.OUTSIDE_RANGE, low=known.low, high=known.high, unit=unit)
