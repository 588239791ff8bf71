"""Compulsory bytes of an operator call: each input read once, each output written once."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.work.flops import flops
from pytest_torchprof.work.operands import (
    ELEMENT_BYTES,
    Operands,
    Tensor,
    UnknownOperandError,
    broadcast,
    category,
    promoted,
)

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import TrafficRule


# ---- Compulsory bytes of matrix products, convolutions and attention.
#
# Their FLOP formula checks the shapes: a call without FLOPs has no bytes either.


def _flops(name: str, call: Operands) -> int:
    """If the formula accepts the call, its shapes fit."""
    count = flops(name, call.dims, call.types, call.concrete, call.strides)
    if count is None:
        raise UnknownOperandError
    return count


# ------------------------------------------------------------------------------ matrix products


def _product(first: int, dtype: int | None = None, beta: int | None = None) -> TrafficRule:
    """`[bias,] a @ b`: all three read, the product written, in the dtype requested at `dtype`."""

    def rule(name: str, call: Operands) -> int:
        _flops(name, call)
        a, b = call.tensor(first), call.tensor(first + 1)
        shape = (*a.shape[:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))
        # `addmm.dtype` has the dtype before the two factors.
        asked = dtype if first == 0 else 3 if call.types[5:6] == ["Scalar"] else None
        kept = a.dtype if asked is None else call.dtype(asked, a.dtype)
        out = prod(shape) * ELEMENT_BYTES[kept]
        factor = None if beta is None else beta + (asked is not None)
        ignored = factor is not None and bool(call.concrete) and call.text(factor) in {"0", "0."}
        return call.read(first if ignored else 0, first + 2) + out

    return rule


def _int_product(name: str, call: Operands) -> int:
    """The product of `int8` is `int32`."""
    _flops(name, call)
    a, b = call.tensor(0), call.tensor(1)
    return call.read(0, 2) + a.shape[0] * b.shape[1] * 4


def _scaled_product(name: str, call: Operands) -> int:
    """`_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, ...)`."""
    _flops(name, call)
    a, b = call.tensor(0), call.tensor(1)
    out = ELEMENT_BYTES[call.dtype(6, a.dtype)]
    return call.read(0, 6) + a.shape[0] * b.shape[1] * out


def _grouped_product(name: str, call: Operands) -> int:
    """`_grouped_mm(a, b, offsets, bias, out_dtype)`: the groups split a shared axis."""
    _flops(name, call)
    a, b = call.tensor(0), call.tensor(1)
    groups = call.tensor(2).shape if len(a.shape) == len(b.shape) == 2 else a.shape[:-2]
    out = prod((*groups, a.shape[-2], b.shape[-1])) * ELEMENT_BYTES[call.dtype(4, a.dtype)]
    return call.read(0, 4) + out


def _packed_product(name: str, call: Operands) -> int:
    """A weight of 4 or 8 bits: the output is as wide as there are scales."""
    _flops(name, call)
    x = call.tensor(0)
    scales = call.tensor(2).shape[0] if "int8" in name else call.tensor(3).shape[1]
    return call.read() + x.shape[0] * scales * x.item


# --------------------------------------------------------------------------------- convolutions


def _convolution(*, transposed: int | bool = False, at: tuple[int, ...] = ()) -> TrafficRule:
    """Input, weight, bias and addend read, the output written.

    `at`: positions of stride, padding, dilation, output padding and groups of a transposed one.
    """

    def rule(name: str, call: Operands) -> int:
        count = _flops(name, call)
        x, weight = call.tensor(0), call.tensor(1)
        if transposed if isinstance(transposed, bool) else call.flag(transposed):
            out = _transposed_output(call, x, weight, at)
        else:
            out = count // (2 * prod(weight.shape[1:]))  # products for each output element
        return call.read(0, 5) + out * x.item  # tensors come before numbers

    return rule


def _transposed_output(call: Operands, x: Tensor, weight: Tensor, at: tuple[int, ...]) -> int:
    """Elements of the output."""
    n = len(x.shape) - 2
    strides, paddings, dilations, extras = (
        values * n if len(values := call.integers(p)) == 1 else values for p in at[:4]
    )
    groups = call.integers(at[4])[0] if len(at) > 4 else 1
    axes = zip(x.shape[2:], weight.shape[2:], strides, paddings, dilations, extras, strict=True)
    size: list[int] = [
        (i - 1) * s - 2 * p + d * (k - 1) + extra + 1 for i, k, s, p, d, extra in axes
    ]
    if min(size) < 0:
        raise UnknownOperandError
    return x.shape[0] * weight.shape[1] * groups * prod(size)


def _convolution_backward(name: str, call: Operands) -> int:
    """The gradient read; the weight or the input too, for each gradient that was requested."""
    _flops(name, call)
    grad, x, weight = (call.tensor(i) for i in range(3))
    mask = [item.strip() == "True" for item in call.text(len(call) - 1).strip("[]").split(",")]
    total = grad.bytes
    total += (weight.bytes + prod(x.shape) * x.item) * mask[0]
    total += (x.bytes + prod(weight.shape) * weight.item) * mask[1]
    bias = grad.shape[1] * grad.item if len(mask) > 2 and mask[2] else 0
    return total + bias


# ------------------------------------------------------------------------------------ attention


def _attention(query: int = 0, *, bias: int | None = None, sums: int | bool = True) -> TrafficRule:
    """Queries, keys, values and a bias read; the output and the softmax's sums written.

    `sums`: whether each row of scores keeps a sum in single precision, or which argument says so.
    """

    def rule(name: str, call: Operands) -> int:
        _flops(name, call)
        q, k, v = (call.tensor(query + i) for i in range(3))
        added = call.optional(bias) if bias is not None else None
        rows = prod(q.shape[:-1])
        wanted = sums if isinstance(sums, bool) else call.flag(sums)
        read = q.bytes + k.bytes + v.bytes + (added.bytes if added else 0)
        return read + rows * v.shape[-1] * q.item + (rows * 4 if wanted else 0)

    return rule


def _attention_backward(query: int = 1) -> TrafficRule:
    """All tensors of the forward pass and the gradient read, three gradients written."""

    def rule(name: str, call: Operands) -> int:
        _flops(name, call)
        written = sum(prod(t.shape) * t.item for t in call.tensors(query, query + 3))
        return call.read() + written

    return rule


# ------------------------------------------------------------------------------------ the table

_DIRECT = _convolution()
_FORWARD = _attention()

CONTRACTIONS: Final[Mapping[str, TrafficRule]] = {
    "aten::mm": _product(0, dtype=2),
    "aten::addmm": _product(1, beta=3),
    "aten::addmm_": _product(1, beta=3),
    "aten::_addmm_activation": _product(1, beta=3),
    "aten::bmm": _product(0, dtype=2),
    "aten::baddbmm": _product(1, beta=3),
    "aten::baddbmm_": _product(1, beta=3),
    "aten::mv": _product(0),
    "aten::addmv": _product(1, beta=3),
    "aten::addmv_": _product(1, beta=3),
    "aten::dot": _product(0),
    "aten::vdot": _product(0),
    "aten::_int_mm": _int_product,
    "aten::_scaled_mm": _scaled_product,
    "aten::_grouped_mm": _grouped_product,
    "aten::_weight_int8pack_mm": _packed_product,
    "aten::_weight_int4pack_mm": _packed_product,
    "aten::convolution": _convolution(transposed=6, at=(3, 4, 5, 7, 8)),
    "aten::_convolution": _convolution(transposed=6, at=(3, 4, 5, 7, 8)),
    "aten::cudnn_convolution": _DIRECT,
    "aten::cudnn_convolution_relu": _DIRECT,
    "aten::cudnn_convolution_add_relu": _DIRECT,
    "aten::cudnn_convolution_transpose": _convolution(transposed=True, at=(4, 2, 5, 3, 6)),
    "aten::miopen_convolution": _DIRECT,
    "aten::miopen_convolution_relu": _DIRECT,
    "aten::miopen_convolution_add_relu": _DIRECT,
    "aten::miopen_convolution_transpose": _convolution(transposed=True, at=(5, 3, 6, 4, 7)),
    "aten::miopen_depthwise_convolution": _DIRECT,
    "aten::thnn_conv2d": _DIRECT,
    "aten::_slow_conv2d_forward": _DIRECT,
    "aten::slow_conv_dilated2d": _DIRECT,
    "aten::slow_conv_dilated3d": _DIRECT,
    "aten::slow_conv_transpose2d": _convolution(transposed=True, at=(4, 5, 7, 6)),
    "aten::slow_conv_transpose3d": _convolution(transposed=True, at=(4, 5, 7, 6)),
    "aten::_conv_depthwise2d": _DIRECT,
    "aten::conv_depthwise3d": _DIRECT,
    "aten::convolution_backward": _convolution_backward,
    "aten::_slow_conv2d_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _FORWARD,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(bias=5),
    "aten::_scaled_dot_product_efficient_attention": _attention(bias=3, sums=4),
    "aten::_scaled_dot_product_cudnn_attention": _attention(bias=3, sums=4),
    "aten::_flash_attention_forward": _FORWARD,
    "aten::_efficient_attention_forward": _attention(bias=3, sums=11),
    "aten::_cudnn_attention_forward": _attention(bias=3, sums=8),
    "flash_attn::_flash_attn_forward": _FORWARD,
    "flash_attn::_flash_attn_varlen_forward": _FORWARD,
    "flash_attn_3::fwd": _FORWARD,
    "torch_attn::_varlen_attn": _FORWARD,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward(),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward(),
    "aten::_flash_attention_backward": _attention_backward(),
    "aten::_efficient_attention_backward": _attention_backward(),
    "aten::_cudnn_attention_backward": _attention_backward(),
}


# ---- Compulsory bytes of lookups, windows and lists of tensors.


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


# ---- Compulsory bytes of everything but contractions: elementwise work, reductions, tables.

# ------------------------------------------------------------------------- element by element


class Elementwise(Frozen, frozen=True):
    """The rule of an operator whose leading ``inputs`` operands are broadcast; the output follows.

    ``out``: the dtype of the result if it is fixed; "real" if integers give floats.
    """

    inputs: int
    out: str | None = None

    def __call__(self, name: str, call: Operands) -> int:
        """The bytes of a call."""
        return sum(t.bytes for t in self.read(call)) + self.written(name, call).bytes

    def read(self, call: Operands) -> list[Tensor]:
        """The tensors that it reads. Numbers are recorded as tensors without dimensions."""
        tensors = call.tensors(0, self.inputs)
        shape = broadcast(tensors)
        return [t for t in tensors if t.shape or not shape]

    def written(self, name: str, call: Operands) -> Tensor:
        """The tensor that it writes."""
        tensors = call.tensors(0, self.inputs)
        shape = broadcast(tensors)
        if name.endswith("_"):
            if shape != tensors[0].shape:
                raise UnknownOperandError
            return tensors[0]  # the kernel refuses an expanded output
        places = call.tensors(self.inputs)
        if places:
            return Tensor(shape, places[-1].dtype)
        return Tensor(shape, _result(call, tensors, self.inputs, self.out))


def _result(call: Operands, tensors: list[Tensor], inputs: int, out: str | None) -> str:
    if out is not None and out != "real":
        return out
    dtype = promoted(tensors, [])
    if category(dtype) < 2:  # among floats, a number does not decide
        places = range(min(inputs, len(call)))
        dtype = promoted(tensors, [call.text(i) for i in places if call.types[i] == "Scalar"])
    return "float" if out == "real" and category(dtype) < 2 else dtype


def _division(name: str, call: Operands) -> int:
    """True division turns integers into floats; a rounding division does not."""
    return _quotient(call)(name, call)


def _quotient(call: Operands) -> Elementwise:
    rounds = len(call) > 2 and bool(call.concrete) and bool(call.concrete[2])
    return Elementwise(2, None if rounds else "real")


def _where(_: str, call: Operands) -> int:
    """`where(condition, a, b)`: the condition does not affect the dtype."""
    tensors, places = call.tensors(0, 3), call.tensors(3)
    shape = broadcast(tensors)
    numbers = [call.text(i) for i in (1, 2) if call.types[i] == "Scalar"]
    dtype = places[-1].dtype if places else promoted(tensors[1:], numbers)
    return sum(t.bytes for t in tensors if t.shape or not shape) + Tensor(shape, dtype).bytes


def _loss(_: str, call: Operands) -> int:
    """`mse_loss(x, y, reduction)` and the like: a reduction of 0 keeps each difference."""
    tensors = call.tensors(0, 2)
    out = 1 if call.integers(2)[0] else prod(broadcast(tensors))
    return sum(t.bytes for t in tensors) + out * ELEMENT_BYTES[promoted(tensors, [])]


def _copy(_: str, call: Operands) -> int:
    """`copy_(to, from)`: each in its own dtype."""
    return call.tensor(0).bytes + call.tensor(1).bytes


def _cast(_: str, call: Operands) -> int:
    """`_to_copy(x, dtype, ...)`."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * ELEMENT_BYTES[call.dtype(1, x.dtype)]


