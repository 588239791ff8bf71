"""The rule about attention that runs as separate products though the device has a fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.chip import FUSED_TYPES, chip_of
from pytest_torchprof.rules.rule import Matches, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Kind, selected_operators
from pytest_torchprof.trace.tree import forward_of
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

ATTENTION: Final = "aten::scaled_dot_product_attention"
MATH_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"
_FUSED_ATTENTION: Final = late(
    r"aten::_scaled_dot_product_(flash|efficient|cudnn|fused)_attention(?!_for_cpu)"
)
#: Source: sdp_utils.cpp, check_head_dim_size_flash.
_LARGEST_HEAD: Final = 256


def _unseen_attention(trace: Events) -> Reason | None:
    """Attention on an unknown device, or a softmax that graphs launched."""
    if is_unknown(trace, selected_operators(trace, MATH_ATTENTION)):
        return because(
            "attention_on_unknown_chip",
            "attention in its math form: the trace does not say which device it ran on",
        )
    return blind_kernels(trace, lambda name: "softmax" in name.lower())


@rule(
    "math-attention",
    fix="give the fused kernels inputs they support: 4 dimensions, fp16 or bf16, a padded head "
    "size",
    triggers=MATH_ATTENTION + "$",
    needs="shapes device",
    blind=_unseen_attention,
)
def math_attention(trace: Events) -> Matches:
    """Attention runs as separate products and a softmax, though the device has a fused kernel.

    ## What it does

    Counts calls of `scaled_dot_product_attention` that used its math form, on a device for which
    torch has a fused kernel: an NVIDIA device of compute capability 5.0 or later (8.0 for bf16),
    AMD's MI200 and MI300, or any device that ran a fused kernel in the same trace. Inputs that no
    fused kernel supports, such as fp64, are not counted.

    ## Why it is slow

    The math form writes the scores of each query against each key to memory, reads them for the
    softmax and again for the product with the values, and computes fp16 and bf16 in fp32. A fused
    kernel keeps them on the chip.

    ## Example

    ```python
    # 3 dimensions: the fused kernels require (batch, heads, length, size)
    q = k = v = torch.rand(8, 1024, 64, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ```

    ## Use instead

    ```python
    # leave out unneeded masks and dropout; torch gives its reasons with
    # torch.backends.cuda.can_use_flash_attention(params, debug=True)
    q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ```
    """
    calls = selected_operators(trace, MATH_ATTENTION)
    kernel, time = launched_in(trace, calls)
    kept, messages = [], []
    for i, args in enumerate(trace.operands(calls)):
        inputs = _inputs(args)
        device = int(trace.device[kernel[i]]) if kernel[i] >= 0 else -1
        if inputs is not None and device >= 0 and has_fused(trace, device, inputs[1]):
            kept.append(i)
            messages.append(_message(*inputs))
    above = trace.parent[calls]
    whole = (above >= 0) & trace.named(ATTENTION)[above]
    event = np.where(whole, above, calls)
    return Matches(
        event[kept], messages, cost_ns=time[kept] // 2, span_ns=around(trace, event[kept])
    )


def _inputs(args: OpArgs) -> tuple[list[list[int]], str, bool] | None:
    """The shapes of an attention call's inputs and of its mask if any, their dtype, and whether it
    has a dropout; None if the trace does not have them, or if one is empty.
    """
    dims, types, concrete = (decode_list(part) for part in (args.dims, args.types, args.concrete))
    try:
        shapes = [[int(size) for size in one] for one in dims[:4]]
        dtype = str(types[0])
    except (TypeError, ValueError, IndexError):
        return None
    if len(shapes) < 3 or any(0 in one or len(one) < 2 for one in shapes[:3]):
        return None
    dropped = (len(concrete) > 4 and concrete[4]) or "0"
    return shapes, dtype, str(dropped).strip("0.") != ""


def has_fused(trace: Events, device: int, dtype: str) -> bool:
    """Whether a device has a fused attention kernel for inputs of this type."""
    chip = chip_of(trace, device)
    if chip.fuses_attention(dtype):
        return True
    return not chip.is_known and dtype in FUSED_TYPES and trace.once(runs_fused, device)


def is_unknown(trace: Events, calls: Ints) -> bool:
    """Whether one of these calls ran on a device of which the trace does not say what it fuses."""
    kernel, _ = launched_in(trace, calls)
    devices = nesting.distinct(trace.device[kernel[kernel >= 0]]).tolist()
    return any(not (chip_of(trace, d).is_known or trace.once(runs_fused, d)) for d in devices)


def runs_fused(trace: Events, device: int) -> bool:
    """Whether a fused attention kernel ran on this device."""
    calls = np.flatnonzero(trace.is_kind(Kind.OP) & trace.names_where(_FUSED_ATTENTION.match))
    kernel, _ = launched_in(trace, calls)
    return bool((trace.device[kernel[kernel >= 0]] == device).any())


def _message(shapes: list[list[int]], dtype: str, drops: bool) -> str:
    """The sizes, and the visible reasons why fused kernels do not support them."""
    query, _, value = shapes[:3]
    size, whole = query[-1], 4 if dtype == "float" else 8
    seen = [
        (len(query) != 4, f"{len(query)} dimensions"),
        (size % whole > 0 or size > _LARGEST_HEAD, f"a head size of {size}"),
        (value[-1] != size, f"values of {value[-1]}, not of {size}"),
        (len(shapes) > 3 and len(shapes[3]) > 0, "a mask"),
        (drops, "dropout"),
    ]
    why = [words for holds, words in seen if holds]
    others = [one for one in shapes[1:3] if one != query]
    listed = ", ".join("x".join(map(str, one)) for one in [query, *others])
    return f"{SHORT[dtype]} attention in its math form: {listed}" + (
        f", with {' and '.join(why)}" if why else ""
    )


def in_math_attention(trace: Events, events: Ints) -> Bools:
    """Products in the math form of attention, forward and backward: other rules leave them out."""
    attention = trace.is_kind(Kind.OP) & trace.named(MATH_ATTENTION)
    found = np.zeros(len(events), bool)
    if len(events) and attention.any():
        for rows in (events, forward_of(trace, events)):
            found[rows >= 0] |= nesting.below(attention, trace.parent, rows[rows >= 0])
    return found
