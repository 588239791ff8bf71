"""The class of a mark, by what it stands for; `plots.css` gives each its color."""

from __future__ import annotations

import re
from typing import Final

from pytest_torchprof.analysis.breakdown import EXPOSED

_NO_WORD: Final = re.compile(r"[^a-z]+")


def category_class(category: str) -> str:
    """Of a category of device time, or of memory.

    >>> category_class("gemm"), category_class("optimizer_state"), category_class("idle")
    ('c-gemm', 'c-optimizer-state', 'c-idle')
    """
    return f"c-{_NO_WORD.sub('-', category.lower())}"


def category_name(category: str) -> str:
    """In words, as in the table of `torchprof summary`."""
    return f"{category}, exposed" if category in EXPOSED else category