def _written(_: str, call: Operands) -> int:
    """`fill_`, `normal_` and the like: the old contents are not read."""
    return call.tensor(0).bytes + sum(t.bytes for t in call.tensors(1) if t.shape)


def _rearranged(_: str, call: Operands) -> int:
    """As many elements out as in: `clone`, `flip`, `roll` and the like."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * x.item


def _diagonal(_: str, call: Operands) -> int:
    """`diagonal_copy(x, offset, dim1, dim2)`: only the diagonals read."""
    x = call.tensor(0)
    offset, *axes = (call.integers(at)[0] for at in (1, 2, 3))
    rows, columns = (x.shape[axis] for axis in axes)
    if x.bytes != prod(x.shape) * x.item or not rows or not columns:
        raise UnknownOperandError  # of an expanded tensor, elements coincide
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return 2 * length * (prod(x.shape) // (rows * columns)) * x.item


def _trace(_: str, call: Operands) -> int:
    """`trace(x)`: the diagonal read; small integers are summed in 64 bits."""
    x = call.tensor(0)
    if x.bytes != prod(x.shape) * x.item:
        raise UnknownOperandError
    out = ELEMENT_BYTES["long" if category(x.dtype) < 2 else x.dtype]
    return min(x.shape) * x.item + out


def _dropout(_: str, call: Operands) -> int:
    """`native_dropout`: the result, and the mask as one byte per element."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * (x.item + 1)


