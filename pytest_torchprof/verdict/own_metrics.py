"""Metrics of users' own: their rows beside the metric table, and how a function becomes one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import SettingsError, error_line
from pytest_torchprof.core.own_metrics import OwnMetric, declared, number_of
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.verdict.metric import Metric
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.own_metrics import Better, Compare
    from pytest_torchprof.core.results import MissingValue, Value, Verdict
    from pytest_torchprof.trace.events import Events

#: How far a value that is compared as ``near`` may differ from the baseline's, relative to it.
NEAR_TOLERANCE = 0.01

_NEEDS = frozenset({"shapes", "memory", "device", "device_memory", "calls", "operators", "host"})


def metric(
    name: str,
    *,
    unit: str = "1",
    better: Better = "lower",
    compare: Compare = "exact",
    needs: str = "",
    help: str = "",  # noqa: A002 - as in the metric table
) -> Callable[[Callable[[Events], object]], Metric]:
    """Make a `Metric` of the decorated function of a trace, which returns a number in ``unit``.

    The function is called for the whole test and for each of its named regions, with what ran
    there as ``trace.selection``. None, an exception, or what is no number is *not measured*.
    ``compare``: ``exact`` must equal the baseline, ``near`` may differ by 1 %, ``time`` only
    advises, since it comes from the profiled run, and ``never`` is not stored. ``needs`` are words:
    ``shapes``, ``memory``, ``device``, ``calls``, ``operators``; without one of them in the
    capture, the metric is *not measured*. ``help`` is one line; by default that of the docstring.

    Raises:
        SettingsError: an invalid argument, or the name of another metric.
    """
    own = declared(name, unit, better, compare, taken=METRICS)
    wanted = frozenset(needs.split())
    if unknown := wanted - _NEEDS:
        raise SettingsError(
            f"metric {name}: unknown needs {', '.join(sorted(unknown))}",
            "",
            f"known are {', '.join(sorted(_NEEDS))}",
        )

    def make(function: Callable[[Events], object]) -> Metric:
        line = (help or inspect.getdoc(function) or name).partition("\n")[0]
        return _row(own, wanted, _guarded(name, function), line)

    return make


def rows_of(own: Iterable[OwnMetric]) -> dict[str, Metric]:
    """The rows of what users have declared, by name."""
    return {one.name: _row(one) for one in own}


def row_of(name: str, own: Mapping[str, OwnMetric]) -> Metric:
    """The row of the table, or of a metric of the user's own; ``own`` may lack one that is only
    limited.
    """
    known = METRICS.get(name)
    return known if known is not None else _row(own.get(name) or OwnMetric(name, unit=""))


def metric_of(verdict: Verdict) -> Metric:
    """The row of the metric that the verdict is about."""
    known = METRICS.get(verdict.metric)
    return known or _row(verdict.own or OwnMetric(verdict.metric, unit=""))


def rounded(value: float) -> float:
    """A recorded time to keep: to six significant digits, but never within the integer part.

    >>> rounded(0.000000412345678), rounded(12345678.9)
    (4.12346e-07, 12345679.0)
    """
    return value if isinstance(value, int) else round(value, max(0, 6 - _magnitude(value)))


def _magnitude(value: float) -> int:
    """Digits before the point; of a number below 0.1, minus the zeros after it."""
    return math.floor(math.log10(abs(value))) + 1 if value else 0


def _not_found(_: Events) -> MissingValue:
    return _missing(because(Why.NOT_RECORDED))


def _row(
    own: OwnMetric,
    needs: frozenset[Any] = frozenset(),
    extract: Callable[[Events], Value] = _not_found,
    help_: str = "",
) -> Metric:
    return Metric(
        own.name,
        own.unit,
        own.compare,
        needs,
        extract,
        help_,
        NEAR_TOLERANCE if own.compare == "near" else 0.0,
        compared=own.compare != "never",
        better=own.better,
        own=own,
    )


def _guarded(name: str, function: Callable[[Events], object]) -> Callable[[Events], Value]:
    """The function as an extractor: whatever goes wrong in it is a reason for having no value."""

    def extract(trace: Events) -> Value:
        try:
            value = function(trace)
            if value is None:
                return _missing(because(Why.METRIC_IS_NONE, name=name))
            return number_of(value, name)
        except SettingsError as error:
            return _missing(because(Why.ERROR, message=str(error)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            why = because(Why.METRIC_RAISED, name=name, error=error_line(error))
            return _missing(why)

    return extract


def _missing(reason: Reason) -> MissingValue:
    from pytest_torchprof.core.results import MissingValue

    return MissingValue(reason)
