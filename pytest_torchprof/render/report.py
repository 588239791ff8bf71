"""The JSON report of a session: made, read again, and merged from several."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytest_torchprof.core.errors import ReportError, keep_others
from pytest_torchprof.core.files import opened, replacing, system_message
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import format_change, format_pair, format_quantity
from pytest_torchprof.core.values import (
    CauseKey,
    MissingValue,
    Number,
    Record,
    Value,
    Verdict,
    cause_key,
)
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own import metric_of

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Cause, RegionRecord, Sample, Unstable


# ---- The machine-readable report.

REPORT_SCHEMA = "torchprof-report/1"


def test_of(record: Record) -> dict[str, Any]:
    """One test's part of the report, ready for JSON."""
    return {
        "nodeid": record.nodeid,
        "outcome": record.outcome,
        "status": record.status,
        "reason": None if record.reason is None else record.reason.text,
        "metrics": metrics_of(record.metrics.values()),
        "findings": [asdict(finding) for finding in record.findings],
        "causes": [_cause(cause) for cause in record.causes],
        "unchecked": {rule: why.text for rule, why in record.unchecked.items()},
        "trace": record.trace,
        **({} if record.message is None else {"message": record.message}),
        **({"regions": dict(map(_region, record.regions.items()))} if record.regions else {}),
        **({"ranks": dict(map(_rank, record.ranks.items()))} if record.ranks else {}),
        **({"unstable": _unstable(record.unstable)} if record.unstable else {}),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "file": cause.file,
        "line": cause.line or None,
        "function": cause.function,
        "message": cause.message,
        "metrics": dict(cause.metrics),
        "finding": cause.finding,
        "evidence": list(cause.evidence),
    }


def _rank(named: tuple[str, Mapping[str, Value]]) -> tuple[str, dict[str, Any]]:
    """Metrics of one process, by name: value, unit, and why it is not known."""
    name, values = named
    return name, {
        metric: {"value": None, "unit": METRICS[metric].unit, "reason": value.reason.text}
        if isinstance(value, MissingValue)
        else {"value": value, "unit": METRICS[metric].unit}
        for metric, value in values.items()
    }


def _region(named: tuple[str, RegionRecord]) -> tuple[str, dict[str, Any]]:
    name, region = named
    return name, {
        "laps": region.laps,
        "metrics": metrics_of(region.metrics.values()),
        "findings": [asdict(finding) for finding in region.findings],
    }


def metrics_of(verdicts: Iterable[Verdict]) -> dict[str, dict[str, Any]]:
    """Metrics by name: value, unit, class, what it was compared with, and the result."""
    metrics: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        metric = metric_of(verdict)
        measured = not isinstance(verdict.value, MissingValue)
        metrics[verdict.metric if verdict.region else verdict.label] = {
            "value": verdict.value if measured else None,
            "unit": metric.unit,
            "class": metric.klass,
            **({} if verdict.own is None else {"better": metric.better}),
            "baseline": verdict.baseline,
            **_baseline_range(verdict),
            "limit": verdict.limit,
            **({} if verdict.least is None else {"least": verdict.least}),
            "status": verdict.status,
            **({"reason": verdict.reason.text} if verdict.reason else {}),
            **_bound(verdict),
            **(noise_of(verdict.sample) if verdict.sample else {}),
            **(_multiples(*verdict.multiples) if verdict.multiples else {}),
        }
    return metrics


def _baseline_range(verdict: Verdict) -> dict[str, list[Number]]:
    known = verdict.baseline_range
    return {} if known is None else {"baseline_range": [known.low, known.high]}


def _unstable(found: Unstable) -> dict[str, Any]:
    """Metrics and operators' calls of two runs with different seeds, where they differ."""
    return {
        "drawn": found.drawn,
        "metrics": {label: [one.low, one.high] for label, one in found.ranges.items()},
        "operators": {name: [one.low, one.high] for name, one in found.operators.items()},
    }


def _bound(verdict: Verdict) -> dict[str, Number]:
    """The lower bound of a metric whose value is unknown."""
    value = verdict.value
    if isinstance(value, MissingValue):
        at_hand = value.at_hand if value.at_least else None
        return {} if at_hand is None else {"at_least": at_hand}
    return {"at_least": value} if verdict.at_least else {}


