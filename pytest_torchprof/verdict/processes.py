"""Numbers of a test with several processes: sums over them, and the largest of peaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import (
    Budget,
    MissingValue,
    Number,
    Profile,
    Value,
    named_rank,
)
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.verdict.bounds import bounded
from pytest_torchprof.verdict.counted_findings import findings_within, found_in
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own_limits import in_units
from pytest_torchprof.verdict.own_metrics import row_of
from pytest_torchprof.verdict.profile import (
    kernel_counts,
    operator_counts,
    profile_of,
    value_of_part,
    value_within_part,
    values_of,
)
from pytest_torchprof.verdict.scopes import DID_NOT_RUN

if TYPE_CHECKING:
    from pytest_torchprof.core.own_metrics import OwnMetric
    from pytest_torchprof.core.results import Finding
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.verdict.measured import Measured
    from pytest_torchprof.verdict.metric import Metric

#: The label of the test's own process, unless it is a rank itself.
MAIN = "main"

_Labelled = Sequence[tuple[str, Mapping[str, Value]]]


class Process(Frozen, frozen=True):
    """Another process of the test: its rank as text, or ``process N``, and what it ran."""

    label: str
    checked: Checked


def of_all(measured: Measured) -> tuple[Measured, Profile]:
    """A test with budgets on each rank, or with several processes: each rank's budgets, and its
    profile.
    """
    each = for_each_rank(measured.budgets, measured.processes, measured.rank)
    measured = replace(measured, budgets=tuple(each))
    profile = profile_of(measured)
    return measured, with_processes(measured, profile) if measured.processes else profile


def with_processes(measured: Measured, profile: Profile) -> Profile:
    """The profile of the test's own process, with what its other processes did."""
    others, allowed = measured.processes, measured.allowed
    values = [(one.label, values_of(one.checked, allowed)) for one in others]
    traces = [measured.trace, *(one.checked.trace for one in others)]
    found = counts_added(
        [profile.found, *(found_in(one.checked, measured.rules, allowed)[0] for one in others)]
    )
    scoped = dict(profile.scoped)
    functions = {metric.name: metric for metric in measured.own}
    for budget in in_units(measured.budgets, profile.own)[0]:
        metric = METRICS.get(budget.metric) or functions.get(budget.metric)
        if budget.rules:
            count = findings_within(
                budget, found, profile.unchecked, allowed=allowed, ignored=measured.ignored
            )
            scoped[budget.label] = bounded(METRICS["findings"], count, measured.trace)
        elif budget.scoped and metric is not None:
            scoped[budget.label] = _limited(measured, budget, metric, profile.metrics, values)
    return replace(
        profile,
        metrics=combined(profile.metrics, values, profile.own),
        operators=added(map(operator_counts, traces)),
        kernels=counts_added(map(kernel_counts, traces)),
        found=found,
        scoped=scoped,
        ranks={
            label: {name: value for name, value in own.items() if _is_of_process(name)}
            for label, own in ((measured.rank or MAIN, profile.metrics), *values)
        },
    )


def _is_of_process(name: str) -> bool:
    return name in METRICS and METRICS[name].of_region


def for_each_rank(
    budgets: Iterable[Budget], processes: Sequence[Process], rank: str | None
) -> Iterator[Budget]:
    """The budgets, those on each rank as one for each; of the whole test if it is one process.

    ``rank`` is that of the test's own process, if it has one. Without ranks, they are on each
    process that the test has started.
    """
    labels = [*([] if rank is None else [rank]), *(one.label for one in processes)]
    ranks = [label for label in labels if label.isdecimal()] or labels
    for budget in budgets:
        if not budget.each:
            yield budget
        elif ranks:
            yield from (replace(budget, each=False, rank=label) for label in ranks)
        else:
            yield replace(budget, each=False)


