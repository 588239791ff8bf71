"""The same as `outsider`, of what a device computes: captures as Kineto would write them."""

from __future__ import annotations

from labelled.case import ANY
from labelled.kineto import (
    ADD,
    BF16,
    BRAIN,
    DOUBLE,
    HALF,
    SGEMM,
    SIMT,
    TF32,
    Former,
    Measured,
    gemm,
    linear,
)

EXAMPLES = Measured()


# ------------------------------------------------------------------------------ fp32-matmul


@EXAMPLES.measured("fp32-matmul", 3)
def outside_layers_in_single_precision(b: Former) -> None:
    for into, out in ((256, 512), (512, 512), (512, 64)):
        linear(b, 128, into, out, "float", SIMT)


@EXAMPLES.measured("fp32-matmul", 2, capability=(8, 0))
def outside_batched_products_on_ampere(b: Former) -> None:
    for _ in range(2):
        gemm(b, "bmm", [[8, 64, 64], [8, 64, 64]], "float", SGEMM)


@EXAMPLES.measured("fp32-matmul", 1)
def outside_scores_with_a_bias(b: Former) -> None:
    dims = [[8, 64, 64], [8, 64, 32], [8, 32, 64], [], []]
    gemm(b, "baddbmm", dims, "float", SIMT)


@EXAMPLES.silent("fp32-matmul")
def outside_layers_in_half_precision(b: Former) -> None:
    linear(b, 128, 256, 512, BRAIN, BF16)


@EXAMPLES.silent("fp32-matmul", capability=(8, 0))
def outside_layers_in_tensor_float(b: Former) -> None:
    linear(b, 128, 256, 512, "float", TF32)


@EXAMPLES.silent("fp32-matmul")
def outside_product_in_double_precision(b: Former) -> None:
    gemm(b, "mm", [[128, 128], [128, 128]], "double", DOUBLE)


@EXAMPLES.silent("fp32-matmul", also="half-unused", capability=(7, 0))
def outside_product_on_a_chip_without_tensor_float(b: Former) -> None:
    gemm(b, "mm", [[128, 128], [128, 128]], "float", "volta_sgemm_128x64_nn")


# ------------------------------------------------------------------------- unaligned-matmul


@EXAMPLES.measured("unaligned-matmul", 1)
def outside_head_of_an_odd_vocabulary(b: Former) -> None:
    gemm(b, "mm", [[64, 768], [768, 50257]], BRAIN, BF16)


@EXAMPLES.measured("unaligned-matmul", 1)
def outside_layer_of_odd_width(b: Former) -> None:
    linear(b, 128, 250, 512, HALF, BF16)


@EXAMPLES.measured("unaligned-matmul", 2, capability=(8, 0))
def outside_scores_of_seventy_seven_words(b: Former) -> None:
    gemm(b, "bmm", [[8, 77, 64], [8, 64, 77]], HALF, "ampere_fp16_s16816gemm_fp16_64x64_nn")
    gemm(b, "bmm", [[8, 77, 77], [8, 77, 64]], HALF, "ampere_fp16_s16816gemm_fp16_64x64_nn")


@EXAMPLES.silent("unaligned-matmul", also="fp32-matmul")
def outside_odd_product_in_single_precision(b: Former) -> None:
    gemm(b, "mm", [[201, 201], [201, 201]], "float", SIMT)


@EXAMPLES.silent("unaligned-matmul", thresholds={"smallest_dimension": 256})
def outside_odd_but_small_enough_to_pass(b: Former) -> None:
    gemm(b, "mm", [[201, 201], [201, 201]], HALF, BF16)


@EXAMPLES.silent("unaligned-matmul")
def outside_multiples_of_eight(b: Former) -> None:
    linear(b, 128, 264, 50264, BRAIN, BF16)


@EXAMPLES.silent("unaligned-matmul")
def outside_odd_batch_of_even_matrices(b: Former) -> None:
    gemm(b, "bmm", [[7, 64, 64], [7, 64, 64]], BRAIN, BF16)


# ----------------------------------------------------------------------------- launch-bound


def _small(b: Former, count: int, device_us: float, host_us: float = 6) -> None:
    for _ in range(count):
        with b.ran("aten::add", [[64], [64], []], ["float", "float", "Scalar"], args=None):
            b.launch(ADD, device_us, host_us=host_us)
            b.advance(4)


@EXAMPLES.measured("launch-bound", ANY, capability=(8, 0))
def outside_many_layers_of_a_tiny_model(b: Former) -> None:
    kernel = "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn"
    for _ in range(200):
        linear(b, 8, 32, 32, BRAIN, kernel, 3)
        _small(b, 3, 2, 7)


@EXAMPLES.measured("launch-bound", ANY, shapes=False)
def outside_many_small_kernels_without_shapes(b: Former) -> None:
    _small(b, 600, 2, 8)


@EXAMPLES.silent("launch-bound")
def outside_five_small_kernels(b: Former) -> None:
    _small(b, 5, 1.5)


@EXAMPLES.silent("launch-bound")
def outside_a_graph_of_a_thousand_small_kernels(b: Former) -> None:
    b.graph_launch([ADD] * 1000, 1.5)


@EXAMPLES.silent("launch-bound", thresholds={"kernels": 2000})
def outside_a_thousand_where_two_thousand_are_many(b: Former) -> None:
    _small(b, 1000, 1.5)


@EXAMPLES.silent("launch-bound", thresholds={"idle_share": 0.99})
def outside_a_device_that_may_be_idle(b: Former) -> None:
    _small(b, 1000, 1.5)


@EXAMPLES.silent("launch-bound", thresholds={"pause": 1e-6})
def outside_a_host_whose_every_gap_is_a_pause(b: Former) -> None:
    _small(b, 1000, 1.5)


# --------------------------------------------------------------------------- math-attention


@EXAMPLES.silent("math-attention")
def outside_attention_by_hand(b: Former) -> None:
    gemm(b, "bmm", [[16, 128, 64], [16, 64, 128]], BRAIN, BF16)
    with b.ran("aten::softmax", [[16, 128, 128], [], []], [BRAIN, "Scalar", ""]):
        b.launch("void (anonymous namespace)::softmax_warp_forward<float, float, float, 7>", 5)
    gemm(b, "bmm", [[16, 128, 128], [16, 128, 64]], BRAIN, BF16)
