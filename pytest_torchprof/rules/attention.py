"""Attention written by hand: a product, a softmax of its result, and a product of that."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.rules.calls import shapes
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named, count
from pytest_torchprof.trace.tree import (
    are_outermost,
    called,
    engine_steps,
    forward_of,
    marked,
)
from pytest_torchprof.work.dataflow import dataflow, nodes_of
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

SOFTMAX: Final = Names(r"aten::(_safe_softmax|_?softmax)(\.int)?$")
#: Products of batches of matrices; ``matmul`` and ``einsum`` are made of them.
PRODUCT: Final = Names(r"aten::(bmm|baddbmm_?)$")
#: What a fused form does before the softmax, too: scales by a number, or by one for each query;
#: adds a mask or a bias, masks, casts. After it: dropout, casts, rows without any key.
_SCALES: Final = Names(r"aten::(mul_?|multiply_?|div_?|divide_?|true_divide_?)$")
_COPIES = r"aten::(to|_to_copy|type_as|clone|copy_|contiguous|masked_fill_?|where"
_MASKS: Final = Names(rf"{_COPIES}|add_?|sub_?|rsub)$")
_AFTER: Final = Names(rf"{_COPIES}|nan_to_num_?|dropout_?|native_dropout|_fused_dropout)$")
#: With more operators between a product and the softmax they are not of one attention.
_MOST: Final = 20


class Attention(NamedTuple):
    """One run of attention: the operators that the code called, from product to product, and the
    steps of the backward pass of those between them; ``sizes`` of a query and of a value.
    """

    rows: Ints
    softmax: int
    steps: Ints
    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[int, int]

    def is_large(self, least_bytes: float, length: float) -> bool:
        """Whether the scores take so many bytes, and have so many queries or keys."""
        size = prod(self.shape) * ELEMENT_BYTES[self.dtype]
        return size >= least_bytes and max(self.shape[-2:]) >= length


def attentions(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    """All runs of attention with scores that are so large, whatever ran them, in time order."""
    there = count(trace, SOFTMAX) and count(trace, PRODUCT) > 1
    found = trace.once(_attentions, least_bytes, length) if there else []
    return [one for one in found if one.is_large(least_bytes, length)]


def _attentions(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    found, nodes = list[Attention](), nodes_of(trace)
    nodes = nodes[are_named(trace, nodes, SOFTMAX) & trace.selection[nodes]]
    large = [_may_be_large(dims, least_bytes, length) for dims in shapes(trace, nodes)]
    nodes = nodes[np.array(large, bool)]
    steps = engine_steps(trace)
    nodes = nodes[~nesting.below(marked(trace, steps), trace.parent, nodes)]
    if not len(nodes):
        return found
    outer = marked(trace, np.flatnonzero(called(trace)))
    steps = steps[trace.selection[steps] & are_outermost(trace, steps)]
    forward = nesting.nearest(outer, trace.parent, forward_of(trace, steps))
    for softmax, args in zip(nodes.tolist(), trace.operands(nodes), strict=True):
        shape, axis = _shapes(trace, softmax)[0], str([*decode_list(args.concrete), "", ""][1])
        if len(shape) < 3 or axis not in {"-1", "", str(len(shape) - 1)} or shape[-2] < 2:
            continue
        before = _before(trace, softmax, prod(shape), _MOST)
        chain = np.array([*before, softmax, *_after(trace, softmax, shape)])
        if not (before and are_named(trace, chain[-1:], PRODUCT)[0]):
            continue
        *_, (_, m, k), (_, _, n) = _shapes(trace, before[0])
        *_, left, right = _shapes(trace, int(chain[-1]))
        rows = nesting.nearest(outer, trace.parent, chain)
        if shape[-1] in (m, n) and left[-1] == shape[-1] and len({*rows.tolist()} - {-1}) > 2:
            found.append(
                Attention(
                    nesting.distinct(rows), int(rows[len(before)]),
                    steps[nesting.among(forward, rows[1:-1])],
                    decode_list(trace.operands(chain[-1:])[0].types)[0], shape,
                    (k, prod(left) * right[-1] // prod(shape)),
                )
            )  # fmt: skip
    return found


def _may_be_large(dims: list[tuple[int, ...] | None], least_bytes: float, length: float) -> bool:
    """Whether scores of this shape may be, in some dtype."""
    shape, item = (dims and dims[0]) or (), max(ELEMENT_BYTES.values())
    return max(shape[-2:], default=0) >= length and prod(shape) * item >= least_bytes


def _before(trace: Events, event: int, elements: int, most: int) -> list[int]:
    """The operators from the product that made the scores to this one, which takes so many of them;
    none if something else made or changed them.
    """
    graph, dims = dataflow(trace), _shapes(trace, event)
    reads = graph.taken(event)
    makers = graph.writer_of(reads.value)
    for argument, maker in zip(reads.argument.tolist(), makers.tolist(), strict=True):
        if maker < 0 or not most or prod(dims[argument]) != elements:
            continue
        row, (scores, *by) = np.array([maker]), _shapes(trace, maker)[:2]
        if are_named(trace, row, PRODUCT)[0]:
            return [maker]
        scales = prod(scores) == elements and all(prod(one[-1:]) == 1 for one in by)
        names = (_MASKS, _SCALES) if scales else (_MASKS,)
        above = (
            _before(trace, maker, elements, most - 1) if are_named(trace, row, *names)[0] else []
        )
        if above:
            return [*above, maker]
    return []


def _after(trace: Events, event: int, shape: tuple[int, ...]) -> list[int]:
    """The operators from this one to the only product that takes the weights, as far as they do
    what a fused form does.
    """

    def takes(row: int) -> bool:  # in a possible graph, tensors of as many numbers look alike
        dims = [one for one in _shapes(trace, row) if prod(one) == prod(shape)]
        return graph.exact or any(shape[-1] in one[-2:] for one in dims)

    graph, found = dataflow(trace), list[int]()
    while len(found) < _MOST:
        rows = graph.readers(event)
        rows = rows[~graph.backward[graph.node_of(rows)]]
        rows = rows[[takes(row) for row in rows.tolist()]]
        if len(rows) != 1 or not are_named(trace, rows, _AFTER, PRODUCT)[0]:
            return []
        event = int(rows[0])
        found.append(event)
        if are_named(trace, rows, PRODUCT)[0]:
            break
    return found


def _shapes(trace: Events, event: int) -> list[tuple[int, ...]]:
    """The shapes of a call's arguments, without numbers at its end; empty for no tensor."""
    found = [one or () for one in shapes(trace, np.array([event]))[0]]
    while len(found) > 1 and not found[-1]:
        found.pop()
    return found or [()]
