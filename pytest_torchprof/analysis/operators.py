"""What torch's operators do, as far as FLOPs go: each has a formula, or no products, or says so.

A formula counts products only (see `pytest_torchprof.flops`). So it is one of these:

- `counted`: it has a formula;
- `none`: it is known to do no products, and its FLOPs are 0; `idle` if it also does no arithmetic
  at all (views, allocations, copies, questions about a tensor);
- `parts`: it is made of others, which a trace shows;
- `computes`: it does products, or what takes their place, and nobody has a formula;
- `unknown`: it is not in this table;
- `around`: it is no operator, but an annotation, a node of autograd, a compiled region.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from pytest_torchprof.analysis.foreign import operator_may_multiply
from pytest_torchprof.flops import FORMULAS

Work = Literal["counted", "none", "idle", "parts", "computes", "unknown", "around"]

_OPERATOR: Final = re.compile(r"^(?!autograd::|torch::)[A-Za-z_]\w*::\w+$")

_COMPUTES: Final = re.compile(
    r"^aten::(_?fft_\w+|_?linalg_(?!vector_norm|norm|cross|diagonal)\w+|sampled_addmm|cholesky\w*)$"
)
_IDLE: Final = re.compile(
    r"^aten::(empty\w*|view\w*|as_strided\w*|reshape\w*|resize\w*|copy_|clone|to|_to_copy|zeros\w*"
    r"|contiguous|detach\w*|fill_|zero_|slice|select|t|transpose|expand|alias)$"
)
_PARTS: Final = re.compile(
    r"^aten::(linear|matmul|einsum|bilinear|tensordot|inner|outer|conv\d\w*|conv_t\w+|lstm|gru"
    r"|rnn_\w+|scaled_dot_product_attention|_scaled_dot_product_attention_math|chain_matmul)$"
)


@lru_cache(maxsize=10_000)
def work_of(name: str) -> Work:
    """What an operator does, by its name as traces have it."""
    if name in FORMULAS:
        return "counted"
    if not _OPERATOR.match(name):
        return "around"
    if _COMPUTES.match(name):
        return "computes"
    if _PARTS.match(name):
        return "parts"
    if _IDLE.match(name):
        return "idle"
    if name.startswith(("aten::", "inductor::")):
        return "none"
    return "unknown" if operator_may_multiply(name) else "none"
