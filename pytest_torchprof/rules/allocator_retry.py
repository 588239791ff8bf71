"""The rule about the driver's memory, allocated and freed in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import measured_ns
from pytest_torchprof.analysis.idle_causes import Cause, paused_ns
from pytest_torchprof.analysis.missing import pauses_gap
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace import steps as profiler_steps
from pytest_torchprof.trace.names import (
    FREE_CALLS,
    MALLOC_CALLS,
    OPERATOR,
    Kind,
    Names,
    are_named,
    events_named,
)
from pytest_torchprof.trace.tree import operators_around, step_bounds, step_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_SHARE: Final = 0.05
_CALLS: Final = Names(MALLOC_CALLS)
_GIVES_BACK: Final = Names(FREE_CALLS)
#: Operators that allocate. Source: aten/src/ATen/native/TensorFactories.cpp.
_EMPTY: Final = Names(r"aten::(empty|empty_strided|empty_like|new_empty|resize_)$")
_EMPTIES_CACHE: Final = Names(r"<built-in (function|method) _cuda_emptyCache\b")
_NO_CACHE: Final = (
    "keep torch's caching allocator on: unset PYTORCH_NO_CUDA_MEMORY_CACHING and "
    "PYTORCH_NO_HIP_MEMORY_CACHING"
)
_EMPTIES: Final = "call torch.cuda.empty_cache() outside of the loop, if at all"
_TIGHT: Final = (
    "leave memory free: a smaller batch, or sizes that do not change from step to step; "
    "against fragmentation PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, unless it is on"
)
_GROWS: Final = (
    "sizes that do not change from step to step (pad to a few lengths, the largest first), or "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, unless it is on"
)
_MESSAGES: Final = {
    _NO_CACHE: "each tensor is allocated and freed by the driver",
    _EMPTIES: "device memory is given back in every step",
    _TIGHT: "the allocator frees its cache to allocate other sizes",
    _GROWS: "device memory still grows in later steps",
}


def _has_steps(trace: Events) -> Reason | None:
    """Steps, if such calls keep the device idle for long: else it may be one-time work."""
    if (gap := pauses_gap(trace)) is not None:
        return gap
    if len(profiler_steps.steps_of(trace)) > 1 or len(trace.once(step_bounds)) > 1:
        return None
    rows = events_named(trace, _CALLS)
    idle = paused_ns(trace, rows[trace.selection[rows]], Cause.ALLOCATING).sum()
    if idle < _SHARE * measured_ns(trace):
        return None
    text = "recorded without steps, so one-time work is not told apart (call the profiler's step())"
    return because("no_steps", text)


@rule(
    "allocator-retry",
    fix=_TIGHT,
    triggers=MALLOC_CALLS,
    needs="device",
    ready=_has_steps,
    timed=True,
    share=Threshold(_SHARE, "1", "less is not worth a change"),
    steps=Threshold(3, "1", "memory may grow in a few steps until it is enough"),
)
def allocator_retry(trace: Events, *, share: float, steps: float) -> Matches:
    """The driver allocates and frees memory in every step, and the device waits.

    ## What it does

    Looks at the driver's calls that allocate and free (`cudaMalloc`, `hipFree`, `cuMemMap` …) after
    the first step that has any. They are a finding if they occur in `steps` (3) further steps or
    more, and the device was idle during them for `share` (0.05) or more of its span. Steps are
    those of `torchprof steps`, else those of a DataLoader or an optimizer.

    The finding says which of four it is: the caching allocator is off; `torch.cuda.empty_cache()`
    is in the loop; the cache is full of blocks of other sizes (`num_alloc_retries`); or sizes grow.
    Pinned memory and memory from the driver's own pool are not counted. Times decide here, so the
    matches are not compared with a baseline.

    ## Why it is slow

    torch keeps freed memory to use it again, without the driver. `cudaMalloc` takes 0.1 to 1 ms,
    and `cudaFree` waits until the device has done everything before it frees: the queue runs empty.

    ## Example

    ```python
    for batch in batches:
        step(batch)
        torch.cuda.empty_cache()
    ```

    ## Use instead

    ```python
    for batch in batches:
        step(batch)
    ```
    """
    rows = events_named(trace, _CALLS)
    rows = rows[trace.selection[rows] & (trace.kind[rows] == Kind.RUNTIME)]
    step = _steps(trace, rows)
    if not (step >= 0).any():
        return NO_MATCHES
    later = step > step[step >= 0].min()
    rows, step = rows[later], step[later]
    cost = paused_ns(trace, rows, Cause.ALLOCATING)
    if len(nesting.distinct(step)) < steps or cost.sum() < share * measured_ns(trace):
        return NO_MATCHES
    operator, frees = operators_around(trace, rows), are_named(trace, rows, _GIVES_BACK)
    event = np.where(operator >= 0, operator, rows)
    if _is_uncached(trace, operator[~frees], step) and frees.any():
        fix, event = _NO_CACHE, np.full(len(rows), -1, np.int64)
    elif (frees & (operator < 0)).sum() > frees.sum() / 2:
        emptying = events_named(trace, _EMPTIES_CACHE)
        fix, event = _EMPTIES, np.full(len(rows), emptying[0] if len(emptying) else -1, np.int64)
    else:
        fix = _TIGHT if frees.any() else _GROWS
    span = around(trace, rows)
    return Matches(event, _MESSAGES[fix], None, cost, fix=[fix] * len(rows), span_ns=span)


def _steps(trace: Events, rows: Ints) -> Ints:
    """The step of each event: by the trace's annotations, else by fetches and optimizers."""
    if len(profiler_steps.steps_of(trace)) > 1:
        return profiler_steps.step_of(trace)[rows]
    return step_of(trace, rows)


def _is_uncached(trace: Events, callers: Ints, step: Ints) -> bool:
    """Whether most operators that allocate, in these steps, call the driver for it."""
    making = events_named(trace, _EMPTY)
    making = making[trace.kind[making] == OPERATOR]
    making = making[nesting.among(_steps(trace, making), step)]
    return 0 < len(making) < 2 * int(nesting.among(making, callers).sum())
