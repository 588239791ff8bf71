"""Read a report that `--torchprof-json` wrote."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_torchprof.core.errors import ReportError
from pytest_torchprof.core.files import opened, system_message
from pytest_torchprof.core.structs import Frozen, require_floats
from pytest_torchprof.render.json_report import REPORT_SCHEMA

_NEXT = "name a report of pytest --torchprof --torchprof-json=FILE"


class StoredMetric(Frozen, frozen=True, rename={"klass": "class"}):
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

    def __post_init__(self) -> None:
        """See `require_floats`."""
        own = (self.value, self.baseline, self.limit, self.least, self.at_least, self.n, self.low)
        require_floats((*own, self.high, self.min, self.spread, *self.rounds))


class StoredFinding(Frozen, frozen=True):
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

    def __post_init__(self) -> None:
        """See `require_floats`."""
        require_floats((self.bytes,))


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


class StoredReport(Frozen, frozen=True):
    """The parts of a report that are read, and ``document``, which has all of it as it is."""

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
        raise ReportError(f"{path}: not a report", "it is not JSON", next_step) from None


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
    return msgspec.structs.replace(report, document=document)
