"""The autograd graph: its nodes, what flows between them, and kept gradients."""

# ruff: noqa: PLC0414 - re-exports, until the rules import from `trace.tree` and `work.repeats`

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import (
    decode_list,
)
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    OPERATOR,
    Kind,
    Names,
    are_named,
    operators_named,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tensors import addresses
from pytest_torchprof.trace.tree import Recorded as Recorded
from pytest_torchprof.trace.tree import all_used as all_used
from pytest_torchprof.trace.tree import are_last as are_last
from pytest_torchprof.trace.tree import engine_nodes as engine_nodes
from pytest_torchprof.trace.tree import forward_calls as forward_calls
from pytest_torchprof.trace.tree import has_regions as has_regions
from pytest_torchprof.trace.tree import (
    marked,
)
from pytest_torchprof.trace.tree import node_steps as node_steps
from pytest_torchprof.trace.tree import numbers as numbers
from pytest_torchprof.trace.tree import recorded as recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.rules.evidence.calls import Own
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken


# ---- What recording a graph costs.

#: Time to record a node: to allocate it, and to keep what its backward needs.
_NODE_NS: Final = 1200
#: Time to keep a byte, so that the next operator needs another one, which is in no cache and may be
#: in a page that must be mapped and zeroed. Measured: 0.08 for blocks of megabytes, 0.3 for 4 KiB.
_FRESH_BYTE_NS: Final = 0.12


def recording_ns(trace: Events, nodes: int, kept_bytes: int = 0) -> int:
    """The time to record nodes and to keep their data, on the trace's clock.

    Nodes and pages cost the same whether or not a profiler slows down the operators around them.
    """
    return int(unprofiled_recording_ns(trace, nodes, kept_bytes) / slowdown_share(trace))


def unprofiled_recording_ns(trace: Events, nodes: int, kept_bytes: int = 0) -> float:
    """The same without the profiler, by counts alone.

    On a device, kept data costs memory and no time: nothing is mapped or zeroed. Calls of its
    driver tell that there is one, even where its work was not recorded.
    """
    if trace.has(Kind.RUNTIME, *DEVICE_KINDS):
        kept_bytes = 0
    return nodes * _NODE_NS + kept_bytes * _FRESH_BYTE_NS


def made_bytes(trace: Events, calls: Ints) -> int | None:
    """What was allocated from the first to the last of these calls, and still existed at the end of
    the allocating call; None if the trace has no memory events.
    """
    memory = trace.memory
    if not len(memory.event) or memory.addr is None:
        return None
    at = trace.ts[memory.event]
    begin, last = trace.ts[calls].min(), calls[np.argmax(trace.ts[calls])]
    inside = np.flatnonzero((at >= begin) & (at <= trace.ts[last] + trace.dur[last]))
    every = np.sort(forward_calls(trace))
    call = np.searchsorted(trace.ts[every], at[inside], "right")
    ends = np.append(0, trace.ts[every] + trace.dur[every])[call]
    # An address is allocated and freed in turn: the next event in the same call frees it.
    order = np.lexsort((at[inside], memory.addr[inside]))
    addr, sizes, when = memory.addr[inside][order], memory.bytes[inside][order], at[inside][order]
    freed = np.append(
        (addr[1:] == addr[:-1]) & (sizes[1:] < 0) & (when[1:] <= ends[order][:-1]), False
    )
    return int(sizes[(sizes > 0) & ~freed].sum())


# ---- How data flows between runs of the same layers: whether each run is a separate pass.

#: Operators that draw samples, as in a sampling step, and no layer except dropout.
_DRAWS: Final = Names(
    r"aten::(randn?|randint|randn?_like|randint_like|normal_?|uniform_|exponential_|multinomial"
    r"|poisson|random_)$"
)
#: A step with this many layers is not a cell of a recurrent network.
_MANY_LAYERS: Final = 6
#: The number of runs analyzed, and of calls before them.
_LOOKED: Final = 4
_MOST_CALLS: Final = 5_000


