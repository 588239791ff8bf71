"""Rules about repeated work: casts, and copies that make a tensor contiguous."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.evidence.calls import (
    CALL_NS,
    are_called,
    are_closed,
    called,
    guessed,
    in_backward,
    is_trifle,
    sizes,
    step_of,
)
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Names,
    are_named,
    count,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import marked, once_selected
from pytest_torchprof.work.dispatch import EXPANSIONS, PARTS, WHOLE, aten
from pytest_torchprof.work.operands import ELEMENT_BYTES, torch_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken

_COPY: Final = Names(r"aten::(clone|contiguous|reshape|flatten|ravel)$")
_CLONE: Final = Names(r"aten::clone$")
_TO_COPY: Final = Names(r"aten::_to_copy$")
_CAST: Final = Names(r"aten::(_to_copy|to|type_as)$")
#: Operators whose inputs autocast casts, with the positions of their weight and bias.
_WEIGHTS = {"aten::linear": (1, 2), "aten::addmm": (0, 2), "aten::mm": (1,), "aten::matmul": (1,)}
_WEIGHTS |= {f"aten::conv{kind}": (1, 2) for kind in ("1d", "2d", "3d", "olution")}
_WEIGHTS |= {f"aten::conv_transpose{i}d": (1, 2) for i in (1, 2, 3)}
_WEIGHTED: Final = Names("|".join(f"{re.escape(name)}$" for name in _WEIGHTS))
#: Operators that cast their own number, or an operand, to their dtype; most casts are in these.
_INNER: Final = Names(
    rf"aten::(?!(_to_copy|to|type_as|{'|'.join(n.removeprefix('aten::') for n in _WEIGHTS)})$)"
)

_CAST_ONCE = "cast once, before the loop, or keep the tensor in the dtype in which it is used"
_AUTOCAST = (
    "cast the model once (model.to(torch.bfloat16)), or let autocast keep the casts: one "
    "context around all calls, its cache on, weights with requires_grad=True, and no_grad "
    "instead of inference_mode, in which it caches nothing"
)
_COPY_ONCE = (
    "copy it once, before the loop (to channels_last: x.to(memory_format=torch.channels_last)), "
    "and use that; or use the operator on the view, which most operators support"
)
_NEW = "write out of place: x.add(y) instead of x.clone().add_(y)"
_CAST_NEW = f"{_CAST_ONCE}, and then write out of place (x.div(y) instead of x.div_(y))"
#: Time to read or write a byte in a copy. Measured with torch 2.13 on one CPU thread: 0.08.
_COPIED_BYTE_NS: Final = 0.1
_TRIFLE = "fewer cost only the call: a mean per channel, a step number"
_SHARE = "of all that the test does on a CPU, by counts, not times; less does not matter"

_CAST_KERNEL: Final = late(r"copy|cast|convert", re.IGNORECASE)
_COPY_KERNEL: Final = late(r"copy|clone", re.IGNORECASE)


class _Kind(NamedTuple):
    """What is copied: the shape, the C++ type, and the type of the copy."""

    shape: tuple[int, ...]
    dtype: str
    to: str


class _Found(NamedTuple):
    """Unnecessary copies, and of what; ``fix``: what to do, if not the rule's own."""

    tops: Ints
    source: _Kind
    fix: str | None = None


def _unidentified(trace: Events, names: Names, repeats: float) -> Reason | None:
    """Why enough such copies may be of one tensor: only a live test tells."""
    if trace.tensors is not None or trace.could_know_tensors or count(trace, names) < repeats:
        return None
    return because(
        "tensors_unidentified", "which of them are of one tensor, only a live test can tell"
    )


def _unseen_casts(trace: Events) -> Reason | None:
    """Casts that graphs launched, and those of unidentified tensors: what they cast is unknown."""
    gap = blind_kernels(trace, _CAST_KERNEL.search)
    gap = gap or _unidentified(trace, _TO_COPY, repeated_cast.thresholds["repeats"].default)
    return gap or guessed(trace, _TO_COPY)


def _unseen_copies(trace: Events) -> Reason | None:
    """Copies that graphs launched, and those of unidentified tensors, likewise."""
    gap = blind_kernels(trace, _COPY_KERNEL.search)
    gap = gap or _unidentified(trace, _CLONE, contiguous_copy.thresholds["repeats"].default)
    return gap or guessed(trace, _CLONE)


