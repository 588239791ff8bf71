"""The tensors of an operator call as a trace records them: shape, element size, distinct bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

from pytest_torchprof.core.plain import Plain

#: Bytes of an element by its C++ type, which is what ``Input type`` holds, in the spellings of gcc,
#: clang and MSVC. Source: ``c10/core/ScalarType.h`` and ``typeid`` names.
ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 2,
    "short int": 2,
    "unsigned short": 2,
    "short unsigned int": 2,
    "int": 4,
    "unsigned int": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "__int64": 8,
    "unsigned long": 8,
    "long unsigned int": 8,
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::complex<c10::Half>": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::qint32": 4,
}

#: The number of a dtype passed as an argument (``ScalarType``) -> its C++ type.
SCALAR_TYPES: Final[Mapping[str, str]] = {
    "0": "unsigned char",
    "1": "signed char",
    "2": "short",
    "3": "int",
    "4": "long",
    "5": "c10::Half",
    "6": "float",
    "7": "double",
    "8": "c10::complex<c10::Half>",
    "9": "c10::complex<float>",
    "10": "c10::complex<double>",
    "11": "bool",
    "15": "c10::BFloat16",
    "23": "c10::Float8_e5m2",
    "24": "c10::Float8_e4m3fn",
    "25": "c10::Float8_e5m2fnuz",
    "26": "c10::Float8_e4m3fnuz",
    "27": "unsigned short",
    "28": "unsigned int",
    "29": "unsigned long",
}

_REAL = {"float", "double", "c10::Half", "c10::BFloat16"}


class UnknownTrafficError(ValueError):
    """The call lacks something its rule needs."""


def category(dtype: str) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex: decides when dtypes are mixed."""
    if dtype not in ELEMENT_BYTES:
        raise UnknownTrafficError
    if "complex" in dtype:
        return 3
    return 2 if dtype in _REAL or "Float" in dtype else int(dtype != "bool")


