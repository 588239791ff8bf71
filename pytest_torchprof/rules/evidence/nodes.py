"""Nodes of autograd graphs: which operators record them, and which ones a backward pass runs.

An operator's sequence number is the one that its thread's next node will have. torch records it
whenever grad mode is on, whether or not the operator makes a node, so an operator has made nodes if
the next operator's number is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.unprofiled_time import slowdown_share
from pytest_torchprof.trace.arguments import AutogradArgs, decode, decode_texts
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.levels import are_engine_steps, calls, compiled
from pytest_torchprof.trace.name_index import (
    OPERATOR,
    Names,
    are_named,
    numbers_of,
    operators_named,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import outermost_named, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: A function compiled by torch.compile, recorded as an operator around what it calls.
_REGION: Final = Names(r"Torch-Compiled Region")
#: A step of the engine; each, except for accumulating gradients, runs an operator's node.
_RUNS: Final = Names(r"autograd::engine::evaluate_function: ")
_GRADIENT: Final = Names(r".*::AccumulateGrad$")
#: How many calls ahead the number of the next node is searched.
_FAR: Final = 100


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


class Recorded(NamedTuple):
    """Calls that recorded nodes, with the numbers of their first node and of the next one."""

    rows: Ints
    first: Ints
    after: Ints

    def where(self, chosen: Bools) -> Recorded:
        """Select some of them."""
        return Recorded(self.rows[chosen], self.first[chosen], self.after[chosen])


def has_regions(trace: Events) -> bool:
    """Whether compiled code ran, whose operators are nested in others but count as called."""
    return bool(len(operators_named(trace, _REGION)))


def forward_calls(trace: Events) -> Ints:
    """Like `levels.calls`, without the engine's steps, but with what compiled regions call."""
    return trace.once(_forward_calls)


def _forward_calls(trace: Events) -> Ints:
    rows = calls(trace)
    rows = rows[~are_engine_steps(trace, rows)]
    regions = operators_named(trace, _REGION)
    if not len(regions):
        return rows
    opened = np.zeros(len(trace), bool)
    opened[regions] = True
    operators = np.flatnonzero((trace.kind == OPERATOR) & ~opened)
    inside = operators[within(trace, operators, lambda at: opened[at])]
    inside = inside[~within(trace, inside, lambda at: (trace.kind[at] == OPERATOR) & ~opened[at])]
    inside = inside[~compiled(trace, inside)]
    rows = np.sort(np.concatenate([rows[~opened[rows]], inside]))
    return rows[np.argsort(trace.thread[rows], kind="stable")]


def recorded(trace: Events, named: Names | None) -> Recorded:
    """Calls with such names, or all, that recorded nodes of a graph."""
    return trace.once(_recorded, named)


def _recorded(trace: Events, named: Names | None) -> Recorded:
    rows = forward_calls(trace)
    at = np.arange(len(rows)) if named is None else are_named(trace, rows, named).nonzero()[0]
    number = numbers(trace, rows[at])
    at, number = at[number >= 0], number[number >= 0]
    after, last = _numbers_after(trace, rows, at)
    made = after > number
    # Nothing tells if the last call made one node: assume what calls of its name did before.
    name = trace.name[rows[at]]
    alike = ~made & last & among(name, name[made])
    after[alike] = number[alike] + 1
    return Recorded(rows[at], number, after).where(made | alike)


def _numbers_after(trace: Events, rows: Ints, at: Ints) -> tuple[Ints, Bools]:
    """The number of the next call on the thread that has one, or else the last one within this
    call; and whether it is the latter.
    """
    found = np.full(len(at), -1, np.int64)
    thread = np.append(trace.thread[rows], -1)
    todo = np.arange(len(at))
    for away in range(1, _FAR):
        next_call = np.minimum(at[todo] + away, len(rows))
        todo = todo[thread[next_call] == thread[at[todo]]]
        if not len(todo):
            break
        found[todo] = numbers(trace, rows[at[todo] + away])
        todo = todo[found[todo] < 0]
    last = found < 0
    for late in np.flatnonzero(last).tolist():
        found[late] = _last_number(trace, int(rows[at[late]]))
    return found, last


def node_steps(trace: Events) -> Ints:
    """The autograd engine's steps that ran a node made by an operator."""
    rows = calls(trace)
    return rows[are_engine_steps(trace, rows) & ~are_named(trace, rows, _GRADIENT)]


def numbers(trace: Events, rows: Ints) -> Ints:
    """Sequence numbers, -1 for none."""
    # Operators that are called without a graph have none: to look for the word is quicker.
    raws = [
        raw if raw is not None and b"Sequence number" in raw else None
        for raw in trace.args[rows].tolist()
    ]
    return np.array([args.sequence for args in decode_texts(AutogradArgs, raws)], np.int64)


def _last_number(trace: Events, row: int) -> int:
    """The largest sequence number within a call: the numbers of earlier nodes are used up."""
    stop = int(np.searchsorted(trace.ts, trace.ts[row] + trace.dur[row]))
    later = np.arange(row, stop)
    inside = later[(trace.kind[later] == OPERATOR) & (trace.thread[later] == trace.thread[row])]
    return int(numbers(trace, inside).max(initial=-1))


def all_used(trace: Events, named: Names) -> bool:
    """Whether each outermost operator with such a name has the number of a node that ran.

    A quick check that usually settles the matter in training. False settles nothing.
    """
    ran = trace.once(_ran)
    if len(ran) < 2 or has_regions(trace):
        return False
    layers = trace.args[outermost_named(trace, named)]
    return ran.issuperset([args.sequence for args in decode(AutogradArgs, layers)])


def _ran(trace: Events) -> set[int]:
    rows, args = engine_nodes(trace)
    ends = frozenset(numbers_of(trace, _GRADIENT))
    names = trace.name[rows].tolist()
    return {-1, *[one.sequence for one, name in zip(args, names, strict=True) if name not in ends]}


def engine_nodes(trace: Events) -> tuple[Ints, list[AutogradArgs]]:
    """The autograd engine's steps that run nodes, and the node that each one runs."""
    return trace.once(_engine_nodes)


def _engine_nodes(trace: Events) -> tuple[Ints, list[AutogradArgs]]:
    rows = operators_named(trace, _RUNS)
    return rows, decode(AutogradArgs, trace.args[rows])


def are_last(trace: Events, rows: Ints) -> Bools:
    """Calls after which the trace has no other: the recording may have ended before their use."""
    last = calls(trace)
    latest: Bools = rows == last[np.argmax(trace.ts[last])]
    return latest
