"""Dtypes as traces name them: bytes of an element, names for people, and the chip's peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.devices.device import DTYPES


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
