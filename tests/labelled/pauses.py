"""Labelled examples of the rules about garbage collections and the driver's memory."""

from __future__ import annotations

import gc

import torch
from labelled.case import ANY, Examples
from support.recorded import Recorded
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES, Event

EXAMPLES = Examples()
GC, DRIVER = "gc-pause", "allocator-retry"
COLLECT = "<built-in function collect>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1"
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class Early(TraceBuilder):
    """A trace of the summer of 2021."""

    def document(self) -> Event:
        return STYLES["schema_2021"](super().document())


def work(b: TraceBuilder, busy_ms: float, kernel: str = GEMM) -> None:
    """Two layers that the host launches at once."""
    for _ in range(2):
        with b.op("aten::linear", [[64, 512], [512, 512]], ["c10::BFloat16"] * 2):
            b.launch(kernel, busy_ms * 500)


def collect(b: TraceBuilder, ms: float, function: str = "train.py(12): train_epoch") -> None:
    """``gc.collect()`` in a function."""
    with b.python(function), b.python(COLLECT):
        b.advance(ms * 1000)


# ------------------------------------------------------------------------------------ gc-pause


@EXAMPLES.positive(GC, 4)
def a_collection_after_each_step():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(4):
        with b.annotation(f"ProfilerStep#{number}"):
            work(b, 20)
            collect(b, 110)
    work(b, 1)
    return b


@EXAMPLES.positive(GC, 5)
def a_collection_before_each_evaluation_on_rocm():
    b = TraceBuilder("AMD Instinct MI210", vendor="amd")
    work(b, 3, TENSILE)
    for _ in range(5):
        with b.python("evaluate.py(88): evaluate"):
            collect(b, 45, "memory.py(7): release")
            with b.module("nn.Module: BertModel_0"):
                work(b, 30, TENSILE)
    return b


@EXAMPLES.positive(GC, 3)
def annotated_collections_without_functions():
    b = TraceBuilder("NVIDIA A100-SXM4-80GB", (8, 0))
    work(b, 2)
    for _ in range(3):
        b.annotation("gc.collect", 60_000)
        work(b, 40)
    return b


@EXAMPLES.positive(GC, 6)
def a_server_that_collects_between_replays_of_a_graph():
    b = TraceBuilder("NVIDIA B200", (10, 0))
    with b.python("server/scheduler.py(410): event_loop"):
        for _ in range(6):
            b.graph_launch([GEMM] * 30, 100)
            with b.annotation("Python gc:collect"), b.python(COLLECT):
                b.advance(18_000)
    b.graph_launch([GEMM], 10)
    return b


@EXAMPLES.positive(GC, 3)
def collections_of_a_trainer_from_a_library():
    b = TraceBuilder("NVIDIA L40S", (8, 9))
    for _ in range(3):
        with b.python("transformers/trainer.py(2509): _inner_training_loop"):
            work(b, 25)
            collect(b, 70, "accelerate/utils/memory.py(40): clear_device_cache")
    work(b, 2)
    return b


@EXAMPLES.positive(GC, 8)
def generations_0_and_2_in_turn():
    b = TraceBuilder("Tesla T4", (7, 5))
    with b.python("rollout.py(5): <module>"):
        for number in range(8):
            work(b, 10, "turing_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn")
            b.python(COLLECT, 90_000 if number % 2 else 11_000)
    work(b, 1)
    return b


@EXAMPLES.positive(GC, ANY)
def collections_in_a_helper_on_the_cpu():
    layer = torch.nn.Linear(8, 8)

    def clear():
        return gc.collect()

    def steps():
        for batch in torch.rand(4, 2, 8):
            layer(batch).sum()
            clear()

    return Recorded(steps, shapes=False)


def collections(count: int, ms: float, busy_ms: float) -> TraceBuilder:
    b = TraceBuilder("NVIDIA H200")
    work(b, busy_ms)
    for _ in range(count):
        b.sync("cudaStreamSynchronize")
        collect(b, ms)
        work(b, busy_ms)
    return b


@EXAMPLES.positive(GC, 3, also="host-sync")
def collections_above_the_share():
    return collections(3, 10, 128)


@EXAMPLES.near_miss(GC, also="host-sync")
def collections_below_the_share():
    return collections(3, 10, 160)


@EXAMPLES.near_miss(GC, also="host-sync")
def two_collections_between_parts_of_a_program():
    return collections(2, 100, 100)


@EXAMPLES.near_miss(GC)
def one_before_and_one_after_training():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    work(b, 1)
    collect(b, 120)
    for _ in range(6):
        work(b, 30)
    collect(b, 300)
    return b


@EXAMPLES.near_miss(GC)
def collections_while_the_queue_is_long():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(2):
        work(b, 200)
    for _ in range(4):
        collect(b, 100)
        work(b, 120)
    return b


