"""The rows of `torchprof collectives`: calls that communicate, by what they carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.comm_calls import comm_calls
from pytest_torchprof.analysis.comm_sizes import comm_sizes
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_torchprof.analysis.rank_calls import RankCalls
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Bus bandwidth divided by algorithm bandwidth, of ``n`` ranks.
#: Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and the functions
#: ``*GetBw`` in its ``src``.
BUS_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send": lambda _: 1.0,
    "receive": lambda _: 1.0,
}
#: Those whose factor does not depend on the number of ranks.
_ANY_NUMBER: Final = frozenset({"broadcast", "reduce", "send", "receive"})


@dataclass(frozen=True)
class CollectiveRow:
    """Calls of one operation in one group of ranks, with one size and dtype.

    ``size`` is what one call carries, in bytes: the larger of what a rank gives and gets (see
    `CommSizes`), and ``bytes`` that of all calls. ``total_ms`` is the sum of their durations on the
    device, or of gloo's work, including the wait for other ranks. ``algbw_gb_per_s`` is ``bytes``
    by ``total_ms``, in 10⁹ bytes a second; ``busbw_gb_per_s`` is that times `BUS_FACTORS`, which
    compares with the links' own bandwidth whatever the number of ranks. ``wait_ms`` is the wait of
    the earliest rank for the last one, summed over the calls, where traces of several ranks tell.
    None is unknown.
    """

    ADDS_UP: ClassVar = ("calls", "bytes", "total_ms")

    operation: str
    group: str | None
    size: int | None
    dtype: str | None
    calls: int
    bytes: int | None
    total_ms: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wait_ms: float | None


def collective_rows(trace: Events) -> list[CollectiveRow]:
    """The rows of the selected calls, the longest first; those of unknown length come last.

    ``wait_ms`` is None: one trace does not tell it, see `waits_by_row`.
    """
    calls, sizes = comm_calls(trace), comm_sizes(trace)
    groups: dict[tuple[str, str, str, int], list[int]] = {}
    for i, key in enumerate(
        zip(calls.operation, sizes.group, sizes.dtype, sizes.size.tolist(), strict=True)
    ):
        groups.setdefault(key, []).append(i)
    duration = np.where(calls.end >= 0, calls.end - calls.begin, -1)
    rows = list[CollectiveRow]()
    for (operation, group, dtype, size), members in groups.items():
        at = np.array(members, np.int64)
        timed = bool((duration[at] >= 0).all())
        total_ns = int(duration[at].sum())
        carried = size * len(at) if size >= 0 else None
        rate = carried / total_ns if carried and timed and total_ns else None
        rows.append(
            CollectiveRow(
                operation,
                group or None,
                size if size >= 0 else None,
                dtype or None,
                len(at),
                carried,
                total_ns / 1e6 if timed else None,
                rate,
                _bus(operation, sizes.ranks[at], rate),
                None,
            )
        )
    return sorted(
        rows, key=lambda row: -1.0 if row.total_ms is None else row.total_ms, reverse=True
    )


#: What tells the rows of a trace apart.
ROW_KEY: Final = ("operation", "group", "size", "dtype")


def waits_by_row(calls: RankCalls, earliest_ns: Ints) -> dict[tuple[object, ...], float | None]:
    """The ``wait_ms`` of the rows of these calls, by the fields of `ROW_KEY`.

    ``earliest_ns``: of each call, the wait of the rank that began it first, -1 if unknown; see
    `RankWaits`.
    """
    found: dict[tuple[object, ...], float | None] = {}
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, kind in enumerate(calls.kinds):
        size = kind.size if kind.size >= 0 else None
        key = (kind.operation, kind.group or None, size, kind.dtype or None)
        numbers.setdefault(key, []).append(number)
    for row, mine in numbers.items():
        waits = earliest_ns[among(calls.kind, mine)]
        found[row] = None if (waits < 0).any() else int(waits.sum()) / 1e6
    return found


def _bus(operation: str, ranks: Ints, rate: float | None) -> float | None:
    if rate is None or operation not in BUS_FACTORS:
        return None
    count = int(ranks.max())
    if operation not in _ANY_NUMBER and (count < 1 or int(ranks.min()) != count):
        return None
    return rate * BUS_FACTORS[operation](count)
