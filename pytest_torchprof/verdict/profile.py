"""What one test measured, from the traces of its runs."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from pytest_torchprof.analysis.operator_totals import kernel_totals, op_rows
from pytest_torchprof.analysis.work_elsewhere import frees_unseen
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue, Profile, Value
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import REGION_MARK
from pytest_torchprof.trace.regions import named_regions
from pytest_torchprof.verdict.bounds import bounded
from pytest_torchprof.verdict.counted_findings import findings_within, found_in
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all
from pytest_torchprof.verdict.own_limits import in_units, not_in_region, value_within
from pytest_torchprof.verdict.recorded import declared_in, samples_in, values_in
from pytest_torchprof.verdict.regions import RegionValues, time_within, view_of
from pytest_torchprof.verdict.scopes import did_not_run, is_unknown
from pytest_torchprof.verdict.timing import normalised_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_torchprof.core.results import Budget
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.measured import CouldRun, Measured
    from pytest_torchprof.verdict.metric import Metric

_COLUMNS = (
    "calls",
    "flops",
    "accumulations",
    "kernels",
    "allocated_cpu_bytes",
    "allocated_cuda_bytes",
    "peak_cpu_bytes",
    "peak_cuda_bytes",
    "leaked_cpu_bytes",
    "leaked_cuda_bytes",
)

#: Those that depend on when memory of the host is freed.
_OF_FREES = frozenset({"peak_cpu_bytes", "leaked_cpu_bytes"})

_counts_of = attrgetter(*_COLUMNS)

#: The name of a compiled frame ends in a number that depends on what was compiled before.
_REGION = "Torch-Compiled Region"
_COMPILED = late(rf"({_REGION}): \S+$")

_OF_DYNAMO = late(r"TorchDynamo Cache Lookup")


def shown_operator(name: str) -> str:
    """An operator's name as it is compared."""
    found = name.startswith(_REGION) and _COMPILED.match(name)
    return found[1] if found else name


def _with_modules(measured: Measured) -> Events | MissingValue:
    """The trace in which modules are marked, or why there is none."""
    # A module's forward may continue in another thread, which the run that marks modules misses.
    if measured.trace.facts.no_memory is not None:
        return MissingValue(because(Why.MODULES_OF_ONE_THREAD))
    if measured.modules is not None:
        profiled, marked = (_operators(trace) for trace in (measured.trace, measured.modules))
        if profiled == marked:
            return measured.modules
        return MissingValue(because(Why.MODULES_RUN_DIFFERS, marked=marked, profiled=profiled))
    return MissingValue(measured.modules_gap or because(Why.NO_MODULES_RUN))


def _operators(trace: Events) -> int:
    """The number of operators, without dynamo's cache lookups, which our marks cause to repeat."""
    found = trace.selection & trace.is_kind(Kind.OP)
    return int((found & ~trace.names_where(_OF_DYNAMO.match)).sum())


def values_of(
    checked: Checked, allowed: Collection[str], own: Iterable[Metric] = ()
) -> dict[str, Value]:
    """Every metric of the trace, the user's ``own``, too; findings without ``allowed`` rules'."""
    found = sum(n for rule, n in checked.total.items() if rule not in allowed)
    why = checked.unsettled
    # An unchecked rule may have more findings, so no limit is certain to hold.
    value = found if why is None else MissingValue(why, found or None)
    trace = checked.trace
    values = measure_all(trace, {"findings": bounded(METRICS["findings"], value, trace)})
    return values | {metric.name: measure(metric, trace) for metric in own}


def value_within_part(
    source: Events, budget: Budget, metric: Metric, could_run: CouldRun, *, unseen: bool = False
) -> Value:
    """The budget's metric within its scope; ``unseen``: more of it may have run without a mark."""
    assert budget.part is not None  # noqa: S101 - by callers
    how, what = budget.part
    if metric.timed_by_region:
        return time_within(source, metric, budget)
    view = source.within(**{how: what})
    if unseen:
        return _at_least(metric, view, because(Why.MODULE_RAN_UNSEEN, name=what))
    # A limit on something that did not run holds by mistake, unless it is 0, of a known name.
    counted = metric.own is None and (budget.limit == 0 or budget.least is not None)
    if not view.selection.any() and not counted:
        return MissingValue(did_not_run(source, how, what))
    if not view.selection.any() and budget.least is None:
        why = is_unknown(source, how, what, could_run)
        return measure(metric, view) if why is None else MissingValue(why)
    return measure(metric, view)


def _gap_of(budget: Budget, gaps: Mapping[str, Reason]) -> MissingValue | None:
    """Why a limit on a named region cannot be checked, if its numbers are unknown."""
    found = (gap for name, gap in gaps.items() if is_of_name(budget.region or "", name))
    gap = next(found, None)
    return None if gap is None or budget.region is None else MissingValue(gap)


def _at_least(metric: Metric, view: Events, why: Reason) -> MissingValue:
    """What is known to have run, of a metric that more work can only increase."""
    found = measure(metric, view) if metric.adds_up else None
    if isinstance(found, MissingValue):
        found = found.at_hand if found.at_least else None
    return MissingValue(why, int(found), at_least=True) if found else MissingValue(why)


