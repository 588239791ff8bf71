"""FLOPs of an operator, from what a profiler trace with shapes records about its call.

As in `torch.utils.flop_counter.FlopCounterMode` (below: FCM), a multiplication and an addition are
two operations, and only matrix products, convolutions, attention and recurrent layers count. Biases
and other elementwise work do not. Counted in full, as in FCM: products with padding, the masked
half of causal attention, complex numbers (as if they were real). A sparse operand makes the count
unknown where a trace distinguishes it from a dense one: FCM treats some as dense and reports 0 for
others.

The caller counts the outermost operator that has a number and nothing below it, unless something
below ran in its place (`redispatch`). So an operator has a row here if it is a leaf, or if its
number is at least as good as the sum of its parts. `aten::linear`, `matmul`, `einsum`, `bilinear`,
`conv2d`, `lstm`, `scaled_dot_product_attention` and its math fallback,
`_transformer_encoder_layer_fwd` and `_native_multi_head_attention` have none: traces show their
parts. `quantized::linear` and the like are always unknown.

Operand positions follow the schemas in PyTorch's `native_functions.yaml`, and for other namespaces
their own registrations. Out-variants append their output, which is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from pytest_torchprof.core.plain import Plain

_LARGEST = 2**63 - 1  # more is malformed, and does not fit into an array
_TRUTH = {"True": True, "False": False}


class UnknownCallError(ValueError):
    """The call lacks something its formula needs."""


class Call(Plain, frozen=True):
    """What the trace recorded about one call of an operator. Reading a missing value raises."""

    dims: Any
    types: Any
    concrete: Any
    strides: Any = None

    def is_sparse(self, at: int) -> bool:
        """Whether this is a tensor without strides in a trace that has strides of dense ones."""
        known = isinstance(self.strides, list) and at < len(self.strides)
        return known and not self.strides[at] and self.has_tensor(at)

    def shape(self, at: int) -> list[int]:
        """Shape of a tensor operand."""
        return _shape(self.dims[at])

    def has_tensor(self, at: int) -> bool:
        """Whether there is a tensor with a dimension at this position."""
        return at < len(self.dims) and bool(self.dims[at])

    def integers(self, at: int, count: int) -> list[int]:
        """One integer for each axis; a list of one applies to all."""
        values = [int(item) for item in _items(self.concrete[at])]
        if len(values) not in {1, count}:
            raise UnknownCallError
        return values if len(values) == count else values * count

    def mask(self) -> list[bool]:
        """Which gradients a backward operator was asked for. It is the last argument."""
        return [_TRUTH[item] for item in _items(self.concrete[-1])]


Formula = Callable[[Call], int]


def flops(name: str, dims: Any, types: Any, concrete: Any, strides: Any = None) -> int | None:
    """FLOPs of a call; `None` if there is no formula or the trace lacks what it needs.

    The arguments are the trace's ``Input Dims``, ``Input type``, ``Concrete Inputs`` and, where it
    has them, ``Input Strides``.

    >>> flops("aten::mm", [[4, 5], [5, 6]], ["float", "float"], ["", ""])
    240
    """
    try:
        count = FORMULAS[name](Call(dims, types, concrete, strides))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
    return count if 0 <= count <= _LARGEST else None


def lacking(name: str, dims: Any, types: Any, concrete: Any, strides: Any = None) -> str:
    """For a call with a formula but no number: what is missing, to follow the operator's name.

    >>> lacking("aten::convolution", [[1, 3, 224, 224], [64, 3, 7, 7]], None, None)
    'lacks Concrete Inputs'
    """
    if FORMULAS.get(name) is _packed_product:
        return "has a packed weight of unknown shape"
    if not dims:
        return "lacks Input Dims"
    if strides and flops(name, dims, types, concrete) is not None:
        return "has a sparse operand, and only its shape is"
    if not isinstance(concrete, list) or not any(concrete):
        asked = _Asked()
        flops(name, dims, types, asked)
        if asked.read:
            return "lacks Concrete Inputs"
    return "has arguments that its formula does not support"


class _Asked:
    """Stands in for the arguments: records whether a formula reads any."""

    read = False

    def __getitem__(self, at: object) -> Any:
        self.read = True
        raise LookupError


def _shape(dims: Any) -> list[int]:
    if not isinstance(dims, (list, tuple)) or any(type(n) is not int or n < 0 for n in dims):
        raise UnknownCallError
    return list(dims)


def _items(text: Any) -> list[str]:
    if text[:1] + text[-1:] != "[]":
        raise UnknownCallError
    return [item.strip() for item in text[1:-1].split(",")] if text != "[]" else []


# ------------------------------------------------------------------------------ matrix products


def _product(first: int, rank: int) -> Formula:
    """`[..., m, k] @ [..., k, n]` is `2 m k n` in each batch: FCM's `mm_flop` and `bmm_flop`."""

    def formula(call: Call) -> int:
        a, b = call.shape(first), call.shape(first + 1)
        if call.is_sparse(first) or call.is_sparse(first + 1):
            raise UnknownCallError  # how many elements it has is not in the trace
        if not len(a) == len(b) == rank or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise UnknownCallError
        return 2 * _packing(call) * prod(a) * b[-1]

    return formula