def noise_of(sample: Sample) -> dict[str, Any]:
    """The spread of rounds around the value, their median: quartiles, minimum, spread; and each."""
    return {
        "n": sample.n,
        "low": sample.low,
        "high": sample.high,
        "min": sample.minimum,
        "spread": sample.spread,
        **({"rounds": list(sample.rounds)} if sample.rounds else {}),
    }


def _multiples(accepted: float, now: float) -> dict[str, float]:
    """The fastest round as a multiple of the reference kernel's time."""
    return {"normalised": now, "normalised_baseline": accepted}


def check_target(path: Path) -> None:
    """Reject a name for the report that is the name of another kind of file.

    Raises:
        SettingsError: such a file exists.
    """
    keep_others(path, _is_report, f"a report ({REPORT_SCHEMA})")


class _Head(msgspec.Struct):
    schema: str


def _is_report(path: Path) -> bool:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return found.schema.partition("/")[0] == REPORT_SCHEMA.partition("/")[0]


def report_document(
    environment: Mapping[str, Any],
    tests: Iterable[Mapping[str, Any]],
    errors: Sequence[str] = (),
    *,
    interrupted: bool = False,
) -> dict[str, Any]:
    """The whole report; ``errors`` and what follows appear only if present."""
    report: dict[str, Any] = {
        "schema": REPORT_SCHEMA,
        "environment": dict(environment),
        "tests": list(tests),
    }
    if errors:
        report["errors"] = list(errors)
    if interrupted:
        report["interrupted"] = True
    return report


def write_document(path: Path, report: Mapping[str, Any]) -> None:
    """Write a whole report atomically.

    Raises:
        OSError: the file cannot be written.
    """
    text = escape.json_text(report, indent=1)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")


# ---- Read a report that `--torchprof-json` wrote.

_NEXT = "name a report of pytest --torchprof --torchprof-json=FILE"


class _Stored(Frozen, frozen=True):
    def __post_init__(self) -> None:
        """Refuse an integer of hundreds of digits, with which no arithmetic goes well."""
        for value in map(self.__getattribute__, self.__struct_fields__):
            for number in value if isinstance(value, list) else (value,):
                if isinstance(number, int) and abs(number) > sys.float_info.max:
                    raise ValueError("a number is out of range")


class StoredMetric(_Stored, frozen=True, rename={"klass": "class"}):
    """A metric as the report has it; the unit is that of its numbers, which are None if unknown."""

    unit: str
    klass: str
    status: str
    value: int | float | None
    baseline: int | float | None = None
    limit: int | float | None = None
    least: int | float | None = None
    better: str = "lower"
    reason: str | None = None
    at_least: int | float | None = None
    n: int | None = None
    low: int | float | None = None
    high: int | float | None = None
    min: int | float | None = None
    spread: int | float | None = None
    rounds: list[int | float] = msgspec.field(default_factory=list)

    @property
    def in_words(self) -> tuple[str, str, str]:
        """Before, now, and the change, which is empty if one of both is unknown."""
        before, now = format_pair(self.baseline, self.value, self.unit)
        if self.at_least is not None:
            now = f"at least {format_quantity(self.at_least, self.unit)}"
        known = self.baseline is not None and self.value is not None
        return before, now, format_change(self.baseline, self.value) if known else ""

    @property
    def limits(self) -> str:
        """``at least 2, at most 9``; empty if there is no limit."""
        return self.named({"at least": self.least, "at most": self.limit})

    def named(self, values: Mapping[str, float | None]) -> str:
        """Those that are known, in the metric's unit, each with its name before it."""
        known = {name: value for name, value in values.items() if value is not None}
        return ", ".join(f"{name} {format_quantity(n, self.unit)}" for name, n in known.items())


class StoredFinding(_Stored, frozen=True):
    """A finding of a test; ``cost_ms`` is None if unknown."""

    rule: str
    count: int
    message: str
    location: str | None
    accepted: bool
    fix: str
    cost_ms: float | None = None
    path: str | None = None
    bytes: int | float | None = None
    module: str | None = None
    modules: int | None = None
    reason: str | None = None
    gated: bool = True
    listed: bool = True


