"""The verdicts on tests: each made after the test's runs and kept on its item for reports."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.outcomes import Failed
from _pytest.pathlib import fnmatch_ex
from msgspec.structs import replace
from pytest import StashKey  # noqa: PT013 - the name alone is needed

from pytest_torchprof.baseline import store
from pytest_torchprof.baseline.inline import Edit  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.records import Frozen, Sendable
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import (
    Baseline,
    Cause,
    Normalised,
    OwnMetric,
    Record,
    RegionRecord,
)
from pytest_torchprof.places.place import CallSites, Located, Roots, by_operator
from pytest_torchprof.places.place import joined_sites as joined
from pytest_torchprof.render import escape
from pytest_torchprof.render.failure import failure_message, short_message
from pytest_torchprof.session.faults import is_fault, message_of, reason_for
from pytest_torchprof.session.options import OPTIONS
from pytest_torchprof.trace.names import named_regions
from pytest_torchprof.verdict.findings import counted_in_tests, wants_places, worth_locating
from pytest_torchprof.verdict.judgement import (
    Terms,
    Verdicts,
    advice,
    all_unchecked,
    compared,
    judged,
    not_profiled,
)
from pytest_torchprof.verdict.profile import Measured, Unmeasured, shown_operator, view_of

if TYPE_CHECKING:
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.values import CauseKey, Finding, Profile, Settings
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.render.findings import Where
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.plan import Plan


# ---- What a test offers for ``--accept``.


class Offer(Sendable, frozen=True):
    """What ``--accept`` would write for a passing test; the controller decides.

    ``times_changed``: its times replace the accepted ones. ``edits`` are inline expectations to
    rewrite. ``dropped`` are metrics of which only a lower bound is known, above the accepted value.
    ``own`` are the metrics that the user has defined.
    """

    path: str
    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False
    edits: tuple[Edit, ...] = ()
    dropped: tuple[str, ...] = ()
    own: tuple[OwnMetric, ...] = ()


# ---- Trace files that the user wants to keep, named after their tests.

#: The longest stem of a trace's file name, in bytes.
_STEM_BYTES = 150

#: Writes a trace's file, compressed.
Export = Callable[[Path], None]


def _file_stem(nodeid: str) -> str:
    """A file name for a test; with a hash if other tests could have the same name."""
    words = re.sub(r"[^\w.\[\]/:-]+", "_", nodeid)
    whole = words.replace("::", ".").replace("/", "+").replace(":", "_")
    # Most systems limit a file name to 255 bytes, and non-ASCII letters take several.
    stem = whole.encode(errors="replace")[-_STEM_BYTES:].decode(errors="ignore")
    file, _, names = stem.partition(".py.")
    names, bracket, parameters = names.partition("[")
    back = f"{file.replace('+', '/')}.py::{names.replace('.', '::')}{bracket}{parameters}"
    number = zlib.crc32(nodeid.encode(errors="backslashreplace"))
    return stem if back == nodeid else f"{stem}-{number:08x}"


# ---- The verdict on one test: its comparison with the baseline, a record, and a failure message.

#: The profiled run was the test's only run.
_ONLY_RUN = because(*Why.ONLY_RUN)


class Outcome(Sendable, frozen=True, omit_defaults=True):
    """The result of one phase of a test, as it is attached to pytest's report.

    ``record`` and ``offer`` are the test's so far; ``ours``: the plugin failed it. ``runs`` counts
    its runs in this phase. ``faults`` are errors that no test caused.
    """

    record: Record | None = None
    offer: Offer | None = None
    ours: bool = False
    runs: int = 0
    faults: tuple[str, ...] = ()


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
        from pytest_torchprof.verdict.profile import merged_findings

        located = measured.located_processes
        theirs = (
            one.checked.findings(located.get(one.label, by_operator)) for one in measured.processes
        )
        found[None] = merged_findings([found[None], *theirs])
    if checked.matches:
        for name in named_regions(trace):
            found[name] = checked.of_part(view_of(trace, name)).findings(placing)
    return found


def _record(
    subject: Subject, verdict: Verdicts, trace: str | None, note: Reason | None = None
) -> Record:
    profile = verdict.profile
    regions: dict[str, Profile | None] = {v.region: None for v in verdict.all if v.region}
    regions |= profile.regions if profile is not None else {}
    return Record(
        subject.nodeid,
        verdict.status,
        verdict.reason or note,
        {v.label: v for v in verdict.all if v.region is None},
        profile.findings if profile is not None else (),
        profile.unchecked if profile is not None else {},
        trace,
        strict=verdict.strict,
        regions={
            name: RegionRecord(
                region.laps or 0 if region is not None else 0,
                {v.metric: v for v in verdict.all if v.region == name},
                region.findings if region is not None else (),
            )
            for name, region in regions.items()
        },
        ranks=profile.ranks if profile is not None else {},
        unstable=verdict.unstable,
        causes=tuple(verdict.causes),
    )


# ---- The exception that the plugin fails a test with, recognizable by its type.


class OwnFailure(Failed):
    """As `pytest.fail` raises it without a traceback."""

    __module__ = Failed.__module__

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


#: Reports and other plugins recognize a failure by this name.
OwnFailure.__name__ = OwnFailure.__qualname__ = Failed.__name__


# ---- The test that is judged: its names, its baseline file, and commands to run for it.


class Subject(Frozen, frozen=True):
    """The test that is judged: its id, its name within its file, and its baseline file.

    ``accept_command`` makes the command that accepts its values, and ``ab_command`` the one that
    compares its time with that of another revision. If it is not ``is_heard``, as under `xfail`,
    nobody sees its message.
    """

    nodeid: str
    name: str
    baseline: Path
    accept_command: Callable[[], str]
    ab_command: Callable[[], str]
    gone: Callable[[Iterable[str]], list[str]]
    is_heard: bool = True


def name_of(item: pytest.Item) -> str:
    """A test's name within its file: node id after the file, parameters included."""
    return item.nodeid.partition("::")[2] or item.nodeid


