"""Rules about loops over the elements of a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.arguments import decode_part
from pytest_torchprof.events import STEP, Kind
from pytest_torchprof.rules.gradients import LAYER
from pytest_torchprof.rules.levels import BACKWARD, FETCH, calls, marked
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

_INDEX: Final = re.compile(r"aten::(select|slice)(\.\w+)?$")
#: What no loop over the elements of a tensor has in its body: training, and batches of a loader.
_BOUNDARY: Final = re.compile(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
#: Selects and slices of one repetition, at most.
_MOST_INDEXES: Final = 16
#: Operators of a repetition, at most, where the trace does not say which element is selected.
_SHORT: Final = 8


@rule(
    "for-loop-indexing",
    fix="do it for the whole tensor at once: broadcasting, torch.where, cumsum, or torch.vmap",
    triggers=_INDEX.pattern,
    repeats=Threshold(10, "1", "fewer are as often unrolled on purpose"),
    operators=Threshold(24, "1", "a longer body is worth a repetition, such as a layer of a model"),
)
def for_loop_indexing(trace: Trace, *, repeats: float, operators: float) -> Matches:
    """A Python loop goes through a tensor element by element.

    What it does
        Counts loops: the same operators ``repeats`` (10) times or more, one repetition after the
        other, at most ``operators`` (24) in each, with a ``select`` or ``slice`` among them that
        takes another part of a tensor of one shape each time. It may have several. Not: the same
        part each time, as the last token's or each layer's; the items of a DataLoader; steps of
        training; slices of several elements put through layers, which are batches. Where the trace
        does not say which part is taken, repetitions of at most 8 operators without layers count.

    Why it is slow
        Each repetition pays for its Python code, its calls and its launches again, for the work on
        one element.

    Example
        .. code:: python

            for i in range(len(x)):
                y[i] = x[i] * i

    Use instead
        .. code:: python

            y = x * torch.arange(len(x))[:, None]
    """
    sequence = _sequence(trace, int(repeats))
    if sequence is None:
        return NO_MATCHES
    found = [
        loop
        for loop in _repetitions(sequence, int(repeats), int(operators))
        if _goes_through(trace, sequence, loop)
    ]
    rows = [sequence.rows[loop.start : loop.stop] for loop in found]
    events = [int(sequence.rows[loop.index]) for loop in found]
    costs = [int(trace.dur[part].sum()) for part in rows]
    messages = [_said(trace, sequence, loop) for loop in found]
    return Matches(np.array(events, np.int64), messages, cost_ns=np.array(costs, np.int64))


@dataclass(frozen=True)
class _Sequence:
    """Calls one after the other: event, name, a number of their own for parts that hang together,
    and the positions of selects and slices.
    """

    rows: Ints
    name: Ints
    part: Ints
    indexes: Ints


@dataclass(frozen=True)
class _Loop:
    """Positions in a sequence: from ``start`` to ``stop`` the same ``period`` operators.

    ``index`` is that of its first select or slice, of which each repetition has ``count``.
    """

    start: int
    stop: int
    period: int
    index: int
    count: int


def _sequence(trace: Trace, repeats: int) -> _Sequence | None:
    """The calls of the measured code, in order; None if too few of them are selects or slices."""
    is_index = trace.is_kind(Kind.OP) & trace.names_where(_INDEX.match) & trace.selection
    if np.count_nonzero(is_index) < repeats:
        return None
    rows = calls(trace)
    if np.count_nonzero(is_index[rows]) < repeats:
        return None
    boundary = marked(trace, _BOUNDARY.match)
    fetch = boundary & trace.names_where(lambda name: name.startswith(FETCH))
    rows = rows[trace.selection[rows] & ~boundary[rows]]
    rows = rows[~nesting.below(fetch, trace.parent, rows)]
    indexes = np.flatnonzero(is_index[rows])
    if len(indexes) < repeats:
        return None
    thread = trace.thread[rows].astype(np.int64)
    part = np.cumsum(boundary)[rows] + (int(boundary.sum()) + 1) * thread
    return _Sequence(rows, trace.name[rows].astype(np.int64), part, indexes)


# ------------------------------------------------------------------------------------ repetitions


def _repetitions(sequence: _Sequence, repeats: int, operators: int) -> list[_Loop]:
    """Loops, those with the shortest repetition first wherever several ways of reading it fit.

    In a loop with so many selects in each repetition, the distance from each to its like in the
    next repetition is the same: where that is so often enough, the operators are compared.
    """
    indexes = sequence.indexes
    free = np.ones(len(indexes), bool)
    found = []
    for count in range(1, _MOST_INDEXES + 1):
        if len(indexes) < (repeats - 1) * count:
            break
        period = indexes[count:] - indexes[:-count]
        same = np.flatnonzero(np.diff(period) != 0) + 1
        starts = np.concatenate([[0], same])
        stops = np.concatenate([same, [len(period)]])
        long = (stops - starts >= (repeats - 2) * count + 1) & (period[starts] <= operators)
        for first, last in zip(starts[long].tolist(), stops[long].tolist(), strict=True):
            if not free[first : last + count].any():
                continue
            for start, stop in _stretches(sequence, first, last + count - 1, int(period[first])):
                if stop - start < repeats * int(period[first]):
                    continue
                a, b = np.searchsorted(indexes, [start, stop]).tolist()
                if free[a:b].all():
                    free[a:b] = False
                    found.append(_Loop(start, stop, int(period[first]), int(indexes[a]), count))
    return sorted(found, key=lambda loop: loop.start)


def _stretches(sequence: _Sequence, first: int, last: int, period: int) -> list[tuple[int, int]]:
    """Around the selects from ``first`` to ``last``: where each operator is that of a period on."""
    begin = max(int(sequence.indexes[first]) - period, 0)
    end = min(int(sequence.indexes[last]) + 2 * period, len(sequence.rows))
    name, part = sequence.name[begin:end], sequence.part[begin:end]
    same = (name[period:] == name[:-period]) & (part[period:] == part[:-period])
    edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0)).tolist()
    return [(begin + a, begin + b + period) for a, b in zip(edges[::2], edges[1::2], strict=True)]


# -------------------------------------------------------------------------- what is looped over


def _goes_through(trace: Trace, sequence: _Sequence, loop: _Loop) -> bool:
    """Whether some select or slice takes another part of a tensor of the same shape each time."""
    names = {trace.names[n] for n in sequence.name[loop.start : loop.start + loop.period].tolist()}
    layers = any(LAYER.match(name) for name in names)
    for phase in range(loop.count):
        at = np.searchsorted(sequence.indexes, loop.index) + phase
        positions = sequence.indexes[at :: loop.count]
        positions = positions[positions < loop.stop]
        operands = trace.operands(sequence.rows[positions])
        dims = [bytes(args.dims) for args in operands]
        if len(set(dims)) > 1:
            continue
        parts = [bytes(args.concrete) for args in operands]
        if b"" in parts or not dims[0]:
            if loop.period <= _SHORT and not layers:
                return True
            continue
        if all(a != b for a, b in pairwise(parts)) and not (layers and _is_batch(parts[0])):
            return True
    return False


def _is_batch(concrete: bytes) -> bool:
    """Whether these arguments are a slice of several elements."""
    parts = decode_part(concrete)
    bounds = parts[2:4] if isinstance(parts, list) and len(parts) == 5 else []
    if len(bounds) < 2 or not all(re.fullmatch(r"-?\d+", str(bound)) for bound in bounds):
        return len(parts or []) == 5
    return int(bounds[1]) - int(bounds[0]) != 1


def _said(trace: Trace, sequence: _Sequence, loop: _Loop) -> str:
    row = int(sequence.rows[loop.index])
    dims = decode_part(bytes(trace.operands(np.array([row]))[0].dims))
    shape = f" of a tensor of {dims[0]}" if dims and dims[0] else ""
    times = (loop.stop - loop.start) // loop.period
    return f"{trace.names[trace.name[row]]}{shape}, {times} times in a row"
