"""What a test does in all, by counts, which are the same in each run where times are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.events import Kind
from pytest_torchprof.rules.tree import outermost

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace

#: What it takes to call an operator, and one within it; a FLOP; to have a byte of memory and to
#: write it. Fitted to 50 scripts and models of seven libraries, with torch 2.13 on one thread of a
#: CPU, of 12 to 1,000 ms, with the Python around: half are within a factor of 1.4, four in
#: five of 2.
CALL_NS: Final = 5_000
_INNER_NS: Final = 1_200
FLOP_NS: Final = 0.007
BYTE_NS: Final = 0.36


def effort_ns(trace: Trace) -> float:
    """About what all that counts would take on a CPU, by its operators, FLOPs and memory.

    To say what is a trifle beside it: in a bare loop of operators rather too much, in scripts that
    do much besides too little.
    """
    return trace.once(_effort)


def _effort(trace: Trace) -> float:
    operators = trace.selection & trace.is_kind(Kind.OP)
    calls = np.count_nonzero(operators[outermost(trace)])
    memory = trace.memory
    allocated = memory.bytes[trace.selection[memory.event] & (memory.bytes > 0)]
    return (
        calls * CALL_NS
        + int(np.count_nonzero(operators)) * _INNER_NS
        + float(trace.op_flops.sum()) * FLOP_NS
        + float(allocated.sum()) * BYTE_NS
    )
