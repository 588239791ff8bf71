"""Operators as traces record them: the shapes of their tensors, and which part an index selects."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.dispatch import VIEWS

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

Shape: TypeAlias = tuple[int, ...]

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


def calls_of(trace: Events, rows: Ints) -> list[OpCall]:
    """These operators with their recorded arguments."""
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    return [call_of(name, args) for name, args in zip(names, trace.operands(rows), strict=True)]
