"""The verdict on one test: what was measured, beside what is accepted, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from pytest_torchprof.analysis.elsewhere import uses_workers
from pytest_torchprof.analysis.trace_diff import COLUMN_OF, deltas
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import (
    Baseline,
    Budget,
    Finding,
    NotMeasured,
    Profile,
    TestStatus,
    Verdict,
)
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.verdict.causes import Cause, failures
from pytest_torchprof.verdict.comparison import GATED_TIMES, Policy, compare, grown, status_of
from pytest_torchprof.verdict.found import offered, placed
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.profile import profile_of

if TYPE_CHECKING:
    from pytest_torchprof.places.roots import Roots
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.measured import Measured, Unmeasured

_MOST_SWAPPED = 4

#: Metrics that operators or rules account for, which have places.
_HAS_PLACES = {*COLUMN_OF, "findings"}


class Terms(Frozen, frozen=True):
    """What the session says of all its tests: how strictly, and whether values are accepted.

    ``contended``: other processes of this session run tests at the same time.
    """

    time: Literal["advisory", "gate", "off"] = "advisory"
    strict: bool = False
    accept: bool = False
    contended: bool = False


class Compared(Frozen, frozen=True):
    """A trace's profile beside what is accepted, and what comes of it."""

    trace: Events
    profile: Profile
    baseline: Baseline | None
    policy: Policy
    verdicts: list[Verdict]

    @property
    def has_places(self) -> bool:
        """Whether there is something to locate."""
        bad = [v.metric for v in self.verdicts if v.status in ("regressed", "over_budget")]
        explained = any(metric in _HAS_PLACES for metric in bad)
        return explained or bool(grown(self.profile, self.baseline))

    @property
    def fails(self) -> bool:
        """Whether the test fails by what was measured, where nothing is being accepted."""
        known = self.baseline is not None
        return bool(failures(self.verdicts, self.policy, has_baseline=known, accept=False))


class Judged(Frozen, frozen=True):
    """What is said of a test, and why it fails, if it does.

    ``accepts`` is what ``--accept`` would write, None where there is nothing to accept;
    ``times_changed``: its times are to replace those that are accepted.
    """

    status: TestStatus
    verdicts: Sequence[Verdict]
    causes: Sequence[Cause] = ()
    reason: Reason | None = None
    profile: Profile | None = None
    accepts: Baseline | None = None
    times_changed: bool = False


def compared(measured: Measured, baseline: Baseline | None, terms: Terms) -> Compared:
    """Each metric and each budget against what is accepted."""
    policy = _policy(measured, baseline, terms)
    profile = profile_of(measured)
    verdicts = compare(profile, baseline, measured.budgets, policy)
    return Compared(measured.trace, profile, baseline, policy, verdicts)


def judged(
    measured: Measured, found: Compared, findings: Iterable[Finding], roots: Roots, terms: Terms
) -> Judged:
    """The test's verdict; ``findings`` are those of the trace, with their places."""
    baseline, verdicts = found.baseline, found.verdicts
    told = placed(findings, measured, found.profile, baseline, roots, accept=terms.accept)
    profile = replace(found.profile, findings=told)
    if measured.mismatch is not None:
        return _mismatched(measured.mismatch, verdicts, profile)
    known = baseline is not None
    causes = failures(verdicts, found.policy, has_baseline=known, accept=terms.accept)
    if found.policy.strict:
        causes += [
            Cause("comparison_unchecked", metric) for metric in dict.fromkeys(measured.unmeasured)
        ]
    status = status_of(verdicts, has_baseline=known)
    swapped = _swapped(profile, baseline) if baseline and status in ("ok", "improved") else None
    quiet = not (terms.contended or measured.busy)
    return Judged(
        status,
        verdicts,
        causes,
        swapped or (because(Why.DATALOADER_WORKERS) if uses_workers(measured.trace) else None),
        profile,
        _accepts(measured, found, quiet=quiet),
        _times_changed(verdicts, quiet=quiet),
    )


