"""The verdict on one test: measured against accepted, a record, and what to say if it fails."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.analysis.diff import COLUMN_OF, deltas
from pytest_torchprof.analysis.elsewhere import WORKERS, uses_workers
from pytest_torchprof.baseline import store
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import why
from pytest_torchprof.core.plain import Plain
from pytest_torchprof.core.results import Baseline, NotMeasured, Profile, Verdict
from pytest_torchprof.render import escape
from pytest_torchprof.render.failure import failure_message
from pytest_torchprof.render.json_report import record_of
from pytest_torchprof.session.found import Roots, Whereabouts, lines_gap, offered, placed
from pytest_torchprof.session.profiles import profile_of, shown_operator
from pytest_torchprof.verdict.comparison import (
    GATED_TIMES,
    Policy,
    compare,
    failures,
    grown,
    status_of,
)
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.plan import Plan
    from pytest_torchprof.session.recorder import Mismatch, Recorder
    from pytest_torchprof.trace.events import Trace

_MOST_SWAPPED = 4
#: Of a trace's file name, without its number and ending.
_STEM_BYTES = 150


#: Metrics that operators or rules account for, which have places.
_HAS_PLACES = {*COLUMN_OF, "findings"}


class Subject(Plain, frozen=True):
    """The test that is judged: its id, its name within its file, and its baseline file.

    ``accept_command`` says what to type to have its values accepted, and ``ab_command`` to have its
    time compared with that of another revision.
    """

    nodeid: str
    name: str
    baseline: Path
    accept_command: Callable[[], str]
    ab_command: Callable[[], str]


class Compared(Plain, frozen=True):
    """A trace's profile beside what is accepted, and what comes of it."""

    trace: Trace
    profile: Profile
    baseline: Baseline | None
    policy: Policy
    verdicts: list[Verdict]

    @property
    def has_places(self) -> bool:
        """Whether there is something to locate."""
        bad = [v.metric for v in self.verdicts if v.status in ("regressed", "over_budget")]
        explained = any(metric.split("[")[0] in _HAS_PLACES for metric in bad)
        return explained or bool(grown(self.profile, self.baseline))

    @property
    def fails(self) -> bool:
        """Whether the test fails by what was measured, where nothing is being accepted."""
        known = self.baseline is not None
        return bool(failures(self.verdicts, self.policy, has_baseline=known, accept=False))


#: Why limits of a test are not checked that stand beside the marker that leaves it out.
LEFT_OUT = "@pytest.mark.torchprof(enabled=False) leaves the test out"


class Judgement(Plain, frozen=True):
    """A test's record for the report, its offer for ``--accept``, and why it fails, if it does."""

    record: dict[str, Any]
    offer: dict[str, Any] | None
    message: str | None


