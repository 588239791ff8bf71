"""The table of a job's ranks: where each one's time goes, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_torchprof.analysis.comm_time import RankTime, rank_time
from pytest_torchprof.analysis.rank_calls import RankCalls, rank_calls
from pytest_torchprof.analysis.rank_waits import RankWaits, waits_between
from pytest_torchprof.core.reasons import Reason
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

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