def _packing(call: Call) -> int:
    """An element of type `float4_e2m1fn_x2` holds two numbers; FCM counts half the product."""
    return 2 if "Float4_e2m1fn_x2" in str(call.types) else 1


def _grouped_product(call: Call) -> int:
    """`_grouped_mm`: the groups split the rows, the columns or the inner axis.

    The axis that is split may be longer than the sum of its groups; the offsets are not in the
    trace. FCM has no formula.
    """
    a, b = call.shape(0), call.shape(1)
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2]:
        raise UnknownCallError
    return 2 * _packing(call) * prod(a if len(b) == 3 else a[-2:]) * b[-1]


def _products(call: Call) -> int:
    """`_foreach_mm`: the products of two lists, pair by pair. FCM has no formula."""
    pairs = list(zip(call.dims[0], call.dims[1], strict=True))
    if not pairs:
        raise UnknownCallError  # the profiler omits long lists
    return sum(_product(0, 2)(Call(pair, call.types, None)) for pair in pairs)


def _combination(call: Call) -> int:
    """`_compute_linear_combination`: `[m, ...]` by coefficients `[p, m]`. FCM has no formula."""
    inputs, coefficients = call.shape(0), call.shape(1)
    if len(coefficients) != 2 or coefficients[1] != inputs[0]:
        raise UnknownCallError
    return 2 * coefficients[0] * prod(inputs)


def _distances(call: Call) -> int:
    """`_cdist_forward(x1, x2, p, compute_mode)`: the direct form, used for up to 25 rows.

    From 26 rows on, Euclidean distances are a product whose inner axis is longer by two (`aten::mm`
    inside `_euclidean_dist`); both forms count the same. Other distances are not products. FCM
    reports 0 in both cases, and counts the gradients from 26 rows on.
    """
    (*batch, rows, width), (*_, others, width_2) = call.shape(0), call.shape(1)
    if width != width_2:
        raise UnknownCallError
    if float(call.concrete[2]) != 2:
        return 0
    return 2 * prod(batch) * rows * others * (width + 2)


def _distances_backward(call: Call) -> int:
    """`_cdist_backward(grad, x1, x2, p, cdist)`: the gradient of `x1`, a product if Euclidean."""
    (*batch, rows, width), (*_, others, _) = call.shape(1), call.shape(2)
    return 2 * prod(batch) * rows * others * width if float(call.concrete[3]) == 2 else 0


def _vector_product(first: int, rank: int) -> Formula:
    """`[m, k] @ [k]` is `2 m k`, and a dot product `2 k`. FCM reports 0."""

    def formula(call: Call) -> int:
        a, b = call.shape(first), call.shape(first + 1)
        if len(a) != rank or a[-1:] != b or call.is_sparse(first):
            raise UnknownCallError
        return 2 * prod(a)

    return formula


def _linear(x: int, weight: int) -> Formula:
    """`[..., k]` times a matrix with an axis `k`, in either storage order. FCM reports 0."""

    def formula(call: Call) -> int:
        a, b = call.shape(x), call.shape(weight)
        if not a or len(b) != 2 or a[-1] not in b:
            raise UnknownCallError
        return 2 * prod(a) * (b[0] if b[1] == a[-1] else b[1])

    return formula


def _int4_product(call: Call) -> int:
    """`_weight_int4pack_mm`: the weight's layout varies, its scales are `[groups, n, ...]`."""
    return 2 * prod(call.shape(0)) * call.shape(3)[1]


# --------------------------------------------------------------------------------- convolutions
# A weight is [out, in / groups, *kernel], of a transposed convolution [in, out / groups, *kernel].
# Each position of the output (of the input if transposed) uses the whole weight once, so groups
# need no special case. FCM's `conv_flop_count` agrees for a forward pass. It reads the arguments of
# `cudnn_convolution` and `_slow_conv2d_forward` at the positions of `aten::convolution` (taking
# `benchmark` for `transposed`), which goes unnoticed because the latter hides them.


