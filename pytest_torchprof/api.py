"""Stored traces from Python: load one, ask it for tables, compare two.

>>> import pytest_torchprof
>>> sorted({"Trace", "diff"} - set(pytest_torchprof.__all__))
[]

In a notebook, ``Trace.load("trace.json.gz").kernels()`` shows a table, and
``pandas.DataFrame(trace.ops().to_dicts())`` is a data frame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pytest_torchprof.analysis import operators
from pytest_torchprof.analysis.breakdown import BreakdownRow, breakdown
from pytest_torchprof.analysis.communication import CollectiveRow, collective_rows
from pytest_torchprof.analysis.kernels import (
    KernelRow,
    kernel_rows,
    parse_grouping,
    unlinked_events,
)
from pytest_torchprof.analysis.memory import PeakMemory, memory_peaks
from pytest_torchprof.analysis.operators import TREES, OpStats, TreeBy, TreeRow, tree_rows
from pytest_torchprof.analysis.uncounted import flops_gap
from pytest_torchprof.core.values import ALL_STEPS, Finding, Number, StepRange
from pytest_torchprof.places import idle_rows as idle
from pytest_torchprof.places.idle_rows import IdleRow
from pytest_torchprof.render.findings import Linted
from pytest_torchprof.render.kernel_names import short_kernels
from pytest_torchprof.render.notes import (
    MetricRow,
    NotMeasured,
    metric_rows,
    shown_value,
)
from pytest_torchprof.render.table import Rows, fields_of, kernel_columns, kernel_fields
from pytest_torchprof.trace import ranks
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.trace.steps import at_steps, chosen_steps, known_steps, step_name_of
from pytest_torchprof.verdict.metrics import measure_all
from pytest_torchprof.verdict.parts import StepRow, StepStatistics, step_table
from pytest_torchprof.verdict.profile import samples_of
from pytest_torchprof.work.devices import Peaks, as_chip, as_chips

if TYPE_CHECKING:
    from pytest_torchprof.analysis.diff import DiffBy, DiffRow
    from pytest_torchprof.analysis.estimates import BoundRow
    from pytest_torchprof.analysis.memory import DeviceMemory, LeakRow, MemoryPoint
    from pytest_torchprof.core.values import Sample
    from pytest_torchprof.render.export import Augmented
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.parts import RankTable
    from pytest_torchprof.work.devices import Device


class Trace:
    """A stored trace: what ran, how long, and how close to the chip's peak.

    ``events`` is the columnar trace below it, ``warnings`` what was wrong with the file.
    """

    def __init__(self, events: Events, path: Path) -> None:
        self.events = events
        self.path = path

    def __repr__(self) -> str:
        return f"<Trace {str(self.path)!r} of {len(self.events):,} events>"

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a ``.json`` or ``.json.gz`` file of torch.profiler; the content decides which.

        Raises:
            TraceError: unreadable, or not a Chrome trace.
        """
        return cls(read_trace(Path(path)), Path(path))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was wrong with the file, such as a missing end."""
        return self.events.warnings

    def metrics(self) -> dict[str, Number | NotMeasured]:
        """Every metric of the plugin by name: a number in its unit, or `NotMeasured`."""
        values = self.events.once(measure_all)
        return {name: shown_value(value) for name, value in values.items()}

    def samples(self) -> dict[str, Sample]:
        """The spread of the metrics that were measured in timed rounds."""
        return self.events.once(samples_of) if self.events.scope is None else {}

    def summary(self) -> Rows[MetricRow]:
        """The same as a table."""
        return metric_rows(self.events.once(measure_all))

    def breakdown(self) -> Rows[BreakdownRow]:
        """Where each device's time goes, from its first event to the end of its last: categories of
        kernels, copies, and idle time, which add up to all of it; the most first.

        In a trace without device events: the self time of operators on the CPU, by category.
        """

        def order(row: BreakdownRow) -> tuple[int, float]:
            return -1 if row.device is None else row.device, -(row.time_ms or 0)

        return Rows(sorted(breakdown(self.events), key=order), fields_of(BreakdownRow))

    def idle(self, by: idle.By = "place") -> Rows[IdleRow]:
        """What the host did while each device was idle, the most first.

        Empty if the trace has only a part of the device's work.

        ``by``: ``place``, for a row for each cause and place, or ``cause``.

        Raises:
            ValueError: another ``by``.
        """
        _check("by", by, get_args(idle.By))
        return Rows(idle.idle_rows(self.events, by), fields_of(IdleRow))

    def ops(self, by: operators.By = "name") -> Rows[OpStats]:
        """Key averages of operators, annotations and runtime calls, largest share first.

        ``by``: ``name``, ``shape`` (of the inputs), ``stack`` or ``module``; these two need a trace
        with stacks.

        Raises:
            ValueError: another ``by``.
        """
        _check("by", by, operators.GROUPINGS)
        optional = set(operators.FIELD_OF.values()) - {operators.FIELD_OF.get(by)}
        fields = [field for field in fields_of(OpStats) if field not in optional]
        return Rows(self.events.once(operators.op_stats, by), fields, self._unknown)

    def tree(self, by: TreeBy = "module", depth: int | None = None) -> Rows[TreeRow]:
        """Modules as a tree, with own numbers and those of the subtree; layers of a kind are one.

        ``by``: ``module``, or ``stack`` for Python functions; a trace without stacks has a tree of
        its annotations. ``depth``: at most so many levels; what is deeper counts for them.

        Raises:
            ValueError: another ``by``, or a ``depth`` below 1.
        """
        _check("by", by, TREES)
        if depth is not None and depth < 1:
            raise ValueError(f"depth must be 1 or more, not {depth!r}")
        return Rows(tree_rows(self.events, by, depth), fields_of(TreeRow), self._unknown)

    def kernels(self, by: str = "name", peaks: Peaks = ()) -> Rows[KernelRow]:
        """Kernels, copies and memsets by device: time, FLOP/s and GB/s against the chip's peak.

        ``by``: ``name`` of the kernel, ``op`` that launched it, or several of ``op``, ``kernel``
        (the same as ``name``) and ``shape``, as in ``"op,kernel,shape"``: those rows have the
        roofline, what reaching 70 % of it would save, and how the kernels were launched.
        ``peaks``: a file that describes chips, or chips.

        Raises:
            SettingsError: the file does not describe a chip.
            ValueError: another ``by``.
        """
        try:
            words = parse_grouping(by)
        except ValueError as error:
            raise ValueError(f"by {error}") from None
        rows = [
            dataclasses.replace(row, kernel_short=short_kernels(row.kernel))
            for row in kernel_rows(self.events, by=by, extra=as_chips(peaks))
        ]
        unknown = [*self._unknown, *["bytes"] * any(row.bytes is None for row in rows)]
        return Rows(rows, kernel_fields(words), unknown, kernel_columns(words))

    @property
    def _unknown(self) -> tuple[str, ...]:
        """``flops``, if those of some operator are unknown."""
        return () if flops_gap(self.events) is None else ("flops",)

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The accelerators that the trace lists: Kineto's ``deviceProperties``."""
        properties = self.events.metadata.get("deviceProperties")
        listed = properties if isinstance(properties, list) else []
        return [entry for entry in listed if isinstance(entry, dict)]

    @property
    def unlinked(self) -> int:
        """Device events without a runtime call in the trace."""
        return unlinked_events(self.events)

    def estimates(self, device: str | Device | None = None) -> dict[str, Number | NotMeasured]:
        """What a device would at least have to do for the operators, wherever these ran.

        ``host_reads``, ``launches``, ``bound_ms`` and ``estimated_cuda_bytes`` by name: a number in
        its unit, or `NotMeasured`. ``device``: the chip of ``bound_ms``, by name or as a `Device`;
        by default, the one that the test session estimated for.

        Raises:
            SettingsError: no chip of the table has this name.
        """
        from pytest_torchprof.verdict.metrics import estimates_for

        chip = None if device is None else as_chip(device)
        values = estimates_for(self.events, chip)
        return {name: shown_value(value) for name, value in values.items()}

    def bound(self, device: str | Device) -> Rows[BoundRow]:
        """The least time of each operator on a chip, the longest first, and what limits it.

        ``device`` as in `estimates`, and it raises the same.
        """
        from pytest_torchprof.analysis.estimates import BoundRow, bound_rows

        return Rows(bound_rows(self.events, as_chip(device)), fields_of(BoundRow))

    def collectives(self) -> Rows[CollectiveRow]:
        """Calls that communicate with other ranks, by operation, group, size and dtype.

        ``wait_ms`` is None, since one rank does not tell; see `compare_ranks`.
        """
        return Rows(collective_rows(self.events), fields_of(CollectiveRow))

    def memory(self) -> Rows[PeakMemory]:
        """The peak of each device, and what was live at the peak, by allocating operator."""
        return Rows(memory_peaks(self.events), fields_of(PeakMemory))

    def device_memory(self) -> Rows[DeviceMemory]:
        """What was live at the peak of each device, by category, and its allocator's totals."""
        from pytest_torchprof.analysis.memory import DeviceMemory, device_memory

        return Rows(self.events.once(device_memory), fields_of(DeviceMemory))

    def memory_timeline(self, points: int = 0) -> Rows[MemoryPoint]:
        """The live memory of each device over time, by category.

        ``points``: at so many moments per device, each the highest of an equal share of the time;
        0 for all changes.
        """
        from pytest_torchprof.analysis.memory import MemoryPoint, memory_timeline

        return Rows(memory_timeline(self.events, points), fields_of(MemoryPoint))

    def memory_leaks(self) -> Rows[LeakRow] | None:
        """What grows from step to step; None if the trace has too few steps, or no addresses."""
        from pytest_torchprof.analysis.memory import LeakRow, memory_leaks

        found = self.events.once(memory_leaks)
        return None if found is None else Rows(found, fields_of(LeakRow))

    def steps(self, name: str = "") -> Rows[StepRow]:
        """Each step: when, how long, and what it did on host and device.

        ``name``: the steps' annotations, by name or glob; by default ``ProfilerStep#N``, else those
        of a known trainer, else the ``record_function`` that repeats over most of the time.

        Raises:
            SettingsError: the trace has no steps.
        """
        name = name or step_name_of(self.events)
        known_steps(self.events, name)
        return Rows(step_table(self.events, name).rows, fields_of(StepRow))

    def step_statistics(self, name: str = "") -> Rows[StepStatistics]:
        """Median, spread, outliers and drift of each field of `steps`; it raises the same."""
        name = name or step_name_of(self.events)
        known_steps(self.events, name)
        return Rows(step_table(self.events, name).statistics, fields_of(StepStatistics))

    def step(self, which: int | str | StepRange, name: str = "") -> Trace:
        """The same trace, counting only some steps: every method then tells of these.

        ``which``: the number of a step, ``"A:B"`` for those from A to before B, or ``":"`` for all.
        ``name`` as in `steps`. Of a trace that counts only some steps already, it is a choice from
        all of them. Device work belongs to the step whose launch made it.

        Raises:
            SettingsError: the trace has no such steps.
            ValueError: ``which`` is not of this form.
        """
        chosen = which if isinstance(which, StepRange) else StepRange.parse(str(which))
        return Trace(at_steps(self.events, chosen, name), self.path)

    @property
    def selected_steps(self) -> list[int] | None:
        """The numbers of the steps that count, see `step`; None for a whole trace."""
        chosen = chosen_steps(self.events)
        return None if chosen is None else chosen[1].tolist()

    def lint(
        self,
        ignore: str | Iterable[str] = (),
        thresholds: str = "",
        rules: Iterable[Rule] | None = None,
    ) -> Linted:
        """What the anti-pattern rules find, and which rules could not be checked and why.

        ``ignore``: codes of rules to skip. ``thresholds`` are written as on the command
        line, ``"pageable-copy.bytes=1 MiB"``. ``rules``: these instead of all installed ones, as
        in the test of a rule.

        Raises:
            SettingsError: an unknown rule or threshold, or a wrong unit.
        """
        from pytest_torchprof.rules.registry import check_chosen  # no table needs rules

        found = check_chosen(self.events, ignore, thresholds, rules)
        unchecked = {code: why.text for code, why in found.unchecked.items()}
        return Linted(found.counts, unchecked, found.errors, found)

    def findings(self, ignore: str | Iterable[str] = (), thresholds: str = "") -> Rows[Finding]:
        """Anti-patterns, the costliest first; see `lint`."""
        return Rows(self.lint(ignore, thresholds).findings(), fields_of(Finding))

    def stacks(self, metric: str = "self_cpu_ms") -> list[str]:
        """Folded stacks, ``frame;frame value`` per line, values in whole microseconds.

        Raises:
            ValueError: another metric than ``self_cpu_ms`` and ``self_cuda_ms``.
            TraceError: the trace does not hold the metric, see `metrics`.
        """
        from pytest_torchprof.render.export import StackMetric, measured_stacks

        _check("metric", metric, get_args(StackMetric))
        return list(measured_stacks(self.events, metric))  # type: ignore[arg-type]


