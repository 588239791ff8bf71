"""The rule about large copies from and to pageable memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.rules.extra_cuda_copy import filled_copies
from pytest_torchprof.rules.moves import copy_callers, copy_costs, copy_spans, model_moves
from pytest_torchprof.rules.rule import Matches, Threshold, rule
from pytest_torchprof.trace.names import D2H, H2D, Kind
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_PAGEABLE = late(r"Pageable")
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
    counted = ~of_other_rules(trace, copies)
    copies, up = copies[counted], up[counted].tolist()
    event = copy_callers(trace, copies)
    return Matches(
        event,
        [
            "copied from pageable memory to the device" if h else "copied to pageable memory"
            for h in up
        ],
        None,
        copy_costs(trace, copies, event),
        trace.bytes[copies],
        fix=[_PINNED if h else _PINNED_BACK for h in up],
        span_ns=copy_spans(trace, copies, event),
    )


def of_pageable_memory(trace: Events, bytes: float) -> tuple[Ints, Bools]:  # noqa: A002
    """Copies of more than so many bytes that the profiler calls pageable, in either direction; and
    which of them go to the device.
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)[copies]
    large = trace.bytes[copies] > bytes
    large &= trace.names_where(_PAGEABLE.search)[copies]
    large &= up | trace.names_where(D2H.search)[copies]
    return copies[large], up[large]


def of_other_rules(trace: Events, copies: Ints) -> Bools:
    """Which of these copies `extra-cuda-copy` finds, or move a model."""
    if not len(copies):
        return np.zeros(0, bool)
    filled = [one.copy for one in trace.once(filled_copies)] if trace.records_shapes else []
    return among(copies, filled) | among(copies, trace.once(model_moves))
