"""The rule about tensors that are made on the host, and then moved to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.rules.chip import device_type
from pytest_torchprof.rules.moves import costs_of, filled_copies
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@rule(
    "extra-cuda-copy",
    fix="create it on the device: pass device= to the function that creates it",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="shapes device",
    bytes=Threshold(1, "B", "any: a copy costs a launch and a wait, whatever its size"),
)
def extra_cuda_copy(trace: Events, *, bytes: float) -> Matches:  # noqa: A002
    """A tensor is filled or drawn on the CPU, and then moved to the device.

    ## What it does

    Looks for a tensor that the preceding operator filled (`zeros`, `arange` …) or drew (`rand`,
    `normal_` …), and that is then copied to the device: at least `bytes`, of its shape and dtype. A
    live test is captured once more to find out whether this tensor is moved, or another one of its
    shape.

    Not counted: data from Python, a file or a loader; what is computed in between; the parameters
    of a module that is moved.

    ## Why it is slow

    The CPU writes the tensor, the bus transfers it, and the host usually waits for that; the
    device would have filled it in one short kernel.

    ## Example

    ```python
    mask = torch.ones(n, n).cuda()
    ```

    ## Use instead

    ```python
    mask = torch.ones(n, n, device="cuda")
    ```
    """
    found = [one for one in trace.once(filled_copies) if not 0 <= trace.bytes[one.copy] < bytes]
    if not found:
        return NO_MATCHES
    event, maker, copies = np.array([one[:3] for one in found], np.int64).T
    names = [trace.names[name] for name in trace.name[maker].tolist()]
    cost, _, end = costs_of(trace, copies, event)
    return Matches(
        event,
        [
            f"{list(one.shape)} {torch_name(one.dtype)} by {name} on the CPU, then copied to the "
            "device"
            for one, name in zip(found, names, strict=True)
        ],
        None,
        trace.dur[maker] + cost,
        trace.bytes[copies],
        fix=[f"create it on the device: {_there(name, device_type(trace))}" for name in names],
        span_ns=(trace.ts[maker], end),
        wants_tensors=True,
    )


def _there(name: str, device: str) -> str:
    """How to call a filling function so that it works on the device.

    >>> _there("aten::randn", "cuda"), _there("aten::normal_", "cuda")
    ('torch.randn(…, device="cuda")', 'torch.empty(…, device="cuda").normal_(…)')
    """
    function, where = name.removeprefix("aten::"), f'device="{device}"'
    if function.endswith("_"):
        return f"torch.empty(…, {where}).{function}({'' if function == 'zero_' else '…'})"
    like = "x" if function.endswith("_like") else "…"
    return f"{'x' if function.startswith('new_') else 'torch'}.{function}({like}, {where})"
