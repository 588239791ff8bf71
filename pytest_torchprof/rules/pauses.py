"""Rules about pauses of the host while the device is idle: collections, and the driver's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.idle_causes import COLLECT, Cause, idle_parts
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.places.place import Owner, frame_of, owner_of
from pytest_torchprof.rules.evidence.calls import step_bounds, step_of
from pytest_torchprof.rules.evidence.pauses import knows_pauses, measured_ns, paused_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting, steps
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    FREE_CALLS,
    MALLOC_CALLS,
    OPERATOR,
    SEGMENT_CALLS,
    Kind,
    Names,
    are_named,
    events_named,
)
from pytest_torchprof.trace.tree import has_frames, operators_around

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Below this share of the span, what a rule cannot see would be no finding either.
_SHARE: Final = 0.05

#: Collections below this share of the longest do not make it one that is repeated.
_ALIKE: Final = 0.1

_COLLECTIONS: Final = Names(COLLECT)


def _unseen_collections(trace: Events) -> Reason | None:
    """Where the host runs Python for long while the device is idle, Python functions.

    A live test has none, and its collections take no time.
    """
    if trace.region is not None or not trace.has(*DEVICE_KINDS) or has_frames(trace):
        return None
    parts = idle_parts(trace)
    python = parts.ns[parts.cause == int(Cause.PYTHON)].sum()
    return (
        because("no_stacks", "recorded without Python functions (with_stack=True records them)")
        if python >= _SHARE * measured_ns(trace)
        else None
    )


@rule(
    "gc-pause",
    fix="gc.freeze() before the loop, and no gc.collect() in it, or one in many steps; "
    "gc.disable() if the loop makes no cycles",
    triggers={COLLECT: "collections"},
    ready=knows_pauses,
    blind=_unseen_collections,
    sees_host=True,
    timed=True,
    share=Threshold(_SHARE, "1", "less is not worth a change"),
    collections=Threshold(3, "1", "once or twice is cleanup, as between parts of a program"),
)
def gc_pause(trace: Events, *, share: float, collections: float) -> Matches:
    """Python collects garbage again and again while the device waits.

    ## What it does

    Counts calls of `gc.collect` during which the device was idle, if there are `collections` (3) or
    more, and together they keep it idle for `share` (0.05) or more of its span; without an
    accelerator, their durations count. They are known by the Python functions of the trace
    (`with_stack=True`), or by annotations named so, such as `record_function("gc.collect")`.

    Not counted: what torch itself collects, and what Python starts by itself, which leaves no
    event. Times decide here, so the matches are not compared with a baseline.

    ## Why it is slow

    A collection looks at every object that may be part of a cycle, and a program that has imported
    torch has hundreds of thousands: it takes 50 to 200 ms, in which nothing is launched. Tensors
    are freed without it when their last reference is gone.

    ## Example

    ```python
    for batch in batches:
        step(batch)
        gc.collect()
    ```

    ## Use instead

    ```python
    gc.collect()
    gc.freeze()  # what exists now is not looked at again
    for number, batch in enumerate(batches):
        step(batch)
        if number % 1000 == 999:
            gc.collect()
    ```
    """
    rows = events_named(trace, _COLLECTIONS)
    rows = rows[trace.selection[rows] & (trace.kind[rows] != Kind.RUNTIME)]
    marked = np.zeros(len(trace), bool)
    marked[rows] = True
    parent, _ = trace.frames
    rows = rows[~nesting.below(marked, parent, rows)]
    rows = rows[~_by_torch(trace, parent[rows])]
    cost = paused_ns(trace, rows, Cause.COLLECTING)
    rows, cost = rows[cost > 0], cost[cost > 0]
    repeated = np.count_nonzero(cost >= _ALIKE * cost.max(initial=0))
    if repeated < collections or cost.sum() < share * measured_ns(trace):
        return NO_MATCHES
    span = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
    return Matches(rows, "Python collects garbage, and nothing else runs", None, cost, span_ns=span)


def _by_torch(trace: Events, callers: Ints) -> Bools:
    """Which of these functions are torch's own, or Python's."""
    own = {}
    for number in nesting.distinct(trace.name[callers[callers >= 0]]).tolist():
        frame = frame_of(trace.names[number])
        own[number] = frame is not None and owner_of(frame.file) == Owner.MACHINERY
    names = np.where(callers >= 0, trace.name[callers], -1).tolist()
    return np.array([own.get(name, False) for name in names], bool)


# ------------------------------------------------------------------------- the driver's memory

_CALLS: Final = Names(MALLOC_CALLS)
_GIVES_BACK: Final = Names(FREE_CALLS)
_EXPANDS: Final = Names(SEGMENT_CALLS)
#: Operators that allocate. Source: aten/src/ATen/native/TensorFactories.cpp.
_EMPTY: Final = Names(r"aten::(empty|empty_strided|empty_like|new_empty|resize_)$")
_EMPTIES_CACHE: Final = Names(r"<built-in (function|method) _cuda_emptyCache\b")

_TIGHT: Final = (
    "leave memory free: a smaller batch, or sizes that do not change from step to step; "
    "against fragmentation PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, unless it is on"
)
_GROWS: Final = (
    "sizes that do not change from step to step (pad to a few lengths, the largest first), or "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, unless it is on"
)
_EMPTIES: Final = "call torch.cuda.empty_cache() outside of the loop, if at all"
_NO_CACHE: Final = (
    "keep torch's caching allocator on: unset PYTORCH_NO_CUDA_MEMORY_CACHING and "
    "PYTORCH_NO_HIP_MEMORY_CACHING"
)


class _Calls(NamedTuple):
    """Calls of the driver after the first step that has any, in order of time, with the operator
    around each (-1 for none), their steps, and the idle ns that each caused.
    """

    row: Ints
    operator: Ints
    step: Ints
    cost: Ints


def _steps(trace: Events, rows: Ints) -> Ints:
    """The step of each event: by the trace's annotations, else by fetches and optimizers."""
    if len(steps.steps_of(trace)) > 1:
        return steps.step_of(trace)[rows]
    return step_of(trace, rows)


