"""Labelled examples of the rules about host and device waiting for each other."""

from __future__ import annotations

from labelled.case import Examples
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES, Event

from pytest_torchprof.capture.clock import NO_COUNTER, Round
from pytest_torchprof.session.measurement import Rounds
from pytest_torchprof.trace.names import REGION

EXAMPLES = Examples()

A100 = "NVIDIA A100-SXM4-40GB"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"


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


class OfRoctracer(TraceBuilder):
    """A trace as kineto wrote it on ROCm until 2024."""

    def document(self) -> Event:
        return STYLES["roctracer"](super().document())


# ---------------------------------------------------------------------------------- host-sync


@EXAMPLES.positive("host-sync")
def the_last_but_one_synchronisation_of_a_stored_trace():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("host-sync")
def a_lap_between_two_parts_whose_launches_are_lost():
    b = gpu()
    for _ in range(2):
        b.kernel_without_runtime(RELU, 300)
        b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def the_profilers_own_synchronisation():
    b = gpu()
    work(b)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.near_miss("host-sync")
def a_benchmark_that_synchronises_before_and_after():
    b = gpu()
    b.sync("cudaDeviceSynchronize")
    work(b)
    b.sync("cudaDeviceSynchronize")
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


@EXAMPLES.near_miss("host-sync")
def a_copy_within_the_device():
    b = gpu()
    work(b)
    with b.op("aten::copy_", [[64], [64]]):
        b.memcpy("DtoD", 256)
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
def small_kernels_and_three_large_ones():
    b = gpu()
    launches(b, 150, device_us=8)
    launches(b, 3, device_us=200)
    return b


@EXAMPLES.positive("launch-bound", kernels=20)
def thirty_kernels_where_twenty_are_enough():
    b = gpu()
    launches(b, 30)
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


@EXAMPLES.positive("launch-bound", idle_share=0.2)
def the_device_is_idle_for_a_third_of_the_time_where_a_fifth_is_too_much():
    b = gpu()
    launches(b, 100, device_us=20)
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
def a_slow_profiler_but_a_busy_device():
    b = gpu()
    b.facts(Rounds(timed=[timed(0.4)]).facts())
    with b.annotation(REGION):
        launches(b, 100)
    return b
