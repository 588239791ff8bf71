"""Which operators a user's code called, in which step, and with what."""

# ruff: noqa: PLC0414 - re-exports, until the rules import from `trace.tree` and `work.repeats`

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.calls import LAYER as LAYER
from pytest_torchprof.rules.calls import mean_elements as mean_elements
from pytest_torchprof.rules.calls import shapes as shapes
from pytest_torchprof.rules.calls import sizes as sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Kind,
    Names,
    are_operators,
    count,
)
from pytest_torchprof.trace.tensors import listed
from pytest_torchprof.trace.tree import are_called as are_called
from pytest_torchprof.trace.tree import are_closed as are_closed
from pytest_torchprof.trace.tree import (
    are_outermost,
    once_selected,
)
from pytest_torchprof.trace.tree import begun_by as begun_by
from pytest_torchprof.trace.tree import called as called
from pytest_torchprof.trace.tree import in_backward as in_backward
from pytest_torchprof.trace.tree import may_be_called as may_be_called
from pytest_torchprof.trace.tree import pass_of as pass_of
from pytest_torchprof.trace.tree import passes as passes
from pytest_torchprof.trace.tree import step_bounds as step_bounds
from pytest_torchprof.trace.tree import step_of as step_of
from pytest_torchprof.work.counting import total_flops
from pytest_torchprof.work.operands import ELEMENT_BYTES
from pytest_torchprof.work.repeats import APART as APART
from pytest_torchprof.work.repeats import CallSequence as CallSequence
from pytest_torchprof.work.repeats import Stretch as Stretch
from pytest_torchprof.work.repeats import sequence as sequence
from pytest_torchprof.work.repeats import stretches as stretches

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


# ---- Which tensors operators fill or make: their shapes and sizes.


class Filled(NamedTuple):
    """One tensor; a stored trace does not tell the dtype of those of a list, taken as float32."""

    elements: int
    bytes: int


def filled(trace: Events, rows: Ints) -> list[Filled] | None:
    """Each tensor that these operators fill or make; None if any size is unknown."""
    out = list[Filled]()
    lists = listed(trace, rows) or [None] * len(rows)
    for row, known, args in zip(rows.tolist(), lists, trace.operands(rows), strict=True):
        if known is not None and known.shapes:
            out += [Filled(prod(one), prod(one) * known.item_bytes) for one in known.shapes]
            continue
        dtype, *_ = decode_part(args.types) or [""]
        shapes = [sizes(decode_part(one.encode())) for one in filled_shapes(trace, row)]
        for shape in shapes or [None]:
            if shape is None:
                return None
            out.append(Filled(prod(shape), prod(shape) * ELEMENT_BYTES.get(dtype, 4)))
    return out


def filled_shapes(trace: Events, row: int) -> list[str]:
    """The shapes of what an operator fills or makes, one or those of a list; none for a list so
    long that torch omits it.
    """
    (args,) = trace.operands(np.array([row]))
    name = trace.names[trace.name[row]]
    if name in ("aten::zeros", "aten::new_zeros"):
        concrete = decode_part(args.concrete)
        known = concrete if isinstance(concrete, list) else []
        return [str(one) for one in known if str(one).startswith("[")][:1]
    dims = decode_part(args.dims)
    if isinstance(dims, list) and dims and dims[0] and isinstance(dims[0][0], list):
        return [str(one) for one in dims[0]]
    if "_foreach_" in name or not isinstance(dims, list):
        return []
    return [str(one) for one in dims[:1]]


# ---- What a test does in total, by counts, which repeat from run to run while times do not.

#: The time to call an operator, and one nested in it; a FLOP; to allocate a byte of memory and to
#: write it. Fitted to 50 scripts and models of seven libraries, with torch 2.13 on one CPU thread,
#: of 12 to 1,000 ms, including the Python around: half are within a factor of 1.4, four in five
#: within 2.
CALL_NS: Final = 5_000
_INNER_NS: Final = 1_200
FLOP_NS: Final = 0.007
BYTE_NS: Final = 0.36


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
    return because(
        "trifles_guessed",
        (
            "recorded without memory events (profile_memory=True records them), so the "
            "size below which matches are ignored is a guess"
        ),
    )


def _estimate(trace: Events) -> float:
    called, operators = once_selected(trace, _called_ns)
    return (
        called * CALL_NS
        + operators * _INNER_NS
        + total_flops(trace) * FLOP_NS
        + _allocated(trace) * BYTE_NS
    )


def _called_ns(trace: Events) -> tuple[int, int]:
    """How many selected operators are called by no other, and how many there are."""
    operators = (trace.selection & are_operators(trace)[:-1]).nonzero()[0]
    return int(are_outermost(trace, operators).sum()), len(operators)


def _allocated(trace: Events) -> float:
    """Bytes allocated, as far as there are memory events."""
    memory = trace.memory
    return float(memory.bytes[trace.selection[memory.event] & (memory.bytes > 0)].sum())