def are_passes(trace: Events, layers: Ints, first: Ints) -> bool:
    """Whether runs of layers, each of which begins with one of ``first``, are separate passes.

    They are not if each takes a different tensor that was computed before all of them, with a
    graph, as one head takes several features; nor if each continues with the output of the previous
    layers, as the cell of a recurrent network does, unless it draws samples or has many layers.
    """
    first = first[:_LOOKED]
    called = np.sort(forward_calls(trace))
    called = called[trace.thread[called] == trace.thread[first[0]]]
    if np.searchsorted(called, first[-1]) > _MOST_CALLS:
        return True
    made_by = makers(trace, int(first[-1]))
    before: list[set[int]] = []
    for begin, end in pairwise(first.tolist()):
        inside = called[(called >= begin) & (called < end)]
        operands = set(flat(trace.taken(inside) or ()))
        before.append({n for n in operands if made_by.get(n, begin) < first[0]})
        if _goes_on(trace, inside, layers, _taken(trace, end, first, layers), made_by):
            many = ((layers >= begin) & (layers < end)).sum() >= _MANY_LAYERS
            if not (many or are_named(trace, inside, _DRAWS).any()):
                return False
    return all(one == other for one, other in pairwise(before))


def once_a_call(
    trace: Events, rows: Ints, owns: Sequence[Own | None], repeats: float
) -> list[Own | None]:
    """The layers without those that run fewer times if one call of an outermost module counts once.

    A call in which samples are drawn between two runs of a layer is a loop of sampling steps: all
    of them count. So do runs outside of any module.
    """
    if trace.module_calls is None:
        return list(owns)
    runs: dict[Own, dict[int, list[int]]] = {}
    for row, own, call in zip(rows.tolist(), owns, trace.module_calls[rows].tolist(), strict=True):
        if own is not None:
            runs.setdefault(own, {}).setdefault(call, []).append(row)
    drawn = operators_named(trace, _DRAWS)
    draws: dict[int, list[int]] = {}
    for row, call in zip(drawn.tolist(), trace.module_calls[drawn].tolist(), strict=True):
        draws.setdefault(call, []).append(row)
    often = set[object]()
    for own, made in runs.items():
        times = 0
        for call, mine in made.items():
            steps = any(mine[0] < row < mine[-1] for row in draws.get(call, ()))
            times += len(mine) if call < 0 or steps else 1
        if times >= repeats:
            often.add(own)
    return [own if own in often else None for own in owns]


def _taken(trace: Events, begin: int, first: Ints, layers: Ints) -> set[int]:
    """What the run that begins there takes: its layers, as far as the next run is known."""
    later = first[first > begin]
    end = int(later[0]) if len(later) else begin + 1
    rows = layers[(layers >= begin) & (layers < end)]
    return set(flat(trace.taken(rows) or ()))


def _goes_on(
    trace: Events, inside: Ints, layers: Ints, later: set[int], made_by: dict[int, int]
) -> bool:
    """Whether the next run takes something that these calls made from their layers' outputs."""
    flowing = set[int]()
    is_layer = among(inside, layers)
    taken, made = trace.taken(inside) or (), trace.made(inside) or ()
    for row, layer, arguments, new in zip(inside.tolist(), is_layer, taken, made, strict=True):
        operands = flat([arguments])
        if layer or not flowing.isdisjoint(operands):
            flowing |= {n for n in new if made_by.get(n) == row}
            if trace.names[trace.name[row]].endswith("_") and operands:
                flowing.add(operands[0])
    return not flowing.isdisjoint(later)


def makers(trace: Events, before: int | None = None) -> dict[int, int]:
    """The operators that made tensors with a graph, by the tensors' numbers."""
    rows = np.sort(recorded(trace, None).rows)
    rows = rows if before is None else rows[rows < before]
    out: dict[int, int] = {}
    for row, new in zip(rows.tolist(), trace.made(rows) or (), strict=True):
        for one in new:
            out.setdefault(one, row)
    return out


