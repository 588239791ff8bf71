"""A loop's body: what its operators take in each iteration, and which parts of which tensors."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.views import VIEWS

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.stretches import Sequence, Stretch
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

Shape: TypeAlias = tuple[int, ...]

#: The first iterations, which represent all of them.
_LOOKED: Final = 16
#: Types of arguments other than tensors, as traces name them.
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "None", "Device", "Generator"})
#: Types of Python numbers where an operator expects a tensor.
_NUMBERS: Final = frozenset({"double", "long int", "long", "bool", "c10::complex<double>"})
_INDEX: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")


class IndexedPart(Frozen, frozen=True):
    """What an index selects: along ``axis`` of a tensor of this shape, from ``low`` to ``high``."""

    shape: Shape
    axis: int
    low: int
    high: int
    keeps: bool

    @property
    def result(self) -> Shape:
        """The shape of the selection."""
        size = (self.high - self.low,) if self.keeps else ()
        return (*self.shape[: self.axis], *size, *self.shape[self.axis + 1 :])


class BodyCall(Frozen, frozen=True):
    """An operator of one iteration: its name and its recorded arguments.

    ``shapes``: for each argument, the shapes of its tensors; empty for anything else.
    """

    name: str
    shapes: tuple[tuple[Shape, ...], ...]
    types: tuple[str, ...]
    concrete: bytes
    part: IndexedPart | None

    @property
    def tensors(self) -> list[Shape]:
        """The shapes of all tensors among the arguments, without Python numbers."""
        every = [
            (one, kind) for kind, some in zip(self.types, self.shapes, strict=True) for one in some
        ]
        own = next((kind for one, kind in every), "")
        return [one for one, kind in every if one or kind == own or kind not in _NUMBERS]

    def may_be_number(self, number: int) -> bool:
        """Whether an argument may be a Python number that the operator takes as a tensor."""
        return self.shapes[number] == ((),) and self.types[number] in _NUMBERS

    @property
    def base(self) -> str:
        """Its name without the namespace."""
        return self.name.rpartition("::")[2].partition(".")[0]

    @property
    def is_view(self) -> bool:
        """Whether it makes a view, or may."""
        name = self.name.partition(".")[0]
        return name in VIEWS or name == "aten::resize_"

    @property
    def in_place(self) -> bool:
        """Whether it writes into its first argument."""
        return self.base.endswith("_") and not self.base.endswith("__")


class Body:
    """The first iterations of a stretch: `calls`, in order, and their positions."""

    def __init__(
        self, trace: Events, sequence: Sequence, stretch: Stretch, most: int = _LOOKED
    ) -> None:
        self.trace, self.stretch = trace, stretch
        self.period = stretch.period
        self.looked = min(stretch.repeats, most)
        self._all = sequence.rows[stretch.start : stretch.stop]
        self.rows: Ints = self._all[: self.looked * self.period]
        #: The name of the call before the first one.
        self.after = trace.names[sequence.name[stretch.start - 1]] if stretch.start else ""
        ends = stretch.stop >= len(sequence.name)
        #: The name of the call after the last one.
        self.before = "" if ends else trace.names[sequence.name[stretch.stop]]

    @cached_property
    def names(self) -> list[str]:
        """The names of one iteration."""
        numbers = self.trace.name[self.rows[: self.period]].tolist()
        return [self.trace.names[number] for number in numbers]

    @cached_property
    def calls(self) -> list[BodyCall]:
        """The operators of the analyzed iterations."""
        known: dict[tuple[str, bytes, bytes, bytes], BodyCall] = {}
        out: list[BodyCall] = []
        names = self.names * self.looked
        for name, args in zip(names, self.trace.operands(self.rows), strict=True):
            key = (name, bytes(args.dims), bytes(args.types), bytes(args.concrete))
            if key not in known:
                known[key] = call_of(name, args)
            call = known[key]
            # torch 2.6 splits `x[i, :]` into two steps, of which the second selects all of the
            # first.
            if out and _is_all_of(call.part, out[-1].part):
                call = replace(call, part=out[-1].part)
            out.append(call)
        return out

    @cached_property
    def taken(self) -> list[tuple[Taken, ...]] | None:
        """The tensors that each call takes."""
        return self.trace.taken(self.rows)

    @cached_property
    def made(self) -> list[frozenset[int]] | None:
        """The tensors that each call makes."""
        return self.trace.made(self.rows)

    def like(self, at: int) -> list[BodyCall]:
        """One operator of the body in each of the analyzed iterations."""
        return self.calls[at :: self.period]

    def every(self, at: int) -> Ints:
        """The events of one operator of the body, in all iterations."""
        events: Ints = self._all[at :: self.period]
        return events

    def source(self, at: int) -> set[Taken]:
        """The tensors that are an operator's first argument; empty if unknown."""
        if self.taken is None:
            return set()
        return {some[0] if some else -1 for some in self.taken[at :: self.period]}