class Judge:
    """Compares tests with their baselines, each file of which is read once."""

    def __init__(self, settings: Settings, root: Path, *, is_worker: bool) -> None:
        self._settings = settings
        self._roots = Roots(root)
        self._compared: Compared | None = None
        self._is_worker = is_worker
        self._baselines: dict[Path, dict[str, Any] | BaselineError | None] = {}

    def judge(self, subject: Subject, recorder: Recorder) -> Judgement:
        """Judge what the recorder holds.

        Raises:
            BaselineError: the baseline file cannot be read.
        """
        if recorder.reason is None and recorder.trace is None:
            raised = recorder.raised
            what = f"the measured block raised {raised}" if raised else "nothing was captured"
            recorder.refuse(what)
        if recorder.reason is not None:
            self._compared = None
            return self._not_profiled(subject, recorder)
        compared, self._compared = self._compare(subject, recorder), None
        baseline, policy, verdicts = compared.baseline, compared.policy, compared.verdicts
        accept = self._settings.accept
        findings = placed(recorder, compared.profile, baseline, self._roots, accept=accept)
        profile = replace(compared.profile, findings=findings)
        if recorder.mismatch is not None:
            verdicts = _with_mismatch(verdicts, recorder.mismatch)
            return self._mismatched(subject, recorder, profile, verdicts)
        known = baseline is not None
        causes = failures(verdicts, policy, has_baseline=known, accept=accept)
        if policy.strict:
            causes += [
                f"strict: {metric} was compared in the test, and not measured"
                for metric in dict.fromkeys(recorder.unchecked)
            ]
        status = status_of(verdicts, has_baseline=known)
        swapped = _swapped(profile, baseline) if baseline and status in ("ok", "improved") else None
        record = record_of(
            subject.nodeid,
            status=status,
            reason=swapped or (WORKERS if uses_workers(compared.trace) else None),
            verdicts=verdicts,
            profile=profile,
            trace=self.keep_trace(subject.nodeid, recorder, failed=bool(causes)),
        )
        message = None
        if causes:
            command = None if accept else subject.accept_command()
            message = failure_message(
                causes,
                verdicts,
                profile,
                baseline,
                command,
                ab_command=subject.ab_command(),
                where=self._where(recorder),
                lines_gap=lines_gap(recorder) if not accept and compared.has_places else None,
            )
        offer = _offer(
            subject, compared, recorder, quiet=not (self._is_worker or recorder.rounds.busy)
        )
        offer["findings"] = offered(profile, baseline, recorder.plan)
        return Judgement(record, offer, message)

    def left_out(self, plan: Plan) -> str | None:
        """Why a test fails that has limits and is not to be profiled, if it does."""
        policy = Policy(self._settings.time, self._settings.strict)
        unchecked = all_unchecked(plan, LEFT_OUT)
        causes = failures(unchecked, policy, has_baseline=True, accept=False)
        return escape.line(f"torchprof: {'; '.join(causes)}") if causes else None

    def forget(self) -> None:
        """Let go of the test's trace, judged or not."""
        self._compared = None

    def wants_lines(self, subject: Subject, recorder: Recorder) -> bool:
        """Whether there is something to locate: a finding that is not accepted, or a failure.

        Nothing is located while accepting, nor where nobody would read it: findings that fail no
        test have their places in the report alone.
        """
        if self._settings.accept or recorder.mismatch is not None:
            return False
        try:
            compared = self._compare(subject, recorder)
        except BaselineError:
            return False
        return compared.has_places and (self._settings.json is not None or compared.fails)

    def _compare(self, subject: Subject, recorder: Recorder) -> Compared:
        """Worked out once for a trace, by whoever asks first."""
        if self._compared is None or self._compared.trace is not recorder.trace:
            machine = recorder.machine
            baseline = store.entry_of(self.load(subject.baseline), subject.name, machine.key)
            policy = self._policy(baseline, machine.host, recorder.rounds.busy)
            profile = profile_of(recorder)
            verdicts = compare(profile, baseline, recorder.plan.budgets, policy)
            self._compared = Compared(recorder.checked.trace, profile, baseline, policy, verdicts)
        return self._compared

    def _where(self, recorder: Recorder) -> Whereabouts | None:
        if recorder.located is None:
            return None
        trace = recorder.checked.trace
        return Whereabouts(trace, recorder.located, self._roots, shown_operator)

    def _mismatched(
        self, subject: Subject, recorder: Recorder, profile: Profile, verdicts: Sequence[Verdict]
    ) -> Judgement:
        """An inline expectation has failed the test already: a comparison like any other."""
        worst = status_of(verdicts, has_baseline=True)
        record = record_of(
            subject.nodeid,
            status=worst if worst == "over_budget" else "regressed",
            reason="the inline expectation does not match",
            verdicts=verdicts,
            profile=profile,
            trace=self.keep_trace(subject.nodeid, recorder, failed=True),
        )
        return Judgement(record, None, None)

    def _not_profiled(self, subject: Subject, recorder: Recorder) -> Judgement:
        reason = recorder.reason or ""
        verdicts = all_unchecked(recorder.plan, reason)
        policy = Policy(self._settings.time, self._settings.strict)
        causes = failures(verdicts, policy, has_baseline=True, accept=False)
        accepted = store.entry_of(self.load(subject.baseline), subject.name, recorder.machine.key)
        if policy.strict and accepted is not None and not self._settings.accept:
            causes.append(f"strict: it has a baseline and could not be measured: {reason}")
        if policy.strict and recorder.stats_asked:
            causes.append(f"strict: the test compares numbers that were not measured: {reason}")
        record = record_of(subject.nodeid, status="not_profiled", reason=reason, verdicts=verdicts)
        message = escape.line(f"torchprof: {'; '.join(causes)}") if causes else None
        return Judgement(record, None, message)

    def _policy(self, baseline: Baseline | None, host: str, busy: str | None) -> Policy:
        note = None
        if self._is_worker:
            note = "xdist's workers contend for the CPU, so time only advises"
        elif busy:
            note = f"the machine was busy, so time only advises: {busy}"
        elif baseline is not None and baseline.times.get("machine") != host:
            note = f"the baseline's times are of another machine ({baseline.times.get('machine')})"
        return Policy(self._settings.time, self._settings.strict, note)

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

    def keep_trace(self, nodeid: str, recorder: Recorder, *, failed: bool) -> str | None:
        """Copy the exported trace to where the user wants it, if he does; its path there."""
        wanted = failed or self._settings.traces_of == "all"
        if recorder.file is None or self._settings.traces is None or not wanted:
            return None
        try:
            self._settings.traces.mkdir(parents=True, exist_ok=True)
            stem = _file_stem(nodeid)
            kept = self._settings.traces / f"{stem}.pt.trace.json.gz"
            recorder.export(kept)
            return str(kept)
        except OSError as error:
            place = f"traces cannot be kept in {self._settings.traces}"
            recorder.faults.append(f"{place}: {why(error)}; name another with --torchprof-traces")
            return None


