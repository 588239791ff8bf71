"""Rules about copies between the host's memory and the device's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.analysis.device_time import idle_by_waits
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.evidence.calls import step_of
from pytest_torchprof.rules.evidence.devices import (
    came_down,
    copy_callers,
    host_filled_tensors,
    model_moves,
    what_is_copied,
)
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.names import D2H, H2D, Kind
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: For each copy to the device, at most this many earlier copies to the host are checked.
_LATEST = 16
_PAGEABLE = late(r"Pageable")


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
    found = [f for f in trace.once(host_filled_tensors) if f.bytes < 0 or f.bytes >= bytes]
    if not found:
        return NO_MATCHES
    event, maker, size = np.array([(f.call, f.maker, f.bytes) for f in found], np.int64).T
    messages = [f"{f.words} on the CPU, then copied to the device" for f in found]
    copies = np.array([f.copy for f in found], np.int64)
    begin, _ = _spans(trace, copies, maker)
    _, end = _spans(trace, copies, event)
    return Matches(
        event,
        messages,
        None,
        trace.dur[maker] + _costs(trace, copies, event),
        size,
        fix=[f.fix for f in found],
        span_ns=(begin, end),
        wants_tensors=True,
    )


def _has_operators(trace: Events) -> Reason | None:
    """Without operators, what the host did with a copy is unknown."""
    known = trace.has(Kind.OP) or not trace.has(Kind.MEMCPY)
    return None if known else because("without_operators", "recorded without operators")


_PINNED = (
    "keep the host's tensor in pinned memory (pin_memory=True in the DataLoader, or "
    "tensor.pin_memory() once) and copy with non_blocking=True"
)
_PINNED_BACK = (
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
    counted = np.ones(len(copies), bool)
    if trace.records_shapes and counted.any():
        counted &= ~among(copies, [f.copy for f in trace.once(host_filled_tensors)])
    if counted.any():
        counted &= ~among(copies, trace.once(model_moves))
    copies, up = copies[counted], up[counted]
    event = copy_callers(trace, copies)
    cost = _costs(trace, copies, event)
    messages = [
        "copied from pageable memory to the device" if h else "copied to pageable memory"
        for h in up.tolist()
    ]
    return Matches(
        event,
        messages,
        None,
        cost,
        trace.bytes[copies],
        fix=[_PINNED if h else _PINNED_BACK for h in up.tolist()],
        span_ns=_spans(trace, copies, event),
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


@rule(
    "copy-round-trip",
    fix="keep it on the device: do the host's work there, or keep a reference",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="device",
    ready=_has_operators,
    bytes=Threshold(
        4096, "B", "smaller ones are results that are read, and the next inputs of the same shape"
    ),
)
def copy_round_trip(trace: Events, *, bytes: float) -> Matches:  # noqa: A002
    """A tensor is copied from the device to the host, and back to the device.

    ## What it does

    Pairs, within a step and thread, each copy to the device with the latest earlier copy from it of
    the same size, shape and dtype, from `bytes` on. A live test is captured once more to find out
    whether what is copied back was copied out, or computed from that.

    Not counted in a stored trace: what the host may have created, loaded or indexed in between, and
    batches whose results have their size. Deliberately offloaded activations do count.

    ## Why it is slow

    The host waits for the device to finish, the bus transfers everything twice, and the device
    is idle until the data is back.

    ## Example

    ```python
    scores = torch.from_numpy(scores.cpu().numpy().clip(0, 1)).cuda()
    ```

    ## Use instead

    ```python
    scores = scores.clamp(0, 1)
    ```
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    up = trace.names_where(H2D.search)[copies]
    down = trace.names_where(D2H.search)[copies]
    keep = (up | down) & (trace.bytes[copies] >= bytes)
    copies, up = copies[keep], up[keep]
    if up.all() or not up.any():
        return NO_MATCHES
    order = np.argsort(trace.ts[trace.launch[copies]], kind="stable")
    copies, up = copies[order], up[order]
    events = copy_callers(trace, copies)
    calls = trace.launch[copies]
    groups: dict[Any, list[int]] = {}
    shapes = what_is_copied(trace, events)
    size, thread = trace.bytes[copies].tolist(), trace.thread[calls].tolist()
    step = step_of(trace, calls).tolist()
    for i, what in enumerate(shapes):
        groups.setdefault((size[i], what, thread[i], step[i]), []).append(i)
    pairs: list[tuple[int, int]] = []
    for members in groups.values():
        pairs += _round_trips(trace, events, members, up)
    if not pairs:
        both = any(len(set(up[members].tolist())) > 1 for members in groups.values())
        return NONE_SO_FAR if both else NO_MATCHES
    out, back = np.array(sorted(pairs, key=lambda p: p[1]), np.int64).T
    cost = _costs(trace, copies, events)
    messages = [_message(shapes[i], size[i]) for i in back.tolist()]
    (begin, _), (_, end) = (_spans(trace, copies[way], events[way]) for way in (out, back))
    size_2 = 2 * trace.bytes[copies[back]]
    return Matches(
        events[back],
        messages,
        None,
        cost[out] + cost[back],
        size_2,
        span_ns=(begin, end),
        wants_tensors=True,
    )


# -------------------------------------------------------------------- copies and their operators


def _costs(trace: Events, copies: Ints, events: Ints) -> Ints:
    """Time of each copy on the device, plus the time that the device was idle because the copy
    delayed the host: while the host waits for work that the device still has, nothing is lost.
    """
    begin = trace.ts[np.maximum(events, 0)]
    held = np.where(events >= 0, trace.dur[events], 0)
    idle = np.where(events >= 0, idle_by_waits(trace, begin, begin + held), 0)
    return np.minimum(trace.dur[copies] + idle, np.maximum(trace.dur[copies], held))


def _spans(trace: Events, copies: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Begin and end of the host event, if any, else of the call that copies, else of the copy."""
    calls = np.where(trace.launch[copies] >= 0, trace.launch[copies], copies)
    rows = np.where(events >= 0, events, calls)
    return trace.ts[rows], trace.ts[rows] + trace.dur[rows]


def _round_trips(
    trace: Events, events: Ints, members: list[int], up: Bools
) -> list[tuple[int, int]]:
    """Pairs of one kind: each copy up with the latest copy down that it may return."""
    from_host = bool(up[members[0]])
    waiting, pairs = list[int](), list[tuple[int, int]]()
    for i in members:
        if not up[i]:
            waiting.append(i)
            continue
        found = None
        for out in waiting[: -_LATEST - 1 : -1]:
            known = came_down(trace, int(events[out]), int(events[i]))
            if known or (known is None and found is None and not from_host):
                found = out
            if known:
                break
        if found is not None:
            waiting.remove(found)
            pairs.append((found, i))
    return pairs


def _message(what: tuple[tuple[int, ...], str] | None, size: int) -> str:
    if what is None:
        return f"{size} bytes copied to the host and back"
    return f"{list(what[0])} {torch_name(what[1])} copied to the host and back"
