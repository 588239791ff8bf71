"""Numbers of a CPU with another instruction set, or of another chip, only advise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import CPU_SEPARATOR
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Profile
    from pytest_torchprof.verdict.measured import Measured
    from pytest_torchprof.verdict.metric import Metric

#: Of these, one CPU needs more than another, to change the layout of a tensor. Source: 1,468
#: examples of torch 2.13 with oneDNN's instructions up to AVX2 and SSE41, and models on AVX-512.
_LAYOUTS = late(
    r"^aten::(empty|clone|contiguous|copy_|_?to(_copy)?$|as_strided|select|slice|view|resize_)"
    r"|conv|mkldnn|onednn|nnpack"
)
#: What a CPU's layouts add to a device's work.
_COPIES = late(r"^aten::copy_$")
#: The column of operators that tells a metric, and which of them one CPU needs more than another.
_COLUMNS = {
    "ops": ("calls", _LAYOUTS),
    "launches": ("launches", _COPIES),
    "bound_ms": ("bound_ns", _COPIES),
}
#: What no CPU decides.
_SAME = frozenset({"host_reads"})


def other_cpu(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why what a CPU decides is not comparable with the baseline; None if it is."""
    accepted = baseline.cpu_capability if baseline is not None else None
    if accepted is None or measured.cpu_capability in accepted.split(CPU_SEPARATOR):
        return None
    return because(Why.OTHER_CPU, accepted=accepted, here=measured.cpu_capability)


def other_chip(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why estimates for a chip are not comparable with the baseline; None if they are."""
    accepted, here = baseline.chip if baseline is not None else None, measured.trace.facts.chip
    if accepted is None or here is None or accepted == here:
        return None
    return because(Why.OTHER_CHIP, accepted=accepted, here=here)


def varies_by_cpu(metric: Metric) -> bool:
    """Whether the metric counts what a CPU decides: operators and the host's memory.

    Of a device's work, what the host reads is decided by the program alone.
    """
    if metric.on_request:
        return metric.name not in _SAME
    return not (metric.of_device or metric.needs.isdisjoint({"operators", "memory"}))


def explains_not(metric: str, baseline: Baseline, profile: Profile) -> bool:
    """Whether more of this metric is not due to the CPU: it is not of operators that may be.

    Such operators are those that change layouts, for counts of operators; for a device's work only
    copies, as all else is counted where the CPU's choices make no difference.
    """
    column, may_vary = _COLUMNS.get(metric, ("", None))
    if may_vary is None:
        return False
    before, now = (_total(one.operators, column, may_vary) for one in (baseline, profile))
    known = metric == "ops" or any(column in row for row in baseline.operators.values())
    return bool(baseline.operators) and known and now > before * (1 + METRICS[metric].tolerance)


def _total(
    operators: Mapping[str, Mapping[str, int]], column: str, may_vary: re.Pattern[str]
) -> int:
    return sum(
        row.get(column, 0)
        for name, row in operators.items()
        if "#" not in name and not may_vary.search(name)
    )