@EXAMPLES.near_miss(GC)
def what_torch_collects_before_it_captures_graphs():
    b = TraceBuilder("AMD Instinct MI300X", vendor="amd")
    work(b, 1, TENSILE)
    for _ in range(6):
        with b.python("server/graphs.py(70): capture_all"):
            collect(b, 80, "torch/cuda/graphs.py(170): __enter__")
        work(b, 2, TENSILE)
    return b


@EXAMPLES.near_miss(GC)
def a_query_that_is_collected():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    work(b, 4)
    for _ in range(5):
        with b.python("features.py(33): batch"):
            b.python(
                "<built-in method collect of builtins.PyLazyFrame object at 0x7f1d2c3b>", 40_000
            )
        work(b, 10)
    return b


@EXAMPLES.near_miss(GC)
def functions_of_similar_names():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    work(b, 4)
    for _ in range(5):
        with b.python("rollout.py(20): collect"):
            b.python("typing_extensions.py(3366): _collect_parameters", 15_000)
            b.python("<built-in function freeze>", 15_000)
        work(b, 10)
    return b


@EXAMPLES.near_miss(GC, also="host-sync")
def one_long_collection_beside_short_ones():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for ms in (0.02, 80, 0.02, 0.02):
        work(b, 10)
        b.sync("cudaStreamSynchronize")
        collect(b, ms)
    work(b, 10)
    return b


# ----------------------------------------------------------------------------- allocator-retry


def empty(b: TraceBuilder, *calls: tuple[str, float], name: str = "aten::empty") -> None:
    """An operator that allocates, with calls of the driver (and their ms) in it."""
    with b.op(name, [[]] * 6, ["ScalarList", *[""] * 5], ["[4096]", *[""] * 5]):
        for call, ms in calls:
            b.runtime(call, ms * 1000)


def uncached(vendor: str, chip: str, kernel: str) -> TraceBuilder:
    """Steps in which each tensor has memory of its own."""
    b = TraceBuilder(chip, vendor=vendor)
    for number in range(5):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(3):
                with b.op("aten::addmm", [[8], [8, 8], [8, 8]], ["float"] * 3):
                    empty(b, ("cudaMalloc", 0.2))
                    b.launch(kernel, 300)
                b.runtime("cudaFree", 1_500)
    work(b, 1)
    return b


@EXAMPLES.positive(DRIVER, 24)
def an_allocator_without_a_cache():
    return uncached("nvidia", "NVIDIA H100 80GB HBM3", GEMM)


@EXAMPLES.positive(DRIVER, 24)
def an_allocator_without_a_cache_on_rocm():
    return uncached("amd", "AMD Instinct MI300X", TENSILE)


@EXAMPLES.positive(DRIVER, 25)
def a_cache_that_is_emptied_in_each_step():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(8):
                empty(b)
            empty(b, ("cudaMalloc", 0.4))
            work(b, 6)
            with (
                b.python("train.py(50): train"),
                b.python("torch/cuda/memory.py(210): empty_cache"),
                b.python("<built-in function _cuda_emptyCache>"),
            ):
                for _ in range(4):
                    b.runtime("cudaFree", 2_000)
    work(b, 1)
    return b


@EXAMPLES.positive(DRIVER, 12)
def a_cache_that_is_emptied_after_each_batch_in_2021():
    b = Early("Tesla V100-DGXS-32GB", (7, 0))
    for _ in range(5):
        with b.annotation(FETCH):
            b.op("aten::set_", [[0]])
        for _ in range(6):
            empty(b)
        empty(b, ("cudaMalloc", 1))
        work(b, 20, "volta_sgemm_128x64_tn")
        for _ in range(2):
            b.runtime("cudaFree", 22_000)
    work(b, 1)
    return b


@EXAMPLES.positive(DRIVER, 16)
def an_allocator_that_tries_again():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(5):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(20):
                empty(b)
            work(b, 2)
            retry = ("cudaMalloc", 0.3), ("cudaFree", 4), ("cudaFree", 1), ("cudaMalloc", 0.9)
            empty(b, *retry, name="aten::empty_strided")
            work(b, 2)
    return b


@EXAMPLES.positive(DRIVER, 12)
def workspaces_of_convolutions_that_do_not_fit():
    b = TraceBuilder("NVIDIA L4", (8, 9))
    for _ in range(5):
        for _ in range(9):
            empty(b)
        with b.op("aten::cudnn_convolution", [[8, 64, 56, 56], [64, 64, 3, 3]]):
            b.runtime("cudaFree", 6_000)
            b.runtime("cudaFree", 500)
            b.runtime("cudaMalloc", 700)
            b.launch("sm86_xmma_fprop_implicit_gemm_f16f16_f16f32", 4_000)
        with b.annotation("Optimizer.step#AdamW.step"):
            b.op("aten::_fused_adamw_", [[64, 64, 3, 3]])
    work(b, 1)
    return b


