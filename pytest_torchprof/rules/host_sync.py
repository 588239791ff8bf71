"""The rule about the host that waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import names_fit
from pytest_torchprof.analysis.device_time import idle, idle_by_waits
from pytest_torchprof.analysis.missing import absent_gap, device_gap, waits_gap
from pytest_torchprof.analysis.waits import Waits, waits
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.rule import Matches, rule
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools

_CONVOLUTION: Final = late(r"aten::(_?convolution|cudnn_conv|miopen_conv|conv)")
_EVENT: Final = late(r"\w*EventSynchronize")
_READ_LATE: Final = "keep the value on the device, or read it once, late, with non_blocking=True"
_LEAVE_OUT: Final = (
    "remove the synchronization, or wait only for the event that matters: streams keep the order"
)


def _has_accelerator(trace: Events) -> Reason | None:
    """An accelerator in the capture, even one without records: the waiting calls are visible."""
    return None if trace.once(waits_gap) is None else trace.once(absent_gap)


@rule(
    "host-sync",
    fix=_READ_LATE,
    triggers=r"\w*Synchronize|\w*Memcpy|Memcpy (DtoH|DeviceToHost|D2M)",
    ready=_has_accelerator,
    blind=waits_gap,
)
def host_sync(trace: Events) -> Matches:
    """The host waits for the device, to read a value or by request.

    ## What it does

    Counts copies from the device that the host waits for, and calls that synchronize with the
    device, a stream or an event. The innermost operator identifies them: `item`, `tolist` and `if
    tensor` lead to `_local_scalar_dense`; masks as indices and `unique` to `nonzero`; `.cpu()` and
    `print` to `copy_`. A wait costs at most the time in which no device had anything to do, during
    it and until the next kernel.

    Not counted: copies to the device, waits of one stream for another, those of collectives and of
    searches for the fastest convolution, and synchronization that delays nothing. On XPU, only
    copies count.

    ## Why it is slow

    The host runs ahead of the device and queues its work. When it waits, the queue runs empty, and
    the device is idle until the host has launched more.

    ## Example

    ```python
    for batch in batches:
        loss = step(batch)
        total += loss.item()
    ```

    ## Use instead

    ```python
    for batch in batches:
        total += step(batch).detach()  # stays on the device
    print(total.item())
    ```
    """
    found = waits(trace)
    found = found.at(~_of_searches(trace, found))
    first = np.where(found.call >= 0, found.call, found.last)
    known = (first >= 0) & (found.last >= 0)
    begin = np.where(known, trace.ts[first], 0)
    end = np.where(known, trace.ts[found.last] + trace.dur[found.last], 0)
    # Without the wait, the host would have been ahead by the time it waited.
    cost = np.zeros(len(found), np.int64)
    cost[known] = np.minimum(idle_by_waits(trace, begin[known], end[known]), found.ns[known])
    if trace.once(device_gap) is not None:  # when the device was idle is unknown
        cost[:] = -1
    each = zip(found.operator.tolist(), found.last.tolist(), found.copies.tolist(), strict=True)
    return Matches(
        np.where(found.operator >= 0, found.operator, found.call),
        [_sentence(trace, operator, call, copies=copies) for operator, call, copies in each],
        cost_ns=cost,
        bytes=found.bytes,
        fix=[_READ_LATE if copies else _LEAVE_OUT for copies in found.copies.tolist()],
        span_ns=(begin, np.where(known, idle(trace).next_begin(end), 0)),
    )


def _of_searches(trace: Events, found: Waits) -> Bools:
    """Waits of libraries that time kernels to find the fastest one: see `warmup-in-capture`.

    cuDNN's waits for an event after each kernel that it times, and for the device after each first
    try. Source: cudnn-frontend, ``time_sorted_plan``.
    """
    convolves = names_fit(trace, found.operator, _CONVOLUTION.match) & ~found.copies
    timed = found.operator[convolves & names_fit(trace, found.last, _EVENT.match)]
    return convolves & among(found.operator, timed)


def _sentence(trace: Events, operator: int, call: int, *, copies: bool) -> str:
    name = trace.names[trace.name[operator]] if operator >= 0 else None
    waits = f"the host waits in {trace.names[trace.name[call]]}" if call >= 0 else "the host waits"
    if copies:
        return f"{name or 'a copy'} reads back from the device: {waits}"
    return f"{name or 'a call to synchronize'}: {waits}"