def _is_all_of(part: IndexedPart | None, before: IndexedPart | None) -> bool:
    """Whether an index selects all of what the previous one selected."""
    return (
        part is not None
        and before is not None
        and part.keeps
        and part.shape == part.result == before.result
    )


def call_of(name: str, args: OpArgs) -> BodyCall:
    """An operator, from its recorded arguments."""
    dims, types, concrete = (decode_part(part) for part in (args.dims, args.types, args.concrete))
    dims = dims if isinstance(dims, list) else []
    kinds = types if isinstance(types, list) and len(types) == len(dims) else ["?"] * len(dims)
    shapes = tuple(_shapes(one, str(kind)) for one, kind in zip(dims, kinds, strict=True))
    part = None
    if _INDEX.match(name) and shapes and shapes[0] and isinstance(concrete, list):
        part = _part(name, shapes[0][0], concrete)
    return BodyCall(name, shapes, tuple(map(str, kinds)), bytes(args.concrete), part)


def _shapes(dims: Any, kind: str) -> tuple[Shape, ...]:
    if not isinstance(dims, list) or kind in _NO_TENSORS or (kind == "?" and not dims):
        return ()
    if dims and isinstance(dims[0], list):
        return tuple(tuple(one) for one in dims)
    return () if kind == "TensorList" else (tuple(dims),)


def _part(name: str, shape: Shape, concrete: list[Any]) -> IndexedPart | None:
    numbers = [_whole(one) for one in concrete[1:5]]
    axis = numbers[0] if numbers else None
    if axis is None or not shape or not -len(shape) <= axis < len(shape):
        return None
    axis, size = axis % len(shape), shape[axis]
    low = numbers[1] if len(numbers) > 1 else None
    if "select" in name:
        if low is None:
            return None
        low = low % size if size else 0
        return IndexedPart(shape, axis, low, low + 1, keeps=False)
    if "narrow" in name:
        if low is None or len(numbers) < 3 or numbers[2] is None:
            return None
        low = low % size if size else 0
        return IndexedPart(shape, axis, low, low + numbers[2], keeps=True)
    end = numbers[2] if len(numbers) > 2 and numbers[2] is not None else size
    low = 0 if low is None else low
    low, end = (one + size if one < 0 else one for one in (low, end))
    return IndexedPart(shape, axis, min(max(low, 0), size), max(min(end, size), low), keeps=True)


def _whole(text: Any) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", str(text)) else None


# ------------------------------------------------------------------------- tensors taken apart


class Pieces(Frozen, frozen=True):
    """A tensor that was split: the event, the shape of each piece, and their number."""

    row: int
    before: int
    piece: Shape
    count: int


def pieces(trace: Events, sequence: Sequence, least: int) -> list[Pieces]:
    """Tensors that were split into at least this many pieces of one shape."""
    out = []
    found = zip(
        sequence.apart.tolist(),
        sequence.before.tolist(),
        trace.operands(sequence.apart),
        strict=True,
    )
    for row, before, args in found:
        one = _piece(trace.names[trace.name[row]], args)
        if one is not None and one[1] >= least:
            out.append(Pieces(row, before, *one))
    return out


def _piece(name: str, args: OpArgs) -> tuple[Shape, int] | None:
    dims, concrete = decode_part(args.dims), decode_part(args.concrete)
    if not isinstance(dims, list) or not isinstance(concrete, list) or not dims or not dims[0]:
        return None
    shape = tuple(dims[0])
    axis = _whole(concrete[-1])
    if axis is None or not -len(shape) <= axis < len(shape) or 0 in shape:
        return None
    axis %= len(shape)
    size = shape[axis]
    if name.endswith("unbind"):
        return (*shape[:axis], *shape[axis + 1 :]), size
    how = concrete[1] if len(concrete) > 1 else ""
    each = _whole(how)
    if each is not None and each > 0:
        if "chunk" in name or "tensor_split" in name:  # these take the number of pieces
            each = -(-size // each)
    elif "with_sizes" in name:
        sizes = {_whole(one) for one in re.findall(r"\d+", str(how))}
        each = sizes.pop() if len(sizes) == 1 else None
    if not each:
        return None
    return (*shape[:axis], each, *shape[axis + 1 :]), -(-size // each)


def elements(shape: Shape) -> int:
    """The number of elements of a tensor of this shape."""
    return prod(shape)


def differs(values: list[Any]) -> list[bool]:
    """Whether each of these differs from the one before it."""
    return [one != other for one, other in pairwise(values)]


def irregular(numbers: list[int]) -> bool:
    """Whether these do not simply count up or down, once or several times."""
    return len(set(np.diff(numbers).tolist())) > 2
