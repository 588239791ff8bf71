"""Labelled examples of products in training: attention's backward passes, and rows with padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from labelled.case import Examples
from labelled.products import (
    BF16,
    FLOAT,
    SGEMM,
    XMMA_BF16,
    product,
)
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()
A100 = "NVIDIA A100-SXM4-40GB"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"


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


@EXAMPLES.positive("fp32-matmul", 6, also="manual-attention")
def training_attention_that_a_module_writes_out():
    b = TraceBuilder(A100, (8, 0))
    train_attention(b, [2, 8, 128, 64], math=False)
    return b
