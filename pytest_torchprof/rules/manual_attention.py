"""The rule about attention written as separate operators though there is a fused form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.chip import chip_of, on_cpu
from pytest_torchprof.rules.evidence.attention import PRODUCT, SOFTMAX, are_kept, attentions
from pytest_torchprof.rules.math_attention import has_fused, runs_fused
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import count
from pytest_torchprof.trace.tree import engine_steps, forward_of, marked
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.attention import Attention
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


#: A softmax that is not of a gate, which chooses experts.
_SOFTMAX_KERNEL: Final = late(r"^(?!.*(topk|gating)).*softmax", re.IGNORECASE)


def _unseen_attention(trace: Events) -> Reason | None:
    """Attention on an unknown device or in graphs, or weights that may be wanted."""
    if count(trace, SOFTMAX) and attentions(trace, *_defaults()):
        if None in trace.once(_devices, *_defaults()).values():
            return because(
                "manual_attention_on_unknown_chip",
                "unfused attention: the trace does not say which device it ran on",
            )
        found, memory = by_hand(trace, *_defaults()), trace.memory
        blind = memory.addr is None or not len(memory.event)
        if blind and any(not len(own.rows) for own in _steps(trace, found)):
            return because(
                "weights_without_memory",
                ("without memory events, whether unfused attention returns its weights is unknown"),
            )
    return blind_kernels(trace, _SOFTMAX_KERNEL.search)


@rule(
    "manual-attention",
    fix="torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=...), all of 4 "
    "dimensions (batch, heads, length, size), as fused kernels need; it takes masks and biases "
    'too; in transformers attn_implementation="sdpa", if the model has it',
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

    Counts attention of two batched products with a softmax along the last dimension between them,
    if all that happens to the scores is what `scaled_dot_product_attention` does as well: a scale,
    a mask or a bias, casts, dropout. The device must have a fused form for the dtype (see
    `math-attention`; on a CPU only for inference without dropout, not in bf16), the scores must
    take `bytes` (1 MiB) or more, and there must be `length` (32) or more queries or keys.

    Not counted: weights that are also used otherwise, such as averaged or returned ones; scores
    that something else changes; values of another size than the keys that fused kernels do not
    take. The cost is the time of the operators over the scores, forward and backward, less the
    product that a fused backward pass repeats; on a CPU, less may be saved.

    ## Why it is slow

    The scores of each query against each key are written to memory and read again by each operator:
    for 4,096 positions, 16 heads and bf16 that is 0.5 GB each time. A fused kernel keeps them on
    the chip, so memory grows linearly with the length, not quadratically.

    ## Example

    ```python
    import math
    import torch

    q = k = v = torch.rand(1, 8, 256, 64)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    out = torch.softmax(scores, dim=-1) @ v
    ```

    ## Use instead

    ```python
    import torch

    q = k = v = torch.rand(1, 8, 256, 64)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ```
    """
    found = by_hand(trace, bytes, length)
    if not found:
        return NO_MATCHES
    steps = _steps(trace, found)
    forward, backward = _saved_ns(trace, found, steps)
    trained = np.array([len(own.rows) > 0 for own in steps], bool)
    # A backward pass is another stretch of the same match.
    number = np.concatenate([np.arange(len(found)), np.flatnonzero(trained)])
    event = np.array([one.softmax for one in found], np.int64)
    begin, _ = around(trace, np.array([one.first for one in found], np.int64))
    _, end = around(trace, np.array([one.last for one in found], np.int64))
    times = [around(trace, own.rows) for own in steps if len(own.rows)]
    messages = [
        "unfused attention, as products and a softmax: "
        f"{SHORT.get(one.dtype, one.dtype)} scores {[*one.shape]}"
        for one in found
    ]
    return Matches(
        event[number],
        [messages[one] for one in number.tolist()],
        count=np.repeat([1, 0], [len(found), len(times)]),
        cost_ns=np.concatenate([forward, backward[trained]]),
        span_ns=(
            np.concatenate([begin, np.array([since.min() for since, _ in times], np.int64)]),
            np.concatenate([end, np.array([until.max() for _, until in times], np.int64)]),
        ),
    )


#: Stands for the CPU among devices.
_CPU: Final = -1
#: Types of the CPU's fused kernel (aten/src/ATen/native/transformers/sdp_utils_cpp.cpp), but bf16:
#: where the processor has products of it, the fused form took 0.25 to 1.6 times as long.
_CPU_TYPES: Final = frozenset({"float", "double", "c10::Half"})
#: Kernels for values of another dimension than the keys load so many numbers at a time.
#: Source: sdp_utils.cpp, check_head_dim_size_mem_efficient.
_ALIGNED: Final = 8


