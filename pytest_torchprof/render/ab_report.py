"""The report of `torchprof ab`, like that of a test session on B with A as the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import (
    MetricStatus,
    MissingValue,
    Record,
    TestStatus,
    Verdict,
)
from pytest_torchprof.render.ab_table import row_cells, row_note
from pytest_torchprof.render.json_report import noise_of, test_of
from pytest_torchprof.verdict.decision import status_of
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.verdict.paired_row import PairedRow, RowVerdict

#: Decision → status of a time in a report.
_STATUSES: dict[RowVerdict, MetricStatus] = {
    "slower": "regressed",
    "faster": "improved",
    "same": "ok",
    "unclear": "advisory",
}
#: Fields of ``ab`` in a test's record.
_FIELDS = ("verdict", "ratio", "low", "high", "confidence", "pairs", "p_value")


def test_of_row(row: PairedRow) -> dict[str, Any]:
    """A test's part of the report."""
    status: TestStatus = "not_profiled"
    if row.verdict == "new":
        status = "new"
    verdicts = _verdicts(row)
    if row.decision is not None:
        status = status_of(verdicts, has_baseline=True)
    metrics = {verdict.label: verdict for verdict in verdicts}
    made = test_of(Record(row.nodeid, status, row_note(row), metrics, outcome=_outcome(row)))
    fields = row_cells(row)
    # As ratios here, not as changes.
    low, high = (row.decision.low, row.decision.high) if row.decision else (None, None)
    made["ab"] = {name: fields[name] for name in _FIELDS} | {"low": low, "high": high}
    made["ab"] |= {"a": _sample(row.a_ms), "b": _sample(row.b_ms)}
    return made


def _outcome(row: PairedRow) -> str | None:
    """The outcome on B; None if it did not run there or is unknown."""
    if row.decision is not None:
        return "passed"
    if row.verdict in ("skipped", "failed", "error") and row.broken != "A":
        return row.verdict
    return None


def _sample(sample: Sample | None) -> dict[str, Any] | None:
    return None if sample is None else {"unit": "ms", "median": sample.median, **noise_of(sample)}


def _verdicts(row: PairedRow) -> list[Verdict]:
    verdicts = []
    status = _STATUSES.get(row.verdict, "new")
    times: tuple[tuple[str, Sample | None, Sample | None, MetricStatus], ...] = (
        ("wall_ms", row.a_ms, row.b_ms, status),
        # Wall time decides; CPU time is for information.
        ("cpu_ms", row.cpu_a_ms, row.cpu_b_ms, "ok" if status == "ok" else "advisory"),
    )
    for metric, a, b, of in times:
        if b is not None:
            baseline = None if a is None else a.median
            verdicts.append(Verdict(metric, b.median, of if a else "new", baseline, sample=b))
    return verdicts + [_exact(d.metric, d.a, d.b) for d in row.differences if d.metric in METRICS]


def _exact(metric: str, a: float | None, b: float | None) -> Verdict:
    if b is None:
        reason = because(Why.NOT_MEASURED_ON, side="B")
        return Verdict(metric, MissingValue(reason), "not_measured", a, reason=reason)
    if a is None:
        return Verdict(metric, b, "new", reason=because(Why.NOT_MEASURED_ON, side="A"))
    return Verdict(metric, b, "regressed" if b > a else "improved", a)
