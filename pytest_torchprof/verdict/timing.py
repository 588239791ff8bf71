"""Results of a test's timed rounds: samples, and times as multiples of the reference kernel's.

Pure: everything is in the facts that a live capture leaves in its trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.samples import NORMALISED, Normalised, is_positive
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity
    from pytest_torchprof.verdict.recorded import Recorded

_OF_ROUNDS: Final = tuple(name for name, one in METRICS.items() if "rounds" in one.needs)


def samples_of(trace: Events) -> dict[str, Sample]:
    """The samples of all metrics measured in rounds."""
    facts = trace.facts
    noted: dict[str, Quantity | None] = {name: getattr(facts, name) for name in _OF_ROUNDS}
    return {name: s for name, one in noted.items() if one is not None and (s := one.sample)}


def normalised_of(
    trace: Events, recorded: Mapping[str, Recorded] | None = None
) -> Normalised | None:
    """The normalized times of a trace, and those that the test has recorded.

    None if the reference kernel did not run.
    """
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
            "own": {
                name: multiple
                for name, one in (recorded or {}).items()
                if (multiple := _multiple(one, reference.wall_ms)) is not None
            },
        }
    )


#: Units of times that a test may record.
_TIMES = frozenset({"ns", "us", "µs", "ms", "s", "min"})


def is_rate(unit: str) -> bool:
    """Whether a unit is of something per time.

    >>> is_rate("tokens/s"), is_rate("ms"), is_rate("tokens/batch")
    (True, False, False)
    """
    what, _, per = unit.rpartition("/")
    return bool(what) and per in _TIMES


def _multiple(one: Recorded, reference_ms: float | None) -> float | None:
    """The best round of a time or a rate, relative to the reference kernel's time in ms.

    None of another quantity, of which it is not known how the machine's speed changes it.
    """
    if one.best is None or not is_positive(one.best) or not is_positive(reference_ms):
        return None
    assert reference_ms is not None  # noqa: S101 - it is positive
    if is_rate(one.metric.unit):
        return one.best * reference_ms
    return one.best / reference_ms if one.metric.unit in _TIMES else None
