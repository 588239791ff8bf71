"""Tell from a kernel's name whether it computes a product, and in which precision."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pytest_torchprof.core.lazy_regex import late

#: Kernels that do the work of a product, a convolution or attention: cuBLAS, cuDNN, CUTLASS,
#: Tensile, composable kernel, Triton templates, flash attention.
MAIN_KERNEL: Final = late(
    r"gemm|gemv|cutlass|xmma|nvjet|Cijk_|matmul|triton_(tem|mm|bmm)|wgmma|winograd|conv(?!ert)"
    r"|fprop|dgrad|wgrad|fft|flash|fmha|attn|attention|dot_kernel|rnn|lstm|gru_",
    re.IGNORECASE,
)


#: … and helpers before and after it under such names. Template arguments name more than the kernel
#: does, so only the part before them counts, up to CUTLASS's split sum. Of a product, layouts are
#: those of the input, the filter and the output: ``nhwckrsc_nchw``.
_HELPER: Final = late(
    r"^[^<]*(reduce|convert|combine|dot_do_o|transpose|nchw(?!kcrs)\w*nhwc|nhwc(?!krsc)\w*nchw"
    r"|im2col|col2im|Offsets|generateWinogradTiles|elementwise|epilogue::impl|scalePacked|fill|memset"
    r"|init_device_workspace)"
    r"|reduction::kernel|ReduceSplitK",
    re.IGNORECASE,
)


#: The two products of a convolution's backward pass: for its input, and for its weight.
INPUT_GRADIENT: Final = late(r"dgrad|igemm_bwd", re.IGNORECASE)
WEIGHT_GRADIENT: Final = late(r"wgrad|igemm_wrw", re.IGNORECASE)


#: Single precision that runs as TF32: cuBLAS, cuDNN, CUTLASS (whose fp32 attention uses it too).
#: Since CUDA 13 an architecture may come before the types of ``nvjet``: ``nvjet_sm90_tst`` is bf16.
TF32_KERNEL: Final = late(
    r"tf32|xf32|s1688(?!\w*(bf|f|fp)16)|nvjet_(sm\d+_)?(?!sm\d)s|fmha_cutlass[FB]_f32\w*_sm80",
    re.IGNORECASE,
)


#: … and that certainly does not.
FP32_KERNEL: Final = late(r"sgemm|simt|scudnn|gemmSN|gemv|f32f32_f32f32", re.IGNORECASE)


#: Kernels for products with a vector, and for outer products, which tensor cores do not speed up.
VECTOR_KERNEL: Final = late(r"^(?!\w* ?gemmSN).*gemv|gemmk1|dot_kernel|reduce_1Block")


@lru_cache(10_000)
def is_main(name: str) -> bool:
    """Whether a kernel does the work of a product, a convolution or attention."""
    return bool(MAIN_KERNEL.search(name)) and not _HELPER.search(name)


#: Element types in the names of product kernels, the first that matches: cuBLAS, cuDNN, CUTLASS,
#: MIOpen, and the type code of Tensile after its two index maps. ``884`` are Volta's tensor cores.
_PRECISIONS: Final = (
    (
        "half",
        late(r"fp16|bf16|[_<]f16|half|bfloat|884|16816|Cijk_A[ijkl]+_B[ijkl]+_[HB]", re.IGNORECASE),
    ),
    (
        "other",
        late(r"tf32|fp8|e4m3|e5m2|_i8|int8|imma|fp4|Cijk_A[ijkl]+_B[ijkl]+_[FI]\d", re.IGNORECASE),
    ),
    ("double", late(r"dgemm|zgemm|f64|fp64|<double\b|Cijk_A[ijkl]+_B[ijkl]+_[DZ]")),
    ("single", late(r"sgemm|scudnn|cgemm|f32|fp32|<float\b|gemmSN|Cijk_A[ijkl]+_B[ijkl]+_S_?B")),
)


@lru_cache(10_000)
def precision(name: str) -> str | None:
    """What a product kernel multiplies: half, single, double, other, or None if it does not say.

    >>> precision("volta_sgemm_128x64_tn"), precision("volta_fp16_s884gemm_fp16_128x64_nn")
    ('single', 'half')
    >>> precision("void cudnn::detail::dgrad_engine<float, 512, 6>"), precision("kernel")
    ('single', None)
    """
    return next((found for found, pattern in _PRECISIONS if pattern.search(name)), None)
