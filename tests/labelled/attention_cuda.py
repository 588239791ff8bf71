"""Labelled examples of attention written by hand on devices, as Kineto writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from labelled.case import Examples
from labelled.kineto import ADD, BF16, BRAIN, COPY, HALF, SIMT, Former, linear

if TYPE_CHECKING:
    from support.trace_styles import Style

EXAMPLES = Examples()
FLOAT = "float"
AMPERE = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn"
UNALIGNED = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align1>"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN_LDSB1"
WARPS = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>"


class Heads(Former):
    """Operators of attention on a device; each has the next sequence number."""

    def __init__(self, *styles: str | Style, **options: Any) -> None:
        super().__init__(frames=False, **options)
        self.styles, self.number = styles, 40

    def to_bytes(self, style: str | Style | Sequence[str | Style] = ()) -> bytes:
        """In the styles of this example."""
        return super().to_bytes(self.styles or style)

    def numbers(self) -> dict[str, int]:
        """Those of an operator that makes a node of the graph."""
        self.number += 1
        return {"Sequence number": self.number, "Fwd thread id": 0}

    def over(
        self, name: str, shape: list[int], dtype: str, kernel: str = ADD, *, us: float = 40,
        other: list[int] | None = None, concrete: list[str] | None = None,
    ) -> int:  # fmt: skip
        """An operator on the scores, and perhaps on another tensor; its sequence number."""
        args = self.numbers()
        dims, types = [shape, other or [], []], [dtype, dtype if other else "Scalar", "Scalar"]
        with self.op(f"aten::{name}", dims, types, concrete, args=args):
            self.launch(kernel, us)
        return self.number

    def cast(self, shape: list[int], of: str, to: str, us: float = 40) -> None:
        """A copy to another dtype."""
        with (
            self.op("aten::to", [shape, []], [of, "Scalar"], args=self.numbers()),
            self.op("aten::_to_copy", [shape, []], [of, "Scalar"], args=self.numbers()),
            self.op("aten::copy_", [shape, shape, []], [to, of, "Scalar"]),
        ):
            self.launch(COPY, us)

    def softmax(
        self, shape: list[int], dtype: str, kernel: str = WARPS, *, us: float = 60, axis: str = "-1"
    ) -> int:
        """``softmax(-1)``."""
        args = self.numbers()
        dims, types, concrete = [shape, [], []], [dtype, "Scalar", ""], ["", axis, ""]
        with (
            self.op("aten::softmax", dims, types, concrete, args=args),
            self.op("aten::_softmax", dims, [dtype, "Scalar", "Scalar"], concrete, args=args),
        ):
            self.launch(kernel, us)
        return self.number

    def matmul(
        self, left: list[int], right: list[int], dtype: str, kernel: str, us: float = 200
    ) -> int:
        """``left @ right``, in batches."""
        args = self.numbers()
        batch = prod(left[:-2])
        flat = [[batch, *left[-2:]], [batch, *right[-2:]]]
        with self.op("aten::matmul", [left, right], [dtype] * 2, args=args):
            with self.op("aten::bmm", flat, [dtype] * 2, args=args):
                self.launch(kernel, us, grid=(16, 8, 1))
            self.op("aten::_unsafe_view", [flat[0], []], [dtype, ""], args=self.numbers())
        return self.number - 1

    def bmm(
        self, left: list[int], right: list[int], dtype: str, kernel: str, us: float = 200
    ) -> None:
        """The same of three dimensions, without views."""
        with self.op("aten::bmm", [left, right], [dtype] * 2, args=self.numbers()):
            self.launch(kernel, us, grid=(16, 8, 1))

    def view(self, shape: list[int], dtype: str) -> None:
        """A view of a tensor."""
        self.op("aten::view", [shape, []], [dtype, "ScalarList"], args=self.numbers())

    def backward(self, node: str, number: int, *kernels: tuple[str, float]) -> None:
        """A step of the autograd engine."""
        args = {"Sequence number": number, "Fwd thread id": 1}
        with (
            self.op(f"autograd::engine::evaluate_function: {node}", args=args),
            self.op(node, args=args),
        ):
            for kernel, us in kernels:
                self.launch(kernel, us)


def attend(
    b: Heads, heads: list[int], dtype: str, kernel: str, *, scores: str = "", softmax: str = WARPS
) -> list[int]:
    """Scores, scaled, and their softmax times the values; returns the shape of the scores."""
    *batch, length, size = heads
    shape = [*batch, length, length]
    b.matmul(heads, [*batch, size, length], dtype, kernel)
    b.over("div", shape, dtype)
    b.softmax(shape, scores or dtype, softmax)
    b.matmul(shape, heads, dtype, kernel)
    return shape


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
        EXAMPLES.positive("manual-attention", matches, also=also)(make)
        return body

    return add


# ------------------------------------------------------------------------------------- positives


@example(3, capability=(9, 4), amd="AMD Instinct MI300X")
def an_encoder_in_bf16_on_an_mi300(b: Heads) -> None:
    for _ in range(3):
        attend(b, [4, 16, 384, 64], BRAIN, TENSILE)


@example(2, also="unfused-elementwise")
def a_text_encoder_with_a_bias_and_casts(b: Heads) -> None:
    """T5: scores are not scaled, the bias has their shape, the softmax is in fp32."""
    shape, heads = [1, 64, 512, 512], [1, 64, 512, 64]
    b.over("add_", shape, BRAIN, other=[1, 1, 1, 512])  # the bias and the mask, once
    for _ in range(2):
        b.matmul(heads, [1, 64, 64, 512], BRAIN, BF16)
        b.over("add_", shape, BRAIN, other=shape)
        b.cast(shape, BRAIN, FLOAT)
        b.softmax(shape, FLOAT)
        b.cast(shape, FLOAT, BRAIN)
        b.op("aten::dropout", [shape, [], []], [BRAIN, "Scalar", "Scalar"], ["", "0.1", "False"])
        b.matmul(shape, heads, BRAIN, BF16)
        linear(b, 512, 4096, 4096, BRAIN, BF16)


def other_captions() -> Heads:
    """Their scores take 5.8 MiB."""
    b = Heads(capability=(8, 0))
    attend(b, [64, 8, 77, 64], HALF, UNALIGNED)
    b.sync("cudaDeviceSynchronize")
    return b


@EXAMPLES.positive("unaligned-matmul", 2, also="manual-attention", attention=2**30)
def captions_that_are_not_to_be_fused():
    return other_captions()


@EXAMPLES.near_miss("unaligned-matmul", also="manual-attention", attention=2**22)
def captions_that_are_to_be_fused():
    return other_captions()


@example(1, capability=(6, 0))
def attention_on_a_p100(b: Heads) -> None:
    """The memory-efficient kernel runs there, too."""
    attend(b, [8, 8, 256, 64], FLOAT, "maxwell_sgemm_128x64_nn")


@example(1, capability=(8, 0))
def values_of_another_size_than_keys(b: Heads) -> None:
    """Both a multiple of 8, as in latent attention."""
    shape = [4, 16, 512, 512]
    b.matmul([4, 16, 512, 192], [4, 16, 192, 512], HALF, AMPERE)
    b.over("mul", shape, HALF)
    b.softmax(shape, HALF)
    b.matmul(shape, [4, 16, 512, 128], HALF, AMPERE)


@example(1)
def scores_of_little_more_than_a_mebibyte(b: Heads) -> None:
    attend(b, [1, 12, 220, 64], BRAIN, BF16)


# ----------------------------------------------------------------------------------- near misses


@example(0, capability=(7, 0))
def bf16_on_a_v100_which_has_no_fused_kernel_for_it(b: Heads) -> None:
    attend(b, [8, 12, 512, 64], BRAIN, "gemmSN_NN_kernel<__nv_bfloat16>")


@example(0, styles=["no_properties"])
def a_device_that_the_trace_does_not_name(b: Heads) -> None:
    attend(b, [8, 12, 512, 64], HALF, "kernel_of_a_library")


@example(0)
def a_step_that_is_recorded_while_a_graph_is_captured(b: Heads) -> None:
    """Operators and their launches, but nothing runs."""
    heads, shape = [8, 12, 512, 64], [8, 12, 512, 512]

    def recorded(name: str, dims: list[list[int]]) -> None:
        types = [BRAIN if one else "Scalar" for one in dims]
        with b.op(f"aten::{name}", dims, types, ["", "-1", ""][: len(dims)]):
            b.runtime("cudaLaunchKernel")

    recorded("bmm", [[96, 512, 64], [96, 64, 512]])
    recorded("softmax", [shape, [], []])
    recorded("bmm", [[96, 512, 512], [96, 512, 64]])
    linear(b, 4096, 768, 768, BRAIN, BF16)
    b.over("add", heads, BRAIN)


@example(0)
def weights_that_also_weigh_positions(b: Heads) -> None:
    """Relative values of Shaw et al.: a second product with the same weights."""
    shape = attend(b, [4, 16, 384, 64], BRAIN, BF16)
    b.matmul([*shape[:2], *shape[2:]], [4, 16, 384, 64], BRAIN, BF16)


@example(0, capability=(8, 0), also="fp32-matmul")
def a_softmax_over_the_queries(b: Heads) -> None:
    heads, shape = [4, 16, 384, 64], [4, 16, 384, 384]
    b.matmul(heads, [4, 16, 64, 384], FLOAT, SIMT)
    b.softmax(shape, FLOAT, axis="2")
    b.matmul(shape, heads, FLOAT, SIMT)


@example(0)
def scores_of_not_quite_a_mebibyte(b: Heads) -> None:
    attend(b, [1, 12, 200, 64], BRAIN, BF16)