def _dropout_backward(_: str, call: Operands) -> int:
    grad, mask = call.tensor(0), call.tensor(1)
    return grad.bytes + mask.bytes + prod(grad.shape) * grad.item


# ----------------------------------------------------------------- reductions and normalisations


def _reduction(axes: int = 1, out: str | None = None, *, outputs: int = 1) -> TrafficRule:
    """The input read, the result written. `axes`: the argument with the reduced axes; "" is all.

    `out`: the dtype of the result, or "sum" if it can be requested and small integers are summed in
    64 bits. A second output holds indices.
    """

    def rule(_: str, call: Operands) -> int:
        x = call.tensor(0)
        gone: set[int] = set()
        if len(call) > 2 and x.shape:
            gone = {axis % len(x.shape) for axis in call.integers(axes)}
        kept = prod(n for i, n in enumerate(x.shape) if i not in gone) if gone else 1
        dtype = out or x.dtype
        if out == "sum":
            dtype = call.dtype(
                3 if len(call) > 2 else 1, "long" if category(x.dtype) < 2 else x.dtype
            )
        sizes = ELEMENT_BYTES[dtype] + (8 if outputs == 2 and len(call) > 2 else 0)
        return x.bytes + kept * sizes

    return rule


def _twice(rule: TrafficRule) -> TrafficRule:
    """Two such results of the first tensor, which is read once."""
    return lambda name, call: 2 * rule(name, call) - call.tensor(0).bytes


