"""The rule about attention that runs as separate products though the device has a fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.chip import MATH_ATTENTION, has_fused, is_unknown
from pytest_torchprof.rules.rule import Matches, around, rule
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import selected_operators
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events

_ATTENTION: Final = "aten::scaled_dot_product_attention"
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
    inputs = zip(trace.input_shapes(calls), trace.input_types(calls), strict=True)
    for i, ((shapes, types), args) in enumerate(zip(inputs, trace.operands(calls), strict=True)):
        known = len(shapes) >= 3 and all(len(one) > 1 and 0 not in one for one in shapes[:3])
        device = int(trace.device[kernel[i]]) if kernel[i] >= 0 else -1
        if known and device >= 0 and has_fused(trace, device, types[0]):
            kept.append(i)
            dropout = "".join(map(str, decode_list(args.concrete)[4:5]))
            messages.append(_message(shapes[:4], types[0], dropout.strip("0.") not in {"", "None"}))
    above = trace.parent[calls]
    whole = (above >= 0) & trace.named(_ATTENTION)[above]
    event = np.where(whole, above, calls)
    return Matches(
        event[kept], messages, cost_ns=time[kept] // 2, span_ns=around(trace, event[kept])
    )


def _message(shapes: Sequence[Sequence[int]], dtype: str, drops: bool) -> str:
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