def flat(taken: Iterable[tuple[Taken, ...]]) -> list[int]:
    """The numbers of all tensors among the arguments of operators."""
    every = (one for arguments in taken for one in arguments)
    return [n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]


# ---- Gradients that a backward pass leaves to someone else than ``.grad``: what hooks do with
# them.
#
# A hook runs in a step of the engine, beside the step's node. Its operators show it; where it
# only stores the gradient itself, the gradient's memory does, which is not released.

_OPERATOR: Final = Names(r"(?!autograd::|torch::)(?s:.*)::")
#: What the engine itself runs beside a node: it adds gradients up, and reduces one that was
#: expanded, or casts it, to what the node takes.
_ENGINES: Final = Names(r"aten::(add_?|sum|view|to|_to_copy|real|view_as_real|select)$")
#: What a node runs to store a gradient: it takes it as it is, copies it, or adds it.
_STORES: Final = Names(
    r"aten::(detach|add_?|clone|copy_|new_empty\w*|empty\w*|coalesce|_?indices|_?values|to"
    r"|_to_copy|sparse_\w+|_sparse_\w+|_coalesced_)$"
)
#: What copies a gradient.
_COPY: Final = Names(r"aten::(copy_|clone)$")


def hooks_read(trace: Events, steps: Ints, puts: Ints) -> bool:
    """Whether hooks take the gradients of these steps of the engine.

    ``puts``: those of their nodes that store gradients, in which other hooks run.
    """
    rows = np.flatnonzero(trace.kind == OPERATOR)
    above = trace.parent[rows]
    foreign = marked(trace, puts)[above] & ~are_named(trace, rows, _STORES)
    beside = marked(trace, steps)[above] & are_named(trace, rows, _OPERATOR)
    return bool((foreign | (beside & ~are_named(trace, rows, _ENGINES))).any())


def outlive(trace: Events, steps: Ints, puts: Ints, adding: Bools, until: int) -> bool:
    """Whether memory that these steps allocated exists at a time, and holds no ``.grad``.

    ``puts``: the nodes of these steps that store gradients; ``adding``: those that add to one.
    Without memory events, whether one stores a copy, as it does if something else holds the
    gradient, among other reasons. False where gradients are sparse: their parts are unknown.
    A trace that does not identify tensors only tells whether there is more memory than that.
    """
    memory = trace.memory
    if not len(memory.event) or memory.addr is None:
        copies = operators_named(trace, _COPY)
        return bool(marked(trace, puts)[trace.parent[copies]].any())
    if any(map(_is_sparse, trace.operands(puts))):
        return False
    at = trace.ts[memory.event]
    during = np.flatnonzero((at >= trace.ts[steps[0]]) & (at < until))
    # An address is allocated and freed in turn: the last event says which.
    _, last = np.unique(memory.addr[during][::-1], return_index=True)
    alive = during[::-1][last]
    alive = np.sort(alive[memory.bytes[alive] > 0])
    around = trace.enclosing(memory.event[alive])
    alive, around = (one[_nearest(trace, steps, around) >= 0] for one in (alive, around))
    if not len(alive):
        return False
    # A node stores a copy, the sum of both, or else the gradient that it takes.
    within = _nearest(trace, puts, around)
    stored = nesting.distinct(within[within >= 0])
    if np.count_nonzero(within >= 0) > len(stored):
        return True
    moved = ~adding & ~nesting.among(puts, stored)
    rest, begins = alive[within < 0], addresses(trace, puts)
    if begins is None:
        return len(rest) > int(np.count_nonzero(moved))
    return bool((~nesting.among(memory.addr[rest], np.array(begins)[moved])).any())


def _is_sparse(args: OpArgs) -> bool:
    """Whether the first tensor has dimensions, but no strides."""
    dims, strides = decode_list(args.dims), decode_list(args.strides)
    return bool(dims and dims[0]) and strides[:1] == [[]]


def _nearest(trace: Events, marks: Ints, events: Ints) -> Ints:
    return nesting.nearest(marked(trace, marks), trace.parent, events)