class StoredCause(_Stored, frozen=True):
    """What changed in the user's code, and where; see `core.values.Cause`."""

    kind: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    metrics: dict[str, int | float] = msgspec.field(default_factory=dict)
    finding: str | None = None
    evidence: list[str] = msgspec.field(default_factory=list)

    @property
    def place(self) -> str | None:
        """``file:line``, None where it is unknown."""
        return f"{self.file}:{self.line}" if self.file and self.line else self.file

    @property
    def key(self) -> CauseKey:
        """What the same cause in another test has in common with it."""
        return cause_key(self.kind, self.file, self.line, self.finding, self.message)


class StoredRegion(Frozen, frozen=True):
    """A named region of a test."""

    laps: int
    metrics: dict[str, StoredMetric]
    findings: list[StoredFinding] = msgspec.field(default_factory=list)


class StoredTest(Frozen, frozen=True):
    """A test of a report."""

    nodeid: str
    outcome: str | None
    status: str
    reason: str | None
    metrics: dict[str, StoredMetric]
    findings: list[StoredFinding]
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    regions: dict[str, StoredRegion] = msgspec.field(default_factory=dict)
    unchecked: dict[str, str] = msgspec.field(default_factory=dict)
    trace: str | None = None
    ab: dict[str, Any] | None = None
    message: str | None = None
    causes: list[StoredCause] = msgspec.field(default_factory=list)


class StoredReport(Frozen, frozen=True):
    """The parts of a report that are read, and ``document``, which has all of it as it is.

    Only the document has findings that are not listed.
    """

    schema: str
    environment: dict[str, Any]
    tests: list[StoredTest]
    errors: list[str] = msgspec.field(default_factory=list)
    interrupted: bool = False
    document: Mapping[str, Any] = msgspec.field(default_factory=dict)


def read_report(path: Path, next_step: str = _NEXT) -> StoredReport:
    """Read the file; ``next_step`` ends the error for a file of another kind.

    Raises:
        ReportError: it cannot be read, or is not a report of this version.
    """
    try:
        with opened(path) as file:
            content = file.read()
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read", system_message(error), next_step) from None
    try:
        return of_document(msgspec.json.decode(content), str(path), next_step)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            found = f"it is not as {REPORT_SCHEMA} says: {error}"
            raise ReportError(f"{path}: not a report", found, next_step) from None
        compressed = content[:1] == b"\x1f"
        found = "it is compressed, and maybe truncated" if compressed else "it is not JSON"
        raise ReportError(f"{path}: not a report", found, next_step) from None


