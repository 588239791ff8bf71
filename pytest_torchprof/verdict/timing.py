"""Results of a test's timed rounds: samples, and times as multiples of the reference kernel's.

Pure: everything is in the facts that a live capture leaves in its trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.samples import NORMALISED, Normalised, is_positive
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity


def samples_of(trace: Events) -> dict[str, Sample]:
    """The samples of all metrics measured in rounds."""
    noted: dict[str, Quantity | None] = {
        name: getattr(trace.facts, name)
        for name, metric in METRICS.items()
        if "rounds" in metric.needs
    }
    return {name: s for name, one in noted.items() if one is not None and (s := one.sample)}


def normalised_of(trace: Events) -> Normalised | None:
    """The normalized times of a trace; None if the reference kernel did not run."""
    reference, samples = trace.facts.reference, samples_of(trace)
    if reference is None or "wall_ms" not in samples:
        return None
    values = {
        name: samples[name].minimum / each
        for name in NORMALISED
        if name in samples and is_positive(each := getattr(reference, name))
    }
    return Normalised.read(
        {
            **values,
            "n": samples["wall_ms"].n,
            "reference_ms": reference.wall_ms,
            "conditions": reference.conditions,
            "page_faults": reference.page_faults,
        }
    )
