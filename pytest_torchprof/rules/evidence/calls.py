"""Which operators a user's code called, in which step, and with what."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    OPERATOR,
    STEP,
    Kind,
    Names,
    are_named,
    are_operators,
    count,
    marks_named,
    named,
    operators_marked,
    operators_named,
)
from pytest_torchprof.trace.tensors import listed
from pytest_torchprof.trace.tree import (
    BACKWARD,
    FETCH,
    are_engine_steps,
    are_outermost,
    calls,
    compiled,
    once_nested,
    once_selected,
    outermost,
    within,
)
from pytest_torchprof.work.counting import total_flops
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken


# ---- Which operators a user's code called, and in which step: the basis for counting repetition.

#: Annotations around torch's own code: loading a batch, and the optimizers.
_LIBRARY = Names(r"enumerate\(DataLoader\)|Optimizer\.")
_STEP_ENDS = Names(r"Optimizer\.step#")
_STEP_BEGINS = Names(rf"{STEP.pattern}|enumerate\(DataLoader\)#")
_BACKWARD = Names(r"(?s:.*)Backward\d+$")
_CLOSED = Names(r"(?s:.*)(::|Backward\d+$)")
_AUTOGRAD = Names(r"autograd::")
_CALLED = Names(r"(?!autograd::|torch::)(?s:.*)::")

#: Operators of modules: products, convolutions, normalizations, look-ups, attention.
LAYER: Final = Names(
    r"aten::(linear|bilinear|einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv"
    r"|_?conv\w*|(_native_)?batch_norm|layer_norm|group_norm|instance_norm|rms_norm"
    r"|embedding(_bag)?|lstm(_cell)?|gru(_cell)?|rnn_(tanh|relu)(_cell)?"
    r"|scaled_dot_product_attention)$"
    r"|(CompiledFunction|CheckpointFunction|forward)$"  # the last: TorchScript
)


def called(trace: Events) -> Bools:
    """Operators called by code outside torch: not nested in an operator, nor in a backward.

    Operators in a `torch.autograd.Function`, a compiled region or an annotation count as called
    from outside; those in a DataLoader's fetch or an optimizer's step do not.
    """
    return once_nested(trace, _called)


def _called(trace: Events) -> Bools:
    found = np.zeros(len(trace), bool)
    rows = operators_named(trace, _CALLED)
    found[rows] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows)
    return found


def may_be_called(trace: Events) -> Ints:
    """All of these operators, and some others: those not directly in torch's own, in time order."""
    return once_nested(trace, _may_be_called)


def _may_be_called(trace: Events) -> Ints:
    rows = operators_named(trace, _CALLED)
    found: Ints = rows[~are_closed(trace, trace.parent[rows])]
    return found


def are_called(trace: Events, rows: Ints) -> Bools:
    """The same for these events only."""
    found = are_named(trace, rows, _CALLED)
    found &= trace.kind[rows] == OPERATOR
    found[found] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows[found])
    return found


def _closed(trace: Events) -> Bools:
    """For each event, whether nothing nested in it was called by code outside torch; the extra last
    entry, index -1, is false.
    """
    closed = operators_marked(trace, _CLOSED)
    closed[:-1] |= named(trace, _LIBRARY)
    return closed


def are_closed(trace: Events, rows: Ints) -> Bools:
    """Which of these events contain nothing called by code outside torch."""
    return once_nested(trace, _closed)[rows]


def in_backward(trace: Events, rows: Ints) -> Bools:
    """Which of these events belong to an autograd node, an optimizer, or a DataLoader."""

    def is_own(events: Ints) -> Bools:
        node = are_named(trace, events, _AUTOGRAD, _BACKWARD)
        node &= trace.kind[events] == OPERATOR
        return node | are_named(trace, events, _LIBRARY)

    return within(trace, rows, is_own)


def passes(trace: Events) -> Ints:
    """When nodes of backward passes began, in order."""
    return np.sort(trace.ts[marks_named(trace, _AUTOGRAD)])


def step_of(trace: Events, rows: Ints) -> Ints:
    """The number of the step in which each event begins.

    A step begins with torch's annotation of one, or with a fetch of a DataLoader, and ends with an
    optimizer's step; without any of these everything is one step.
    """
    return np.searchsorted(trace.once(step_bounds), trace.ts[rows], side="right")


def step_bounds(trace: Events) -> Ints:
    """When these steps begin or end, in order; empty if everything is one step."""
    begins, ends = marks_named(trace, _STEP_BEGINS), marks_named(trace, _STEP_ENDS)
    return np.sort(np.concatenate([trace.ts[begins], trace.ts[ends] + trace.dur[ends]]))


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


# ---- Calls that repeat: the same operators in one iteration after the other, like a loop's body.

