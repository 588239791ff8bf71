"""The cases of torch's former pattern matcher that need CUDA, as Kineto writes them on an H100.

Host operators and Python frames as torch 2.13 records them of the same calls on a CPU, runtime
calls and device events as traces of H100 and A100 have them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from math import prod
from typing import Any

from labelled.case import Examples
from trace_builder import TraceBuilder

EXAMPLES = Examples()
SQUARE = (100, 100)
CHIPS = {
    (9, 0): "NVIDIA H100 80GB HBM3",
    (8, 0): "NVIDIA A100-SXM4-40GB",
    (7, 0): "Tesla V100-SXM2-32GB",
}
SIZES = {"float": 4, "long int": 8, "c10::Half": 2}
NUMBERS = {"float": "6", "long int": "4", "c10::Half": "5"}
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 1ul> >"
    "(int, at::native::{}, std::array<char*, 1ul>)"
)
#: cuBLAS's kernels on an H100: fp32 with TF32 off, and fp16 of even and of odd sizes.
FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4"
FP16 = "sm90_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel"
FP16_ODD = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_64x2_nn_align1>"
)
FIRST_TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x10_nn_align4>(cutlass)"


class Former(TraceBuilder):
    """What a few calls of torch leave in a trace, with shapes and frames or without."""

    def __init__(
        self, *, shapes: bool = True, frames: bool = True, capability: tuple[int, int] = (9, 0)
    ) -> None:
        super().__init__(CHIPS[capability], capability)
        self.shapes, self.frames = shapes, frames

    def call(self, name: str, owner: str = "type object") -> Any:
        """The frame of a builtin."""
        if not self.frames:
            return nullcontext()
        return self.python(f"<built-in method {name} of {owner} at 0x7f1c8d2a4c40>")

    def ran(self, name: str, dims: Any, types: Any, concrete: Any = None, args: Any = None) -> Any:
        """An operator, with shapes where they were recorded."""
        if not self.shapes:
            return self.op(name, args=args)
        return self.op(name, dims, types, concrete, args=args)

    def made(self, name: str, shape: tuple[int, ...], dtype: str = "float", **on: bool) -> None:
        """One of torch.ones, zeros, rand, randn, full, on the CPU unless ``cuda``."""
        fill = {"zeros": "zero_", "rand": "uniform_", "randn": "normal_"}.get(name, "fill_")
        size, cuda = str(list(shape)), on.get("cuda", False)
        device = "cuda:0" if cuda else ""
        with (
            self.call(name),
            self.ran(
                f"aten::{name}",
                [[]] * 5,
                ["ScalarList", "", "", "", "Scalar"],
                [size, "", "", device, "False"],
            ),
        ):
            self.empty(shape, dtype, device)
            if name != "empty":
                self.filled(fill, shape, dtype, cuda=cuda)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str = "") -> None:
        """Memory for a tensor."""
        types = ["ScalarList", "Scalar", "", "", "Scalar", ""]
        concrete = [str(list(shape)), NUMBERS[dtype], "", device, "False", ""]
        with self.ran("aten::empty", [[]] * 6, types, concrete):
            self.memory(prod(shape) * SIZES[dtype], "cuda" if device else "cpu")

    def filled(self, name: str, shape: tuple[int, ...], dtype: str, *, cuda: bool = False) -> None:
        """An operator that fills a tensor; on CUDA it launches a kernel."""
        with self.ran(f"aten::{name}", [list(shape), []], [dtype, "Scalar"], ["", "5"]):
            if cuda:
                functor = "FillFunctor<float>"
                self.launch(ELEMENTWISE.format(functor, functor), 1.2)

    def moved(self, shape: tuple[int, ...], dtype: str = "float", name: str = "to") -> None:
        """``.to("cuda")`` or ``.cuda()`` of a tensor in pageable memory."""
        number = NUMBERS[dtype]
        scalars = ["Scalar", "Scalar", "", "", "Scalar", "Scalar", ""]
        with (
            self.call(name, "Tensor object"),
            self.ran(
                "aten::to",
                [list(shape), *[[]] * 7],
                [dtype, *scalars],
                ["", number, "0", "cuda", "", "False", "False", ""],
            ),
            self.ran(
                "aten::_to_copy",
                [list(shape), *[[]] * 6],
                [dtype, "Scalar", "Scalar", "", "", "Scalar", ""],
                ["", number, "0", "cuda", "", "False", ""],
            ),
        ):
            self.strided(shape, dtype)
            with self.ran(
                "aten::copy_",
                [list(shape), list(shape), []],
                [dtype, dtype, "Scalar"],
                ["", "", "False"],
            ):
                self.memcpy("HtoD", prod(shape) * SIZES[dtype], device_us=3)
                self.sync("cudaStreamSynchronize")

    def strided(self, shape: tuple[int, ...], dtype: str) -> None:
        """Memory on the device; the first of a process calls cudaMalloc."""
        types = ["ScalarList", "ScalarList", "Scalar", "Scalar", "", "Scalar"]
        concrete = [str(list(shape)), "[]", NUMBERS[dtype], "0", "cuda:0", "False"]
        with self.ran("aten::empty_strided", [[]] * 6, types, concrete):
            self.runtime("cudaMalloc", 60)
            self.memory(prod(shape) * SIZES[dtype])

    def halved(self, shape: tuple[int, ...]) -> None:
        """``.half()`` of a tensor on the device."""
        with (
            self.call("half", "Tensor object"),
            self.ran(
                "aten::to",
                [list(shape), *[[]] * 4],
                ["float", "Scalar", "Scalar", "Scalar", ""],
                ["", "5", "False", "False", ""],
            ),
            self.ran(
                "aten::_to_copy",
                [list(shape), *[[]] * 6],
                ["float", "Scalar", "", "", "", "Scalar", ""],
                ["", "5", "", "", "", "False", ""],
            ),
        ):
            self.strided(shape, "c10::Half")
            with self.ran(
                "aten::copy_",
                [list(shape), list(shape), []],
                ["c10::Half", "float", "Scalar"],
                ["", "", "False"],
            ):
                self.launch("void at::native::unrolled_elementwise_kernel<direct_copy>", 1.4)

    def product(self, shape: tuple[int, ...], dtype: str, kernel: str) -> None:
        """``x @ x`` of a matrix, or of a batch of them; its kernel is launched by the driver."""
        dims, types = [list(shape)] * 2, [dtype] * 2
        with self.ran("aten::matmul", dims, types):
            if len(shape) == 3:
                for _ in range(2):
                    with self.ran("aten::expand", [list(shape), [], []], [dtype, "", ""]):
                        pass
                    with self.ran("aten::reshape", [list(shape), []], [dtype, "ScalarList"]):
                        pass
            with self.ran("aten::bmm" if len(shape) == 3 else "aten::mm", dims, types):
                self.memory(prod(shape) * SIZES[dtype])
                self.runtime("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 1)
                self.launch(kernel, 4, driver=True, grid=(4, 4, 1))
            if len(shape) == 3:
                with self.ran("aten::_unsafe_view", [list(shape), []], [dtype, "ScalarList"]):
                    pass


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
        b.product(shape, "c10::Half", FP16_ODD if odd else FP16)

    _example("unaligned-matmul", _matches, f"product_of_{'x'.join(map(str, _shape))}", _halves)
