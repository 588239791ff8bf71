"""Labelled examples of the rule about communication that nothing hides."""

from __future__ import annotations

from typing import Any

from labelled.case import Examples
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()
RULE = "exposed-communication"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1"
COMPUTING, SENDING = 7, 20


def job(
    chip: str, ranks: int, capability: tuple[int, int] = (9, 0), **options: Any
) -> TraceBuilder:
    """The trace of one of several ranks."""
    b = TraceBuilder(chip, capability, **options)
    b.metadata("distributedInfo", {"backend": "nccl", "rank": 0, "world_size": ranks})
    return b


def layers(b: TraceBuilder, ms: float, kernel: str = GEMM) -> None:
    """Two layers."""
    for _ in range(2):
        with b.op("aten::linear", [[64, 512], [512, 512]], ["c10::BFloat16"] * 2):
            b.launch(kernel, ms * 500, COMPUTING)


def sent(
    b: TraceBuilder,
    name: str,
    kernel: str,
    ms: float,
    *,
    awaited: bool = True,
    size: int = 4096,
    noted: str = "",
) -> None:
    """A collective after what was computed; what is computed next waits for it, or does not."""
    b.wait(SENDING, COMPUTING)
    more = {"Collective name": noted, "Group size": 8} if noted else None
    with b.op(name, [[[size, 512]], []], ["TensorList", ""]):  # noqa: SIM117
        with b.op("record_param_comms", [[[size, 512]], []], ["TensorList", ""], args=more):
            b.launch(kernel, ms * 1000, SENDING)
    if awaited:
        b.wait(COMPUTING, SENDING)


def reduced(b: TraceBuilder, ms: float, **options: Any) -> None:
    """A bucket of gradients, in the hook that finds it full."""
    with b.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
        sent(b, "c10d::allreduce_", REDUCE, ms, **options)


# ----------------------------------------------------------------------------------- positives


@EXAMPLES.positive(RULE, 4)
def gradients_in_one_bucket():
    b = job("NVIDIA A100-SXM4-80GB", 8, (8, 0))
    for number in range(4):
        with b.annotation(f"ProfilerStep#{number}"):
            with b.annotation("DistributedDataParallel.forward"):
                layers(b, 4)
            layers(b, 8)
            reduced(b, 6)
            layers(b, 1)
    return b


@EXAMPLES.positive(RULE, 12)
def each_gradient_of_a_compiled_backward_pass():
    b = job("Tesla V100-SXM2-32GB", 2, (7, 0))
    for number in range(4):
        with b.annotation(f"ProfilerStep#{number}"):
            layers(b, 4, "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn")
            name = "CompiledFunctionBackward"
            with b.op(f"autograd::engine::evaluate_function: {name}"), b.op(name):
                for _ in range(3):
                    sent(b, "c10d::allreduce_", REDUCE, 1)
            layers(b, 1, "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn")
    return b


@EXAMPLES.positive(RULE, 8)
def activations_of_tensor_parallel_layers():
    b = job("NVIDIA H100 80GB HBM3", 8)
    for _ in range(8):
        layers(b, 1)
        with b.op("_ReduceFromModelParallelRegion"):
            sent(b, "c10d::allreduce_", REDUCE, 0.6)
    layers(b, 1)
    return b


@EXAMPLES.positive(RULE, 7)
def shards_of_fsdp_that_nobody_prefetches():
    b = job("NVIDIA H200", 16)
    for _ in range(4):
        with b.annotation("FullyShardedDataParallel.forward"):
            with b.annotation("FSDP::all_gather"):
                sent(b, "c10d::_allgather_base_", GATHER, 2)
            layers(b, 3)
        with b.annotation("FullyShardedDataParallel._post_backward_hook"):
            sent(b, "c10d::_reduce_scatter_base_", SCATTER, 2)
    layers(b, 1)
    return b  # the first one is before all computation


@EXAMPLES.positive(RULE, 2, also="half-unused")
def embeddings_of_one_step_that_are_exchanged():
    b = job("Tesla V100-SXM2-32GB", 8, (7, 0))
    with b.annotation("ProfilerStep#10"):
        layers(b, 0.4, "volta_sgemm_128x64_tn")
        with b.annotation("## alltoall_fwd_single ##"):
            sent(b, "c10d::alltoall_base_", SEND, 2)
        layers(b, 1, "volta_sgemm_128x64_tn")
        with b.op("All2All_Pooled_WaitBackward"):
            sent(b, "c10d::alltoall_base_", SEND, 1)
        layers(b, 0.3, "volta_sgemm_128x64_tn")
    return b


