"""What is said beside a verdict: comparisons that were not made, and operators that took turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_torchprof.analysis.trace_diff import COLUMN_OF, deltas
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Profile

_MOST_SWAPPED = 4


def not_compared(metrics: Iterable[str], profile: Profile) -> Reason | None:
    """Why comparisons that the test makes itself could not be checked, if there are such."""
    by_reason: dict[Reason, list[str]] = {}
    values = dict(profile.metrics)
    for region, part in profile.regions.items():
        values |= {f"{region}: {name}": value for name, value in part.metrics.items()}
    for name in dict.fromkeys(metrics):
        if isinstance(value := values.get(name), MissingValue):
            by_reason.setdefault(value.reason, []).append(name)
    gaps = [
        because(Why.COMPARED_UNMEASURED, metrics=tuple(names), why=why)
        for why, names in by_reason.items()
    ]
    return because(Why.SEVERAL, gaps=tuple(gaps)) if gaps[1:] else next(iter(gaps), None)


def swapped_operators(profile: Profile, baseline: Baseline) -> Reason | None:
    """What no total shows: operators replaced by as many others."""
    changed = deltas(baseline.operators, profile.operators, COLUMN_OF["ops"])
    if not baseline.operators or not changed or sum(d.now - d.before for d in changed) != 0:
        return None
    shown = tuple(
        because(Why.CHANGED, name=d.name, before=d.before, now=d.now)
        for d in changed[:_MOST_SWAPPED]
    )
    return because(Why.OPERATORS_SWAPPED, operators=shown, left=len(changed) - len(shown))