#: Nested operators that may appear next to their parent on a clock of whole microseconds.
_PARTS: Final = Names(r"aten::(as_strided|resolve_conj|resolve_neg|_local_scalar_dense)$")
#: Never in the body of a loop over a tensor's elements: training, and batches of a loader.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
#: What is nested in these is torch's own.
_LIBRARY_CALL: Final = Names(rf"{re.escape(FETCH)}|Optimizer\.step#")
#: Operators that split a tensor at once: ``for row in x`` is an unbind.
APART: Final = Names(r"aten::(unbind|(unsafe_)?(split|split_with_sizes|chunk)|tensor_split)$")


class CallSequence(Frozen, frozen=True):
    """Calls in order, thread by thread: event and name; ``key`` also distinguishes separate parts
    of the trace. ``apart`` are the events that split a tensor, which are not included as calls, and
    ``before`` is the number of calls before each of them.
    """

    rows: Ints
    name: Ints
    key: Ints
    apart: Ints
    before: Ints


class Stretch(Frozen, frozen=True):
    """Calls of a sequence from ``start`` to ``stop``, whose names repeat with this period."""

    start: int
    stop: int
    period: int

    @property
    def repeats(self) -> int:
        """The number of whole iterations."""
        return (self.stop - self.start) // self.period


def sequence(trace: Events) -> CallSequence:
    """The calls of the measured code, in order."""
    return trace.once(_sequence)


def _sequence(trace: Events) -> CallSequence:
    rows = calls(trace)
    rows = rows[trace.selection[rows] & ~are_named(trace, rows, _BOUNDARY, _PARTS)]
    rows = rows[~within(trace, rows, lambda events: are_named(trace, events, _LIBRARY_CALL))]
    boundaries = marks_named(trace, _BOUNDARY)
    thread = trace.thread[rows].astype(np.int64)
    part = np.searchsorted(boundaries, rows) + (len(boundaries) + 1) * thread
    key = part * len(trace.names) + trace.name[rows]
    apart = are_named(trace, rows, APART)
    before: Ints = np.cumsum(~apart, dtype=np.int64)[apart]
    kept = rows[~apart]
    return CallSequence(kept, trace.name[kept], key[~apart], rows[apart], before)


def stretches(key: Ints, repeats: int, longest: int) -> Iterator[Stretch]:
    """All stretches with at least ``repeats`` iterations, those with the shortest period first.

    A stretch is left out if another one, whose period divides its own, covers it.
    """
    known: dict[int, list[Stretch]] = {}
    for period in range(1, min(longest, len(key) // repeats) + 1):
        same = key[period:] == key[:-period]
        least = (repeats - 1) * period
        if np.count_nonzero(same) < least:
            continue
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        starts, stops = edges[::2], edges[1::2]
        long = stops - starts >= least
        shorter = [known[one] for one in known if period % one == 0]
        found = []
        for start, stop in zip(starts[long].tolist(), stops[long].tolist(), strict=True):
            one = Stretch(start, stop + period, period)
            if not any(_covered(one, others) for others in shorter):
                found.append(one)
        if found:
            known[period] = found
            yield from found


def _covered(one: Stretch, others: list[Stretch]) -> bool:
    """Whether one of these, which are in order, covers all of it."""
    at = bisect_right(others, one.start, key=lambda other: other.start) - 1
    return at >= 0 and one.stop <= others[at].stop


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


# ---- Backward passes: which of the autograd engine's steps belong together, and what began them.

#: ``backward`` begins with this, on the user's line: the gradient of the loss itself.
_BEGINS = Names(r"aten::ones_like$")


def pass_of(trace: Events, steps: Ints) -> Ints:
    """The number of the backward pass of each of these steps, which are in time order.

    Between two passes, the user's code calls something.
    """
    if not len(steps):
        return np.zeros(0, np.int64)
    place = np.searchsorted(np.sort(trace.ts[_others(trace)]), trace.ts[steps])
    return np.cumsum(np.diff(place, prepend=place[0]) != 0)


def begun_by(trace: Events, first: Ints) -> Ints:
    """The call with which each pass began, by its first step; that step if unknown.

    A step is placed where its node was recorded, this call where ``backward`` was called.
    """
    others = np.sort(_others(trace))
    at = np.searchsorted(others, first) - 1
    before = others[np.maximum(at, 0)]
    known = (at >= 0) & are_named(trace, before, _BEGINS)
    return np.where(known, before, first)


def _others(trace: Events) -> Ints:
    return trace.once(_calls)


def _calls(trace: Events) -> Ints:
    rows = outermost(trace)
    return rows[~are_engine_steps(trace, rows) & ~compiled(trace, rows)]
