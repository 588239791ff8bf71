"""Layers by their weights: which of them run again and again."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import Names, are_named
from pytest_torchprof.work.dtypes import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

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
