"""What a session writes at its end: summary, report, baselines, history, CI formats."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.analysis.diff import COLUMN_OF, deltas
from pytest_torchprof.analysis.moved_bytes import moved_by_operator
from pytest_torchprof.baseline import inline, store
from pytest_torchprof.core.errors import BaselineError, TorchprofError
from pytest_torchprof.core.files import replacing, same_file, system_message
from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.units import format_pair, plural
from pytest_torchprof.core.values import (
    Record,
    RegionNumber,
    in_unit_of,
)
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape
from pytest_torchprof.render.ci import (
    COMMENT_BYTES,
    SUMMARY_BYTES,
    Annotation,
    code_quality_of,
    comment,
    session_annotations,
    workflow_commands,
)
from pytest_torchprof.render.failure import inline_changes, operator_block, share_block
from pytest_torchprof.render.report import (
    REPORT_SCHEMA,
    StoredReport,
    of_document,
    report_document,
    test_of,
    write_document,
)
from pytest_torchprof.render.summary import (
    cause_lines,
    lost_baselines,
    raised_rules,
    session_totals,
    summary_table,
    unchecked_rules,
    unlisted,
)
from pytest_torchprof.rules.registry import CODES
from pytest_torchprof.session.verdicts import (
    Offer,
    Outcome,
    name_of,
)
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.profile import operator_counts, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pytest_torchprof.core.values import Settings, Source
    from pytest_torchprof.history.runs import Run
    from pytest_torchprof.session.hooks import TorchprofSession


# ---- Writing what was accepted: baseline files and inline expectations, in one process.


def accept(
    offers: Iterable[Offer],
    full: Mapping[str, Sequence[str]],
    *,
    environment: str,
    root: Path,
    project: str | None = None,
) -> tuple[list[str], list[str]]:
    """Write the offers of tests that passed; returns (what was done, what went wrong).

    ``full`` maps baseline files of test files that ran as a whole to all their tests, so that
    other entries are pruned; in a folder of several projects, only those of this ``project``.
    """
    done: list[str] = []
    errors: list[str] = []
    offers = list(offers)
    by_path: dict[str, list[store.Entry]] = {}
    for offer in offers:
        entry = store.Entry(
            offer.test, offer.environment, offer.baseline, offer.times_changed, offer.dropped
        )
        by_path.setdefault(offer.path, []).append(entry)
    for path in dict.fromkeys([*by_path, *full]):
        try:
            written = store.update(
                Path(path),
                by_path.get(path, []),
                existing=full.get(path),
                environment=environment,
                project=project,
            )
        except BaselineError as error:
            errors.append(str(error))
        else:
            units = {one.name: one.unit for offer in offers for one in offer.own}
            done += _lines(written, root, {**units, **{m.name: m.unit for m in METRICS.values()}})
    edits = [edit for offer in offers for edit in offer.edits]
    rewritten, problems = inline.apply(edits)
    done += [_rewritten(edit, root) for edit in sorted(rewritten, key=_place)]
    problems.sort(key=lambda problem: _place(problem.edit))
    errors += [f"{_site(problem.edit, root)} {problem.what}" for problem in problems]
    return done, errors


def _lines(written: store.Written, root: Path, units: Mapping[str, str]) -> list[str]:
    """What an accept changed, as old → new, for the terminal."""
    where = shown(str(written.path), root)
    lines = []
    if written.added:
        lines.append(f"{where}: {plural(len(written.added), 'new test')}")
    for test, changes in written.changed.items():
        parts = [
            f"{c.label} {' → '.join(format_pair(c.before, c.now, units[c.metric]))}"
            for c in changes
            if c.metric in units
        ]
        same = "the same totals, other operators, ranges, or times"
        lines.append(f"{where}: {test}: {', '.join(parts) or same}")
    for new, old in written.renamed.items():
        lines.append(f"{where}: {new}: same numbers as {old}, which is gone")
    lines += [f"{where}: removed: {test} is gone" for test in written.pruned]
    lines += [
        f"{where}: {test} has two entries, as it was in conflict and did not run: the first is kept"
        for test in written.disputed
    ]
    return lines


def _place(edit: inline.Edit) -> tuple[str, int]:
    return edit.file, edit.line


def _rewritten(edit: inline.Edit, root: Path) -> str:

    changes = inline_changes(edit.old, edit.text).items()
    values = ", ".join(f"{name} {before} → {now}" for name, (before, now) in changes)
    return f"{_site(edit, root)} rewritten{f': {values}' if values else ''}"


def _site(edit: inline.Edit, root: Path) -> str:
    return f"{shown(edit.file, root)}:{edit.line}"


def shown(path: str | Path, root: Path) -> str:
    """A path as shown to the user: relative to the root, if below it."""
    try:
        return str(Path(path).resolve().relative_to(root.resolve()))
    except ValueError:
        return str(path)


# ---- Which baseline files belong to the test files of a session.


class BaselineFiles:
    """Baseline files in a folder of this name beside test files, or in a separate tree.

    ``folder``: as `Settings.baselines` has it.
    """

    def __init__(self, folder: str, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._known: dict[Path, Path] = {}

    def of(self, file: Path) -> Path:
        """The baseline path of a test file, whether it exists or not."""
        if (path := self._known.get(file)) is None:
            path = self._known[file] = store.path_for(file, self._folder, self._root)
        return path

    def is_folder(self, path: Path) -> bool:
        """Whether a path that was found beside tests is a folder of baselines."""
        folder = Path(self._folder)
        ours = same_file(path, folder) if folder.is_absolute() else path.name == folder.name
        return ours and path.is_dir()

    @property
    def project(self) -> str | None:
        """The name of this project in a folder of several."""
        return store.project_of(self._folder, self._root)

    def full(self, collected: Collected, ran: Iterable[str]) -> dict[str, list[str]]:
        """Baseline path → all tests, of files that ran as a whole; ``ran`` are node ids."""
        names_of: dict[str, set[str]] = {}
        for nodeid in ran:
            file, _, name = nodeid.partition("::")
            names_of.setdefault(str(self._root / file), set()).add(name or nodeid)
        found = {}
        for file, names in collected.names.items():
            if file in collected.partial or not set(names) <= names_of.get(file, set()):
                continue
            path = self.of(Path(file))
            if os.path.exists(path):  # noqa: PTH110 - never raises
                found[str(path)] = names
        return found

    def left_behind(self, collected: Collected) -> list[str]:
        """Baselines whose test files are gone; another branch may need them, so they stay."""
        files = [Path(file) for file in collected.names]
        folders = {(file.parent, self.of(file).parent) for file in files}
        project = self.project
        found = sorted({path for pair in folders for path in store.orphans(*pair, project)})
        return [
            f"{shown(path, self._root)}: its test file is gone; delete it too" for path in found
        ]


# ---- Which service of CI a session runs in.


def service_of(asked: str, environ: Mapping[str, str]) -> str:
    """``github``, ``gitlab`` or ``off``: as asked, or where ``auto`` finds itself.

    The variables are those that the services document for their jobs.

    >>> service_of("auto", {"GITHUB_ACTIONS": "true"}), service_of("auto", {})
    ('github', 'off')
    """
    if asked != "auto":
        return asked
    if environ.get("GITHUB_ACTIONS") == "true":
        return "github"
    return "gitlab" if environ.get("GITLAB_CI") else "off"


def wanted(settings: Settings) -> bool:
    """Whether there is anything to do."""
    return settings.markdown is not None or service_of(settings.ci, os.environ) != "off"


# ---- What a service of CI and a comment on a pull request show of a session.

#: Annotates failed tests itself: https://pypi.org/project/pytest-github-actions-annotate-failures
_ANNOTATES = "pytest_github_actions_annotate_failures"


#: Names of the files in the folder of a job of GitLab.
CODE_QUALITY, OPENMETRICS = "torchprof-code-quality.json", "torchprof-metrics.txt"


class CiReport:
    """The session as it ended, for the outputs that are asked for."""

    def __init__(
        self,
        results: Results,
        environment: Mapping[str, Any],
        config: pytest.Config,
        *,
        interrupted: bool,
    ) -> None:
        records = results.records
        self._totals = session_totals(records, results.runs)
        self._lines, self._config = results.lines, config
        document = {
            "schema": REPORT_SCHEMA,
            "environment": dict(environment),
            "tests": [test_of(record) for record in records],
            "interrupted": interrupted,
        }
        self._report: StoredReport = of_document(document, "this session")

    def write_comment(self, path: Path) -> list[str]:
        """Write the Markdown file; return an error message if that fails."""
        try:
            with replacing(path) as file:
                file.write(comment(self._report, self._totals, COMMENT_BYTES).encode())
        except OSError as error:
            what = f"comment {path} cannot be written: {system_message(error)}"
            return [f"{what}; name another with --torchprof-markdown"]
        return []

    def add_summary(self, environ: Mapping[str, str]) -> list[str]:
        """Append to the summary of GitHub's step, if there is one; return why it was not."""
        if not (name := environ.get("GITHUB_STEP_SUMMARY")):
            return []
        path = Path(name)
        try:
            taken = path.stat().st_size if path.exists() else 0
            room = SUMMARY_BYTES - taken
            if room < COMMENT_BYTES // 8:
                return ["the step's summary is full: nothing was added"]
            with path.open("ab") as file:
                file.write(f"\n{comment(self._report, self._totals, room - 2)}".encode())
        except OSError as error:
            return [f"the step's summary cannot be written: {system_message(error)}"]
        return []

    def annotations(self, environ: Mapping[str, str]) -> list[str]:
        """The lines to print for GitHub's runner."""
        failures = not self._config.pluginmanager.hasplugin(_ANNOTATES)
        folder = environ.get("GITHUB_WORKSPACE")
        return workflow_commands(self._annotations(folder, failures=failures))

    def write_for_gitlab(self, environ: Mapping[str, str]) -> list[str]:
        """Write the reports that a job of GitLab can name; return why they were not."""
        from pytest_torchprof.render.trackers import EXPORTS

        folder = environ.get("CI_PROJECT_DIR")
        found = self._annotations(folder, failures=True)
        left = sum(one.place is None for one in found)
        texts = {
            CODE_QUALITY: code_quality_of(found),
            OPENMETRICS: EXPORTS["openmetrics"](self._report).text,
        }
        problems = []
        if left:
            where = "whose line is unknown or not in the folder of the job"
            problems.append(f"{CODE_QUALITY} leaves out {left:,} {where}")
        for name, text in texts.items():
            path = Path(folder or self._config.rootpath) / name
            try:
                with replacing(path) as file:
                    file.write(text.encode())
            except OSError as error:
                problems.append(f"{path} cannot be written: {system_message(error)}")
        return problems

    def _annotations(self, folder: str | None, *, failures: bool) -> list[Annotation]:
        root = self._config.rootpath
        repository = Path(folder or root)
        return session_annotations(self._report, self._lines, root, repository, failures=failures)


