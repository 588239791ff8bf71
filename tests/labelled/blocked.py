"""Labelled examples of the rule about copies to the device for which the host waits."""

from __future__ import annotations

from contextlib import ExitStack

from labelled.case import Examples
from labelled.kineto import Former
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES, Event

EXAMPLES = Examples()
RULE = "blocked-copy"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1"


class Early(TraceBuilder):
    """A trace of the summer of 2021."""

    def document(self) -> Event:
        return STYLES["schema_2021"](super().document())


def layers(b: TraceBuilder, busy_ms: float, kernel: str = GEMM, count: int = 4) -> None:
    """What the host launches at once, and the device takes some time for."""
    for _ in range(count):
        with b.op("aten::linear", [[128, 1024], [1024, 1024]], ["c10::BFloat16"] * 2):
            b.launch(kernel, busy_ms * 1000 / count)


def up(
    b: TraceBuilder, size: int = 512, outer: str = "aten::to", *, blocking: bool = False
) -> None:
    """``.to("cuda")`` of a small tensor in pageable memory."""
    dims, types = [[size // 8], [], []], ["long int", "", ""]
    with ExitStack() as stack:
        for name in (outer, "aten::_to_copy", "aten::copy_"):
            stack.enter_context(b.op(name, dims, types))
        b.memcpy("HtoD", size, device_us=2, blocking=blocking)
        if not blocking:
            b.sync("cudaStreamSynchronize")


@EXAMPLES.positive(RULE, 4)
def blocking_calls_on_rocm():
    b = TraceBuilder("AMD Instinct MI300X", vendor="amd")
    for number in range(4):
        with b.annotation(f"ProfilerStep#{number}"):
            layers(b, 9, TENSILE)
            up(b, 4096, blocking=True)
            b.advance(3_000)
            layers(b, 2, TENSILE)
    return b


@EXAMPLES.positive(RULE, 6)
def a_recording_of_2021_with_cuda_memcpy():
    b = Early("Tesla V100-SXM2-32GB", (7, 0))
    for _ in range(6):
        layers(b, 4, "volta_sgemm_128x64_tn")
        with b.op("aten::copy_", [[16], [16], []], ["float", "float", ""]):
            b.memcpy("HtoD", 64, device_us=3, blocking=True)
        b.advance(900)
    layers(b, 1)
    return b


@EXAMPLES.positive(RULE, 4)
def scalars_of_a_schedule_before_a_compiled_step():
    b = TraceBuilder("NVIDIA H200")
    for _ in range(5):
        with b.op("aten::fill_", [[], []]), b.op("aten::copy_", [[], [], []]):
            b.memcpy("HtoD", 4, device_us=1.2)
            b.sync("cudaStreamSynchronize")
        b.advance(700)
        with b.annotation("Torch-Compiled Region: 0/0"):
            b.launch("triton_poi_fused_add_mul_0", 2_000, driver=True)
            b.launch("triton_red_fused_mean_1", 2_000, driver=True)
    return b


def copies(count: int, busy_ms: float, late_ms: float) -> TraceBuilder:
    """Blocking copies, each after some work and before a pause of the host."""
    b = TraceBuilder("NVIDIA H200")
    for _ in range(count):
        layers(b, busy_ms)
        up(b)
        b.advance(late_ms * 1000)
    layers(b, 0.1)
    return b


@EXAMPLES.positive(RULE, 6)
def copies_that_cost_more_than_the_share():
    return copies(6, 16.6, 1)


@EXAMPLES.near_miss(RULE)
def copies_that_cost_less_than_the_share():
    return copies(6, 21, 1)


@EXAMPLES.positive(RULE, 3)
def three_short_waits():
    return copies(3, 5, 4)


@EXAMPLES.near_miss(RULE)
def two_short_waits():
    return copies(2, 5, 4)


@EXAMPLES.positive(RULE, 1)
def one_wait_that_is_long_enough():
    return copies(1, 22, 8)


@EXAMPLES.near_miss(RULE)
def one_wait_that_is_not_so_long():
    return copies(1, 17, 8)


@EXAMPLES.positive(RULE, 4)
def idle_times_that_add_up_to_enough():
    return copies(4, 0.2, 0.024)


@EXAMPLES.near_miss(RULE)
def idle_times_that_add_up_to_little():
    return copies(4, 0.2, 0.017)


@EXAMPLES.near_miss(RULE)
def the_last_copies_of_a_program():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    layers(b, 30)
    for _ in range(4):
        up(b)
    b.advance(90_000)
    return b


@EXAMPLES.near_miss(RULE, also="pageable-copy")
def batches_in_pageable_memory():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(5):
        layers(b, 5)
        up(b, 19_267_584)
        b.advance(2_000)
    layers(b, 1)
    return b


@EXAMPLES.near_miss(RULE, also="extra-cuda-copy")
def masks_that_are_filled_on_the_cpu():
    b = Former(frames=False)
    for _ in range(5):
        layers(b, 5)
        b.made("ones", (64,))
        b.moved((64,))
        b.advance(2_000)
    layers(b, 1)
    return b


@EXAMPLES.near_miss(RULE)
def copies_of_a_host_that_has_nothing_else_to_do():
    b = TraceBuilder("NVIDIA H200")
    for _ in range(6):
        up(b)
        layers(b, 12)
    return b
