"""Moves between host and device: whether of a model's weights, and the origin of the data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pytest_torchprof.rules.evidence.calls import called, sizes
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import D2H, H2D
from pytest_torchprof.trace.name_index import Names, are_named, operators_named
from pytest_torchprof.trace.tree import parents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Series of copies, by number and whether they go to the device.
_Gos: TypeAlias = dict[tuple[int, bool], list[int]]

_MOVE = Names(r"aten::(to|_to_copy|cuda|copy_)$")
#: Only ``torch.nn.Module.to`` calls this, after it has moved a parameter.
_OF_A_MODULE = Names(r"aten::_has_compatible_shallow_copy_type$")
#: What may come between two moves of one series.
_BETWEEN = Names(r"aten::(empty|empty_like|empty_strided|detach|alias|lift_fresh|requires_grad_)$")
#: A series of at least this many tensors, of this many sizes, is more than a batch.
_MANY, _SIZES = 6, 4
#: Operators that make a tensor without copying data from another one.
_NEW = Names(
    r"aten::(empty|zeros|ones|full|rand|randn|randint|normal|arange|linspace|tensor|lift_fresh|"
    r"stack|cat|concat|concatenate|hstack|vstack|from_file|index|index_select|gather|embedding|"
    r"\w+_like|new_\w+)$"
)
_IN_PLACE = Names(r"aten::\w*[^_]_$")
_PINS = Names(r"aten::_?pin_memory$")


def model_moves(trace: Events) -> Ints:
    """Copies by which a model is moved to the device, or back to the host, once."""
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)
    copies = copies[(up | trace.names_where(D2H.search))[copies]]
    if not len(copies):
        return copies
    if not trace.has(Kind.OP):
        return _of_weights_by_time(trace, copies, up[copies])
    copies = copies[trace.launch[copies] >= 0]
    calls = np.flatnonzero(called(trace) & trace.selection)
    calls = calls[np.argsort(trace.thread[calls], kind="stable")]
    marks, moves = are_named(trace, calls, _OF_A_MODULE), are_named(trace, calls, _MOVE)
    ends = ~(marks | moves | are_named(trace, calls, _BETWEEN))
    ends[1:] |= np.diff(trace.thread[calls]) != 0
    go = np.cumsum(ends)
    top = nesting.nearest(called(trace), trace.parent, trace.launch[copies])
    copies, top = copies[top >= 0], top[top >= 0]
    position = np.full(len(trace), -1, np.int64)
    position[calls] = np.arange(len(calls))
    moved = position[top]
    gos: _Gos = {}
    for i in np.flatnonzero(moves[moved]).tolist():
        gos.setdefault((int(go[moved[i]]), bool(up[copies[i]])), []).append(i)
    found = list[int]()
    for (one, _), some in _once(gos, trace.bytes[copies]):
        asked = np.flatnonzero(marks & (go == one))
        if len(asked):  # buffers are moved between parameters, without this call
            found += [i for i in some if asked[0] - 1 <= moved[i] < asked[-1]]
        elif _are_many(trace.bytes[copies[some]]):
            found += some
    return np.asarray(copies[sorted(found)])


def _of_weights_by_time(trace: Events, copies: Ints, up: Bools) -> Ints:
    """The same without operators: the device runs no kernel between such copies."""
    kernels = np.sort(trace.ts[trace.is_kind(Kind.KERNEL)])
    go = np.searchsorted(kernels, trace.ts[copies])
    gos: _Gos = {}
    for i in np.argsort(trace.ts[copies], kind="stable").tolist():
        gos.setdefault((int(go[i]), bool(up[i])), []).append(i)
    every = (some for _, some in _once(gos, trace.bytes[copies]))
    return copies[sorted(i for some in every if _are_many(trace.bytes[copies[some]]) for i in some)]


def _once(gos: _Gos, size: Ints) -> Iterator[tuple[tuple[int, bool], list[int]]]:
    """Series unlike any other; batches, or a model that each step offloads, are alike."""
    alike = {key: (key[1], tuple(size[some].tolist())) for key, some in gos.items()}
    times = Counter(alike.values())
    return ((key, some) for key, some in gos.items() if times[alike[key]] == 1)


def _are_many(size: Ints) -> bool:
    return len(size) >= _MANY and len(set(size.tolist())) >= _SIZES


# -------------------------------------------------------------------- whose numbers


def from_maker(trace: Events, maker: int, call: int) -> bool | None:
    """Whether a call copies what another one filled; None if unknown."""
    if trace.tensors is None or (source := _source(trace, call)) is None:
        return None
    rows = _calls_between(trace, maker, call)
    return bool(_comes_from(trace, _filled_by(trace, maker), rows, source))


def came_down(trace: Events, down: int, up: int) -> bool | None:
    """Whether one ``copy_`` returns to the device what another one took from it; None if unknown.

    In between, NumPy makes tensors whose origin is unknown.
    """
    rows = _calls_between(trace, down, up)
    if trace.tensors is None:
        return False if are_named(trace, rows, _NEW).any() else None
    result, source = _first(trace, down), _source(trace, up)
    if result is None or source is None:
        return None
    return _comes_from(trace, {result}, rows, source)


def _comes_from(trace: Events, numbers: set[int], rows: Ints, source: int) -> bool | None:
    """Whether a tensor is one of these, or made from them by these calls; None: made by none."""
    mine, others = set(numbers), set[int]()
    taken, made = trace.taken(rows) or [], trace.made(rows) or []
    writes = are_named(trace, rows, _IN_PLACE).tolist()
    pins = are_named(trace, rows, _PINS).tolist()
    for row, arguments, results, write, pin in zip(
        rows.tolist(), taken, made, writes, pins, strict=True
    ):
        flat = {n for one in arguments for n in ((one,) if isinstance(one, int) else one)}
        target = {arguments[0]} if write and arguments and isinstance(arguments[0], int) else set()
        pinned = _copied_into(trace, row) if pin else set()
        (mine if flat & mine else others).update(results | target | pinned)
    if source in mine:
        return True
    return False if source in others else None


def _copied_into(trace: Events, row: int) -> set[int]:
    """The tensors into which a call copies: pinned memory has no memory events."""
    copies = operators_named(trace, "aten::copy_")
    inside = (trace.ts[copies] > trace.ts[row]) & (trace.thread[copies] == trace.thread[row])
    copies = copies[inside & (trace.ts[copies] < trace.ts[row] + trace.dur[row])]
    return {number for copy in copies.tolist() if (number := _first(trace, copy)) is not None}


def _filled_by(trace: Events, row: int) -> set[int]:
    rows = np.array([row])
    made = set((trace.made(rows) or [frozenset()])[0])
    first = _first(trace, row)
    return made | {first} if first is not None and are_named(trace, rows, _IN_PLACE)[0] else made


def _source(trace: Events, row: int) -> int | None:
    """The tensor that ``x.to(…)`` or ``y.copy_(x)`` copies from."""
    taken = (trace.taken(np.array([row])) or [()])[0]
    at = 1 if trace.names[trace.name[row]] == "aten::copy_" else 0
    source = taken[at] if len(taken) > at else -1
    return source if isinstance(source, int) and source >= 0 else None


def _first(trace: Events, row: int) -> int | None:
    taken = (trace.taken(np.array([row])) or [()])[0]
    return taken[0] if taken and isinstance(taken[0], int) and taken[0] >= 0 else None


def _calls_between(trace: Events, first: int, last: int) -> Ints:
    """Calls on the same thread that begin after one call's end and before the other's start."""
    rows = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[trace.thread[rows] == trace.thread[first]]
    since = trace.ts[first] + trace.dur[first]
    found: Ints = rows[(trace.ts[rows] >= since) & (trace.ts[rows] < trace.ts[last])]
    return found


# -------------------------------------------------------------------- copies and their operators


def copy_callers(trace: Events, copies: Ints) -> Ints:
    """The host event to report for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    around = parents(trace, call)
    return np.where(around >= 0, around, call)


def what_is_copied(trace: Events, events: Ints) -> list[tuple[tuple[int, ...], str] | None]:
    """Shape and dtype of what each ``copy_`` copies from; None if the trace lacks them."""
    is_copy = trace.is_kind(Kind.OP) & trace.named("aten::copy_")
    out: list[tuple[tuple[int, ...], str] | None] = []
    for row, args in zip(events.tolist(), trace.operands(np.maximum(events, 0)), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        known = row >= 0 and is_copy[row] and isinstance(dims, list) and isinstance(types, list)
        shape = sizes(dims[1]) if known and len(dims) > 1 and len(types) > 1 else None
        out.append(None if shape is None else (shape, str(types[1])))
    return out