# ---- The tests of a session as collected: their names by file, and which files run as a whole.


class Collected:
    """The tests of each file, and the files of which only a part runs."""

    def __init__(
        self,
        names: Mapping[str, list[str]] | None = None,
        partial: Iterable[str] = (),
    ) -> None:
        self.names = dict(names or {})
        self.partial = set(partial)
        #: File and name of each test, and those shared by several tests of a file.
        self._known: set[tuple[str, str]] = set()
        self._shared: set[tuple[str, str]] = set()

    def add(self, item: pytest.Item) -> None:
        """Add a test."""
        file, name = str(item.path), name_of(item)
        self.names.setdefault(file, []).append(name)
        (self._shared if (file, name) in self._known else self._known).add((file, name))

    def is_shared(self, item: pytest.Item) -> bool:
        """Whether several tests of the file have this name."""
        return (str(item.path), name_of(item)) in self._shared

    def gone(self, item: pytest.Item, known: Iterable[str]) -> list[str]:
        """Which of the names in its baseline file no test has; none if not all are collected."""
        file = str(item.path)
        names = set(map(store.storable_name, self.names.get(file, ())))
        return [] if file in self.partial else [name for name in known if name not in names]

    def leave_out(self, files: Iterable[str]) -> None:
        """Note that not all tests of these files run."""
        self.partial |= set(files)

    def leave_out_by_options(self, config: pytest.Config) -> None:
        """Note files of which the command line selects only some tests."""
        self.leave_out(
            os.path.abspath(config.invocation_params.dir / arg.split("::")[0])  # noqa: PTH100
            for arg in config.args
            if "::" in arg
        )
        # --lf skips tests without calling a hook, and --pyargs names no files.
        by_name = config.getoption("pyargs", False) and "::" in " ".join(config.args)
        if by_name or config.getoption("lf", False):
            self.leave_out(self.names)


