"""Labelled examples of attention written by hand on devices, as Kineto writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

from labelled.case import Examples
from labelled.kineto import ADD, BF16, BRAIN, COPY, HALF, SGEMM, SIMT, Former, linear
from support.trace_styles import Style, without

EXAMPLES = Examples()
FLOAT = "float"
VOLTA = "volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn"
TURING = "turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn"
AMPERE = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn"
UNALIGNED = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align1>"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x32_MI16x16x1_SN_LDSB1"
WARPS = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>"
BLOCKS = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>"
BACK = "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, false, false>"
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::Half, float>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"


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


@example(2, capability=(7, 0))
def training_with_dropout_on_a_v100(b: Heads) -> None:
    """Two layers of GPT-2 in fp16, forward and backward."""
    shape, heads = [8, 12, 512, 512], [8, 12, 512, 64]
    layers = []
    for _ in range(2):
        first = b.matmul(heads, [8, 12, 64, 512], HALF, VOLTA)
        scaled = b.over("div", shape, HALF)
        masked = b.over("where", shape, HALF, other=[1])
        softmax = b.softmax(shape, HALF)
        dropped = b.over("dropout", shape, HALF, DROPOUT, concrete=["", "0.1", "True"])
        last = b.matmul(shape, heads, HALF, VOLTA)
        layers.append((first, scaled, masked, softmax, dropped, last))
    with b.thread(5001):
        for first, scaled, masked, softmax, dropped, last in reversed(layers):
            b.backward("BmmBackward0", last, (VOLTA, 200), (VOLTA, 200))
            b.backward("NativeDropoutBackward0", dropped, (ADD, 40))
            b.backward("SoftmaxBackward0", softmax, (BACK, 90))
            b.backward("WhereBackward0", masked, (ADD, 40))
            b.backward("DivBackward0", scaled, (ADD, 40))
            b.backward("BmmBackward0", first, (VOLTA, 200), (VOLTA, 200))


@example(3, capability=(9, 4), amd="AMD Instinct MI300X")
def an_encoder_in_bf16_on_an_mi300(b: Heads) -> None:
    for _ in range(3):
        attend(b, [4, 16, 384, 64], BRAIN, TENSILE)


@example(1, capability=(7, 5), styles=[without("Input Strides", "Concrete Inputs")])
def a_vision_transformer_on_a_t4_by_torch_2_0(b: Heads) -> None:
    attend(b, [16, 12, 197, 64], HALF, TURING)


@example(1, capability=(8, 0), styles=["schema_2021"], also="fp32-matmul")
def a_trace_of_2021(b: Heads) -> None:
    attend(b, [16, 12, 128, 64], FLOAT, SGEMM)


@example(1, capability=(8, 0), also="fp32-matmul")
def positions_of_rows_and_columns_are_added(b: Heads) -> None:
    """As in Segment Anything: the bias is made by products, and added in five dimensions."""
    flat, wide = [16, 4096, 4096], [16, 64, 64, 64, 64]
    b.over("mul", [16, 4096, 80], FLOAT)
    b.matmul([16, 4096, 80], [16, 80, 4096], FLOAT, SGEMM)
    for other in ([16, 64, 64, 64, 1], [16, 64, 64, 1, 64]):
        lists = [[], [[16, 64, 64, 80], [64, 64, 80]], []]
        with b.op("aten::einsum", lists, ["", "TensorList", ""]):
            b.bmm([64, 1024, 80], [64, 80, 64], FLOAT, SGEMM)
        b.view(flat, FLOAT)
        b.over("add", wide, FLOAT, other=other)
    b.view(wide, FLOAT)
    b.softmax(flat, FLOAT, BLOCKS)
    b.matmul(flat, [16, 4096, 80], FLOAT, SGEMM)


@example(2)
def a_text_encoder_with_a_bias_and_casts(b: Heads) -> None:
    """T5: scores are not scaled, the bias has their shape, the softmax is in fp32."""
    shape, heads = [1, 64, 512, 512], [1, 64, 512, 64]
    b.over("add_", shape, BRAIN, other=[1, 1, 1, 512])  # the bias and the mask, once
    for _ in range(2):
        b.matmul(heads, [1, 64, 64, 512], BRAIN, BF16)
        b.over("add_", shape, BRAIN, other=shape)
        b.over("to", shape, BRAIN, COPY)
        b.softmax(shape, FLOAT)
        b.over("type_as", shape, FLOAT, COPY, other=shape)
        b.op("aten::dropout", [shape, [], []], [BRAIN, "Scalar", "Scalar"], ["", "0.1", "False"])
        b.matmul(shape, heads, BRAIN, BF16)
        linear(b, 512, 4096, 4096, BRAIN, BF16)


@example(1)
def a_softmax_that_inductor_fused_with_a_mask(b: Heads) -> None:
    with b.op("Torch-Compiled Region: 0/0"):
        b.bmm([32, 1024, 128], [32, 128, 1024], BRAIN, BF16)
        with b.op("triton_per_fused__softmax_masked_fill_mul_0"):
            b.launch("triton_per_fused__softmax_masked_fill_mul_0", 70, driver=True)
        b.bmm([32, 1024, 1024], [32, 1024, 128], BRAIN, BF16)


@example(2, capability=(8, 0))
def captions_of_77_tokens(b: Heads) -> None:
    """The products of 77 tokens are unaligned, but would be gone with them."""
    for _ in range(2):
        attend(b, [64, 8, 77, 64], HALF, UNALIGNED)


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


@example(1, capability=(8, 0))
def scores_that_begin_with_a_mask(b: Heads) -> None:
    """GPT-NeoX: baddbmm on an empty tensor, then a mask."""
    shape = [64, 512, 512]
    dims = [shape, [64, 512, 96], [64, 96, 512], [], []]
    with b.op("aten::baddbmm", dims, [HALF] * 3 + ["Scalar"] * 2):
        b.launch(AMPERE, 200)
    b.view(shape, HALF)
    b.over("where", [1, 64, 512, 512], HALF, other=[1])
    b.softmax([1, 64, 512, 512], HALF)
    b.matmul([1, 64, 512, 512], [1, 64, 512, 96], HALF, AMPERE)


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


@example(0, capability=(8, 0))
def double_precision(b: Heads) -> None:
    attend(b, [8, 12, 512, 64], "double", "ampere_dgemm_64x64_nn")


@example(0, styles=["no_properties"])
def a_device_that_the_trace_does_not_name(b: Heads) -> None:
    attend(b, [8, 12, 512, 64], HALF, "kernel_of_a_library")


@example(0)
def flash_attention_of_another_library(b: Heads) -> None:
    with b.op("flash_attn::_flash_attn_forward", [[8, 512, 12, 64]] * 3, [BRAIN] * 3):
        b.launch(FLASH, 60)


@example(0)
def a_graph_of_kernels(b: Heads) -> None:
    b.graph_launch([BF16, ADD, WARPS, BF16], 50)


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
def the_next_word_is_drawn(b: Heads) -> None:
    """Logits, a softmax, and a product with the embeddings: of three dimensions, and no scores."""
    linear(b, 512, 1024, 50304, BRAIN, BF16)
    b.softmax([1, 512, 50304], BRAIN, BLOCKS)
    with (
        b.op("aten::matmul", [[1, 512, 50304], [50304, 1024]], [BRAIN] * 2),
        b.op("aten::mm", [[512, 50304], [50304, 1024]], [BRAIN] * 2),
    ):
        b.launch(BF16, 200)


@example(0)
def maps_of_attention_go_to_the_host(b: Heads) -> None:
    for _ in range(2):
        shape = attend(b, [4, 16, 384, 64], BRAIN, BF16)
        with ExitStack() as stack:
            for name in ("to", "_to_copy", "copy_"):
                dims, types = [shape, shape, []], [BRAIN, BRAIN, "Scalar"]
                stack.enter_context(b.op(f"aten::{name}", dims, types))
            b.memcpy("DtoH", 2 * prod(shape), pageable=False, device_us=900)


@example(0)
def weights_that_also_weigh_positions(b: Heads) -> None:
    """Relative values of Shaw et al.: a second product with the same weights."""
    shape = attend(b, [4, 16, 384, 64], BRAIN, BF16)
    b.matmul([*shape[:2], *shape[2:]], [4, 16, 384, 64], BRAIN, BF16)


@example(0)
def positions_that_are_shifted_by_a_column(b: Heads) -> None:
    """Transformer-XL: the scores of positions are padded, viewed and cut."""
    heads, shape = [4, 16, 384, 64], [4, 16, 384, 384]
    b.matmul(heads, [4, 16, 64, 384], BRAIN, BF16)
    b.matmul(heads, [1, 16, 64, 384], BRAIN, BF16)
    with b.op("aten::cat", [[[4, 16, 384, 1], shape], []], ["TensorList", "Scalar"]):
        b.launch(COPY, 60)
    b.over("add", shape, BRAIN, other=shape)
    b.softmax(shape, BRAIN)
    b.matmul(shape, heads, BRAIN, BF16)


@example(0, capability=(8, 0), also="fp32-matmul")
def a_softmax_over_the_queries(b: Heads) -> None:
    heads, shape = [4, 16, 384, 64], [4, 16, 384, 384]
    b.matmul(heads, [4, 16, 64, 384], FLOAT, SIMT)
    b.softmax(shape, FLOAT, axis="2")
    b.matmul(shape, heads, FLOAT, SIMT)


@example(0)
def scores_of_images_and_their_captions(b: Heads) -> None:
    """A contrastive loss: products and a softmax, but no values."""
    b.matmul([8, 512, 64], [8, 64, 512], BRAIN, BF16)
    b.softmax([8, 512, 512], BRAIN)
    b.over("log", [8, 512, 512], BRAIN)
    linear(b, 512, 1024, 1024, BRAIN, BF16)


@example(0)
def scores_of_not_quite_a_mebibyte(b: Heads) -> None:
    attend(b, [1, 12, 200, 64], BRAIN, BF16)
