"""Repeated copies of one unchanged tensor, for captures that identify tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_torchprof.rules.evidence.calls import called, sizes
from pytest_torchprof.rules.evidence.copied_again import COPIES, READS, SAME_MEMORY
from pytest_torchprof.rules.evidence.copy_runs import by_kind
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import Names, are_named, operators_named, selected_operators
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.work.views import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken

#: Operators that write to an existing tensor.
_IN_PLACE = Names(r"(?!aten::(detach_|requires_grad_)$)(.*[^_]_|.*::__i\w+__)$")
#: Those that write to their running statistics.
_STATISTICS = Names(r"aten::\w*batch_norm$")
#: Operators of other libraries, which may write to their inputs.
_FOREIGN = Names(r"(?!aten::|autograd::|torch::|prim)\w+::\w+$")
_FRESH = Names(r"aten::(clone|_to_copy)$")
#: In-place operators that are as fast when they make a new tensor: these need no copy. Without
#: ``relu_``: nn.ReLU(inplace=True) at the start of a model that gets a copy for it.
_ELEMENTWISE = Names(
    r"aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|tanh|sigmoid|clamp|clamp_min|"
    r"clamp_max|square|round|floor|ceil|reciprocal|remainder|lerp|addcmul|addcdiv)_$"
)


class _View(NamedTuple):
    """A call that makes a view of a tensor; ``part``: of less of it, by its arguments."""

    at: int
    object: int
    part: tuple[Any, ...] | None
    elements: int


def again(
    trace: Events, rows: Ints, kind: Ints, elements: Ints, least: int, backs: bool = False
) -> Iterator[Ints]:
    """Positions of copies of one tensor, each time the same part of it, in order.

    ``rows``: operators that copy their first argument; ``kind`` is equal for those that copy in the
    same way; ``elements`` is how many they copy. Between two of them, nothing has written to the
    tensor, no optimizer has made its step, and no backward pass has computed gradients. ``backs``:
    a copy counts as the tensor it was copied from.
    """
    taken = trace.taken(rows)
    if taken is None:
        return
    itself = np.array([_first(one) for one in taken], np.int64)
    aliases = _copied_from(trace, rows, itself) if backs else {}
    tensor = np.array([aliases.get(number, number) for number in itself.tolist()], np.int64)
    ends = trace.ts[selected_operators(trace, "torch::autograd::AccumulateGrad")]
    era = np.searchsorted(np.sort(ends), trace.ts[rows])
    keys = np.stack([tensor, kind, era], 1)
    _, key = np.unique(keys, axis=0, return_inverse=True)
    groups = [g for g in by_kind(trace, rows, key.reshape(-1), least) if tensor[g[0]] >= 0]
    if not groups:
        return
    asked = {int(tensor[group[0]]) for group in groups}
    objects = trace.objects(rows) or []
    written = _written(trace, asked | aliases.keys(), np.concatenate([rows[g] for g in groups]))
    views = _views(trace, asked, rows)
    for number, alias in aliases.items():
        written[alias] += written.pop(number, [])
    for group in groups:
        number = int(tensor[group[0]])
        changes = np.sort(trace.ts[np.array(written[number], np.int64)])
        change = np.searchsorted(changes, trace.ts[rows[group]]).tolist()
        parts: list[Any] = [None] * len(group)  # a tensor cast back is whole
        if (itself[group] == number).all():
            mine = [(int(trace.ts[rows[i]]), objects[i]) for i in group.tolist()]
            parts = _parts(mine, views[number], int(elements[group[0]]))
        same = defaultdict[Any, list[int]](list)
        for position, at, part in zip(group.tolist(), change, parts, strict=True):
            same[at, part].append(position)
        yield from (np.array(found, np.int64) for found in same.values() if len(found) >= least)


def written_to(trace: Events, rows: Ints, elements: int) -> tuple[Bools, Bools]:
    """Which copies are written to, and which of them need to be copies: all except those that the
    next call, and none later, writes to as a whole.
    """
    results = [set(made) for made in trace.made(rows) or []]
    written = _written(trace, set().union(*results), rows, after=True)
    writes = [[row for one in made for row in written[one]] for made in results]
    later = np.append(_called(trace, rows, frozenset(trace.names)), len(trace))
    following = later[np.searchsorted(later, rows, side="right")].tolist()
    needed = [
        bool(some) and (some != [following[i]] or _needs(trace, np.array(some), elements))
        for i, some in enumerate(writes)
    ]
    return np.array([bool(some) for some in writes], bool), np.array(needed, bool)


def _needs(trace: Events, write: Ints, elements: int) -> bool:
    return not are_named(trace, write, _ELEMENTWISE)[0] or _elements(trace, write)[0] != elements


# -------------------------------------------------------------------- which tensor, and which part


def _first(taken: tuple[Taken, ...]) -> int:
    return taken[0] if taken and isinstance(taken[0], int) else -1


def _copied_from(trace: Events, rows: Ints, tensor: Ints) -> dict[int, int]:
    """For copies that are copied themselves, the tensor that the first of them was copied from."""
    sources = set(tensor.tolist())
    origin: dict[int, int] = {}
    for number, made in zip(tensor.tolist(), trace.made(rows) or [], strict=True):
        for one in made & sources:
            origin[one] = origin.get(number, number)
    return origin


def _parts(copies: list[tuple[int, int]], views: list[_View], elements: int) -> list[Any]:
    """Which part of the tensor each of these copies (when, of which object) is of.

    Decided by the calls that selected it, the last of them from the object that the first part was
    taken from; and by which of the objects that existed since then it was taken from.
    """
    before = [bisect_left(views, time, key=lambda view: view.at) for time, _ in copies]
    between = [views[a:b] for a, b in pairwise([0, *before])]
    parts = [view for view in views if view.part is not None and view.elements > elements]
    base = parts[0].object if parts else None
    found = list[Any]()
    path: tuple[Any, ...] = ()
    objects = dict[int, int]()
    for root, some in zip(_roots(copies, between), between, strict=True):
        own = tuple(view.part for view in some if view.part and view.elements > elements)
        if own and root == base:
            path, own, objects = own, (), {}
        found.append((path, own, objects.setdefault(root, len(objects))))
    return found


def _roots(copies: list[tuple[int, int]], between: list[list[_View]]) -> list[int]:
    """The object that each of these copies comes from, by the views made since the previous one.

    It is the first one, as each view is made of another; but the object that the next copy comes
    from, if that existed: a parameter is made as a view of the given tensor.
    """
    roots = [some[0].object if some else of for (_, of), some in zip(copies, between, strict=True)]
    for i in reversed(range(len(roots) - 1)):
        there = {copies[i][1], *(view.object for view in between[i])}
        if roots[i + 1] in there:
            roots[i] = roots[i + 1]
    return roots


def _views(trace: Events, tensors: set[int], copies: Ints) -> dict[int, list[_View]]:
    """The calls that make views of these tensors, by tensor, in time order."""
    found = defaultdict[int, list[_View]](list)
    rows = _called(trace, copies, SAME_MEMORY | PARTS | {"aten::reshape", "aten::flatten"})
    for row, taken in zip(rows.tolist(), trace.taken(rows) or [], strict=True):
        if (number := _first(taken)) in tensors:
            at = np.array([row])
            (args,), (of,) = trace.operands(at), trace.objects(at) or [0]
            name = trace.names[trace.name[row]]
            part = (name, bytes(args.dims), bytes(args.strides), bytes(args.concrete))
            elements = _elements(trace, at)[0]
            is_part = name in PARTS or name == "aten::as_strided"
            found[number].append(_View(int(trace.ts[row]), of, part if is_part else None, elements))
    return found


# -------------------------------------------------------------------- what is written to


def _written(
    trace: Events, tensors: set[int], copies: Ints, *, after: bool = False
) -> defaultdict[int, list[int]]:
    """The operators that write to these tensors, by tensor.

    ``after``: also past the last copy, and no ``out=``.
    """
    found = defaultdict[int, list[int]](list)
    begin = trace.ts[copies].min()
    end = np.iinfo(np.int64).max if after else trace.ts[copies].max()
    rows = operators_named(trace, _IN_PLACE, _STATISTICS, _FOREIGN)
    rows = rows[(trace.ts[rows] > begin) & (trace.ts[rows] < end)]
    rows = rows[~are_named(trace, trace.parent[rows], _FRESH)]
    outer = ~are_named(trace, trace.parent[rows], _IN_PLACE)  # not nested in another
    rows = rows[outer]
    statistics, foreign = are_named(trace, rows, _STATISTICS), are_named(trace, rows, _FOREIGN)
    where = zip(rows.tolist(), statistics.tolist(), foreign.tolist(), strict=True)
    for (row, own, other), taken in zip(where, trace.taken(rows) or [], strict=True):
        if own:
            hit = taken[3:5]
        elif other or (taken and isinstance(taken[0], tuple)):
            hit = taken
        else:
            hit = taken[:1]
        for number in tensors.intersection(_flat(hit)):
            found[number].append(row)
    if after:  # other operators take results last, too
        return found
    rows = _called(trace, copies, None)
    rows = rows[(trace.ts[rows] > begin) & (trace.ts[rows] < end)]
    rows = rows[~are_named(trace, rows, _IN_PLACE, _STATISTICS, _FOREIGN)]
    last = [taken[-1] if len(taken) > 1 else -1 for taken in trace.taken(rows) or []]
    mine = [i for i, one in enumerate(last) if one in tensors]
    mine = [mine[i] for i in np.flatnonzero(~_leave_memory(trace, rows[mine])).tolist()]
    for i, made in zip(mine, trace.made(rows[mine]) or [], strict=True):
        if not made and isinstance(out := last[i], int):  # torch.mul(…, out=x)
            found[out].append(int(rows[i]))
    return found


def _leave_memory(trace: Events, rows: Ints) -> Bools:
    """After which of these operators more memory is allocated than before: they make something,
    whether or not another operator takes it.
    """
    memory = trace.memory
    allocated = np.append(0, np.cumsum(memory.bytes))
    at, ends = trace.ts[memory.event], trace.ts[rows] + trace.dur[rows]
    begin, end = np.searchsorted(at, trace.ts[rows]), np.searchsorted(at, ends, side="right")
    found: Bools = allocated[end] > allocated[begin]
    return found


def _called(trace: Events, copies: Ints, names: frozenset[str] | None) -> Ints:
    """Calls of these names, or all except views and reads, on the threads of the copies."""
    rows: Ints = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[among(trace.thread[rows], trace.thread[copies])]
    other = names is None
    listed = SAME_MEMORY | PARTS | READS | COPIES if names is None else names
    wanted = np.array([(name in listed) != other for name in trace.names], bool)
    found: Ints = rows[wanted[trace.name[rows]]]
    return found


def _flat(taken: Iterable[Taken]) -> Iterator[int]:
    for one in taken:
        yield from (one,) if isinstance(one, int) else one


def _elements(trace: Events, rows: Ints) -> list[int]:
    """The number of elements of each call's first argument; -1 if unknown."""
    out = []
    for args in trace.operands(rows):
        dims = decode_part(bytes(args.dims))
        shape = sizes(dims[0]) if isinstance(dims, list) and dims else None
        out.append(-1 if shape is None else prod(shape))
    return out