#: What a session is started through, if it is a rank of a job.
LAUNCHER: StashKey[tuple[str, ...]] = StashKey()

#: Options that change which file or which numbers an accept writes.
_REPEATED = frozenset({"warmup", "rounds", "min_time", "time", "baselines", "threads", "seed"})


def command_for(config: pytest.Config, nodeid: str) -> str:
    """The command that accepts this test's values, to paste into the user's shell."""
    # If another plugin owns --accept, it does not switch on profiling.
    ours = hasattr(config.option, "torchprof_accept")
    words = [*config.stash.get(LAUNCHER, ()), "pytest"]
    words += ["--accept"] if ours else ["--torchprof", "--accept"]
    given = {
        option.flag: config.getoption(option.dest) for option in OPTIONS if option.name in _REPEATED
    }
    given["-c"] = config.getoption("inifilename", None)
    given["--rootdir"] = config.getoption("rootdir", None)
    for flag, value in given.items():
        if value is not None:
            words += [flag, str(value)] if flag == "-c" else [f"{flag}={value}"]
    for pair in config.getoption("override_ini", None) or ():
        if not pair.startswith("strict"):  # pytest's own flags make such pairs
            words += ["-o", pair]
    return escape.command([*words, _typed(config, nodeid)])


def ab_command_for(config: pytest.Config, nodeid: str) -> str:
    """The command that compares this test's time with that of a revision, REF."""
    return escape.command(["torchprof", "ab", "REF", "--", _typed(config, nodeid)])


def _typed(config: pytest.Config, nodeid: str) -> str:
    """The node id as typed in the folder where pytest was started."""
    file, *names = nodeid.split("::")
    here = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
    return "::".join([Path(here).as_posix(), *names])


_OUTCOME = pytest.StashKey[Outcome]()
_SUBJECT = pytest.StashKey["Subject"]()
#: The error of the test's own comparison of measured numbers.
_MISMATCH = pytest.StashKey[BaseException]()


def _is_test_file(config: pytest.Config, file: str) -> bool:
    """Whether pytest would collect it, or it configures tests; relative names are from the root."""
    patterns = [*config.getini("python_files"), "conftest.py"]
    own = any(fnmatch_ex(pattern, config.rootpath / file) for pattern in patterns)
    return own and not _runs_installed(config.rootpath)