# ---- The JSON report of a session: emptied when it begins, written when it ends.


def session_document(
    environment: Mapping[str, Any], records: Sequence[Record], *, interrupted: bool
) -> dict[str, Any]:
    """The report of a session."""
    raised = list(raised_rules(records).values())
    return report_document(environment, map(test_of, records), raised, interrupted=interrupted)


def begin_report(path: Path, environment: Mapping[str, Any]) -> None:
    """Empty the file, so that an old report is not taken for this session's if pytest is killed."""
    with suppress(OSError):  # reported at the end
        if path.is_file():
            write_document(path, report_document(environment, (), interrupted=True))


def end_report(
    path: Path, environment: Mapping[str, Any], records: Sequence[Record], *, interrupted: bool
) -> list[str]:
    """Write the results; return an error message if that fails."""
    try:
        write_document(path, session_document(environment, records, interrupted=interrupted))
    except OSError as error:
        what = f"report {path} cannot be written: {system_message(error)}"
        return [f"{what}; name another with --torchprof-json"]
    return []


# ---- The page of a session, written when it ends.


def write_page(
    path: Path,
    config: pytest.Config,
    environment: Mapping[str, Any],
    records: Sequence[Record],
    interrupted: bool,
) -> list[str]:
    """Write it, with lines of files of the project; return an error message if that fails."""
    from pytest_torchprof.render.html.page import Sources, write_text
    from pytest_torchprof.render.html.report_page import report_page

    document = session_document(environment, records, interrupted=interrupted)
    sources = Sources(config.rootpath)
    try:
        write_text(path, report_page(of_document(document, "this session"), sources))
    except (OSError, ValueError) as error:
        what = f"page {path} cannot be written: {system_message(error)}"
        return [f"{what}; name another with --torchprof-html"]
    return []


