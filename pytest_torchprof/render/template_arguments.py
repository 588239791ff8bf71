"""The parts of a C++ template's name: its head, its arguments, the dtype among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_torchprof.core.lazy_regex import late

#: C++ types → dtypes as in the names of other kernels.
_DTYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("float", "float32_t"), "f32"),
    **dict.fromkeys(("double", "float64_t"), "f64"),
    **dict.fromkeys(("Half", "half", "__half", "half_t", "_Float16", "float16_t"), "f16"),
    **dict.fromkeys(
        ("BFloat16", "bfloat16", "__nv_bfloat16", "nv_bfloat16", "bfloat16_t", "__hip_bfloat16",
         "hip_bfloat16", "bhalf_t", "__bf16"),
        "bf16",
    ),
    **dict.fromkeys(
        ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "float_e4m3_t",
         "float_e5m2_t", "__nv_fp8_e4m3", "__nv_fp8_e5m2", "f8_t", "bf8_t"),
        "f8",
    ),
    "float_e2m1_t": "f4",
    "tfloat32_t": "tf32",
    "complex<float>": "c64",
    "complex<double>": "c128",
    **dict.fromkeys(("long", "long long", "int64_t"), "i64"),
    **dict.fromkeys(("int", "int32_t"), "i32"),
    **dict.fromkeys(("short", "int16_t"), "i16"),
    **dict.fromkeys(("signed char", "int8_t"), "i8"),
    **dict.fromkeys(("unsigned char", "uint8_t"), "u8"),
    **dict.fromkeys(("unsigned short", "uint16_t"), "u16"),
    **dict.fromkeys(("unsigned int", "uint32_t"), "u32"),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t"), "u64"),
    "bool": "bool",
}  # fmt: skip
_INTEGERS: Final = frozenset({"i64", "i32", "i16", "u16", "u32", "u64", "bool"})
_TYPE: Final = late(
    r"(?<!\w)(?:OpaqueType<(?P<size>\d+)u?>|(?P<type>"
    + "|".join(sorted(map(str, _DTYPES), key=len, reverse=True))
    + r"))(?!\w)"
)
_OPEN, _CLOSE = "<({[", ">)}]"


def head(text: str) -> str:
    """What stands before the first bracket.

    >>> head("reduce_kernel<512, 1>"), head("sqrt_kernel_cuda(float)"), head("plain")
    ('reduce_kernel', 'sqrt_kernel_cuda', 'plain')
    """
    ends = [at for at in map(text.find, "<(") if at >= 0]
    return text[: min(ends)].strip() if ends else text.strip()


def arguments(text: str) -> list[str]:
    """The arguments of the first template in a text; none if it has no template.

    >>> arguments("kernel<4, Add<float, int>, std::array<char*, 3ul> >(int)")
    ['4', 'Add<float, int>', 'std::array<char*, 3ul>']
    """
    start = text.find("<")
    if start < 0:
        return []
    found, depth, since = [], 0, start + 1
    for at in range(start, len(text)):
        sign = text[at]
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE and text[at - 1] != "-":
            depth -= 1
            if not depth:
                found.append(text[since:at].strip())
                return [part for part in found if part]
        elif sign == "," and depth == 1:
            found.append(text[since:at].strip())
            since = at + 1
    return []


def dtype_in(text: str, *, reals: bool = False) -> str | None:
    """The first type in a text; ``reals``: rather the first that is not a whole number.

    >>> dtype_in("int, at::Half"), dtype_in("int, at::Half", reals=True), dtype_in("OpaqueType<2u>")
    ('i32', 'f16', '2B')
    """
    first = None
    for match in _TYPE.finditer(text):
        dtype = f"{match['size']}B" if match["size"] else _DTYPES[match["type"]]
        if not reals or dtype not in _INTEGERS:
            return dtype
        first = first or dtype
    return first