def _has_steps(trace: Events) -> Reason | None:
    """Steps, if such calls keep the device idle for long: else it may be one-time work."""
    gap = knows_pauses(trace)
    if gap is not None:
        return gap
    if len(steps.steps_of(trace)) > 1 or len(trace.once(step_bounds)) > 1:
        return None
    rows = events_named(trace, _CALLS)
    idle = paused_ns(trace, rows[trace.selection[rows]], Cause.ALLOCATING).sum()
    return (
        because(
            "no_steps",
            (
                "recorded without steps, so one-time work is not told apart (call the "
                "profiler's step())"
            ),
        )
        if idle >= _SHARE * measured_ns(trace)
        else None
    )


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
    if not len(rows):
        return NO_MATCHES
    step = _steps(trace, rows)
    later = (step > step[step >= 0].min(initial=np.iinfo(np.int64).max)) & (step >= 0)
    rows, step = rows[later], step[later]
    cost = paused_ns(trace, rows, Cause.ALLOCATING)
    if len(nesting.distinct(step)) < steps or cost.sum() < share * measured_ns(trace):
        return NO_MATCHES
    calls = _Calls(rows, operators_around(trace, rows), step, cost)
    frees = are_named(trace, rows, _GIVES_BACK)
    expands = 2 * are_named(trace, rows, _EXPANDS).sum() > len(rows)
    if not expands and 3 * frees.sum() >= len(rows) and _is_uncached(trace, calls):
        return _as_one(trace, calls, "each tensor is allocated and freed by the driver", _NO_CACHE)
    if (frees & (calls.operator < 0)).sum() > frees.sum() / 2:
        return _as_one(trace, calls, "device memory is given back in every step", _EMPTIES)
    message, fix = "device memory still grows in later steps", _GROWS
    if frees.any():
        message, fix = "the allocator frees its cache to allocate other sizes", _TIGHT
    event = np.where(calls.operator >= 0, calls.operator, rows)
    span = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
    return Matches(event, message, None, cost, fix=[fix] * len(rows), span_ns=span)


def _is_uncached(trace: Events, calls: _Calls) -> bool:
    """Whether most operators that allocate, in these steps, call the driver for it."""
    making = events_named(trace, _EMPTY)
    making = making[trace.kind[making] == OPERATOR]
    making = making[nesting.among(_steps(trace, making), calls.step)]
    inside = nesting.distinct(calls.operator[~are_named(trace, calls.row, _GIVES_BACK)])
    return 0 < len(making) < 2 * int(nesting.among(making, inside).sum())


def _as_one(trace: Events, calls: _Calls, message: str, fix: str) -> Matches:
    """Their cause is one, wherever they are: each call is a row, and all have the place of the
    function that empties the cache, or none.
    """
    event = np.full(len(calls.row), -1, np.int64)
    emptying = events_named(trace, _EMPTIES_CACHE)
    if len(emptying) and fix == _EMPTIES:
        event[:] = emptying[0]
    span = trace.ts[calls.row], trace.ts[calls.row] + trace.dur[calls.row]
    return Matches(event, message, None, calls.cost, fix=[fix] * len(event), span_ns=span)