def _extremum(name: str, call: Operands) -> int:
    """`max(x)`, `max(x, axis)` with indices, or `max(x, other)`."""
    if len(call) > 1 and call.types[1] in ELEMENT_BYTES:
        return Elementwise(2)(name, call)
    return _reduction(outputs=2)(name, call)


def _softmax(_: str, call: Operands) -> int:
    """`(x, axis, half_to_float)`."""
    x = call.tensor(0)
    single = x.dtype == "c10::Half" and call.flag(2)
    return x.bytes + prod(x.shape) * (4 if single else x.item)


def _softmax_backward(_: str, call: Operands) -> int:
    """`(grad, output, axis, input_dtype)`."""
    grad = call.tensor(0)
    return call.read(0, 2) + prod(grad.shape) * ELEMENT_BYTES[call.dtype(3, grad.dtype)]


def _statistics(dtype: str) -> int:
    """Bytes of a mean or a deviation: half precision keeps them in single."""
    return max(ELEMENT_BYTES[dtype], 4)


def _layer_norm(statistics: int) -> TrafficRule:
    """`(x, normalized_shape, weight, bias, eps)`; keeps `statistics` numbers per row."""

    def rule(_: str, call: Operands) -> int:
        x, weight = call.tensor(0), call.optional(2)
        width = prod(weight.shape if weight else call.integers(1))
        rows = prod(x.shape) // width if width else 0
        kept = statistics * rows * _statistics(x.dtype)
        return call.read(0, 4) + prod(x.shape) * x.item + kept

    return rule


