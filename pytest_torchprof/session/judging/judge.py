"""The verdict on one test: measured against accepted, a record, and what to say if it fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.baseline import store
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import Record
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.places.place import by_operator
from pytest_torchprof.places.roots import CallSites, Roots
from pytest_torchprof.render.failure import failure_message, short_message
from pytest_torchprof.session.faults import is_fault, reason_for, said
from pytest_torchprof.session.judging.kept_traces import KeptTraces
from pytest_torchprof.session.judging.offer import Offer
from pytest_torchprof.verdict.judgement import (
    Compared,
    Judged,
    Terms,
    compared,
    judged,
    not_profiled,
)
from pytest_torchprof.verdict.measured import Measured, Unmeasured
from pytest_torchprof.verdict.profile import shown_operator

if TYPE_CHECKING:
    from pytest_torchprof.baseline.inline import Edit
    from pytest_torchprof.core.results import Baseline, Finding
    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.judging.kept_traces import Export
    from pytest_torchprof.session.judging.subject import Subject
    from pytest_torchprof.session.plan import Plan

#: The profiled run decided the outcome too, and nothing was to be run after it.
_ONLY_RUN = because(Why.ONLY_RUN)


class Judgement(Frozen, frozen=True):
    """A test's record for the report, its offer for ``--accept``, and why it fails, if it does.

    ``faults`` are errors on the way that the test is not to blame for.
    """

    record: Record
    offer: Offer | None
    message: str | None
    faults: tuple[str, ...] = ()


class Judge:
    """Judges tests: reads their baselines, each file once, keeps traces, and has it all told."""

    def __init__(self, settings: Settings, root: Path, *, is_worker: bool) -> None:
        self._settings = settings
        self.traces = KeptTraces(settings)
        self._roots = Roots(root)
        self._compared: Compared | None = None
        self._terms = Terms(settings.time, settings.strict, settings.accept, contended=is_worker)
        self._baselines: dict[Path, dict[str, Any] | BaselineError | None] = {}

    def judge(
        self,
        subject: Subject,
        result: Measured | Unmeasured,
        *,
        edits: Iterable[Edit] = (),
        export: Export | None = None,
    ) -> Judgement:
        """Judge what the runs have come to; ``edits`` are inline expectations to be rewritten.

        Raises:
            BaselineError: the baseline file cannot be read.
        """
        if isinstance(result, Unmeasured):
            self._compared = None
            known = self._accepted(subject, result.environment) is not None
            verdict = not_profiled(result, self._terms, has_baseline=known)
            record = _record(subject, verdict, None)
            return Judgement(record, None, short_message(verdict.causes))
        compared, self._compared = self._compare(subject, result), None
        measured, findings, faults = _located(result)
        verdict = judged(measured, compared, findings, self._roots, self._terms)
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
            )
        record = _record(subject, verdict, kept.path)
        return Judgement(record, offer, message, (*faults, *kept.faults))

    def left_out(self, plan: Plan) -> str | None:
        """Why a test fails that has limits and is not to be profiled, if it does."""
        missing = Unmeasured(because(Why.LEFT_OUT), "", plan.budgets)
        return short_message(not_profiled(missing, self._terms, has_baseline=False).causes)

    def forget(self) -> None:
        """Let go of the test's trace, judged or not."""
        self._compared = None

    def wants_lines(self, subject: Subject, measured: Measured) -> bool:
        """Whether there is something to locate: a finding that is not accepted, or a failure.

        Nothing is located while accepting, nor where nobody would read it: findings that fail no
        test have their places in the report alone.
        """
        if self._settings.accept or measured.mismatch is not None:
            return False
        try:
            compared = self._compare(subject, measured)
        except BaselineError:
            return False
        return compared.has_places and (self._settings.json is not None or compared.fails)

    def _compare(self, subject: Subject, measured: Measured) -> Compared:
        """Worked out once for a trace, by whoever asks first."""
        if self._compared is None or self._compared.trace is not measured.trace:
            baseline = self._accepted(subject, measured.environment)
            self._compared = compared(measured, baseline, self._terms)
        return self._compared

    def _accepted(self, subject: Subject, environment: str) -> Baseline | None:
        return store.entry_of(self.load(subject.baseline), subject.name, environment)

    def _message(
        self, subject: Subject, measured: Measured, compared: Compared, verdict: Judged
    ) -> str:
        accept, where = self._settings.accept, None
        if measured.located is not None:
            where = CallSites(measured.trace, measured.located, self._roots, shown_operator)
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

    def load(self, path: Path) -> dict[str, Any] | None:
        """The decoded baseline file, read once; raises the BaselineError of that time again."""
        if path not in self._baselines:
            try:
                self._baselines[path] = store.load(path, merging=self._settings.accept)
            except BaselineError as error:
                self._baselines[path] = error
        found = self._baselines[path]
        if isinstance(found, BaselineError):
            raise found
        return found


def _located(measured: Measured) -> tuple[Measured, tuple[Finding, ...], tuple[str, ...]]:
    """The findings, by line if possible, and faults: what goes wrong with lines decides nothing."""
    faults: tuple[str, ...] = ()
    if measured.located is not None:
        try:
            return measured, measured.checked.findings(measured.located), faults
        except Exception as error:  # noqa: BLE001 - the numbers are right all the same
            faults = (said(error),) if is_fault(error) else ()
            measured = replace(measured, located=None, lines_gap=reason_for(error))
    return measured, measured.checked.findings(by_operator), faults


def _record(subject: Subject, verdict: Judged, trace: str | None) -> Record:
    profile = verdict.profile
    return Record(
        subject.nodeid,
        verdict.status,
        verdict.reason,
        {v.label: v for v in verdict.verdicts},
        profile.findings if profile is not None else (),
        profile.unchecked if profile is not None else {},
        trace,
    )
