"""Metrics of communication between ranks, of a trace in which there may be some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.comm_calls import comm_calls
from pytest_torchprof.analysis.comm_sizes import comm_sizes
from pytest_torchprof.analysis.comm_time import rank_time
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.trace.events import Events


def collectives(trace: Events) -> Value:
    """How many calls communicate."""
    return len(comm_calls(trace))


def comm_bytes(trace: Events) -> Value:
    """The bytes that they carry: the sum of `CommSizes.size`; a lower bound if some are unknown."""
    size = comm_sizes(trace).size
    known = int(size[size >= 0].sum())
    unsized = np.flatnonzero(size < 0)
    if not len(unsized):
        return known
    event = comm_calls(trace).event[unsized[0]]
    reason = because(
        Why.NO_COMM_SIZES,
        unsized=len(unsized),
        calls=len(size),
        name=trace.names[trace.name[event]],
    )
    return MissingValue(reason, known or None, at_least=True)


def comm_ms(trace: Events) -> Value:
    """`RankTime.comm_ns`."""
    return _time(trace, "comm_ns")


def exposed_comm_ms(trace: Events) -> Value:
    """`RankTime.exposed_ns`."""
    return _time(trace, "exposed_ns")


def _time(trace: Events, what: str) -> Value:
    if not len(comm_calls(trace)):
        return 0.0
    found = rank_time(trace)
    if isinstance(found, Reason):
        return MissingValue(found)
    return float(getattr(found, what)) / 1e6
