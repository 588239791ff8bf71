"""Traces of ranks that meet at collectives of gloo at given times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from support.trace_builder import EPOCH_NS, TraceBuilder

GLOO_THREAD = 77


class Call(NamedTuple):
    """A collective: its kind, elements of fp32, and when the work begins and ends, in µs."""

    begin: float
    end: float
    elements: int = 1024
    kind: str = "all_reduce"


_OPERATORS = {
    "all_reduce": "c10d::allreduce_",
    "broadcast": "c10d::broadcast_",
    "all_to_all": "c10d::alltoall_",
}


def rank_trace(
    rank: int, calls: Sequence[Call], *, ranks: int = 2, clock_us: float = 0, host: str = ""
) -> TraceBuilder:
    """One rank's, on a clock that is ahead by ``clock_us``; ``host`` is the name of its host."""
    b = TraceBuilder()
    members = [*range(ranks)]
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": members}
    info = {"backend": "gloo", "rank": rank, "world_size": ranks, "pg_count": 1}
    b.metadata("distributedInfo", info | {"pg_config": [group]})
    if host:
        b.metadata("host_name", host)
    for call in calls:
        b.now = EPOCH_NS + round((call.begin + clock_us - 15) * 1000)
        dims: list[Any] = [[[call.elements]], [], [], [], [], []]
        types = ["TensorList", "", "", "", "Scalar", "Scalar"]
        b.op(_OPERATORS[call.kind], dims, types, dur_us=10)
        b.now = EPOCH_NS + round((call.begin + clock_us) * 1000)
        with b.thread(GLOO_THREAD):
            event = b.annotation(f"gloo:{call.kind}", call.end - call.begin).event
        event["args"] |= {"Input Dims": [[call.elements]], "Input type": ["float"]}
    return b