def _runs_installed(root: Path) -> bool:
    """Whether the library under test, a folder or file below ``root``, is imported as installed.

    Its lines are not the user's then: what it does is placed at the line of the test that calls it.
    """
    folders = [folder for folder in (root, root / "src") if folder.is_dir()]
    found = [sys.modules.get(one.stem) for folder in folders for one in folder.iterdir()]
    files = [Path(file).parts for module in found if (file := getattr(module, "__file__", None))]
    return any("site-packages" in parts or "dist-packages" in parts for parts in files)


class Judge:
    """Judges the tests of a session: reads each baseline file once, and keeps traces.

    ``baseline_of`` a test file is its baseline file; ``is_shared``: whether another test has the
    name of this one; ``gone``: which of the names in its baseline file no test has.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        baseline_of: Callable[[Path], Path],
        is_shared: Callable[[pytest.Item], bool],
        gone: Callable[[pytest.Item, Iterable[str]], list[str]],
        *,
        is_worker: bool,
    ) -> None:
        self._config, self._settings = config, settings
        self._baseline_of, self._is_shared, self._gone = baseline_of, is_shared, gone
        self._roots = Roots(config.rootpath, partial(_is_test_file, config))
        self._compared: Verdicts | None = None
        self._terms = Terms(
            settings.time, settings.strict, settings.accept, is_worker, settings.tolerances
        )
        self._baselines: dict[Path, dict[str, Any] | BaselineError | None] = {}
        self._details: dict[Path, store.Details] = {}
        #: The first test that failed for these causes.
        self._explained_in: dict[CauseKey, str] = {}
        #: The first test of each baseline that cannot be used, which says why.
        self._told: dict[Path, str] = {}

    # ---------------------------------------------------------------- one test

    def begin(self, item: pytest.Item) -> Callable[[Measured], bool]:
        """Start a test without a verdict; return what decides later whether to locate lines.

        Errors in its baseline file are reported when the test is judged.
        """
        item.stash[_OUTCOME] = Outcome()
        with suppress(BaselineError):
            self._load(self._subject(item).baseline)
        return partial(self._wants_lines, self._subject(item))

    def accepted_times(self, item: pytest.Item, machine: Machine) -> Normalised | None:
        """The accepted times of rounds, if they are of this machine; None if times are ignored."""
        if self._settings.time == "off":
            return None
        try:
            accepted = self._accepted(self._subject(item), machine.key, machine.cpu_capability)
        except BaselineError:
            return None
        if accepted is None or accepted.times.get("machine") != machine.host:
            return None
        return Normalised.read(accepted.times.get("normalised"))

    def judge(self, item: pytest.Item, gatherer: Gatherer) -> str | None:
        """Compare what was measured, store the outcome, and return the failure message, if any."""
        if self._is_shared(item):
            gatherer.refuse(
                because(
                    "same_name", "another test has the same name, so one baseline cannot serve both"
                )
            )
        subject, outcome, message = self._subject(item), Outcome(), None
        try:
            outcome = self._judged(subject, gatherer)
            message = outcome.record.message if outcome.record is not None else None
        except BaselineError as error:
            first = self._told.setdefault(subject.baseline, subject.nodeid)
            again = f"its baseline cannot be used: see {first}"
            told = str(error) if first == subject.nodeid else again
            gatherer.refuse(reason := because(*Why.BAD_BASELINE, message=told))
            message = escape.line(f"torchprof: {reason.text}")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        item.stash[_OUTCOME] = replace(outcome, ours=message is not None)
        return message

    def mark_failed(self, item: pytest.Item, error: BaseException) -> None:
        """Record that the test's own comparison failed it, whatever else was measured."""
        item.stash[_OUTCOME] = replace(item.stash[_OUTCOME], ours=True)
        item.stash[_MISMATCH] = error

    def leave_out(self, item: pytest.Item, plan: Plan) -> str | None:
        """The failure message of a test excluded from profiling that has limits, if it fails."""
        missing = Unmeasured(because(*Why.LEFT_OUT), "", plan.budgets)
        message = short_message(not_profiled(missing, self._terms, has_baseline=False).failures)
        item.stash[_OUTCOME] = Outcome(ours=message is not None)
        return message

    def forget(self) -> None:
        """Release the test's trace, judged or not."""
        self._compared = None

    def release(self, item: pytest.Item, *more: pytest.StashKey[Any]) -> None:
        """Release what belongs to a test that is over: pytest keeps all items."""
        keys: tuple[pytest.StashKey[Any], ...] = _OUTCOME, _SUBJECT, _MISMATCH, *more
        for key in keys:
            if key in item.stash:
                del item.stash[key]

    def final(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
        plan: Plan,
        gatherer: Gatherer | None,
        blind: Reason | None,
    ) -> Outcome:
        """The outcome of the test at this report.

        ``blind``: why no test of the session is profiled, if so.
        """
        found = item.stash.get(_OUTCOME, Outcome())
        raised = call.excinfo.value if call.excinfo is not None else None
        own = isinstance(raised, OwnFailure) or raised is item.stash.get(_MISMATCH, None)
        ours = raised is not None and own and found.ours
        if call.when == "call" and report.failed and not ours:
            # Something else failed it: a strict xfail that passed, or another plugin's checks.
            item.stash[_OUTCOME] = found = Outcome(ours=found.ours)
        record = found.record
        if record is None:
            left_out = because(*Why.LEFT_OUT) if plan.left_out else blind
            reason = (gatherer.reason if gatherer else left_out) or _why_not(report)
            record = Record(
                item.nodeid,
                "not_profiled",
                reason,
                {v.label: v for v in all_unchecked(plan.budgets, reason)},
                # A test that failed in its own comparison of measured numbers has one.
                trace=self._keep_trace(item.nodeid, gatherer, failed=report.failed),
            )
        runs = gatherer.runs if gatherer is not None and call.when == "call" else 0
        return Outcome(record, found.offer, ours, runs)

    def _subject(self, item: pytest.Item) -> Subject:
        if (known := item.stash.get(_SUBJECT, None)) is not None:
            return known
        path = self._baseline_of(item.path)
        config, nodeid = self._config, item.nodeid
        item.stash[_SUBJECT] = made = Subject(
            nodeid,
            name_of(item),
            path,
            partial(command_for, config, nodeid),
            partial(ab_command_for, config, nodeid),
            partial(self._gone, item),
            item.get_closest_marker("xfail") is None,
        )
        return made

    def _keep_trace(self, nodeid: str, gatherer: Gatherer | None, *, failed: bool) -> str | None:
        """Keep the trace, if the settings ask for one of such a test; return its path."""
        folder, every = self._settings.traces, self._settings.traces_of == "all"
        if gatherer is None or folder is None or not (failed or every) or gatherer.export is None:
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kept = folder / f"{_file_stem(nodeid)}.pt.trace.json.gz"
            gatherer.export(kept)
        except OSError as error:
            gatherer.faults.append(
                f"traces cannot be kept in {folder}: {system_message(error)}; "
                "name another with --torchprof-traces"
            )
            return None
        return str(kept)

    # ---------------------------------------------------------------- its verdict

    def _judged(self, subject: Subject, gatherer: Gatherer) -> Outcome:
        """Judge the result of the runs.

        Raises:
            BaselineError: the baseline file cannot be read.
        """
        result = gatherer.result()
        if isinstance(result, Unmeasured):
            self._compared = None
            known = self._accepted(subject, result.environment) is not None
            verdict = not_profiled(result, self._terms, has_baseline=known)
            record = _record(subject, verdict, None)
            message = short_message(verdict.failures)
            return Outcome(replace(record, has_baseline=known, message=message))
        measured, findings, faults = _located(result)
        in_tests = None
        if measured.located is not None:
            in_tests = {
                name: counted_in_tests(found, measured, self._roots)
                for name, found in findings.items()
            }
        compared, self._compared = self._compare(subject, result, in_tests), None
        gatherer.faults += faults
        verdict = judged(measured, compared, findings, self._roots, self._terms)
        if verdict.status == "new" and not self._settings.accept:
            verdict = self._against_elsewhere(subject, measured, verdict)
        failed = bool(verdict.failures) or measured.mismatch is not None
        kept = self._keep_trace(subject.nodeid, gatherer, failed=failed)
        message = short_message(verdict.failures) if verdict.failures else None
        try:
            verdict = self._explained(measured, verdict)
            message = self._message(subject, measured, verdict) if message else None
        except Exception as error:  # noqa: BLE001 - the numbers are right all the same
            gatherer.faults += (message_of(error),) if is_fault(error) else ()
        # Why only a part of the findings has a line: without one, the path stands for it.
        partly = measured.located is not None and any(f.location == f.path for f in findings[None])
        lost = measured.lines_gap if partly else None
        offer = None
        if verdict.accepts is not None:
            offer = Offer(
                str(subject.baseline),
                subject.name,
                measured.environment,
                verdict.accepts,
                verdict.times_changed,
                tuple(gatherer.asked.edits),
                tuple(v.metric for v in verdict.all if v.at_least and v.status == "regressed"),
                tuple(verdict.profile.own.values()) if verdict.profile is not None else (),
            )
        record = _record(subject, verdict, kept, lost)
        return Outcome(replace(record, message=message), offer)

    def _wants_lines(self, subject: Subject, measured: Measured) -> bool:
        """Whether lines are worth a run: there is a failure, or an unaccepted finding to list.

        While accepting, where the accepted numbers change. Of findings that are not listed, only
        the JSON report has lines. But always where a marker allows some by place.
        """
        if measured.mismatch is not None:
            return False
        if measured.allowances and wants_places(measured):
            return True
        try:
            compared = self._compare(subject, measured)
        except BaselineError:
            return False
        if self._settings.accept:
            return compared.changes
        if not compared.has_places or compared.fails or self._settings.json is not None:
            return compared.has_places
        assert compared.profile is not None  # noqa: S101 - it was measured
        return worth_locating(measured, compared.profile, compared.baseline)

    def _compare(
        self,
        subject: Subject,
        measured: Measured,
        in_tests: Mapping[str | None, Mapping[str, int]] | None = None,
    ) -> Verdicts:
        """Computed once per trace and what is recorded beside it, and again with places."""
        if in_tests is not None or not (self._compared and self._compared.holds_for(measured)):
            baseline = self._accepted(subject, measured.environment, measured.cpu_capability)
            self._compared = compared(measured, baseline, self._terms, in_tests)
        return self._compared

    def _accepted(self, subject: Subject, environment: str, cpu: str = "") -> Baseline | None:
        path = subject.baseline
        data = self._load(path)
        if path not in self._details:
            self._details[path] = store.Details(path)
        return store.entry_of(data, subject.name, environment, cpu, self._details[path])

    def _against_elsewhere(
        self, subject: Subject, measured: Measured, verdict: Verdicts
    ) -> Verdicts:
        """The verdict, with what differs from a baseline of another torch or chip, as advice."""
        data = self._load(subject.baseline)
        found = store.entry_elsewhere(data, subject.name, measured.environment)
        if data is None or verdict.profile is None:
            return verdict
        if found is None:
            return self._against_gone(subject, measured, verdict, data["tests"])
        there, baseline = found
        changes = advice(verdict.profile, baseline, self._terms)
        why = because(
            "other_environment",
            (
                "no baseline of {here} yet, only of {accepted}, so what differs is advice "
                "(pytest --accept accepts): {changes:, }"
            ),
            here=measured.environment,
            accepted=there,
            changes=changes or ("nothing",),
        )
        return replace(verdict, reason=why)

    def _explained(self, measured: Measured, verdict: Verdicts) -> Verdicts:
        """The verdict with its causes, and what is accepted with what explains it."""
        accepted, before = verdict.accepts, verdict.baseline
        known = before.detail if before is not None else None
        regressed = [v for v in verdict.whole if v.status == "regressed"]
        regressed = regressed or [v for v in verdict.all if v.status == "regressed"]
        if not regressed and not (self._settings.accept and accepted is not None):
            return verdict
        from pytest_torchprof.verdict.causes import causes_of
        from pytest_torchprof.verdict.seen import seen_in, together

        located = measured.located if isinstance(measured.located, Located) else None
        if accepted and not regressed and located is None and known:  # that has the lines
            return replace(verdict, accepts=replace(accepted, detail=known))
        theirs = ((one.checked.trace, measured.located_processes.get(one.label))
                  for one in measured.processes)  # fmt: skip
        seen = together(
            [
                seen_in(trace, by if isinstance(by, Located) else None, self._roots)
                for trace, by in ((measured.trace, measured.located), *theirs)
            ]
        )
        if accepted is not None:
            detail = known if located is None and known is not None else seen.detail
            accepted = replace(accepted, detail=detail)
        if verdict.profile is not None and regressed:
            found = [f for f in verdict.profile.findings if f.gated and not f.accepted]
            names = before.operators if before is not None else {}, verdict.profile.operators
            gap = {"gap": "your lines are unknown"} if known is not None else {}
            known = known if located is not None else None
            causes = causes_of(known, seen, regressed, found, operators=names, **gap)
            verdict = replace(verdict, causes=causes)
        return replace(verdict, accepts=accepted)

    def _against_gone(
        self, subject: Subject, measured: Measured, verdict: Verdicts, tests: Mapping[str, Any]
    ) -> Verdicts:
        """The verdict, with the accepted test that is gone and had the same numbers."""
        accepts = verdict.accepts or Baseline()
        entry = store.Entry(subject.name, measured.environment, accepts)
        old = store.twin_of(tests, subject.gone(tests), entry)
        if old is None or verdict.reason is not None:
            return verdict
        text = "same numbers as {old}, which is gone: pytest --accept takes them over"
        return replace(verdict, reason=because("renamed", text, old=old))

    def _message(self, subject: Subject, measured: Measured, verdict: Verdicts) -> str:
        accept = self._settings.accept
        where: Where | None = None
        if measured.located is not None:
            where = CallSites(measured.trace, measured.located, self._roots, shown_operator)
            if measured.located_processes:
                where = joined([where, *self._sites_of_processes(measured)])
        gap = measured.lines_gap or (None if where else _ONLY_RUN)
        assert verdict.profile is not None  # noqa: S101 - it was measured
        same_as, causes = self._to_tell(subject, verdict.causes)
        return failure_message(
            verdict.failures,
            verdict.all,
            verdict.profile,
            verdict.baseline,
            None if accept else subject.accept_command(),
            causes=causes,
            same_as=same_as,
            ab_command=subject.ab_command(),
            where=where,
            lines_gap=gap if not accept and verdict.has_places else None,
        )

    def _to_tell(
        self, subject: Subject, causes: Sequence[Cause]
    ) -> tuple[str | None, Sequence[Cause]]:
        """An earlier test of the session with the same first cause, and what else to tell."""
        if not causes:
            return None, ()
        same = self._explained_in.get(causes[0].key)
        new = [one for one in causes[1:] if one.key not in self._explained_in]
        for one in causes if subject.is_heard else ():
            self._explained_in.setdefault(one.key, subject.nodeid)
        if same in (None, subject.nodeid):  # it runs again
            return None, causes
        return same, [causes[0], *new]

    def _sites_of_processes(self, measured: Measured) -> list[CallSites]:
        located = measured.located_processes
        return [
            CallSites(one.checked.trace, located[one.label], self._roots, shown_operator)
            for one in measured.processes
            if one.label in located
        ]

    def _load(self, path: Path) -> dict[str, Any] | None:
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


def _why_not(report: pytest.TestReport) -> Reason:
    """Why a test has no numbers, according to its report."""
    if hasattr(report, "wasxfail") and report.skipped:
        return because(*Why.XFAILED)
    if report.when == "setup":
        return because(*(Why.SETUP_FAILED if report.failed else Why.SKIPPED))
    if report.failed:
        return because(*Why.FAILED)
    return because(*(Why.SKIPPED if report.skipped else Why.WAS_NOT_MEASURED))
