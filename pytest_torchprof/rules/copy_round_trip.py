"""The rule about tensors that go to the host and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.moves import (
    comes_from,
    copy_callers,
    costs_of,
    what_is_copied,
)
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.names import D2H, H2D, Kind, Names, events_named
from pytest_torchprof.trace.tree import called, step_of
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: For each copy to the device, at most this many earlier copies to the host are checked.
_LATEST: Final = 16
#: Operators that make a tensor without copying data from another one.
_NEW: Final = Names(
    r"aten::(empty|zeros|ones|full|rand|randn|randint|normal|arange|linspace|tensor|lift_fresh|"
    r"stack|cat|concat|concatenate|hstack|vstack|from_file|index|index_select|gather|embedding|"
    r"\w+_like|new_\w+)$"
)


def _has_operators(trace: Events) -> Reason | None:
    """Without operators, what the host did with a copy is unknown."""
    known = trace.has(Kind.OP) or not trace.has(Kind.MEMCPY)
    return None if known else because("without_operators", "recorded without operators")


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
    keep = (up | trace.names_where(D2H.search)[copies]) & (trace.bytes[copies] >= bytes)
    copies, up = copies[keep], up[keep]
    if up.all() or not up.any():
        return NO_MATCHES
    order = np.argsort(trace.ts[trace.launch[copies]], kind="stable")
    copies, up = copies[order], up[order]
    events, calls = copy_callers(trace, copies), trace.launch[copies]
    kinds = zip(
        trace.bytes[copies].tolist(),
        [what_is_copied(trace, event) for event in events.tolist()],
        trace.thread[calls].tolist(),
        step_of(trace, calls).tolist(),
        strict=True,
    )
    waiting: dict[Any, list[int]] = {}
    pairs, messages, from_host, both = list[tuple[int, int]](), list[str](), set[Any](), False
    for i, kind in enumerate(kinds):
        if kind not in waiting and up[i]:
            from_host.add(kind)
        down = waiting.setdefault(kind, [])
        if not up[i]:
            down.append(i)
            continue
        both |= bool(down)
        known = {out: _came_down(trace, events[out], events[i]) for out in down[-_LATEST:]}
        fits = [(bool(sure), out) for out, sure in known.items() if sure or sure is None]
        if fits and (max(fits)[0] or kind not in from_host):
            down.remove(out := max(fits)[1])
            pairs.append((out, i))
            what = kind[1] and f"{list(kind[1][0])} {torch_name(kind[1][1])}"
            messages.append(f"{what or f'{kind[0]} bytes'} copied to the host and back")
    if not pairs:
        return NONE_SO_FAR if both else NO_MATCHES
    out, back = np.array(pairs, np.int64).T
    cost, begin, end = costs_of(trace, copies, events)
    return Matches(
        events[back],
        messages,
        None,
        cost[out] + cost[back],
        2 * trace.bytes[copies[back]],
        span_ns=(begin[out], end[back]),
        wants_tensors=True,
    )


def _came_down(trace: Events, down: int, up: int) -> bool | None:
    """Whether one ``copy_`` returns to the device what another one took from it; None if unknown.

    In between, NumPy makes tensors whose origin is unknown.
    """
    if trace.tensors is not None:
        return comes_from(trace, down, up)
    makers = events_named(trace, _NEW)
    makers = makers[called(trace)[makers] & (trace.thread[makers] == trace.thread[down])]
    begin = trace.ts[makers]
    between = (begin >= trace.ts[down] + trace.dur[down]) & (begin < trace.ts[up])
    return False if between.any() else None
