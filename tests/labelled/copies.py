"""Labelled examples of the rules about copies between host and device, as Kineto records them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod

from labelled.case import Examples
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()

GPU = "NVIDIA H100 80GB HBM3"
SIZE = {"float": 4, "long int": 8, "c10::Half": 2, "c10::BFloat16": 2, "unsigned char": 1}
KIB = 1024


def copy_(
    b: TraceBuilder, kind: str, shape, dtype="float", *, pageable=True, to: str | None = None
) -> None:
    """``copy_`` between host and device, and the wait for it unless memory is pinned."""
    with b.op("aten::copy_", [shape, shape, []], [to or dtype, dtype, "Scalar"], ["", "", "False"]):
        b.memcpy(kind, prod(shape) * SIZE[dtype], pageable)
        if pageable:
            b.sync("cudaStreamSynchronize")


def moved(b: TraceBuilder, kind: str, shape, dtype="float", **more) -> None:
    """``x.to(…)`` to the other side."""
    head = [shape, [], [], [], [], [], [], []]
    types = [dtype, "Scalar", "Scalar", "Device", "", "Scalar", "Scalar", ""]
    with b.op("aten::to", head, types), b.op("aten::_to_copy", head[:-1], types[:-1]):
        b.op("aten::empty_strided", [[]] * 6, ["ScalarList"] * 2 + ["Scalar"] * 4)
        copy_(b, kind, shape, dtype, **more)


def up(b: TraceBuilder, shape, dtype="float", **more) -> None:
    """``x.cuda()``."""
    moved(b, "HtoD", shape, dtype, **more)


def down(b: TraceBuilder, shape, dtype="float", **more) -> None:
    """``x.cpu()``."""
    moved(b, "DtoH", shape, dtype, **more)


#: Operators that fill by a part of theirs: which.
FILL = {"ones": "fill_", "zeros": "zero_", "full": "fill_", "rand": "uniform_", "randn": "normal_"}


def filled(b: TraceBuilder, name: str, shape=(100, 100), dtype="float", *, device=False) -> None:
    """``torch.zeros(…)`` and the like on the host, or by a kernel on the device."""
    shape = list(shape)
    with b.op(f"aten::{name}", [[]] * 5, ["ScalarList", "", "", "", "Scalar"], [str(shape)]):
        b.op("aten::empty", [[]] * 6, ["ScalarList", "", "", "", "Scalar", ""], [str(shape)])
        with b.op(f"aten::{FILL[name]}", [shape, []], [dtype, "Scalar"]):
            if device:
                b.launch("vectorized_elementwise_kernel<4, FillFunctor<float>>")


def empty_filled(b: TraceBuilder, shape=(100, 100), dtype="float") -> None:
    """``torch.empty(…).fill_(5)``."""
    b.op("aten::empty", [[]] * 6, ["ScalarList", "", "", "", "Scalar", ""], [str(list(shape))])
    b.op("aten::fill_", [list(shape), []], [dtype, "Scalar"], ["", "5"])


@contextmanager
def framed(b: TraceBuilder, *names: str) -> Iterator[None]:
    """Python frames around, as with_stack=True records them."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(b.python(name))
        yield


def product(b: TraceBuilder, n=100) -> None:
    """``x @ x``."""
    with b.op("aten::matmul", [[n, n]] * 2), b.op("aten::mm", [[n, n]] * 2):
        b.launch("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32", 200)


def computed(b: TraceBuilder, shape, dtype="float") -> None:
    """``x * 2`` on the device."""
    with b.op("aten::mul", [shape, []], [dtype, "Scalar"], ["", "2"]):
        b.launch("vectorized_elementwise_kernel<4, MulFunctor<float>>", 200)


# -------------------------------------------------------------------- extra-cuda-copy: positives


def _case(name: str, made, *, frames: bool, dtype="float") -> None:
    def make():
        b = TraceBuilder(GPU)
        with framed(b, "case.py(1): <module>", "case.py(9): run") if frames else ExitStack():
            with framed(b, f"<built-in method {name}>") if frames else ExitStack():
                made(b)
            with framed(b, "<built-in method cuda of Tensor>") if frames else ExitStack():
                up(b, [100, 100], dtype)
        return b

    make.__name__ = f"{name}_moved_to_the_device{'_with_stacks' * frames}"
    EXAMPLES.positive("extra-cuda-copy")(make)


