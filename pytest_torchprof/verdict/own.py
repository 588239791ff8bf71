"""Metrics of users' own, limits on them, and the parts of a trace that limits name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.core.errors import SettingsError, error_line
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.units import converted
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import (
    Budget,
    MissingValue,
    Number,
    OwnMetric,
    Profile,
    Value,
    Verdict,
    declared,
    number_of,
)
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    MODULE,
    MODULE_MARK,
    REGION,
    Kind,
    region_name,
)
from pytest_torchprof.verdict.metrics import METRICS, Metric

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Baseline, Better, Compare
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.profile import CouldRun


# ---- Metrics of users' own: their rows beside the metric table, and how a function becomes one.

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
    return _missing(because(*Why.NOT_RECORDED))


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
                return _missing(
                    because(
                        "metric_is_none",
                        "the function of the metric {name} found no value",
                        name=name,
                    )
                )
            return number_of(value, name)
        except SettingsError as error:
            return _missing(because(*Why.ERROR, message=str(error)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            why = because(
                "metric_raised",
                "the function of the metric {name} raised {error}",
                name=name,
                error=error_line(error),
            )
            return _missing(why)

    return extract


def _missing(reason: Reason) -> MissingValue:
    from pytest_torchprof.core.values import MissingValue

    return MissingValue(reason)


# ---- Parts of a trace that limits name: what of such a kind ran, for those that match nothing.

#: How a scope is called in a sentence.
_WORDS = {"op": "operator", "kernel": "kernel", "module": "module", "region": "region"}
_MOST_SHOWN = 3
#: Why a part of a test has no number: nothing of its name ran.
DID_NOT_RUN = frozenset(
    one.code for one in (Why.SCOPE_DID_NOT_RUN, Why.SCOPE_DID_NOT_RUN_NEAR, Why.SCOPE_UNKNOWN)
)


def did_not_run(trace: Events, how: str, what: str) -> Reason:
    """Why there is no number for a scope: nothing of this name or glob ran.

    Names that did run and are spelled alike are part of it.
    """
    near = _near(what, frozenset(_ran(trace, how)))
    if near:
        return because(*Why.SCOPE_DID_NOT_RUN_NEAR, scope=_WORDS[how], name=what, near=near)
    return because(*Why.SCOPE_DID_NOT_RUN, scope=_WORDS[how], name=what)


def is_unknown(trace: Events, how: str, what: str, could_run: CouldRun) -> Reason | None:
    """Why nothing of this name or glob could run; None if something could, or nobody knows.

    Nobody can list the names of kernels.
    """
    if how == "kernel":
        return None
    ran, known = frozenset(_ran(trace, how)), could_run()
    names = known.get(how, frozenset())
    if not known or _has(what, ran) or _has(what, names):
        return None
    near = _near(what, frozenset((*_near(what, ran), *_near(what, names)))) or ("none",)
    return because(*Why.SCOPE_UNKNOWN, scope=_WORDS[how], name=what, near=near)


@lru_cache(maxsize=64)
def _has(what: str, names: frozenset[str]) -> bool:
    return what in names or any(is_of_name(what, name) for name in names)


@lru_cache(maxsize=64)
def _near(what: str, names: frozenset[str]) -> tuple[str, ...]:
    """Up to three names that are spelled alike, sorted."""
    import difflib

    return tuple(sorted(difflib.get_close_matches(what, sorted(names), _MOST_SHOWN)))


def _ran(trace: Events, how: str) -> list[str]:
    """The distinct names of this kind in the measured region."""
    kinds = {"op": (Kind.OP,), "kernel": DEVICE_KINDS, "region": (Kind.ANNOTATION,)}
    rows = trace.is_kind(*kinds.get(how, (Kind.ANNOTATION, Kind.PYTHON))) & trace.in_region
    names = [trace.names[number] for number in dict.fromkeys(trace.name[rows].tolist())]
    if how == "module":
        return sorted(set(_classes(names)))
    if how == "region":
        return [region_name(name) for name in names if name != REGION]
    return names


def _classes(names: list[str]) -> Iterator[str]:
    for name in names:
        if name.startswith(MODULE_MARK):
            yield name.removeprefix(MODULE_MARK)
        elif (found := MODULE.match(name)) is not None:
            yield found[1]


# ---- Limits on metrics of users' own, of which only a run tells the unit, and whether there is
# one.

#: What a baseline keeps beside its times.
_BESIDE_TIMES = frozenset({"machine", "normalised"})


def in_units(
    budgets: Iterable[Budget], own: Mapping[str, OwnMetric]
) -> tuple[list[Budget], list[Verdict]]:
    """The budgets with limits in their metrics' units; for those in another unit, a verdict.

    Of several of one metric and scope, which stood in different units, the tightest limits.
    """
    fitting: dict[tuple[str, str, str | None], Budget] = {}
    refused: list[Verdict] = []
    for budget in budgets:
        unit = own[budget.metric].unit if budget.metric in own else budget.unit
        within = _converted(budget, unit)
        if within is None:
            why = because(
                "limit_in_other_unit",
                "the limit is in {limit}, and the metric in {unit}",
                limit=budget.unit,
                unit=unit,
            )
            refused.append(_not_checked(budget, why))
            continue
        key = within.label, unit, within.on
        fitting[key] = fitting[key].tightened(within) if key in fitting else within
    return list(fitting.values()), refused


def _converted(budget: Budget, unit: str) -> Budget | None:
    """The budget with its limits in this unit; None if they measure something else."""
    if budget.unit in ("", unit):
        return replace(budget, unit=unit)
    given = {"limit": budget.limit, "least": budget.least}
    limits = {
        name: converted(value, budget.unit, unit)
        for name, value in given.items()
        if value is not None
    }
    return None if None in limits.values() else replace(budget, unit=unit, **limits)


def without_value(
    profile: Profile, baseline: Baseline | None, limits: Mapping[str, Budget]
) -> Iterator[Verdict]:
    """A verdict for each metric that has a limit or was accepted, and that this run lacks."""
    accepted = {} if baseline is None else {**baseline.own, **_own_times(baseline)}
    for name, budget in limits.items():
        if name in profile.metrics:
            continue
        if not budget.source:  # a limit of the project is for the tests that have the metric
            yield replace(_not_checked(budget, nowhere(name, profile)), baseline=accepted.get(name))
    for name, value in accepted.items():
        if name not in profile.metrics and name not in limits:
            missing = MissingValue(because(*Why.NOT_RECORDED))
            yield Verdict(name, missing, "not_measured", value, reason=missing.reason)


def _own_times(baseline: Baseline) -> dict[str, Number]:
    """The accepted times of metrics that are not of the table."""
    return {
        name: value
        for name, value in baseline.times.items()
        if name not in METRICS and name not in _BESIDE_TIMES
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def of_lost_regions(
    profile: Profile, baseline: Baseline | None
) -> Iterator[tuple[str, list[Verdict]]]:
    """By region that the test no longer enters, a verdict for each value that was recorded there.

    Only for those: what ran there is part of the test's own numbers.
    """
    for name, before in ({} if baseline is None else baseline.regions).items():
        if name not in profile.regions:
            found = with_own(without_value(Profile({}), before, {}), {})
            yield name, [replace(verdict, region=name) for verdict in found]


def nowhere(name: str, profile: Profile) -> Reason:
    """Why the whole test has no value of a metric: it has another name, or is one of regions."""
    regions = tuple(sorted(r for r, one in profile.regions.items() if name in one.metrics))
    if regions:
        return because(
            "only_in_regions",
            "{name} is recorded in regions only (region={regions: or })",
            name=name,
            regions=regions,
        )
    return no_such_metric(name, [*profile.own, *METRICS])


def no_such_metric(name: str, known: Collection[str]) -> Reason:
    """Why there is no metric of this name, with names that are spelled alike."""
    import difflib

    near = tuple(sorted(difflib.get_close_matches(name, known, _MOST_SHOWN)))
    if near:
        return because(*Why.NO_SUCH_METRIC_NEAR, name=name, near=near)
    return because(*Why.NO_SUCH_METRIC, name=name)


def value_within(budget: Budget, regions: Mapping[str, Profile]) -> Value | None:
    """The recorded value in the regions that the budget names; None if there is none.

    Of several, the one that decides: the highest for an upper limit, the lowest for a lower one.
    """
    pattern = budget.region or ""
    found: list[Value] = [
        one.metrics[budget.metric]
        for name, one in regions.items()
        if is_of_name(pattern, name) and budget.metric in one.metrics
    ]
    missing = [value for value in found if isinstance(value, MissingValue)]
    numbers: list[Number] = [value for value in found if not isinstance(value, MissingValue)]
    if missing or not numbers:
        return missing[0] if missing else None
    highest = max(numbers)
    over = budget.limit is not None and (highest > budget.limit or budget.least is None)
    return highest if over else min(numbers)


def not_in_region(budget: Budget, regions: Mapping[str, Profile], own: Collection[str]) -> Reason:
    """Why a recorded metric has no value in the regions that the budget names."""
    named = [name for name in regions if is_of_name(budget.region or "", name)]
    if budget.metric not in own:
        return no_such_metric(budget.metric, [*own, *METRICS])
    if named:
        return because(*Why.NOT_RECORDED_IN, name=budget.metric, region=budget.region or "")
    wanted = budget.region or ""
    import difflib

    near = tuple(sorted(difflib.get_close_matches(wanted, regions, _MOST_SHOWN)))
    if near:
        return because(*Why.SCOPE_DID_NOT_RUN_NEAR, scope="region", name=wanted, near=near)
    return because(*Why.SCOPE_DID_NOT_RUN, scope="region", name=wanted)


def _not_checked(budget: Budget, why: Reason) -> Verdict:
    return Verdict(
        budget.metric,
        MissingValue(why),
        "not_measured",
        limit=budget.limit,
        least=budget.least,
        reason=why,
        scope=budget if budget.scoped else None,
        source=budget.source,
    )


def with_own(verdicts: Iterable[Verdict], own: Mapping[str, OwnMetric]) -> list[Verdict]:
    """The verdicts, those on users' own metrics with what is declared of them."""
    return [
        v
        if v.metric in METRICS
        else replace(v, own=own.get(v.metric) or OwnMetric(v.metric, unit=""))
        for v in verdicts
    ]
