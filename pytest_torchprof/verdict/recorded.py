"""Values that a test records itself, of the whole test and of its named regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.core.own_metrics import OwnMetric
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.core.samples import Sample


class Recorded(Frozen, frozen=True):
    """What a test recorded of one metric, over all its runs; a ``sample`` if of timed rounds.

    ``best``: of the rounds' values, if it is compared as a time.
    """

    metric: OwnMetric
    value: Value
    sample: Sample | None = None
    best: float | None = None


#: By region, None for the whole test, then by metric.
Recordings: TypeAlias = Mapping[str | None, Mapping[str, Recorded]]


def declared_in(recordings: Recordings) -> dict[str, OwnMetric]:
    """The metrics of all of them, by name."""
    return {name: one.metric for found in recordings.values() for name, one in found.items()}


def samples_in(found: Mapping[str, Recorded]) -> dict[str, Sample]:
    """The samples of those that have one."""
    return {name: one.sample for name, one in found.items() if one.sample is not None}


def values_in(found: Mapping[str, Recorded]) -> dict[str, Value]:
    """Their values by metric."""
    return {name: one.value for name, one in found.items()}
