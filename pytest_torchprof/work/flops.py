"""FLOPs of one operator call, from the shapes that a trace records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, Final, Literal, NamedTuple, cast

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Sentence, Why
from pytest_torchprof.work.dispatch import operator_names
from pytest_torchprof.work.kernels import is_main
from pytest_torchprof.work.operands import (
    TRUTH,
    Formula,
    Operands,
    UnknownOperandError,
    UnreadValues,
    shape_of,
)

# ---- FLOPs of convolutions; `flops` says what counts (FCM: torch's `FlopCounterMode`).

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


# ---- FLOPs of matrix products; `flops` says what counts (FCM: torch's `FlopCounterMode`).


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


# ---- FLOPs of recurrent layers; `flops` says what counts (FCM: torch's `FlopCounterMode`).

# Every token is multiplied by every weight matrix once in each pass: forward, gradient of the
# input, gradient of the weights. FCM reports 0 for all of these. If a layer is not fused, its
# matrix products are in the trace.
_GATES = (1, 1, 4, 3)  # by mode: RNN with ReLU, RNN with tanh, LSTM, GRU


def recurrent(weights: int, mode: int, *, projection: bool = True) -> Formula:
    """Forward pass of `(input, weight[], ..., mode, hidden_size, [proj_size,] num_layers, ...)`."""

    def formula(call: Operands) -> int:
        *tokens, width = call.shape(0)
        known = [w for w in map(shape_of, call.dims[weights]) if len(w) == 2]
        if known:
            return 2 * prod(tokens) * sum(map(prod, known))
        # More than 30 weights, which the profiler omits: 4 bidirectional layers.
        gates, hidden = _GATES[int(call.concrete[mode])], int(call.concrete[mode + 1])
        projected = int(call.concrete[mode + 2]) if projection else 0
        layers = int(call.concrete[mode + 2 + projection])
        directions = 1 + TRUTH[call.concrete[mode + 6 + projection]]
        out = projected or hidden
        inner = (width + (layers - 1) * out * directions) + layers * out
        per_token = directions * (gates * hidden * inner + layers * hidden * projected)
        return 2 * prod(tokens) * per_token

    return formula


def recurrent_backward(forward: Formula) -> Formula:
    """The gradient of the input is always computed, that of the weights on request."""
    return lambda call: forward(call) * (1 + call.mask()[3])


def recurrent_onednn(passes: int) -> Formula:
    """`mkldnn_rnn_layer(input, weight_ih, weight_hh, ...)`, a layer in one direction.

    An LSTM on a CPU consists of these. The backward pass always computes both gradients.
    """

    def formula(call: Operands) -> int:
        *tokens, width = call.shape(0)
        w_input, w_hidden = call.shape(1), call.shape(2)
        if len(w_input) != 2 or len(w_hidden) != 2 or w_input[1] != width:
            raise UnknownOperandError
        return 2 * passes * prod(tokens) * (prod(w_input) + prod(w_hidden))

    return formula


# ---- FLOPs of attention (SDPA); `flops` says what counts (FCM: torch's `FlopCounterMode`).


class Attention(Frozen, frozen=True):
    """Two matrix products forward, five backward (the scores again, then four gradients).

    As in FCM's `sdpa_flop_count` and `sdpa_backward_flop_count`: `2 × heads × pairs × width` for
    each product, over all pairs of a query and a key; groups of queries share the heads of keys;
    causal masks and windows do not reduce it (see `masks`). `heads` is the axis of the heads; FCM
    assumes 1 also for the inner flash and efficient operators, where it is 2. All others are
    positions: keys and values follow the queries, and an argument about keys follows the one about
    queries.

    Sequences of varying length are packed along one axis, and their lengths are in a tensor that
    is not in the trace (`offsets`). The number of pairs is known if all queries or all keys are as
    long as the longest. `unless`: positions of further tensors with lengths or key locations.
    """

    query: int = 0
    heads: int = 1
    offsets: int | None = None
    longest: int = 0
    backward: bool = False
    unless: tuple[int, ...] = ()

    def __call__(self, call: Operands) -> int:
        """FLOPs of all pairs of a query and a key."""
        packed = self._is_packed(call)
        (batch, h, tokens, width), (_, h_k, keys, width_k), (_, h_v, values, width_v) = operands = [
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(3)
        ]
        if not all(map(all, operands)):
            return 0  # an empty tensor
        if any(operand[0] != batch for operand in operands):
            raise UnknownOperandError
        if any(map(call.has_tensor, self.unless)):
            raise UnknownOperandError
        if h % h_k or h_k != h_v or keys != values or width != width_k:
            raise UnknownOperandError
        pairs = batch * tokens * keys
        if packed:
            sequences, most, most_keys = self._sequences(call)
            if keys != sequences * most_keys and tokens != sequences * most:
                raise UnknownOperandError
            pairs = tokens * most_keys if keys == sequences * most_keys else keys * most
        passes = 3 * width + 2 * width_v if self.backward else width + width_v
        return 2 * h * pairs * passes

    def lengths(self, call: Operands) -> tuple[int, int]:
        """Queries and keys of each sequence, if all are equal."""
        packed = self._is_packed(call)
        (_, _, tokens, _), (_, _, keys, _) = (
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(2)
        )
        if not packed:
            return tokens, keys
        sequences, most, most_keys = self._sequences(call)
        if keys != sequences * most_keys or tokens != sequences * most:
            raise UnknownOperandError
        return most, most_keys

    def _is_packed(self, call: Operands) -> bool:
        return self.offsets is not None and call.has_tensor(self.offsets)

    def _sequences(self, call: Operands) -> tuple[int, int, int]:
        """The number of sequences, and the most queries and keys in one."""
        assert self.offsets is not None  # noqa: S101 - it is packed
        most, most_keys = (int(call.concrete[self.longest + i] or 0) for i in range(2))
        return call.shape(self.offsets)[0] - 1, most, most_keys


def _heads_first(shape: tuple[int, ...], heads: int, *, packed: bool) -> tuple[int, int, int, int]:
    """Batch, heads, tokens and width. Packed sequences are `[tokens, heads, width]`."""
    batch, first, second, width = [1, *shape] if packed and len(shape) == 3 else shape
    if heads == 2 or len(shape) == 3:
        return batch, second, first, width
    return batch, first, second, width


# ---- FLOPs of an operator, from what a profiler trace with shapes records about its call.
#
# As in `torch.utils.flop_counter.FlopCounterMode` (below: FCM), a multiplication and an addition
# are two operations, and only matrix products, convolutions, attention and recurrent layers
# count. Biases and other elementwise work do not. Counted in full, as in FCM: products with
# padding, the masked half of causal attention, complex numbers (as if they were real). A sparse
# operand makes the count unknown where a trace distinguishes it from a dense one: FCM treats some
# as dense and reports 0 for others.
#
# The caller counts the outermost operator that has a number and nothing below it, unless
# something below ran in its place (`redispatch`). So an operator has a row here if it is a leaf,
# or if its number is at least as good as the sum of its parts. `aten::linear`, `matmul`,
# `einsum`, `bilinear`, `conv2d`, `lstm`, `scaled_dot_product_attention` and its math fallback,
# `_transformer_encoder_layer_fwd` and `_native_multi_head_attention` have none: traces show their
# parts. `quantized::linear` and the like are always unknown.
#
# Operand positions follow the schemas in PyTorch's `native_functions.yaml`, and for other
# namespaces their own registrations. Out-variants append their output, which is ignored.

_LARGEST = 2**63 - 1  # more is malformed, and does not fit into an array


def flops(name: str, dims: Any, types: Any, concrete: Any, strides: Any = None) -> int | None:
    """FLOPs of a call; `None` if there is no formula or the trace lacks what it needs.

    The arguments are the trace's ``Input Dims``, ``Input type``, ``Concrete Inputs`` and, where it
    has them, ``Input Strides``.

    >>> flops("aten::mm", [[4, 5], [5, 6]], ["float", "float"], ["", ""])
    240
    """
    try:
        count = FORMULAS[name](Operands(dims, types, concrete, strides))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
    return count if 0 <= count <= _LARGEST else None


def missing_input(name: str, dims: Any, types: Any, concrete: Any, strides: Any = None) -> Sentence:
    """For a call with a formula but no number: what is missing.

    >>> missing_input("aten::convolution", [[1, 3, 224, 224], [64, 3, 7, 7]], None, None).code
    'no_concrete_inputs'
    """
    if FORMULAS.get(name) is packed_product:
        return Why.PACKED_WEIGHT
    if not dims:
        return Why.NO_INPUT_DIMS
    if strides and flops(name, dims, types, concrete) is not None:
        return Why.SPARSE_OPERAND
    if not isinstance(concrete, list) or not any(concrete):
        values = UnreadValues()
        flops(name, dims, types, values)
        if values.asked:
            return Why.NO_CONCRETE_INPUTS
    return Why.ODD_ARGUMENTS


_PACKED: Final = [
    *(f"quantized::linear{kind}" for kind in ("", "_relu", "_dynamic", "_relu_dynamic")),
    *(f"quantized::linear{kind}_dynamic_fp16" for kind in ("", "_relu")),
    *(f"quantized::conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_relu", "_dynamic")),
]

FORMULAS: Final[Mapping[str, Formula]] = {
    # Matrix products
    "aten::mm": product(0, 2),
    "aten::_int_mm": product(0, 2),
    "aten::_scaled_mm": product(0, 2),
    "aten::_scaled_mm_v2": product(0, 2),
    "aten::_scaled_addmm": product(1, 2),
    "aten::_scaled_addmm_": product(1, 2),
    "aten::addmm": product(1, 2),
    "aten::addmm_": product(1, 2),
    "aten::_addmm_activation": product(1, 2),
    "aten::bmm": product(0, 3),
    "aten::baddbmm": product(1, 3),
    "aten::baddbmm_": product(1, 3),
    "aten::_grouped_mm": grouped_product,
    "aten::_scaled_grouped_mm": grouped_product,
    "aten::_scaled_grouped_mm_v2": grouped_product,
    "aten::mv": vector_product(0, 2),
    "aten::addmv": vector_product(1, 2),
    "aten::addmv_": vector_product(1, 2),
    "aten::dot": vector_product(0, 1),
    "aten::vdot": vector_product(0, 1),
    "aten::_foreach_mm": products,
    "aten::_compute_linear_combination": combination,
    "aten::_cdist_forward": distances,
    "aten::_cdist_backward": distances_backward,
    "aten::_weight_int8pack_mm": linear(0, 1),
    "aten::_weight_int4pack_mm": int4_product,
    "aten::_weight_int4pack_mm_for_cpu": int4_product,
    "aten::_weight_int4pack_mm_with_scales_and_zeros": int4_product,
    "aten::mkldnn_linear": linear(0, 1),
    "aten::mkldnn_linear_backward_input": linear(1, 2),
    "aten::mkldnn_linear_backward_weights": linear(0, 2),
    "mkldnn::_linear_pointwise": pointwise(linear(0, 1), linear(0, 2)),
    "mkl::_mkl_linear": linear(0, 2),
    "onednn::qlinear_pointwise": linear(0, 3),
    # Convolutions
    "aten::convolution": any_convolution,
    "aten::_convolution": any_convolution,
    "aten::convolution_overrideable": any_convolution,
    "aten::cudnn_convolution": convolution(3, 2, 4),
    "aten::cudnn_convolution_relu": convolution(3, 4, 5),
    "aten::cudnn_convolution_add_relu": convolution(5, 6, 7),
    "aten::cudnn_convolution_transpose": transposed_convolution(),
    "aten::miopen_convolution": convolution(4, 3, 5),
    "aten::miopen_convolution_relu": convolution(3, 4, 5),
    "aten::miopen_convolution_add_relu": convolution(5, 6, 7),
    "aten::miopen_convolution_transpose": transposed_convolution(),
    "aten::miopen_depthwise_convolution": convolution(4, 3, 5),
    "aten::mkldnn_convolution": convolution(4, 3, 5),
    "aten::_mps_convolution": convolution(4, 3, 5),
    "aten::_mps_convolution_transpose": transposed_convolution(),
    "aten::_nnpack_spatial_convolution": convolution(4, 3, None),
    "aten::thnn_conv2d": convolution(4, 5, None),
    "aten::_slow_conv2d_forward": convolution(4, 5, None),
    "aten::slow_conv3d": convolution(4, 5, None),
    "aten::slow_conv3d_forward": convolution(4, 5, None),
    "aten::slow_conv_dilated2d": convolution(4, 5, 6),
    "aten::slow_conv_dilated3d": convolution(4, 5, 6),
    "aten::slow_conv_transpose2d": transposed_convolution(),
    "aten::slow_conv_transpose3d": transposed_convolution(),
    "aten::_conv_depthwise2d": convolution(4, 5, 6),
    "aten::conv_depthwise3d": convolution(4, 5, 6),
    "mkldnn::_convolution_pointwise": pointwise(
        convolution(4, 3, 5), convolution(5, 4, 6, weight=2)
    ),
    "mkldnn::_convolution_pointwise_": convolution(5, 4, 6, x=1, weight=2),
    "mkldnn::_convolution_transpose_pointwise": transposed_convolution(),
    "onednn::qconv_pointwise": quantized_convolution,
    "onednn::qconv1d_pointwise": quantized_convolution,
    "onednn::qconv2d_pointwise": quantized_convolution,
    "onednn::qconv3d_pointwise": quantized_convolution,
    "aten::convolution_backward": convolution_backward(transposed=7),
    "aten::convolution_backward_overrideable": convolution_backward(transposed=6),
    "aten::_slow_conv2d_backward": convolution_backward(),
    "aten::mps_convolution_backward": convolution_backward(1, 0),
    "aten::mps_convolution_transpose_backward": convolution_backward(1, 0, transposed=True),
    # Attention. FCM reports 0 for the operators of the CPU (pytorch/pytorch#195460), of MPS, of the
    # overrideable backend and of the flash-attn packages.
    "aten::_scaled_dot_product_flash_attention": Attention(),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Attention(),
    "aten::_scaled_dot_product_efficient_attention": Attention(),
    "aten::_scaled_dot_product_cudnn_attention": Attention(),
    "aten::_scaled_dot_product_fused_attention_overrideable": Attention(),
    "aten::_scaled_dot_product_attention_math_for_mps": Attention(),
    "aten::_flash_attention_forward": Attention(heads=2, offsets=3, longest=5, unless=(13, 15)),
    "aten::_efficient_attention_forward": Attention(heads=2, offsets=4, longest=6, unless=(12,)),
    "aten::_cudnn_attention_forward": Attention(offsets=4, longest=6),
    "torch_attn::_varlen_attn": Attention(offsets=3, longest=5, unless=(11, 12)),
    "torch_attn::_varlen_attn_out": Attention(1, offsets=4, longest=6, unless=(12, 13)),
    "flash_attn::_flash_attn_forward": Attention(heads=2),
    "flash_attn::_flash_attn_varlen_forward": Attention(offsets=3, longest=5, unless=(15, 16, 17)),
    "flash_attn_3::fwd": Attention(heads=2, offsets=7, longest=12, unless=(3, 10, 11, 14)),
    "aten::_scaled_dot_product_flash_attention_backward": Attention(1, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Attention(1, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": Attention(1, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": Attention(1, backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Attention(1, backward=True),
    "aten::_flash_attention_backward": Attention(1, heads=2, offsets=6, longest=8, backward=True),
    "aten::_efficient_attention_backward": Attention(
        1, heads=2, offsets=6, longest=8, backward=True
    ),
    "aten::_cudnn_attention_backward": Attention(1, offsets=9, longest=11, backward=True),
    "torch_attn::_varlen_attn_backward": Attention(1, offsets=6, longest=8, backward=True),
    "flash_attn::_flash_attn_backward": Attention(1, heads=2, backward=True),
    "flash_attn::_flash_attn_varlen_backward": Attention(1, offsets=9, longest=11, backward=True),
    "flash_attn_3::bwd": Attention(
        1, heads=2, offsets=9, longest=13, backward=True, unless=(11, 12)
    ),
    # Recurrent layers
    "aten::_cudnn_rnn": recurrent(1, 6),
    "aten::_cudnn_rnn_backward": recurrent_backward(recurrent(1, 10)),
    "aten::miopen_rnn": recurrent(1, 5, projection=False),
    "aten::miopen_rnn_backward": recurrent_backward(recurrent(1, 10, projection=False)),
    "aten::mkldnn_rnn_layer": recurrent_onednn(1),
    "aten::mkldnn_rnn_layer_backward": recurrent_onednn(2),
    # Quantized products
    **dict.fromkeys(_PACKED, packed_product),
}


# ---- Guess from names whether kernels and operators outside torch compute products.
#
# A product multiplies and adds many pairs of numbers: a matrix product, a convolution, attention,
# a Fourier transform. For third-party code, a trace has nothing but names. A name that reveals
# nothing may stand for a product.

#: Never products, whatever else is in the name: inductor's elementwise work, reductions and copies
#: (`triton_poi_fused_convolution_22` adds a bias), collectives, and moves of an attention cache.
_NEVER: Final = (
    r"triton_(poi|red|per|for|sort|split_scan)_|^(void )?(nccl|rccl|msccl)|reshape_and_cache"
    r"|(swap|copy|gather|concat\w*)_(blocks|cache|kv)|merge_attn_states"
)
#: Products whose names `is_main` does not match: it only picks the main kernel of several.
_PRODUCTS: Final = (
    r"(?<!co)mm(?![a-z])|(?<![a-z])\w*mv(?![a-z])|matmul|gemm|conv(?!ert)|attention|attn|einsum|marlin"
    r"|(?<![a-z])(moe|mla|mha|gqa|sdpa|lora|dot|linear)(?![a-z])|mamba|selective_scan|chunk_scan"
    r"|trsm|trmm|syrk|symm(?!etric)|herk|potrf|getrf|geqrf|ormqr|gesvd|syevd|heevd|(?<![a-z])i?r?c?fft"
)
#: Operators, not kernels, that contain products: a layer, a decomposition.
_LAYERS: Final = (
    r"mlp|ffn|feed_?forward"
    r"|(?<![a-z])(lstm|gru|proj|projection|matvec|product|cdist|bilinear|svd|cholesky)(?![a-z])"
)
_WORK_WITHOUT: Final = (
    "elementwise|pointwise|vectorized_|unrolled_|reduce|reduction|softmax|soft_max|norm|bn_fw|bn_bw"
    "|activation|silu|gelu|relu|swish|swiglu|sigmoid|tanh|act_and_mul|dropout|rotary|rope(?![a-z])"
    "|embedding|gather|scatter|index|lookup|permute|transpose|nchw|nhwc|im2col|col2im|copy|memcpy"
    "|memset|fill|zero_|arange|iota|cat(?:array|_)|concat|split(?!k)|pad(?![a-z])|roll|flip|cast"
    "|convert|quant|scale|sort|topk|top_k|top_p|argmax|argmin|sampl|random|uniform|philox|unique"
    "|nonzero|cumsum|devicescan|histogram|bincount|search|nms|roi_|interpolat|upsample|resampl"
    "|pool|loss|cross_?entropy|multi_?tensor|optimizer|adam|sgd|lamb(?![a-z])|foreach|clip"
    "|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|sendrecv|bounds_check"
    "|segment|jagged|offsets|bitmatrix|routing|unpack|mask|compare"
)
#: Work without products.
_WITHOUT: Final = rf"{_WORK_WITHOUT}|at::native::|at_cuda_detail|^(void )?(cub|thrust|at::cuda)::"


def _has(pattern: str, name: str) -> bool:
    """Compiled only when first used: few tests have such a name."""
    return re.search(pattern, name, re.IGNORECASE) is not None


@lru_cache(maxsize=100_000)
def kernel_may_multiply(name: str) -> bool:
    """Whether a kernel of this name may compute products.

    >>> kernel_may_multiply("ampere_sgemm_128x64_tn"), kernel_may_multiply("my_kernel")
    (True, True)
    >>> kernel_may_multiply("triton_poi_fused_convolution_22")
    False
    """
    if _has(_NEVER, name):
        return False
    own = name.replace("(anonymous namespace)::", "").partition("(")[0]  # without arguments
    plain = own.partition("<")[0]  # template arguments name more than the kernel does
    return is_main(own) or _has(_PRODUCTS, plain) or not _has(_WITHOUT, own)


@lru_cache(maxsize=10_000)
def operator_may_multiply(name: str) -> bool:
    """The same for an operator that is not torch's.

    >>> operator_may_multiply("aiter::mha_batch_prefill"), operator_may_multiply("mylib::step")
    (True, True)
    >>> operator_may_multiply("torchvision::nms"), operator_may_multiply("_C::fused_add_rms_norm")
    (False, False)
    """
    if _has(_NEVER, name):
        return False
    own = name.partition("::")[2]
    return names_products(own) or not _has(_WORK_WITHOUT, own)


def names_products(own: str) -> bool:
    """Whether the name of an operator, without its namespace, stands for products.

    >>> names_products("my_gemm"), names_products("gated_mlp_silu"), names_products("step")
    (True, True, False)
    """
    return is_main(own) or _has(_PRODUCTS, own) or _has(_LAYERS, own)


# ---- Classify torch's operators by their FLOPs.
#
# A formula counts products only (see `pytest_torchprof.work.flops`), so an operator is one of
# these:
#
# - `counted`: it has a formula;
# - `idle`: no arithmetic: a view, an allocation, a copy, a query about a tensor;
# - `none`: arithmetic without products: its FLOPs are 0;
# - `parts`: it is made of other operators, which a trace shows;
# - `computes`: it computes products, or something equivalent, and has no formula;
# - `unknown`: it is in no table, like other libraries' operators, and its name may mean products;
# - `around`: not an operator, but an annotation, a node of autograd, a compiled region.
#
# The table is operators.txt; a test checks it against every operator that torch registers.

OperatorWork = Literal["counted", "idle", "none", "parts", "computes", "unknown", "around"]

#: With its overload, if the trace has it but no operator of torch's own, see `base_names`.
_OPERATOR: Final = late(r"^(?!autograd::|torch::|torchprof::)[A-Za-z_]\w*::\w+(\.[A-Za-z_]\w*)?$")

_DERIVED: Final = late(
    r"(_backward|_backward_data|_double_backward|_forward|_copy|_functional|_jvp|_like|_as|_impl"
    r"|_out|_)$"
)


class _Names(NamedTuple):
    """Whole names: plain ones, and a pattern that is compiled only when needed."""

    plain: frozenset[str]
    patterns: str


def _names(table: str) -> Mapping[OperatorWork, _Names]:
    out = {}
    for (of, work), words in operator_names().items():
        if of == table:
            plain = frozenset(word for word in words if re.fullmatch(r"[\w:]+", word))
            patterns = "|".join(word for word in words if word not in plain)
            out[cast("OperatorWork", work)] = _Names(plain, f"(?:{patterns})$")
    return out


_OF_ATEN: Final = _names("aten")
_OF_OTHERS: Final = _names("others")
_OF_SPACES: Final = _names("spaces")
_OF_SCRIPT: Final = frozenset(operator_names()["script", "idle"])


@lru_cache(maxsize=10_000)
def work_of(name: str) -> OperatorWork:
    """What kind of work an operator does, by its name in traces.

    >>> work_of("aten::mm"), work_of("aten::linear"), work_of("aten::_fft_r2c")
    ('counted', 'parts', 'computes')
    >>> work_of("aten::relu_"), work_of("aten::new_zeros"), work_of("mylib::step")
    ('none', 'idle', 'unknown')
    """
    if name in FORMULAS:
        return "counted"
    if not _OPERATOR.match(name):
        return "around"
    return listed_work(name) or ("unknown" if operator_may_multiply(name) else "none")


def listed_work(name: str) -> OperatorWork | None:
    """The tables' answer for an operator without a formula; None if they do not list it."""
    space, _, own = name.partition("::")
    if space != "aten":
        return _first(_OF_OTHERS, name) or (
            None if names_products(own) else _first(_OF_SPACES, name)
        )
    while True:
        own = own.strip("_")
        if own in _OF_SCRIPT:
            return "idle"
        if (work := _first(_OF_ATEN, own)) is not None:
            return work
        shorter = _DERIVED.sub("", own)
        if shorter == own:
            return None
        own = shorter