def by_hand(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    """Runs of attention that the rule counts, in time order."""
    return trace.once(_by_hand, least_bytes, length)


def _by_hand(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    every = attentions(trace, least_bytes, length)
    if not every:
        return []
    devices = trace.once(_devices, least_bytes, length)
    found = [one for one in every if _is_fused(trace, devices[one.softmax], one)]
    steps = _steps(trace, found)
    kept = are_kept(trace, found)
    return [
        one
        for one, own, is_kept in zip(found, steps, kept.tolist(), strict=True)
        # A graph keeps the weights of what is trained.
        if (devices[one.softmax] != _CPU if len(own.rows) else not is_kept)
    ]


def _defaults() -> tuple[float, float]:
    least = manual_attention.thresholds
    return least["bytes"].default, least["length"].default


def _is_fused(trace: Events, device: int | None, one: Attention) -> bool:
    """Whether this device has a fused form of this attention."""
    if device is None:
        return False
    same = one.sizes[0] == one.sizes[1]
    if device == _CPU:
        return same and one.dtype in _CPU_TYPES and not one.drops
    aligned = not any(size % _ALIGNED for size in one.sizes)
    return (same or aligned) and has_fused(trace, device, one.dtype)


def _devices(trace: Events, least_bytes: float, length: float) -> dict[int, int | None]:
    """By softmax, the device on which each attention ran; None if the trace does not say."""
    found = attentions(trace, least_bytes, length)
    rows = np.array([one.softmax for one in found], np.int64)
    kernel, _ = launched_in(trace, rows)
    local = on_cpu(trace, rows).tolist()
    out: dict[int, int | None] = {}
    for row, launched, is_local in zip(rows.tolist(), kernel.tolist(), local, strict=True):
        if launched < 0:
            out[row] = _CPU if is_local else None
        else:
            device = int(trace.device[launched])
            known = chip_of(trace, device).is_known or trace.once(runs_fused, device)
            out[row] = device if known else None
    return out


class _Steps(NamedTuple):
    """Steps of the autograd engine, and the forward operator of each."""

    rows: Ints
    forward: Ints


def _steps(trace: Events, found: list[Attention]) -> list[_Steps]:
    """The backward pass of each attention; empty if it has none."""
    rows = engine_steps(trace)
    rows = rows[trace.selection[rows]]
    rows = rows[~nesting.below(marked(trace, rows), trace.parent, rows)]
    own = {row: at for at, one in enumerate(found) for row in (one.first, *one.over, one.last)}
    mark = marked(trace, np.array([*own], np.int64))
    forward = nesting.nearest(mark, trace.parent, forward_of(trace, rows))
    belongs = np.array([own.get(row, -1) for row in forward.tolist()], np.int64)
    mine = [np.flatnonzero(belongs == at) for at in range(len(found))]
    return [_Steps(rows[at], forward[at]) for at in mine]


def _saved_ns(trace: Events, found: list[Attention], steps: list[_Steps]) -> tuple[Ints, Ints]:
    """The time of the operators over the scores, forward and backward, less that of the product
    that a fused backward pass computes again.
    """
    rows = np.concatenate(
        [own.rows for own in steps] + [np.array((*one.over, one.first), np.int64) for one in found]
    )
    kernel, launched = launched_in(trace, rows)
    times = np.where(kernel >= 0, launched, trace.dur[rows])
    ns = dict(zip(rows.tolist(), times.tolist(), strict=True))
    forward, backward = [], []
    for one, own in zip(found, steps, strict=True):
        forward.append(sum(ns[row] for row in one.over))
        over = ~nesting.among(own.forward, [one.first, one.last])
        back = sum(ns[row] for row in own.rows[over].tolist()) - ns[one.first]
        backward.append(max(back, 0))
    return np.array(forward, np.int64), np.array(backward, np.int64)


def in_manual_attention(trace: Events, events: Ints, least_bytes: float) -> Bools:
    """Products of attention that `manual-attention` counts, forward and backward; its scores take
    so many bytes at least.
    """
    found = by_hand(trace, least_bytes, _defaults()[1])
    if not (found and len(events)):
        return np.zeros(len(events), bool)
    mine = np.array([row for one in found for row in (one.first, one.last)], np.int64)
    own, forward = marked(trace, mine), forward_of(trace, events)
    return (nesting.nearest(own, trace.parent, events) >= 0) | (
        nesting.nearest(own, trace.parent, forward) >= 0
    )
