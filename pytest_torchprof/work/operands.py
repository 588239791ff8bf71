"""The tensors of an operator call: shape, dtype, element size, distinct bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.work.devices import DTYPES

# ---- Dtypes as traces name them: bytes of an element, names for people, and the chip's peak.


class Dtype(Frozen, frozen=True):
    """One dtype: torch's ``name`` for it, and the C++ ``types`` that traces and kernels name.

    ``item_bytes`` is the size of an element. ``number`` is its ``ScalarType``, by which operators
    take it as an argument. ``short`` is its name in messages about matrix products, and ``peak``
    the chip's rate for its products, one of `device.DTYPES`; "" if there is none.
    """

    name: str
    item_bytes: int
    types: tuple[str, ...]
    number: int | None = None
    short: str = ""
    peak: str = ""


#: Spellings of gcc, clang and MSVC. Source: ``c10/core/ScalarType.h`` and ``typeid`` names.
TABLE: Final = (
    Dtype("uint8", 1, ("unsigned char",), 0),
    Dtype("int8", 1, ("signed char", "char"), 1, peak="int8"),
    Dtype("int16", 2, ("short", "short int"), 2),
    Dtype("int32", 4, ("int",), 3),
    Dtype("int64", 8, ("long", "long int", "long long", "__int64"), 4),
    Dtype("float16", 2, ("c10::Half",), 5, "fp16", "fp16"),
    Dtype("float32", 4, ("float",), 6, "fp32", "fp32"),
    Dtype("float64", 8, ("double",), 7, "fp64", "fp64"),
    Dtype("complex32", 4, ("c10::complex<c10::Half>",), 8),
    Dtype("complex64", 8, ("c10::complex<float>",), 9, "complex64", "fp32"),
    Dtype("complex128", 16, ("c10::complex<double>",), 10, "complex128", "fp64"),
    Dtype("bool", 1, ("bool",), 11),
    Dtype("bfloat16", 2, ("c10::BFloat16",), 15, "bf16", "bf16"),
    Dtype("float8_e5m2", 1, ("c10::Float8_e5m2",), 23, peak="fp8"),
    Dtype("float8_e4m3fn", 1, ("c10::Float8_e4m3fn",), 24, peak="fp8"),
    Dtype("float8_e5m2fnuz", 1, ("c10::Float8_e5m2fnuz",), 25, peak="fp8"),
    Dtype("float8_e4m3fnuz", 1, ("c10::Float8_e4m3fnuz",), 26, peak="fp8"),
    Dtype("uint16", 2, ("unsigned short", "short unsigned int"), 27),
    Dtype("uint32", 4, ("unsigned int",), 28),
    Dtype("uint64", 8, ("unsigned long", "long unsigned int"), 29),
    Dtype("float8_e8m0fnu", 1, ("c10::Float8_e8m0fnu",)),
    Dtype("float4_e2m1fn_x2", 1, ("c10::Float4_e2m1fn_x2",)),
    Dtype("qint8", 1, ("c10::qint8",), peak="int8"),
    Dtype("quint8", 1, ("c10::quint8",)),
    Dtype("qint32", 4, ("c10::qint32",)),
)

#: Dtypes by C++ type name, as in ``Input type``.
BY_TYPE: Final[Mapping[str, Dtype]] = {name: row for row in TABLE for name in row.types}
#: Bytes of an element, by C++ type name.
ELEMENT_BYTES: Final[Mapping[str, int]] = {name: row.item_bytes for name, row in BY_TYPE.items()}
#: C++ type name by ``ScalarType`` number.
SCALAR_TYPES: Final = {str(row.number): row.types[0] for row in TABLE if row.number is not None}
#: The peak rate for products of a C++ type.
PEAK: Final = {name: DTYPES.index(row.peak) for name, row in BY_TYPE.items() if row.peak}
#: Names of dtypes in messages about matrix products.
SHORT: Final = {name: row.short for name, row in BY_TYPE.items() if row.short}


def torch_name(dtype: str) -> str:
    """Torch's name for this C++ type; the type itself if it is unknown."""
    known = BY_TYPE.get(dtype)
    return known.name if known else dtype.removeprefix("c10::")


# ---- The tensors of an operator call as a trace records them: shape, element size, distinct
# bytes.

TRUTH: Final = {"True": True, "False": False}
_REAL = {"float", "double", "c10::Half", "c10::BFloat16"}


class UnknownOperandError(ValueError):
    """The call lacks something that its formula needs."""


def category(dtype: str) -> int:
    """0 bool, 1 integer, 2 floating point, 3 complex: decides when dtypes are mixed."""
    if dtype not in ELEMENT_BYTES:
        raise UnknownOperandError
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
            raise UnknownOperandError
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


class UnreadValues:
    """Stands for the values of a call's arguments, which it lacks: tells if any is asked for."""

    asked = False

    def __getitem__(self, at: object) -> Any:
        self.asked = True
        raise LookupError

    def __bool__(self) -> bool:
        self.asked = True
        return True

    def __len__(self) -> int:
        self.asked = True
        return 0