# ---- What was measured, as properties of a test that a JUnit report lists.

#: What our properties begin with.
_OURS: Final = "torchprof"


def note(item: pytest.Item, report: pytest.TestReport, record: Record) -> None:
    """Put what is known of the test now in the place of what an earlier phase or run noted."""
    found = properties_of(record)
    # Pytest reads the properties of the teardown's report, which it takes from the item.
    for properties in (item.user_properties, report.user_properties):
        properties[:] = [one for one in properties if not str(one[0]).startswith(f"{_OURS}.")]
        properties.extend(found)


def properties_of(record: Record) -> list[tuple[str, str]]:
    """Names and values: the status, each metric, each metric of a region, and the causes.

    They are called ``torchprof.METRIC``, ``torchprof.REGION.METRIC`` and ``torchprof.cause.1``,
    with the names and numbers of the JSON report. What was not measured has no property.
    """
    test = test_of(record)
    found = [(f"{_OURS}.status", str(test["status"])), *_values(_OURS, test["metrics"])]
    for number, cause in enumerate(record.causes, 1):
        found.append((f"{_OURS}.cause.{number}", escape.line(cause.headline)))
    for name, region in test.get("regions", {}).items():
        found += _values(f"{_OURS}.{name}", region["metrics"])
    return [(escape.line(name), value) for name, value in found]