def _norm_backward(x: int, weight: int, unread: tuple[int, ...] = ()) -> TrafficRule:
    """All inputs read; the gradients that the mask (or its absence) requests written."""

    def rule(_: str, call: Operands) -> int:
        inside, scale = call.tensor(x), call.optional(weight)
        mask = call.concrete[-1] if call.concrete else ""
        wanted = [item.strip() == "True" for item in mask.strip("[]").split(",")]
        wanted = wanted if len(wanted) > 1 else [True] * 3
        total = call.read() - sum(t.bytes for i in unread if (t := call.optional(i)))
        total += prod(inside.shape) * inside.item * wanted[0]
        return total + (prod(scale.shape) * scale.item * sum(wanted[1:]) if scale else 0)

    return rule


def _batch_norm(training: int | bool) -> TrafficRule:
    """`(x, weight, bias, running_mean, running_var, training, ...)`."""

    def rule(_: str, call: Operands) -> int:
        x = call.tensor(0)
        total = call.read(0, 5) + prod(x.shape) * x.item
        if training if isinstance(training, bool) else call.flag(training):
            running = sum(t.bytes for t in call.tensors(3, 5))
            total += running + 2 * x.shape[1] * _statistics(x.dtype)
        return total

    return rule


def _group_norm(_: str, call: Operands) -> int:
    """`(x, weight, bias, n, channels, places, groups, eps)`."""
    x = call.tensor(0)
    groups = call.integers(3)[0] * call.integers(6)[0]
    return call.read(0, 3) + prod(x.shape) * x.item + 2 * groups * x.item


