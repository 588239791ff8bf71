"""Which fields of a kernel's row a grouping has, and which of them a table shows."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.kernel_rows import FINE_FIELDS, KernelRow

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

#: Of a grouping by several words, in the order of reading: what, how long, what to gain, why.
_FINE_COLUMNS: Final = (
    *("device", "operator", "kernel", "shapes", "calls", "total_ms", "mean_us", "ms_to_gain"),
    *("roofline_ms", "flops", "tflops_per_s", "bytes", "gb_per_s", "arithmetic_intensity", "bound"),
    *("grid", "block", "waves", "tail", "occupancy_pct"),
    *("registers_per_thread", "shared_memory_bytes"),
)
#: Fields that no table shows: the names of ``kernel`` and ``operator`` again.
_NAMES: Final = ("kernel_short", "operators")


def kernel_fields(words: AbstractSet[str]) -> list[str]:
    """The fields of rows grouped by these words, see `parse_grouping`."""
    fine = FINE_FIELDS if len(words) > 1 else ()
    left_out = {*FINE_FIELDS} - {*fine} | ({"shapes"} - {f"{word}s" for word in words})
    return [field.name for field in fields(KernelRow) if field.name not in left_out]


def kernel_columns(words: AbstractSet[str]) -> list[str]:
    """Those that a table shows."""
    known = [field for field in kernel_fields(words) if field not in _NAMES]
    return [field for field in _FINE_COLUMNS if field in known] if len(words) > 1 else known
