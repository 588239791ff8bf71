"""Numbers of a CPU with another instruction set, or of another chip, only advise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import CPU_SEPARATOR

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


def explains_not(baseline: Baseline, profile: Profile) -> bool:
    """Whether more operators are not due to the CPU: they are none that change layouts."""
    before, now = (
        sum(
            row.get("calls", 0)
            for name, row in one.operators.items()
            if "#" not in name and not _LAYOUTS.search(name)
        )
        for one in (baseline, profile)
    )
    return bool(baseline.operators) and now > before
