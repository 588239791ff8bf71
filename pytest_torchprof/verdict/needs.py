"""What a capture must hold for a metric to be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis import gaps
from pytest_torchprof.analysis.live_bytes import ALLOCATORS
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.work.counting import has_shapes

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.metric import MetricNeed


def lacking(trace: Events, needs: frozenset[MetricNeed]) -> MissingValue | None:
    """Why the capture does not hold what metrics of these needs are made of; None if it does."""
    reason = _lacking(trace, needs)
    if reason and trace.cut:
        reason = because(Why.FILE_BREAKS_OFF, why=reason)
    return MissingValue(reason) if reason else None


def _lacking(trace: Events, needs: frozenset[MetricNeed]) -> Reason | None:
    if trace.is_live and trace.region is None:
        return because(Why.NO_REGION)
    of_device = {"device": gaps.absent_gap, "device_memory": gaps.memory_gap}
    for need, gap in {**of_device, "calls": gaps.waits_gap}.items():
        if need in needs and (reason := trace.once(gap)):
            return reason
    if not needs.isdisjoint({"operators", "host"}):
        # Our captures record operators: where there are none, none ran.
        kinds = (Kind.OP,) if "operators" in needs else HOST_KINDS
        if trace.region is None and not trace.has(*kinds):
            return because(Why.NO_OPERATORS)
    if "shapes" in needs and not has_shapes(trace):
        return because(Why.NO_SHAPES)
    if "memory" in needs and not _has_memory(trace):
        return trace.facts.no_memory or because(Why.NO_MEMORY)
    return None


def _has_memory(trace: Events) -> bool:
    if trace.facts.no_memory is not None:
        return False
    sizes = trace.memory.bytes
    if len(sizes):
        return bool(sizes.any())
    # Some builds of torch set the flag and record nothing, not even what could not be allocated.
    if trace.region is not None or trace.named("[OutOfMemory]").any():
        return bool(trace.metadata.get("profile_memory"))
    allocates = trace.is_kind(Kind.OP) & trace.names_where(ALLOCATORS.__contains__)
    return bool(trace.metadata.get("profile_memory")) and not allocates.any()