def _convolution(
    stride: int, padding: int, dilation: int | None, x: int = 0, weight: int = 1
) -> Formula:
    """Forward pass; the arguments are positions."""

    def formula(call: Call) -> int:
        batch, channels, *size = call.shape(x)
        w = call.shape(weight)
        n = len(size)
        if len(w) == n + 2 and channels % w[1]:
            raise UnknownCallError
        if not n or len(w) not in {n + 2, n + 3}:  # oneDNN may store the groups as an axis
            raise UnknownCallError
        strides, paddings = call.integers(stride, n), call.integers(padding, n)
        dilations = call.integers(dilation, n) if dilation is not None else [1] * n
        spans = [d * (k - 1) + 1 for d, k in zip(dilations, w[-n:], strict=True)]
        axes = zip(size, paddings, spans, strides, strict=True)
        out = [(i + 2 * p - span) // s + 1 for i, p, span, s in axes]
        if min(out) < 0 or min(strides) <= 0:
            raise UnknownCallError
        return 2 * batch * prod(out) * prod(w)

    return formula


def _transposed_convolution(x: int = 0, weight: int = 1) -> Formula:
    """Forward pass, for any stride, padding and output padding."""

    def formula(call: Call) -> int:
        batch, _, *size = call.shape(x)
        w = call.shape(weight)
        if not size or len(w) not in {len(size) + 2, len(size) + 3}:
            raise UnknownCallError
        return 2 * batch * prod(size) * prod(w)

    return formula


def _any_convolution(call: Call) -> int:
    """`aten::convolution`, which takes `transposed` as an argument."""
    formula = _transposed_convolution() if _TRUTH[call.concrete[6]] else _convolution(3, 4, 5)
    return formula(call)


def _quantized_convolution(call: Call) -> int:
    """`onednn::qconv*_pointwise(qx, scale, zero, qw, scale, zero, [addend,] bias, stride, ...)`."""
    later = 0 if call.concrete[7] else 1
    return _convolution(7 + later, 8 + later, 9 + later, weight=3)(call)


def _convolution_backward(grad: int = 0, x: int = 1, *, transposed: bool | int = False) -> Formula:
    """Each requested gradient, of the input or the weight, costs as much as the forward pass.

    `transposed` is the value or its position; the weight is the third operand. FCM counts the
    gradient of a grouped convolution's weight `groups` times too high.
    """

    def formula(call: Call) -> int:
        out, inside, w = call.shape(grad), call.shape(x), call.shape(2)
        if len(out) < 3 or len(inside) != len(out) or len(w) != len(out):
            raise UnknownCallError
        turned = transposed if isinstance(transposed, bool) else _TRUTH[call.concrete[transposed]]
        met = inside if turned else out
        of_input, of_weight, *_ = call.mask()
        return (of_input + of_weight) * 2 * met[0] * prod(met[2:]) * prod(w)

    return formula


def _pointwise(unary: Formula, binary: Formula) -> Formula:
    """Two oneDNN operators with one name: `(X, W, B?, ...)` and `(X, other, W, B?, ...)`.

    `torch.compile` with freezing makes these of bf16 linear layers and of convolutions.
    """
    return lambda call: (binary if len(call.dims[2]) > 1 else unary)(call)


# ------------------------------------------------------------------------------------ attention


class Attention(Plain, frozen=True):
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

    def __call__(self, call: Call) -> int:
        """FLOPs of all pairs of a query and a key."""
        packed = self._is_packed(call)
        (batch, h, tokens, width), (_, h_k, keys, width_k), (_, h_v, values, width_v) = operands = [
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(3)
        ]
        if not all(map(all, operands)):
            return 0  # an empty tensor
        if any(operand[0] != batch for operand in operands):
            raise UnknownCallError
        if any(map(call.has_tensor, self.unless)):
            raise UnknownCallError
        if h % h_k or h_k != h_v or keys != values or width != width_k:
            raise UnknownCallError
        pairs = batch * tokens * keys
        if packed:
            sequences, most, most_keys = self._sequences(call)
            if keys != sequences * most_keys and tokens != sequences * most:
                raise UnknownCallError
            pairs = tokens * most_keys if keys == sequences * most_keys else keys * most
        passes = 3 * width + 2 * width_v if self.backward else width + width_v
        return 2 * h * pairs * passes

    def lengths(self, call: Call) -> tuple[int, int]:
        """Queries and keys of each sequence, if all are alike."""
        packed = self._is_packed(call)
        (_, _, tokens, _), (_, _, keys, _) = (
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(2)
        )
        if not packed:
            return tokens, keys
        sequences, most, most_keys = self._sequences(call)
        if keys != sequences * most_keys or tokens != sequences * most:
            raise UnknownCallError
        return most, most_keys

    def _is_packed(self, call: Call) -> bool:
        return self.offsets is not None and call.has_tensor(self.offsets)

    def _sequences(self, call: Call) -> tuple[int, int, int]:
        """The number of sequences, and the most queries and keys in one."""
        assert self.offsets is not None  # noqa: S101 - it is packed
        most, most_keys = (int(call.concrete[self.longest + i] or 0) for i in range(2))
        return call.shape(self.offsets)[0] - 1, most, most_keys


def _heads_first(shape: list[int], heads: int, *, packed: bool) -> tuple[int, int, int, int]:
    """Batch, heads, tokens and width. Packed sequences are `[tokens, heads, width]`."""
    batch, first, second, width = [1, *shape] if packed and len(shape) == 3 else shape
    if heads == 2 or len(shape) == 3:
        return batch, second, first, width
    return batch, first, second, width


# ----------------------------------------------------------------------------- recurrent layers
# Every token is multiplied by every weight matrix once in each pass: forward, gradient of the
# input, gradient of the weights. FCM reports 0 for all of these. Where a layer is not fused, its
# matrix products are in the trace.
_GATES = (1, 1, 4, 3)  # by mode: RNN with ReLU, RNN with tanh, LSTM, GRU


def _recurrent(weights: int, mode: int, *, projection: bool = True) -> Formula:
    """Forward pass of `(input, weight[], ..., mode, hidden_size, [proj_size,] num_layers, ...)`."""

    def formula(call: Call) -> int:
        *tokens, width = call.shape(0)
        known = [w for w in map(_shape, call.dims[weights]) if len(w) == 2]
        if known:
            return 2 * prod(tokens) * sum(map(prod, known))
        # More than 30 weights, which the profiler omits: 4 bidirectional layers.
        gates, hidden = _GATES[int(call.concrete[mode])], int(call.concrete[mode + 1])
        projected = int(call.concrete[mode + 2]) if projection else 0
        layers = int(call.concrete[mode + 2 + projection])
        directions = 1 + _TRUTH[call.concrete[mode + 6 + projection]]
        out = projected or hidden
        inner = (width + (layers - 1) * out * directions) + layers * out
        per_token = directions * (gates * hidden * inner + layers * hidden * projected)
        return 2 * prod(tokens) * per_token

    return formula


def _recurrent_backward(forward: Formula) -> Formula:
    """The gradient of the input is always computed, that of the weights on request."""
    return lambda call: forward(call) * (1 + call.mask()[3])


def _recurrent_onednn(passes: int) -> Formula:
    """`mkldnn_rnn_layer(input, weight_ih, weight_hh, ...)`, a layer in one direction.

    An LSTM on a CPU consists of these. The backward pass always computes both gradients.
    """

    def formula(call: Call) -> int:
        *tokens, width = call.shape(0)
        w_input, w_hidden = call.shape(1), call.shape(2)
        if len(w_input) != 2 or len(w_hidden) != 2 or w_input[1] != width:
            raise UnknownCallError
        return 2 * passes * prod(tokens) * (prod(w_input) + prod(w_hidden))

    return formula


# ------------------------------------------------------------------------------------ the table


def _packed_product(call: Call) -> int:  # noqa: ARG001 - every formula takes one
    """The weight is an opaque object whose shape is in no trace: unknown, not 0."""
    raise UnknownCallError


_PACKED: Final = [
    *(f"quantized::linear{kind}" for kind in ("", "_relu", "_dynamic", "_relu_dynamic")),
    *(f"quantized::linear{kind}_dynamic_fp16" for kind in ("", "_relu")),
    *(f"quantized::conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_relu", "_dynamic")),
]