@EXAMPLES.positive(DRIVER, 20)
def segments_that_are_mapped_anew():
    b = TraceBuilder("NVIDIA H200")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(10):
                empty(b)
            work(b, 0.5)
            maps = ("cuMemUnmap", 1), ("cuMemRelease", 0.2), ("cuMemCreate", 0.5), ("cuMemMap", 0.1)
            empty(b, *maps)
            work(b, 0.5)
    return b


def one_tensor(*calls: tuple[str, float]) -> TraceBuilder:
    """Steps in which a single tensor is allocated, by these calls."""
    b = TraceBuilder("NVIDIA A100-SXM4-80GB", (8, 0))
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            work(b, 0.1)
            empty(b, *calls)
    work(b, 1)
    return b


@EXAMPLES.positive(DRIVER, 10)
def an_expandable_segment_that_grows_by_one_tensor():
    return one_tensor(("cuMemCreate", 0.4), ("cuMemMap", 0.2))


@EXAMPLES.positive(DRIVER, 5)
def a_tensor_that_is_kept_in_each_step():
    return one_tensor(("cudaMalloc", 0.6))


@EXAMPLES.positive(DRIVER, 7)
def keys_and_values_that_grow_with_each_word():
    b = TraceBuilder("AMD Instinct MI250X", vendor="amd")
    for number in range(8):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(6):
                empty(b)
            with b.op("aten::cat", [[[1, 8, 64 + number, 64], [1, 8, 1, 64]], []]):
                b.runtime("cudaMalloc", 900)
                b.launch("CatArrayBatchedCopy", 40)
            work(b, 0.4, TENSILE)
    return b


def growing(steps: int, ms: float, busy_ms: float) -> TraceBuilder:
    """An allocation in each of the first steps, of eight."""
    b = TraceBuilder("NVIDIA A100-SXM4-80GB", (8, 0))
    for number in range(8):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(4):
                empty(b)
            if number < steps:
                empty(b, ("cudaMalloc", ms))
            work(b, busy_ms)
            b.advance(busy_ms * 1000)
    return b


@EXAMPLES.positive(DRIVER, 3)
def memory_that_grows_in_three_later_steps():
    return growing(4, 5, 5)


@EXAMPLES.near_miss(DRIVER)
def memory_that_grows_in_two_later_steps():
    return growing(3, 9, 5)


@EXAMPLES.positive(DRIVER, 5)
def growth_above_the_share():
    return growing(6, 5, 50)


@EXAMPLES.near_miss(DRIVER)
def growth_below_the_share():
    return growing(6, 5, 62)


@EXAMPLES.near_miss(DRIVER)
def memory_of_the_first_step():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(30):
                empty(b, *(() if number else [("cudaMalloc", 2)]))
            work(b, 4)
    return b


@EXAMPLES.near_miss(DRIVER)
def algorithms_that_are_tried_in_the_first_step():
    b = Early("Tesla V100-DGXS-32GB", (7, 0))
    for number in range(5):
        with b.annotation(FETCH):
            b.op("aten::set_", [[0]])
        for _ in range(6):
            with b.op("aten::cudnn_convolution", [[8, 64, 56, 56], [64, 64, 3, 3]]):
                if not number:
                    b.runtime("cudaMalloc", 1_000)
                    b.runtime("cudaFree", 20_000)
                b.launch("volta_scudnn_128x64_relu_medium_nn_v1", 3_000)
    return b


@EXAMPLES.near_miss(DRIVER)
def a_device_that_has_work_meanwhile():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(2):
        work(b, 40)
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            empty(b, ("cudaMalloc", 5))
            work(b, 30)
    return b


@EXAMPLES.near_miss(DRIVER)
def memory_from_the_pool_of_the_driver():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(5):
                empty(b, ("cudaMallocAsync", 0.5), ("cudaFreeAsync", 0.5))
            work(b, 2)
    return b


@EXAMPLES.near_miss(DRIVER)
def pinned_memory_of_the_host():
    b = TraceBuilder("AMD Instinct MI300X", vendor="amd")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            with b.op("aten::pin_memory", [[64, 3, 224, 224], []]):
                b.runtime("cudaHostMalloc", 4_000)
                b.runtime("cudaHostFree", 1_000)
            work(b, 5, TENSILE)
    return b


@EXAMPLES.near_miss(DRIVER)
def cheap_calls_in_every_step():
    b = TraceBuilder("NVIDIA H200")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(3):
                empty(b)
            empty(b, ("cudaMalloc", 0.1))
            work(b, 10)
            b.advance(10_000)
    return b