def _values(prefix: str, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, metric in metrics.items():
        if metric["value"] is not None:
            yield f"{prefix}.{name}", str(metric["value"])


# ---- Results are attached to pytest's reports, which xdist workers send to the controller.

#: The one attribute of ours on a report.
_ATTRIBUTE = "torchprof"


class Attachments:
    """What is attached to reports, until they are recorded."""

    def __init__(self) -> None:
        #: What was attached last, and as what: mostly it is read in the same process.
        self._last: tuple[Outcome, object] = Outcome(), None

    def attach(self, report: pytest.TestReport, attached: Outcome) -> None:
        """Attach it, as builtin values: xdist sends those."""
        sent = attached.sent()
        setattr(report, _ATTRIBUTE, sent)
        self._last = attached, sent

    def take(self, report: pytest.TestReport) -> Outcome:
        """Detach it, as pytest keeps all reports; an empty one if nothing is attached."""
        sent = report.__dict__.get(_ATTRIBUTE)
        if sent is None:
            return Outcome()
        delattr(report, _ATTRIBUTE)
        last, as_builtins = self._last
        self._last = Outcome(), None
        return last if sent is as_builtins else Outcome.read(sent)


def has_attachment(report: pytest.TestReport) -> bool:
    """Whether anything is attached."""
    return _ATTRIBUTE in report.__dict__


class Results:
    """The records and offers of all tests, taken from their reports."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._offers: dict[str, Offer] = {}
        #: Node ids of tests that ran, profiled or not.
        self.ran: set[str] = set()
        #: The file and the line, from 1, of each test, by node id.
        self.lines: dict[str, tuple[str, int]] = {}
        #: Runs of all tests.
        self.runs = 0

    @property
    def records(self) -> list[Record]:
        """The records of all tests with a plan."""
        return list(self._records.values())

    @property
    def offers(self) -> list[Offer]:
        """The offers of tests whose values may be accepted."""
        return list(self._offers.values())

    @property
    def unstable_lines(self) -> list[str]:
        """The tests whose numbers vary, in lines."""
        records = {test: self._records[test] for test in self._offers}
        found = {test: one.unstable for test, one in records.items() if one.unstable}
        if not found:
            return []
        from pytest_torchprof.render.summary import unstable_tests

        return unstable_tests(found)

    @property
    def rule_faults(self) -> list[str]:
        """A line for each built-in rule that raised; errors in users' rules are theirs to fix."""
        raised = raised_rules(self.records)
        return [f"internal error, please report it: {raised[r]}" for r in raised if r in CODES]

    def take(self, report: pytest.TestReport, attached: Outcome) -> None:
        """Record a report that `has_news`, and what is attached to it."""
        nodeid = report.nodeid
        self.ran.add(nodeid)
        file, line, _ = report.location
        if line is not None:
            self.lines[nodeid] = file, line + 1
        if attached.record is not None:
            self._records[nodeid] = attached.record
            self._offers.pop(nodeid, None)
            if attached.offer is not None:
                self._offers[nodeid] = attached.offer
            self.runs += attached.runs
        known = self._records.get(nodeid)
        if known is None:
            return
        self._records[nodeid] = replace(known, outcome=_outcome(report))
        if report.failed and not attached.ours:
            self._offers.pop(nodeid, None)


def has_news(report: pytest.TestReport) -> bool:
    """Whether the report matters: setup and teardown do only if they went wrong."""
    return report.when == "call" or not report.passed


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome


# ---- The plugin's part of pytest's summary: table, messages, errors, and one line of totals.


def header(settings: Settings, where: str) -> str:
    """One line: what is measured here, how often a test runs, and with which seed if not 0."""
    s = settings
    seconds = s.min_time or s.gate_time_s
    timed = f"{s.rounds} timed" if not seconds else f"timed for {seconds:g} s"
    once = not (s.warmup or s.rounds or seconds)
    seed = "; not seeded" if s.seed is None or once else f"; seed {s.seed}" if s.seed else ""
    runs = f"{s.warmup} warm-up, {timed}, 1 profiled"
    return escape.line(f"torchprof: {where}; runs a test: {runs}{seed}")


def summarize(
    terminal: pytest.TerminalReporter,
    results: Results,
    settings: Settings,
    *,
    messages: Sequence[str],
    errors: Sequence[str],
    verbosity: int,
) -> None:
    """Write it to the terminal, in as much detail as pytest's ``verbosity`` asks for."""
    records = results.records

    def write(line: str, **markup: bool) -> None:
        terminal.write_line(escape.line(line), **markup)

    messages = [*lost_baselines(records), *messages]
    if errors or messages or (records and verbosity >= 0):
        terminal.write_sep("=", "torchprof")
    if records and verbosity >= 0:
        s = settings
        for line in cause_lines(records):
            write(line, red=not s.accept)
        width = terminal._tw.fullwidth  # noqa: SLF001 - the only place that knows
        every = verbosity > 0
        for line in summary_table(records, s.columns, s.sort, s.top, width, every=every):
            write(line)
        for line in unchecked_rules(records) if every else unlisted(records):
            write(line)
    for rule, line in raised_rules(records).items():
        if rule not in CODES:
            write(line, yellow=True)
    for line in messages:
        write(line)
    for line in errors:
        write(f"ERROR: {line}", red=True)
    if verbosity > -2:
        write(session_totals(records, results.runs))


# ---- What a worker of xdist knows at its end, beside its tests.

_KEY = "torchprof"


class WorkerOutput(Sendable, frozen=True):
    """The worker's machine, its errors, and the tests it collected.

    ``names`` are the tests of each file; ``partial`` names the files of which only a part runs;
    ``drawn`` are the generators from which a file or fixture drew, by its name.
    """

    environment: dict[str, Any]
    errors: list[str]
    names: dict[str, list[str]]
    partial: list[str]
    drawn: dict[str, list[str]] = field(default_factory=dict)

    def leave_with(self, config: pytest.Config) -> None:
        """Have xdist send it to the controller."""
        config.workeroutput[_KEY] = self.sent()  # type: ignore[attr-defined]

    @classmethod
    def of(cls, node: Any) -> WorkerOutput | None:
        """That of a worker of xdist; None if it did not come to its end."""
        sent = getattr(node, "workeroutput", {}).get(_KEY)
        return None if sent is None else cls.read(sent)


# ---- The document of a session in a history of runs: its commit is asked at the start, as it may
# move.
#
# Whatever goes wrong is a line in the summary, and never changes how the session ends.

#: Packages whose versions explain a step; those that are not installed are left out.
_PACKAGES = ("torch", "triton", "numpy", "pytest")


class RunHistory:
    """The run of this session: a plugin beside it, registered while a history is asked for."""

    def __init__(self, session: TorchprofSession) -> None:
        from pytest_torchprof.history.git import Commit
        from pytest_torchprof.history.stores import now

        self._session, self._config = session, session.config
        self._address = session.settings.history or ""
        self._started = now()
        self._why = ""
        self._commit = Commit()

    def pytest_sessionstart(self) -> None:
        """Ask git for the commit."""
        from pytest_torchprof.history.git import Git

        session, root = self._session, self._config.rootpath
        ours = [session.settings.baselines]
        ours += [] if "://" in self._address else [self._address]
        try:
            self._commit = Git(root).commit(root, os.environ, ours)
        except Exception as error:  # noqa: BLE001 - a history is never worth a session
            self._why = _line(error)

    def pytest_sessionfinish(self) -> None:
        """Write the document; the session has gathered all results, and prints its messages."""
        self._session.say(*self._write())

    def _write(self) -> list[str]:
        """Write the document, if a test was planned; return what to say about it."""
        from pytest_torchprof.history.runs import encode
        from pytest_torchprof.history.stores import new_name, store_of

        if not self._session.results.records:
            return []
        try:
            run = self._run()
            store = store_of(self._address)
            name = new_name(self._started, run.commit)
            store.write(name, encode(run))
        except Exception as error:  # noqa: BLE001 - a history is never worth a session
            return [f"WARNING: {_line(error)}"]
        if self._why:
            return [f"history: {name} in {store.shown}, without a commit: {self._why}"]
        return [f"history: {name} in {store.shown}"]

    def _run(self) -> Run:
        from pytest_torchprof.history.runs import RUN_SCHEMA, Run, run_tests, source_hashes

        at, session = self._commit, self._session
        sources = source_hashes(session.results.lines, Path(self._config.rootpath))
        return Run(
            schema=RUN_SCHEMA,
            repository=at.repository,
            commit=at.commit,
            parents=at.parents,
            merge_base=at.merge_base,
            branch=at.branch,
            dirty=at.dirty,
            ci=ci_job(os.environ),
            started=self._started,
            environment=dict(session.environment),
            versions={"torchprof": __version__, "python": platform.python_version(), **_versions()},
            tests=run_tests(session.results.records, sources),
            workers=max(len(self._config.getoption("tx", None) or ()), 1),
            interrupted=session.interrupted,
        )


def _line(error: Exception) -> str:
    from pytest_torchprof.history.git import GitError

    if isinstance(error, GitError | TorchprofError):
        return str(error)
    return f"the run is not in the history: {type(error).__name__}: {' '.join(str(error).split())}"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def ci_job(environ: Mapping[str, str]) -> dict[str, str | None] | None:
    """The service of CI and the address of the job, None elsewhere.

    The variables are those that the services document for their jobs.
    """
    if environ.get("GITHUB_ACTIONS") == "true":
        names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        server, repository, run = (environ.get(name) for name in names)
        whole = server and repository and run
        url = f"{server}/{repository}/actions/runs/{run}" if whole else None
        return {"service": "github", "url": url}
    if environ.get("GITLAB_CI"):
        return {"service": "gitlab", "url": environ.get("CI_JOB_URL")}
    if environ.get("JENKINS_URL"):
        return {"service": "jenkins", "url": environ.get("BUILD_URL")}
    return {"service": "other", "url": None} if environ.get("CI") else None


# ---- What pytest shows when a comparison of two regions fails: both numbers, and what differs.


#: The metric whose parts are told by `analysis.moved_bytes`.
MOVED = "moved_bytes"


def relation_lines(sign: str, left: object, right: object) -> list[str] | None:
    """The explanation of a failed comparison, if a number of a region is part of it.

    Two regions are compared by operator, if both sides are about one metric; operators are those of
    the first region on each side. If these differ by less than half of what the comparison lacks,
    or one side is a plain number, the operators that have most of the metric are shown.
    """
    numbers = [number for number in (left, right) if isinstance(number, RegionNumber)]
    if not numbers:
        return None
    lines = [f"{in_unit_of(right, left)} {sign} {in_unit_of(left, right)}"]
    now, before = numbers[0].sources[0], numbers[-1].sources[0]
    column = MOVED if now.metric == MOVED else COLUMN_OF.get(now.metric)
    if column is None or now.metric != before.metric:
        return lines
    unit, operators = METRICS[now.metric].unit, _operators(now)
    if now.part != before.part:
        found = deltas(_operators(before), operators, column)
        changed = sum(abs(delta.now - delta.before) for delta in found)
        if found and changed >= abs(left - right) / 2:  # type: ignore[operator]
            title = f"{now.metric} by operator, {before.part} → {now.part}"
            return [*lines, *operator_block(title, found, unit)]
    title = f"most {now.metric} by operator, {now.part}"
    return [*lines, *share_block(title, operators, column, unit)]


def _operators(source: Source) -> Mapping[str, Mapping[str, int]]:
    trace = source.owner.trace
    if trace is None:
        return {}
    part = view_of(trace, source.region, source.lap)
    if source.metric == MOVED:
        return {name: {MOVED: amount} for name, amount in moved_by_operator(part).items()}
    return operator_counts(part)
