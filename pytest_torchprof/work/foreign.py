"""Guess from names whether kernels and operators outside torch compute products.

A product multiplies and adds many pairs of numbers: a matrix product, a convolution, attention, a
Fourier transform. For third-party code, a trace has nothing but names. A name that reveals nothing
may stand for a product.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pytest_torchprof.work.product_kernels import is_main

#: Never products, whatever else is in the name: inductor's elementwise work, reductions and copies
#: (`triton_poi_fused_convolution_22` adds a bias), collectives, and moves of an attention cache.
_NEVER: Final = (
    r"triton_(poi|red|per|for|sort|split_scan)_|^(void )?(nccl|rccl|msccl)|reshape_and_cache"
    r"|(swap|copy|gather|concat\w*)_(blocks|cache|kv)|merge_attn_states"
)
#: Products whose names `is_main` does not match: it only picks the main kernel of several.
_PRODUCTS: Final = (
    r"(?<!co)mm(?![a-z])|(?<![a-z])\w*mv(?![a-z])|matmul|gemm|conv(?!ert)|attention|attn|einsum|marlin"
    r"|(?<![a-z])(moe|mla|mha|gqa|sdpa|lora|dot|linear)(?![a-z])|mamba|selective_scan|chunk_scan"
    r"|trsm|trmm|syrk|symm(?!etric)|herk|potrf|getrf|geqrf|ormqr|gesvd|syevd|heevd|(?<![a-z])i?r?c?fft"
)
#: Operators, not kernels, that contain products: a layer, a decomposition.
_LAYERS: Final = (
    r"mlp|ffn|feed_?forward"
    r"|(?<![a-z])(lstm|gru|proj|projection|matvec|product|cdist|bilinear|svd|cholesky)(?![a-z])"
)
_WORK_WITHOUT: Final = (
    "elementwise|pointwise|vectorized_|unrolled_|reduce|reduction|softmax|soft_max|norm|bn_fw|bn_bw"
    "|activation|silu|gelu|relu|swish|swiglu|sigmoid|tanh|act_and_mul|dropout|rotary|rope(?![a-z])"
    "|embedding|gather|scatter|index|lookup|permute|transpose|nchw|nhwc|im2col|col2im|copy|memcpy"
    "|memset|fill|zero_|arange|iota|cat(?:array|_)|concat|split(?!k)|pad(?![a-z])|roll|flip|cast"
    "|convert|quant|scale|sort|topk|top_k|top_p|argmax|argmin|sampl|random|uniform|philox|unique"
    "|nonzero|cumsum|devicescan|histogram|bincount|search|nms|roi_|interpolat|upsample|resampl"
    "|pool|loss|cross_?entropy|multi_?tensor|optimizer|adam|sgd|lamb(?![a-z])|foreach|clip"
    "|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|sendrecv|bounds_check"
    "|segment|jagged|offsets|bitmatrix|routing|unpack|mask|compare"
)
#: Work without products.
_WITHOUT: Final = rf"{_WORK_WITHOUT}|at::native::|at_cuda_detail|^(void )?(cub|thrust|at::cuda)::"


def _has(pattern: str, name: str) -> bool:
    """Compiled only when first used: few tests have such a name."""
    return re.search(pattern, name, re.IGNORECASE) is not None


@lru_cache(maxsize=100_000)
def kernel_may_multiply(name: str) -> bool:
    """Whether a kernel of this name may compute products.

    >>> kernel_may_multiply("ampere_sgemm_128x64_tn"), kernel_may_multiply("my_kernel")
    (True, True)
    >>> kernel_may_multiply("triton_poi_fused_convolution_22")
    False
    """
    if _has(_NEVER, name):
        return False
    own = name.replace("(anonymous namespace)::", "").partition("(")[0]  # without arguments
    plain = own.partition("<")[0]  # template arguments name more than the kernel does
    return is_main(own) or _has(_PRODUCTS, plain) or not _has(_WITHOUT, own)


@lru_cache(maxsize=10_000)
def operator_may_multiply(name: str) -> bool:
    """The same for an operator that is not torch's.

    >>> operator_may_multiply("aiter::mha_batch_prefill"), operator_may_multiply("mylib::step")
    (True, True)
    >>> operator_may_multiply("torchvision::nms"), operator_may_multiply("_C::fused_add_rms_norm")
    (False, False)
    """
    if _has(_NEVER, name):
        return False
    own = name.partition("::")[2]
    return names_products(own) or not _has(_WORK_WITHOUT, own)


def names_products(own: str) -> bool:
    """Whether the name of an operator, without its namespace, stands for products.

    >>> names_products("my_gemm"), names_products("gated_mlp_silu"), names_products("step")
    (True, True, False)
    """
    return is_main(own) or _has(_PRODUCTS, own) or _has(_LAYERS, own)
