"""The rule about attention written as separate operators though there is a fused form."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in, took_ns
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.attention import PRODUCT, SOFTMAX, attentions
from pytest_torchprof.rules.chip import has_fused, is_unknown, on_cpu
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from pytest_torchprof.rules.attention import Attention
    from pytest_torchprof.trace.events import Events

_DROPOUT: Final = Names(r"aten::(native_|_fused_)?dropout_?$")
#: A softmax that is not of a gate, which chooses experts.
_SOFTMAX_KERNEL: Final = late(r"^(?!.*(topk|gating)).*softmax", re.IGNORECASE)
#: Types of the CPU's fused kernel (aten/src/ATen/native/transformers/sdp_utils_cpp.cpp), but bf16:
#: where the processor has products of it, the fused form took 0.25 to 1.6 times as long.
_CPU_TYPES: Final = frozenset({"float", "double", "c10::Half"})
#: Kernels for values of another size than the keys load so many numbers at a time.
#: Source: sdp_utils.cpp, check_head_dim_size_mem_efficient.
_ALIGNED: Final = 8


def _unseen_attention(trace: Events) -> Reason | None:
    """Attention on an unknown device, or in graphs."""
    least = [one.default for one in manual_attention.thresholds.values()]
    rows = [one.softmax for one in attentions(trace, *least)]
    if is_unknown(trace, np.array(rows, np.int64)):
        return because(
            "manual_attention_on_unknown_chip",
            "unfused attention: the trace does not say which device it ran on",
        )
    return blind_kernels(trace, _SOFTMAX_KERNEL.search)


@rule(
    "manual-attention",
    fix="torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...), all of 4 "
    "dimensions (batch, heads, length, size), as fused kernels need; in transformers "
    'attn_implementation="sdpa", if the model has it',
    triggers={SOFTMAX.pattern: 1, PRODUCT.pattern: 2},
    needs="shapes",
    blind=_unseen_attention,
    sees_host=SOFTMAX.pattern,
    bytes=Threshold(2**20, "B", "smaller scores stay in the device's caches"),
    length=Threshold(32, "1", "fused kernels work on tiles of so many queries and keys, or more"),
)
def manual_attention(trace: Events, *, bytes: float, length: float) -> Matches:  # noqa: A002
    """Attention is written as two products and a softmax, though there is a fused form.

    ## What it does

    Follows what a softmax along the last dimension takes, and what takes its result: counts it if
    they come from and go to batched products, and only what `scaled_dot_product_attention` does as
    well lies between: a scale, a mask or a bias, casts, dropout. The device must have a fused form
    for the dtype (see `math-attention`; on a CPU for inference without dropout, not in bf16), the
    scores must take `bytes` (1 MiB) or more, and have `length` (32) or more queries or keys.

    Not counted: weights that are also used otherwise, such as averaged or returned ones (a stored
    trace does not tell which are returned); values of another size than the keys that fused kernels
    do not take; what Inductor fused. The cost is the time of the operators between the
    products, forward and backward.

    ## Why it is slow

    The scores of each query against each key are written to memory and read again by each operator:
    for 4,096 positions, 16 heads and bf16 that is 0.5 GB each time. A fused kernel keeps them on
    the chip, so memory grows linearly with the length, not quadratically.

    ## Example

    ```python
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    out = torch.softmax(scores, dim=-1) @ v
    ```

    ## Use instead

    ```python
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ```
    """
    found = by_hand(trace, bytes, length)
    if not found:
        return NO_MATCHES
    rows = [np.append(one.rows, one.steps) for one in found]
    inner = [np.append(one.rows[1:-1], one.steps) for one in found]
    times = [around(trace, some) for some in rows]
    return Matches(
        np.array([one.softmax for one in found], np.int64),
        [
            "unfused attention, as products and a softmax: "
            f"{SHORT.get(one.dtype, one.dtype)} scores {[*one.shape]}"
            for one in found
        ],
        cost_ns=np.array([took_ns(trace, some).sum() for some in inner], np.int64),
        span_ns=(
            np.array([begin.min() for begin, _ in times], np.int64),
            np.array([end.max() for _, end in times], np.int64),
        ),
        wants_tensors=not dataflow(trace).exact,
    )


def by_hand(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    """Runs of attention that the rule counts, in time order."""
    every = [one for one in attentions(trace, least_bytes, length) if _is_fused(trace, one)]
    if len(every) < 2:
        return every
    # Weights that still exist after the next attention are wanted; the last layer's tell nothing.
    kept, graph = set[tuple[int, ...]](), dataflow(trace)
    for one, other in pairwise(every if graph.exact else []):
        end = int(around(trace, other.rows[-1:])[1][0])
        if not len(one.steps) and graph.outlives(graph.left(one.softmax).value, end).any():
            kept.add(one.shape)
    return [one for one in every if one.shape not in kept]


def _is_fused(trace: Events, one: Attention) -> bool:
    """Whether its device has a fused form of this attention."""
    row, same = np.array([one.softmax]), one.sizes[0] == one.sizes[1]
    (kernel,) = launched_in(trace, row)[0].tolist()
    if kernel < 0:
        fine = same and one.dtype in _CPU_TYPES and on_cpu(trace, row)[0] and not len(one.steps)
        return bool(fine and not are_named(trace, one.rows, _DROPOUT).any())
    same |= not any(size % _ALIGNED for size in one.sizes)
    return same and has_fused(trace, int(trace.device[kernel]), one.dtype)
