"""Labelled examples of the rule about elementwise kernels that one kernel could replace."""

from __future__ import annotations

from math import prod

from labelled.case import Examples
from support.chips import Gpu

EXAMPLES = Examples()

RULE = "unfused-elementwise"
HALF, BRAIN, SINGLE = "c10::Half", "c10::BFloat16", "float"
ITEM = {HALF: 2, BRAIN: 2, SINGLE: 4, "bool": 1, "unsigned char": 1}
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
UNROLLED = "void at::native::unrolled_elementwise_kernel<at::native::{}>"
PLAIN = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<{}>>"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::{}>>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"

Shape = list[int]


class Pointwise(Gpu):
    """Operators on large tensors; a kernel takes as long as its bytes at 2 TB/s."""

    def us(self, *tensors: tuple[Shape, str]) -> float:
        """How long it takes to move these."""
        return max(sum(prod(shape) * ITEM[dtype] for shape, dtype in tensors) / 2e6, 2)

    def run(
        self, name: str, shape: Shape, dtype: str = SINGLE, *, other: Shape | None = None,
        kernel: str = VECTORIZED, stream: int = 7, host_us: float = 3, numbers: int = 0,
    ) -> None:  # fmt: skip
        """An operator on one tensor, or on two, with so many numbers after them."""
        inputs = [shape] if other is None else [shape, other]
        dims = [*inputs, *[[]] * numbers]
        types = [dtype] * len(inputs) + ["Scalar"] * numbers
        moved = [(one, dtype) for one in [*inputs, max(inputs, key=prod)]]
        with self.op(f"aten::{name}", dims, types, ["", *["2"] * (len(dims) - 1)], host_us):
            self.launch(kernel.format(name), self.us(*moved), stream, host_us=host_us)

    def cast(self, shape: Shape, to: str, of: str) -> None:
        """A copy to another dtype, or in another layout."""
        with (
            self.op("aten::to", [shape, []], [of, "Scalar"]),
            self.op("aten::_to_copy", [shape, []], [of, "Scalar"], ["", "6"]),
            self.op("aten::copy_", [shape, shape, []], [to, of, "Scalar"]),
        ):
            kernel = UNROLLED.format("direct_copy_kernel_cuda")
            self.launch(kernel, self.us((shape, to), (shape, of)), host_us=3)

    def mean(self, shape: Shape, dtype: str = SINGLE, name: str = "mean") -> None:
        """A reduction over the last dimension."""
        dims, types = [shape, [], [], []], [dtype, "ScalarList", "Scalar", ""]
        with self.op(f"aten::{name}", dims, types, ["", "[-1]", "True", ""]):
            self.launch(REDUCE.format("MeanOps"), self.us((shape, dtype)), host_us=3)

    def product(self, us: float = 300) -> None:
        """A layer, while which the host runs ahead."""
        with self.op("aten::mm", [[8192, 4096], [4096, 4096]], [BRAIN] * 2):
            self.launch(GEMM, us, grid=(2048, 1, 1), host_us=3)


def ahead(chip: str = "H100", *styles: str, strides: bool = True) -> Pointwise:
    """A trace in which the device has work for some time."""
    b = Pointwise(chip, *styles, strides=strides)
    b.product(600)
    return b


# ------------------------------------------------------------------------------- positives

STATES = [16, 1024, 2048]


@EXAMPLES.positive(RULE, 5)
def rotary_embeddings():
    b, shape = ahead("MI210"), [16, 32, 2048, 128]
    for _ in range(5):
        b.run("mul", shape, HALF, other=[1, 1, 2048, 128], kernel=PLAIN)
        b.run("add", shape, HALF, other=shape, numbers=1, kernel=PLAIN)
        b.product(500)
    return b


@EXAMPLES.positive(RULE)
def a_focal_loss():
    b, shape = ahead("T4"), [16, 80, 200, 200]
    b.run("sigmoid", shape)
    b.run("rsub", shape, numbers=2)
    b.run("pow", shape, numbers=1)
    b.run("mul", shape, other=shape)
    b.mean(shape, name="sum")
    return b


