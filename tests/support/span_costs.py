"""What findings cost beside what the trace took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.names import DEVICE_KINDS, HOST_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def costs_and_span(trace: Events) -> tuple[dict[str, float], float]:
    """The cost of each rule's findings, and the time from the first event to the last, in ms.

    Compilations are left out: they are another run's.
    """
    timed = trace.is_kind(*HOST_KINDS, *DEVICE_KINDS)
    begin, end = trace.ts[timed].min(), (trace.ts + trace.dur)[timed].max()
    rules = [rule for rule in RULES.values() if rule.gated_by is None]
    costs: dict[str, float] = {}
    for one in check(trace, rules).findings():
        costs[one.rule] = costs.get(one.rule, 0.0) + (one.cost_ms or 0.0)
    return costs, float(end - begin) / 1e6
