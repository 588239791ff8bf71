"""The cases of torch's former pattern matcher that need CUDA, as Kineto writes them on an H100."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from labelled.case import Examples
from labelled.kineto import HALF, Former

EXAMPLES = Examples()
SQUARE = (100, 100)
#: cuBLAS's kernels on an H100: fp32 with TF32 off, and fp16 of even and of odd sizes.
FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4"
FP16 = "sm90_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel"
FP16_ODD = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_64x2_nn_align1>"
)
FIRST_TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x10_nn_align4>(cutlass)"


def _built(body: Callable[[Former], None], **options: Any) -> Former:
    """What torch's profiler records around a block: its own frames, the test's, the block."""
    b = Former(**options)
    frames = ("test_profiler.py(1903): test_profiler_pattern", "test_profiler.py(1887): <lambda>")
    with ExitStack() as stack:
        for frame in frames:
            stack.enter_context(b.python(frame))
        body(b)
    own = ("torch/autograd/profiler.py(363): __exit__", "torch/cuda/__init__.py(975): synchronize")
    with b.python(own[0]), b.python(own[1]):
        b.sync("cudaDeviceSynchronize")  # the last runtime call of any real trace
    return b


def _example(rule: str, matches: int, name: str, body: Callable[[Former], None], **options: Any):
    also = options.pop("also", "")

    def make() -> Former:
        return _built(body, **options)

    make.__name__ = f"former_{name}"
    EXAMPLES.positive(rule, matches, also=also)(make)


# ------------------------------------------------------------------------- extra-cuda-copy

for _how, _name in itertools.product(("to", "cuda"), ("ones", "zeros", "rand", "randn", "full")):
    _dtype = "long int" if _name == "full" else "float"

    def _make_and_move(b: Former, how: str = _how, name: str = _name, dtype: str = _dtype) -> None:
        b.made(name, SQUARE, dtype)
        b.moved(SQUARE, dtype, how)

    _example("extra-cuda-copy", 1, f"{_name}_moved_by_{_how}", _make_and_move)

for _how in ("to", "cuda"):

    def _fill_and_move(b: Former, how: str = _how) -> None:
        b.made("empty", SQUARE)
        with b.call("fill_", "Tensor object"):
            b.filled("fill_", SQUARE, "float")
        b.moved(SQUARE, "float", how)

    _example("extra-cuda-copy", 1, f"empty_filled_and_moved_by_{_how}", _fill_and_move)


def _made_there(b: Former) -> None:
    b.made("ones", SQUARE, cuda=True)


def _made_there_and_halved(b: Former) -> None:
    b.made("rand", SQUARE, cuda=True)
    b.halved(SQUARE)


def _two_moved(b: Former) -> None:
    for shape in (SQUARE, (50, 50)):
        b.made("ones", shape)
        b.moved(shape)


_example("extra-cuda-copy", 0, "ones_made_on_the_device", _made_there)
_example("extra-cuda-copy", 0, "rand_made_on_the_device_and_halved", _made_there_and_halved)
_example("extra-cuda-copy", 2, "ones_of_two_sizes_moved", _two_moved)


# --------------------------------------------------------- fp32-matmul and unaligned-matmul


def _squared(b: Former) -> None:
    b.product(SQUARE, "float", FP32)


_example("fp32-matmul", 1, "product_of_fp32", _squared)
_example("fp32-matmul", 1, "product_of_fp32_without_shapes", _squared, shapes=False)
_example("fp32-matmul", 1, "product_of_fp32_on_ampere", _squared, capability=(8, 0))
_example("fp32-matmul", 0, "product_of_fp32_on_volta", _squared, capability=(7, 0))
_example(
    "fp32-matmul",
    0,
    "product_of_fp32_with_tf32_on",
    lambda b: b.product(SQUARE, "float", FIRST_TF32),
)

for _shape, _matches in (
    ((201, 201), 1),
    ((3, 97, 97), 1),
    ((200, 200), 0),
    ((3, 200, 200), 0),
):

    def _halves(b: Former, shape: tuple[int, ...] = _shape, odd: int = _matches) -> None:
        b.product(shape, HALF, FP16_ODD if odd else FP16)

    _example("unaligned-matmul", _matches, f"product_of_{'x'.join(map(str, _shape))}", _halves)
