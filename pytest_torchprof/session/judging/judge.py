"""The verdict on one test: its comparison with the baseline, a record, and a failure message."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.baseline import store
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import Record, RegionRecord
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.places.place import by_operator
from pytest_torchprof.places.roots import CallSites, Roots, joined
from pytest_torchprof.render.failure import failure_message, short_message
from pytest_torchprof.session.faults import is_fault, message_of, reason_for
from pytest_torchprof.session.judging.accept_offer import Offer
from pytest_torchprof.session.judging.kept_traces import KeptTraces
from pytest_torchprof.trace.regions import named_regions
from pytest_torchprof.verdict.judgement import (
    Compared,
    Judged,
    Terms,
    advice,
    compared,
    judged,
    not_profiled,
)
from pytest_torchprof.verdict.measured import Measured, Unmeasured
from pytest_torchprof.verdict.profile import shown_operator
from pytest_torchprof.verdict.regions import view_of

if TYPE_CHECKING:
    from pytest_torchprof.baseline.inline import Edit
    from pytest_torchprof.core.results import Baseline, Finding, Profile
    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.render.call_sites import Where
    from pytest_torchprof.session.judging.kept_traces import Export
    from pytest_torchprof.session.judging.subject import Subject
    from pytest_torchprof.session.plan import Plan

#: The profiled run was the test's only run.
_ONLY_RUN = because(Why.ONLY_RUN)


class Judgement(Frozen, frozen=True):
    """A test's record for the report, its offer for ``--accept``, and its failure message, if any.

    ``faults`` are errors that the test did not cause.
    """

    record: Record
    offer: Offer | None
    message: str | None
    faults: tuple[str, ...] = ()


class Judge:
    """Judges tests: reads each baseline file once, keeps traces, and makes messages."""

    def __init__(self, settings: Settings, root: Path, *, is_worker: bool) -> None:
        self._settings = settings
        self.traces = KeptTraces(settings)
        self._roots = Roots(root)
        self._compared: Compared | None = None
        self._terms = Terms(
            settings.time, settings.strict, settings.accept, is_worker, settings.tolerances
        )
        self._baselines: dict[Path, dict[str, Any] | BaselineError | None] = {}

    def judge(
        self,
        subject: Subject,
        result: Measured | Unmeasured,
        *,
        edits: Iterable[Edit] = (),
        export: Export | None = None,
    ) -> Judgement:
        """Judge the result of the runs; ``edits`` are inline expectations to rewrite.

        Raises:
            BaselineError: the baseline file cannot be read.
        """
        if isinstance(result, Unmeasured):
            self._compared = None
            known = self._accepted(subject, result.environment) is not None
            verdict = not_profiled(result, self._terms, has_baseline=known)
            record = replace(_record(subject, verdict, None), has_baseline=known)
            return Judgement(record, None, short_message(verdict.causes))
        compared, self._compared = self._compare(subject, result), None
        measured, findings, faults = _located(result)
        verdict = judged(measured, compared, findings, self._roots, self._terms)
        if verdict.status == "new" and not self._settings.accept:
            verdict = self._against_elsewhere(subject, measured, verdict)
        failed = bool(verdict.causes) or measured.mismatch is not None
        kept = self.traces.keep(subject.nodeid, export, failed=failed)
        message = self._message(subject, measured, compared, verdict) if verdict.causes else None
        offer = None
        if verdict.accepts is not None:
            offer = Offer(
                str(subject.baseline),
                subject.name,
                measured.environment,
                verdict.accepts,
                verdict.times_changed,
                tuple(edits),
                tuple(v.metric for v in verdict.verdicts if v.at_least and v.status == "regressed"),
                tuple(compared.profile.own.values()),
            )
        record = _record(subject, verdict, kept.path, _lines_lost(measured, findings[None]))
        return Judgement(record, offer, message, (*faults, *kept.faults))

    def left_out(self, plan: Plan) -> str | None:
        """The failure message of a test excluded from profiling that has limits, if it fails."""
        missing = Unmeasured(because(Why.LEFT_OUT), "", plan.budgets)
        return short_message(not_profiled(missing, self._terms, has_baseline=False).causes)

    def forget(self) -> None:
        """Release the test's trace, judged or not."""
        self._compared = None

    def wants_lines(self, subject: Subject, measured: Measured) -> bool:
        """Whether lines are worth a run: there is an unaccepted finding or a failure.

        Not while accepting, and not where nothing shows them: findings that do not fail the test
        have their lines in the JSON report only. But always where a marker allows some by place.
        """
        if measured.mismatch is not None:
            return False
        if measured.allowances:
            from pytest_torchprof.verdict.allowances import wants_places

            if wants_places(measured):
                return True
        if self._settings.accept:
            return False
        try:
            compared = self._compare(subject, measured)
        except BaselineError:
            return False
        return compared.has_places and (self._settings.json is not None or compared.fails)

    def _compare(self, subject: Subject, measured: Measured) -> Compared:
        """Computed once per trace and what is recorded beside it."""
        if self._compared is None or not self._compared.holds_for(measured):
            baseline = self._accepted(subject, measured.environment, measured.cpu_capability)
            self._compared = compared(measured, baseline, self._terms)
        return self._compared

    def _accepted(self, subject: Subject, environment: str, cpu: str = "") -> Baseline | None:
        return store.entry_of(self.load(subject.baseline), subject.name, environment, cpu)

    def _against_elsewhere(self, subject: Subject, measured: Measured, verdict: Judged) -> Judged:
        """The verdict, with what differs from a baseline of another torch or chip, as advice."""
        data = self.load(subject.baseline)
        found = store.entry_elsewhere(data, subject.name, measured.environment)
        if found is None or verdict.profile is None:
            return verdict
        there, baseline = found
        changes = advice(verdict.profile, baseline, self._terms)
        why = because(
            Why.OTHER_ENVIRONMENT,
            here=measured.environment,
            accepted=there,
            changes=changes or ("nothing",),
        )
        return replace(verdict, reason=why)

    def _message(
        self, subject: Subject, measured: Measured, compared: Compared, verdict: Judged
    ) -> str:
        accept = self._settings.accept
        where: Where | None = None
        if measured.located is not None:
            where = CallSites(measured.trace, measured.located, self._roots, shown_operator)
            if measured.located_processes:
                where = joined([where, *self._sites_of_processes(measured)])
        gap = measured.lines_gap or (None if where else _ONLY_RUN)
        assert verdict.profile is not None  # noqa: S101 - it was measured
        return failure_message(
            verdict.causes,
            verdict.verdicts,
            verdict.profile,
            compared.baseline,
            None if accept else subject.accept_command(),
            ab_command=subject.ab_command(),
            where=where,
            lines_gap=gap if not accept and compared.has_places else None,
        )

    def _sites_of_processes(self, measured: Measured) -> list[CallSites]:
        located = measured.located_processes
        return [
            CallSites(one.checked.trace, located[one.label], self._roots, shown_operator)
            for one in measured.processes
            if one.label in located
        ]

    def load(self, path: Path) -> dict[str, Any] | None:
        """The decoded baseline file, read once; an error is raised again on each call."""
        if path not in self._baselines:
            try:
                self._baselines[path] = store.load(path, merging=self._settings.accept)
            except BaselineError as error:
                self._baselines[path] = error
        found = self._baselines[path]
        if isinstance(found, BaselineError):
            raise found
        return found


