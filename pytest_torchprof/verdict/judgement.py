"""The verdict on one test: its status, its notes, and where a difference comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from pytest_torchprof.analysis.compilations import depends_on_cpu
from pytest_torchprof.analysis.diff import COLUMN_OF, ESTIMATE_COLUMN_OF, deltas
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import alike
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import (
    Baseline,
    Budget,
    Cause,
    Finding,
    MissingValue,
    Number,
    Profile,
    TestStatus,
    Unstable,
    Verdict,
)
from pytest_torchprof.trace.names import uses_workers
from pytest_torchprof.verdict.compare import (
    GATED_TIMES,
    SLOW_CODE,
    Policy,
    advising,
    compare,
    has_sped_up,
    new_findings,
    other_chip,
    other_cpu,
    ranges_of,
    reseeded,
    slower_with_less,
    status_of,
    told_slow,
    unstable,
)
from pytest_torchprof.verdict.findings import (
    offered,
    placed,
    time_of,
    with_findings_in_tests,
)
from pytest_torchprof.verdict.own import metric_of, of_lost_regions, rounded, row_of, with_own
from pytest_torchprof.verdict.profile import profile_of, stored_numbers, stored_operators

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Tolerance
    from pytest_torchprof.places.place import Roots
    from pytest_torchprof.verdict.profile import Measured, Unmeasured


# ---- What is said beside a verdict: comparisons that were not made, and operators that took
# turns.

_MOST_SWAPPED = 4


def not_compared(metrics: Iterable[str], profile: Profile) -> Reason | None:
    """Why comparisons that the test makes itself could not be checked, if there are such."""
    by_reason: dict[Reason, list[str]] = {}
    values = dict(profile.metrics)
    for region, part in profile.regions.items():
        values |= {f"{region}: {name}": value for name, value in part.metrics.items()}
    for name in dict.fromkeys(metrics):
        if isinstance(value := values.get(name), MissingValue):
            by_reason.setdefault(value.reason, []).append(name)
    gaps = [
        because(
            "compared_unmeasured",
            "{metrics:, } in the test's own comparisons not checked: {why}",
            metrics=tuple(names),
            why=why,
        )
        for why, names in by_reason.items()
    ]
    return because(*Why.SEVERAL, gaps=tuple(gaps)) if gaps[1:] else next(iter(gaps), None)


def swapped_operators(profile: Profile, baseline: Baseline) -> Reason | None:
    """What no total shows: operators replaced by as many others."""
    changed = deltas(baseline.operators, profile.operators, COLUMN_OF["ops"])
    if not baseline.operators or not changed or sum(d.now - d.before for d in changed) != 0:
        return None
    shown = tuple(
        because(*Why.CHANGED, name=d.name, before=d.before, now=d.now)
        for d in changed[:_MOST_SWAPPED]
    )
    return because(
        "operators_swapped",
        "as many operators as accepted, but others: {operators:, }{left:?, …}",
        operators=shown,
        left=len(changed) - len(shown),
    )


# ---- Why a test fails, as values; `render.failure` turns them into text.

FailureKind = Literal[
    "over_budget",
    "below_budget",
    "regressed",
    "budget_unchecked",
    "metric_unchecked",
    "metric_new",
    "metric_advises",
    "improved",
    "no_baseline",
    "comparison_unchecked",
    "comparisons_unchecked",
    "baseline_unchecked",
]


class Failure(Frozen, frozen=True):
    """One cause of a failure, with its metric and reason, if it has them."""

    kind: FailureKind
    metric: str = ""
    reason: Reason | None = None

    @property
    def only_strict(self) -> bool:
        """Whether it fails a test only under ``--torchprof-strict``."""
        return self.kind not in ("over_budget", "below_budget", "regressed")


def failures(
    verdicts: Iterable[Verdict], policy: Policy, *, has_baseline: bool, accept: bool
) -> list[Failure]:
    """Why the test fails; empty when it passes.

    A value over budget always fails, and a regression unless it is being accepted. Strict mode
    adds: an unchecked budget, an improvement that is not accepted, a missing baseline.
    """
    verdicts = list(verdicts)
    failed = []
    outside = [v for v in verdicts if v.status == "over_budget"]
    if any(not v.is_below for v in outside):
        failed.append(Failure("over_budget"))
    if any(v.is_below for v in outside):
        failed.append(Failure("below_budget"))
    if not accept and "regressed" in {v.status for v in verdicts}:
        failed.append(Failure("regressed"))
    if policy.strict:
        unmeasured = [v for v in verdicts if v.status == "not_measured"]
        failed += [Failure("budget_unchecked", v.label, v.reason) for v in unmeasured if v.limited]
        failed += [
            Failure("metric_unchecked", v.label, v.reason)
            for v in unmeasured
            if not v.limited and v.baseline is not None and _is_owed(v, policy)
            if not (accept and v.reason is not None and v.reason.code == Why.NOT_RECORDED.code)
        ]
        failed += [
            Failure("metric_new", v.label)
            for v in verdicts
            if v.status == "new"
            and has_baseline
            and not accept
            and metric_of(v).stored
            and _is_owed(v, policy)
        ]
        failed += [
            Failure("metric_advises", v.label, v.reason)
            for v in verdicts
            if v.status == "advisory" and v.reason in policy.notes and not accept
        ]
        if not accept and any(v.status == "improved" for v in verdicts):
            failed.append(Failure("improved"))
        if not accept and not has_baseline:
            failed.append(Failure("no_baseline"))
    return failed


def _is_owed(verdict: Verdict, policy: Policy) -> bool:
    """Whether a missing value, measured or accepted, counts as missing under strict mode."""
    metric = metric_of(verdict)
    if verdict.metric == "findings" and isinstance(verdict.value, MissingValue):
        return False  # it depends on the order of the tests
    if metric.klass == "time" and policy.time != "gate":
        return False
    return not metric.depends_on_order


# ---- The verdict on one test: measured values, compared with the accepted ones.

#: A recorded time that is compared and differs, or is not accepted yet, is worth a diff.
_CHANGED = frozenset({"new", "regressed", "improved"})
#: Metrics that operators or rules account for, so that they have source lines.
_HAS_PLACES = {*COLUMN_OF, *ESTIMATE_COLUMN_OF, "findings", "cpu_ms"}


_WORKERS_UNCOUNTED = because(
    "dataloader_workers",
    (
        "operators in a DataLoader's workers are not counted, nor what receives "
        "their batches: the workers are separate processes, and how far ahead they "
        "are is chance"
    ),
)


class Terms(Frozen, frozen=True):
    """The session's terms for all tests: strictness, and whether values are being accepted.

    ``contended``: other processes of this session run tests at the same time.
    """

    time: Literal["advisory", "gate", "off"] = "advisory"
    strict: bool = False
    accept: bool = False
    contended: bool = False
    tolerances: tuple[Tolerance, ...] = ()


class Verdicts(Frozen, frozen=True):
    """The verdicts on a test: those of the whole, then those of its regions.

    First each value is compared, by ``policy``, with the ``baseline``; ``slower`` says why less
    work is no improvement, if there is less. Once the findings have their places, there is the
    rest: the status, ``failures`` if it fails with their ``causes``, and what ``--accept`` would
    write; ``times_changed``: its times replace the accepted ones. ``unstable``: what another run
    with another seed differs in. A test that was not measured has no ``profile``.
    """

    whole: Sequence[Verdict]
    regions: Mapping[str, Sequence[Verdict]] = {}
    measured: Measured | None = None
    profile: Profile | None = None
    baseline: Baseline | None = None
    policy: Policy = Policy()
    slower: Reason | None = None
    status: TestStatus = "not_profiled"
    failures: Sequence[Failure] = ()
    causes: Sequence[Cause] = ()
    reason: Reason | None = None
    accepts: Baseline | None = None
    times_changed: bool = False
    unstable: Unstable | None = None

    def holds_for(self, measured: Measured) -> bool:
        """Whether it is the comparison of this, too: a test may record more after its trace."""
        ours = self.measured
        return (
            ours is not None
            and ours.trace is measured.trace
            and ours.processes is measured.processes
            and ours.recorded == measured.recorded
            and ours.region_gaps == measured.region_gaps
            and (not ours.allowances or ours.located is measured.located)
        )

    @property
    def all(self) -> list[Verdict]:
        """Those of the whole test, then those of its regions."""
        return [*self.whole, *chain.from_iterable(self.regions.values())]

    @property
    def has_places(self) -> bool:
        """Whether there is anything to locate: of fewer calls than before, those that are left."""
        failing = ("regressed", "over_budget", *["improved"] * self.policy.strict)
        explained = any(v.metric in _HAS_PLACES for v in self.all if v.status in failing)
        return explained or (
            self.profile is not None and bool(new_findings(self.profile, self.baseline))
        )

    @property
    def changes(self) -> bool:
        """Whether accepting changes what explains the numbers."""
        before = self.baseline
        if before is None or before.detail is None or not before.detail.rows:
            return True
        now = self.profile
        if now is not None and (before.operators, before.kernels) != (now.operators, now.kernels):
            return True
        return any(
            v.status in ("regressed", "improved", "new") and metric_of(v).stored for v in self.all
        )

    @property
    def fails(self) -> bool:
        """Whether the measured values fail the test, if nothing is being accepted."""
        known = self.baseline is not None
        return bool(failures(self.all, self.policy, has_baseline=known, accept=False))

    @property
    def strict(self) -> bool:
        """Whether it fails for ``--torchprof-strict`` alone."""
        return bool(self.failures) and all(one.only_strict for one in self.failures)


def compared(
    measured: Measured,
    baseline: Baseline | None,
    terms: Terms,
    in_tests: Mapping[str | None, Mapping[str, int]] | None = None,
) -> Verdicts:
    """Compare each metric and each budget with the accepted values.

    ``in_tests`` counts the findings in tests' own files, of the test (None) and of each region.
    """
    policy = _policy(measured, baseline, terms)
    if measured.processes or any(one.each for one in measured.budgets):
        from pytest_torchprof.verdict.profile import of_all

        measured, profile = of_all(measured)
    else:
        profile = profile_of(measured)
    profile = with_findings_in_tests(profile, measured, baseline, in_tests)
    baseline = advising(baseline, strict=terms.strict)
    verdicts = compare(profile, baseline, measured.budgets, policy)
    regions = compare_regions(profile, baseline, policy)
    all_ = [*verdicts, *chain.from_iterable(regions.values())]
    slower = told_slow(verdicts, profile, baseline, policy)
    if any(v.status == "improved" for v in all_) and not (slower and slower.code == SLOW_CODE):
        slower = slower_with_less(verdicts, policy) or slower
    if slower is not None:
        worse = (v for v in all_ if v.status in ("regressed", "over_budget"))
        slower = slower if all(metric_of(v).klass == "time" for v in worse) else None
        verdicts = _unpraised(verdicts, slower)
        regions = {name: _unpraised(region, slower) for name, region in regions.items()}
    return Verdicts(verdicts, regions, measured, profile, baseline, policy, slower)


def _unpraised(verdicts: Sequence[Verdict], slower: Reason | None) -> list[Verdict]:
    """No improvement of a test that takes longer, which its wall time says."""
    return [
        replace(v, reason=v.reason or slower)
        if v.metric == "wall_ms" and v.status == "advisory"
        else replace(v, status="ok")
        if v.status == "improved"
        else v
        for v in verdicts
    ]


def compare_regions(
    profile: Profile, baseline: Baseline | None, policy: Policy
) -> dict[str, list[Verdict]]:
    """For each named region, a verdict per metric, compared like a test.

    Its times are not stored, or only advise: that of a small part varies too much to gate.
    """
    if policy.time == "gate":
        policy = replace(policy, time="advisory")
    found: dict[str, list[Verdict]] = {}
    for name, region in profile.regions.items():
        before = baseline and baseline.regions.get(name)
        found[name] = [
            replace(v, region=name, status="ok" if before and _is_unstored(v) else v.status)
            for v in compare(region, before, (), policy)
        ]
    return found | {name: lost for name, lost in of_lost_regions(profile, baseline) if lost}


def _is_unstored(verdict: Verdict) -> bool:
    is_time = verdict.own is None and metric_of(verdict).klass == "time"
    return is_time and verdict.status == "new"


def advice(profile: Profile, accepted: Baseline, terms: Terms) -> tuple[Reason, ...]:
    """What differs from the baseline of another environment, where only work compares."""
    policy = Policy("off", tolerances=terms.tolerances)
    return tuple(
        because(
            "changed_by",
            "{name} {before:{unit}} → {now:{unit}}",
            name=v.label,
            before=v.baseline,
            now=v.value,
            unit=metric_of(v).unit,
        )
        for v in compare(profile, accepted, (), policy)
        if v.status in ("regressed", "improved") and v.baseline is not None
        if not isinstance(v.value, MissingValue)
    )


def judged(
    measured: Measured,
    found: Verdicts,
    findings: Mapping[str | None, Iterable[Finding]],
    roots: Roots,
    terms: Terms,
) -> Verdicts:
    """The test's verdicts; ``findings`` are those of the trace (None) and of each region, with
    places.
    """
    baseline, verdicts, compared_profile = found.baseline, found.all, found.profile
    assert compared_profile is not None  # noqa: S101 - it was measured
    time_ms = time_of(compared_profile)

    def shown(name: str | None, own: Profile, accepted: Baseline | None) -> Profile:
        found, accept = findings.get(name, ()), terms.accept
        located = placed(found, measured, own, accepted, roots, time_ms=time_ms, accept=accept)
        return replace(own, findings=located)

    regions = {
        name: shown(name, own, baseline and baseline.regions.get(name))
        for name, own in compared_profile.regions.items()
    }
    profile = replace(shown(None, compared_profile, baseline), regions=regions)
    if measured.mismatch is not None:
        return _mismatched(measured.mismatch, replace(found, profile=profile))
    known = baseline is not None
    failed = failures(verdicts, found.policy, has_baseline=known, accept=terms.accept)
    if found.policy.strict:
        failed += [
            Failure("comparison_unchecked", metric) for metric in dict.fromkeys(measured.unmeasured)
        ]
        if measured.pairs_gap is not None:
            failed.append(Failure("comparisons_unchecked", reason=measured.pairs_gap))
    status = status_of(verdicts, has_baseline=known)
    told = {*(note.code for note in found.policy.notes), Why.ORDER_CHANGED.code}
    advised = (v.reason for v in verdicts if v.status == "advisory" and v.reason is not None)
    other = next((why for why in advised if why.code in told), None)
    swapped = None
    if baseline is not None and found.policy.cpu_note is None and status in ("ok", "improved"):
        swapped = swapped_operators(profile, baseline)
    quiet = not (terms.contended or measured.busy)
    again, run = None, reseeded(measured)
    if run is not None:
        # Its findings have no places; the library's are those beyond the ones in tests.
        counted: dict[str | None, Mapping[str, int]] = {None: compared_profile.findings_in_tests}
        for name, part in compared_profile.regions.items():
            counted[name] = part.findings_in_tests
        again = with_findings_in_tests(profile_of(run), run, None, counted)
        # Its modules are not marked, without which a rule may find something else.
        again = replace(again, found={}) if run.checked.wants_module_calls else again
    reasons = (
        found.slower,
        other,
        swapped,
        _WORKERS_UNCOUNTED if uses_workers(measured.trace) else None,
        not_compared(measured.unmeasured, profile),
        measured.pairs_gap,
    )
    varies = None
    if again is not None:
        tolerances = found.policy.tolerances
        varies = unstable(compared_profile, again, drawn=measured.draws, tolerances=tolerances)
    return replace(
        found,
        profile=profile,
        status=status,
        failures=failed,
        reason=next(filter(None, reasons), None),
        accepts=_accepts(measured, found, again, quiet=quiet, accept=terms.accept),
        times_changed=_times_changed(verdicts, quiet=quiet)
        or (not found.policy.other_machine and has_sped_up(profile, baseline)),
        unstable=varies,
    )


def not_profiled(unmeasured: Unmeasured, terms: Terms, *, has_baseline: bool) -> Verdicts:
    """The verdicts on a test that was not measured."""
    reason = unmeasured.reason
    verdicts = all_unchecked(unmeasured.budgets, reason)
    policy = Policy(terms.time, terms.strict)
    failed = failures(verdicts, policy, has_baseline=True, accept=False)
    if terms.strict and has_baseline and not terms.accept:
        failed.append(Failure("baseline_unchecked", reason=reason))
    if terms.strict and unmeasured.stats_asked:
        failed.append(Failure("comparisons_unchecked", reason=reason))
    return Verdicts(verdicts, policy=policy, failures=failed, reason=reason)


def all_unchecked(budgets: Iterable[Budget], reason: Reason) -> list[Verdict]:
    """The budgets of a test that was not profiled, each not measured."""
    nothing = MissingValue(reason)
    verdicts = [
        Verdict(
            b.metric, nothing, "not_measured", limit=b.limit, least=b.least, reason=reason, scope=b
        )
        for b in budgets
    ]
    return with_own(verdicts, {})


def _policy(measured: Measured, baseline: Baseline | None, terms: Terms) -> Policy:
    note = None
    chip = other_chip(measured, baseline)
    if terms.contended:
        note = because(
            "workers_contend", "xdist's workers contend for the CPU, so time only advises"
        )
    elif measured.busy:
        note = because(
            "machine_busy",
            "the machine was busy, so time only advises: {signs:, }",
            signs=measured.busy,
        )
    elif baseline is not None and baseline.times.get("machine") != measured.host:
        note = because(*Why.OTHER_MACHINE, machine=str(baseline.times.get("machine")))
    cpu = other_cpu(measured, baseline)
    other = baseline is not None and baseline.times.get("machine") != measured.host
    return Policy(terms.time, terms.strict, note, cpu, chip, terms.tolerances, other)


def _mismatched(mismatch: Mapping[str, str], found: Verdicts) -> Verdicts:
    """The verdict on a test that a comparison of its own has failed already.

    A mismatch counts as regressed, unless the metric is over budget; any other comparison is a
    budget of the test's own.
    """
    verdicts = [
        replace(
            v,
            status="regressed",
            reason=because(
                "inline_expects", "the inline expectation is {expected}", expected=expected
            ),
        )
        if (expected := mismatch.get(v.label)) and v.status != "over_budget"
        else v
        for v in found.all
    ]
    worst = status_of(verdicts, has_baseline=True)
    status: TestStatus = "regressed" if mismatch and worst != "over_budget" else "over_budget"
    reason = because(*(Why.INLINE_MISMATCH if mismatch else Why.COMPARISON_FAILED))
    return replace(found, whole=verdicts, regions={}, status=status, reason=reason)


def _accepts(
    measured: Measured, found: Verdicts, again: Profile | None, *, quiet: bool, accept: bool
) -> Baseline:
    """What ``--accept`` would write; ``again``: the profile of a run with another seed.

    ``quiet``: nothing else kept the machine busy, so the times are fit to compare with later.
    """
    profile = found.profile
    assert profile is not None  # noqa: S101 - it was measured
    times: dict[str, Any] = {
        key: rounded(value) if key in profile.own else round(value, 6)
        for key, value in profile.metrics.items()
        if not isinstance(value, MissingValue) and row_of(key, profile.own).klass == "time"
    }
    times["machine"] = measured.host
    if profile.normalised is not None and not measured.busy:
        # Beside other workers, a test waits, but takes no more CPU time than the reference kernel.
        kept = profile.normalised
        if not quiet:
            of_cpu = {name: one for name, one in kept.values.items() if name == "cpu_ms"}
            kept = replace(kept, values=of_cpu, own={})
        times["normalised"] = kept.stored()
    # Reads operands, so only where it is written.
    cpu = measured.cpu_capability if accept and depends_on_cpu(measured.trace) else None
    return replace(
        _numbers(profile, found.whole, found.baseline),
        findings=offered(measured, profile, found.baseline),
        findings_in_tests=profile.findings_in_tests,
        times=times,
        cpu_capability=cpu,
        unstable=ranges_of(profile, again, found.baseline, found.policy.tolerances),
        seed=measured.seed,
        chip=measured.trace.facts.chip,
        draws=measured.draws,
        ranks={label: stored_numbers(own) for label, own in profile.ranks.items()},
        regions={
            name: replace(
                _numbers(
                    region, found.regions[name], found.baseline and found.baseline.regions.get(name)
                ),
                findings={rule: n for rule, n in sorted(region.compared.items()) if n},
                findings_in_tests=region.findings_in_tests,
                laps=region.laps,
                times=_own_times(region),
                unstable=ranges_of(
                    region,
                    again and again.regions.get(name),
                    found.baseline and found.baseline.regions.get(name),
                    found.policy.tolerances,
                ),
            )
            for name, region in profile.regions.items()
            if not all(isinstance(value, MissingValue) for value in region.metrics.values())
        },
    )


def _numbers(profile: Profile, verdicts: Sequence[Verdict], accepted: Baseline | None) -> Baseline:
    """The metrics, operators and kernels to accept; a value within its tolerance stays."""
    near = {
        v.metric: v
        for v in verdicts
        if v.baseline is not None and not isinstance(v.value, MissingValue)
        if alike(v.baseline, v.value, v.tolerance, v.margin)
    }
    within = {name: v.baseline for name, v in near.items() if v.baseline is not None}
    metrics = {
        key: within.get(key, value)
        for key, value in profile.metrics.items()
        if not isinstance(value, MissingValue) and row_of(key, profile.own).stored
    }
    own = {key: metrics.pop(key) for key in profile.own if key in metrics}
    # What is still declared and was not measured this time stays.
    own |= {
        v.metric: v.baseline
        for v in verdicts
        if v.status == "not_measured" and v.metric in profile.own and v.baseline is not None
        if v.scope is None and metric_of(v).stored
    }
    # Without rules gated by a metric of their own, which depend on what ran before.
    metrics["findings"] = sum(profile.compared.values())
    before = accepted.operators if accepted is not None else {}
    operators = stored_operators(profile.operators)
    for name, row in operators.items():
        for column, n in row.items():
            kept, metric = before.get(name, {}).get(column), near.get(column)
            if kept is not None and metric and alike(kept, n, metric.tolerance, metric.margin):
                row[column] = kept
    return Baseline(metrics, operators, dict(profile.kernels), own=own)


def _own_times(region: Profile) -> dict[str, Number]:
    """Times that the test records in a region, which only advise."""
    return {
        key: rounded(value)
        for key, value in region.metrics.items()
        if key in region.own and row_of(key, region.own).klass == "time"
        if not isinstance(value, MissingValue)
    }


def _times_changed(verdicts: Sequence[Verdict], *, quiet: bool) -> bool:
    for v in verdicts:
        if v.metric == "cpu_ms" and v.status == "regressed":
            return True
        if v.own is not None and v.status in _CHANGED and metric_of(v).klass == "time":
            return True
        if v.reason is not None and v.reason.code == Why.NOT_RECORDED.code:
            return True
        if v.metric in GATED_TIMES and (
            v.status in ("regressed", "improved")
            # With a reason, the accepted time is not fit for gating.
            or (quiet and v.reason is not None and v.baseline)
        ):
            return True
    return False
