"""The rule about large copies from and to pageable memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.rules.moves import (
    are_explained,
    copy_callers,
    costs_of,
    of_pageable_memory,
)
from pytest_torchprof.rules.rule import Matches, Threshold, rule

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_PINNED: Final = (
    "keep the host's tensor in pinned memory (pin_memory=True in the DataLoader, or "
    "tensor.pin_memory() once) and copy with non_blocking=True"
)
_PINNED_BACK: Final = (
    "copy into a pinned tensor that is kept (torch.empty(…, pin_memory=True).copy_(x, "
    "non_blocking=True)), and synchronize once before it is read"
)


@rule(
    "pageable-copy",
    fix=_PINNED,
    triggers=r".*Pageable",
    needs="device",
    bytes=Threshold(
        64 * 1024, "B", "CUDA copies up to 64 KiB to the device without a wait, by its guide"
    ),
)
def pageable_copy(trace: Events, *, bytes: float) -> Matches:  # noqa: A002
    """A large copy between the device and pageable memory of the host.

    ## What it does

    Counts copies of more than `bytes` from or to pageable memory, as the profiler names them. Where
    the name does not say so, as on AMD, there is no match.

    Not counted: what `extra-cuda-copy` finds, and the weights of a model that is moved, or saved,
    once.

    ## Why it is slow

    The driver first copies through a pinned buffer of its own, piece by piece, so the bus is not
    saturated, and the host waits in spite of `non_blocking`. CUDA's programming guide
    ("Asynchronous Concurrent Execution") exempts host-to-device copies of up to 64 KiB from the
    wait.

    ## Example

    ```python
    for batch in DataLoader(dataset, batch_size=256, num_workers=4):
        step(batch.cuda())
    ```

    ## Use instead

    ```python
    for batch in DataLoader(dataset, batch_size=256, num_workers=4, pin_memory=True):
        step(batch.cuda(non_blocking=True))
    ```
    """
    copies, up = of_pageable_memory(trace, bytes)
    counted = ~are_explained(trace, copies)
    copies, up = copies[counted], up[counted].tolist()
    event = copy_callers(trace, copies)
    cost, begin, end = costs_of(trace, copies, event)
    return Matches(
        event,
        [
            "copied from pageable memory to the device" if h else "copied to pageable memory"
            for h in up
        ],
        None,
        cost,
        trace.bytes[copies],
        fix=[_PINNED if h else _PINNED_BACK for h in up],
        span_ns=(begin, end),
    )
