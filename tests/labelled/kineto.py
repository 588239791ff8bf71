"""What calls of torch leave in a trace of a GPU: for examples of others than the rules' authors.

Host operators and Python frames are as torch 2.13 records them on a CPU; runtime calls, kernels and
copies as traces of H100 and A100 have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import prod
from typing import TYPE_CHECKING, Any

from labelled.case import Examples
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace.names import REGION

if TYPE_CHECKING:
    from support.trace_styles import Event

CHIPS = {
    (9, 0): "NVIDIA H100 80GB HBM3",
    (8, 0): "NVIDIA A100-SXM4-40GB",
    (7, 5): "Tesla T4",
    (7, 0): "Tesla V100-SXM2-32GB",
    (6, 0): "Tesla P100-SXM2-16GB",
}
HALF, BRAIN = "c10::Half", "c10::BFloat16"
SIZES = {"float": 4, "long int": 8, HALF: 2, BRAIN: 2}
NUMBERS = {"float": "6", "long int": "4", HALF: "5", BRAIN: "15"}
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 1ul> >"
    "(int, at::native::{}, std::array<char*, 1ul>)"
)
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_tn_align1>(cutlass_80_simt_sgemm)"
SGEMM = "ampere_sgemm_128x64_nn"
TF32 = "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x64x32_stage3_warpsize2x2x1_tensor16x8x8"
BF16 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
DOUBLE = "sm80_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16_stage3_warpsize2x2x1_tensor8x8x4"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
MIB = 2**20

Body = Callable[["Former"], None]


class OfTheDeviceAlone(TraceBuilder):
    """A trace recorded with ``activities=[ProfilerActivity.CUDA]``: calls and kernels."""

    def document(self) -> Event:
        document = super().document()
        host = {"cpu_op", "user_annotation", "python_function"}
        events = [e for e in document["traceEvents"] if e.get("cat") not in host]
        return document | {"traceEvents": events}


class Former(TraceBuilder):
    """What a few calls of torch leave in a trace, with shapes and frames or without."""

    def __init__(
        self,
        *,
        shapes: bool = True,
        frames: bool = True,
        capability: tuple[int, int] = (9, 0),
        amd: str = "",
    ) -> None:
        vendor = "amd" if amd else "nvidia"
        super().__init__(amd or CHIPS[capability], capability, vendor=vendor)
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


class Measured(Examples):
    """Examples that are captures of ours: a function does what is measured to a `Former`."""

    def measured(
        self,
        rule: str,
        matches: int = 1,
        *,
        also: str = "",
        thresholds: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Callable[[Body], Body]:
        """The function below makes something in which the rule matches so often."""

        def add(body: Body) -> Body:
            def make() -> Former:
                b = Former(frames=False, **options)
                with b.annotation(REGION):
                    body(b)
                b.sync("cudaDeviceSynchronize")  # the profiler's own
                return b

            make.__name__ = body.__name__
            self.positive(rule, matches, also=also, unlike="", **(thresholds or {}))(make)
            return body

        return add

    def silent(self, rule: str, *, also: str = "", **options: Any) -> Callable[[Body], Body]:
        """The same, of something in which it must not match."""
        return self.measured(rule, 0, also=also, **options)


def gemm(b: Former, name: str, dims: list[Any], dtype: str, kernel: str, us: float = 40) -> None:
    with b.ran(f"aten::{name}", dims, [dtype if dim else "Scalar" for dim in dims]):
        b.runtime("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 1)
        b.launch(kernel, us, driver=True, grid=(16, 8, 1))


def linear(
    b: Former, rows: int, into: int, out: int, dtype: str, kernel: str, us: float = 40
) -> None:
    """A layer with bias: linear over addmm, views around."""
    dims = [[rows, into], [out, into], [out]]
    with b.ran("aten::linear", dims, [dtype] * 3):
        with b.ran("aten::t", [[out, into]], [dtype]):
            pass
        gemm(b, "addmm", [[out], [rows, into], [into, out], [], []], dtype, kernel, us)


def elementwise(b: Former, shape: list[int], us: float = 3, name: str = "add") -> None:
    with b.ran(f"aten::{name}", [shape, shape, []], ["float", "float", "Scalar"]):
        b.launch(ADD, us)


def item(b: Former, *, on_device: bool = True) -> None:
    with b.ran("aten::item", [[]], ["float"]), b.ran("aten::_local_scalar_dense", [[]], ["float"]):
        if on_device:
            b.memcpy("DtoH", 4, device_us=1.5)
            b.sync("cudaStreamSynchronize")