def _first(table: Mapping[OperatorWork, _Names], name: str) -> OperatorWork | None:
    for fits in (lambda n: name in n.plain, lambda n: re.match(n.patterns, name)):
        if (work := next((work for work, n in table.items() if fits(n)), None)) is not None:
            return work
    return None


# ---- How much of attention a mask leaves: the work of a kernel that skips the rest.
#
# `flops` counts all pairs of a query and a key, as `FlopCounterMode` does. Flash kernels skip
# what a causal mask or a window hides, so rating them by all pairs would overstate them up to
# twofold. Only arguments count here: a mask tensor may hold anything, and is added, not skipped.
#
# Positions and meanings are from the schemas in PyTorch's `native_functions.yaml`, from
# `torch/nn/attention/varlen.py`, and from flash-attention's `flash_attn_interface.py` and
# `hopper/flash_api.cpp`.

_CAUSAL: Final = frozenset({"True", "1", "2"})
_TOLD: Final = _CAUSAL | {"False", "0"}

Corner = Literal["upper left", "lower right", "square", "by type"]


class Mask(Frozen, frozen=True):
    """Positions of the mask's arguments, and where the diagonal of a causal mask begins.

    ``corner``: a causal mask aligns the first query with the first key (``upper left``) or the last
    query with the last key (``lower right``); it is known only for as many queries as keys
    (``square``); or the argument, 1 or 2, says which (``by type``). ``window``: how many keys
    before and after the diagonal are visible, as two arguments or as one list.
    """

    causal: int
    corner: Corner
    window: int | None = None

    def share(self, call: Operands, attention: Attention) -> float:
        """The share of all pairs of a query and a key that is visible."""
        kind = call.concrete[self.causal]
        before, after = self._sides(call)
        after = 0 if kind in _CAUSAL else after
        if before is None and after is None:
            return 1.0
        tokens, keys = attention.lengths(call)
        if self.corner == "square" and tokens != keys:
            raise UnknownOperandError
        left = self.corner == "upper left" or (self.corner == "by type" and kind == "1")
        shift = 0 if left else keys - tokens
        seen = _up_to(tokens, keys, keys if after is None else shift + after)
        if before is not None:
            seen -= _up_to(tokens, keys, shift - before - 1)
        return seen / (tokens * keys)

    def _sides(self, call: Operands) -> tuple[int | None, int | None]:
        if self.window is None:
            return None, None
        at = self.window
        listed = call.concrete[at][:1] == "["
        given = call.concrete[at : at + 2]
        sides = call.per_axis(at, 2) if listed else [int(item or -1) for item in given]
        before, after = (None if side < 0 else side for side in sides)
        return before, after


