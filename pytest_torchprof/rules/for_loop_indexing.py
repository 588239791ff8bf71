"""Rules about loops over the elements of a tensor."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import LAYER, is_trifle
from pytest_torchprof.rules.rule import Matches, Threshold, rule
from pytest_torchprof.trace.names import DEVICE_KINDS, Names
from pytest_torchprof.trace.tree import are_gradchecked
from pytest_torchprof.work.loops import STORES, Body, calls_of, is_carried
from pytest_torchprof.work.repeats import APART, Stretch, sequence, stretches

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.work.loops import OpCall, Shape
    from pytest_torchprof.work.repeats import CallSequence

_INDEX: Final = Names(
    r"aten::(select|slice|narrow|index|index_select|index_put_|gather|take|masked_select)(\.\w+)?$"
)
#: Layers that take samples along the first dimensions, and products that may.
_ON_ROWS: Final = late(r"aten::(linear|(_native_)?batch_norm|layer_norm|rms_norm|matmul|mm)$")
#: Layers whose other tensors are their own parameters.
_UNARY: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|embedding(_bag)?)$")
#: Operators of which each iteration marks another class or range, and that take what is marked.
_MARKS: Final = late(r"aten::(eq|ne|lt|le|gt|ge|isnan|isfinite)$")
_BY_MASK: Final = late(
    r"aten::(index|index_select|masked_select|index_put_|nonzero|where)(\.\w+)?$"
)
#: What tests and torch do to compare, print and read numbers.
_READS: Final = late(r"aten::(item|is_nonzero)$")
_LOOKS: Final = late(
    rf"{_READS.pattern}|{_MARKS.pattern}|aten::(all|any|abs|isinf|ceil|masked_select|allclose|equal"
    r"|isclose|logical_\w+|bitwise_\w+|__and__|__or__)$"
)
#: Operators that make a tensor of numbers.
_FROM_NUMBERS: Final = late(r"aten::(arange|linspace|logspace|full|eye)(\.\w+)?$")
#: The number of iterations in which dependencies are followed, such as on the year before.
_FOLLOWED: Final = 128
#: Iterations that may have another shape, such as the first and the last.
_ODD: Final = 2


@rule(
    "for-loop-indexing",
    fix="do it for the whole tensor at once: broadcasting, a reduction over the dimension, "
    "torch.where, cumsum, index_add or scatter_reduce for groups, torch.vmap, or tolist() for the "
    "numbers",
    triggers=rf"{_INDEX.pattern}|{APART.pattern}",
    needs="shapes",
    repeats=Threshold(10, "1", "fewer are often unrolled on purpose"),
    operators=Threshold(24, "1", "a longer body is worth a loop, such as a model's layer"),
    elements=Threshold(
        65536, "1", "larger parts hide the cost of the calls, or are split to fit in memory"
    ),
    cpu_share=Threshold(0.003, "1", "of all calls that the test makes on a CPU"),
)
def for_loop_indexing(
    trace: Events, *, repeats: float, operators: float, elements: float, cpu_share: float
) -> Matches:
    """A Python loop goes through a tensor element by element.

    ## What it does

    Counts loops: the same operators `repeats` (10) times or more in a row, at most `operators` (24)
    per iteration, each of which selects another part of one tensor, of at most `elements` (65,536):
    by an index or slice, as a piece of a tensor that was split (`for row in x`), or by a mask of
    one class after the other. Not counted: iterations that need what an earlier one made, other
    than to add it up (a stored trace says nothing in doubt); parts that are only written, with data
    from outside; batches that go through layers; numbers on the CPU that are only read; what a test
    compares; and on a CPU loops of less than `cpu_share` (0.003) of all calls.

    ## Why it is slow

    Each iteration pays again for its Python code, its calls and its launches, for the work on
    one element.

    ## Example

    ```python
    for i in range(len(x)):
        y[i] = x[i] * i
    ```

    ## Use instead

    ```python
    y = x * torch.arange(len(x))[:, None]
    ```
    """
    calls = sequence(trace)
    splits = _splits(trace, calls, repeats)
    named = np.array([bool(_INDEX.match(name)) for name in trace.names])
    loops, asks, done = list[tuple[Stretch, _Moving]](), False, np.zeros(len(calls.rows), bool)
    for stretch in stretches(calls.key, int(repeats), int(operators)):
        span = slice(stretch.start, stretch.stop)
        if not done[span].any() and (splits or named[calls.name[span]].any()):
            body = Body(trace, calls.rows[span], stretch.period, _FOLLOWED)
            moving = _moving(body, splits, repeats)
            if moving and prod(moving.part) <= elements and not _is_apart(body, moving, elements):
                serial = _is_serial(body, moving)
                asks |= serial is None
                if serial is False and not are_gradchecked(trace, body.rows[:1]).any():
                    done[span] = True
                    loops.append((stretch, moving))
    total = Counter[str]()
    for stretch, moving in loops:
        total[moving.message] += stretch.stop - stretch.start - stretch.period
    loops = [one for one in loops if not is_trifle(trace, total[one[1].message], cpu_share)]
    loops.sort(key=lambda one: one[0].start)
    first = calls.rows[np.array([one.start for one, _ in loops], np.int64)]
    last = calls.rows[np.array([one.stop - 1 for one, _ in loops], np.int64)]
    ends, times = trace.ts[last] + trace.dur[last], np.array([one.repeats for one, _ in loops])
    return Matches(
        np.array([moving.row for _, moving in loops], np.int64),
        [moving.message for _, moving in loops],
        # One pass instead of many; includes Python's time between the calls.
        cost_ns=((ends - trace.ts[first]) * (1 - 1 / times)).astype(np.int64),
        span_ns=(trace.ts[first], ends),
        wants_tensors=asks,
    )


class _Split(NamedTuple):
    """A tensor that was split: its event, number and shape, what one piece is, and how many."""

    row: int
    tensor: int
    whole: Shape
    piece: Shape
    pieces: int
    total: int


class _Moving(NamedTuple):
    """What a loop goes through: where that begins, a part's shape, and the pieces that it takes.

    ``masks``: the parts are what masks of classes mark.
    """

    row: int
    message: str
    part: Shape
    pieces: Collection[tuple[int, Shape]]
    masks: bool = False


def _splits(trace: Events, calls: CallSequence, least: float) -> list[_Split]:
    """Tensors that were split into so many pieces of one shape, and such pieces themselves."""
    out: dict[tuple[int, Shape], _Split] = {}
    taken = trace.taken(calls.apart) or [(-1,)] * len(calls.apart)
    every = zip(calls.apart.tolist(), calls_of(trace, calls.apart), taken, strict=True)
    for row, call, one in every:
        tensor = one[0] if one and isinstance(one[0], int) else -1
        if (found := _piece(call)) and (found[1] >= least or (tensor, call.first) in out):
            outer = out.get((tensor, call.first), _Split(row, tensor, call.first, *found, 0))
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


def _moving(body: Body, splits: list[_Split], repeats: float) -> _Moving | None:
    """What the loop goes through: by an index, in pieces, or by masks of classes."""
    pieces = {(one.tensor, one.piece): one for one in splits if _takes_pieces(body, one)}
    masks = _marks_classes(body, pieces)
    for at, call in enumerate(body.first):
        if call.part is not None and _selects_others(body, at, repeats):
            return _Moving(int(body.rows[at]), _message(call), call.part.result, pieces, masks)
    for one in pieces.values():
        text = f"a loop takes one piece after the other of a tensor of {[*one.whole]}"
        return _Moving(one.row, text, one.piece, pieces, masks)
    for at, call in enumerate(body.first):
        before = body.calls[at - 1]
        by_list = before.base == "lift_fresh" and before.first == (1,)
        if call.base.startswith(("index", "masked_select")) and (masks or by_list):
            return _Moving(int(body.rows[at]), _message(call), call.first[1:], pieces, masks)
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
    read = not one.result and takers and all(map(_READS.match, takers))
    return not (read and not body.trace.has(*DEVICE_KINDS))


def _takes_pieces(body: Body, split: _Split) -> bool:
    """Whether a call takes a piece of this tensor in each iteration, and not most of them."""
    if body.taken is None and not split.pieces - _ODD <= body.repeats <= split.total + _ODD:
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
        if not (on_cpu and _READS.match(body.first[at].name))
    )


def _marks_classes(body: Body, pieces: Collection[tuple[int, Shape]]) -> bool:
    """Whether each iteration marks another class or range of the same tensor, and takes those."""
    marks = [at for at, call in enumerate(body.first) if _MARKS.match(call.name)]
    return any(_BY_MASK.match(one.name) for one in body.first) and any(
        len({one.concrete for one in body.like(at)}) >= body.looked
        or any((one, ()) in pieces for one in body.tensors(at, 1) or {-1})
        for at in marks
        if len(body.tensors(at)) < 2
    )


def _is_apart(body: Body, moving: _Moving, most: float) -> bool:
    """Whether it is no loop over elements, by what it calls, or by sizes that differ."""
    names = {call.name for call in body.first if not call.is_view}
    if all(map(_LOOKS.match, names)) and not body.trace.has(*DEVICE_KINDS):
        return True
    if names == {"aten::copy_"} and any(one.part and one.part.keeps for one in body.first):
        return True  # a picture is assembled
    if moving.masks:
        return any(LAYER.match(name) for name in names)
    if any(map(_BY_MASK.match, names)) and any(map(_MARKS.match, names)):
        return True  # of a size that data decides
    for at, call in enumerate(body.first):
        if sum(a.shapes != b.shapes for a, b in pairwise(body.like(at))) > _ODD:
            return True
        light = call.is_view or call.in_place or LAYER.match(call.name) or _INDEX.match(call.name)
        if not light and any(prod(shape) > most for shape in call.tensors):
            return True
    return False


def _is_serial(body: Body, moving: _Moving) -> bool | None:
    """Whether an iteration needs what another one made, or batches; None if shapes do not tell."""
    if prod(moving.part[:-1]) > 1:
        for call in body.first:
            alone = sum(one.part is not None for one in body.first) < 2
            if _ON_ROWS.match(call.name) and call.first == moving.part and alone:
                return True
    if body.taken is not None:
        return _is_from_outside(body, moving) or is_carried(body, moving.pieces)
    numbers = any(_FROM_NUMBERS.match(call.name) for call in body.first)
    for at, call in enumerate(body.first):
        into = call.in_place and not (at and body.first[at - 1].is_view)
        some = [one for one in call.tensors if one] or call.tensors
        tensors = 1 if _UNARY.match(call.name) else len(some) - (numbers and call.base in STORES)
        if not call.is_view and (into or tensors > 1):
            return None
    return None if moving.pieces and not moving.part else False


def _is_from_outside(body: Body, moving: _Moving) -> bool:
    """Whether parts are only written, with data that is loaded, drawn, or made by a model.

    Data can be written at once if it is computed from numbers, or from the same tensors each time.
    """
    loads = [at for at, call in enumerate(body.first) if call.base == "lift_fresh"]
    loaded = set[int]().union(*map(body.tensors, loads))
    for at, call in enumerate(body.first):
        if call.part is not None and len({one.part for one in body.like(at)}) > 1:
            takers = body.takers(call.part.result, body.tensors(at))
            if any(number or body.first[by].base not in STORES for by, number in takers):
                return False
        if _FROM_NUMBERS.match(call.name) or (
            call.base in STORES and not any(map(any, call.shapes[1:2]))
        ):
            return False
        some = [n for n, one in enumerate(call.shapes) if any(one)]
        same = some and all(len(body.tensors(at, n) - loaded) == 1 for n in some)
        if same and not call.is_view and not call.in_place:
            return False
    return not (moving.pieces or moving.masks)
