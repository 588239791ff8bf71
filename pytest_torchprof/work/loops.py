"""What the iterations of a loop select, and whether one of them needs what another one made."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.dispatch import VIEWS

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

Shape: TypeAlias = tuple[int, ...]

#: Types of arguments other than tensors, as traces name them.
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "None", "Device", "Generator"})
#: Types of Python numbers where an operator expects a tensor.
_NUMBERS: Final = frozenset({"double", "long int", "long", "bool", "c10::complex<double>"})
_INDEX: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")


# ---- Operators as traces record them.


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

    def meets(self, other: IndexedPart) -> bool:
        """Whether both may overlap: they are along different axes, or have an index in common."""
        return self.axis != other.axis or (self.low < other.high and other.low < self.high)


class OpCall(Frozen, frozen=True):
    """An operator's name and its recorded arguments.

    ``shapes``: for each argument, the shapes of its tensors; empty for anything else.
    """

    name: str
    shapes: tuple[tuple[Shape, ...], ...]
    types: tuple[str, ...]
    concrete: bytes
    part: IndexedPart | None

    @property
    def numbers(self) -> list[int | None]:
        """The arguments after the first one, as far as they are integers."""
        concrete = decode_part(self.concrete)
        return [whole_number(one) for one in concrete[1:]] if isinstance(concrete, list) else []

    @property
    def first(self) -> Shape:
        """The shape of its first tensor."""
        return self.shapes[0][0] if self.shapes and self.shapes[0] else ()

    @property
    def tensors(self) -> list[Shape]:
        """The shapes of all tensors among the arguments, without Python numbers."""
        every = [
            (one, kind) for kind, some in zip(self.types, self.shapes, strict=True) for one in some
        ]
        own = next((kind for _, kind in every), "")
        return [one for one, kind in every if one or kind == own or kind not in _NUMBERS]

    @property
    def base(self) -> str:
        """Its name without the namespace."""
        return self.name.rpartition("::")[2].partition(".")[0]

    @property
    def is_view(self) -> bool:
        """Whether it makes a view, or may."""
        return self.name.partition(".")[0] in VIEWS

    @property
    def in_place(self) -> bool:
        """Whether it writes into its first argument."""
        return self.base.endswith("_") and not self.base.endswith("__")


def call_of(name: str, args: OpArgs) -> OpCall:
    """An operator, from its recorded arguments."""
    return _call_of(name, bytes(args.dims), bytes(args.types), bytes(args.concrete))


@lru_cache(maxsize=1000)
def _call_of(name: str, *args: bytes) -> OpCall:
    dims, types, concrete = map(decode_part, args)
    dims = dims if isinstance(dims, list) else []
    kinds = types if isinstance(types, list) and len(types) == len(dims) else ["?"] * len(dims)
    shapes = tuple(_shapes(one, str(kind)) for one, kind in zip(dims, kinds, strict=True))
    part = None
    if _INDEX.match(name) and shapes and shapes[0] and isinstance(concrete, list):
        part = _part(name, shapes[0][0], [whole_number(one) for one in concrete[1:5]])
    return OpCall(name, shapes, tuple(map(str, kinds)), args[2], part)


def _shapes(dims: Any, kind: str) -> tuple[Shape, ...]:
    if not isinstance(dims, list) or kind in _NO_TENSORS or (kind == "?" and not dims):
        return ()
    if dims and isinstance(dims[0], list):
        return tuple(tuple(one) for one in dims)
    return () if kind == "TensorList" else (tuple(dims),)


def _part(name: str, shape: Shape, numbers: list[int | None]) -> IndexedPart | None:
    axis, low, end = (*numbers, None, None, None)[:3]
    if axis is None or not shape or not -len(shape) <= axis < len(shape):
        return None
    axis, size = axis % len(shape), shape[axis]
    is_slice = "slice" in name
    if is_slice:
        low, end = low or 0, size if end is None else end
    elif low is None or ("narrow" in name and end is None):
        return None
    low = low + size if low < 0 else low
    if not is_slice:
        keeps = "narrow" in name
        return IndexedPart(shape, axis, low, low + ((end or 0) if keeps else 1), keeps)
    end = end or 0
    low, end = min(max(low, 0), size), min(end + size if end < 0 else end, size)
    return IndexedPart(shape, axis, low, max(end, low), keeps=True)


def whole_number(text: Any) -> int | None:
    """The integer that a recorded argument is; None for anything else."""
    return int(text) if re.fullmatch(r"-?\d+", str(text)) else None


# ---- The first iterations of a loop, and whether one of them needs what another one made.

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
                mine = sum(not tensors.isdisjoint(_numbers(one[number])) for one in rows)
                known = not tensors or mine >= len(rows) - 1
                if not call.is_view and shape in some and known:
                    out.append((at, number))
        return out


def calls_of(trace: Events, rows: Ints) -> list[OpCall]:
    """These operators with their recorded arguments."""
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    return [call_of(name, args) for name, args in zip(names, trace.operands(rows), strict=True)]


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
        back = call.base == "copy_" and target in taken[1]  # ``x[i] += 1`` ends so
        for number, some in enumerate(taken):
            for shape, one in zip(call.shapes[number], some, strict=False):
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


def _numbers(taken: Taken) -> tuple[int, ...]:
    return (taken,) if isinstance(taken, int) else taken