@EXAMPLES.positive(RULE, 6)
def a_rank_that_waits_for_the_others():
    b = job("AMD Instinct MI250X", 64, vendor="amd")
    for number, ms in enumerate((2, 18, 25, 4, 31, 12)):
        with b.annotation(f"ProfilerStep#{number}"):
            layers(b, 20, TENSILE)
            reduced(b, ms)
    layers(b, 1)
    return b


@EXAMPLES.positive(RULE, 10)
def custom_kernels_of_a_server():
    b = job("NVIDIA L40S", 2, (8, 9))
    kernel = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)"
    for _ in range(10):
        layers(b, 0.3)
        with b.op("_C_custom_ar::all_reduce", [[16, 4096]]):
            b.launch(kernel, 40, COMPUTING)
    layers(b, 1)
    return b


@EXAMPLES.positive(RULE, 4)
def stages_of_a_pipeline():
    b = job("NVIDIA H100 80GB HBM3", 4)
    for _ in range(4):
        layers(b, 6)
        sent(b, "c10d::recv_", SEND, 5)
    layers(b, 6)
    return b


def shares(busy_ms: float, late_ms: float) -> TraceBuilder:
    """Collectives of 1 ms; the host is late with what follows, by so much of it."""
    b = job("NVIDIA H200", 8)
    layers(b, 1)
    for _ in range(3):
        sent(b, "c10d::allreduce_", REDUCE, 1)
        b.advance(max(b._streams[SENDING] - b.now, 0) / 1000 - 1000 + late_ms * 1000)
        layers(b, busy_ms)
    return b


@EXAMPLES.positive(RULE, 3)
def exposed_for_more_than_the_share():
    return shares(17, 0)


@EXAMPLES.near_miss(RULE)
def exposed_for_less_than_the_share():
    return shares(21, 0)


@EXAMPLES.positive(RULE, 3)
def more_to_gain_than_is_worth_a_change():
    return shares(9, 0.88)


@EXAMPLES.near_miss(RULE)
def less_to_gain_than_is_worth_a_change():
    return shares(9, 0.905)


# ----------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss(RULE)
def the_first_broadcast_of_weights():
    b = job("NVIDIA H100 80GB HBM3", 8)
    with b.op("aten::normal_", [[512, 512]]):
        b.launch("distribution_elementwise_grid_stride_kernel", 200, COMPUTING)
    for _ in range(3):
        sent(b, "c10d::broadcast_", "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage)", 4)
    for _ in range(4):
        layers(b, 10)
    return b


@EXAMPLES.near_miss(RULE)
def a_barrier_and_a_sum_at_the_end():
    b = job("AMD Instinct MI300X", 8, vendor="amd")
    for _ in range(4):
        layers(b, 10, TENSILE)
    sent(b, "c10d::barrier", GENERIC, 30, noted="barrier")
    sent(b, "c10d::allreduce_", GENERIC, 20, noted="allreduce")
    return b


@EXAMPLES.near_miss(RULE)
def a_group_of_one():
    b = job("NVIDIA H100 80GB HBM3", 1)
    for _ in range(4):
        layers(b, 4)
        reduced(b, 2)
    layers(b, 4)
    return b


@EXAMPLES.near_miss(RULE)
def weights_that_are_gathered_for_one_checkpoint():
    b = job("NVIDIA H200", 8)
    for number in range(5):
        with b.annotation(f"ProfilerStep#{number}"):
            layers(b, 10)
            if number == 2:
                for _ in range(4):
                    sent(b, "c10d::_allgather_base_", GATHER, 6)
            layers(b, 10)
    return b


@EXAMPLES.near_miss(RULE)
def kernels_that_gather_and_reduce_on_one_device():
    b = job("NVIDIA H100 80GB HBM3", 8)
    for _ in range(5):
        layers(b, 2)
        with b.op("aten::index_select", [[512, 64], [], [128]]):
            b.launch("void at::native::vectorized_gather_kernel<16, long>(char*, char*)", 2_000)
        with b.op("aten::sum", [[512, 64]]):
            b.launch("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", 2_000)
    reduced(b, 0.2)
    layers(b, 2)
    return b


@EXAMPLES.near_miss(RULE)
def gradients_that_gloo_sums_on_the_cpu():
    b = job("NVIDIA A100-SXM4-40GB", 4, (8, 0))
    for _ in range(3):
        layers(b, 3)
        with b.op("c10d::allreduce_", [[[4096]], []]), b.op("gloo:all_reduce", [[4096]]):
            b.advance(9_000)
    layers(b, 3)
    return b
