"""Labelled examples of the rule about kernels that are too small for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labelled.case import ANY, Examples
from support.chips import Gpu

if TYPE_CHECKING:
    from support.trace_styles import Event

EXAMPLES = Examples()

RULE = "small-grid"
HALF, BRAIN = "c10::Half", "c10::BFloat16"
FULL = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1"
NORM = (
    "void at::native::batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>"
    "(at::GenericPackedTensorAccessor<c10::BFloat16 const, 3ul>)"
)


def kernels(
    b: Gpu, name: str, kernel: str, blocks: int, us: float, count: int = 6, **more: Any
) -> Gpu:
    """Operators in a row, each with a kernel of so many blocks, launched ahead of the device."""
    for _ in range(count):
        with b.op(name, [[64, 4096], [4096, 512]], [BRAIN] * 2):
            b.launch(kernel, us, grid=(blocks, 1, 1), **more)
    return b


def filled(b: Gpu, count: int = 6, us: float = 200) -> Gpu:
    """Products that fill the device."""
    return kernels(b, "aten::mm", FULL, 4096, us, count)


# ------------------------------------------------------------------------------- positives


@EXAMPLES.positive(RULE, 8)
def batch_norm_of_64_channels_on_304_compute_units():
    return kernels(filled(Gpu("MI300X")), "aten::native_batch_norm_backward", NORM, 64, 3_000, 8)


class OfCallsAlone(Gpu):
    """A capture without operators: calls and kernels."""

    def document(self) -> Event:
        document = super().document()
        host = {"cpu_op", "user_annotation", "python_function"}
        events = [e for e in document["traceEvents"] if e.get("cat") not in host]
        return document | {"traceEvents": events}


@EXAMPLES.positive(RULE, 5)
def batch_norm_where_only_the_device_was_recorded():
    return kernels(filled(OfCallsAlone("MI210")), "aten::native_batch_norm", NORM, 64, 300, 5)


@EXAMPLES.positive(RULE, 3)
def sums_over_all_but_a_short_dimension():
    b = filled(Gpu("T4", strides=False), us=500)
    kernel = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, WelfordOps>>"
    for _ in range(3):
        with b.op("aten::var", [[8, 1_000_000], [], [], []], ["float", "", "Scalar", "Scalar"]):
            b.launch(kernel, 900, grid=(8, 1, 1))
    return b


@EXAMPLES.positive(RULE, 10)
def a_kernel_of_triton_with_one_program_per_head():
    b = filled(Gpu())
    for _ in range(10):
        with b.op("mylib::linear_recurrence"):
            b.launch("chunk_scan_fwd_kernel", 600, driver=True, grid=(16, 1, 1), block=(256, 1, 1))
    return b


@EXAMPLES.positive(RULE, ANY, duration=0.005)
def short_kernels_where_short_ones_count():
    return short_kernels_of_a_few_blocks()


@EXAMPLES.positive(RULE, ANY, share=0.02)
def a_twentieth_where_that_much_counts():
    return a_twentieth_of_the_time()


@EXAMPLES.positive(RULE, ANY, filled=0.99)
def all_but_a_few_multiprocessors_where_each_counts():
    return a_block_for_most_multiprocessors()


@EXAMPLES.positive(RULE, ANY, gain=0.0)
def between_long_pauses_where_any_gain_counts():
    return between_long_pauses()


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss(RULE, duration=0.02)
def short_kernels_of_a_few_blocks():
    return kernels(filled(Gpu(), 2, us=20), "aten::sum", "reduce_kernel<512, 1>", 8, 9, 40)


@EXAMPLES.near_miss(RULE, filled=0.75)
def a_block_for_most_multiprocessors():
    kernel = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
    return kernels(Gpu(), "aten::addmm", kernel, 120, 90, 30)


@EXAMPLES.near_miss(RULE)
def communication_with_a_few_channels():
    b = filled(Gpu("A100"))
    for _ in range(4):
        with b.op("record_param_comms"), b.op("nccl:all_reduce"):
            b.launch("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)", 2_000, stream=20,
                     grid=(24, 1, 1))  # fmt: skip
    b.launch("void at::multimem_all_reduce_kernel<c10::BFloat16, 16>", 900, grid=(8, 1, 1))
    return b


@EXAMPLES.near_miss(RULE)
def products_that_share_their_sums():
    b = filled(Gpu("A100"))
    kernels(b, "aten::mm", "nvjet_hsh_64x16_64x16_2x1_2cta_v_bz_splitK_TNT", 48, 200, 5)
    return kernels(b, "aten::mm", "void cutlass::device_kernel<GemmUniversalStreamK>", 54, 300, 5)


@EXAMPLES.near_miss(RULE)
def kernels_of_a_graph():
    b = filled(Gpu("A100"))
    b.graph_launch(["decode_attention_kernel", "gemv_kernel"] * 8, 90, grid=(16, 1, 1))
    return b


@EXAMPLES.near_miss(RULE, gain=0.01)
def between_long_pauses():
    """The device does nothing most of the time, so that it ends a little later hardly matters."""
    b = Gpu("MI300X")
    for _ in range(6):
        for _ in range(2):
            with b.op("aten::native_layer_norm_backward", [[8, 64, 128]]):
                b.launch("layer_norm_grad_input_kernel<float, float, false>", 26, grid=(8, 1, 1))
        b.advance(20_000)
    return b


@EXAMPLES.near_miss(RULE)
def three_streams_share_the_device():
    b = filled(Gpu("A100"))
    b.advance(2_000)
    for _ in range(5):
        for stream in (7, 13, 19):
            with b.op("aten::mm", [[256, 1024], [1024, 256]], [HALF] * 2):
                b.launch("ampere_h16816gemm_128x64_nn", 900, stream=stream, grid=(36, 1, 1))
    return b


@EXAMPLES.near_miss(RULE, share=0.1)
def a_twentieth_of_the_time():
    return kernels(filled(Gpu(), 20), "aten::nll_loss", "nll_loss_forward_reduce_2d", 1, 200, 1)


@EXAMPLES.near_miss(RULE)
def many_small_kinds_that_add_up_to_a_tenth():
    b = filled(Gpu("A100"), 30)
    for number in range(5):
        kernels(b, "aten::argmax", f"last_stage_{number}", 16, 100, 1)
    return b
