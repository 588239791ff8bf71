"""The profile of one test: what its runs measured, by region and process, with times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.missing import frees_unseen
from pytest_torchprof.analysis.operators import kernel_totals, op_rows
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen, cached
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import (
    NORMALISED,
    Budget,
    MissingValue,
    Normalised,
    Number,
    Profile,
    Value,
    is_positive,
    named_rank,
)
from pytest_torchprof.trace.names import REGION_MARK, Kind, laps_of, named_regions, region_mark
from pytest_torchprof.verdict.findings import findings_within, found_in
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all
from pytest_torchprof.verdict.own import (
    DID_NOT_RUN,
    did_not_run,
    in_units,
    is_unknown,
    not_in_region,
    row_of,
    value_within,
)
from pytest_torchprof.verdict.values import add_to_operators, bounded

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_torchprof.core.values import Finding, OwnMetric, Sample
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.rules.check import Checked
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Facts, Quantity
    from pytest_torchprof.verdict.findings import Allowance
    from pytest_torchprof.verdict.metrics import Metric


# ---- What a test's named regions measured: each has a profile like the whole test's.

_NOT_TIMED = because("region_not_timed", "measured for whole tests only")
_OF_TEST = because(*Why.ONLY_OF_TEST)
_NOT_OF_LAPS = because("not_recorded_by_lap", "what a test records in a region is of all its laps")
#: The order of a lap's times in `RegionTimes.laps`.
_LAP_FIELDS = ("wall_ms", "cpu_ms")


def view_of(trace: Events, name: str, lap: int | None = None) -> Events:
    """The trace, counting only what ran in this region of the test, or in one lap of it."""
    return trace.once(_view, name, lap)


def _view(trace: Events, name: str, lap: int | None) -> Events:
    region = region_mark(name)
    return trace.within(region=region) if lap is None else trace.lap(region, lap)


def region_time(trace: Events, metric: Metric, name: str, lap: int | None = None) -> Value:
    """A metric of the timed rounds in a named region or a lap of it: medians over the rounds."""
    if not metric.timed_by_region:
        return MissingValue(_NOT_TIMED)
    whole: Quantity | None = getattr(trace.facts, metric.name)
    if whole is None or whole.median is None:
        return MissingValue((whole and whole.reason) or because(*Why.ONLY_LIVE))
    times = (trace.facts.regions or {}).get(name)
    noted: Quantity | None = getattr(times, metric.name, None)
    if noted is not None and noted.reason is not None:
        return MissingValue(noted.reason)
    if times is None or noted is None or times.count != named_regions(trace).get(name):
        return MissingValue(because(*Why.LAPS_DIFFER, name=name))
    if noted.median is None:
        return MissingValue(because(*Why.ONLY_LIVE))
    if lap is None:
        return noted.median
    if lap >= len(times.laps):
        return MissingValue(
            because(
                "laps_not_timed",
                "of region {name}, the first 1,000 laps are timed one by one",
                name=name,
            )
        )
    return times.laps[lap][_LAP_FIELDS.index(metric.name)]


def time_within(trace: Events, metric: Metric, budget: Budget) -> Value:
    """The time of the named regions of the budget's name or glob, added up."""
    what = budget.region or ""
    names = [name for name in named_regions(trace) if is_of_name(what, name)]
    if not names and trace.within(region=what).selection.any():
        return MissingValue(
            because(
                "label_not_timed",
                ("{name} is a record_function label, and only regions named by the test are timed"),
                name=what,
            )
        )
    if not names:
        return MissingValue(did_not_run(trace, "region", what))
    total = 0.0
    for name in names:
        value = region_time(trace, metric, name)
        if isinstance(value, MissingValue):
            return value
        total += value
    laps = np.concatenate([laps_of(trace, region_mark(name)) for name in names])
    laps = laps[np.argsort(trace.ts[laps], kind="stable")]
    if (trace.ts[laps[1:]] < (trace.ts[laps] + trace.dur[laps])[:-1]).any():
        return MissingValue(
            because(
                "times_overlap",
                "regions {names:, } overlap, so their times do not add up; name one of them",
                names=tuple(sorted(names)),
            )
        )
    return total