def _limited(
    measured: Measured,
    budget: Budget,
    metric: Metric,
    main: Mapping[str, Value],
    values: _Labelled,
) -> Value:
    """What a scoped budget limits: of one process, or of all."""
    others = measured.processes
    if budget.rank is not None and budget.rank == measured.rank:
        return main[metric.name] if budget.part is None else value_of_part(measured, budget, metric)
    if budget.rank is not None:
        at = next((n for n, one in enumerate(others) if one.label == budget.rank), None)
        if at is None:
            return MissingValue(because(Why.NO_SUCH_RANK_HERE, rank=budget.rank))
        if budget.part is None:
            return values[at][1].get(metric.name, _UNTOLD)
        return _in_process(measured, others[at], budget, metric)
    if budget.module is not None:
        return _UNTOLD
    value = value_of_part(measured, budget, metric)
    theirs = ((one.label, _in_process(measured, one, budget, metric)) for one in others)
    ran = [pair for pair in ((MAIN, value), *theirs) if not _did_not_run(pair[1])]
    return total(metric, ran) if ran else value


_UNTOLD = MissingValue(because(Why.NOT_BY_PROCESS))


def _in_process(measured: Measured, one: Process, budget: Budget, metric: Metric) -> Value:
    """The same, of another process, in which no modules are marked."""
    if budget.module is not None or metric.timed_by_region or metric.own is not None:
        return _UNTOLD
    return value_within_part(one.checked.trace, budget, metric, measured.could_run)


def _did_not_run(value: Value) -> bool:
    return isinstance(value, MissingValue) and value.reason.why in DID_NOT_RUN


def combined(
    main: Mapping[str, Value], others: _Labelled, own: Mapping[str, OwnMetric]
) -> dict[str, Value]:
    """The numbers of the whole test; ``others`` are those of its other processes, with labels.

    What only the test's own process has stays: its times, and its compilations.
    """
    found: dict[str, Value] = dict(main)
    for name, value in main.items():
        row = row_of(name, own)
        if not row.of_region:
            continue
        if row.own is not None:  # whether a function's values add up is not known
            found[name] = _UNTOLD
            continue
        theirs = ((label, values[name]) for label, values in others if name in values)
        found[name] = total(row, ((MAIN, value), *theirs))
    return found


def total(metric: Metric, values: Iterable[tuple[str, Value]]) -> Value:
    """The sum of a metric over processes, or the largest value; unknown if one is.

    What is known is then a lower bound, if more work can only increase the metric.
    """
    known: list[Number] = []
    gap: Reason | None = None
    for label, value in values:
        if not isinstance(value, MissingValue):
            known.append(value)
            continue
        if value.at_least and value.at_hand is not None:
            known.append(value.at_hand)
        if gap is None or label == MAIN:
            why = value.reason
            named = because(Why.OF_CHILD, process=named_rank(label), why=why)
            gap = why if label == MAIN else named
    whole = (max(known) if metric.largest else sum(known)) if known else None
    if gap is None:
        assert whole is not None  # noqa: S101 - each of them has a value
        return whole
    if not metric.adds_up or not whole:
        return MissingValue(gap)
    return MissingValue(gap, int(whole), at_least=True)


def merged_findings(by_process: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """The findings of all processes, those of one message and place as one."""
    found: dict[tuple[str, str, str | None, str | None], Finding] = {}
    for one in chain.from_iterable(by_process):
        key = one.rule, one.message, one.location, one.module
        if (known := found.get(key)) is None:
            found[key] = one
            continue
        found[key] = with_fields(
            known,
            count=known.count + one.count,
            cost_ms=_sum(known.cost_ms, one.cost_ms),
            bytes=_sum(known.bytes, one.bytes),
        )
    return tuple(found.values())


_N = TypeVar("_N", int, float)


def _sum(one: _N | None, other: _N | None) -> _N | None:
    return None if one is None or other is None else one + other


def counts_added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by name, added up.

    >>> counts_added([{"a": 1}, {"b": 2, "a": 3}])
    {'a': 4, 'b': 2}
    """
    found: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = found.get(name, 0) + count
    return dict(sorted(found.items()))


def added(rows: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Counts by operator and column, added up; of peaks the largest."""
    found: dict[str, dict[str, int]] = {}
    for one in rows:
        for name, counts in one.items():
            known = found.setdefault(name, {})
            for column, count in counts.items():
                before = known.get(column, 0)
                peak = column.startswith("peak_")
                known[column] = max(before, count) if peak else before + count
    return dict(sorted(found.items()))