def profile_of(measured: Measured) -> Profile:
    """Metrics, operators, kernels and scoped values of what was measured."""
    trace, allowed, recorded = measured.trace, measured.allowed, measured.recorded
    scoped: dict[str, Value] = {}
    found, unchecked = found_in(measured.checked, measured.rules, allowed)
    values = values_of(measured.checked, allowed, measured.own)
    asked = {rule.code for rule in measured.rules if rule.on_request}
    if measured.allowances or not asked.isdisjoint(allowed):
        from pytest_torchprof.verdict.allowances import without_allowed

        values, found, unchecked = without_allowed(measured, values, found, unchecked)
    functions = {metric.name: metric for metric in measured.own}
    own = {name: metric.own for name, metric in functions.items() if metric.own is not None}
    own |= declared_in(recorded)
    regions = {
        name: _region(measured, name, laps)
        for name, laps in {
            **dict.fromkeys(name for name in recorded if name is not None),
            **dict.fromkeys(measured.region_gaps, 0),
            **named_regions(trace),
        }.items()
    }
    for budget in in_units(measured.budgets, own)[0]:
        if not budget.scoped:
            continue
        if budget.rules:
            count = findings_within(
                budget, found, unchecked, allowed=allowed, ignored=measured.ignored
            )
            scoped[budget.label] = bounded(METRICS["findings"], count, trace)
            continue
        metric = METRICS.get(budget.metric) or functions.get(budget.metric)
        if metric is None:
            value = value_within(budget, regions)
            scoped[budget.label] = (
                MissingValue(not_in_region(budget, regions, own)) if value is None else value
            )
            continue
        if budget.rank is not None:  # of a test that starts no processes
            scoped[budget.label] = MissingValue(because(Why.NO_SUCH_RANK_HERE, rank=budget.rank))
            continue
        scoped[budget.label] = value_of_part(measured, budget, metric)
    return Profile(
        metrics=values | values_in(recorded.get(None, {})),
        operators=operator_counts(trace),
        kernels=kernel_counts(trace),
        found=found,
        unchecked=unchecked,
        gated=_gated(measured),
        scoped=scoped,
        samples=samples_of(trace) | samples_in(recorded.get(None, {})),
        normalised=normalised_of(trace, recorded.get(None, {})),
        regions=regions,
        own=own,
    )


def _gated(measured: Measured) -> dict[str, str]:
    """The metric that is compared in place of each rule that is not; empty for advice."""
    return {
        rule.code: rule.gated_by or ""
        for rule in measured.rules
        if rule.gated_by is not None or rule.timed
    }


def value_of_part(measured: Measured, budget: Budget, metric: Metric) -> Value:
    """What a budget on a part limits, in the test's own process."""
    source = measured.trace if budget.module is None else _with_modules(measured)
    if isinstance(source, MissingValue):
        return source
    module = budget.module
    unseen = module is not None and any(
        is_of_name(module, name) for name in measured.unseen_modules
    )
    gap = _gap_of(budget, measured.region_gaps)
    return gap or value_within_part(source, budget, metric, measured.could_run, unseen=unseen)


def _region(measured: Measured, name: str, laps: int | None) -> Profile:
    """The profile of a region, as far as a part of a test has one."""
    gap = measured.region_gaps.get(name)
    view, checked = view_of(measured.trace, name), measured.checked
    recorded = measured.recorded.get(name, {})
    values = RegionValues(
        checked, measured.allowed, name, gap=gap, own=measured.own, recorded=recorded
    )
    own = {one.name: one.own for one in measured.own if one.own is not None}
    own |= declared_in({name: recorded})
    if gap is not None or not laps:
        samples = samples_in(recorded)
        return Profile(metrics=dict(values), laps=laps or 0, samples=samples, own=own)
    found, _ = found_in(checked, measured.rules, measured.allowed)
    return Profile(
        metrics=dict(values),
        operators=operator_counts(view),
        kernels=kernel_counts(view),
        found={rule: values.counts.get(rule, 0) for rule in found},
        gated=_gated(measured),
        samples=samples_in(recorded),
        laps=laps,
        own=own,
    )


def operator_counts(trace: Events) -> dict[str, dict[str, int]]:
    """What is compared of each operator and annotation, without the marks of regions."""
    rows: dict[str, dict[str, int]] = {}
    unseen = _OF_FREES if trace.whole.once(frees_unseen) else frozenset()
    for name, row in sorted(op_rows(trace, timed=False).items()):
        if name.startswith(REGION_MARK):
            continue
        pairs = zip(_COLUMNS, _counts_of(row), strict=True)
        counts = {column: count for column, count in pairs if count and column not in unseen}
        known = rows.setdefault(shown_operator(name), counts)
        if known is not counts:
            for column, count in counts.items():
                known[column] = known.get(column, 0) + count
    if trace.facts.asked:
        from pytest_torchprof.verdict.estimates import add_to_operators

        add_to_operators(rows, trace)
    return rows


def kernel_counts(trace: Events) -> dict[str, int]:
    """How often each kernel ran."""
    return {name: calls for name, (calls, _) in sorted(kernel_totals(trace).items())}


def stored_numbers(values: Mapping[str, Value]) -> dict[str, int | float]:
    """Those values of metrics of the table that a baseline keeps and that were measured."""
    return {
        name: value
        for name, value in values.items()
        if METRICS[name].stored and isinstance(value, int | float)
    }


def stored_operators(operators: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Those columns of operators that a baseline keeps: without the blocks at one moment."""
    return {
        name: {column: value for column, value in row.items() if column != "estimated_bytes"}
        for name, row in operators.items()
    }