def not_profiled(unmeasured: Unmeasured, terms: Terms, *, has_baseline: bool) -> Judged:
    """The verdict on a test that was not measured."""
    reason = unmeasured.reason
    verdicts = all_unchecked(unmeasured.budgets, reason)
    policy = Policy(terms.time, terms.strict)
    causes = failures(verdicts, policy, has_baseline=True, accept=False)
    if terms.strict and has_baseline and not terms.accept:
        causes.append(Cause("baseline_unchecked", reason=reason))
    if terms.strict and unmeasured.stats_asked:
        causes.append(Cause("comparisons_unchecked", reason=reason))
    return Judged("not_profiled", verdicts, causes, reason)


def all_unchecked(budgets: Iterable[Budget], reason: Reason) -> list[Verdict]:
    """The budgets of a test that was not profiled, each not measured."""
    nothing = NotMeasured(reason)
    return [
        Verdict(b.metric, nothing, "not_measured", None, b.limit, reason=reason, scope=b)
        for b in budgets
    ]


def _policy(measured: Measured, baseline: Baseline | None, terms: Terms) -> Policy:
    note = None
    if terms.contended:
        note = because(Why.WORKERS_CONTEND)
    elif measured.busy:
        note = because(Why.MACHINE_BUSY, signs=measured.busy)
    elif baseline is not None and baseline.times.get("machine") != measured.host:
        note = because(Why.OTHER_MACHINE, machine=str(baseline.times.get("machine")))
    return Policy(terms.time, terms.strict, note)


def _mismatched(
    mismatch: Mapping[str, str], verdicts: Sequence[Verdict], profile: Profile
) -> Judged:
    """An inline expectation has failed the test already: a comparison like any other.

    What is not as expected inline counts as regressed, unless it is over budget.
    """
    verdicts = [
        replace(v, status="regressed", reason=because(Why.INLINE_EXPECTS, expected=expected))
        if (expected := mismatch.get(v.label)) and v.status != "over_budget"
        else v
        for v in verdicts
    ]
    worst = status_of(verdicts, has_baseline=True)
    status: TestStatus = worst if worst == "over_budget" else "regressed"
    reason = because(Why.INLINE_MISMATCH)
    return Judged(status, verdicts, reason=reason, profile=profile)


def _accepts(measured: Measured, found: Compared, *, quiet: bool) -> Baseline:
    """What ``--accept`` would write.

    ``quiet``: nothing else kept the machine busy, so the times are worth to be compared with later.
    """
    profile = found.profile
    within = {
        v.metric: v.baseline
        for v in found.verdicts
        if v.status == "ok" and v.tolerance and v.baseline is not None
    }
    metrics = {
        key: within.get(key, value)
        for key, value in profile.metrics.items()
        if METRICS[key].stored and not isinstance(value, NotMeasured)
    }
    # Without those that have a metric of their own, which depend on what ran before.
    metrics["findings"] = sum(profile.compared.values())
    times: dict[str, Any] = {
        key: round(value, 6)
        for key, value in profile.metrics.items()
        if METRICS[key].klass == "time" and not isinstance(value, NotMeasured)
    }
    times["machine"] = measured.host
    if quiet and profile.normalised is not None:
        times["normalised"] = profile.normalised.stored()
    operators = {name: dict(row) for name, row in profile.operators.items()}
    findings = offered(measured, profile, found.baseline)
    return Baseline(metrics, operators, dict(profile.kernels), findings, times)


def _times_changed(verdicts: Iterable[Verdict], *, quiet: bool) -> bool:
    return any(
        v.metric in GATED_TIMES
        # A reason says why the accepted time is none to gate on.
        and (v.status in ("regressed", "improved") or (quiet and v.reason and v.baseline))
        for v in verdicts
    )


def _swapped(profile: Profile, baseline: Baseline) -> Reason | None:
    """What no total shows: operators that others have taken the place of."""
    changed = deltas(baseline.operators, profile.operators, COLUMN_OF["ops"])
    if not baseline.operators or not changed or sum(d.now - d.before for d in changed) != 0:
        return None
    shown = tuple(
        because(Why.CHANGED, name=d.name, before=d.before, now=d.now)
        for d in changed[:_MOST_SWAPPED]
    )
    return because(Why.OPERATORS_SWAPPED, operators=shown, left=len(changed) - len(shown))
