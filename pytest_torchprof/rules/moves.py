"""Copies between host and device: who makes them, what they cost, and which move a model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import launched_at
from pytest_torchprof.analysis.device_time import idle_by_waits
from pytest_torchprof.rules.evidence.calls import called, sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import D2H, H2D, Kind, Names, are_named, events_named
from pytest_torchprof.trace.tree import parents

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Only ``torch.nn.Module.to`` calls this, after it has moved a parameter.
_OF_A_MODULE: Final = Names(r"aten::_has_compatible_shallow_copy_type$")
_COPY: Final = "aten::copy_"
_IN_PLACE: Final = Names(r"aten::\w*[^_]_$")
#: What operators record for arguments that are no tensors.
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "Device"})
#: A series of at least this many tensors, of this many sizes, is more than a batch.
_MANY, _SIZES = 6, 4


def copy_callers(trace: Events, copies: Ints) -> Ints:
    """The host event to report for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    around = parents(trace, call)
    return np.where(around >= 0, around, call)


def copy_costs(trace: Events, copies: Ints, events: Ints) -> Ints:
    """Time of each copy on the device, plus the time that the device was idle because the copy
    delayed the host: while the host waits for work that the device still has, nothing is lost.
    """
    begin = trace.ts[np.maximum(events, 0)]
    held = np.where(events >= 0, trace.dur[events], 0)
    idle = np.where(events >= 0, idle_by_waits(trace, begin, begin + held), 0)
    return np.minimum(trace.dur[copies] + idle, np.maximum(trace.dur[copies], held))


def copy_spans(trace: Events, copies: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Begin and end of the host event, if any, else of the call that copies, else of the copy."""
    calls = np.where(trace.launch[copies] >= 0, trace.launch[copies], copies)
    rows = np.where(events >= 0, events, calls)
    return trace.ts[rows], trace.ts[rows] + trace.dur[rows]


def what_is_copied(trace: Events, row: int) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of what a ``copy_`` copies from; None for other events, or if unknown."""
    return operand(trace, row, 1) if row >= 0 and trace.names[trace.name[row]] == _COPY else None


def operand(trace: Events, row: int, at: int) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of an argument of an operator; None if it is no tensor, or unknown."""
    (args,) = trace.operands(np.array([row]))
    dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    shape, dtype = sizes([*dims, *[None] * (at + 1)][at]), [*types, *[""] * (at + 1)][at]
    return None if shape is None or dtype in _NO_TENSORS else (shape, str(dtype))


def source_of(trace: Events, row: int) -> int:
    """The argument that ``x.to(…)`` or ``y.copy_(x)`` copies from."""
    return int(trace.names[trace.name[row]] == _COPY)


def comes_from(trace: Events, first: int, last: int) -> bool | None:
    """Whether one call copies what another made, filled in place or copied, or what calls between
    them made from it; None if none of them made it, or in a trace that does not identify tensors.
    """
    rows = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[(trace.thread[rows] == trace.thread[first]) & (trace.ts[rows] < trace.ts[last])]
    rows = rows[trace.ts[rows] >= trace.ts[first] + trace.dur[first]]
    rows = np.concatenate([[first], rows, [last]])
    taken, made = trace.taken(rows), trace.made(rows)
    if taken is None or made is None:
        return None
    writes = are_named(trace, rows, _IN_PLACE).tolist()
    mine, others = set[int](), set[int]()
    for number, (arguments, results, write) in enumerate(zip(taken, made, writes, strict=True)):
        flat = {n for one in arguments for n in ((one,) if isinstance(one, int) else one)}
        target = {one for one in arguments[:1] if write and isinstance(one, int)}
        (others if number and not flat & mine else mine).update(results | target)
    at = source_of(trace, last)
    source = taken[-1][at] if len(taken[-1]) > at else -1
    return True if source in mine else False if source in others else None


def model_moves(trace: Events) -> Ints:
    """Copies by which a model is moved to the device, or back to the host, once.

    They are a series between kernels, unlike any other: of parameters of a module, or of many
    tensors of several sizes. Batches, or a model that each step offloads, are alike.
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)
    copies = copies[(up | trace.names_where(D2H.search))[copies]]
    if not len(copies):
        return copies
    when = launched_at(trace, copies)
    order = np.argsort(when, kind="stable")
    copies, when = copies[order], when[order]
    kernels = np.sort(launched_at(trace, np.flatnonzero(trace.is_kind(Kind.KERNEL))))
    breaks = np.diff(np.searchsorted(kernels, when)) != 0
    breaks |= np.diff(up[copies]) != 0
    series = np.split(np.arange(len(copies)), np.flatnonzero(breaks) + 1)
    alike = [(up[copies[one[0]]], *trace.bytes[copies[one]].tolist()) for one in series]
    times = Counter(alike)
    marks = np.sort(trace.ts[events_named(trace, _OF_A_MODULE)])
    found = [copies[:0]]
    for one, kind in zip(series, alike, strict=True):
        if times[kind] > 1:
            continue
        end = when[one[-1] + 1] if one[-1] + 1 < len(when) else np.iinfo(np.int64).max
        mine = marks[np.searchsorted(marks, when[one[0]]) : np.searchsorted(marks, end)]
        if len(mine):  # buffers are moved between parameters, without a mark
            since, until = np.searchsorted(when[one], [mine[0], mine[-1]])
            found.append(copies[one[max(since - 1, 0) : until]])
        elif len(one) >= _MANY and len({*kind[1:]}) >= _SIZES:
            found.append(copies[one])
    return np.sort(np.concatenate(found))