for _frames in (False, True):
    for _name in ("ones", "zeros", "rand", "randn"):
        _case(_name, lambda b, name=_name: filled(b, name), frames=_frames)
    _case("empty_fill", empty_filled, frames=_frames)
    _case("full", lambda b: filled(b, "full", dtype="long int"), frames=_frames, dtype="long int")


def counted_up(b: TraceBuilder, *, device=False) -> None:
    """``torch.arange(512)``, of which torch records no size."""
    with b.op("aten::arange", [[]] * 5, ["Scalar", "", "", "", "Scalar"], ["512"]):
        b.op("aten::empty", [[]] * 6, ["ScalarList", "Scalar", "", "", "Scalar", ""], ["[0]"])
        with b.op("aten::arange", [[], [], [], [0]], ["Scalar"] * 3 + ["long int"]):
            b.op("aten::resize_", [[0], [], []], ["long int", "ScalarList", ""])
            if device:
                b.launch("elementwise_kernel_with_index<int, arange_cuda_out>")


@EXAMPLES.positive("extra-cuda-copy")
def indices_counted_on_the_host():
    b = TraceBuilder(GPU)
    counted_up(b)
    with b.op("aten::unsqueeze", [[512], []], ["long int", "Scalar"], ["", "0"]):
        b.op("aten::as_strided", [[512], [], [], []], ["long int", "ScalarList", "ScalarList", ""])
    up(b, [1, 512], "long int")
    return b


@EXAMPLES.positive("extra-cuda-copy", bytes=40_000)
def forty_thousand_bytes_of_at_least_so_many():
    b = TraceBuilder(GPU)
    filled(b, "ones")
    up(b, [100, 100])
    return b


# ------------------------------------------------------------------- extra-cuda-copy: near misses


@EXAMPLES.near_miss("extra-cuda-copy")
def labels_moved_after_indices_of_the_device():
    b = TraceBuilder(GPU)
    counted_up(b, device=True)
    up(b, [512], "long int")
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def pictures_moved_after_indices_of_the_host():
    b = TraceBuilder(GPU)
    counted_up(b)
    up(b, [8, 64])
    return b


@EXAMPLES.near_miss("extra-cuda-copy", bytes=40_001)
def forty_thousand_bytes_of_more():
    b = TraceBuilder(GPU)
    filled(b, "ones")
    up(b, [100, 100])
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def made_on_the_device():
    b = TraceBuilder(GPU)
    filled(b, "ones", device=True)
    return b


def _cast_and_moved(b: TraceBuilder, shape, dtype="float") -> None:
    """``x.to("cuda", torch.half)``: the host casts, and then copies."""
    types = [dtype, "Scalar", "Scalar", "Device", "", "Scalar", "Scalar", ""]
    both = ["c10::Half", dtype, "Scalar"]
    with (
        b.op("aten::to", [shape, *[[]] * 7], types),
        b.op("aten::_to_copy", [shape, *[[]] * 6], types[:-1]),
        b.op("aten::copy_", [shape, shape, []], both),
    ):
        with (
            b.op("aten::to", [shape, *[[]] * 4], [dtype, "Scalar", "Scalar", "Scalar", ""]),
            b.op("aten::_to_copy", [shape, *[[]] * 6], [dtype, *["Scalar"] * 6]),
        ):
            b.op("aten::copy_", [shape, shape, []], both)
        copy_(b, "HtoD", shape, "c10::Half")


@EXAMPLES.positive("extra-cuda-copy")
def a_cast_as_it_is_moved():
    b = TraceBuilder(GPU)
    filled(b, "rand")
    _cast_and_moved(b, [100, 100])
    return b


# -------------------------------------------------------------------- pageable-copy: positives

ROW = [1024]  # float: 4 KiB


@EXAMPLES.positive("pageable-copy")
def a_batch_in_pageable_memory():
    b = TraceBuilder(GPU)
    up(b, [32, 3, 224, 224])
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", also="host-sync")
def a_result_to_pageable_memory():
    b = TraceBuilder(GPU)
    product(b, 1024)
    down(b, [1024, 1024])
    return b


