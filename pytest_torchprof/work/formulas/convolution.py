"""FLOPs of convolutions; `flops` says what counts (FCM: torch's `FlopCounterMode`)."""

from __future__ import annotations

from math import prod

from pytest_torchprof.work.operands import TRUTH, Formula, Operands, UnknownOperandError

# A weight is [out, in / groups, *kernel]; if transposed, [in, out / groups, *kernel].
# Each position of the output (of the input if transposed) uses the whole weight once, so groups
# need no special case. FCM's `conv_flop_count` agrees for a forward pass. It reads the arguments of
# `cudnn_convolution` and `_slow_conv2d_forward` at the positions of `aten::convolution` (taking
# `benchmark` for `transposed`), which goes unnoticed because the latter hides them.


def convolution(
    stride: int, padding: int, dilation: int | None, x: int = 0, weight: int = 1
) -> Formula:
    """Forward pass; the arguments are positions."""

    def formula(call: Operands) -> int:
        batch, channels, *size = call.shape(x)
        w = call.shape(weight)
        n = len(size)
        if len(w) == n + 2 and channels % w[1]:
            raise UnknownOperandError
        if not n or len(w) not in {n + 2, n + 3}:  # oneDNN may store the groups as an axis
            raise UnknownOperandError
        strides, paddings = call.per_axis(stride, n), call.per_axis(padding, n)
        dilations = call.per_axis(dilation, n) if dilation is not None else [1] * n
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, w[-n:], strict=True)]
        axes = zip(size, paddings, spans, strides, strict=True)
        out = [(i + 2 * p - span) // s + 1 for i, p, span, s in axes]
        if min(out) < 0 or min(strides) <= 0:
            raise UnknownOperandError
        return 2 * batch * prod(out) * prod(w)

    return formula


def transposed_convolution(x: int = 0, weight: int = 1) -> Formula:
    """Forward pass, for any stride, padding and output padding."""

    def formula(call: Operands) -> int:
        batch, _, *size = call.shape(x)
        w = call.shape(weight)
        if not size or len(w) not in {len(size) + 2, len(size) + 3}:
            raise UnknownOperandError
        return 2 * batch * prod(size) * prod(w)

    return formula


def any_convolution(call: Operands) -> int:
    """`aten::convolution`, which takes `transposed` as an argument."""
    formula = transposed_convolution() if TRUTH[call.concrete[6]] else convolution(3, 4, 5)
    return formula(call)


def quantized_convolution(call: Operands) -> int:
    """`onednn::qconv*pointwise(qx, scale, zero, qw, scale, zero, [addend,] bias, stride, ...)`."""
    later = 0 if call.concrete[7] else 1
    return convolution(7 + later, 8 + later, 9 + later, weight=3)(call)


def convolution_backward(grad: int = 0, x: int = 1, *, transposed: bool | int = False) -> Formula:
    """Each requested gradient, of the input or the weight, costs as much as the forward pass.

    `transposed` is the value or its position; the weight is the third operand. FCM counts the
    gradient of a grouped convolution's weight `groups` times too high.
    """

    def formula(call: Operands) -> int:
        out, inside, w = call.shape(grad), call.shape(x), call.shape(2)
        if len(out) < 3 or len(inside) != len(out) or len(w) != len(out):
            raise UnknownOperandError
        turned = transposed if isinstance(transposed, bool) else TRUTH[call.concrete[transposed]]
        met = inside if turned else out
        of_input, of_weight, *_ = call.mask()
        return (of_input + of_weight) * 2 * met[0] * prod(met[2:]) * prod(w)

    return formula


def pointwise(unary: Formula, binary: Formula) -> Formula:
    """Two oneDNN operators with one name: `(X, W, B?, ...)` and `(X, other, W, B?, ...)`.

    `torch.compile` with freezing makes these of bf16 linear layers and of convolutions.
    """
    return lambda call: (binary if len(call.dims[2]) > 1 else unary)(call)