def augment(source: str | Path, target: str | Path, peaks: Peaks = ()) -> Augmented:
    """Write a copy of a trace with FLOPs, bytes and achieved % added to its kernels.

    Raises:
        TraceError: the source is not a trace, or the target cannot be written or is the source.
        SettingsError: the file of peaks does not describe a chip.
    """
    from pytest_torchprof.analysis.kernels import kernel_work
    from pytest_torchprof.render.export import write_augmented

    chips = as_chips(peaks)
    return write_augmented(Path(source), Path(target), lambda trace: kernel_work(trace, chips))


def load_ranks(
    paths: str | Path | Iterable[str | Path],
    rank: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, Trace]:
    """The traces of one job by rank, from a folder, or from files and folders.

    Traces of several jobs get numbers too; a warning says if the number is not the trace's rank.

    Raises:
        TraceError: a file is not a trace, a folder contains none, or there is no such rank.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    found = ranks.read_ranks([Path(path) for path in paths], rank=rank, progress=progress)
    return {number: Trace(events, Path(events.source)) for number, events in found}


def compare_ranks(traces: Mapping[int, Trace]) -> RankTable:
    """Where the time of each rank of a job goes, and who waits for whom; see `load_ranks`."""
    from pytest_torchprof.verdict.parts import rank_table

    return rank_table({number: trace.events for number, trace in traces.items()})


def diff(a: Trace, b: Trace, by: DiffBy = "op", *, per_step: bool = False) -> Rows[DiffRow]:
    """What appeared, disappeared, or changed from ``a`` to ``b``, largest change first.

    ``per_step``: of the steps alone (the selected ones, else all), divided by their number, so that
    traces of different length compare.

    Raises:
        ValueError: ``by`` is neither ``op`` nor ``kernel``.
        SettingsError: ``per_step``, and a trace has no steps.
    """
    from pytest_torchprof.analysis.diff import DiffBy, DiffRow, diff_rows

    _check("by", by, get_args(DiffBy))
    counts = 1, 1
    if per_step:
        a, b = (t.step(ALL_STEPS) if t.selected_steps is None else t for t in (a, b))
        counts = len(a.selected_steps or ()), len(b.selected_steps or ())
    rows = diff_rows(a.events, b.events, by=by, per_step=counts)
    return Rows(rows, fields_of(DiffRow))


def _check(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
