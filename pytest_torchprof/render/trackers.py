"""A report in the formats of services that follow numbers over time.

Bencher Metric Format, github-action-benchmark's ``customSmallerIsBetter``, OpenMetrics, and CSV.
A number that is unknown, or only a lower bound, is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.process import late
from pytest_torchprof.render import escape
from pytest_torchprof.render.table import Table
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.render.report import StoredMetric, StoredReport

#: The longest name of a benchmark and of a measure that Bencher accepts, in characters: its
#: ``BenchmarkName`` and ``ResourceName``.
_LONGEST_BENCHMARK, _LONGEST_MEASURE = 1024, 64
_NOT_IN_NAME = late(r"[^a-zA-Z0-9_]")
#: Units that OpenMetrics can name, as they end the name of a metric.
_UNITS = ("ms", "bytes")

CSV_FIELDS = (
    *("environment", "nodeid", "region", "metric", "scope", "value", "unit", "class", "status"),
    *("baseline", "limit", "least", "at_least", "n", "low", "high"),
)


class Exported(NamedTuple):
    """The text of a file, and how many numbers it cannot have."""

    text: str
    left_out: int = 0


class Series(NamedTuple):
    """One metric of a test or of a region of it; ``scope`` is the part that a limit is on."""

    nodeid: str
    region: str | None
    name: str
    scope: str | None
    metric: StoredMetric

    @property
    def value(self) -> int | float | None:
        """The measured number, None if unknown; a lower bound is none."""
        return None if self.metric.at_least is not None else self.metric.value

    @property
    def benchmark(self) -> str:
        """The test, and the region if it is of one."""
        return self.nodeid if self.region is None else f"{self.nodeid} ({self.region})"

    @property
    def label(self) -> str:
        """The metric with its scope, as the report names it."""
        return self.name if self.scope is None else f"{self.name}[{self.scope}]"

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """Those of several rounds."""
        low, high, n = self.metric.low, self.metric.high, self.metric.n or 0
        return None if n < 2 or low is None or high is None else (low, high)


def series_of(report: StoredReport) -> Iterator[Series]:
    """All metrics of all tests, then of their regions, in the order of the report."""
    for test in report.tests:
        parts: list[tuple[str | None, Mapping[str, StoredMetric]]] = [(None, test.metrics)]
        parts += [(name, region.metrics) for name, region in test.regions.items()]
        for region, metrics in parts:
            for label, metric in metrics.items():
                name, bracket, scope = label.removesuffix("]").partition("[")
                yield Series(test.nodeid, region, name, scope if bracket else None, metric)


def _known(report: StoredReport) -> list[Series]:
    return [one for one in series_of(report) if one.value is not None]


def bmf(report: StoredReport) -> Exported:
    """Bencher Metric Format: benchmark → measure → value, with quartiles as its bounds.

    The format is that of Bencher's documentation, "Bencher Metric Format (BMF)".
    """
    found: dict[str, dict[str, Any]] = {}
    for one in _known(report):
        numbers: dict[str, Any] = {"value": one.value}
        if one.quartiles:
            numbers["lower_value"], numbers["upper_value"] = one.quartiles
        measures = found.setdefault(_cut(one.benchmark, _LONGEST_BENCHMARK), {})
        measures[_cut(one.label, _LONGEST_MEASURE)] = numbers
    return Exported(escape.json_text(found, indent=1) + "\n")


def gha_benchmark(report: StoredReport) -> Exported:
    """The list that github-action-benchmark reads with ``tool: customSmallerIsBetter``.

    Metrics of which a higher value is better do not belong there, and are counted.
    """
    known = _known(report)
    rows: list[dict[str, Any]] = []
    key = str(report.environment.get("key", ""))
    for one in known:
        if one.metric.better == "higher":
            continue
        row = {"name": f"{one.benchmark}: {one.label}", "unit": one.metric.unit, "value": one.value}
        if one.quartiles:
            low, high = one.quartiles
            row["range"] = f"± {(high - low) / 2:.4g}"
        rows.append({**row, **({"extra": key} if key else {})})
    return Exported(escape.json_text(rows, indent=1) + "\n", len(known) - len(rows))


def openmetrics(report: StoredReport) -> Exported:
    """OpenMetrics 1.0 text: a gauge per metric, with the test and its region as labels.

    GitLab's metrics report and Prometheus read it.
    """
    families: dict[str, list[str]] = {}
    seen: set[tuple[str, str]] = set()
    key = str(report.environment.get("key", ""))
    for one in _known(report):
        name = f"torchprof_{_NOT_IN_NAME.sub('_', one.name)}"
        labels = {"test": one.nodeid, "region": one.region, "scope": one.scope}
        labels |= {"environment": key or None}
        if name != f"torchprof_{one.name}":
            labels["metric"] = one.name
        shown = ",".join(f'{label}="{_label(text)}"' for label, text in labels.items() if text)
        number = 1
        while (name, shown) in seen:  # names that differ only in what is not shown
            number += 1
            shown = f'{shown.rpartition(",number=")[0] or shown},number="{number}"'
        seen.add((name, shown))
        families.setdefault(name, _described(name)).append(f"{name}{{{shown}}} {one.value!r}")
    lines = [line for samples in families.values() for line in samples]
    return Exported("".join(f"{line}\n" for line in (*lines, "# EOF")))


def _described(name: str) -> list[str]:
    """What comes before the samples of a metric."""
    units = [f"# UNIT {name} {unit}" for unit in _UNITS if name.endswith(f"_{unit}")]
    known = METRICS.get(name.removeprefix("torchprof_"))
    said = [f"# HELP {name} {_label(known.help)}"] if known is not None else []
    return [f"# TYPE {name} gauge", *units, *said]


def _label(text: str) -> str:
    """Escaped as the ABNF of OpenMetrics says."""
    return escape.line(text).replace("\\", r"\\").replace('"', r"\"")


def csv(report: StoredReport) -> Exported:
    """A row per metric, with an empty cell for what is unknown."""
    rows = [
        {
            **{field: getattr(one.metric, field, None) for field in CSV_FIELDS},
            "environment": report.environment.get("key"),
            "nodeid": one.nodeid,
            "region": one.region,
            "metric": one.name,
            "scope": one.scope,
            "value": one.value,
            "class": one.metric.klass,
        }
        for one in series_of(report)
    ]
    return Exported(Table(rows, CSV_FIELDS).csv())


def _cut(name: str, longest: int) -> str:
    """A name that is too long ends in a hash of all of it, so that others differ."""
    if len(name) <= longest:
        return name
    digits = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{name[: longest - 9]}…{digits}"


#: By the name of the format.
EXPORTS: Mapping[str, Callable[[StoredReport], Exported]] = MappingProxyType(
    {"bmf": bmf, "gha-benchmark": gha_benchmark, "openmetrics": openmetrics, "csv": csv}
)