def _up_to(tokens: int, keys: int, last: int) -> int:
    """Pairs (i, j) of ``tokens`` and ``keys`` with j at most ``last`` + i.

    >>> _up_to(3, 3, 0), _up_to(2, 4, 2), _up_to(3, 2, -1)
    (6, 7, 3)
    """
    first = max(0, -last)  # the first query that sees any key
    full = max(first, min(tokens, keys - 1 - last))  # the first that sees all keys
    some = full - first if first < tokens else 0
    growing = some * (first + last + 1) + some * (some - 1) // 2
    return growing + max(0, tokens - max(full, first)) * keys


_LEFT: Final[Corner] = "upper left"
_RIGHT: Final[Corner] = "lower right"

MASKS: Final[Mapping[str, Mask]] = {
    "aten::_scaled_dot_product_flash_attention": Mask(4, _RIGHT),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Mask(4, _LEFT),
    "aten::_scaled_dot_product_efficient_attention": Mask(6, _LEFT),
    "aten::_scaled_dot_product_cudnn_attention": Mask(6, _LEFT),
    "aten::_scaled_dot_product_fused_attention_overrideable": Mask(5, "square"),
    "aten::_flash_attention_forward": Mask(8, _RIGHT, 11),
    "aten::_efficient_attention_forward": Mask(9, "by type"),
    "aten::_cudnn_attention_forward": Mask(10, _LEFT),
    "torch_attn::_varlen_attn": Mask(7, _RIGHT, 9),
    "torch_attn::_varlen_attn_out": Mask(8, _RIGHT, 10),
    "flash_attn::_flash_attn_forward": Mask(5, _RIGHT, 6),
    "flash_attn::_flash_attn_varlen_forward": Mask(9, _RIGHT, 10),
    "flash_attn_3::fwd": Mask(24, _RIGHT, 25),
    "aten::_scaled_dot_product_flash_attention_backward": Mask(11, _RIGHT),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Mask(7, _LEFT),
    "aten::_scaled_dot_product_efficient_attention_backward": Mask(11, _LEFT),
    "aten::_scaled_dot_product_cudnn_attention_backward": Mask(14, _LEFT),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Mask(13, "square"),
    "aten::_flash_attention_backward": Mask(11, _RIGHT, 15),
    "aten::_efficient_attention_backward": Mask(14, "by type"),
    "aten::_cudnn_attention_backward": Mask(14, _LEFT),
    "torch_attn::_varlen_attn_backward": Mask(10, _RIGHT, 13),
    "flash_attn::_flash_attn_backward": Mask(11, _RIGHT, 12),
    "flash_attn::_flash_attn_varlen_backward": Mask(15, _RIGHT, 16),
    "flash_attn_3::bwd": Mask(16, _RIGHT, 17),
}


def is_known(name: str, concrete: Any) -> bool:
    """Whether a call says if it is causal, or needs no such argument.

    >>> is_known("aten::_scaled_dot_product_flash_attention", ["", "", "", "0.", "", "False", ""])
    False
    """
    try:
        return name not in MASKS or concrete[MASKS[name].causal] in _TOLD
    except (LookupError, TypeError):
        return False


def share(name: str, dims: Any, types: Any, concrete: Any) -> float | None:
    """The share of all pairs that the mask leaves, 0 to 1; None where the lengths are unknown.

    It is 1 for a call that does not say whether it is causal.

    >>> flash = "aten::_scaled_dot_product_flash_attention"
    >>> share(flash, [[1, 2, 3, 64]] * 3, None, ["", "", "", "0.", "True", "False", ""])
    0.6666666666666666
    """
    formula = FORMULAS.get(name)
    if name not in MASKS or not isinstance(formula, Attention) or not is_known(name, concrete):
        return 1.0
    try:
        return MASKS[name].share(Operands(dims, types, concrete), formula)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
