"""Labelled examples of the rules about matrix products and attention on a device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from labelled.case import Examples
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.names import REGION

EXAMPLES = Examples()

H100 = "NVIDIA H100 80GB HBM3"
FLOAT, DOUBLE, HALF, BF16 = "float", "double", "c10::Half", "c10::BFloat16"
#: Kernels as real traces name them.
SGEMM = "ampere_sgemm_128x64_nn"
XMMA_TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_stage4_warpsize2x2x1"
XMMA_BF16 = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment"
)
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>"
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>"
NAMELESS = "void Kernel2<unknown>"


def product(
    b: TraceBuilder,
    name: str,
    left: Sequence[int],
    right: Sequence[int],
    *kernels: str,
    dtype: str = FLOAT,
    strides: Sequence[Sequence[int]] | None = None,
) -> None:
    """A product operator and the kernels it launches; what is added to it has the result's size."""
    dims, more = [list(left), list(right)], None if strides is None else list(strides)
    if "add" in name:
        dims.insert(0, [*left[:-1], right[-1]])
    with b.op(name, dims, [dtype] * len(dims), strides=more):
        for kernel in kernels:
            b.launch(kernel)


def one(
    name: str, left: Sequence[int], right: Sequence[int], *kernels: str, dtype: str = FLOAT,
    device: str | None = H100, capability: tuple[int, int] = (9, 0),
    strides: Sequence[Sequence[int]] | None = None, allow_tf32: bool | None = None,
) -> TraceBuilder:  # fmt: skip
    """A trace of one product; a live one where the flag is given, which others do not note."""
    b = TraceBuilder(device, capability)
    live = allow_tf32 is not None
    if live:
        b.facts(Facts(allow_tf32=allow_tf32))
    with b.annotation(REGION) if live else nullcontext():
        product(b, name, left, right, *kernels, dtype=dtype, strides=strides)
    return b


# ------------------------------------------------------------------------------- fp32-matmul


@EXAMPLES.positive("fp32-matmul")
def a_kernel_that_says_nothing_while_the_flag_is_off():
    return one("aten::mm", [64, 64], [64, 64], "cutlass_gemm_of_nobody", allow_tf32=False)


@EXAMPLES.positive("fp32-matmul")
def a_trace_without_device_properties_whose_kernel_is_for_ampere():
    b = one("aten::mm", [64, 64], [64, 64], SGEMM)
    b.metadata("deviceProperties", [])
    return b


@EXAMPLES.positive("fp32-matmul")
def a_dimension_of_eight():
    return one("aten::mm", [64, 8], [8, 64], SGEMM)


@EXAMPLES.positive("fp32-matmul", smallest_dimension=4)
def a_dimension_of_four_where_four_is_enough():
    return one("aten::mm", [64, 4], [4, 64], SGEMM)


@EXAMPLES.near_miss("fp32-matmul")
def a_dimension_of_seven():
    return one("aten::mm", [64, 7], [7, 64], SGEMM)


@EXAMPLES.near_miss("fp32-matmul")
def a_product_in_tf32():
    return one("aten::mm", [100, 100], [100, 100], XMMA_TF32)


@EXAMPLES.near_miss("fp32-matmul")
def a_kernel_that_says_nothing_and_no_flag():
    return one("aten::mm", [100, 100], [100, 100], NAMELESS)


@EXAMPLES.near_miss("fp32-matmul")
def the_flag_is_on_and_cublas_takes_fp32():
    return one("aten::mm", [16, 16], [16, 16], SGEMM, allow_tf32=True)


# --------------------------------------------------------------------------- unaligned-matmul


@EXAMPLES.positive("unaligned-matmul")
def an_inner_dimension_of_100():
    return one("aten::mm", [64, 100], [100, 64], ALIGN1, dtype=BF16)


@EXAMPLES.near_miss("unaligned-matmul")
def a_number_of_rows_alone():
    return one("aten::addmm", [788, 768], [768, 768], XMMA_BF16, dtype=BF16)


@EXAMPLES.near_miss("unaligned-matmul")
def a_gradient_of_weights_over_197_tokens_where_the_trace_has_no_strides():
    return one("aten::mm", [768, 197], [197, 768], XMMA_BF16, dtype=BF16, strides=[[], []])


@EXAMPLES.positive("unaligned-matmul")
def two_features_where_only_the_kernel_says_more():
    return one("aten::mm", [2048, 2], [2, 128], ALIGN1, dtype=BF16, strides=[[], []])


@EXAMPLES.positive("unaligned-matmul", multiple=16)
def twenty_four_where_sixteen_is_asked_for():
    return one("aten::mm", [32, 24], [24, 32], XMMA_BF16, dtype=BF16)


@EXAMPLES.positive("unaligned-matmul", smallest_dimension=1)
def decoding_one_token_where_vectors_count():
    return one("aten::mm", [1, 2880], [2880, 25137], GEMV, dtype=BF16)


@EXAMPLES.near_miss("unaligned-matmul")
def a_product_with_a_vector():
    return one("aten::addmm", [5184, 1024], [1024, 1], GEMV, dtype=BF16)


# ----------------------------------------------------------------------------- math-attention