class Operands(Frozen, frozen=True):
    """What the trace recorded about one call. Reading a missing value raises.

    ``item_bytes`` is the element size of tensor lists, whose types a trace lacks.
    """

    dims: Any
    types: Any
    concrete: Any
    strides: Any = None
    item_bytes: int | None = None

    def __len__(self) -> int:
        return len(self.dims)

    def shape(self, at: int) -> tuple[int, ...]:
        """Shape of the tensor at this position, of whatever type."""
        return shape_of(self.dims[at])

    def has_tensor(self, at: int) -> bool:
        """Whether there is a tensor with a dimension at this position."""
        return at < len(self.dims) and bool(self.dims[at])

    def is_sparse(self, at: int) -> bool:
        """Whether this is a tensor without strides in a trace that has strides of dense ones."""
        known = isinstance(self.strides, list) and at < len(self.strides)
        return known and not self.strides[at] and self.has_tensor(at)

    def optional(self, at: int) -> Tensor | None:
        """The tensor at this position; None for a number, a list, or no argument.

        Raises:
            UnknownOperandError: it is a list of tensors, sparse, or of an unknown type.
        """
        if at >= len(self.dims) or self.types[at] not in ELEMENT_BYTES:
            if at < len(self.dims) and self.dims[at]:
                raise UnknownOperandError  # a tensor of an unknown type, or a list of tensors
            return None
        if self.is_sparse(at):
            raise UnknownOperandError  # how many elements it has is not in the trace
        strides = _strides(self.strides[at]) if self.strides else None
        return Tensor(shape_of(self.dims[at]), self.types[at], strides)

    def tensor(self, at: int) -> Tensor:
        """The tensor at this position."""
        found = self.optional(at)
        if found is None:
            raise UnknownOperandError
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
            raise UnknownOperandError
        strides = self.strides[at] if self.strides else [None] * len(shapes)
        pairs = zip(map(shape_of, shapes), strides, strict=True)
        tensors = [Tensor(d, "", None if s is None else _strides(s)) for d, s in pairs]
        return sum(tensor.distinct for tensor in tensors) * self.item_bytes

    def list_elements(self, at: int) -> int:
        """Elements of a list of tensors, whether or not they share memory."""
        return sum(prod(shape_of(shape)) for shape in self.dims[at])

    def text(self, at: int) -> str:
        """An argument as text, "" for none."""
        value = self.concrete[at]
        if not isinstance(value, str):
            raise UnknownOperandError
        return value

    def flag(self, at: int) -> bool:
        """A truth value."""
        return TRUTH[self.text(at)]

    def integers(self, at: int) -> list[int]:
        """A list of integers, one integer, or none."""
        items = self.text(at).strip("[]").split(",")
        return [int(item) for item in items if item.strip()]

    def per_axis(self, at: int, count: int) -> list[int]:
        """One integer for each axis; a list of one applies to all."""
        values = [int(item) for item in _items(self.concrete[at])]
        if len(values) not in {1, count}:
            raise UnknownOperandError
        return values if len(values) == count else values * count

    def mask(self) -> list[bool]:
        """Which gradients a backward operator was asked for. It is the last argument."""
        return [TRUTH[item] for item in _items(self.concrete[-1])]

    def dtype(self, at: int, otherwise: str) -> str:
        """The requested dtype, if any."""
        if at >= len(self.dims) or self.types[at] != "Scalar":
            return otherwise
        return SCALAR_TYPES[self.text(at)]


#: From an operator's operands to its FLOPs; raises if it cannot compute them.
Formula = Callable[[Operands], int]
#: From an operator's name and operands to its bytes; raises if it cannot compute them.
TrafficRule = Callable[[str, Operands], int]


def broadcast(tensors: list[Tensor]) -> tuple[int, ...]:
    """The broadcast shape of these tensors."""
    rank = max(len(t.shape) for t in tensors)
    padded = [(1,) * (rank - len(t.shape)) + t.shape for t in tensors]
    out = tuple(0 if 0 in axis else max(axis) for axis in zip(*padded, strict=True))
    if any(n not in {1, m} for shape in padded for n, m in zip(shape, out, strict=True)):
        raise UnknownOperandError
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
                raise UnknownOperandError
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


def shape_of(dims: Any) -> tuple[int, ...]:
    """A shape as the trace has it.

    Raises:
        UnknownOperandError: it is none.
    """
    if not isinstance(dims, list | tuple) or any(type(n) is not int or n < 0 for n in dims):
        raise UnknownOperandError
    return tuple(dims)


def _items(text: Any) -> list[str]:
    if text[:1] + text[-1:] != "[]":
        raise UnknownOperandError
    return [item.strip() for item in text[1:-1].split(",")] if text != "[]" else []


def _strides(strides: Any) -> tuple[int, ...]:
    if not isinstance(strides, list) or any(type(n) is not int for n in strides):
        raise UnknownOperandError
    return tuple(strides)


def peak_of(call: Operands, other: int = -1) -> int:
    """The number of the chip's rate for the dtype of a call's first tensor, see `PEAK`."""
    types = call.types if isinstance(call.types, list) else []
    return next((PEAK[one] for one in types if str(one) in PEAK), other)