def of_document(document: Any, path: str, next_step: str = _NEXT) -> StoredReport:
    """A decoded report, checked.

    Raises:
        ReportError: it is another kind of document, or of a newer version.
        msgspec.ValidationError: a part has the wrong type.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    kind, _, version = str(schema).partition("/")
    if schema != REPORT_SCHEMA:
        if kind == REPORT_SCHEMA.partition("/")[0] and version:
            found, step = (
                f"its schema is {reprlib.repr(schema)}, newer than {REPORT_SCHEMA}",
                "update torchprof",
            )
        else:
            found = (
                f"its schema is {reprlib.repr(schema)}"
                if schema
                else f"it has no schema {REPORT_SCHEMA}"
            )
            step = next_step
        raise ReportError(f"{path}: not a report", found, step)
    report = msgspec.convert(document, StoredReport)
    for test in report.tests:
        for findings in (test.findings, *(one.findings for one in test.regions.values())):
            findings[:] = [one for one in findings if one.listed]
    return msgspec.structs.replace(report, document=document)


# ---- Causes that several tests have.

#: The most metrics that are told of a cause.
_MOST_COSTS = 3


class SharedCause(NamedTuple):
    """A cause, the tests that have it by node id, and what it costs them by metric, as text."""

    cause: StoredCause
    tests: list[str]
    costs: list[str]


def shared_causes(tests: Iterable[StoredTest | Record]) -> list[SharedCause]:
    """Each cause once, that of the most tests first."""
    found: dict[CauseKey, dict[str, tuple[StoredCause, StoredTest]]] = {}
    for one in (test for test in tests if test.causes):
        test = msgspec.convert(test_of(one), StoredTest) if isinstance(one, Record) else one
        for cause in test.causes:
            found.setdefault(cause.key, {}).setdefault(test.nodeid, (cause, test))
    made = [
        SharedCause(next(iter(of.values()))[0], list(of), costs_of(of.values()))
        for of in found.values()
    ]
    return sorted(made, key=lambda one: -len(one.tests))


def costs_of(found: Iterable[tuple[StoredCause, StoredTest]]) -> list[str]:
    """``moved_bytes +4 % to +12 %``: the metrics that the most of these tests have more of."""
    more: dict[str, list[tuple[float, float, str]]] = {}
    for cause, test in found:
        for name, metric in test.metrics.items():
            value, before = metric.value, metric.baseline
            if metric.status != "regressed" or value is None or before is None:
                continue
            part = min(cause.metrics.get(name, 0 if test.causes[1:] else value), value - before)
            if part <= 0 or name == "findings":
                continue
            share, text = math.inf, f"+{format_quantity(part, metric.unit)}"
            if before:
                share = part / before
                text = text if metric.unit == "1" else format_change(1, 1 + share)
            size = part if metric.unit == "1" else share
            more.setdefault(name, []).append((size, share, text))
    ranked = sorted(more.items(), key=lambda one: (-len(one[1]), -max(part[1] for part in one[1])))
    return [
        f"{name} {' to '.join(dict.fromkeys((min(parts)[2], max(parts)[2])))}"
        for name, parts in ranked[:_MOST_COSTS]
    ]


# ---- One report of several: those of the shards of a test suite.

#: What must be the same in all: numbers that differ in it are stored apart in baselines, too.
_SAME = ("key", "accelerator", "device_type", "torch_version", "threads")
#: Keys of a report with a rule of their own.
_KNOWN = ("schema", "environment", "tests", "errors", "interrupted")
#: The longest name in an error: long parametrized ones are whole.
_LONGEST = 300


def merged(reports: Mapping[str, StoredReport]) -> dict[str, Any]:
    """The tests of all reports, by the reports' names, in their order.

    What differs between the machines, such as ``host``, is in the ``environment`` of each test, and
    what is the same in that of the report. A test in several reports with the same content is there
    once.

    Raises:
        ReportError: the environments differ, or a test has different results in two reports.
    """
    documents = {name: report.document for name, report in reports.items()}
    started = {name: one for name, one in documents.items() if one["environment"]}
    for (a, one), (b, other) in pairwise(started.items()):
        _check(a, one["environment"], b, other["environment"])
    shared = _shared([one["environment"] for one in started.values()])
    document: dict[str, Any] = {
        "schema": REPORT_SCHEMA,
        "environment": shared,
        "tests": _tests(documents, shared),
    }
    errors = dict.fromkeys(line for report in reports.values() for line in report.errors)
    document |= {"errors": list(errors)} if errors else {}
    # Those of newer versions.
    document |= {k: v for one in documents.values() for k, v in one.items() if k not in _KNOWN}
    if any(report.interrupted for report in reports.values()):
        document["interrupted"] = True
    return document


def _check(a: str, one: Mapping[str, Any], b: str, other: Mapping[str, Any]) -> None:
    """Refuse to merge numbers of different environments."""
    differing = [name for name in _SAME if one.get(name) != other.get(name)]
    if differing:
        found = "; ".join(
            f"{name} is {_quoted(one.get(name))} and {_quoted(other.get(name))}"
            for name in differing
        )
        raise ReportError(
            f"{a} and {b} are of different environments", found, "merge those of each environment"
        )


def _shared(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all have alike."""
    if not environments:
        return {}
    first, *others = environments
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _tests(
    documents: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Each test once, with what only its own machine has."""
    tests: dict[str, dict[str, Any]] = {}
    source: dict[str, tuple[str, Any]] = {}
    for name, document in documents.items():
        own = {key: v for key, v in document["environment"].items() if key not in shared}
        for test in document["tests"]:
            nodeid = test["nodeid"]
            if nodeid not in tests:
                source[nodeid] = name, test
                extra = {"environment": {**own, **test.get("environment", {})}} if own else {}
                tests[nodeid] = {**test, **extra}
            elif source[nodeid][1] != test:
                raise ReportError(
                    f"{_quoted(nodeid)} is in {source[nodeid][0]} and in {name}",
                    "its results differ",
                    "merge reports of shards that ran different tests",
                )
    return list(tests.values())


def _quoted(value: object) -> str:
    return shorten(repr(value), _LONGEST)