class RegionValues(Mapping[str, "Value"]):
    """Every metric within a region: the sum over its laps, or the largest; or those of one lap.

    ``gap``: why they are unknown. ``own`` are the user's own functions of a trace, and ``recorded``
    is what the test records there.
    """

    def __init__(
        self,
        checked: Checked,
        allowed: Collection[str],
        name: str,
        lap: int | None = None,
        gap: Reason | None = None,
        own: Iterable[Metric] = (),
        recorded: Mapping[str, Recorded] | None = None,
    ) -> None:
        self._checked, self._allowed = checked, allowed
        self._name, self._lap = name, lap
        laps = named_regions(checked.trace).get(name, 0)
        if gap is None and not laps:
            gap = because(*Why.SCOPE_DID_NOT_RUN, scope="region", name=name)
        self._gap, self._laps = gap, laps
        self._recorded = recorded or {}
        self._rows = {**METRICS, **{one.name: one for one in own}}

    def __iter__(self) -> Iterator[str]:
        asked = self._checked.trace.facts.asked or ()
        rows = (name for name, row in self._rows.items() if not row.on_request or name in asked)
        return chain(rows, self._recorded)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Value:
        """The metric's value, or why there is none."""
        if name in self._recorded:
            whole = self._lap is None
            return self._recorded[name].value if whole else MissingValue(_NOT_OF_LAPS)
        metric = self._rows[name]
        if self._gap is not None:
            return MissingValue(self._gap)
        if "rounds" in metric.needs:
            return region_time(self._checked.trace, metric, self._name, self._lap)
        if metric.depends_on_order:
            return MissingValue(_OF_TEST)
        if name == "findings":
            return self._findings()
        if not metric.largest or self._lap is not None or self._laps == 1:
            return measure(metric, self._view(self._lap))
        values: list[float] = []
        for lap in range(self._laps):
            value = measure(metric, self._view(lap))
            if isinstance(value, MissingValue):
                return value
            values.append(value)
        return max(values)

    def _view(self, lap: int | None) -> Events:
        return view_of(self._checked.trace, self._name, lap)

    @cached
    def counts(self) -> Mapping[str, int]:
        """Findings by rule."""
        return self._checked.of_part(self._view(self._lap)).counts

    def _findings(self) -> Value:
        if self._checked.unsettled is not None:
            return MissingValue(self._checked.unsettled)
        total = self._checked.of_part(self._view(self._lap)).total
        return sum(count for rule, count in total.items() if rule not in self._allowed)


# ---- Results of a test's timed rounds: samples, and times as multiples of the reference
# kernel's.
#
# Pure: everything is in the facts that a live capture leaves in its trace.

_OF_ROUNDS: Final = tuple(name for name, one in METRICS.items() if "rounds" in one.needs)


def samples_of(trace: Events) -> dict[str, Sample]:
    """The samples of all metrics measured in rounds."""
    return _samples(trace.facts)


def _samples(facts: Facts) -> dict[str, Sample]:
    noted: dict[str, Quantity | None] = {name: getattr(facts, name) for name in _OF_ROUNDS}
    return {name: s for name, one in noted.items() if one is not None and (s := one.sample)}


