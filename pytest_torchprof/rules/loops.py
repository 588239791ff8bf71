"""Rules about loops over the elements of a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.arguments import decode_part
from pytest_torchprof.events import STEP
from pytest_torchprof.rules.gradients import LAYER
from pytest_torchprof.rules.levels import BACKWARD, FETCH, are_gradchecked, calls
from pytest_torchprof.rules.names import Names, are_named, marks_named, operators_named
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import are_outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

_INDEX: Final = Names(r"aten::(select|slice)(\.\w+)?$")
#: Parts of others, which a clock of whole microseconds sometimes puts beside what they are in.
_PARTS: Final = Names(r"aten::(as_strided|resolve_conj|resolve_neg|_local_scalar_dense)$")
#: What makes of a repetition a step of a sequence: each needs what the last one made.
_STEP: Final = re.compile(
    r"aten::(embedding|scaled_dot_product_attention|_transformer_encoder|\w+_cell$)"
)
#: Products that a loop over a tensor may have without being a model: one product does them all.
_PRODUCT: Final = re.compile(r"aten::(einsum|matmul|mm|bmm|mv|addmv|addbmm|baddbmm)$")
#: Layers that take one tensor, besides their parameters.
_UNARY: Final = re.compile(r"aten::(linear|conv\w*|\w+_norm)$")
#: What makes a tensor: parts of one that is made anew each time are no parts of the same.
_MAKER: Final = re.compile(r"aten::(randn?|randint|randperm|normal|empty|zeros|ones|full)(_like)?$")
#: What no loop over the elements of a tensor has in its body: training, and batches of a loader.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
_FETCH: Final = Names(re.escape(FETCH))
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
        training; slices of several elements put through layers, which are batches; a model that
        runs step by step, as a recurrent cell, a decoder or a sampler does; a tensor that is
        printed; ``torch.autograd.gradcheck``. A body with layers counts only where they get the
        part that is taken and nothing in it joins two tensors, as in ``model(x[i])``. Where the
        trace does not say which part is taken, repetitions of at most 8 operators that have no
        layers and make no new tensor count.

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
    found = _loops(trace, sequence, int(repeats), int(operators))
    checked = are_gradchecked(trace, np.array([loop.row for loop in found], np.int64)).tolist()
    found = [loop for loop, torchs in zip(found, checked, strict=True) if not torchs]
    costs = [int(trace.dur[sequence.rows[loop.start : loop.stop]].sum()) for loop in found]
    rows = np.array([loop.row for loop in found], np.int64)
    bounds = np.array([(loop.start, loop.stop - 1) for loop in found], np.int64).reshape(-1, 2)
    first, last = sequence.rows[bounds].T
    return Matches(
        rows,
        _said(trace, rows),
        cost_ns=np.array(costs, np.int64),
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
    )


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
    """From ``start`` to ``stop`` in a sequence; ``row`` is the event of its first moving index."""

    start: int
    stop: int
    row: int


def _sequence(trace: Trace, repeats: int) -> _Sequence | None:
    """The calls of the measured code, in order; None if too few of them are selects or slices."""
    some = operators_named(trace, _INDEX)
    some = some[trace.selection[some]]
    if len(some) < repeats or np.count_nonzero(are_outermost(trace, some)) < repeats:
        return None
    rows = calls(trace)
    apart = are_named(trace, rows, _BOUNDARY, _PARTS)
    rows = rows[trace.selection[rows] & ~apart]
    rows = rows[~within(trace, rows, lambda events: are_named(trace, events, _FETCH))]
    indexes = np.flatnonzero(are_named(trace, rows, _INDEX))
    if len(indexes) < repeats:
        return None
    boundaries = marks_named(trace, _BOUNDARY)
    thread = trace.thread[rows].astype(np.int64)
    part = np.searchsorted(boundaries, rows) + (len(boundaries) + 1) * thread
    return _Sequence(rows, trace.name[rows].astype(np.int64), part, indexes)


# ------------------------------------------------------------------------------------ repetitions


def _loops(trace: Trace, sequence: _Sequence, repeats: int, operators: int) -> list[_Loop]:
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
        change = np.flatnonzero(np.diff(period) != 0) + 1
        firsts = np.concatenate([[0], change])
        lasts = np.concatenate([change, [len(period)]])
        often = (lasts - firsts >= (repeats - 2) * count + 1) & (period[firsts] <= operators)
        for first, last in zip(firsts[often].tolist(), lasts[often].tolist(), strict=True):
            if not free[first : last + count].any():
                continue
            size = int(period[first])
            for start, stop in _stretches(sequence, first, last + count - 1, size):
                a, b = np.searchsorted(indexes, [start, stop]).tolist()
                if stop - start < repeats * size or not free[a:b].all():
                    continue
                row = _moving(trace, sequence, (start, start + size), (a, b, count), repeats)
                if row is not None:
                    free[a:b] = False
                    found.append(_Loop(start, stop, row))
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


def _moving(
    trace: Trace,
    sequence: _Sequence,
    body: tuple[int, int],
    indexes: tuple[int, int, int],
    repeats: int,
) -> int | None:
    """The first select or slice that takes another part of a tensor of one shape each time.

    ``body`` are the positions of the first repetition, ``indexes`` which of the selects and slices
    are the loop's: from, to, and how many in each repetition.
    """
    names = {trace.names[number] for number in sequence.name[slice(*body)].tolist()}
    layers = any(LAYER.match(name) for name in names)
    model = any(LAYER.match(name) and not _PRODUCT.match(name) for name in names)
    start, stop, count = indexes
    if any(map(_STEP.match, names)) or (model and (count > 1 or _joins(trace, sequence, body))):
        return None
    short = body[1] - body[0] <= _SHORT and not layers and not any(map(_MAKER.match, names))
    if model and not _is_passed_on(trace, sequence, int(sequence.indexes[start])):
        return None
    for phase in range(start, start + count):
        rows = sequence.rows[sequence.indexes[phase:stop:count]]
        operands = trace.operands(rows)
        dims = [bytes(args.dims) for args in operands]
        parts = [bytes(args.concrete) for args in operands]
        if b"" in dims or not all(re.search(rb"\d", part) for part in parts):
            moves = [short and a == b for a, b in pairwise(dims)]
        elif (layers and any(map(_is_batch, parts))) or _is_printing(names, dims[0]):
            continue
        else:
            pairs = zip(pairwise(dims), pairwise(parts), strict=True)
            moves = [a == b and old != new for (a, b), (old, new) in pairs]
        edges = np.flatnonzero(np.diff(np.array(moves, np.int8), prepend=0, append=0))
        long = np.flatnonzero(edges[1::2] - edges[::2] >= repeats - 1)
        if len(long):
            return int(rows[edges[2 * long[0]]])
    return None


def _joins(trace: Trace, sequence: _Sequence, body: tuple[int, int]) -> bool:
    """Whether anything takes two tensors, such as what the last repetition made."""
    rows = sequence.rows[slice(*body)]
    for number, args in zip(trace.name[rows].tolist(), trace.operands(rows), strict=True):
        if _UNARY.match(trace.names[number]):
            continue
        dims = decode_part(args.dims) or []
        if sum(len(one) if one and isinstance(one[0], list) else bool(one) for one in dims) > 1:
            return True
    return False


def _is_passed_on(trace: Trace, sequence: _Sequence, at: int) -> bool:
    """Whether the call after a select or slice takes a tensor of the shape that this one makes."""
    if at + 1 >= len(sequence.rows):
        return False
    index, user = trace.operands(sequence.rows[at : at + 2])
    source, taken = (decode_part(args.dims) for args in (index, user))
    axis = (decode_part(index.concrete) or ["", ""])[1]
    if not source or not taken or not taken[0] or not re.fullmatch(r"-?\d+", str(axis)):
        return False
    shape = list(source[0])
    size = shape.pop(int(axis))
    if "slice" in trace.names[trace.name[sequence.rows[at]]]:
        shape.insert(int(axis) % len(source[0]), min(size, 1))
    return bool(shape == taken[0])


def _is_printing(names: set[str], dims: bytes) -> bool:
    """Whether torch prints a tensor: it takes each row, and asks for each element of it."""
    shape = (decode_part(dims) or [[]])[0]
    return len(shape) > 1 and names == {"aten::select", "aten::is_nonzero"}


def _is_batch(concrete: bytes) -> bool:
    """Whether these arguments are those of a slice of several elements."""
    parts = decode_part(concrete)
    if not isinstance(parts, list) or len(parts) < 5:
        return False
    bounds = [int(part) for part in parts[2:4] if re.fullmatch(r"-?\d+", str(part))]
    return len(bounds) < 2 or bounds[1] - bounds[0] != 1


def _said(trace: Trace, rows: Ints) -> list[str]:
    words = []
    for name, args in zip(trace.name[rows].tolist(), trace.operands(rows), strict=True):
        dims = decode_part(args.dims)
        shape = f" of a tensor of {dims[0]}" if dims and dims[0] else ""
        words.append(f"a loop calls {trace.names[name]}{shape} for one part after the other")
    return words