@rule(
    "repeated-cast",
    fix=_CAST_ONCE,
    triggers={_TO_COPY.pattern: "repeats"},
    needs="shapes",
    blind=_unseen_casts,
    sees_host=_TO_COPY.pattern,
    repeats=Threshold(5, "1", "per tensor; q, k and v of one input are three casts"),
    elements=Threshold(16, "1", _TRIFLE),
    cpu_share=Threshold(0.01, "1", _SHARE),
)
def repeated_cast(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is cast between the same dtypes again and again.

    ## What it does

    Looks in each step for at least `repeats` casts of one tensor, or of one part of it, to one
    dtype, while nothing writes to it; the casts after the first one are counted. Under autocast
    only weights count, which it casts again if its cache does not keep them: in a context for each
    call, and always in `torch.inference_mode()`. A live test is captured once more to identify the
    tensors; in a stored trace, casts of one shape count if no operator in between takes a tensor of
    that dtype.

    Not counted: tensors of fewer than `elements` elements; on a CPU, casts that are less than
    `cpu_share` of all that the test does, by counts; a cast whose result is written to, which needs
    the copy; what operators, backward passes, optimizers and loaders cast.

    ## Why it is slow

    Each cast reads and writes the whole tensor and, on an accelerator, launches a kernel.

    ## Example

    ```python
    for x in batches:
        y = F.linear(x, weight.to(torch.bfloat16))
    ```

    ## Use instead

    ```python
    weight_bf16 = weight.to(torch.bfloat16)
    for x in batches:
        y = F.linear(x, weight_bf16)
    ```

    Under autocast, `torch.no_grad()` rather than `torch.inference_mode()`, or a model that is cast
    once: `model.to(torch.bfloat16)`.
    """
    rows, least = once_selected(trace, _outer_casts), int(repeats)
    if len(rows) < least:
        return NO_MATCHES
    top, owner = _chain(trace, rows, _CAST)
    weighs = are_named(trace, owner, _WEIGHTED)
    explicit = are_called(trace, top)
    # Those nested in other operators are torch's own.
    keep = weighs | (owner < 0) | ~are_closed(trace, owner)
    keep &= explicit | (weighs & ~in_backward(trace, rows))
    rows, top, owner, explicit = rows[keep], top[keep], owner[keep], explicit[keep]
    copies = selected_operators(trace, "aten::copy_")
    copies = copies[marked(trace, rows)[trace.parent[copies]]]
    at = np.searchsorted(rows, trace.parent[copies])
    kinds, kind = _kinds(trace, copies, 1, elements)
    at, kind = at[kind >= 0], kind[kind >= 0]
    rows, top, owner, explicit = rows[at], top[at], owner[at], explicit[at]
    if not len(rows) or np.bincount(2 * kind + explicit).max() < least:
        return NO_MATCHES
    if trace.could_know_tensors:
        return NONE_SO_FAR
    out: list[_Found] = []
    mine = np.flatnonzero(explicit)
    for group in _again(trace, rows[mine], kind[mine], least, kinds):
        of = mine[group]
        out += _unless_needed(trace, rows[of], top[of], kinds[kind[of[0]]], least)
    mine = np.flatnonzero(~explicit)
    mine = mine[_are_of_weights(trace, rows[mine], owner[mine], kinds, kind[mine])]
    groups = _again if trace.tensors is not None else _again_by_gradients
    for group in groups(trace, rows[mine], kind[mine], least, kinds):
        of = mine[group]
        out.append(_Found(top[of[1:]], kinds[kind[of[0]]], _AUTOCAST))
    return _matches(trace, out, _CAST_ONCE, cpu_share)


@rule(
    "contiguous-copy",
    fix=_COPY_ONCE,
    triggers={_CLONE.pattern: "repeats"},
    needs="shapes",
    blind=_unseen_copies,
    sees_host=True,
    repeats=Threshold(5, "1", "per tensor; fewer are the parts of one layer"),
    elements=Threshold(16, "1", _TRIFLE),
    cpu_share=Threshold(0.01, "1", _SHARE),
)
def contiguous_copy(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is made contiguous, or cloned, again and again.

    ## What it does

    Looks in each step for at least `repeats` copies of one tensor, or of one part of it, by
    `contiguous`, `clone`, or a `reshape` or `flatten` that has to copy, while nothing writes to it;
    the copies after the first one are counted. A test in which enough copies look alike is captured
    once more to identify the tensors; a stored trace, which does not identify them, is not checked.

    Not counted: tensors of fewer than `elements` elements; on a CPU, copies that are less than
    `cpu_share` of all that the test does, by counts; clones that exist side by side; copies that
    are written to, except by an arithmetic operator that could make a new tensor instead:
    `x.clone().add_(y)` is `x.add(y)`; what operators, backward passes, optimizers and loaders copy.

    ## Why it is slow

    Each copy allocates memory, and reads and writes the whole tensor, with strided access.

    ## Example

    ```python
    for x in batches:
        y = x @ weight.t().contiguous()
    ```

    ## Use instead

    ```python
    transposed = weight.t().contiguous()
    for x in batches:
        y = x @ transposed
    ```
    """
    rows, least = selected_operators(trace, "aten::clone"), int(repeats)
    if len(rows) < least:
        return NO_MATCHES
    top, _ = _chain(trace, rows, _COPY)
    kinds, kind = _kinds(trace, rows, 0, elements)
    keep = are_called(trace, top) & (kind >= 0)
    rows, top, kind = rows[keep], top[keep], kind[keep]
    if not len(rows) or np.bincount(kind).max() < least:
        return NO_MATCHES
    if trace.could_know_tensors:
        return NONE_SO_FAR
    out: list[_Found] = []
    for group in _again(trace, rows, kind, least, kinds):
        cloned = are_named(trace, top[group], _CLONE).all()
        kept = bool(cloned) and _are_kept(trace, rows[group], least)
        out += _unless_needed(trace, rows[group], top[group], kinds[kind[group[0]]], least, kept)
    return _matches(trace, out, _COPY_ONCE, cpu_share)


def _unless_needed(
    trace: Events, rows: Ints, top: Ints, source: _Kind, least: int, kept: bool = False
) -> list[_Found]:
    """Without the copies that are written to in a way that needs a copy.

    ``kept``: also without those that are not written to, in case that happens later.
    """
    written, needed = _written_to(trace, rows, prod(source.shape))
    needed |= kept & ~written
    top, written = top[~needed], written[~needed]
    if len(top) < least:
        return []
    otherwise = _NEW if source.dtype == source.to else _CAST_NEW
    return [_Found(top[1:], source, otherwise if written.any() else None)]


def _message(source: _Kind, autocast: bool) -> str:
    what = f"of {torch_name(source.dtype)} copied"
    if source.dtype != source.to:
        by = " by autocast" * autocast
        what = f"cast from {torch_name(source.dtype)} to {torch_name(source.to)}{by}"
    return f"{list(source.shape)} {what} again and again"


def _moved_bytes(source: _Kind) -> int:
    return prod(source.shape) * (ELEMENT_BYTES[source.dtype] + ELEMENT_BYTES[source.to])


def _matches(trace: Events, found: list[_Found], own: str, share: float) -> Matches:
    if not found:
        return NO_MATCHES
    event = np.concatenate([one.tops for one in found])
    each = [one for one in found for _ in range(len(one.tops))]
    message = [_message(one.source, one.fix is _AUTOCAST) for one in each]
    moved_bytes = np.array([_moved_bytes(one.source) for one in each], np.int64)
    fix = [one.fix or own for one in each]
    cost = trace.dur[event]
    if trace.has(*DEVICE_KINDS):
        cost = cost + trace.once(launched_ns)[event]
    elif is_trifle(trace, len(event) * CALL_NS + moved_bytes.sum() * _COPIED_BYTE_NS, share):
        return NO_MATCHES
    return Matches(event, message, None, cost, moved_bytes, None, fix, around(trace, event))


# ---- Which copies there are: their kinds, and the calls that requested them.


def _outer_casts(trace: Events) -> Ints:
    """The selected casts that no operator makes for itself."""
    rows = operators_named(trace, _TO_COPY)
    rows = rows[trace.selection[rows]]
    above = trace.parent[rows]
    inner = are_named(trace, above, _CAST) & are_named(trace, trace.parent[above], _INNER)
    outer: Ints = rows[~inner]
    return outer


def _chain(trace: Events, rows: Ints, names: Names) -> tuple[Ints, Ints]:
    """The outermost operator of these names around each row, and what encloses that, or -1."""
    top = rows.copy()
    above = trace.parent[top]
    todo = (above >= 0).nonzero()[0]
    while len(todo):
        todo = todo[are_named(trace, above[todo], names)]
        top[todo] = above[todo]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    return top, above


def _kinds(trace: Events, rows: Ints, at: int, least: float) -> tuple[list[_Kind], Ints]:
    """Kinds, which differ in strides too, and the kind of each of these copies of operand ``at``.

    -1 if unknown, for fewer than ``least`` elements, and for a copy from operand 1 without a cast.
    """
    known: dict[tuple[bytes, bytes, bytes], int] = {}
    kinds, kind = list[_Kind](), []
    for args in trace.operands(rows):
        key = (bytes(args.dims), bytes(args.types), bytes(args.strides))
        if key not in known:
            dims, types, _ = map(decode_part, key)
            known[key] = -1
            if (
                isinstance(dims, list)
                and isinstance(types, list)
                and at < min(len(dims), len(types))
            ):
                shape, dtype, to = sizes(dims[at]), types[at], types[0]
                casts = (to != dtype) == (at > 0) and {dtype, to} <= ELEMENT_BYTES.keys()
                if shape is not None and prod(shape) >= least and casts:
                    known[key] = len(kinds)
                    kinds.append(_Kind(shape, dtype, to))
        kind.append(known[key])
    return kinds, np.array(kind, np.int64)


def _by_kind(trace: Events, rows: Ints, kind: Ints, least: int) -> Iterator[Ints]:
    """Positions of at least ``least`` rows that share kind, thread and step, in order."""
    keys = [kind, trace.thread[rows].astype(np.int64), step_of(trace, rows)]
    order = np.lexsort((rows, *keys))
    changes = np.zeros(max(len(order) - 1, 0), bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group) >= least:
            yield group


# ---- Casts of weights by autocast: its cache does not hold them, or was cleared in between.


def _are_of_weights(
    trace: Events, rows: Ints, owner: Ints, kinds: list[_Kind], kind: Ints
) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias.

    By identity; else by shape, where the operator's input has another one.
    """
    names = [trace.names[number] for number in trace.name[owner].tolist()]
    tensors, operands = trace.taken(rows), trace.taken(owner)
    cast: Iterable[Any]
    given: Iterable[Any]
    if tensors is None or operands is None:
        cast = [kinds[number].shape for number in kind.tolist()]
        given = [[sizes(one) for one in dims] for dims in trace.input_shapes(owner)]
    else:
        cast, given = [_first(one) for one in tensors], operands
    found = [
        one in [taken[i] for i in _WEIGHTS[name] if i < len(taken)]
        and one not in [taken[i] for i in range(len(taken)) if i not in _WEIGHTS[name]]
        for one, taken, name in zip(cast, given, names, strict=True)
    ]
    return np.array(found, bool)


def _again_by_gradients(
    trace: Events, rows: Ints, kind: Ints, least: int, kinds: list[_Kind]
) -> Iterator[Ints]:
    """Positions of casts of one weight again and again, if gradients tell how many there are."""
    puts = selected_operators(trace, "torch::autograd::AccumulateGrad")
    step = step_of(trace, puts)
    dims, types = trace.input_shapes(puts), trace.input_types(puts)
    shapes = [sizes(one[0]) if one else None for one in dims]
    for group in _by_kind(trace, rows, kind, least):
        source, now = kinds[kind[group[0]]], step_of(trace, rows[group[:1]])[0]
        weights = sum(
            shape == source.shape and some[:1] == [source.dtype] and at == now
            for shape, some, at in zip(shapes, types, step.tolist(), strict=True)
        )
        if weights and len(group) >= least * weights:
            yield group


# ---- Repeated copies of one unchanged tensor, for captures that identify tensors.

#: The same memory, or nothing of it.
_SAME_MEMORY = WHOLE | EXPANSIONS | aten("result_type is_same_size")
_VIEWS = _SAME_MEMORY | PARTS | aten("reshape flatten")
#: What takes a tensor and leaves no result in it: views, reads, and copies.
_ONLY_TAKE = _VIEWS | aten(
    "item _local_scalar_dense is_nonzero equal allclose record_stream "
    "to _to_copy type_as float half double contiguous clone ravel copy copy_"
)
#: Operators that write to an existing tensor.
_IN_PLACE = Names(r"(?!aten::(detach_|requires_grad_)$)(.*[^_]_|.*::__i\w+__)$")
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
    """A call that makes a view of a tensor's object; ``part``: of less of it, by its arguments."""

    at: int
    object: int
    part: tuple[Any, ...] | None
    elements: int


def _again(trace: Events, rows: Ints, kind: Ints, least: int, kinds: list[_Kind]) -> Iterator[Ints]:
    """Positions of copies of one tensor, each time the same part of it, in order.

    ``rows``: operators that copy their first argument; ``kind`` is equal for those that copy in the
    same way. Between two of them, nothing has written to the tensor, no optimizer has made its
    step, and no backward pass has computed gradients.
    """
    taken = trace.taken(rows)
    if taken is None:
        return
    tensor = np.array([_first(one) for one in taken], np.int64)
    ends = trace.ts[selected_operators(trace, "torch::autograd::AccumulateGrad")]
    era = np.searchsorted(np.sort(ends), trace.ts[rows])
    _, key = np.unique(np.stack([tensor, kind, era], 1), axis=0, return_inverse=True)
    groups = [g for g in _by_kind(trace, rows, key.reshape(-1), least) if tensor[g[0]] >= 0]
    if not groups:
        return
    asked = {int(tensor[group[0]]) for group in groups}
    objects = trace.objects(rows) or []
    written = _written(trace, asked, np.concatenate([rows[g] for g in groups]))
    views = _views(trace, asked, rows)
    for group in groups:
        number = int(tensor[group[0]])
        changes = np.sort(trace.ts[np.array(written[number], np.int64)])
        change = np.searchsorted(changes, trace.ts[rows[group]]).tolist()
        mine = [(int(trace.ts[rows[i]]), _first(objects[i])) for i in group.tolist()]
        same = defaultdict[Any, list[int]](list)
        parts = _parts(mine, views[number], prod(kinds[kind[group[0]]].shape))
        for position, at, part in zip(group.tolist(), change, parts, strict=True):
            same[at, part].append(position)
        yield from (np.array(found, np.int64) for found in same.values() if len(found) >= least)


def _first(taken: tuple[Taken, ...]) -> int:
    return taken[0] if taken and isinstance(taken[0], int) else -1


def _parts(copies: list[tuple[int, int]], views: list[_View], elements: int) -> list[Any]:
    """Which part of the tensor each of these copies (when, of which object) is of.

    By the object that it comes from, and the calls that selected a part of that. It comes from the
    first object of which a view was made since the previous copy; but from the object that the next
    copy comes from, if that existed: a parameter is made as a view of the given tensor.
    """
    ends = np.searchsorted([view.at for view in views], [time for time, _ in copies]).tolist()
    between = [views[a:b] for a, b in pairwise([0, *ends])]
    found, after = list[Any](), None
    for (_, own), some in zip(reversed(copies), reversed(between), strict=True):
        objects = [*(view.object for view in some), own]
        after = after if after in objects else objects[0]
        path = [view for view in some[objects.index(after) :] if view.elements > elements]
        found.append((after, tuple(view.part for view in path if view.part)))
    return found[::-1]


def _views(trace: Events, tensors: set[int], copies: Ints) -> dict[int, list[_View]]:
    """The calls that make views of these tensors, by tensor, in time order."""
    found = defaultdict[int, list[_View]](list)
    rows = _called(trace, copies, _VIEWS)
    for row, taken in zip(rows.tolist(), trace.taken(rows) or [], strict=True):
        if (number := _first(taken)) in tensors:
            at = np.array([row])
            (args,), (of,) = trace.operands(at), map(_first, trace.objects(at) or [(0,)])
            name = trace.names[trace.name[row]]
            part = (name, bytes(args.dims), bytes(args.strides), bytes(args.concrete))
            is_part = name in PARTS or name == "aten::as_strided"
            view = _View(int(trace.ts[row]), of, part if is_part else None, _elements(trace, row))
            found[number].append(view)
    return found


def _called(trace: Events, copies: Ints, names: frozenset[str], *, others: bool = False) -> Ints:
    """Calls of these names, or of all ``others``, on the threads of the copies."""
    rows: Ints = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[among(trace.thread[rows], trace.thread[copies])]
    wanted = np.array([(name in names) != others for name in trace.names], bool)
    found: Ints = rows[wanted[trace.name[rows]]]
    return found


# ---- What is written to.


def _written_to(trace: Events, rows: Ints, elements: int) -> tuple[Bools, Bools]:
    """Which copies are written to, and which of them need to be copies: all except those that the
    next call, and none later, writes to as a whole.
    """
    results = [set(made) for made in trace.made(rows) or []]
    written = _written(trace, set().union(*results), rows, after=True)
    writes = [[row for one in made for row in written[one]] for made in results]
    later = np.append(_called(trace, rows, _ONLY_TAKE, others=True), len(trace))
    following = later[np.searchsorted(later, rows, side="right")].tolist()
    needed = [
        bool(some) and (some != [following[i]] or _needs_copy(trace, some[0], elements))
        for i, some in enumerate(writes)
    ]
    return np.array([bool(some) for some in writes], bool), np.array(needed, bool)


def _needs_copy(trace: Events, write: int, elements: int) -> bool:
    """Whether this could not make a new tensor of all those elements instead."""
    in_place = are_named(trace, np.array([write]), _ELEMENTWISE)[0]
    return not in_place or _elements(trace, write) != elements


def _elements(trace: Events, row: int) -> int:
    """The number of elements of a call's first argument; -1 if unknown."""
    (dims,) = trace.input_shapes(np.array([row]))
    shape = sizes(dims[0]) if dims else None
    return -1 if shape is None else prod(shape)


def _written(
    trace: Events, tensors: set[int], copies: Ints, *, after: bool = False
) -> defaultdict[int, list[int]]:
    """The operators that write to these tensors between the copies, by tensor.

    ``after``: also past the last copy, and no ``out=``.
    """
    found = defaultdict[int, list[int]](list)
    begin = trace.ts[copies].min()
    end = np.iinfo(np.int64).max if after else trace.ts[copies].max()

    def between(rows: Ints) -> Ints:
        inside: Ints = rows[(trace.ts[rows] > begin) & (trace.ts[rows] < end)]
        return inside

    rows = between(operators_named(trace, _IN_PLACE, _FOREIGN))
    above = trace.parent[rows]
    rows = rows[~are_named(trace, above, _FRESH) & ~are_named(trace, above, _IN_PLACE)]
    foreign = are_named(trace, rows, _FOREIGN).tolist()
    for row, other, taken in zip(rows.tolist(), foreign, trace.taken(rows) or [], strict=True):
        every = other or (taken and isinstance(taken[0], tuple))
        for number in tensors.intersection(_flat(taken if every else taken[:1])):
            found[number].append(row)
    if after:  # other operators take results last, too
        return found
    rows = between(_called(trace, copies, _ONLY_TAKE, others=True))
    rows = rows[~are_named(trace, rows, _IN_PLACE, _FOREIGN)]
    last = [taken[-1] if len(taken) > 1 else -1 for taken in trace.taken(rows) or []]
    rows = rows[[one in tensors for one in last]]
    for row, taken, made in zip(
        rows.tolist(), trace.taken(rows) or [], trace.made(rows) or [], strict=True
    ):
        if not made and isinstance(out := taken[-1], int):  # torch.mul(…, out=x)
            found[out].append(row)
    return found


def _flat(taken: Iterable[Taken]) -> Iterator[int]:
    for one in taken:
        yield from (one,) if isinstance(one, int) else one


def _are_kept(trace: Events, copies: Ints, least: int) -> bool:
    """Whether copies exist side by side, to be changed separately; no if memory does not tell."""
    memory = trace.memory
    gets = np.flatnonzero(memory.bytes > 0)
    if memory.addr is None or not len(gets):
        return False
    first = np.searchsorted(trace.ts[memory.event[gets]], trace.ts[copies])
    if (first >= len(gets)).any():
        return False
    ends = trace.once(_next_at_address)[gets[first]]
    gone = np.where(ends >= 0, trace.ts[memory.event[ends]], np.iinfo(np.int64).max)
    held = int((gone[:-1] > trace.ts[copies[-1]]).sum())
    return len(copies) < least * max(1, held)


def _next_at_address(trace: Events) -> Ints:
    """For each memory event the next one at its address, or -1."""
    address = trace.memory.addr
    if address is None:
        return np.zeros(0, np.int64)
    order = np.argsort(address, kind="stable")
    same = np.diff(address[order]) == 0
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return after
