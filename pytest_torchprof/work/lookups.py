"""Compulsory bytes of lookups, windows and lists of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import TYPE_CHECKING, Final

from pytest_torchprof.work.dtypes import ELEMENT_BYTES
from pytest_torchprof.work.operands import Operands, Tensor, UnknownOperandError, broadcast

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import TrafficRule


def _gather_rows(_: str, call: Operands) -> int:
    """`embedding(table, indices)`: one row for each index, but no more than the table has."""
    table, index = call.tensor(0), call.tensor(1)
    out = prod(index.shape) * prod(table.shape[1:])
    return index.bytes + (min(out, table.distinct) + out) * table.item


def _embedding_backward(_: str, call: Operands) -> int:
    """`(grad, indices, rows, ...)`: the whole gradient of the table is written."""
    grad, index = call.tensor(0), call.tensor(1)
    return grad.bytes + index.bytes + call.integers(2)[0] * grad.shape[-1] * grad.item


def _index_select(_: str, call: Operands) -> int:
    """`(x, axis, index)`."""
    x, index, axis = call.tensor(0), call.tensor(2), call.integers(1)[0]
    out = prod(x.shape) // x.shape[axis] * prod(index.shape)
    return index.bytes + (min(out, x.distinct) + out) * x.item


def _gather(_: str, call: Operands) -> int:
    """`(x, axis, index)`: one element for each index."""
    x, index = call.tensor(0), call.tensor(2)
    out = prod(index.shape)
    return index.bytes + (min(out, x.distinct) + out) * x.item


def _scatter(*, adds: bool, rows: bool = False) -> TrafficRule:
    """`(x, axis, index, source or value)`: one element, or one row, for each index."""

    def rule(name: str, call: Operands) -> int:
        x, index, source = call.tensor(0), call.tensor(2), call.optional(3)
        source = source if source is not None and source.shape else None
        if rows and source is None:
            raise UnknownOperandError
        moved = prod(source.shape) if source and rows else prod(index.shape)
        met = min(moved, x.distinct) * x.item
        total = index.bytes + (moved * source.item if source else 0)
        if not name.endswith("_"):
            return total + x.bytes + prod(x.shape) * x.item
        return total + met * (2 if adds else 1)

    return rule


def _pool(
    stride: int, padding: int, dilation: int | None, ceil: int, *, indices: bool
) -> TrafficRule:
    """`(x, kernel, stride, padding, ...)` over the last axes."""

    def rule(_: str, call: Operands) -> int:
        x, kernel = call.tensor(0), call.integers(1)
        n = len(kernel)
        steps = call.integers(stride) or kernel
        dilations = [1] * n if dilation is None else call.integers(dilation)
        sides = [v * n if len(v) == 1 else v for v in (steps, call.integers(padding), dilations)]
        up = call.flag(ceil)
        out = prod(x.shape[:-n])
        for i, k, s, p, d in zip(x.shape[-n:], kernel, *sides, strict=True):
            places = i + 2 * p - d * (k - 1) - 1
            count = (places + (s - 1) * up) // s + 1
            # With `ceil_mode`, the last window must still begin inside.
            out *= count - (up and (count - 1) * s >= i + p)
        return x.bytes + out * (x.item + 8 * indices)

    return rule


def _resized(_: str, call: Operands) -> int:
    """`(x, output_size, ...)` over the last axes: adaptive pooling, interpolation."""
    x, size = call.tensor(0), call.integers(1)
    if not size:
        raise UnknownOperandError
    return x.bytes + prod(x.shape[: -len(size)]) * prod(size) * x.item


def _resized_backward(_: str, call: Operands) -> int:
    """`(grad, output_size, input_size, ...)`."""
    grad, size = call.tensor(0), call.integers(2)
    if not size:
        raise UnknownOperandError
    return grad.bytes + prod(size) * grad.item


def _max_pool_backward(_: str, call: Operands) -> int:
    """`(grad, x, ..., indices)`: only the shape of the input is needed."""
    grad, x, index = call.tensor(0), call.tensor(1), call.tensor(7)
    return grad.bytes + index.bytes + prod(x.shape) * x.item


def _sort(_: str, call: Operands) -> int:
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * (x.item + 8)


def _topk(_: str, call: Operands) -> int:
    """`(x, k, axis, ...)`: values and indices."""
    x, k, axis = call.tensor(0), call.integers(1)[0], call.integers(2)[0]
    out = prod(x.shape) // x.shape[axis] * k if x.shape else 1
    return x.bytes + out * (x.item + 8)


def _item(_: str, call: Operands) -> int:
    """`_local_scalar_dense(x)`: the one element that becomes a number."""
    return call.tensor(0).item


def _range(_: str, call: Operands) -> int:
    """`arange(start, end, step, out)`: only the innermost call has an output."""
    start, end, step = (float(call.text(at)) for at in range(3))
    return max(ceil((end - start) / step), 0) * call.tensor(3).item


def _spaced(out: int) -> TrafficRule:
    """`linspace(start, end, steps, out)`: only the innermost call has an output."""
    return lambda _, call: call.integers(2)[0] * call.tensor(out).item


def _scalar(_: str, call: Operands) -> int:
    """`scalar_tensor(number, dtype, ...)`: without a dtype, the default one, which is unknown."""
    return ELEMENT_BYTES[call.dtype(1, "")]


def _log_sigmoid_backward(_: str, call: Operands) -> int:
    """`(grad, x, buffer)`: on a GPU, the buffer is empty."""
    grad = call.tensor(0)
    return call.read(0, 3) + prod(grad.shape) * grad.item


def _distances(_: str, call: Operands) -> int:
    """`_cdist_forward(x1, x2, p, mode)`: a number for each pair of rows."""
    one, two = call.tensors(0, 2)
    batches = broadcast([Tensor(x.shape[:-2], x.dtype) for x in (one, two)])
    pairs = prod(batches) * one.shape[-2] * two.shape[-2]
    return one.bytes + two.bytes + pairs * one.item


def _picked(call: Operands, x: int) -> int:
    """Bytes of the class of each sample, and of its weight if classes have weights."""
    target, weight = call.tensor(x + 1), call.optional(x + 2)
    weights = 0 if weight is None else min(prod(target.shape), weight.distinct) * weight.item
    return target.bytes + weights


def _class_loss(_: str, call: Operands) -> int:
    """`nll_loss_forward(x, target, weight, reduction, ...)`: one element for each sample."""
    x, samples = call.tensor(0), prod(call.tensor(1).shape)
    out = (1 if call.integers(3)[0] else samples) + 1  # and the sum of the weights
    return _picked(call, 0) + (samples + out) * x.item


def _class_loss_backward(_: str, call: Operands) -> int:
    """`(grad, x, target, weight, reduction, ignored, total)`: only the shape of `x` is needed."""
    x = call.tensor(1)
    return call.tensor(0).bytes + _picked(call, 1) + (prod(x.shape) + 1) * x.item


def _joined(_: str, call: Operands) -> int:
    """`cat` and `stack`: every element written."""
    return call.list_bytes(0) + call.list_elements(0) * (call.item_bytes or 0)


def _foreach(name: str, call: Operands) -> int:
    """Every list read; the first, or one like it, written."""
    lists = [at for at in range(len(call)) if call.types[at] == "TensorList"]
    read = sum(map(call.list_bytes, lists))
    return (0 if name.endswith("zero_") else read) + call.list_bytes(0)


def _foreach_norm(_: str, call: Operands) -> int:
    """The list read; a number for each tensor written."""
    return call.list_bytes(0) + len(call.dims[0]) * (call.item_bytes or 0)


def _fused_adam(_: str, call: Operands) -> int:
    """`(self, grads, averages, squares, largest squares, steps, ...)`: all but the grads change."""
    largest = call.list_bytes(4) if call.dims[4] else 0
    changed = call.list_bytes(0) + call.list_bytes(2) + call.list_bytes(3) + largest
    return 2 * changed + call.list_bytes(1) + 4 * len(call.dims[5])


# ------------------------------------------------------------------------------------ the table

_FOREACH = (
    "add sub mul div addcmul addcdiv lerp sqrt rsqrt neg abs exp log reciprocal maximum minimum "
    "clamp_min clamp_max pow zero"
)

TABLES: Final[Mapping[str, TrafficRule]] = {
    "aten::embedding": _gather_rows,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::scatter": _scatter(adds=False),
    "aten::scatter_": _scatter(adds=False),
    "aten::scatter_add": _scatter(adds=True),
    "aten::scatter_add_": _scatter(adds=True),
    "aten::index_add_": _scatter(adds=True, rows=True),
    "aten::index_copy_": _scatter(adds=False, rows=True),
    "aten::max_pool2d_with_indices": _pool(2, 3, 4, 5, indices=True),
    "aten::max_pool3d_with_indices": _pool(2, 3, 4, 5, indices=True),
    "aten::max_pool2d_with_indices_backward": _max_pool_backward,
    "aten::avg_pool2d": _pool(2, 3, None, 4, indices=False),
    "aten::avg_pool3d": _pool(2, 3, None, 4, indices=False),
    "aten::_adaptive_avg_pool2d": _resized,
    "aten::_adaptive_avg_pool3d": _resized,
    "aten::upsample_nearest2d": _resized,
    "aten::upsample_bilinear2d": _resized,
    "aten::upsample_bicubic2d": _resized,
    "aten::upsample_nearest2d_backward": _resized_backward,
    "aten::upsample_bilinear2d_backward": _resized_backward,
    "aten::upsample_bicubic2d_backward": _resized_backward,
    "aten::sort": _sort,
    "aten::topk": _topk,
    "aten::_local_scalar_dense": _item,
    "aten::arange": _range,
    "aten::linspace": _spaced(3),
    "aten::logspace": _spaced(4),
    "aten::scalar_tensor": _scalar,
    "aten::log_sigmoid_backward": _log_sigmoid_backward,
    "aten::_cdist_forward": _distances,
    "aten::nll_loss_forward": _class_loss,
    "aten::nll_loss_backward": _class_loss_backward,
    "aten::nll_loss2d_forward": _class_loss,
    "aten::nll_loss2d_backward": _class_loss_backward,
    "aten::cat": _joined,
    "aten::stack": _joined,
    "aten::_foreach_norm": _foreach_norm,
    "aten::_fused_adam_": _fused_adam,
    "aten::_fused_adamw_": _fused_adam,
    **{f"aten::_foreach_{n}{tail}": _foreach for n in _FOREACH.split() for tail in ("", "_")},
}