def _cumulated(_: str, call: Operands) -> int:
    """`cumsum(x, axis, dtype)`: small integers are summed in 64 bits."""
    x = call.tensor(0)
    dtype = call.dtype(2, "long" if category(x.dtype) < 2 else x.dtype)
    return x.bytes + prod(x.shape) * ELEMENT_BYTES[dtype]


# ------------------------------------------------------------------------------------ the table

_UNARY, _BINARY, _TERNARY = (Elementwise(n) for n in (1, 2, 3))
_REAL_UNARY, _REAL_BINARY = (Elementwise(n, "real") for n in (1, 2))
_TEST, _COMPARISON = (Elementwise(n, "bool") for n in (1, 2))


def _each(rule: TrafficRule, *names: str) -> dict[str, TrafficRule]:
    """The same rule for these operators and, where they exist, their in-place forms."""
    return {f"aten::{name}{tail}": rule for n in names for name in n.split() for tail in ("", "_")}


POINTWISE: Final[Mapping[str, TrafficRule]] = {
    **_each(_UNARY, "abs neg sign relu relu6 sgn square floor ceil round trunc frac positive"),
    **_each(_UNARY, "leaky_relu elu hardtanh hardswish hardsigmoid silu mish gelu softplus"),
    **_each(_UNARY, "bitwise_not nan_to_num threshold hardshrink softshrink"),
    **_each(_REAL_UNARY, "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh"),
    **_each(_REAL_UNARY, "sin cos tan asin acos atan sinh cosh erf erfc erfinv lgamma digamma"),
    **_each(_REAL_UNARY, "asinh acosh atanh logit"),
    **_each(_TEST, "logical_not isnan isinf isfinite"),
    **_each(_BINARY, "add sub rsub mul pow remainder fmod maximum minimum fmax fmin clamp_min"),
    **_each(_BINARY, "clamp_max bitwise_and bitwise_or bitwise_xor floor_divide hypot xlogy"),
    **_each(_BINARY, "threshold_backward gelu_backward silu_backward sigmoid_backward"),
    **_each(_BINARY, "tanh_backward leaky_relu_backward hardswish_backward hardtanh_backward"),
    **_each(_BINARY, "softplus_backward mish_backward hardsigmoid_backward logit_backward"),
    **_each(_BINARY, "softshrink_backward hardshrink_backward"),
    **_each(_REAL_BINARY, "true_divide atan2"),
    **_each(_division, "div"),
    **_each(_COMPARISON, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    **_each(_TERNARY, "addcmul addcdiv lerp clamp"),
    "aten::masked_fill_": Elementwise(2),
    "aten::mse_loss": _loss,
    "aten::mse_loss_backward": _TERNARY,
    "aten::where": _where,
    "aten::copy_": _copy,
    "aten::_to_copy": _cast,
    "aten::clone": _rearranged,
    "aten::flip": _rearranged,
    "aten::roll": _rearranged,
    **_each(_rearranged, "tril triu"),
    "aten::diagonal_copy": _diagonal,
    "aten::trace": _trace,
    "aten::fill_": _written,
    "aten::zero_": _written,
    "aten::normal_": _written,
    "aten::uniform_": _written,
    "aten::random_": _written,
    "aten::exponential_": _written,
    "aten::bernoulli_": _written,
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _dropout_backward,
    "aten::sum": _reduction(out="sum"),
    "aten::prod": _reduction(out="sum"),
    "aten::mean": _reduction(out="sum"),
    "aten::amax": _reduction(),
    "aten::amin": _reduction(),
    "aten::aminmax": _twice(_reduction()),
    "aten::nansum": _reduction(out="sum"),
    "aten::max": _extremum,
    "aten::min": _extremum,
    "aten::argmax": _reduction(out="long"),
    "aten::argmin": _reduction(out="long"),
    "aten::any": _reduction(out="bool"),
    "aten::all": _reduction(out="bool"),
    "aten::var": _reduction(),
    "aten::std": _reduction(),
    "aten::var_mean": _twice(_reduction()),
    "aten::std_mean": _twice(_reduction()),
    "aten::linalg_vector_norm": _reduction(2),
    "aten::cumsum": _cumulated,
    "aten::cumprod": _cumulated,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::native_layer_norm": _layer_norm(2),
    "aten::_fused_rms_norm": _layer_norm(1),
    "aten::native_layer_norm_backward": _norm_backward(1, 5, (6,)),
    "aten::_fused_rms_norm_backward": _norm_backward(1, 4),
    "aten::native_batch_norm": _batch_norm(5),
    "aten::_native_batch_norm_legit": _batch_norm(5),
    "aten::_batch_norm_with_update": _batch_norm(training=True),
    "aten::cudnn_batch_norm": _batch_norm(5),
    "aten::miopen_batch_norm": _batch_norm(5),
    "aten::native_batch_norm_backward": _norm_backward(1, 2),
    "aten::cudnn_batch_norm_backward": _norm_backward(0, 2),
    "aten::miopen_batch_norm_backward": _norm_backward(0, 2),
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _norm_backward(1, 4),
}

#: Reductions that read one tensor, the first operand.
REDUCTIONS: Final = frozenset(
    {"aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var", "aten::std"}
    | {"aten::linalg_vector_norm"}
)


def is_elementwise(name: str) -> bool:
    """Whether each element that this operator writes depends on one of each tensor it reads."""
    rule = POINTWISE.get(name)
    return isinstance(rule, Elementwise) or rule in (_division, _copy, _dropout, _dropout_backward)


def written(name: str, call: Operands) -> Tensor:
    """The tensor that an elementwise operator writes; raises if the call lacks what that needs.

    >>> written("aten::gt", Operands([[4, 5], []], ["float", "Scalar"], ["", "0"]))
    Tensor(shape=(4, 5), dtype='bool', strides=None)
    """
    rule = POINTWISE[name]
    if rule is _division:
        rule = _quotient(call)
    return rule.written(name, call) if isinstance(rule, Elementwise) else call.tensor(0)


def read(name: str, call: Operands) -> list[Tensor]:
    """The tensors that an elementwise operator, or one of `REDUCTIONS`, reads; raises likewise."""
    rule = POINTWISE[name]
    if rule is _division:
        rule = _quotient(call)
    if isinstance(rule, Elementwise):
        return rule.read(call)
    if rule is _copy:
        return [call.tensor(1)]
    return call.tensors(0, 2) if rule is _dropout_backward else [call.tensor(0)]


# ---- Compulsory bytes of an operator call: each input read once, each output written once.
#
# The minimum for any implementation, whatever its caches. Elements that are expanded or overlap
# count once; of a table, only the requested rows; an operand that is not read (the bias with
# ``beta=0``) not at all. Temporary buffers and gradients that were not requested do not count. An
# operator that is not in `TRAFFIC`, or a call that lacks what its rule needs, has no number.
# Positions in the rules follow the schemas in PyTorch's ``native_functions.yaml``.

_LARGEST = 2**63 - 1

TRAFFIC: Final[Mapping[str, TrafficRule]] = {**CONTRACTIONS, **POINTWISE, **TABLES}


def compulsory_bytes(
    name: str, dims: Any, types: Any, strides: Any, concrete: Any, item_bytes: int | None = None
) -> int | None:
    """Bytes of a call; None if there is no rule or the trace lacks what it needs.

    ``item_bytes`` is the element size of tensor lists, whose types a trace lacks.

    >>> compulsory_bytes("aten::mm", [[4, 5], [5, 6]], ["float", "float"], None, None)
    296
    """
    try:
        count = TRAFFIC[name](name, Operands(dims, types, concrete, strides, item_bytes))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
    return count if 0 <= count <= _LARGEST else None
