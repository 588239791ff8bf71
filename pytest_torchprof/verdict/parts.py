"""The tables of a trace's steps and of a job's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np

from pytest_torchprof.analysis.communication import RankTime, rank_time
from pytest_torchprof.analysis.rank_waits import RankCalls, RankWaits, rank_calls, waits_between
from pytest_torchprof.analysis.steps import (
    ADDS_UP,
    LEAST_FOR_OUTLIERS,
    Trend,
    outliers,
    step_numbers,
    trend,
)
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue, Sample
from pytest_torchprof.trace.names import once_per_trace
from pytest_torchprof.trace.steps import steps_of
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


# ---- The table of a job's ranks: where each one's time goes, and who waits for whom.

#: Whose imbalance slows a job, or decides what fits.
_BALANCED: Final = ("compute_ms", "peak_bytes", "comm_bytes")


@dataclass(frozen=True)
class RankRow:
    """One rank of a job.

    The times are unions over its devices' events, or over operators and the back end's work if the
    trace has no device events; see `RankTime`. ``wait_ms`` is how long it waited at collectives for
    the last rank to begin; ``peak_bytes`` the highest live memory of the device, else of the host.
    None is unknown.
    """

    ADDS_UP: ClassVar = ()

    rank: int | str
    span_ms: float | None
    compute_ms: float | None
    comm_ms: float | None
    exposed_comm_ms: float | None
    idle_ms: float | None
    wait_ms: float | None
    peak_bytes: int | None


@dataclass(frozen=True)
class WaitRow:
    """How long one rank waited for another, which was the last to begin so many collectives."""

    rank: int
    for_rank: int
    wait_ms: float


@dataclass(frozen=True)
class ImbalanceRow:
    """How far the largest value of a field is above the mean of all ranks."""

    field: str
    rank: int
    largest: float
    mean: float
    over_mean: float


class RankTable(Frozen, frozen=True):
    """Rows, the worst first: the rank for which the others waited longest, then by own span.

    ``waited_for_ms`` is that, by rank. ``waits`` are the pairs with a wait, the longest first.
    ``unknown`` says why a rank's times are not known. ``on_host``: ranks without device events.
    """

    rows: tuple[RankRow, ...]
    waits: tuple[WaitRow, ...]
    imbalance: tuple[ImbalanceRow, ...]
    waited_for_ms: Mapping[int, float]
    unknown: Mapping[int, Reason]
    on_host: tuple[int, ...]
    found: RankWaits | None


class RankPart(Frozen, frozen=True):
    """What the table needs of one rank; it can be sent.

    ``times`` is why they are unknown, if they are. ``peak_bytes`` and ``comm_bytes`` are None if
    unknown.
    """

    times: RankTime | Reason
    peak_bytes: int | None
    comm_bytes: int | None
    calls: RankCalls


def rank_part(trace: Events) -> RankPart:
    """What the table needs of this rank."""
    carried = measure(METRICS["comm_bytes"], trace)
    return RankPart(
        rank_time(trace),
        _peak(trace),
        None if isinstance(carried, MissingValue) else int(carried),
        rank_calls(trace),
    )


def rank_table(traces: Mapping[int, Events], *, one_job: bool = True) -> RankTable:
    """The table of these ranks; see `rank_table_of`."""
    parts = {rank: rank_part(trace) for rank, trace in traces.items()}
    return rank_table_of(parts, one_job=one_job)


def rank_table_of(parts: Mapping[int, RankPart], *, one_job: bool = True) -> RankTable:
    """The table of these ranks; ``one_job``: whether their collectives are the same ones."""
    calls = {rank: part.calls for rank, part in parts.items()}
    found = waits_between(calls) if one_job and len(parts) > 1 else None
    ranks = sorted(parts)
    unknown, on_host = dict[int, Reason](), list[int]()
    rows, fields = dict[int, RankRow](), {name: dict[int, float]() for name in _BALANCED}
    waited_for = dict.fromkeys(ranks, 0.0)
    waits = list[WaitRow]()
    if found is not None:
        for column, rank in enumerate(found.ranks):
            waiting = found.wait_ns[:, column]
            waited_for[rank] = int(waiting.sum()) / 1e6
            for row in waiting.nonzero()[0].tolist():
                waits.append(WaitRow(found.ranks[row], rank, int(waiting[row]) / 1e6))
    for number, rank in enumerate(ranks):
        part = parts[rank]
        times = part.times
        if isinstance(times, Reason):
            unknown[rank] = times
        elif not times.on_device:
            on_host.append(rank)
        wait = None
        if found is not None and found.met[number]:
            wait = int(found.wait_ns[number].sum()) / 1e6
        rows[rank] = RankRow(
            rank,
            _ms(times, "span_ns"),
            _ms(times, "compute_ns"),
            _ms(times, "comm_ns"),
            _ms(times, "exposed_ns"),
            _ms(times, "idle_ns"),
            wait,
            part.peak_bytes,
        )
        balanced = (rows[rank].compute_ms, part.peak_bytes, part.comm_bytes)
        for name, value in zip(_BALANCED, balanced, strict=True):
            if value is not None:
                fields[name][rank] = value
    order = sorted(ranks, key=lambda rank: (-waited_for[rank], -(rows[rank].span_ms or 0), rank))
    return RankTable(
        tuple(rows[rank] for rank in order),
        tuple(sorted(waits, key=lambda row: -row.wait_ms)),
        tuple(_imbalance(fields, len(ranks))) if one_job else (),
        waited_for,
        unknown,
        tuple(on_host),
        found,
    )


def _ms(times: RankTime | Reason, what: str) -> float | None:
    return None if isinstance(times, Reason) else int(getattr(times, what)) / 1e6


def _peak(trace: Events) -> int | None:
    for name in ("peak_cuda_bytes", "peak_cpu_bytes"):
        value = measure(METRICS[name], trace)
        if not isinstance(value, MissingValue):
            return int(value)
    return None


def _imbalance(fields: Mapping[str, Mapping[int, float]], ranks: int) -> list[ImbalanceRow]:
    """Only of fields that all ranks have."""
    rows = list[ImbalanceRow]()
    for name, values in fields.items():
        if len(values) < max(ranks, 2) or not sum(values.values()):
            continue
        rank = max(values, key=lambda one: (values[one], -one))
        mean = sum(values.values()) / len(values)
        rows.append(ImbalanceRow(name, rank, values[rank], mean, values[rank] / mean - 1))
    return rows


# ---- The table of a trace's steps, and what is usual, stands out or drifts over them.

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


@once_per_trace
def step_table(trace: Events, name: str = "") -> StepTable:
    """The selected steps of a trace in time order; ``name``: of their annotations."""
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
        unknown.setdefault("copied_bytes", because(*Why.NO_COPY_SIZES))
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
