"""The table of a trace's steps, and what is usual, stands out or drifts over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from pytest_torchprof.analysis.step_numbers import ADDS_UP, step_numbers
from pytest_torchprof.analysis.trends import LEAST_FOR_OUTLIERS, Trend, outliers, trend
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.samples import Sample
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.steps import steps_of
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events

#: Field of a row → the metric whose needs decide whether it is known.
_NEEDS_OF: Final = {
    "self_cpu_ms": "self_cpu_ms",
    "self_cuda_ms": "self_cuda_ms",
    "cuda_busy_ms": "cuda_busy_ms",
    "cuda_idle_ms": "cuda_idle_ms",
    "ops": "ops",
    "kernels": "kernels",
    "copies": "h2d_copies",
    "copied_bytes": "h2d_bytes",
    "peak_cpu_bytes": "peak_cpu_bytes",
    "peak_cuda_bytes": "peak_cuda_bytes",
}


@dataclass(frozen=True)
class StepRow:
    """One step: its annotation, and what ran while that was open, in any thread.

    ``start_ms`` is the time from the trace's first event, ``duration_ms`` that of the annotation.
    The rest is as in the metrics of these names; ``copies`` are those in all directions, and
    ``peak_`` is above the start of the step. Device work belongs to the step whose launch made it,
    even if it ran later. None is unknown. ``outlier`` is ``slow`` or ``fast`` if the duration is
    beyond Tukey's fences and more than 5 % from the median, of at least five steps.
    """

    step: int
    start_ms: float
    duration_ms: float
    self_cpu_ms: float | None
    self_cuda_ms: float | None
    cuda_busy_ms: float | None
    cuda_idle_ms: float | None
    ops: int | None
    kernels: int | None
    copies: int | None
    copied_bytes: int | None
    peak_cpu_bytes: int | None
    peak_cuda_bytes: int | None
    outlier: Literal["slow", "fast"] | None


@dataclass(frozen=True)
class StepStatistics:
    """One field over all steps: median, quartiles and extremes, in the field's unit.

    ``spread`` is half the distance of the quartiles relative to the median, None for one step or a
    median of 0. ``outliers`` are numbers of steps, None for fewer than five steps. ``drift`` is
    None without a trend: the test of Mann and Kendall at 1 %, without outliers, and a change of at
    least 1 % of the median from the first to the last step; ``drift_share`` is that change.
    """

    field: str
    count: int
    median: float
    low: float
    high: float
    minimum: float
    maximum: float
    spread: float | None
    outliers: list[int] | None
    drift: float | None
    drift_share: float | None
    drift_p_value: float | None


class StepTable(Frozen, frozen=True):
    """The steps of a trace: ``rows``, ``statistics`` of each known field, and the rest.

    ``name`` is what the steps are called. ``outside`` are the fields that add up, of what ran
    outside of all steps. ``unknown`` gives the reason for a field without values.
    """

    name: str
    rows: list[StepRow]
    statistics: list[StepStatistics]
    outside: Mapping[str, float | None]
    unknown: Mapping[str, Reason]


def step_table(trace: Events, name: str = "") -> StepTable:
    """The selected steps of a trace in time order; ``name``: of their annotations."""
    return trace.once(_step_table, name)


def _step_table(trace: Events, name: str) -> StepTable:
    steps, numbers = steps_of(trace, name), step_numbers(trace, name)
    unknown = _unknown(trace, sized=numbers.sized)
    columns: dict[str, list[float]] = {}
    for column, values in numbers.columns.items():
        in_ns = column.endswith("_ns")
        field = f"{column.removesuffix('_ns')}_ms" if in_ns else column
        columns[field] = (values / 1e6 if in_ns else values).tolist()
    number = steps.number[numbers.step].tolist()
    count = len(number)
    far = outliers(columns["duration_ms"]).tolist()
    median = float(np.median(columns["duration_ms"])) if count else 0.0
    known = {field: values for field, values in columns.items() if field not in unknown}
    rows = []
    for i in range(count):
        own = {field: known[field][i] if field in known else None for field in columns}
        far_off = "slow" if columns["duration_ms"][i] > median else "fast"
        rows.append(StepRow(step=number[i], **own, outlier=far_off if far[i] else None))  # type: ignore[arg-type]
    statistics = [
        _statistics(field, values[:count], number)
        for field, values in known.items()
        if field != "start_ms" and count
    ]
    sums = [c for c in columns if c in ADDS_UP or c.replace("_ms", "_ns") in ADDS_UP]
    outside = {field: known[field][-1] if field in known else None for field in sums}
    return StepTable(steps.name, rows, statistics, outside, unknown)


def _unknown(trace: Events, *, sized: bool) -> dict[str, Reason]:
    """Why the trace does not tell some fields."""
    found = {field: measure(METRICS[name], trace.whole) for field, name in _NEEDS_OF.items()}
    unknown = {f: value.reason for f, value in found.items() if isinstance(value, MissingValue)}
    if not sized:
        unknown.setdefault("copied_bytes", because(Why.NO_COPY_SIZES))
    return unknown


def _statistics(field: str, values: list[float], number: list[int]) -> StepStatistics:
    sample = Sample.of(values)
    far = [number[i] for i in np.flatnonzero(outliers(values)).tolist()]
    drift: Trend | None = trend(values)
    return StepStatistics(
        field=field,
        count=sample.n,
        median=sample.median,
        low=sample.low,
        high=sample.high,
        minimum=sample.minimum,
        maximum=max(values),
        spread=sample.spread,
        outliers=far if len(values) >= LEAST_FOR_OUTLIERS else None,
        drift=drift.per_step if drift else None,
        drift_share=drift.share if drift else None,
        drift_p_value=drift.p_value if drift else None,
    )