FORMULAS: Final[Mapping[str, Formula]] = {
    # Matrix products
    "aten::mm": _product(0, 2),
    "aten::_int_mm": _product(0, 2),
    "aten::_scaled_mm": _product(0, 2),
    "aten::_scaled_mm_v2": _product(0, 2),
    "aten::_scaled_addmm": _product(1, 2),
    "aten::_scaled_addmm_": _product(1, 2),
    "aten::addmm": _product(1, 2),
    "aten::addmm_": _product(1, 2),
    "aten::_addmm_activation": _product(1, 2),
    "aten::bmm": _product(0, 3),
    "aten::baddbmm": _product(1, 3),
    "aten::baddbmm_": _product(1, 3),
    "aten::_grouped_mm": _grouped_product,
    "aten::_scaled_grouped_mm": _grouped_product,
    "aten::_scaled_grouped_mm_v2": _grouped_product,
    "aten::mv": _vector_product(0, 2),
    "aten::addmv": _vector_product(1, 2),
    "aten::addmv_": _vector_product(1, 2),
    "aten::dot": _vector_product(0, 1),
    "aten::vdot": _vector_product(0, 1),
    "aten::_foreach_mm": _products,
    "aten::_compute_linear_combination": _combination,
    "aten::_cdist_forward": _distances,
    "aten::_cdist_backward": _distances_backward,
    "aten::_weight_int8pack_mm": _linear(0, 1),
    "aten::_weight_int4pack_mm": _int4_product,
    "aten::_weight_int4pack_mm_for_cpu": _int4_product,
    "aten::_weight_int4pack_mm_with_scales_and_zeros": _int4_product,
    "aten::mkldnn_linear": _linear(0, 1),
    "aten::mkldnn_linear_backward_input": _linear(1, 2),
    "aten::mkldnn_linear_backward_weights": _linear(0, 2),
    "mkldnn::_linear_pointwise": _pointwise(_linear(0, 1), _linear(0, 2)),
    "mkl::_mkl_linear": _linear(0, 2),
    "onednn::qlinear_pointwise": _linear(0, 3),
    # Convolutions
    "aten::convolution": _any_convolution,
    "aten::_convolution": _any_convolution,
    "aten::convolution_overrideable": _any_convolution,
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::cudnn_convolution_relu": _convolution(3, 4, 5),
    "aten::cudnn_convolution_add_relu": _convolution(5, 6, 7),
    "aten::cudnn_convolution_transpose": _transposed_convolution(),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::miopen_convolution_relu": _convolution(3, 4, 5),
    "aten::miopen_convolution_add_relu": _convolution(5, 6, 7),
    "aten::miopen_convolution_transpose": _transposed_convolution(),
    "aten::miopen_depthwise_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::_mps_convolution": _convolution(4, 3, 5),
    "aten::_mps_convolution_transpose": _transposed_convolution(),
    "aten::_nnpack_spatial_convolution": _convolution(4, 3, None),
    "aten::thnn_conv2d": _convolution(4, 5, None),
    "aten::_slow_conv2d_forward": _convolution(4, 5, None),
    "aten::slow_conv3d": _convolution(4, 5, None),
    "aten::slow_conv3d_forward": _convolution(4, 5, None),
    "aten::slow_conv_dilated2d": _convolution(4, 5, 6),
    "aten::slow_conv_dilated3d": _convolution(4, 5, 6),
    "aten::slow_conv_transpose2d": _transposed_convolution(),
    "aten::slow_conv_transpose3d": _transposed_convolution(),
    "aten::_conv_depthwise2d": _convolution(4, 5, 6),
    "aten::conv_depthwise3d": _convolution(4, 5, 6),
    "mkldnn::_convolution_pointwise": _pointwise(
        _convolution(4, 3, 5), _convolution(5, 4, 6, weight=2)
    ),
    "mkldnn::_convolution_pointwise_": _convolution(5, 4, 6, x=1, weight=2),
    "mkldnn::_convolution_transpose_pointwise": _transposed_convolution(),
    "onednn::qconv_pointwise": _quantized_convolution,
    "onednn::qconv1d_pointwise": _quantized_convolution,
    "onednn::qconv2d_pointwise": _quantized_convolution,
    "onednn::qconv3d_pointwise": _quantized_convolution,
    "aten::convolution_backward": _convolution_backward(transposed=7),
    "aten::convolution_backward_overrideable": _convolution_backward(transposed=6),
    "aten::_slow_conv2d_backward": _convolution_backward(),
    "aten::mps_convolution_backward": _convolution_backward(1, 0),
    "aten::mps_convolution_transpose_backward": _convolution_backward(1, 0, transposed=True),
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
    "aten::_cudnn_rnn": _recurrent(1, 6),
    "aten::_cudnn_rnn_backward": _recurrent_backward(_recurrent(1, 10)),
    "aten::miopen_rnn": _recurrent(1, 5, projection=False),
    "aten::miopen_rnn_backward": _recurrent_backward(_recurrent(1, 10, projection=False)),
    "aten::mkldnn_rnn_layer": _recurrent_onednn(1),
    "aten::mkldnn_rnn_layer_backward": _recurrent_onednn(2),
    # Quantized products
    **dict.fromkeys(_PACKED, _packed_product),
}
