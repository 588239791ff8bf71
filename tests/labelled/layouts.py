"""Labelled examples of convolutions that change the layout of their tensors, or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from labelled.attention_cuda import Heads
from labelled.case import Examples
from labelled.kineto import BRAIN, COPY, HALF

EXAMPLES = Examples()
FLOAT = "float"
TO = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
BACK = (
    "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)>"
)
TO_2025 = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>"
BACK_2025 = "void cudnn::engines_precompiled::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float>"
FPROP = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"
HOPPER = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128>"
DGRAD = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_optimized_bf16_128x128>"
IGEMM = "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32_wt64x16x16_ws1x1_wr2x2_ta1x8x4x1"
TRANSPOSE, SMALL = "batched_transpose_32x32_half", "batched_transpose_16x32_half"

Shape = Sequence[int]


def channels_last(shape: Shape) -> list[int]:
    """Strides of a tensor in that layout."""
    size = [shape[0], *shape[2:], shape[1]]
    apart = [prod(size[axis + 1 :]) for axis in range(len(size))]
    return [apart[0], apart[-1], *apart[1:-1]]


def contiguous(shape: Shape) -> list[int]:
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def convolve(
    b: Heads, x: Shape, w: Shape, *kernels: tuple[str, float], name: str = "cudnn_convolution",
    layer: str = "conv2d", dtype: str = FLOAT, last: bool = False,
) -> None:  # fmt: skip
    """A convolution and its kernels; ``last``: of tensors in channels_last."""
    dims, types = [list(x), list(w), []], [dtype, dtype, ""]
    strides = [channels_last(x), channels_last(w), []] if last else None
    with (
        b.op(f"aten::{layer}", dims if b.shapes else None, types, strides=strides),
        b.op(f"aten::{name}", dims if b.shapes else None, types, strides=strides),
    ):
        for kernel, us in kernels:
            b.launch(kernel, us, grid=(x[-1], w[0], x[0]))


def copied(b: Heads, shape: Shape, into: list[int], out_of: list[int], us: float = 40) -> None:
    """The copy of a tensor to other strides."""
    dims, types = [list(shape), list(shape), []], [HALF, HALF, "Scalar"]
    with (
        b.op("aten::contiguous", [list(shape), []], [HALF, "Scalar"]),
        b.op("aten::copy_", dims, types, strides=[into, out_of, []]),
    ):
        b.launch(COPY, us)


def stage(
    b: Heads, widths: Sequence[int], to: str, kernel: str, back: str, *, us: float = 30,
    size: int = 56, **options: Any,
) -> None:  # fmt: skip
    """A convolution from each width to the next; the weights are converted, too."""
    for into, out in pairwise(widths):
        kernels = [(to, us), (to, 4.0), (kernel, 200.0), (back, us)]
        convolve(b, [32, into, size, size], [out, into, 3, 3], *kernels, **options)


def example(matches: int, **options: Any) -> Callable[[Callable[[Heads], object]], object]:
    """The function below makes something in which the rule matches so often."""
    also, styles = options.pop("also", ""), options.pop("styles", ())

    def add(body: Callable[[Heads], object]) -> object:
        def make() -> Heads:
            b = Heads(*styles, **options)
            body(b)
            b.sync("cudaDeviceSynchronize")  # the profiler's own
            return b

        make.__name__ = body.__name__
        EXAMPLES.positive("layout-transpose", matches, also=also)(make)
        return body

    return add


# ------------------------------------------------------------------------------------- positives


@example(4, capability=(8, 0))
def four_convolutions_in_tf32(b: Heads) -> None:
    stage(b, [64, 64, 128, 128, 256], TO, FPROP, BACK)


@example(6, capability=(8, 0), shapes=False)
def a_trace_without_shapes_whose_grids_differ(b: Heads) -> None:
    for _ in range(2):
        stage(b, [64, 128, 256, 512], TO, FPROP, BACK)


@example(4, capability=(8, 0), styles=["schema_2021"])
def a_trace_of_2021(b: Heads) -> None:
    old = [name.replace("cudnn::ops::", "") for name in (TO, BACK)]
    stage(b, [64, 128, 256, 512, 512], old[0], FPROP, old[1])


@example(3, capability=(8, 0))
def a_network_of_three_layers(b: Heads) -> None:
    stage(b, [16, 32, 64, 128], TO, FPROP, BACK)


@example(9, capability=(8, 0))
def super_resolution_by_equal_blocks(b: Heads) -> None:
    """One layer to begin with, and eight of one shape."""
    stage(b, [8, 64], TO, FPROP, BACK)
    stage(b, [64] * 9, TO, FPROP, BACK)


@example(4)
def a_decoder_of_transposed_convolutions(b: Heads) -> None:
    options: dict[str, Any] = {"layer": "conv_transpose2d", "dtype": HALF}
    options["name"] = "cudnn_convolution_transpose"
    stage(b, [512, 256, 128, 64, 16], TO_2025, DGRAD, BACK_2025, **options)


@example(3)
def weights_in_channels_last_between_layers_that_make_contiguous(b: Heads) -> None:
    for into, out in pairwise([64, 128, 256, 512]):
        x, w = [32, into, 28, 28], [out, into, 3, 3]
        dims, types = [x, w, []], [HALF, HALF, ""]
        strides = [contiguous(x), channels_last(w), []]
        with (
            b.op("aten::conv2d", dims, types, strides=strides),
            b.op("aten::cudnn_convolution", dims, types, strides=strides),
        ):
            copied(b, x, channels_last(x), contiguous(x))
            b.launch(HOPPER, 150)
        y = [32, out, 28, 28]
        copied(b, y, contiguous(y), channels_last(y))


@example(3)
def a_little_over_a_hundredth(b: Heads) -> None:
    stage(b, [64, 128, 256, 512], TO_2025, HOPPER, BACK_2025, us=10, dtype=BRAIN)
    for _ in range(10):
        b.over("add", [32, 64, 56, 56], BRAIN, us=580)


# ----------------------------------------------------------------------------------- near misses


@example(0, capability=(8, 0))
def a_network_of_two_layers(b: Heads) -> None:
    for _ in range(3):
        stage(b, [16, 32, 64], TO, FPROP, BACK)


@example(0)
def tensors_in_channels_last_that_the_library_changes(b: Heads) -> None:
    stage(b, [64, 128, 256, 512], BACK_2025, HOPPER, TO_2025, dtype=BRAIN, last=True)


@example(0)
def a_network_in_channels_last(b: Heads) -> None:
    for into, out in pairwise([64, 128, 256, 512]):
        kernels = [(HOPPER, 200.0)]
        convolve(b, [32, into, 56, 56], [out, into, 3, 3], *kernels, dtype=BRAIN, last=True)


@example(0)
def convolutions_of_sequences(b: Heads) -> None:
    for into, out in pairwise([64, 128, 256, 512]):
        kernels = [(TO_2025, 30.0), (TO_2025, 4.0), (HOPPER, 200.0), (BACK_2025, 30.0)]
        convolve(b, [32, into, 1, 4000], [out, into, 1, 5], *kernels, layer="conv1d", dtype=BRAIN)


@example(0, shapes=False)
def convolutions_of_sequences_without_shapes(b: Heads) -> None:
    stage(b, [64, 128, 256, 512], TO_2025, HOPPER, BACK_2025, layer="conv1d")


@example(0)
def a_little_under_a_hundredth(b: Heads) -> None:
    stage(b, [64, 128, 256, 512], TO_2025, HOPPER, BACK_2025, us=10, dtype=BRAIN)
    for _ in range(10):
        b.over("add", [32, 64, 56, 56], BRAIN, us=800)


@example(0, capability=(7, 0))
def convolutions_by_fourier_transforms(b: Heads) -> None:
    fft = "void transpose_readWrite_alignment_kernel<float2, float2, 1, false, 6, 4, 4>"
    stage(b, [64, 128, 256, 512], fft, "void fft2d_r2c_32x32<__half, false, 1u, false>", fft)


@example(0)
def a_graph_of_convolutions(b: Heads) -> None:
    b.graph_launch([TO_2025, TO_2025, HOPPER, BACK_2025] * 4, 30)
