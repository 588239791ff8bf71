"""What a loop goes through, and whether one iteration needs what another one made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import LAYER
from pytest_torchprof.trace.names import DEVICE_KINDS
from pytest_torchprof.work.op_calls import IndexedPart, OpCall, Shape, calls_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken
    from pytest_torchprof.work.repeats import CallSequence

#: Operators of which each iteration marks another class or range, and that take what is marked.
MARKS: Final = late(r"aten::(eq|ne|lt|le|gt|ge|isnan|isfinite)$")
BY_MASK: Final = late(r"aten::(index|index_select|masked_select|index_put_|nonzero|where)(\.\w+)?$")
#: What gives Python a number.
READS: Final = late(r"aten::(item|is_nonzero)$")
#: Iterations that may have another shape, such as the first and the last.
ODD: Final = 2
#: Operators that put values into their first argument without reading it.
STORES: Final = frozenset({
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "index_put_", "masked_fill_",
    "index_fill_", "index_copy_", "scatter_", "masked_scatter_", "put_", "bernoulli_",
})  # fmt: skip
#: Sums, step by step: these add to their first operand, the others to either.
_SUMS: Final = frozenset({
    "sub", "addmm", "addr", "addcmul", "addbmm", "baddbmm", "addmv", "index_add", "scatter_add",
})  # fmt: skip
_COMMUTES: Final = frozenset({
    "add", "mul", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logical_or", "logical_and",
    "bitwise_or", "bitwise_and", "__or__", "__and__",
})  # fmt: skip


class Body:
    """The first ``most`` iterations of calls that repeat with this period: what each one takes.

    ``repeats`` is the number of all iterations, ``looked`` of those here.
    """

    def __init__(self, trace: Events, rows: Ints, period: int, most: int) -> None:
        self.trace, self.period, self.repeats = trace, period, len(rows) // period
        self.looked = min(self.repeats, most)
        self.rows: Ints = rows[: self.looked * period]
        self.calls = calls_of(trace, self.rows)
        self.first = self.calls[:period]
        self.taken, self.made = trace.taken(self.rows), trace.made(self.rows)

    def like(self, at: int) -> list[OpCall]:
        """One call of the body in each iteration."""
        return self.calls[at :: self.period]

    def tensors(self, at: int, number: int = 0) -> set[int]:
        """Which tensors are this argument of one call in all iterations, as far as known."""
        rows = (self.taken or [])[at :: self.period]
        return {one for row in rows if number < len(row) for one in _numbers(row[number])}

    def takers(self, shape: Shape, tensors: set[int]) -> list[tuple[int, int]]:
        """The calls of the body, and their arguments, that take this shape of one of these tensors
        in each iteration but one; of any, if unknown.
        """
        out = []
        for at, call in enumerate(self.first):
            rows = (self.taken or [])[at :: self.period]
            for number, some in enumerate(call.shapes):
                mine = sum(
                    not tensors.isdisjoint(_numbers(*one[number : number + 1])) for one in rows
                )
                known = not tensors or mine >= len(rows) - 1
                if not call.is_view and shape in some and known:
                    out.append((at, number))
        return out


# ---- What a loop goes through.


class Split(NamedTuple):
    """A tensor that was split: its event, number and shape, what one piece is, and how many."""

    row: int
    tensor: int
    whole: Shape
    piece: Shape
    pieces: int
    total: int


class Moving(NamedTuple):
    """What a loop goes through: where that begins, a part's shape, and the pieces that it takes.

    ``masks``: the parts are what masks of classes mark.
    """

    row: int
    message: str
    part: Shape
    pieces: Collection[tuple[int, Shape]]
    masks: bool = False


def splits_of(trace: Events, calls: CallSequence, least: float) -> list[Split]:
    """Tensors that were split into so many pieces of one shape, and such pieces themselves."""
    out: dict[tuple[int, Shape], Split] = {}
    taken = trace.taken(calls.apart) or [(-1,)] * len(calls.apart)
    every = zip(calls.apart.tolist(), calls_of(trace, calls.apart), taken, strict=True)
    for row, call, one in every:
        tensor = one[0] if one and isinstance(one[0], int) else -1
        if (found := _piece(call)) and (found[1] >= least or (tensor, call.first) in out):
            outer = out.get((tensor, call.first), Split(row, tensor, call.first, *found, 0))
            known = out.setdefault((tensor, found[0]), outer._replace(piece=found[0], total=0))
            out[tensor, found[0]] = known._replace(total=known.total + found[1])
    return [*out.values()]


def _piece(call: OpCall) -> tuple[Shape, int] | None:
    """The shape of a piece, and how many there are."""
    shape, (*how, axis) = call.first, call.numbers or [None]
    if axis is None or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    size, each = shape[axis], how[0] if how else 1
    if not size or not each:
        return None
    each = -(-size // each) if call.base in ("chunk", "tensor_split") else each
    return (*shape[:axis], *([each] if how else []), *shape[axis + 1 :]), -(-size // each)


def moving_of(body: Body, splits: list[Split], repeats: float) -> Moving | None:
    """What the loop goes through: by an index, in pieces, or by masks of classes."""
    pieces = {(one.tensor, one.piece): one for one in splits if _takes_pieces(body, one)}
    masks = _marks_classes(body, pieces)
    for at, call in enumerate(body.first):
        if call.part is not None and _selects_others(body, at, repeats):
            return Moving(int(body.rows[at]), _message(call), call.part.result, pieces, masks)
    for one in pieces.values():
        text = f"a loop takes one piece after the other of a tensor of {[*one.whole]}"
        return Moving(one.row, text, one.piece, pieces, masks)
    for at, call in enumerate(body.first):
        before = body.calls[at - 1]
        by_list = before.base == "lift_fresh" and before.first == (1,)
        if call.base.startswith(("index", "masked_select")) and (masks or by_list):
            return Moving(int(body.rows[at]), _message(call), call.first[1:], pieces, masks)
    return None


def _message(call: OpCall) -> str:
    shape = [*call.first]
    return f"a loop calls {call.name} on a tensor of {shape} for one part after the other"


def _selects_others(body: Body, at: int, repeats: float) -> bool:
    """Whether an index selects another part of one tensor each time, and computes with it."""
    parts = [call.part for call in body.like(at)]
    alike = [(a, b) for a, b in pairwise(parts) if a and b and a.shape == b.shape]
    moves = sum(a != b for a, b in alike)
    tensors, (one, *_) = body.tensors(at), parts
    if one is None or moves < max(repeats - 1, len(alike) / 2) or len(tensors) > 1:
        return False
    size, several = one.high - one.low, any(LAYER.match(call.name) for call in body.first)
    if one.keeps and (2 * size > one.shape[one.axis] > 2 or (several and size > 1)):
        return False  # shifts of a stencil, or batches
    takers = [body.first[by].name for by, _ in body.takers(one.result, tensors)]
    read = not one.result and takers and all(map(READS.match, takers))
    return not (read and not body.trace.has(*DEVICE_KINDS))


def _takes_pieces(body: Body, split: Split) -> bool:
    """Whether a call takes a piece of this tensor in each iteration, and not most of them."""
    if body.taken is None and not split.pieces - ODD <= body.repeats <= split.total + ODD:
        return False
    several = any(a != b != 1 for a, b in zip(split.whole, split.piece, strict=False))
    several &= len(split.whole) == len(split.piece)
    largest = max((prod(one) for call in body.first for one in call.tensors), default=0)
    if several and (
        largest > prod(split.piece) or any(LAYER.match(one.name) for one in body.first)
    ):
        return False  # batches
    on_cpu = not body.trace.has(*DEVICE_KINDS)
    return any(
        2 * body.first[at].shapes[number].count(split.piece) < split.total
        for at, number in body.takers(split.piece, {split.tensor} - {-1})
        if not (on_cpu and READS.match(body.first[at].name))
    )


def _marks_classes(body: Body, pieces: Collection[tuple[int, Shape]]) -> bool:
    """Whether each iteration marks another class or range of the same tensor, and takes those."""
    marks = [at for at, call in enumerate(body.first) if MARKS.match(call.name)]
    return any(BY_MASK.match(one.name) for one in body.first) and any(
        len({one.concrete for one in body.like(at)}) >= body.looked
        or any((one, ()) in pieces for one in body.tensors(at, 1) or {-1})
        for at in marks
        if len(body.tensors(at)) < 2
    )


# ---- Whether one iteration needs what another one made.


class _Access(NamedTuple):
    """That an iteration takes a tensor: which parts, None for all of it, and whether it writes.

    ``adds``: the operator, if it adds to the tensor, or makes the next sum of it.
    """

    iteration: int
    parts: frozenset[IndexedPart] | None
    reads: bool
    writes: bool
    adds: str | None


def is_carried(body: Body, pieces: Collection[tuple[int, Shape]]) -> bool:
    """Whether an iteration takes what an earlier one wrote, except to add to a sum.

    ``pieces`` are tensors that were split, with the shape of a piece: each iteration has its own.
    Only for captures that identify tensors.
    """
    accesses: dict[int, list[_Access]] = defaultdict(list)
    makers: dict[int, tuple[int, str]] = {}
    selected: dict[int, list[tuple[int, IndexedPart]]] = defaultdict(list)
    closed: set[int] = set()
    last = 0
    for at, call in enumerate(body.calls):
        iteration, taken = at // body.period, [*map(_numbers, (body.taken or [])[at])]
        made = (body.made or [])[at]
        target = next(iter(taken[0]), -1) if taken else -1
        if call.is_view and not made:
            if call.part is not None:
                if target in closed:
                    selected[target].clear()
                    closed.remove(target)
                selected[target].append((iteration, call.part))
            continue
        if call.base == "index" and last < iteration and not body.calls[at - 1].is_view:
            return True  # traces have no index: it may be what was made last
        kind = _kind(call)
        back = call.base == "copy_" and target in set().union(*taken[1:])  # ``x[i] += 1`` ends so
        for number, (some, shapes) in enumerate(zip(taken, call.shapes, strict=False)):
            for shape, one in zip(shapes, some, strict=False):
                parts = {part for when, part in selected[one] if when == iteration}
                whole = not parts or prod(shape) > prod(selected[one][-1][1].result)
                own = None if whole else frozenset(parts)
                if not parts and (one, shape) in pieces:
                    own = frozenset()
                adds = kind if kind in _COMMUTES or (kind in _SUMS and not number) else None
                writes = not number and call.in_place
                reads = not writes or call.base not in STORES
                if one >= 0 and not back:
                    accesses[one].append(_Access(iteration, own, reads, writes, adds))
                closed.add(one)
        makers.update(dict.fromkeys(made, (iteration, kind)))
        last = iteration if made or call.in_place else last
    return any(_is_needed(some, makers.get(one)) for one, some in accesses.items())


def _is_needed(some: list[_Access], maker: tuple[int, str] | None) -> bool:
    """Whether iterations have to access a tensor in turn; ``maker``: which made it, and how."""
    if maker is not None:
        later = [one for one in some if one.iteration > maker[0]]
        is_sum = len(some) == 1 and some[0].iteration == maker[0] + 1 and some[0].adds == maker[1]
        return bool(later) and not is_sum
    kinds = {one.adds for one in some}
    if not any(one.writes for one in some) or not any(one.reads for one in some):
        return False
    if len(kinds) == 1 and kinds != {None} and all(one.writes for one in some):
        return False
    seen: dict[frozenset[IndexedPart], int] = {}
    before = some[0]
    for one in some:
        if one.parts is None or (one.iteration > before.iteration and _meet(one, before)):
            return True
        if one.parts and seen.setdefault(one.parts, one.iteration) != one.iteration:
            return True
        before = one
    return False


def _meet(one: _Access, other: _Access) -> bool:
    """Whether two places overlap; pieces of a split tensor do not."""
    mine, its = one.parts or frozenset(), other.parts or frozenset()
    return bool(mine and its) and all(
        any(a.meets(b) for a in mine for b in its if a.shape == b.shape == shape)
        for shape in {a.shape for a in mine} & {b.shape for b in its}
    )


def _kind(call: OpCall) -> str:
    """The operator's name, whether in place or not."""
    return call.base if call.base.startswith("__") else call.base.removesuffix("_")


def _numbers(taken: Taken = ()) -> tuple[int, ...]:
    return (taken,) if isinstance(taken, int) else taken
