"""Rules about the same work done again: casts, and copies that make a tensor contiguous."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.device import launched_ns
from pytest_torchprof.analysis.gaps import blind_kernels
from pytest_torchprof.analysis.operands import ELEMENT_BYTES
from pytest_torchprof.arguments import decode_part
from pytest_torchprof.events import DEVICE_KINDS
from pytest_torchprof.rules.autocast import WEIGHTS, gradients, recast
from pytest_torchprof.rules.calls import are_called, are_closed, in_backward, shown, sizes
from pytest_torchprof.rules.grouping import reach
from pytest_torchprof.rules.names import Names, are_named, operators_named, rows_of
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.runs import Finder, Run, by_kind, held
from pytest_torchprof.rules.sources import Source

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

_TO_COPY: Final = Names(r"aten::_to_copy$")
_CAST: Final = Names(r"aten::(_to_copy|to|type_as)$")
_COPY: Final = Names(r"aten::(clone|contiguous|reshape|flatten|ravel)$")
#: What casts a number of its own, or an operand, to its dtype; most casts are in one of these.
_INNER: Final = Names(
    rf"aten::(?!(_to_copy|to|type_as|{'|'.join(n.removeprefix('aten::') for n in WEIGHTS)})$)"
)
_WEIGHTED: Final = Names("|".join(f"{re.escape(name)}$" for name in WEIGHTS))


def _unseen_casts(trace: Trace) -> str | None:
    """Casts that graphs launched: no operator says what they cast."""
    return blind_kernels(trace, re.compile(r"copy|cast|convert", re.IGNORECASE).search)


def _unseen_copies(trace: Trace) -> str | None:
    """Copies that graphs launched: no operator says of what."""
    return blind_kernels(trace, re.compile(r"copy|clone", re.IGNORECASE).search)


@rule(
    "repeated-cast",
    fix="cast once, before the loop (or keep the tensor in the dtype in which it is used); in "
    "autocast: one context around all calls, its cache on, weights that require grad, and no_grad "
    "rather than inference_mode, which has no cache",
    triggers=r"aten::_to_copy$",
    needs="shapes",
    blind=_unseen_casts,
    repeats=Threshold(5, "1", "as often for one tensor; q, k and v of one input are three casts"),
)
def repeated_cast(trace: Trace, *, repeats: float) -> Matches:
    """The same tensor is cast between the same dtypes again and again.

    What it does
        Looks in each step (of `torch.profiler`, of a DataLoader, or that an optimizer ends) for
        casts of one shape between the same dtypes, at least ``repeats`` of them, which the code
        asked for by ``.to(…)``, ``.half()`` and so on while nothing that ran in between can have
        made a new tensor of that shape and dtype. Activations, which each layer makes anew, are
        thus left alone, and so is a cast of as many parameters as get a gradient in that step.
        Casting there and directly back counts. Counted are the casts after the first.

        Under autocast only weights count, where they are cast ``repeats`` times as often as they
        get a gradient; or, where there are none, as there are copies in its cache at once, or for
        one and the same input, or in a model that is seen, by the layers within it, to run again.
        Layers of one shape that each cast their own weight once are thus left alone.

        Several tensors of one shape that were made before the step and are cast one by one look
        like one. Casts of which nothing uses the result count only where memory events say that
        it is thrown away. Tensors of one element, and the casts that operators, backward passes,
        optimizers and loaders make within themselves, are left out.

    Why it is slow
        Each cast reads and writes the whole tensor and, on an accelerator, launches a kernel. A
        weight is cast to the same numbers every time.

    Example
        .. code:: python

            for x in batches:
                y = F.linear(x, weight.to(torch.bfloat16))

    Use instead
        .. code:: python

            weight_bf16 = weight.to(torch.bfloat16)
            for x in batches:
                y = F.linear(x, weight_bf16)
    """
    rows = operators_named(trace, _TO_COPY)
    rows = rows[trace.selection[rows]]
    least = int(repeats)
    above = trace.parent[rows]
    inner = are_named(trace, above, _CAST) & are_named(trace, trace.parent[above], _INNER)
    rows = rows[~inner]
    if len(rows) < least:
        return NO_MATCHES
    top, owner = _chain(trace, rows, _CAST)
    weighs = are_named(trace, owner, _WEIGHTED)
    keep = weighs | (owner < 0) | ~are_closed(trace, owner)  # in others, they are torch's own
    if np.count_nonzero(keep) < least:
        return NO_MATCHES
    rows, top, owner, weighs = rows[keep], top[keep], owner[keep], weighs[keep]
    explicit = are_called(trace, top)
    wrapped = ~explicit & weighs
    wrapped[wrapped] = ~in_backward(trace, rows[wrapped])
    keep = explicit | wrapped
    rows, top, owner, explicit = rows[keep], top[keep], owner[keep], explicit[keep]
    kinds, kind = _casts(trace, rows)
    out: list[tuple[Ints, Source]] = []
    finder = Finder(trace)
    for group in by_kind(trace, rows, np.where(explicit, kind, -1), least):
        if kind[group[0]] < 0 or not explicit[group[0]]:
            continue
        source = kinds[kind[group[0]]]
        params = gradients(trace, rows[group[0]], source)
        if len(group) < least * params:
            continue
        runs = finder.runs(top[group], rows[group], source, least)
        out += [(run.tops[1:], source) for run in runs if _thrown_away(trace, run, least)]
    inside = ~explicit & (kind >= 0)
    top = top[inside]
    again = recast(finder, (rows[inside], owner[inside], kind[inside]), kinds, least)
    out += [(top[some[1:]], source) for some, source in again]
    return _matches(trace, out, lambda s: f"cast from {shown(s.dtype)} to {shown(s.to)}")


@rule(
    "contiguous-copy",
    fix="make it contiguous (or clone it) once, before the loop, and use that; or use the "
    "operator on the view, which most of them take",
    triggers=r"aten::clone$",
    needs="shapes",
    blind=_unseen_copies,
    repeats=Threshold(5, "1", "as often for one tensor; fewer are the parts of one layer"),
    between=Threshold(3, "1", "so few operators from one copy to the next are a loop's body"),
)
def contiguous_copy(trace: Trace, *, repeats: float, between: float) -> Matches:
    """The same tensor is made contiguous, or cloned, again and again.

    What it does
        Looks in each step (see ``repeated-cast``) for copies of one shape, strides and dtype which
        the code asked for by ``contiguous``, ``clone``, or a ``reshape`` or ``flatten`` that has to
        copy: at least ``repeats`` one after the other, where what ran between two of them cannot
        have made such a tensor anew, or is no more than ``between`` operators, views aside: the
        body of a loop. The copy that each layer of a network makes of its own activations is thus
        left alone, and so is a ``clone`` right after what makes such a tensor, or after a backward
        pass. Counted are the copies after the first.

        Several tensors that were made before the step and are copied one by one look like one.
        Left out are tensors of one element, the parts of one split tensor, copies that nothing
        uses unless memory events say that they are thrown away, and those that operators,
        backward passes, optimizers and loaders make within themselves.

    Why it is slow
        Each copy reads and writes the whole tensor, in an order that suits neither, and allocates.

    Example
        .. code:: python

            for x in batches:
                y = x @ weight.t().contiguous()

    Use instead
        .. code:: python

            transposed = weight.t().contiguous()
            for x in batches:
                y = x @ transposed
    """
    rows = rows_of(trace, "aten::clone")
    least = int(repeats)
    if len(rows) < least:
        return NO_MATCHES
    top, _ = _chain(trace, rows, _COPY)
    keep = are_called(trace, top)
    if np.count_nonzero(keep) < least:
        return NO_MATCHES
    rows, top = rows[keep], top[keep]
    kinds, kind = _clones(trace, rows)
    out: list[tuple[Ints, Source]] = []
    finder = Finder(trace, int(between))
    for group in by_kind(trace, rows, kind, least):
        if kind[group[0]] < 0:
            continue
        source = kinds[kind[group[0]]]
        runs = finder.runs(top[group], rows[group], source, least)
        out += [(run.tops[1:], source) for run in runs if _thrown_away(trace, run, least)]
    return _matches(trace, out, lambda s: f"of {shown(s.dtype)} copied")


# -------------------------------------------------------------------- kinds of copies


def _chain(trace: Trace, rows: Ints, names: Names) -> tuple[Ints, Ints]:
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


def _casts(trace: Trace, rows: Ints) -> tuple[list[Source], Ints]:
    """Distinct kinds, and that of each cast, by the copy in it; -1 for a copy without a cast."""
    copies = rows_of(trace, "aten::copy_")
    copies = copies[np.isin(trace.parent[copies], rows)]
    known: dict[tuple[bytes, bytes], int] = {}
    kinds: dict[Source, int] = {}
    kind = np.full(len(rows), -1, np.int64)
    at = np.searchsorted(rows, trace.parent[copies])
    for i, args in zip(at.tolist(), trace.operands(copies), strict=True):
        key = (bytes(args.dims), bytes(args.types))
        if key not in known:
            known[key] = _kind(decode_part(key[0]), decode_part(key[1]), kinds)
        kind[i] = known[key]
    return list(kinds), kind


def _kind(dims: Any, types: Any, kinds: dict[Source, int]) -> int:
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) < 2 > len(types):
        return -1
    shape, to, dtype = sizes(dims[1]), types[0], types[1]
    known = to in ELEMENT_BYTES and dtype in ELEMENT_BYTES
    if shape is None or prod(shape) < 2 or to == dtype or not known:
        return -1
    return kinds.setdefault(Source(shape, dtype, to), len(kinds))


def _clones(trace: Trace, rows: Ints) -> tuple[list[Source], Ints]:
    """Distinct shapes and dtypes, and a number of each clone's kind, which strides tell too."""
    known: dict[tuple[bytes, bytes, bytes], int] = {}
    sources, kind = list[Source](), []
    for args in trace.operands(rows):
        key = (bytes(args.dims), bytes(args.types), bytes(args.strides))
        if key not in known:
            dims, types, _ = map(decode_part, key)
            first = dims[0] if isinstance(dims, list) and dims else None
            shape, dtype = sizes(first), types[0] if isinstance(types, list) and types else ""
            if shape is None or prod(shape) < 2 or dtype not in ELEMENT_BYTES:
                known[key] = -1
            else:
                known[key] = len(sources)
                sources.append(Source(shape, dtype, dtype))
        kind.append(known[key])
    return sources, np.array(kind, np.int64)


# -------------------------------------------------------------------- how many tensors there are


def _thrown_away(trace: Trace, run: Run, least: int) -> bool:
    """Whether copies that nothing used were not kept side by side, as those of a model are.

    Without memory events nobody knows, and they are taken for such.
    """
    if not run.bare:
        return True
    still = held(trace, run.copies)
    return still is not None and len(run.copies) >= least * max(1, still)


# -------------------------------------------------------------------- what is reported


def _matches(trace: Trace, found: list[tuple[Ints, Source]], said: Any) -> Matches:
    if not found:
        return NO_MATCHES
    event = np.concatenate([tops for tops, _ in found])
    message = [
        f"{list(source.shape)} {said(source)} again and again" for tops, source in found
        for _ in range(len(tops))
    ]  # fmt: skip
    moved = [
        prod(source.shape) * (ELEMENT_BYTES[source.dtype] + ELEMENT_BYTES[source.to])
        for tops, source in found
        for _ in range(len(tops))
    ]
    cost = trace.dur[event]
    if trace.is_kind(*DEVICE_KINDS).any():
        cost = cost + trace.once(launched_ns)[event]
    moved_bytes = np.array(moved, np.int64)
    return Matches(event, message, None, cost, moved_bytes, span_ns=reach(trace, event))
