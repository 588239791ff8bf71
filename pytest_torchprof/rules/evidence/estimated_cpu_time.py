"""What a test does in total, by counts, which repeat from run to run while times do not."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.live_bytes import ALLOCATORS
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.rules.evidence.shapes import shapes
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.name_index import are_operators, count
from pytest_torchprof.trace.same_calls import once_selected
from pytest_torchprof.trace.tree import are_outermost
from pytest_torchprof.work.counting import total_flops
from pytest_torchprof.work.views import IDLE

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.name_index import Names

#: The time to call an operator, and one nested in it; a FLOP; to allocate a byte of memory and to
#: write it. Fitted to 50 scripts and models of seven libraries, with torch 2.13 on one CPU thread,
#: of 12 to 1,000 ms, including the Python around: half are within a factor of 1.4, four in five
#: within 2.
CALL_NS: Final = 5_000
_INNER_NS: Final = 1_200
FLOP_NS: Final = 0.007
BYTE_NS: Final = 0.36
#: Of a float32 number.
_FLOAT_BYTES: Final = 4
#: Outputs, gradients and library buffers allocate this many times the largest operand: 2.6 to 7.9
#: in training steps with convolutions, so it is a guess.
_TIMES: Final = 3


def estimated_cpu_ns(trace: Events) -> float:
    """The approximate time of all selected operators on a CPU, from calls, FLOPs and memory.

    It is what a match is compared with to decide if it is too small to report. It is too high for a
    bare loop of operators, and too low for scripts that do much besides.
    """
    return trace.once(_estimate)


def is_trifle(trace: Events, cost_ns: float, share: float) -> bool:
    """Whether a cost is less than this share of the estimated time of all operators."""
    return cost_ns < share * estimated_cpu_ns(trace)


def least_ns(trace: Events, share: float) -> float:
    """What a match must cost on a CPU to be reported; nothing where a device did work."""
    return 0.0 if trace.has(*DEVICE_KINDS) else share * estimated_cpu_ns(trace)


def guessed(trace: Events, *names: Names) -> Reason | None:
    """Why this size is uncertain, for a rule about events of these names on a CPU."""
    if trace.is_live or trace.has(Kind.MEMORY, *DEVICE_KINDS) or not count(trace, *names):
        return None
    return because(Why.TRIFLES_GUESSED)


def _estimate(trace: Events) -> float:
    called, operators = once_selected(trace, _called)
    return (
        called * CALL_NS
        + operators * _INNER_NS
        + total_flops(trace) * FLOP_NS
        + _allocated(trace) * BYTE_NS
    )


def _called(trace: Events) -> tuple[int, int]:
    """How many selected operators are called by no other, and how many there are."""
    operators = (trace.selection & are_operators(trace)[:-1]).nonzero()[0]
    return int(are_outermost(trace, operators).sum()), len(operators)


def _allocated(trace: Events) -> float:
    """Bytes allocated; without memory events, the largest operand of each operator that contains no
    other operator and is not a view.
    """
    memory = trace.memory
    if len(memory.event):
        return float(memory.bytes[trace.selection[memory.event] & (memory.bytes > 0)].sum())
    operators = trace.is_kind(Kind.OP)
    works = operators & ~trace.names_where(IDLE.__contains__)
    works &= ~trace.names_where(ALLOCATORS.__contains__)
    above = trace.parent[works]
    works[above[above >= 0]] = False
    largest = (
        max(map(prod, filter(None, some)), default=0)
        for some in shapes(trace, np.flatnonzero(works & trace.selection))
    )
    return float(sum(largest) * _FLOAT_BYTES * _TIMES)
