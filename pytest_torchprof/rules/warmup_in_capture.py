"""The rule about a capture that contains what happens only once in a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.idle_causes import OneTime, one_time_work
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import LAUNCHES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_WARM_UP: Final = (
    "warm up before the capture, for its numbers include this: torch.profiler.schedule(wait=1, "
    "warmup=2, active=3), or a few runs and torch.cuda.synchronize() before the profiler starts"
)
_MESSAGES: Final = {
    OneTime.INITIALIZING: "the device and its libraries are initialized",
    OneTime.LOADING_KERNELS: "kernels are loaded on first use",
    OneTime.COMPILING: "torch.compile compiles",
    OneTime.TUNING: "kernels are timed to find the fastest one",
}


@rule(
    "warmup-in-capture",
    fix=_WARM_UP,
    triggers=LAUNCHES,
    needs="device",
    timed=True,
    share=Threshold(0.1, "1", "below, the capture still shows what usually takes time"),
    least=Threshold(5, "ms", "loading a few kernels takes a millisecond in any process"),
)
def warmup_in_capture(trace: Events, *, share: float, least: float) -> Matches:
    """The capture contains work that a process does only once, on first use.

    ## What it does

    Adds up the time that a device lost, between its first and its last event, to work of these
    kinds, and matches if it is at least `least` (5 ms) and `share` (0.1) of that span: the driver
    or a library is initialized; kernels are loaded, of which a slow first launch is a sign;
    `torch.compile` works on what runs at least twice; kernels are timed to find the fastest one.

    The device loses the time in which it is idle because of this, and in which it runs kernels
    that are only timed. Not counted: what comes before the first event of the device; a slow
    launch of a kernel that ran before; recompilations, see `recompile`; the capture of a CUDA
    graph, and allocations. A search by MIOpen or by Triton's `autotune` leaves no sign. All of one
    kind is one finding, at its costliest event. Times decide here.

    ## Why it is slow

    It is slow once: every time, share and average of the capture is about a process that starts.

    ## Example

    ```python
    model.cuda()
    with torch.profiler.profile() as profiler:
        for batch in batches:
            step(batch)
    ```

    ## Use instead

    ```python
    model.cuda()
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=3)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for batch in batches:
            step(batch)
            profiler.step()
    ```
    """
    span = sum(end - begin for begin, end in spans_of(trace).values())
    found = one_time_work(trace)
    if not len(found.event) or found.ns.sum() < max(share * span, least * 1e6):
        return NO_MATCHES
    event, messages = found.event.copy(), [""] * len(found.event)
    for kind, words in _MESSAGES.items():
        mine = np.flatnonzero(found.what == kind)
        if len(mine):
            event[mine] = event[mine[np.argmax(found.ns[mine])]]
            part = f"{100 * int(found.ns[mine].sum()) / span:.0f} %"
            for row in mine.tolist():
                messages[row] = f"{words} within the capture: {part} of the span"
    return Matches(event, messages, cost_ns=found.ns, span_ns=(found.begin, found.end))
