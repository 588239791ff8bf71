"""FLOPs of matrix products; `flops` says what counts (FCM: torch's `FlopCounterMode`)."""

from __future__ import annotations

from math import prod

from pytest_torchprof.work.operands import Formula, Operands, UnknownOperandError


def product(first: int, rank: int) -> Formula:
    """`[..., m, k] @ [..., k, n]` is `2 m k n` in each batch: FCM's `mm_flop` and `bmm_flop`."""

    def formula(call: Operands) -> int:
        a, b = call.shape(first), call.shape(first + 1)
        if call.is_sparse(first) or call.is_sparse(first + 1):
            raise UnknownOperandError  # how many elements it has is not in the trace
        if not len(a) == len(b) == rank or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise UnknownOperandError
        return 2 * _packing(call) * prod(a) * b[-1]

    return formula


def _packing(call: Operands) -> int:
    """An element of type `float4_e2m1fn_x2` holds two numbers; FCM counts half the product."""
    return 2 if "Float4_e2m1fn_x2" in str(call.types) else 1


def grouped_product(call: Operands) -> int:
    """`_grouped_mm`: the groups split the rows, the columns or the inner axis.

    The axis that is split may be longer than the sum of its groups; the offsets are not in the
    trace. FCM has no formula.
    """
    a, b = call.shape(0), call.shape(1)
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2]:
        raise UnknownOperandError
    return 2 * _packing(call) * prod(a if len(b) == 3 else a[-2:]) * b[-1]


def products(call: Operands) -> int:
    """`_foreach_mm`: the products of two lists, pair by pair. FCM has no formula."""
    pairs = list(zip(call.dims[0], call.dims[1], strict=True))
    if not pairs:
        raise UnknownOperandError  # the profiler omits long lists
    return sum(product(0, 2)(Operands(pair, call.types, None)) for pair in pairs)


def combination(call: Operands) -> int:
    """`_compute_linear_combination`: `[m, ...]` by coefficients `[p, m]`. FCM has no formula."""
    inputs, coefficients = call.shape(0), call.shape(1)
    if len(coefficients) != 2 or coefficients[1] != inputs[0]:
        raise UnknownOperandError
    return 2 * coefficients[0] * prod(inputs)


def distances(call: Operands) -> int:
    """`_cdist_forward(x1, x2, p, compute_mode)`: the direct form, used for up to 25 rows.

    From 26 rows on, Euclidean distances are a product whose inner axis is longer by two (`aten::mm`
    inside `_euclidean_dist`); both forms count the same. Other distances are not products. FCM
    reports 0 in both cases, and counts the gradients from 26 rows on.
    """
    (*batch, rows, width), (*_, others, width_2) = call.shape(0), call.shape(1)
    if width != width_2:
        raise UnknownOperandError
    if float(call.concrete[2]) != 2:
        return 0
    return 2 * prod(batch) * rows * others * (width + 2)


def distances_backward(call: Operands) -> int:
    """`_cdist_backward(grad, x1, x2, p, cdist)`: the gradient of `x1`, a product if Euclidean."""
    (*batch, rows, width), (*_, others, _) = call.shape(1), call.shape(2)
    return 2 * prod(batch) * rows * others * width if float(call.concrete[3]) == 2 else 0


def vector_product(first: int, rank: int) -> Formula:
    """`[m, k] @ [k]` is `2 m k`, and a dot product `2 k`. FCM reports 0."""

    def formula(call: Operands) -> int:
        a, b = call.shape(first), call.shape(first + 1)
        if len(a) != rank or a[-1:] != b or call.is_sparse(first):
            raise UnknownOperandError
        return 2 * prod(a)

    return formula


def linear(x: int, weight: int) -> Formula:
    """`[..., k]` times a matrix with an axis `k`, in either storage order. FCM reports 0."""

    def formula(call: Operands) -> int:
        a, b = call.shape(x), call.shape(weight)
        if not a or len(b) != 2 or a[-1] not in b:
            raise UnknownOperandError
        return 2 * prod(a) * (b[0] if b[1] == a[-1] else b[1])

    return formula


def int4_product(call: Operands) -> int:
    """`_weight_int4pack_mm`: the weight's layout varies, its scales are `[groups, n, ...]`."""
    return 2 * prod(call.shape(0)) * call.shape(3)[1]


def packed_product(call: Operands) -> int:  # noqa: ARG001 - every formula takes one
    """The weight is an opaque object whose shape is in no trace: unknown, not 0."""
    raise UnknownOperandError
