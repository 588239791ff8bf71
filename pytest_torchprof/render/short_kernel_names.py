"""Readable kernel names: C++ names without boilerplate, and in a few words."""

from __future__ import annotations

import re
from functools import lru_cache

from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.render.kernel_families import FAMILIES
from pytest_torchprof.render.native_kernels import NATIVE, OTHERS

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
#: An element-wise functor is a nested lambda; the function's name and the type identify it.
_LAMBDAS = re.compile(
    r"\([^(){}]*\)(?: const)?"
    r"(?:::\{lambda\([^{}]*?\)#\d+\}(?:::operator\(\)\([^(){}]*\)(?: const)?)?)*"
    r"::\{lambda\((?P<types>[^{}]*?)\)#\d+\}"
)
_NAMESPACES = re.compile(r"(?<![\w>])(?:[A-Za-z_]\w*::)+(?=[A-Za-z_])")
#: Template arguments about operand access, which say nothing about the computation.
_PLUMBING = re.compile(
    r",?\s*\b(?:(?:[Aa]rray<char\s?\*, ?\d+(?:ul)?>)|TrivialOffsetCalculator<[^<>]*>"
    r"|OffsetCalculator<[^<>]*>|(?:Load|Store)With(?:out)?Cast(?:<[^<>]*>)?)"
)
_OPERATORS = re.compile(r"operator\s?\(\)")


def readable_kernel(name: str) -> str:
    """A kernel's name without return type, arguments, namespaces and template noise.

    Names from other languages (Triton, assembly) stay as they are.

    >>> readable_kernel("void at::native::vectorized_elementwise_kernel<4, "
    ...     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    ...     "(int, at::native::CUDAFunctor_add<float>)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>'
    >>> readable_kernel("triton_poi_fused__to_copy_1")
    'triton_poi_fused__to_copy_1'
    """
    if "::" not in name and not name.endswith(")"):
        plain = name.removeprefix("void ")
        return plain.strip() or plain
    text = _ANONYMOUS.sub("", name.removesuffix(".kd").removeprefix("void "))
    text = _without_arguments(text)
    text = _LAMBDAS.sub(lambda match: f"({match['types']})" if match["types"] else "", text)
    text = _OPERATORS.sub("operator", text)
    text = _PLUMBING.sub("", _NAMESPACES.sub("", text))
    text = re.sub(r"\s+>", ">", text)
    return re.sub(r"<\s*,?\s*>", "", text).strip() or name


def _without_arguments(text: str) -> str:
    """Remove a trailing argument list, if any; a remark may follow after a space."""
    if not text.endswith(")"):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            return text if text[:at].endswith((" ", ",")) else text[:at] or text
    return text


@lru_cache(maxsize=10_000)
def short_kernel(name: str) -> str:
    """What a kernel computes in a few words: library, operation, dtype, tile, layout.

    Names that no known library writes become `readable_kernel`; those of Triton's kernels stay, as
    they are the names in the generated code.

    >>> short_kernel("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_"
    ...     "64x6_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8)")
    'cutlass gemm bf16 128x64x64 tn relu'
    >>> short_kernel("Cijk_Ailk_Bjlk_HHS_BH_Bias_MT128x128x32_MI32x32x8x1_SN")
    'Tensile gemm f16 MT128x128x32 NT'
    >>> short_kernel("void at::native::vectorized_elementwise_kernel<4, "
    ...     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    ...     "(int, at::native::CUDAFunctor_add<float>)")
    'elementwise add f32 vec4'
    """
    plain = readable_kernel(name)
    for text, families in ((plain, NATIVE), (name, (*OTHERS, *FAMILIES))):
        for pattern, make in families:
            if (match := pattern.search(text)) and (short := make(match, plain)):
                return short
    return plain


def short_kernels(text: str) -> str:
    """The same for each of `CountedNames`."""
    return text.renamed(short_kernel) if isinstance(text, CountedNames) else short_kernel(text)
