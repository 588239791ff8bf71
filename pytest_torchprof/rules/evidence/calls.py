"""Which operators a user's code called, in which step, and with what."""

# ruff: noqa: PLC0414 - re-exports, until the rules import from `trace.tree` and `work.repeats`

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Kind,
    Names,
    are_named,
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
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken


#: Operators of modules: products, convolutions, normalizations, look-ups, attention.
LAYER: Final = Names(
    r"aten::(linear|bilinear|einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv"
    r"|_?conv\w*|(_native_)?batch_norm|layer_norm|group_norm|instance_norm|rms_norm"
    r"|embedding(_bag)?|lstm(_cell)?|gru(_cell)?|rnn_(tanh|relu)(_cell)?"
    r"|scaled_dot_product_attention)$"
    r"|(CompiledFunction|CheckpointFunction|forward)$"  # the last: TorchScript
)


def sizes(dims: object) -> tuple[int, ...] | None:
    """A decoded shape, or None if it is not a shape."""
    if not isinstance(dims, list):
        return None
    for n in dims:
        if type(n) is not int or n < 0:
            return None
    return tuple(dims)


# ---- Shapes of operators' operands; only for candidates, because each is decoded.


def shapes(trace: Events, rows: Ints) -> list[list[tuple[int, ...] | None]]:
    """The shape of each argument of each operator; None if it is not a tensor, or unknown."""
    known: dict[bytes, list[tuple[int, ...] | None]] = {}
    found = []
    for args in trace.operands(rows):
        key = bytes(args.dims)
        if key not in known:
            known[key] = [sizes(one) for one in decode_part(key) or []]
        found.append(known[key])
    return found


def mean_elements(operands: Iterable[OpArgs]) -> float:
    """The mean number of elements of these operators' first operands, without scalars; inf if
    unknown.
    """
    first = [n for args in operands if (n := _elements(bytes(args.dims))) is not None]
    return sum(first) / len(first) if first else math.inf


@lru_cache(maxsize=1000)
def _elements(dims: bytes) -> int | None:
    """How many elements the first operand has; None for a scalar, or if unknown."""
    shape = sizes(next(iter(decode_part(dims) or ()), None))
    return math.prod(shape) if shape else None


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


# ---- Layers by their weights: which of them run again and again.

#: Operators that are often used for something other than a layer.
PRODUCT: Final = Names(r"aten::(einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv)$")
#: The positions of a layer's own arguments; for others, such as compiled code, any may be.
_OWN: Final = (
    (late(r"aten::(linear|_?conv\w*)$"), (1, 2)),
    (late(r"aten::bilinear$"), (2, 3)),
    (late(r"aten::((_native_)?batch_norm|instance_norm)$"), (1, 2, 3)),
    (late(r"aten::(layer_norm|group_norm|lstm|gru|rnn_tanh|rnn_relu)$"), (2, 3)),
    (late(r"aten::(rms_norm|addmm|addbmm|baddbmm)$"), (2,)),
    (late(r"aten::(embedding(_bag)?|mv)$"), (0,)),
    (late(r"aten::(matmul|mm|bmm|addmv|einsum)$"), (1,)),
    # A cell is applied repeatedly within one forward pass, attention has no arguments of its own.
    (late(r"aten::(\w+_cell|scaled_dot_product_attention)$"), ()),
)
#: Identifies a layer: its operator's name, and the number or shape of such a tensor.
Own: TypeAlias = tuple[str, object]


def running_again(trace: Events, rows: Ints, repeats: float) -> tuple[list[Own | None], bool]:
    """For each layer its identity, if a layer with the same weights runs often enough; and whether
    a capture that identifies tensors may tell more.

    Shapes cannot distinguish a layer that runs again from similar ones: with shapes, at least two
    kinds of layers must run often enough, and all of them, and products do not count.
    """
    nothing: list[Own | None] = [None] * len(rows)
    if max(Counter(trace.name[rows].tolist()).values(), default=0) < repeats:
        return nothing, False
    own = own_tensors(trace, rows)
    if own is not None:
        often = _often(own, repeats)
        known = [sorted(one & often.keys(), key=str) for one in own]
        return [max(one, key=often.__getitem__, default=None) for one in known], False
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    shapes = [decode_part(args.dims) for args in trace.operands(rows)]
    own = [_shape(name, one) for name, one in zip(names, shapes, strict=True)]
    asks = bool(_often(own, repeats))
    product = are_named(trace, rows, PRODUCT)
    own = [set() if hidden else one for hidden, one in zip(product, own, strict=True)]
    kinds = {kind for one in own for kind in one}
    compiled = any(not name.startswith("aten::") for name, _ in kinds)
    if len(_often(own, repeats)) < len(kinds) or len(kinds) < 2 - compiled:
        return nothing, asks
    return [next(iter(one), None) for one in own], asks


def own_tensors(trace: Events, rows: Ints) -> list[set[Own]] | None:
    """For each layer its identities by its own tensors; None if tensors are not identified."""
    taken = trace.taken(rows)
    if taken is None:
        return None
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    return [_numbers(name, one) for name, one in zip(names, taken, strict=True)]


def kept_bytes(trace: Events, rows: Ints) -> int:
    """What a graph keeps of these layers' inputs, except the first's, as far as shapes tell."""
    rows = rows[1:]
    found = 0
    for name, args in zip(trace.name[rows].tolist(), trace.operands(rows), strict=True):
        own = _positions(trace.names[name])
        if own is None or 0 in own or PRODUCT.match(trace.names[name]):
            continue
        dims, types = decode_part(args.dims), decode_part(args.types)
        if isinstance(dims, list) and isinstance(types, list) and dims and types:
            found += prod(sizes(dims[0]) or (0,)) * ELEMENT_BYTES.get(types[0], 0)
    return found


def _often(own: Sequence[set[Own]], repeats: float) -> dict[Own, int]:
    counts = Counter(kind for one in own for kind in one)
    return {kind: n for kind, n in counts.items() if n >= repeats}


def _positions(name: str) -> tuple[int, ...] | None:
    return next((at for pattern, at in _OWN if pattern.match(name)), None)


def _numbers(name: str, taken: Sequence[Taken]) -> set[Own]:
    """The layer by each of its own tensors."""
    at = _positions(name)
    chosen = taken if at is None else [taken[i] for i in at if i < len(taken)]
    flat = (n for one in chosen for n in (one if isinstance(one, tuple) else (one,)))
    return {(name, number) for number in flat if number >= 0}


def _shape(name: str, dims: object) -> set[Own]:
    """The layer by the shapes of all its own tensors."""
    at = _positions(name)
    if at == () or not isinstance(dims, list):
        return set()
    chosen = dims if at is None else [dims[i] for i in at if i < len(dims)]
    return {(name, repr(chosen))}
