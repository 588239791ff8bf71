"""What a kernel's name tells: its category, and whether it computes a product, how precisely."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from pytest_torchprof.core.process import late

# ---- What kind of work a kernel or an operator does: one category each, told from names.

Category = Literal[
    "gemm", "attention", "convolution", "normalization", "reduction", "elementwise", "other",
    "communication", "copy",
]  # fmt: skip

#: All of them, in the order in which they take time that several share: computation before
#: communication, and copies last.
CATEGORIES: Final[tuple[Category, ...]] = (
    "gemm", "attention", "convolution", "normalization", "reduction", "elementwise", "other",
    "communication", "copy",
)  # fmt: skip

#: By the name of a kernel's function, without its template arguments.
_FUNCTIONS: Final[tuple[tuple[Category, re.Pattern[str]], ...]] = (
    (
        "elementwise",
        late(r"at::native::.*(?<!index_)elementwise_kernel$|\belementwise_kernel_with_index$"),
    ),
    (
        "reduction",
        late(r"at::native::.*\breduce_kernel$|at_cuda_detail::cub::(\w+::)*\w*Reduce\w*$"),
    ),
    ("other", late(r"index_elementwise_kernel$|cub::|thrust::|reshape_and_cache|concat_and_cache")),
)
#: By all of its name, the first that matches. Source: the kernels of 147 public traces of 2021 to
#: 2026: cuBLAS, cuDNN, CUTLASS, FlashAttention, FlashInfer, Triton and Inductor, Tensile, MIOpen,
#: composable kernel, aiter, NCCL, RCCL, vLLM, SGLang, apex, and torch's own.
_KERNELS: Final[tuple[tuple[Category, re.Pattern[str]], ...]] = (
    (
        "communication",
        late(
            r"nccl|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
            r"|cross_device_reduce|multimem_|nvshmem|mscclpp|deep_ep|\blamport",
            re.IGNORECASE,
        ),
    ),
    (
        "elementwise",
        late(r"rotary|\brope|_rope|(silu|gelu|act)_and_mul|swiglu_(fwd|bwd|kernel)", re.IGNORECASE),
    ),
    (
        "attention",
        late(
            r"flash_?(fwd|bwd|fprop|bprop|attn|attention)|flash::|fmha|sdpa|attention(?!_?mask)"
            r"|cudnn::fusion::(compute_dot_do_o|convert_dq)|attn_(fwd|bwd|kernel)|_attn|\bmha_|sage_(fwd|bwd)|paged_?kv|batch_?(decode|prefill)with|\bmla_",
            re.IGNORECASE,
        ),
    ),
    (
        "convolution",
        late(
            r"conv(?!ert)|scudnn|fprop|dgrad|wgrad|winograd|igemm_(fwd|bwd|wrw)|im2col|col2im"
            r"|computeOffsetsKernel",
            re.IGNORECASE,
        ),
    ),
    (
        "normalization",
        late(
            r"(layer|batch|group|instance|rms|weight)_?norm|\bbn_(fw|bw)|RowwiseMoments|GammaBeta"
            r"|ComputeFusedParams|ComputeInternalGradients|cuComputeGradInput|_norm_(fwd|bwd|kernel)",
            re.IGNORECASE,
        ),
    ),
    (
        "gemm",
        late(
            r"gemm|gemv|Cijk_|nvjet|matmul|wgmma|splitK|xmma|triton_(tem\w*_(add)?b?mm|b?mm)"
            r"|dot_kernel|cublasLt|\bbmm_|fused_moe_kernel|marlin|machete|_mm_kernel|tensorop",
            re.IGNORECASE,
        ),
    ),
    (
        "reduction",
        late(
            r"soft_?max|reduce|reduction|triton_(red|per)_|nll_loss|cross_?entropy|argm(ax|in)"
            r"|lpnorm|norm_cleanup|welford|logsumexp",
            re.IGNORECASE,
        ),
    ),
    (
        "other",
        late(
            r"index|gather|scatter|embedding|sort|scan|top_?k|pool|upsample|unique|nonzero|radix"
            r"|histogram|tri[lu]_|roi_align|\bnms|routing|moe_|lstm|gru_|rnn|fft",
            re.IGNORECASE,
        ),
    ),
    (
        "elementwise",
        late(
            r"elementwise|triton_(poi|for)_|multi_tensor_apply|dropout|CatArray|copy|cast|convert"
            r"|fill|nchw\w*nhwc|nhwc\w*nchw|transpose|permute|distribution|random|philox|quant",
            re.IGNORECASE,
        ),
    ),
)
#: By the name of an operator, the first that matches from its beginning.
_OPERATORS: Final[tuple[tuple[Category, re.Pattern[str]], ...]] = (
    (
        "communication",
        late(r"nccl:|gloo:|mpi:|(_?c10d|_c10d_functional)::|record_param_comms", re.IGNORECASE),
    ),
    ("copy", late(r"(Memcpy|Memset) ", re.IGNORECASE)),
    ("attention", late(r".*(attention|flash|sdpa|fmha)", re.IGNORECASE)),
    ("convolution", late(r".*conv(?!ert)", re.IGNORECASE)),
    ("normalization", late(r".*(layer|batch|group|instance|rms|weight)_?norm", re.IGNORECASE)),
    (
        "gemm",
        late(
            r".*\b(linear|bilinear|addmm|addbmm|baddbmm|b?mm|addmv|mv|addr|matmul|v?dot|einsum|outer"
            r"|_addmm_activation|_scaled_mm|_grouped_mm|tensordot|inner|mkl(dnn)?_linear)\b"
            r"|.*((?<!fb)gemm|_linear_|linear_pointwise|b?mmbackward|linearbackward|addmm)",
            re.IGNORECASE,
        ),
    ),
    (
        "reduction",
        late(
            r".*(softmax|loss|logsumexp)"
            r"|aten::(_foreach_norm|sum|nansum|mean|a?max|a?min|aminmax|arg(max|min)|prod|all|any|std"
            r"|var|(std|var)_mean|norm|linalg_vector_norm|median|count_nonzero)$",
            re.IGNORECASE,
        ),
    ),
    (
        "other",
        late(
            r"aten::(_?embedding|index|gather|scatter|sort|topk|argsort|cum|unique|nonzero|masked_se"
            r"|\w*pool|\w*upsample|searchsorted|bincount|hist|multinomial|_?fft|lstm|gru|rnn|linalg"
            r"|tri[lu]|repeat|empty|new_empty|resize|set_|view|_?reshape|as_strided|select|slice|narrow"
            r"|expand|permute|transpose|t$|detach|(un)?squeeze|split|chunk|unbind|item|is_nonzero"
            r"|_local_scalar|lift|result_type|record_stream|set_|is_)",
            re.IGNORECASE,
        ),
    ),
    ("elementwise", late(r"(aten|prims)::", re.IGNORECASE)),
)
#: Wrappers that say nothing about what they wrap.
_CUTLASS: Final = late(r"cutlass|ck::|ck_tile")


@lru_cache(maxsize=100_000)
def kernel_category(kernel: str, operator: str = "") -> Category:
    """The category of a kernel with this name, launched by this operator (empty if unknown).

    The kernel's own name decides. The operator does if the name tells nothing, and products and
    transforms that a convolution launches are parts of that.

    >>> kernel_category("ampere_sgemm_32x32_tn"), kernel_category("ncclDevKernel_AllReduce_Sum_f32")
    ('gemm', 'communication')
    >>> kernel_category("sm90_xmma_gemm_bf16_tn", "aten::cudnn_convolution")
    'convolution'
    >>> kernel_category("my_kernel", "aten::addmm"), kernel_category("my_kernel")
    ('gemm', 'other')
    """
    found = _of_kernel(kernel)
    if found not in (None, "gemm", "other") or not operator:
        return found or "other"
    launched = operator_category(operator)
    if found is None:
        # Inductor's early kernels have no telling name, but the event around their launch has.
        return _of_kernel(operator) or launched if operator.startswith("triton_") else launched
    return "convolution" if launched == "convolution" else found


@lru_cache(maxsize=100_000)
def operator_category(operator: str) -> Category:
    """The category of an operator by its name.

    >>> operator_category("aten::mkldnn_convolution"), operator_category("aten::add_")
    ('convolution', 'elementwise')
    >>> operator_category("mylib::decode")
    'other'
    """
    for category, pattern in _OPERATORS:
        if pattern.match(operator):
            return category
    return "other"


def _of_kernel(name: str) -> Category | None:
    function = name.partition("<")[0].partition("(int")[0]
    for category, pattern in _FUNCTIONS:
        if pattern.search(function):
            return category
    for category, pattern in _KERNELS:
        if pattern.search(function):
            return category
    for category, pattern in _KERNELS:
        if pattern.search(name):
            return category
    return "gemm" if _CUTLASS.search(name) else None


# ---- Tell from a kernel's name whether it computes a product, and in which precision.

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
#: MIOpen, the type code of Tensile after its two index maps, and that of the operands which begins
#: the types of ``nvjet``. ``884`` are Volta's tensor cores.
_PRECISIONS: Final = (
    (
        "half",
        late(
            r"fp16|bf16|[_<]f16|half|bfloat|884|16816|Cijk_A[ijkl]+_B[ijkl]+_[HB]"
            r"|nvjet_(sm\d+_)?(?!sm\d)[th]\w*?_\d",
            re.IGNORECASE,
        ),
    ),
    (
        "other",
        late(
            r"tf32|xf32|s1688|fp8|e4m3|e5m2|_i8|int8|imma|fp4|Cijk_A[ijkl]+_B[ijkl]+_[FI]\d"
            r"|nvjet_(sm\d+_)?(?!sm\d)[sqo]\w*?_\d",
            re.IGNORECASE,
        ),
    ),
    (
        "double",
        late(r"dgemm|zgemm|f64|fp64|<double\b|nvjet_(sm\d+_)?d\w*?_\d|Cijk_A[ijkl]+_B[ijkl]+_[DZ]"),
    ),
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
