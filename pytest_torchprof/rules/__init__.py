"""The anti-pattern rules: a code, and a function from a `Trace` to findings.

No rule is implemented yet, and ``findings`` says so; the codes are fixed, so that markers and
options can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.stats import Finding

#: Rules by code. Empty in this version.
RULES: Mapping[str, Callable[[Trace], list[Finding]]] = {}

#: The codes that markers and options accept.
CODES = (
    "fp32-matmul",
    "extra-cuda-copy",
    "sync-dataloader",
    "for-loop-indexing",
    "single-tensor-optimizer",
    "grad-not-none",
    "conv-bias-batchnorm",
    "unaligned-matmul",
    "host-sync",
    "pageable-copy",
    "copy-round-trip",
    "repeated-cast",
    "launch-bound",
    "math-attention",
    "missing-no-grad",
    "graph-break",
    "recompile",
    "contiguous-copy",
)
