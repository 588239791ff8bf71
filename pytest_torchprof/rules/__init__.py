"""The anti-pattern rules: rows of data, each with one function from a `Trace` to its matches.

To add a rule, write it in the file of its theme, and it is in `RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_torchprof.rules import compilation, training
from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.rule import Matches, Rule, Threshold, rule

__all__ = ["CODES", "RULES", "Checked", "Matches", "Rule", "Threshold", "check", "rule"]

#: Rules by code, in the order of the files of their themes.
RULES: Mapping[str, Rule] = {
    found.code: found
    for theme in (training, compilation)
    for found in vars(theme).values()
    if isinstance(found, Rule)
}

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
