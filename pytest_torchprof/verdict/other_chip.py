"""Bounds that were accepted for another chip than the one that is estimated for are not compared.

Some baselines hold bounds and do not name their chip. There, a bound within its tolerance is as
accepted, and any other is not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from pytest_torchprof.analysis.trace_diff import ESTIMATE_COLUMN_OF
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.core.results import Baseline, Profile
    from pytest_torchprof.verdict.measured import Measured

BOUND: Final = "bound_ms"
_COLUMN: Final = ESTIMATE_COLUMN_OF[BOUND]


def of_this_chip(
    measured: Measured, profile: Profile, baseline: Baseline | None
) -> tuple[Baseline | None, Reason | None]:
    """The baseline without bounds that are not comparable, and why they are not."""
    why = _other_chip(measured, profile, baseline)
    if why is None or baseline is None:
        return baseline, None
    return _without_bounds(baseline), why


def _other_chip(measured: Measured, profile: Profile, baseline: Baseline | None) -> Reason | None:
    here = measured.trace.facts.chip
    if baseline is None or here is None or baseline.chip == here:
        return None
    pairs = list(_pairs(profile, baseline))
    if not pairs:
        return None
    if baseline.chip is not None:
        return because(Why.OTHER_CHIP, accepted=baseline.chip, here=here)
    tolerance = METRICS[BOUND].tolerance
    if all(abs(now - before) <= tolerance * before for before, now in pairs):
        return None
    return because(Why.CHIP_NOT_KEPT, here=here)


def _pairs(profile: Profile, baseline: Baseline) -> Iterable[tuple[float, float]]:
    """The accepted bound and the one now, of the test and its regions."""
    parts = [(profile, baseline)]
    parts += [
        (region, baseline.regions[name])
        for name, region in profile.regions.items()
        if name in baseline.regions
    ]
    for part, before in parts:
        now, accepted = part.metrics.get(BOUND), before.metrics.get(BOUND)
        if now is not None and not isinstance(now, MissingValue) and accepted is not None:
            yield accepted, now


def _without_bounds(baseline: Baseline) -> Baseline:
    """The baseline as if it had been accepted without a chip."""
    return replace(
        baseline,
        metrics={name: value for name, value in baseline.metrics.items() if name != BOUND},
        operators={
            name: {column: value for column, value in row.items() if column != _COLUMN}
            for name, row in baseline.operators.items()
        },
        unstable={name: one for name, one in baseline.unstable.items() if name != BOUND},
        regions={name: _without_bounds(region) for name, region in baseline.regions.items()},
    )