def normalised_of(
    facts: Facts, recorded: Mapping[str, Recorded] | None = None
) -> Normalised | None:
    """The normalized times of the rounds, and those that the test has recorded.

    None if the reference kernel did not run.
    """
    reference, samples = facts.reference, _samples(facts)
    if reference is None or "wall_ms" not in samples:
        return None
    values = {
        name: samples[name].minimum / each
        for name in NORMALISED
        if name in samples and is_positive(each := getattr(reference, name))
    }
    found = Normalised.read(
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
    more, others = reference.more or 0, reference.others or 0.0
    each = reference.cpu_ms
    if found is None or each is None or not is_positive(each):
        return found
    thread, alone = (
        None if ms is None else ms / each for ms in (reference.thread_ms, reference.one_thread_ms)
    )
    return replace(found, others=others, thread=thread, one_thread=alone, more=more, kernel_ms=each)


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


# ---- Values that a test records itself, of the whole test and of its named regions.


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


# ---- What one test measured, from the traces of its runs.

_COLUMNS = (
    "calls",
    "ops",
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
        return MissingValue(
            because(
                "modules_of_one_thread",
                "the test works in several threads, and which modules run is known of one",
            )
        )
    if measured.modules is not None:
        profiled, marked = (_operators(trace) for trace in (measured.trace, measured.modules))
        if profiled == marked:
            return measured.modules
        return MissingValue(
            because(
                "modules_run_differs",
                (
                    "the run in which modules are marked had {marked:,} operators, the "
                    "profiled one {profiled:,}; if an earlier run keeps a result, make it anew "
                    "in each"
                ),
                marked=marked,
                profiled=profiled,
            )
        )
    return MissingValue(
        measured.modules_gap
        or because("no_modules_run", "the test failed before the run in which modules are marked")
    )


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
        return _at_least(
            metric,
            view,
            because(
                "module_ran_unseen",
                (
                    "module {name} may have run inside a scripted or compiled one, whose parts "
                    "are not told apart"
                ),
                name=what,
            ),
        )
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
        from pytest_torchprof.verdict.findings import without_allowed

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
            scoped[budget.label] = MissingValue(because(*Why.NO_SUCH_RANK_HERE, rank=budget.rank))
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
        normalised=normalised_of(trace.facts, recorded.get(None, {})),
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


# ---- Numbers of a test with several processes: sums over them, and the largest of peaks.

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
            return MissingValue(because(*Why.NO_SUCH_RANK_HERE, rank=budget.rank))
        if budget.part is None:
            return values[at][1].get(metric.name, _UNTOLD)
        return _in_process(measured, others[at], budget, metric)
    if budget.module is not None:
        return _UNTOLD
    value = value_of_part(measured, budget, metric)
    theirs = ((one.label, _in_process(measured, one, budget, metric)) for one in others)
    ran = [pair for pair in ((MAIN, value), *theirs) if not _did_not_run(pair[1])]
    return total(metric, ran) if ran else value


_UNTOLD = MissingValue(because(*Why.NOT_BY_PROCESS))


def _in_process(measured: Measured, one: Process, budget: Budget, metric: Metric) -> Value:
    """The same, of another process, in which no modules are marked."""
    if budget.module is not None or metric.timed_by_region or metric.own is not None:
        return _UNTOLD
    return value_within_part(one.checked.trace, budget, metric, measured.could_run)


def _did_not_run(value: Value) -> bool:
    return isinstance(value, MissingValue) and value.reason.code in DID_NOT_RUN


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
            named = because(*Why.OF_CHILD, process=named_rank(label), why=why)
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


# ---- The result of all runs of one test, which is all that judging needs.

#: Asks, by kind of scope, for all names that could run in this process.
CouldRun: TypeAlias = Callable[[], Mapping[str, frozenset[str]]]


class Measured(Frozen, frozen=True):
    """A test that was measured.

    ``checked`` is its trace and what the rules found. ``modules`` is a trace in which modules are
    marked, or ``modules_gap`` says why there is none; ``unseen_modules`` are classes of modules
    that may have run in it unmarked. ``located`` maps events to lines, and ``lines_gap`` says why
    lines are missing or incomplete. ``environment``, ``host`` and ``cpu_capability`` are the
    machine's, and ``busy`` says what else it did. ``unmeasured`` are metrics that the test itself
    compares but that were not measured, and ``region_gaps`` why numbers of named regions are
    unknown; ``mismatch`` is a failed inline expectation, metric →
    expected text. ``pairs_gap`` says why callables that the test compares were not compared.
    ``allowances`` are findings that markers allow in one place.
    ``own`` are metrics of functions that users have defined, and ``recorded`` are values that the
    test itself records. ``reseeded`` and ``recorded_reseeded`` are of a run with another seed.
    ``seed`` is that of the profiled run, of a test that uses random generators, and ``draws`` says
    whether the numbers that it draws depend on it. ``could_run`` is asked about unknown names.
    ``processes`` are those that it has beside its own, and ``rank`` is that of its own, if it is
    one of a job. ``located_processes`` maps events of those others to lines.
    """

    checked: Checked
    environment: str
    host: str
    cpu_capability: str = ""
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = ()
    allowed: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    modules: Events | None = None
    modules_gap: Reason | None = None
    unseen_modules: frozenset[str] = frozenset()
    located: Placing | None = None
    lines_gap: Reason | None = None
    busy: tuple[Reason, ...] = ()
    mismatch: Mapping[str, str] | None = None
    unmeasured: tuple[str, ...] = ()
    region_gaps: Mapping[str, Reason] = {}
    pairs_gap: Reason | None = None
    own: tuple[Metric, ...] = ()
    processes: tuple[Process, ...] = ()
    rank: str | None = None
    located_processes: Mapping[str, Placing] = {}
    allowances: tuple[Allowance, ...] = ()
    recorded: Recordings = msgspec.field(default_factory=dict)
    reseeded: Checked | None = None
    recorded_reseeded: Recordings = msgspec.field(default_factory=dict)
    seed: int | None = None
    draws: bool = False
    could_run: CouldRun = dict

    @property
    def trace(self) -> Events:
        """The trace of the profiled run."""
        return self.checked.trace


class Unmeasured(Frozen, frozen=True):
    """A test that was not measured, and why; ``stats_asked``: it compares numbers anyway."""

    reason: Reason
    environment: str
    budgets: tuple[Budget, ...] = ()
    stats_asked: bool = False
