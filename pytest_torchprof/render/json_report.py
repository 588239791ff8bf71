"""The machine-readable report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.files import is_other_file, replacing
from pytest_torchprof.core.results import MissingValue, Number, Record, Value, Verdict
from pytest_torchprof.render import escape
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own_metrics import metric_of

if TYPE_CHECKING:
    from pytest_torchprof.core.results import RegionRecord, Unstable
    from pytest_torchprof.core.samples import Sample

REPORT_SCHEMA = "torchprof-report/1"


def test_of(record: Record) -> dict[str, Any]:
    """One test's part of the report, ready for JSON."""
    return {
        "nodeid": record.nodeid,
        "outcome": record.outcome,
        "status": record.status,
        "reason": None if record.reason is None else in_words(record.reason),
        "metrics": metrics_of(record.metrics.values()),
        "findings": [asdict(finding) for finding in record.findings],
        "unchecked": {rule: in_words(why) for rule, why in record.unchecked.items()},
        "trace": record.trace,
        **({} if record.message is None else {"message": record.message}),
        **({"regions": dict(map(_region, record.regions.items()))} if record.regions else {}),
        **({"ranks": dict(map(_rank, record.ranks.items()))} if record.ranks else {}),
        **({"unstable": _unstable(record.unstable)} if record.unstable else {}),
    }


def _rank(named: tuple[str, Mapping[str, Value]]) -> tuple[str, dict[str, Any]]:
    """Metrics of one process, by name: value, unit, and why it is not known."""
    name, values = named
    return name, {
        metric: {"value": None, "unit": METRICS[metric].unit, "reason": in_words(value.reason)}
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
            **({"reason": in_words(verdict.reason)} if verdict.reason else {}),
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
    if is_other_file(path, _is_report):
        raise SettingsError(
            f"{path} is not replaced",
            f"it exists and is not a report ({REPORT_SCHEMA})",
            "name another file, or remove this one first",
        )


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
    text = escape.strict_json_text(report, indent=1)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")
