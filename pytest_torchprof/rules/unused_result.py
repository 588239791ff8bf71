"""unused-result: a tensor is computed or filled, and nothing reads it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.rules.calls import shapes
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, are_named
from pytest_torchprof.trace.tree import backward_of, marked, outermost
from pytest_torchprof.work.counting import operands_of
from pytest_torchprof.work.dataflow import dataflow, made_bytes, nodes_of, possible
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools
    from pytest_torchprof.work.dataflow import Dataflow

#: Operators that fill a tensor with numbers, as layers and ``torch.zeros`` do.
_FILL: Final = Names(r"aten::(fill|zero|normal|uniform|bernoulli|exponential|random|eye)_$")
_LEAVE: Final = "do not compute it (need_weights=False, return_indices=False, …), or use it"
_EMPTY: Final = (
    "allocate it with torch.empty; for layers torch.nn.utils.skip_init, or build the model on the "
    "meta device and load with assign=True"
)


@rule(
    "unused-result",
    fix=_LEAVE,
    needs="live",
    bytes=Threshold(1 << 20, "B", "of the tensor; a smaller one costs little more than its call"),
)
def unused_result(
    trace: Events,
    *,
    bytes: float,  # noqa: A002 - as users set it
) -> Matches:
    """A tensor is computed or filled, and nothing reads it.

    ## What it does

    Counts results of `bytes` (1 MiB) or more that nothing reads before they are released, where
    other results of the same input are used: attention weights beside the output; and tensors that
    are filled, and written over before anything reads them: initial weights before they are loaded.
    Only a live test tells which tensors are released. Not counted: what exists after the test, what
    backward passes compute, second results of an operator that is needed, and a test's last result,
    of which only the shape may be of interest.

    ## Why it is slow

    The operator runs, and the result is written to memory, for nothing.

    ## Example

    ```python
    out, _ = attention(x, x, x)
    layer = torch.nn.Linear(4096, 4096)
    layer.load_state_dict(state)
    ```

    ## Use instead

    ```python
    out, _ = attention(x, x, x, need_weights=False)
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 4096, 4096)
    layer.load_state_dict(state)
    ```
    """
    if not _is_large(trace, bytes):
        return NO_MATCHES
    found, _ = _unused(trace, possible(trace), bytes)
    if trace.tensors is None or not found.any():  # else it would not always be asked who is who
        return NONE_SO_FAR if found.any() and trace.could_know_tensors else NO_MATCHES
    graph = dataflow(trace)
    found, filled = _unused(trace, graph, bytes)
    if not found.any():
        return NO_MATCHES
    rows, over = graph.event[found], filled[found].tolist()
    what = ("makes a tensor that nothing reads", "fills a tensor that is written over unread")
    names = [trace.names[name] for name in trace.name[rows].tolist()]
    return Matches(
        rows,
        [f"{name} {what[one]}" for name, one in zip(names, over, strict=True)],
        cost_ns=trace.dur[rows]
        + (trace.once(launched_ns)[rows] if trace.has(*DEVICE_KINDS) else 0),
        fix=[_EMPTY if one else _LEAVE for one in over],
        wants_tensors=True,
    )


def _is_large(trace: Events, least_bytes: float) -> bool:
    """Whether a node makes or fills so much."""
    event = nodes_of(trace)
    fills = event[are_named(trace, event, _FILL)]
    filled = (prod(dims[0] or ()) for dims in shapes(trace, fills) if dims)
    item = max(ELEMENT_BYTES.values())
    return bool(
        (made_bytes(trace) >= least_bytes).any() or max(filled, default=0) * item >= least_bytes
    )


def _unused(trace: Events, graph: Dataflow, least_bytes: float) -> tuple[Bools, Bools]:
    """Which nodes make or fill a large tensor for nothing, and which ones fill it."""
    live, read, sizes = _live(graph, least_bytes), graph.reads, made_bytes(trace).copy()
    used = np.zeros(len(graph.writer), bool)
    used[read.value[live[read.node]]] = True
    beside = np.zeros(len(graph), bool)  # something else of what it reads is used
    beside[read.node[used[read.value] & (graph.writer[read.value] >= 0)]] = True
    filled = _over(graph) & are_named(trace, graph.event, _FILL)
    firsts = (operands_of(args).optional(0) for args in trace.operands(graph.event[filled]))
    sizes[filled] = [0 if one is None else one.bytes for one in firsts]
    found: Bools = (~live & beside) | filled
    found &= (sizes >= least_bytes) & trace.selection[graph.event] & ~graph.backward
    return found, filled


def _live(graph: Dataflow, least_bytes: float) -> Bools:
    """Which nodes have an effect: what they write is kept, or goes into something that has one."""
    trace, event = graph.trace, graph.event
    made = made_bytes(trace)
    call = nesting.nearest(marked(trace, outermost(trace)), trace.parent, event)
    # What makes nothing gives Python a number; of a loss, only its backward pass may be used.
    kept: Bools = graph.in_place | graph.backward | (made == 0) | (backward_of(trace, call) >= 0)
    if graph.exact:
        kept[graph.writes.node[graph.released_ns(graph.writes.value) < 0]] = True
    else:
        kept |= made < least_bytes
    writers = graph.writer[graph.reads.value]
    for node, writer in zip(graph.reads.node[::-1].tolist(), writers[::-1].tolist(), strict=True):
        if writer >= 0 and kept[node]:
            kept[writer] = True
    return kept


def _over(graph: Dataflow) -> Bools:
    """Which nodes wrote what something wrote over, unread; or may have, if tensors look alike."""
    over, wrote = np.zeros(len(graph), bool), graph.unused() if graph.exact else graph.writes
    known = graph.next_write(wrote.value) >= 0
    if not graph.exact:  # what is loaded looks like what it is loaded into
        copies = are_named(graph.trace, graph.event, "aten::copy_")[wrote.node]
        known &= nesting.among(wrote.tensor, nesting.distinct(wrote.tensor[copies]))
    over[wrote.node[known]] = True
    return over
