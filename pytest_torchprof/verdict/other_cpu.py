"""Numbers that were accepted on a CPU with another instruction set only advise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import CPU_SEPARATOR

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline
    from pytest_torchprof.verdict.measured import Measured
    from pytest_torchprof.verdict.metric import Metric

#: Of these, one CPU needs more than another, to change the layout of a tensor. Source: 1,468
#: examples of torch 2.13 with oneDNN's instructions up to AVX2 and SSE41, and models on AVX-512.
_LAYOUTS = late(
    r"^aten::(empty|clone|contiguous|copy_|_?to(_copy)?$|as_strided|select|slice|view|resize_)"
    r"|conv|mkldnn|onednn|nnpack"
)


def other_cpu(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why what a CPU decides is not comparable with the baseline; None if it is."""
    accepted = baseline.cpu_capability if baseline is not None else None
    if accepted is None or measured.cpu_capability in accepted.split(CPU_SEPARATOR):
        return None
    return because(Why.OTHER_CPU, accepted=accepted, here=measured.cpu_capability)


def varies_by_cpu(metric: Metric) -> bool:
    """Whether the metric counts what a CPU decides: operators and the host's memory."""
    return not (metric.of_device or metric.needs.isdisjoint({"operators", "memory"}))


def more_than_layouts(
    before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]]
) -> bool:
    """Whether more operators ran, besides those that change layouts: no CPU explains these."""

    def calls(operators: Mapping[str, Mapping[str, int]]) -> int:
        return sum(
            row.get("calls", 0)
            for name, row in operators.items()
            if "#" not in name and not _LAYOUTS.search(name)
        )

    return bool(before) and calls(now) > calls(before)