@EXAMPLES.positive(RULE, 3)
def a_mask_from_a_comparison():
    b, shape = ahead("A100", strides=False), [256, 1024, 1024]
    for _ in range(3):
        with b.op("aten::gt", [shape, []], [SINGLE, "Scalar"], ["", "0"], 3):
            b.launch(VECTORIZED.format("CompareFunctor"), b.us((shape, SINGLE)), host_us=3)
        b.cast(shape, SINGLE, "bool")
        b.product()
    return b


@EXAMPLES.positive(RULE, 4)
def the_backward_pass_of_an_activation():
    b, shape = ahead(), [16, 1024, 8192]
    for _ in range(4):
        b.product()
        with (
            b.op("autograd::engine::evaluate_function: MulBackward0"),
            b.op("MulBackward0", [shape], [BRAIN]),
        ):
            b.run("mul", shape, BRAIN, other=shape)
        with (
            b.op("autograd::engine::evaluate_function: SiluBackward0"),
            b.op("SiluBackward0", [shape], [BRAIN]),
        ):
            b.run("silu_backward", shape, BRAIN, other=shape)
    return b


@EXAMPLES.positive(RULE, 12)
def an_average_of_weights():
    """As many chains as weights: the two updates of each are one ``lerp_``."""
    b = ahead()
    for _ in range(12):
        b.run("mul_", [4096, 4096], numbers=1)
        b.run("add_", [4096, 4096], other=[4096, 4096], numbers=1)
    return b


@EXAMPLES.positive(RULE, 3)
def pictures_to_numbers_between_one_and_minus_one():
    b, shape = ahead("V100", "schema_2021"), [64, 3, 512, 512]
    for _ in range(3):
        b.cast(shape, SINGLE, "unsigned char")
        b.run("div", shape, other=[])
        b.run("sub", shape, other=[3, 1, 1], numbers=1)
        b.product()
    return b


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.positive(RULE, 40, bytes=1 << 20)
def small_tensors_where_small_ones_count():
    return small_tensors_that_stay_in_the_cache()


@EXAMPLES.near_miss(RULE, bytes=8 << 20)
def small_tensors_that_stay_in_the_cache():
    b, shape = ahead(), [8, 256, 512]
    for _ in range(40):
        b.run("mul", shape, other=[512], host_us=1)
        b.run("sigmoid", shape, host_us=1)
    return b


@EXAMPLES.near_miss(RULE)
def results_of_another_dtype():
    b, shape = ahead(), [64, 1024, 1024]
    for _ in range(8):
        b.run("eq", shape, other=shape)
        b.run("mul", shape, other=[1024])
        b.product()
    return b


@EXAMPLES.near_miss(RULE, also="single-tensor-optimizer")
def an_optimizer_for_one_parameter_after_the_other():
    b = ahead()
    with b.annotation("Optimizer.step#SGD.step"):
        for _ in range(12):
            b.run("mul_", [4096, 4096], numbers=1)
            b.run("add_", [4096, 4096], other=[4096, 4096], numbers=1)
    return b


@EXAMPLES.near_miss(RULE)
def the_same_for_one_tensor_after_the_other():
    b = ahead("MI300X")
    for _ in range(4):
        for _ in range(6):
            b.run("exp", [4096, 8192])
        b.product()
    return b


@EXAMPLES.near_miss(RULE)
def a_layer_between_all_of_them():
    b = ahead()
    for name in ("relu", "gelu", "tanh", "sigmoid", "silu", "neg"):
        b.product()
        b.run(name, [16, 1024, 8192], BRAIN)
    return b


@EXAMPLES.near_miss(RULE)
def two_streams_in_turn():
    b = ahead("A100")
    for _ in range(10):
        b.run("exp", [4096, 8192], stream=7)
        b.run("mul", [4096, 8192], other=[8192], stream=13)
    return b


@EXAMPLES.near_miss(RULE)
def what_a_graph_launched():
    b = ahead()
    b.run("exp", STATES)
    b.graph_launch([VECTORIZED.format("mul"), VECTORIZED.format("add")] * 20, 80)
    return b


@EXAMPLES.positive(RULE, share=0.005)
def one_chain_of_a_long_step_where_little_counts():
    return one_chain_of_a_long_step()


@EXAMPLES.near_miss(RULE, share=0.02)
def one_chain_of_a_long_step():
    b = ahead()
    for _ in range(20):
        b.product(500)
    b.run("exp", [4096, 8192])
    b.run("mul", [4096, 8192], other=[8192])
    return b