def _offer(
    subject: Subject, compared: Compared, recorder: Recorder, *, quiet: bool
) -> dict[str, Any]:
    """What ``--accept`` would write; the controller decides.

    ``quiet``: nothing else kept the machine busy, so the times are worth to be compared with later.
    """
    profile, verdicts = compared.profile, compared.verdicts
    within = {
        v.metric: v.baseline
        for v in verdicts
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
    times["machine"] = recorder.machine.host
    if quiet and profile.normalised is not None:
        times["normalised"] = profile.normalised.stored()
    gated = any(
        v.metric in GATED_TIMES
        # A reason says why the accepted time is none to gate on.
        and (v.status in ("regressed", "improved") or (quiet and v.reason and v.baseline))
        for v in verdicts
    )
    return {
        "path": str(subject.baseline),
        "test": subject.name,
        "environment": recorder.machine.key,
        "metrics": metrics,
        "operators": {k: dict(v) for k, v in profile.operators.items()},
        "kernels": dict(profile.kernels),
        "times": times,
        "times_changed": gated,
        "edits": [edit.sent() for edit in recorder.edits],
    }


def _swapped(profile: Profile, baseline: Baseline) -> str | None:
    """What no total shows: operators that others have taken the place of."""
    changed = deltas(baseline.operators, profile.operators, COLUMN_OF["ops"])
    if not baseline.operators or not changed or sum(d.now - d.before for d in changed) != 0:
        return None
    shown = [f"{d.name} {d.before} → {d.now}" for d in changed[:_MOST_SWAPPED]]
    left = ", …" if changed[_MOST_SWAPPED:] else ""
    return f"as many operators as accepted, but others: {', '.join(shown)}{left}"


def _with_mismatch(verdicts: Sequence[Verdict], mismatch: Mismatch) -> list[Verdict]:
    """What is not as expected inline counts as regressed, unless it is over budget."""
    return [
        replace(v, status="regressed", reason=f"the inline expectation is {expected}")
        if (expected := mismatch.expected.get(v.metric)) and v.status != "over_budget"
        else v
        for v in verdicts
    ]


def all_unchecked(plan: Plan, reason: str) -> list[Verdict]:
    """The budgets of a test that was not profiled, each not measured."""
    nothing = NotMeasured(reason)
    return [
        Verdict(b.label, nothing, "not_measured", limit=b.limit, reason=reason)
        for b in plan.budgets
    ]


def _file_stem(nodeid: str) -> str:
    """A file name for a test; with a number where it would not lead back to this test alone."""
    words = re.sub(r"[^\w.\[\]/:-]+", "_", nodeid)
    whole = words.replace("::", ".").replace("/", "+").replace(":", "_")
    # A file's name has 255 bytes in most systems, of which others than letters of ASCII take more.
    stem = whole.encode(errors="replace")[-_STEM_BYTES:].decode(errors="ignore")
    file, _, names = stem.partition(".py.")
    names, bracket, parameters = names.partition("[")
    back = f"{file.replace('+', '/')}.py::{names.replace('.', '::')}{bracket}{parameters}"
    number = zlib.crc32(nodeid.encode(errors="backslashreplace"))
    return stem if back == nodeid else f"{stem}-{number:08x}"
