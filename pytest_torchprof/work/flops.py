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

from collections.abc import Mapping
from typing import Any, Final

from pytest_torchprof.core.reasons import Why
from pytest_torchprof.work.formulas.convolution import (
    any_convolution,
    convolution,
    convolution_backward,
    pointwise,
    quantized_convolution,
    transposed_convolution,
)
from pytest_torchprof.work.formulas.matmul import (
    combination,
    distances,
    distances_backward,
    grouped_product,
    int4_product,
    linear,
    packed_product,
    product,
    products,
    vector_product,
)
from pytest_torchprof.work.formulas.recurrent import recurrent, recurrent_backward, recurrent_onednn
from pytest_torchprof.work.formulas.sdpa import Attention
from pytest_torchprof.work.operands import Formula, Operands, UnreadValues

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


def missing_input(name: str, dims: Any, types: Any, concrete: Any, strides: Any = None) -> Why:
    """For a call with a formula but no number: what is missing.

    >>> missing_input("aten::convolution", [[1, 3, 224, 224], [64, 3, 7, 7]], None, None)
    <Why.NO_CONCRETE_INPUTS: 'no_concrete_inputs'>
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