@EXAMPLES.positive("pageable-copy")
def a_byte_over_the_threshold():
    b = TraceBuilder(GPU)
    up(b, [64 * KIB + 1], "unsigned char")
    return b


@EXAMPLES.positive("pageable-copy", bytes=KIB)
def four_kib_over_a_lower_threshold():
    b = TraceBuilder(GPU)
    up(b, ROW)
    return b


@EXAMPLES.positive("pageable-copy")
def a_blocking_copy_outside_operators():
    b = TraceBuilder(GPU)
    with b.annotation("upload"):
        b.memcpy("HtoD", 1 << 20, blocking=True)
    return b


@EXAMPLES.positive("pageable-copy")
def one_pinned_and_one_not():
    b = TraceBuilder(GPU)
    up(b, [256, 256], pageable=False)
    up(b, [256, 512])
    return b


@EXAMPLES.positive("pageable-copy")
def a_copy_that_was_not_just_filled():
    b = TraceBuilder(GPU)
    filled(b, "zeros", (10,))
    up(b, [256, 512])
    return b


# -------------------------------------------------------------------- pageable-copy: near misses


@EXAMPLES.near_miss("pageable-copy")
def exactly_the_threshold():
    b = TraceBuilder(GPU)
    up(b, [64 * KIB], "unsigned char")
    return b


@EXAMPLES.near_miss("pageable-copy", bytes=1 << 30)
def a_batch_under_a_higher_threshold():
    b = TraceBuilder(GPU)
    up(b, [32, 3, 224, 224])
    return b


@EXAMPLES.near_miss("pageable-copy")
def a_copy_of_unknown_size():
    b = TraceBuilder(GPU)
    with b.op("aten::copy_", [[1024], [1024], []], ["float", "float", "Scalar"]):
        b.memcpy("HtoD", -1)
    return b


# -------------------------------------------------------------------- copy-round-trip: positives

BOTH = "host-sync pageable-copy"


@EXAMPLES.positive("copy-round-trip", also=BOTH)
def to_the_host_and_back():
    b = TraceBuilder(GPU)
    computed(b, [256, 256])
    down(b, [256, 256])
    up(b, [256, 256])
    computed(b, [256, 256])
    return b


@EXAMPLES.positive("copy-round-trip", also="host-sync")
def from_the_threshold_on():
    b = TraceBuilder(GPU)
    down(b, ROW)
    up(b, ROW)
    return b


@EXAMPLES.positive("copy-round-trip", also="host-sync", bytes=8)
def a_small_one_under_a_lower_threshold():
    b = TraceBuilder(GPU)
    down(b, [10])
    up(b, [10])
    return b


@EXAMPLES.positive("copy-round-trip", also=BOTH)
def with_another_copy_in_between():
    b = TraceBuilder(GPU)
    down(b, [256, 256])
    up(b, [512, 512])
    up(b, [256, 256])
    return b


# -------------------------------------------------------------------- copy-round-trip: near misses


@EXAMPLES.near_miss("copy-round-trip", also="host-sync")
def smaller_than_the_threshold():
    b = TraceBuilder(GPU)
    down(b, [1023])
    up(b, [1023])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH, bytes=1 << 20)
def a_quarter_under_a_higher_threshold():
    b = TraceBuilder(GPU)
    down(b, [256, 256])
    up(b, [256, 256])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def up_and_down_for_each_of_three_images():
    b = TraceBuilder(GPU)
    for _ in range(3):
        up(b, [256, 256])
        computed(b, [256, 256])
        down(b, [256, 256])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def another_size_comes_back():
    b = TraceBuilder(GPU)
    down(b, [256, 256])
    up(b, [256, 512])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def another_shape_of_the_same_size_comes_back():
    b = TraceBuilder(GPU)
    down(b, [256, 256])
    up(b, [64, 1024])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def another_dtype_of_the_same_size_comes_back():
    b = TraceBuilder(GPU)
    down(b, [64, 2048], "c10::Half")
    up(b, [64, 2048], "c10::BFloat16")
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def results_that_stay_on_the_host():
    b = TraceBuilder(GPU)
    for _ in range(4):
        down(b, [256, 256])
    return b
