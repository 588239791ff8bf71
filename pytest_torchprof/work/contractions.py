"""Compulsory bytes of matrix products, convolutions and attention.

Their FLOP formula checks the shapes: a call without FLOPs has no bytes either.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Final

from pytest_torchprof.work.dtypes import ELEMENT_BYTES
from pytest_torchprof.work.flops import flops
from pytest_torchprof.work.operands import Operands, Tensor, UnknownOperandError

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import TrafficRule


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
