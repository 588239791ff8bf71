"""The calls of one rank that communicate, as little as it takes to compare them with others'."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.comm_calls import comm_calls
from pytest_torchprof.analysis.comm_sizes import comm_sizes
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


class CallKind(NamedTuple):
    """What calls have in common: see `CommSizes` for the fields."""

    key: str
    group: str
    operation: str
    dtype: str
    size: int


class RankCalls(Frozen, frozen=True):
    """The calls of one rank, in the order in which its device was done with them, else of the host.

    Attributes:
        kinds: each kind once.
        kind: of each call, its index in ``kinds``.
        begin: of each call, in ns by the trace's clock, -1 if unknown; see `CommCalls`.
        end: likewise.
        base_ns: when that clock began, in ns since the epoch; 0 if the trace does not say so.
        first_ns: when the first event began, by that clock; None without events.
        host: the name of the rank's host, empty if unknown.
    """

    kinds: tuple[CallKind, ...]
    kind: npt.NDArray[np.int32]
    begin: Ints
    end: Ints
    base_ns: int
    first_ns: int | None
    host: str

    def __len__(self) -> int:
        return len(self.kind)


def rank_calls(trace: Events) -> RankCalls:
    """The calls of this rank, of the selected events.

    Hosts run ahead of their devices, each as far as it likes, and what was launched before the
    recording has no call: only the ends on the device are in one order on all ranks. A call without
    a known end comes after the one made before it.
    """
    calls, sizes = comm_calls(trace), comm_sizes(trace)
    done = np.where(calls.kernel >= 0, calls.end, -1)
    made = np.where(trace.is_kind(Kind.KERNEL)[calls.event], -1, done)
    order = np.where(done < 0, np.maximum.accumulate(made), done).argsort(kind="stable")
    kinds: dict[CallKind, int] = {}
    fields = (sizes.key, sizes.group, calls.operation, sizes.dtype, sizes.size.tolist())
    kind = [kinds.setdefault(CallKind(*one), len(kinds)) for one in zip(*fields, strict=True)]
    base, host = trace.metadata.get("baseTimeNanoseconds"), trace.metadata.get("host_name")
    return RankCalls(
        tuple(kinds),
        np.array(kind, np.int32)[order],
        calls.begin[order],
        calls.end[order],
        base if type(base) is int else 0,
        int(trace.ts[0]) if len(trace) else None,
        host if isinstance(host, str) else "",
    )
