"""What a loop goes through: the tensor of which each iteration selects another part."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.evidence.loop_bodies import elements
from pytest_torchprof.rules.evidence.non_tensor_loops import (
    MARKS,
    ODD,
    READS,
    goes_through_classes,
    picks,
    reads_are_cheap,
)
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.trace.arguments import decode_part

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Body, BodyCall, Pieces, Shape
    from pytest_torchprof.rules.evidence.stretches import Sequence
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.tensors import Taken

#: Operators for which the trace records which part they select.
_SELECTS: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")
#: Operators that select by a tensor: one element, or the elements of a mask.
_BY_TENSOR: Final = late(r"aten::(index|index_select|index_put_|masked_select)(\.\w+)?$")
#: Operators that make a tensor: parts of one that is made anew each time do not count.
_MAKER: Final = late(r"aten::(randn?|randint|randperm|normal|empty|zeros|ones|full)(_like)?$")
#: The most operators in an iteration if the trace does not say which element is selected.
_SHORT: Final = 8
#: The share of iterations that must select another part: data may select one twice in a row.
_MOVES: Final = 0.6


class Moving(Frozen, frozen=True):
    """What a stretch goes through: the event by which it begins, and the shape of a part.

    ``pieces``: whether they are of split tensors; ``apart``: which tensors these are, if known.
    """

    row: int
    message: str
    part: Shape
    pieces: frozenset[Shape] = frozenset()
    apart: frozenset[int] = frozenset()


class Movers:
    """Finds what a body goes through; ``apart`` are the tensors that were split."""

    def __init__(self, trace: Events, calls: Sequence, apart: list[Pieces], repeats: int) -> None:
        self._trace, self._calls, self._apart = trace, calls, apart
        self._repeats = repeats
        self._before = np.array([one.before for one in apart], np.int64)

    def any_before(self, stop: int) -> bool:
        """Whether a tensor was split before this call."""
        return bool((self._before <= stop).any())

    def may_be(self, body: Body) -> bool:
        """Whether there may be something, without looking at every operand."""
        if self.any_before(body.stretch.stop) or any(map(_BY_TENSOR.match, body.names)):
            return True
        for at, name in enumerate(body.names):
            if _SELECTS.match(name):
                parts = [bytes(a.concrete) for a in self._trace.operands(body.every(at))]
                if b"" in parts or len(set(parts)) > 1:
                    return True
        return False

    def of(self, body: Body) -> Moving | None:
        """What it goes through; None for nothing."""
        for at, name in enumerate(body.names):
            if _SELECTS.match(name) and (row := self._selected_part(body, at)) is not None:
                call = body.calls[at]
                part = call.part.result if call.part is not None else ()
                return self._with_pieces(body, Moving(row, _message(call), part))
        if (found := self._piece(body)) is not None:
            return found
        classes = goes_through_classes(body, frozenset())
        for at, name in enumerate(body.names):
            if _BY_TENSOR.match(name) and (classes or picks(body, at)):
                row = int(body.every(at)[0])
                shape = _result(body, at)
                return self._with_pieces(body, Moving(row, _message(body.calls[at]), shape))
        return None

    def _selected_part(self, body: Body, at: int) -> int | None:
        """The position of a select or slice that selects another part of one shape each time."""
        rows = body.every(at)
        operands = self._trace.operands(rows)
        dims = [bytes(args.dims) for args in operands]
        parts = [bytes(args.concrete) for args in operands]
        layers = any(LAYER.match(name) for name in body.names)
        if b"" in dims or not all(re.search(rb"\d", part) for part in parts):
            short = body.period <= _SHORT and not layers
            short = short and not any(map(_MAKER.match, body.names))
            moves = [short] * (len(rows) - 1)
        elif (layers and _is_batch(body.calls[at])) or _is_most(body.calls[at]):
            return None
        else:
            moves = [old != new for old, new in pairwise(parts)]
        if len(body.source(at)) > 1 or _is_only_read(body, at):
            return None
        same = np.array([a == b for a, b in pairwise(dims)], np.int8)
        edges = np.flatnonzero(np.diff(same, prepend=0, append=0)).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            moved = sum(moves[begin:end])
            if end - begin >= self._repeats - 1 and moved >= _MOVES * (end - begin):
                return int(rows[begin + moves[begin:end].index(True)])
        return None

    def _piece(self, body: Body) -> Moving | None:
        """The split tensor of which each iteration takes a piece."""
        for one, source in self._taken_apart(body):
            if _is_several(self._trace, one) and _meets_others(body, one.piece):
                continue
            return self._with_pieces(
                body, Moving(one.row, _iterated(self._trace, one.row), one.piece, apart=source)
            )
        return None

    def _with_pieces(self, body: Body, moving: Moving) -> Moving:
        every = self._taken_apart(body)
        shapes = frozenset(one.piece for one, _ in every)
        known = frozenset(number for _, source in every for number in source)
        return replace(moving, pieces=shapes, apart=moving.apart | known)

    def _taken_apart(self, body: Body) -> list[tuple[Pieces, frozenset[int]]]:
        """The tensors, split before or in the stretch, whose pieces an operator takes each time."""
        if not len(self._before):
            return []
        start, stop = body.stretch.start, body.stretch.stop
        least = start - body.period if body.taken is None else -1
        near = np.flatnonzero((self._before <= stop) & (self._before >= least))
        out: list[tuple[Pieces, frozenset[int]]] = []
        seen: set[tuple[Shape, frozenset[int]]] = set()
        for one in (self._apart[number] for number in near.tolist()):
            source = self._number(one) if body.taken is not None else frozenset[int]()
            if (one.piece, source) in seen:
                continue
            same = [x for x in near.tolist() if self._apart[x].piece == one.piece]
            count = sum(self._apart[x].count for x in same)
            if body.taken is None and not one.count - ODD <= body.stretch.repeats <= count + ODD:
                continue
            if _takes(body, one, source) or self._in_turn(body, one.piece, source):
                seen.add((one.piece, source))
                out.append((one, source))
        return out

    def _in_turn(self, body: Body, piece: Shape, source: frozenset[int]) -> bool:
        """Whether each piece is itself split in the stretch."""
        calls, start, stop = self._calls, body.stretch.start, body.stretch.stop
        inside = calls.apart[(calls.before >= start) & (calls.before <= stop)][: 2 * body.looked]
        if len(inside) < self._repeats - 1:
            return False
        shapes = (decode_part(args.dims) for args in self._trace.operands(inside))
        if sum(bool(dims) and tuple(dims[0]) == piece for dims in shapes) < self._repeats - 1:
            return False
        taken = self._trace.taken(inside)
        least = self._repeats - 1
        return taken is None or sum(_is_of(one[:1], source) for one in taken) >= least

    def numbers(self, body: Body) -> frozenset[int]:
        """The tensors that were split into single numbers, which the body takes."""
        found = frozenset[int]()
        if any(
            not self._apart[at].piece for at in np.flatnonzero(self._before <= body.stretch.stop)
        ):
            for one, source in self._taken_apart(body):
                if not one.piece:
                    found |= source or {-1}
        return found

    def _number(self, one: Pieces) -> frozenset[int]:
        taken = self._trace.taken(np.array([one.row]))
        first = taken[0][0] if taken and taken[0] else -1
        return frozenset([first]) if isinstance(first, int) and first >= 0 else frozenset()


def _takes(body: Body, pieces: Pieces, source: frozenset[int]) -> bool:
    """Whether one operator of the body takes such a piece in each iteration, and not most."""
    least, piece, most = body.looked - 1, pieces.piece, pieces.count / 2
    cheap = READS if reads_are_cheap(body) else ()
    for at in range(body.period):
        if body.names[at] in cheap:
            continue
        like = body.like(at)
        for number, shapes in enumerate(body.calls[at].shapes):
            if not 0 < shapes.count(piece) < most or _is_number(body, at, number):
                continue
            if sum(number < len(c.shapes) and piece in c.shapes[number] for c in like) < least:
                continue
            if body.taken is None:
                return True
            taken = (row[number : number + 1] for row in body.taken[at :: body.period])
            if sum(_is_of(one, source) for one in taken) >= least:
                return True
    return False


def _is_only_read(body: Body, at: int) -> bool:
    """Whether Python only reads the number on the CPU that an index selects."""
    part = body.calls[at].part
    if part is None or part.result or not reads_are_cheap(body):
        return False
    source = frozenset(one for one in body.source(at) if isinstance(one, int) and one >= 0)
    users = [
        body.names[n]
        for n, call in enumerate(body.calls[: body.period])
        if not call.is_view and () in call.tensors and (not source or _takes_any(body, n, source))
    ]
    return bool(users) and all(name in READS for name in users)


def _takes_any(body: Body, at: int, source: frozenset[int]) -> bool:
    return any(_is_of(row, source) for row in (body.taken or [])[at :: body.period])


def _is_number(body: Body, at: int, number: int) -> bool:
    """Whether an argument may be a Python number, as far as known."""
    call = body.calls[at]
    if body.taken is not None or MARKS.match(call.name) or call.base == "embedding":
        return False  # these take numbers as such, or take none
    return number > 0 and call.may_be_number(number)


def _is_of(taken: tuple[Taken, ...], source: frozenset[int]) -> bool:
    every = {number for one in taken for number in (one if isinstance(one, tuple) else (one,))}
    return not source.isdisjoint(every)


def _result(body: Body, at: int) -> Shape:
    return body.calls[at].shapes[0][0][1:] if body.calls[at].shapes[0] else ()


def _is_batch(call: BodyCall) -> bool:
    """Whether it is a slice of several elements."""
    return call.part is None or (call.part.keeps and call.part.high - call.part.low != 1)


def _is_most(call: BodyCall) -> bool:
    """Whether it selects more than half of a dimension, as the shifts of a stencil do."""
    part = call.part
    return part is not None and 2 * (part.high - part.low) > part.shape[part.axis] > 2


def _is_several(trace: Events, one: Pieces) -> bool:
    """Whether pieces have several elements of the split dimension."""
    return not trace.names[trace.name[one.row]].endswith("unbind") and _along(trace, one) != 1


def _meets_others(body: Body, piece: Shape) -> bool:
    """Whether pieces go through layers, or are combined with larger tensors: they are batches."""
    calls = body.calls[: body.period]
    if any(LAYER.match(call.name) for call in calls):
        return True
    every = (shape for call in calls if len(call.tensors) > 1 for shape in call.tensors)
    return any(elements(shape) > elements(piece) for shape in every)


def _along(trace: Events, one: Pieces) -> int:
    whole = (decode_part(trace.operands(np.array([one.row]))[0].dims) or [[]])[0]
    sizes = [b for a, b in zip(whole, one.piece, strict=False) if a != b]
    return sizes[0] if sizes else 1


def _message(call: BodyCall) -> str:
    shape = f" on a tensor of {list(call.shapes[0][0])}" if call.shapes and call.shapes[0] else ""
    return f"a loop calls {call.name}{shape} for one part after the other"


def _iterated(trace: Events, row: int) -> str:
    dims = decode_part(trace.operands(np.array([row]))[0].dims)
    shape = f" of {dims[0]}" if dims and dims[0] else ""
    name = trace.names[trace.name[row]]
    return f"a loop takes one piece after the other of a tensor{shape}, by {name}"