def attention(
    b: TraceBuilder, query: Sequence[int], dtype: str = BF16, *, key: Sequence[int] | None = None,
    mask: Sequence[int] = (), dropout: str = "0.", kernels: bool = True,
    form: str = "aten::_scaled_dot_product_attention_math", gemm: str = SGEMM,
) -> None:  # fmt: skip
    """A call of attention that comes down to this form of it."""
    key = list(key or query)
    dims = [list(query), key, key, list(mask), [], [], [], []]
    types = [dtype, dtype, dtype, dtype if mask else "", "Scalar", "Scalar", "", "Scalar"]
    message = ["", "", "", "", dropout, "False", "", "False"]
    flat, keys = [query[-2], query[-1]], [key[-2], key[-1]]
    batch = 1
    for size in query[:-2]:
        batch *= size
    with (
        b.op("aten::scaled_dot_product_attention", dims, types, message),
        b.op(form, [*dims, []], [*types, ""], [*message, ""]),
    ):
        if not kernels:
            return
        if not form.endswith("math"):
            b.launch("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>")
            return
        # Half precision is computed in single: its products are none of the user's.
        inner = FLOAT if dtype in (HALF, BF16) else dtype
        name = "magma_dgemm" if dtype == DOUBLE else gemm
        with b.op("aten::matmul", [list(query), [*key[:-2], key[-1], key[-2]]], [inner] * 2):
            product(b, "aten::bmm", [batch, *flat], [batch, keys[1], keys[0]], name, dtype=inner)
        with (
            b.op("aten::_safe_softmax", [[*query[:-1], key[-2]]], [inner]),
            b.op("aten::_softmax", [[*query[:-1], key[-2]]], [inner]),
        ):
            b.launch("void cunn_SoftMaxForward<4, float, float, float>")
        with b.op("aten::matmul", [[*query[:-1], key[-2]], key], [inner] * 2):
            left = [batch, flat[0], keys[0]]
            product(b, "aten::bmm", left, [batch, *keys], name, dtype=inner)


FLASH = "aten::_scaled_dot_product_flash_attention"


@EXAMPLES.positive("math-attention")
def three_dimensions_in_bf16():
    b = TraceBuilder(H100)
    attention(b, [8, 1024, 64])
    return b


@EXAMPLES.positive("math-attention")
def a_head_of_97_in_fp16():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    attention(b, [2, 8, 128, 97], HALF)
    return b


@EXAMPLES.positive("math-attention")
def fp32_with_a_mask():
    b = TraceBuilder(H100)
    attention(b, [2, 8, 128, 64], FLOAT, mask=[2, 8, 128, 128])
    return b


@EXAMPLES.positive("math-attention")
def fp16_on_a_v100():
    b = TraceBuilder("Tesla V100-SXM2-32GB", (7, 0))
    attention(b, [2, 8, 128, 64], HALF, gemm="volta_sgemm_128x64_nn")
    return b


@EXAMPLES.positive("math-attention")
def bf16_on_an_mi300():
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    attention(b, [2, 8, 128, 64], gemm="Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT64x64x16")
    return b


@EXAMPLES.positive("math-attention")
def queries_and_keys_of_different_lengths():
    b = TraceBuilder(H100)
    attention(b, [2, 8, 7, 64], HALF, key=[2, 8, 100, 64])
    return b


@EXAMPLES.near_miss("math-attention")
def flash_attention():
    b = TraceBuilder(H100)
    attention(b, [2, 8, 128, 64], form=FLASH)
    return b


@EXAMPLES.near_miss("math-attention")
def fp64_has_no_other_form():
    b = TraceBuilder(H100)
    attention(b, [2, 8, 128, 64], DOUBLE)
    return b


@EXAMPLES.near_miss("math-attention")
def bf16_on_a_v100_has_no_other_form():
    b = TraceBuilder("Tesla V100-SXM2-32GB", (7, 0))
    attention(b, [2, 8, 128, 64], gemm="volta_sgemm_128x64_nn")
    return b


@EXAMPLES.near_miss("math-attention")
def an_amd_chip_without_a_fused_form():
    b = TraceBuilder("AMD Instinct MI100", (9, 0), vendor="amd")
    attention(b, [2, 8, 128, 64], HALF, gemm="Cijk_Ailk_Bljk_S_B_MT64x64x16")
    return b


@EXAMPLES.near_miss("math-attention")
def nothing_is_known_of_the_device():
    b = TraceBuilder("")
    b.metadata("deviceProperties", [])
    attention(b, [2, 8, 128, 64], DOUBLE)
    attention(b, [2, 8, 128, 64], FLOAT, gemm="magma_sgemmEx_kernel")
    return b


@EXAMPLES.near_miss("math-attention")
def on_the_cpu_beside_work_on_the_device():
    b = TraceBuilder(H100)
    attention(b, [2, 8, 128, 64], FLOAT, kernels=False)
    b.launch("void at::native::vectorized_elementwise_kernel<4, relu>")
    return b


@EXAMPLES.near_miss("math-attention")
def attention_that_a_module_writes_out_itself():
    b = TraceBuilder(H100)
    product(b, "aten::bmm", [16, 128, 64], [16, 64, 128], XMMA_BF16, dtype=BF16)
    with b.op("aten::_softmax", [[16, 128, 128]], [BF16]):
        b.launch("void cunn_SoftMaxForward<4, float, float, float>")
    product(b, "aten::bmm", [16, 128, 128], [16, 128, 64], XMMA_BF16, dtype=BF16)
    return b