class Tensor(NamedTuple):
    """One operand: its shape, its C++ type, and its strides in elements if the trace has them."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def item(self) -> int:
        """Bytes of an element."""
        if self.dtype not in ELEMENT_BYTES:
            raise UnknownTrafficError
        return ELEMENT_BYTES[self.dtype]

    @property
    def distinct(self) -> int:
        """Elements in memory: expanded or overlapping ones count once.

        Without strides, as in traces before 2024, every element counts as distinct.
        """
        count = prod(self.shape)
        if not count or self.strides is None or len(self.strides) != len(self.shape):
            return count
        axes = [(n, abs(s)) for n, s in zip(self.shape, self.strides, strict=True) if s]
        span = 1 + sum((n - 1) * s for n, s in axes)
        return min(prod(n for n, _ in axes), span)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.distinct * self.item


class Operands(Plain, frozen=True):
    """What the trace recorded about one call. Reading a missing value raises.

    ``item_bytes`` is the element size of tensor lists, whose types a trace lacks.
    """

    dims: Any
    types: Any
    strides: Any
    concrete: Any
    item_bytes: int | None = None

    def __len__(self) -> int:
        return len(self.dims)

    def optional(self, at: int) -> Tensor | None:
        """The tensor at this position; None for a number, a list, or no argument."""
        if at >= len(self.dims) or self.types[at] not in ELEMENT_BYTES:
            if at < len(self.dims) and self.dims[at]:
                raise UnknownTrafficError  # a tensor of an unknown type, or a list of tensors
            return None
        strides = _strides(self.strides[at]) if self.strides else None
        return Tensor(_ints(self.dims[at]), self.types[at], strides)

    def tensor(self, at: int) -> Tensor:
        """The tensor at this position."""
        found = self.optional(at)
        if found is None:
            raise UnknownTrafficError
        return found

    def tensors(self, start: int = 0, stop: int | None = None) -> list[Tensor]:
        """All tensors at these positions."""
        end = len(self.dims) if stop is None else min(stop, len(self.dims))
        found = [self.optional(at) for at in range(start, end)]
        return [tensor for tensor in found if tensor is not None]

    def read(self, start: int = 0, stop: int | None = None) -> int:
        """Bytes of all tensors at these positions."""
        return sum(tensor.bytes for tensor in self.tensors(start, stop))

    def list_bytes(self, at: int) -> int:
        """Bytes of a list of tensors, which the profiler records up to a length of 30."""
        shapes = self.dims[at]
        if self.types[at] != "TensorList" or not shapes or self.item_bytes is None:
            raise UnknownTrafficError
        strides = self.strides[at] if self.strides else [None] * len(shapes)
        pairs = zip(map(_ints, shapes), strides, strict=True)
        tensors = [Tensor(d, "", None if s is None else _strides(s)) for d, s in pairs]
        return sum(tensor.distinct for tensor in tensors) * self.item_bytes

    def list_elements(self, at: int) -> int:
        """Elements of a list of tensors, whether or not they share memory."""
        return sum(prod(_ints(shape)) for shape in self.dims[at])

    def text(self, at: int) -> str:
        """An argument as text, "" for none."""
        value = self.concrete[at]
        if not isinstance(value, str):
            raise UnknownTrafficError
        return value

    def flag(self, at: int) -> bool:
        """A truth value."""
        return {"True": True, "False": False}[self.text(at)]

    def integers(self, at: int) -> list[int]:
        """A list of integers, one integer, or none."""
        items = self.text(at).strip("[]").split(",")
        return [int(item) for item in items if item.strip()]

    def dtype(self, at: int, otherwise: str) -> str:
        """The requested dtype, if any."""
        if at >= len(self.dims) or self.types[at] != "Scalar":
            return otherwise
        return SCALAR_TYPES[self.text(at)]


#: From an operator's name and call to its bytes. Raises if it cannot compute them.
Rule = Callable[[str, Operands], int]


def broadcast(tensors: list[Tensor]) -> tuple[int, ...]:
    """The broadcast shape of these tensors."""
    rank = max(len(t.shape) for t in tensors)
    padded = [(1,) * (rank - len(t.shape)) + t.shape for t in tensors]
    out = tuple(0 if 0 in axis else max(axis) for axis in zip(*padded, strict=True))
    if any(n not in {1, m} for shape in padded for n, m in zip(shape, out, strict=True)):
        raise UnknownTrafficError
    return out


def promoted(tensors: list[Tensor], numbers: list[str]) -> str:
    """The result dtype for these tensors and numbers (``torch.result_type``).

    A tensor without dimensions, which may also be a recorded Python number, decides only if its
    category is the highest. A zero-dimensional double among integers could be either.
    """
    wide = [t for t in tensors if t.shape] or tensors
    out = wide[0].dtype
    for tensor in wide[1:]:
        out = _wider(out, tensor.dtype)
    for tensor in tensors:
        if category(tensor.dtype) > category(out):
            if tensor.dtype in {"double", "c10::complex<double>"}:
                raise UnknownTrafficError
            out = tensor.dtype
    for text in numbers:
        if text not in {"True", "False"}:
            number = "long" if text.lstrip("-").isdigit() else "float"  # torch's default
            float(text)
            out = number if category(number) > category(out) else out
    return out


def _wider(a: str, b: str) -> str:
    if a == b or category(a) > category(b):
        return a
    if category(a) < category(b):
        return b
    sizes = ELEMENT_BYTES[a], ELEMENT_BYTES[b]
    if sizes[0] != sizes[1]:
        return a if sizes[0] > sizes[1] else b
    if {a, b} == {"c10::Half", "c10::BFloat16"}:
        return "float"
    if {a, b} == {"signed char", "unsigned char"}:
        return "short"
    return a


def _ints(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise UnknownTrafficError
    return tuple(shape)


def _strides(strides: Any) -> tuple[int, ...]:
    if not isinstance(strides, list) or any(type(n) is not int for n in strides):
        raise UnknownTrafficError
    return tuple(strides)
