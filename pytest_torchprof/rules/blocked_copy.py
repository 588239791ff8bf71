"""A rule about copies to the device for which the host waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import names_fit
from pytest_torchprof.analysis.device_time import idle, idle_by_waits, measured_ns
from pytest_torchprof.analysis.missing import waits_gap
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.moves import are_explained, copy_callers, of_pageable_memory
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import H2D, SYNC_CALL, Kind
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import operators_around

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_STREAM: Final = late(r"\w*StreamSynchronize")
_WAITS: Final = "the host waits for a copy to the device, and then launches late"


@rule(
    "blocked-copy",
    fix="copy from pinned memory with non_blocking=True; or make it on the device: pass device= to "
    "the function that creates it, and keep what stays the same there",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="device",
    ready=waits_gap,
    timed=True,
    share=Threshold(0.05, "1", "less is not worth a change"),
    copies=Threshold(
        3, "1", "a few copies are the input of a program, unless one waits a long time"
    ),
    wait=Threshold(20, "ms", "a single wait of this length is felt"),
    idle_ms=Threshold(0.1, "ms", "the smallest programs lose less whatever they do"),
)
def blocked_copy(
    trace: Events, *, share: float, copies: float, wait: float, idle_ms: float
) -> Matches:
    """The host waits for copies to the device, and the device then waits for the host.

    ## What it does

    Looks at copies to the device for which the host waits, in a blocking call or in a
    synchronization right after it, while the device still has earlier work. They are a finding if
    there are `copies` or more, or one of `wait` or more, and if the device was idle for `share` of
    its span, and `idle_ms`, between such copies and what the host launched next.

    Not counted: what `pageable-copy` and `extra-cuda-copy` count; the weights of a model that is
    moved once; copies from the device. Times decide, so the matches are not compared with a
    baseline.

    ## Why it is slow

    A copy runs after all earlier work of its stream. Until then the host, which waits for it,
    launches nothing, so the queue is empty when the copy is done: the device is idle until the host
    has caught up. With pinned memory and `non_blocking=True` the host goes on at once.

    ## Example

    ```python
    for lengths in batches_of_lengths:
        mask = torch.tensor(lengths, device="cuda") > 0
        step(mask)
    ```

    ## Use instead

    ```python
    for lengths in batches_of_lengths:
        pinned = torch.tensor(lengths, pin_memory=True)
        mask = pinned.to("cuda", non_blocking=True) > 0
        step(mask)
    ```
    """
    rows = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    rows = rows[names_fit(trace, rows, H2D.search)]
    rows = rows[~among(rows, of_pageable_memory(trace, 64 * 1024)[0])]
    begin, end = trace.ts[trace.launch[rows]], _waited_until(trace, rows)
    # The copy comes after earlier work, mostly, and the host waits for both.
    earlier = 2 * idle(trace).busy_between(begin, trace.ts[rows])
    queued = (earlier >= trace.ts[rows] - begin) & (earlier > 0) & (end > begin)
    rows, begin, end = rows[queued], begin[queued], end[queued]
    if not len(rows):
        return NO_MATCHES
    done = trace.ts[rows] + trace.dur[rows]
    idle_after = np.minimum(idle_by_waits(trace, done, end), end - begin)
    found = idle_after > 0
    many = found.sum() >= copies or (end - begin)[found].max(initial=0) >= wait * 1e6
    found &= many and idle_after[found].sum() >= max(share * measured_ns(trace), idle_ms * 1e6)
    if found.any():
        found &= ~are_explained(trace, rows)
    rows, begin, end = rows[found], begin[found], end[found]
    return Matches(
        copy_callers(trace, rows),
        _WAITS,
        cost_ns=idle_after[found],
        bytes=trace.bytes[rows],
        span_ns=(begin, idle(trace).next_begin(end)),
    )


def _waited_until(trace: Events, copies: Ints) -> Ints:
    """Until when the host waited for each of these copies; 0 where it did not.

    It waits in the call that copies if that is a blocking one, and in the call that synchronizes
    right after it, in the same operator if there is one.
    """
    call = trace.launch[copies]
    blocking = names_fit(trace, call, SYNC_CALL.search)
    until = np.where(blocking, trace.ts[call] + trace.dur[call], 0)
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME))
    calls = calls[np.lexsort((trace.ts[calls], trace.thread[calls]))]
    place = np.full(len(trace), -1, np.int64)
    place[calls] = np.arange(len(calls))
    after = place[call] + 1
    next_ = np.where(after < len(calls), calls[np.minimum(after, len(calls) - 1)], call)
    waits = names_fit(trace, next_, _STREAM.match) & (trace.thread[next_] == trace.thread[call])
    around = operators_around(trace, np.concatenate([call, next_])).reshape(2, -1)
    waits &= around[0] == around[1]
    return np.where(waits, trace.ts[next_] + trace.dur[next_], until)
