"""What a part of what ran says about the whole: lower bounds, and where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.work_elsewhere import is_by_chance, work_elsewhere
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue, Value

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.metric import Metric


def of_whole(metric: Metric, value: Value, trace: Events) -> Value:
    """The value that events of this trace give, or what it says about all that ran."""
    value = bounded(metric, value, trace)
    return _until_the_end(metric, value) if trace.cut and metric.of_region else value


def at_least(metric: Metric, value: Value | None, reason: Reason) -> MissingValue:
    """The count of a part as a lower bound; a count of 0 is none, and what is no count neither."""
    if not isinstance(value, int) or not value:
        return MissingValue(reason)
    why = because(Why.AT_LEAST, value=value, unit=metric.unit, why=reason)
    return MissingValue(why, value, at_least=True)


def bounded(metric: Metric, value: Value, trace: Events) -> Value:
    """The value; a lower bound if other processes or finalizers did work for the test.

    It is unknown if a thread that the test left was cut off.
    """
    if not (metric.of_region and trace.is_live):
        return value
    if (gap := trace.whole.once(work_elsewhere)) is None:
        return value
    if is_by_chance(gap) or metric.own is not None:  # a function's value may be no count
        return MissingValue(gap)
    at_hand = value if isinstance(value, int) else getattr(value, "at_hand", None)
    return MissingValue(gap, at_hand, at_least=True)


def _until_the_end(metric: Metric, value: Value) -> MissingValue:
    """The value of a file that breaks off among its events, of which any may be missing."""
    ends = because(Why.FILE_ENDS)
    if not isinstance(value, MissingValue):
        return at_least(metric, value if metric.adds_up else None, ends)
    why = because(Why.SEVERAL, gaps=(value.reason, ends))
    return MissingValue(why, value.at_hand, at_least=value.at_least and metric.adds_up)
