"""Labelled examples of products in training: attention's backward passes, and rows with padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from labelled.case import Examples
from labelled.products import (
    ALIGN1,
    BF16,
    FLOAT,
    H100,
    HALF,
    NAMELESS,
    SGEMM,
    XMMA_BF16,
    one,
    product,
)
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()
A100 = "NVIDIA A100-SXM4-40GB"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"
ALIGN2 = ALIGN1.replace("align1", "align2")


def forward_product(
    b: TraceBuilder, left: Sequence[int], right: Sequence[int], sequence: int,
    dtype: str = FLOAT, kernel: str = SGEMM,
) -> None:  # fmt: skip
    """A ``bmm`` that makes a node of the graph; what is made of it makes the next one."""
    numbers = {"Sequence number": sequence, "Fwd thread id": 0}
    with b.op("aten::matmul", [left, right], [dtype] * 2, args=numbers):
        with b.op("aten::bmm", [left, right], [dtype] * 2, args=numbers):
            b.launch(kernel)
        view = {"Sequence number": sequence + 1, "Fwd thread id": 0}
        b.op("aten::_unsafe_view", [[*left[:-1], right[-1]], []], [dtype, ""], args=view)


def backward_products(
    b: TraceBuilder, left: Sequence[int], right: Sequence[int], sequence: int,
    dtype: str = FLOAT, kernel: str = SGEMM, node: str = "BmmBackward0",
) -> None:  # fmt: skip
    """The two products of the gradients of such a one, as the autograd engine runs them."""
    (*batch, m, k), n = left, right[-1]
    numbers = {"Sequence number": sequence, "Fwd thread id": 1}
    name = "aten::bmm" if batch else "aten::mm"
    with (
        b.op(f"autograd::engine::evaluate_function: {node}", args=numbers),
        b.op(node, [[*batch, m, n]], [dtype], args=numbers),
    ):
        product(b, name, [*batch, k, m], [*batch, m, n], kernel, dtype=dtype)
        product(b, name, [*batch, m, n], [*batch, n, k], kernel, dtype=dtype)


def train_attention(
    b: TraceBuilder, query: Sequence[int], dtype: str = FLOAT, *, inner: str = FLOAT,
    kernel: str = SGEMM, numbers: count[int] | None = None, math: bool = True,
    thread: int = 5001,
) -> None:  # fmt: skip
    """Attention forward and backward, by its math form or written out as a module does."""
    *heads, length, size = query
    batch = 1
    for number in heads:
        batch *= number
    scores = ([batch, length, size], [batch, size, length])
    values = ([batch, length, length], [batch, length, size])
    numbers = numbers or count(40, 10)
    first, second = next(numbers), next(numbers)

    def forward() -> None:
        forward_product(b, *scores, first, inner, kernel)
        with b.op("aten::_softmax", [[*heads, length, length]], [inner]):
            b.launch(SOFTMAX)
        forward_product(b, *values, second, inner, kernel)

    if math:
        dims, types = [list(query)] * 3, [dtype] * 3
        with (
            b.op("aten::scaled_dot_product_attention", dims, types),
            b.op("aten::_scaled_dot_product_attention_math", dims, types),
        ):
            forward()
    else:
        forward()
    with b.thread(thread):
        backward_products(b, *values, second, inner, kernel)
        backward_products(b, *scores, first, inner, kernel)


# ------------------------------------------------------------------------------- fp32-matmul


@EXAMPLES.positive("math-attention")
def training_math_attention_in_fp32():
    b = TraceBuilder(A100, (8, 0))
    train_attention(b, [2, 8, 128, 64])
    return b


@EXAMPLES.positive("math-attention", 3)
def training_three_layers_in_bf16_whose_math_form_computes_in_fp32():
    b = TraceBuilder(H100)
    numbers = count(40, 10)
    for _ in range(3):
        train_attention(b, [2, 8, 128, 64], BF16, numbers=numbers)
    return b


def checkpointed(b: TraceBuilder, *, math: bool) -> None:
    """A reentrant checkpoint runs attention again, and backward, within its own node."""
    query, numbers = [2, 8, 128, 64], {"Sequence number": 7, "Fwd thread id": 1}
    with b.op("CheckpointFunction", [query], [FLOAT], args=numbers | {"Fwd thread id": 0}):
        dims, types = [query] * 3, [FLOAT] * 3
        if math:
            with b.op("aten::_scaled_dot_product_attention_math", dims, types):
                product(b, "aten::bmm", [16, 128, 64], [16, 64, 128], SGEMM)
    # Here the numbers of the main thread are others' than those of the autograd engine's thread.
    forward_product(b, [16, 128, 64], [16, 64, 128], 40, BF16, XMMA_BF16)
    with (
        b.thread(5001),
        b.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", args=numbers),
        b.op("CheckpointFunctionBackward", args=numbers),
    ):
        train_attention(b, query, math=math, thread=5001)


@EXAMPLES.positive("math-attention", 2)
def math_attention_in_a_reentrant_checkpoint():
    b = TraceBuilder(A100, (8, 0))
    checkpointed(b, math=True)
    return b


@EXAMPLES.positive("fp32-matmul", 6)
def attention_written_out_in_a_reentrant_checkpoint():
    b = TraceBuilder(A100, (8, 0))
    checkpointed(b, math=False)
    return b


@EXAMPLES.positive("fp32-matmul", 6, also="manual-attention")
def training_attention_that_a_module_writes_out():
    b = TraceBuilder(A100, (8, 0))
    train_attention(b, [2, 8, 128, 64], math=False)
    return b


@EXAMPLES.positive("fp32-matmul", 3, also="math-attention")
def a_layer_in_fp32_after_math_attention_in_training():
    b = TraceBuilder(A100, (8, 0))
    left, right, numbers = [256, 512], [512, 512], {"Sequence number": 90, "Fwd thread id": 0}
    train_attention(b, [2, 8, 128, 64])
    with b.op("aten::addmm", [[512], left, right], [FLOAT] * 3, args=numbers):
        b.launch(SGEMM)
    with b.thread(5001):
        backward_products(b, left, right, 90, node="AddmmBackward0")
    return b


# --------------------------------------------------------------------------- unaligned-matmul


@EXAMPLES.positive("math-attention")
def seventy_seven_tokens_in_a_math_form_that_computes_in_fp16():
    b = TraceBuilder(A100, (8, 0))
    train_attention(b, [2, 12, 77, 64], HALF, inner=HALF, kernel=ALIGN1)
    return b


@EXAMPLES.positive("unaligned-matmul", 6)
def seventy_seven_tokens_in_attention_that_a_module_writes_out():
    b = TraceBuilder(A100, (8, 0))
    train_attention(b, [2, 12, 77, 64], HALF, inner=HALF, kernel=ALIGN1, math=False)
    return b


@EXAMPLES.near_miss("unaligned-matmul")
def the_gradient_of_logits_whose_rows_are_padded():
    return one("aten::mm", [8192, 50257], [50257, 768], NAMELESS, dtype=BF16,
               strides=[[50304, 1], [768, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def the_gradient_of_logits_whose_rows_are_not():
    return one("aten::mm", [8192, 50257], [50257, 768], NAMELESS, dtype=BF16,
               strides=[[50257, 1], [768, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def padded_rows_that_the_kernel_loads_in_parts_all_the_same():
    return one("aten::mm", [8192, 50257], [50257, 768], ALIGN1, dtype=BF16,
               strides=[[50304, 1], [768, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def rows_that_are_padded_to_a_multiple_of_four():
    return one("aten::mm", [512, 62], [62, 256], NAMELESS, dtype=HALF,
               strides=[[68, 1], [256, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def a_padded_weight_whose_result_has_no_padding():
    # The first 50257 rows of a weight of 50304: each is aligned, and those of the result are not.
    return one("aten::mm", [8192, 768], [768, 50257], NAMELESS, dtype=BF16,
               strides=[[768, 1], [1, 768]])  # fmt: skip


@EXAMPLES.near_miss("unaligned-matmul")
def heads_of_100_in_a_cache_of_128():
    return one("aten::bmm", [16, 64, 100], [16, 100, 128], NAMELESS, dtype=HALF,
               strides=[[8192, 128, 1], [12800, 128, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def padded_rows_in_batches_that_begin_anywhere():
    return one("aten::bmm", [16, 63, 100], [16, 100, 128], NAMELESS, dtype=HALF,
               strides=[[63 * 128 + 4, 128, 1], [12800, 128, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def every_other_column_which_torch_copies_first():
    return one("aten::mm", [512, 63], [63, 256], NAMELESS, dtype=HALF,
               strides=[[128, 2], [256, 1]])  # fmt: skip


@EXAMPLES.positive("unaligned-matmul")
def a_row_that_is_expanded_and_copied_first():
    return one("aten::mm", [512, 63], [63, 256], NAMELESS, dtype=HALF,
               strides=[[0, 1], [256, 1]])  # fmt: skip


@EXAMPLES.near_miss("unaligned-matmul")
def a_number_of_tokens_and_a_kernel_that_loads_less():
    return one("aten::mm", [141, 512], [512, 768], ALIGN2, dtype=BF16,
               strides=[[512, 1], [1, 512]])  # fmt: skip


@EXAMPLES.near_miss("unaligned-matmul")
def a_gradient_of_tokens_whose_columns_are_padded():
    return one("aten::mm", [141, 512], [512, 768], XMMA_BF16, dtype=BF16,
               strides=[[1, 144], [768, 1]])  # fmt: skip