def _located(
    measured: Measured,
) -> tuple[Measured, dict[str | None, tuple[Finding, ...]], tuple[str, ...]]:
    """The findings of the test and its regions, by line if possible, and faults: errors here never
    fail a test.
    """
    faults: tuple[str, ...] = ()
    if measured.located is not None:
        try:
            return measured, _findings(measured, measured.located), faults
        except Exception as error:  # noqa: BLE001 - the numbers are right all the same
            faults = (message_of(error),) if is_fault(error) else ()
            measured = replace(measured, located=None, lines_gap=reason_for(error))
    return measured, _findings(measured, by_operator), faults


def _findings(measured: Measured, placing: Placing) -> dict[str | None, tuple[Finding, ...]]:
    checked, trace = measured.checked, measured.trace
    found: dict[str | None, tuple[Finding, ...]] = {None: checked.findings(placing)}
    if any(one.checked.matches for one in measured.processes):
        from pytest_torchprof.verdict.processes import merged_findings

        located = measured.located_processes
        theirs = (
            one.checked.findings(located.get(one.label, by_operator)) for one in measured.processes
        )
        found[None] = merged_findings([found[None], *theirs])
    if checked.matches:
        for name in named_regions(trace):
            found[name] = checked.within(view_of(trace, name).selection).findings(placing)
    return found


def _lines_lost(measured: Measured, findings: tuple[Finding, ...]) -> Reason | None:
    """Why only a part of the findings has a line, if so: without one, the path stands for it."""
    lost = any(f.location == f.path for f in findings)
    return measured.lines_gap if lost and measured.located is not None else None


def _record(
    subject: Subject, verdict: Judged, trace: str | None, note: Reason | None = None
) -> Record:
    profile = verdict.profile
    regions: dict[str, Profile | None] = {v.region: None for v in verdict.verdicts if v.region}
    regions |= profile.regions if profile is not None else {}
    return Record(
        subject.nodeid,
        verdict.status,
        verdict.reason or note,
        {v.label: v for v in verdict.verdicts if v.region is None},
        profile.findings if profile is not None else (),
        profile.unchecked if profile is not None else {},
        trace,
        strict=verdict.strict,
        regions={
            name: RegionRecord(
                region.laps or 0 if region is not None else 0,
                {v.metric: v for v in verdict.verdicts if v.region == name},
                region.findings if region is not None else (),
            )
            for name, region in regions.items()
        },
        ranks=profile.ranks if profile is not None else {},
        unstable=verdict.unstable,
    )
