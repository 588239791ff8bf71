"""Results of a test's timed rounds: samples, and times as multiples of the reference kernel's.

Pure: everything is in the facts that a live capture leaves in its trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.core.samples import NORMALISED, Normalised, Sample, is_positive
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def samples_of(trace: Events) -> dict[str, Sample]:
    """The samples of all metrics measured in rounds."""
    found = {
        name: _sample(trace.facts.get(name))
        for name, metric in METRICS.items()
        if "rounds" in metric.needs
    }
    return {name: sample for name, sample in found.items() if sample is not None}


def normalised_of(trace: Events) -> Normalised | None:
    """The normalized times of a trace; None if the reference kernel did not run."""
    reference, samples = trace.facts.get("reference"), samples_of(trace)
    if not isinstance(reference, Mapping) or "wall_ms" not in samples:
        return None
    values = {
        name: samples[name].minimum / reference[name]
        for name in NORMALISED
        if name in samples and is_positive(reference.get(name))
    }
    return Normalised.read(
        {
            **values,
            "n": samples["wall_ms"].n,
            "reference_ms": reference.get("wall_ms"),
            "conditions": reference.get("conditions"),
            "page_faults": reference.get("page_faults"),
        }
    )


def _sample(fact: object) -> Sample | None:
    if not isinstance(fact, Mapping):
        return None
    parts = [fact.get(name) for name in ("median", "low", "high", "minimum")]
    numbers = [float(part) for part in parts if isinstance(part, int | float)]
    n = fact.get("n")
    if not isinstance(n, int) or n < 1 or len(numbers) < 4 or not all(map(math.isfinite, numbers)):
        return None
    return Sample(n, *numbers)
