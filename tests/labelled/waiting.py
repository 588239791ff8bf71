"""Labelled examples of the rules about host and device waiting for each other."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from labelled.case import Examples
from labelled.kineto import OfTheDeviceAlone
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES, Event

from pytest_torchprof.capture.clock import NO_COUNTER, Round
from pytest_torchprof.session.measurement import Rounds
from pytest_torchprof.trace.names import REGION

EXAMPLES = Examples()

A100 = "NVIDIA A100-SXM4-40GB"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"
READ = ("aten::is_nonzero", "aten::item", "aten::_local_scalar_dense")
MOVE = ("aten::to", "aten::_to_copy", "aten::copy_")


def timed(wall_ms: float) -> Round:
    wall_ns = round(wall_ms * 1e6)
    return Round(wall_ns, wall_ns, NO_COUNTER)


def gpu() -> TraceBuilder:
    return TraceBuilder(A100, (8, 0))


def work(b: TraceBuilder, count: int = 3, device_us: float = 30, host_us: float = 5) -> None:
    """Operators that keep the device busy."""
    for _ in range(count):
        with b.op("aten::relu", [[1024, 1024]]):
            b.launch(RELU, device_us, host_us=host_us)


def read(
    b: TraceBuilder, *names: str, size: int = 4, pageable: bool = True, wait: bool = True,
    blocking: bool = False, kind: str = "DtoH",
) -> None:  # fmt: skip
    """The operators, outermost first, and a copy in the innermost one."""
    with ExitStack() as scopes:
        for name in names:
            scopes.enter_context(b.op(name, [[1]]))
        b.memcpy(kind, size, pageable, blocking=blocking)
        if wait:
            b.sync("cudaStreamSynchronize")


class OfRoctracer(TraceBuilder):
    """A trace as kineto wrote it on ROCm until 2024."""

    def document(self) -> Event:
        return STYLES["roctracer"](super().document())


# ---------------------------------------------------------------------------------- host-sync


@EXAMPLES.positive("host-sync")
def item():
    b = gpu()
    work(b)
    read(b, "aten::item", "aten::_local_scalar_dense")
    return b


@EXAMPLES.positive("host-sync", 3)
def if_tensor_in_three_steps():
    b = gpu()
    for i in range(3):
        with b.annotation(f"ProfilerStep#{i}"):
            work(b)
            read(b, *READ, size=1)
    return b


@EXAMPLES.positive("host-sync", 2)
def a_mask_as_an_index_and_where():
    b = gpu()
    work(b)
    read(b, "aten::index", "aten::nonzero")
    read(b, "aten::where", "aten::nonzero_numpy", "aten::nonzero")
    return b


@EXAMPLES.positive("host-sync")
def cpu():
    b = gpu()
    work(b)
    read(b, *MOVE, size=192)
    return b


@EXAMPLES.positive("host-sync")
def a_pageable_copy_waits_though_nobody_synchronises():
    b = gpu()
    work(b)
    read(b, *MOVE, size=192, wait=False)
    return b


@EXAMPLES.positive("host-sync")
def a_blocking_copy_by_the_older_call():
    b = gpu()
    work(b)
    read(b, *MOVE, size=192, wait=False, blocking=True)
    return b


@EXAMPLES.positive("host-sync", 2)
def synchronise_within_the_measured_region():
    b = gpu()
    with b.annotation(b.region):
        work(b)
        b.sync("cudaDeviceSynchronize")
        work(b)
        b.sync("cudaStreamSynchronize")
        work(b)
    b.sync("cudaDeviceSynchronize")  # that is not
    return b


@EXAMPLES.positive("host-sync", 2)
def synchronise_around_each_step_of_a_stored_trace():
    b = gpu()
    for i in range(3):
        with b.annotation(f"ProfilerStep#{i}"):
            b.sync("cudaDeviceSynchronize")
            work(b)
    b.sync("cudaDeviceSynchronize")  # the profiler's
    return b


@EXAMPLES.positive("host-sync")
def the_last_but_one_synchronisation_of_a_stored_trace():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync")
def waiting_for_an_event():
    b = gpu()
    work(b)
    b.runtime("cudaEventRecord")
    b.sync("cudaEventSynchronize")
    b.runtime("cudaEventElapsedTime")
    work(b)
    return b


@EXAMPLES.positive("host-sync")
def a_copy_to_pinned_memory_and_a_synchronisation_for_it():
    b = gpu()
    with b.annotation("ProfilerStep#1"):
        work(b)
        read(b, *MOVE, size=4096, pageable=False, wait=False)
        b.sync("cudaStreamSynchronize")
        work(b)
    return b


@EXAMPLES.positive("host-sync")
def item_on_hip_whose_copy_has_another_name():
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    work(b)
    read(b, "aten::item", "aten::_local_scalar_dense", kind="DtoD", blocking=True, wait=False)
    return b


@EXAMPLES.positive("host-sync", 2)
def two_copies_and_four_waits_in_one_operator():
    b = gpu()
    work(b)
    with b.op("aten::_unique2", [[100]]):
        for _ in range(2):
            b.memcpy("DtoH", 8)
            b.sync("cudaStreamSynchronize")
            b.sync("cudaStreamSynchronize")
    return b


@EXAMPLES.positive("host-sync", 2)
def an_operator_that_synchronises_without_a_copy():
    b = gpu()
    work(b)
    with b.op("mylib::sort", [[100]]):
        b.launch("sort_kernel")
        b.sync("cudaStreamSynchronize")
        b.launch("merge_kernel")
        b.sync("cudaStreamSynchronize")
    return b


@EXAMPLES.positive("host-sync")
def a_lap_between_two_parts_whose_launches_are_lost():
    b = gpu()
    for _ in range(2):
        b.kernel_without_runtime(RELU, 300)
        b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync", 2)
def two_reads_without_operators():
    b = OfTheDeviceAlone(A100, (8, 0))
    work(b)
    read(b, *READ)
    work(b)
    read(b, *MOVE, size=192, pageable=False)
    work(b)
    return b


@EXAMPLES.positive("host-sync", 2)
def a_copy_and_a_synchronization_of_all_without_operators():
    b = OfTheDeviceAlone(A100, (8, 0))
    for _ in range(2):
        work(b)
        read(b, *MOVE, pageable=False, wait=False)
        b.sync("cudaDeviceSynchronize")
    work(b)
    return b


@EXAMPLES.positive("host-sync", 2)
def a_lap_between_two_parts_on_rocm_before_2024():
    b = OfRoctracer("AMD Instinct MI300X", (9, 4), vendor="amd")
    for _ in range(2):
        work(b, 10, device_us=300)
        b.sync("cudaDeviceSynchronize")
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def synchronise_after_the_last_kernel_of_the_measured_region():
    b = gpu()
    with b.annotation(b.region):
        work(b)
        b.sync("cudaEventSynchronize")
        b.sync("cudaDeviceSynchronize")
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def timing_by_events_at_the_end():
    b = gpu()
    work(b)
    b.runtime("cudaEventRecord")
    b.sync("cudaEventSynchronize")
    b.runtime("cudaEventElapsedTime")
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def the_profilers_own_synchronisation():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync", also="warmup-in-capture")
def a_search_for_the_fastest_convolution_as_of_cudnn_frontend():
    b = gpu()
    work(b)
    with b.op("aten::cudnn_convolution", [[8, 16, 64, 64], [16, 16, 3, 3]]):
        b.sync("cudaDeviceSynchronize")
        for kernel in ("implicit_convolve_sgemm", "xmma_fprop_implicit_gemm"):
            b.launch(kernel, 40)
            b.sync("cudaDeviceSynchronize")
            b.launch(kernel, 30)
            b.sync("cudaEventSynchronize")
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_benchmark_that_synchronises_before_and_after():
    b = gpu()
    b.sync("cudaDeviceSynchronize")
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def a_benchmark_of_its_own_in_the_measured_region():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")  # what ran before is over
    with b.annotation(b.region):
        b.sync("cudaStreamSynchronize")
        b.sync("cudaDeviceSynchronize")
        work(b)
        b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync")
def synchronise_first_while_work_from_before_the_region_runs():
    b = gpu()
    work(b, device_us=300)
    with b.annotation(b.region):
        b.sync("cudaDeviceSynchronize")
        work(b)
        b.advance(200)
        work(b)
    return b


@EXAMPLES.positive("host-sync")
def synchronise_first_while_work_runs_whose_launch_the_trace_lacks():
    b = gpu()
    b.kernel_without_runtime(RELU, 500)
    b.sync("cudaDeviceSynchronize")
    work(b)
    return b


@EXAMPLES.positive("host-sync")
def a_batch_is_moved_and_waited_for_before_the_first_kernel():
    b = gpu()
    b.memcpy("HtoD", 1 << 20, False)
    b.sync("cudaStreamSynchronize")
    work(b)
    return b


@EXAMPLES.positive("host-sync", 3)
def a_timer_that_synchronises_when_it_starts_and_when_it_stops():
    b = gpu()
    for _ in range(4):
        b.sync("cudaDeviceSynchronize")
        work(b)
        b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync", 2)
def a_stream_that_is_waited_for_twice():
    # The second may wait for another stream: nothing says which one it is.
    b = gpu()
    work(b)
    b.sync("cudaStreamSynchronize")
    b.sync("cudaStreamSynchronize")
    work(b)
    return b


@EXAMPLES.positive("host-sync", 2)
def synchronise_before_the_results_are_read_at_the_end():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    read(b, *MOVE, size=3200)
    read(b, *READ)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync", 2)
def synchronise_before_a_value_is_read_amid_the_work():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    read(b, *READ)
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_copy_to_pinned_memory_that_nobody_waits_for():
    b = gpu()
    work(b)
    read(b, *MOVE, size=4096, pageable=False, wait=False)
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def item_before_and_after_the_measured_region():
    b = gpu()
    read(b, *READ)
    with b.annotation(b.region):
        work(b)
    read(b, *READ)
    return b


@EXAMPLES.near_miss("host-sync")
def a_copy_to_the_device():
    b = gpu()
    read(b, *MOVE, kind="HtoD", size=256)
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_blocking_copy_to_the_device_on_hip():
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    read(b, *MOVE, kind="HtoD", size=256, blocking=True, wait=False)
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_copy_within_the_device():
    b = gpu()
    work(b)
    with b.op("aten::copy_", [[64], [64]]):
        b.memcpy("DtoD", 256)
    return b


@EXAMPLES.near_miss("host-sync")
def one_stream_waits_for_another():
    b = gpu()
    work(b)
    b.runtime("cudaEventRecord")
    b.runtime("cudaStreamWaitEvent")
    b.runtime("cudaEventQuery")
    b.runtime("cudaStreamIsCapturing")
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_barrier_and_the_log_of_ddp():
    b = gpu()
    with b.annotation("DistributedDataParallel.forward"):
        b.sync("cudaEventSynchronize")
        b.runtime("cudaEventElapsedTime")
        work(b)
    with b.op("c10d::barrier"), b.op("record_param_comms"):
        b.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        b.sync("cudaStreamSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def a_copy_of_which_the_trace_has_only_the_call():
    b = gpu()
    with b.op("aten::copy_", [[64], [64]]):
        b.runtime("cudaMemcpyAsync")
        b.sync("cudaStreamSynchronize")
    work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def the_end_of_a_benchmark_whose_launches_are_lost():
    b = gpu()
    for _ in range(3):
        b.kernel_without_runtime(RELU, 300)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def the_end_of_a_benchmark_on_rocm_before_2024():
    b = OfRoctracer("AMD Instinct MI300X", (9, 4), vendor="amd")
    work(b, 10, device_us=300)
    b.sync("cudaDeviceSynchronize")
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def batches_to_the_device_without_operators():
    b = OfTheDeviceAlone(A100, (8, 0))
    for _ in range(3):
        read(b, *MOVE, size=192, kind="HtoD")
        work(b)
    return b


@EXAMPLES.near_miss("host-sync")
def a_live_item_on_the_cpu():
    x = torch.ones(100)

    def block():
        x.sum().item()
        x.nonzero()
        torch.accelerator.is_available()

    return block


# ------------------------------------------------------------------------------- launch-bound


def launches(
    b: TraceBuilder, count: int, device_us: float = 3, host_us: float = 5, pause_us: float = 20
) -> None:
    """Small operators: the host takes as long as it does, and a pause, for each."""
    for _ in range(count):
        with b.op("aten::mul_", [[256], []]):
            b.launch(RELU, device_us, host_us=host_us)
        b.advance(pause_us)


@EXAMPLES.positive("launch-bound")
def a_hundred_small_kernels():
    b = gpu()
    launches(b, 100)
    return b


@EXAMPLES.positive("launch-bound")
def fifty_small_kernels():
    b = gpu()
    launches(b, 50)
    return b


@EXAMPLES.positive("launch-bound")
def two_hundred_in_a_step_of_the_measured_region():
    b = gpu()
    with b.annotation(b.region), b.annotation("ProfilerStep#4"):
        launches(b, 200)
    return b


@EXAMPLES.positive("launch-bound")
def small_kernels_and_three_large_ones():
    b = gpu()
    launches(b, 150, device_us=8)
    launches(b, 3, device_us=200)
    return b


@EXAMPLES.positive("launch-bound")
def launches_by_triton_on_hip():
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    for _ in range(80):
        b.launch("triton_poi_fused_add_0", 2, host_us=4, driver=True)
        b.advance(30)
    return b


@EXAMPLES.positive("launch-bound")
def several_kernels_an_operator():
    b = gpu()
    for _ in range(40):
        with b.op("aten::native_layer_norm", [[64, 64]]):
            b.launch("vectorized_layer_norm_kernel", 4)
            b.launch("vectorized_layer_norm_kernel", 4)
        b.advance(60)
    return b


@EXAMPLES.positive("launch-bound")
def the_test_alone_keeps_the_device_idle_too():
    b = gpu()
    b.facts(Rounds(timed=[timed(1.9), timed(2.0), timed(2.2)]).facts())
    with b.annotation(REGION):
        launches(b, 100)
    return b


@EXAMPLES.positive("launch-bound", kernels=20)
def thirty_kernels_where_twenty_are_enough():
    b = gpu()
    launches(b, 30)
    return b


@EXAMPLES.positive("launch-bound", also="host-sync")
def small_kernels_with_an_item_in_between():
    b = gpu()
    for _ in range(2):
        launches(b, 60)
        read(b, *READ)
    return b


@EXAMPLES.near_miss("launch-bound")
def thirty_small_kernels():
    b = gpu()
    launches(b, 30)
    return b


@EXAMPLES.near_miss("launch-bound")
def large_kernels_one_by_one():
    b = gpu()
    launches(b, 100, device_us=80)
    return b


@EXAMPLES.near_miss("launch-bound")
def the_device_is_idle_for_a_third_of_the_time():
    b = gpu()
    launches(b, 100, device_us=20)
    return b


@EXAMPLES.positive("launch-bound", idle_share=0.2)
def the_device_is_idle_for_a_third_of_the_time_where_a_fifth_is_too_much():
    b = gpu()
    launches(b, 100, device_us=20)
    return b


@EXAMPLES.near_miss("launch-bound")
def a_graph_of_400_kernels():
    b = gpu()
    for _ in range(3):
        b.graph_launch([RELU] * 400, 2)
        b.advance(2000)
    return b


@EXAMPLES.near_miss("launch-bound", also="host-sync")
def each_kernel_is_waited_for():
    b = gpu()
    for _ in range(100):
        launches(b, 1)
        read(b, *READ)
    return b


@EXAMPLES.near_miss("launch-bound")
def the_host_computes_between_launches():
    b = gpu()
    for _ in range(100):
        with b.op("aten::sort", [[100000]], dur_us=3000):
            pass
        launches(b, 1)
    return b


@EXAMPLES.positive("launch-bound", pause=10)
def a_host_that_computes_for_three_milliseconds_where_ten_are_allowed():
    b = gpu()
    for _ in range(100):
        with b.op("aten::sort", [[100000]], dur_us=3000):
            pass
        launches(b, 1)
    return b


@EXAMPLES.near_miss("launch-bound")
def batches_are_loaded_between_launches():
    b = gpu()
    for _ in range(100):
        with b.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 400):
            pass
        launches(b, 1)
    return b


@EXAMPLES.near_miss("launch-bound")
def copies_one_by_one():
    b = gpu()
    for _ in range(100):
        with b.op("aten::copy_", [[64], [64]]):
            b.memcpy("HtoD", 256, pageable=False, device_us=1)
        b.advance(20)
    return b


@EXAMPLES.near_miss("launch-bound")
def a_slow_profiler_but_a_busy_device():
    b = gpu()
    b.facts(Rounds(timed=[timed(0.4)]).facts())
    with b.annotation(REGION):
        launches(b, 100)
    return b


@EXAMPLES.near_miss("launch-bound")
def many_small_operators_live_on_the_cpu():
    x = torch.ones(16)

    def block():
        with torch.no_grad():
            for _ in range(200):
                x.mul_(1.0)

    return block
