"""Gather what the page of a trace, or of two, tells: the same tables that the commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.busy_timeline import busy_timelines
from pytest_torchprof.analysis.kernel_groups import parse_grouping
from pytest_torchprof.analysis.kernel_rows import UNLINKED
from pytest_torchprof.analysis.roofline import device_of
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.idle import idle_gap
from pytest_torchprof.commands.inputs import (
    Ranks,
    call_counts,
    calls_in_words,
    cpu_time_note,
    device_time_note,
    heading_of,
    no_flops,
    notes_of,
    peaks_used,
    ungrouped,
    unused_chips,
    warn,
)
from pytest_torchprof.commands.kernels import kernel_notes
from pytest_torchprof.commands.lint import finding_rows, what_was_blind
from pytest_torchprof.commands.memory import memory_notes, no_memory
from pytest_torchprof.commands.printing import rows_by_rank
from pytest_torchprof.commands.summary import span_note
from pytest_torchprof.commands.tree import tree_note
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.html.plots.roofline_plot import ChipRoof
from pytest_torchprof.render.html.plots.timeline import StepMark
from pytest_torchprof.render.html.trace_facts import (
    DeviceTime,
    Found,
    Kernels,
    Memory,
    Operators,
    TraceFacts,
    Tree,
)
from pytest_torchprof.render.html.trace_sections import trace_sections
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.rules.engine.gathering import check_chosen, gather
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.steps import chosen_steps, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.analysis.call_tree import TreeBy
    from pytest_torchprof.analysis.kernel_rows import KernelRow
    from pytest_torchprof.render.html.section import Section
    from pytest_torchprof.work.devices.device import Device

#: Bars of the timeline of each device, and moments of that of its memory.
SHARES: Final = 160
MOMENTS: Final = 200
#: Traces of a folder; the ranks of a job do much the same.
MOST_TRACES: Final = 8
#: How the page groups kernels: what launched a kernel tells as much as its name.
KERNELS_BY: Final = "op,kernel"


def sections_of(
    ranks: Ranks, chips: Sequence[Device] = (), *, prefix: str = "", name: str = ""
) -> list[Section]:
    """The sections of these traces, one after the other, without their styles.

    Where a page is of more, ``prefix`` is that of their anchors, and ``name`` tells them apart.
    """
    found: list[Section] = []
    several = len(ranks) > 1
    more = [f"{plural(left, f'more {ranks.column}')} left out: a page has {MOST_TRACES} at most"
            for left in [len(ranks) - MOST_TRACES] if left > 0]  # fmt: skip
    for number, (rank, trace) in enumerate(list(ranks.items())[:MOST_TRACES], 1):
        label = ", ".join(filter(None, (name, ranks.label(rank) if several else "")))
        mark = f"{prefix}trace-{number}-" if several else prefix
        facts = facts_of(trace, label, chips)
        if more and number == 1:
            facts = replace(facts, warnings=[*more, *facts.warnings])
        found += trace_sections(facts, mark)
    return found


def data_of_traces(ranks: Ranks) -> dict[str, Any]:
    """What the page has as JSON: the main tables, as the commands print them."""
    return {
        "traces": [str(trace.path) for trace in ranks.values()],
        "metrics": rows_by_rank(ranks, Trace.summary),
        "breakdown": rows_by_rank(ranks, Trace.breakdown),
        "idle": rows_by_rank(ranks, lambda trace: trace.idle("cause")),
    }


def facts_of(trace: Trace, label: str = "", chips: Sequence[Device] = ()) -> TraceFacts:
    """All that the page of a trace tells."""
    alone = Ranks({0: trace})
    name, numbers, median = _steps(trace)
    return TraceFacts(
        label=label,
        heading=heading_of(alone),
        warnings=list(trace.warnings),
        events=len(trace.events),
        metrics=trace.summary().to_dicts(),
        step_name=name,
        step_numbers=numbers,
        step_median_ms=median,
        time=_time(trace, alone),
        found=_found(trace, alone),
        kernels=_kernels(trace, alone, chips),
        operators=_operators(trace, alone),
        memory=_memory(trace, alone),
    )


def _has_device(trace: Trace) -> bool:
    """Whether the selected part has work of a device."""
    return bool(trace.events.selection[trace.events.device_rows].any())


def _steps(trace: Trace) -> tuple[str, list[int], float | None]:
    """Name and numbers of the steps, and the median of their durations."""
    steps = steps_of(trace.events, "")
    inside = _inside(trace)
    if not len(steps) or not inside.any():
        return "", [], None
    durations = (steps.end - steps.begin)[inside]
    return steps.name, steps.number[inside].tolist(), float(np.median(durations)) / 1e6


def _inside(trace: Trace) -> Any:
    """Which of all steps are selected."""
    steps, chosen = steps_of(trace.events, ""), chosen_steps(trace.events)
    every = np.ones(len(steps), bool)
    return every if chosen is None else among(steps.number, chosen[1])


def _marks(trace: Trace) -> list[StepMark]:
    steps, inside = steps_of(trace.events, ""), _inside(trace)
    if not len(steps):
        return []
    first = int(trace.events.ts[0])
    columns = steps.number, steps.begin - first, steps.end - first
    return [
        StepMark(*marked) for marked in zip(*(c[inside].tolist() for c in columns), strict=True)
    ]


def _time(trace: Trace, alone: Ranks) -> DeviceTime:
    device = _has_device(trace)
    without = "" if device else "the trace has no device events"
    gap = idle_gap(trace)
    return DeviceTime(
        breakdown=trace.breakdown(),
        timelines=busy_timelines(trace.events, SHARES),
        steps=_marks(trace),
        idle_causes=trace.idle("cause"),
        idle=trace.idle().to_dicts(),
        without=without,
        idle_without=gap or (without and f"idle time is not measured: {without}"),
        notes=[
            note
            for line in (cpu_time_note, device_time_note, span_note)
            for note in notes_of(alone, line)
        ],
    )


def _found(trace: Trace, alone: Ranks) -> Found:
    checked = check_chosen(trace.events)
    return Found(
        rows=finding_rows(alone, {0: checked}),
        unchecked={rule: in_words(why) for rule, why in checked.gaps.items()},
        errors=checked.errors,
        notes=what_was_blind(alone, {0: checked}, len(gather().rules)),
    )


# ------------------------------------------------------------------------------------ kernels


def _kernels(trace: Trace, alone: Ranks, chips: Sequence[Device]) -> Kernels:
    rows = trace.kernels(KERNELS_BY, chips)
    table = rows.to_dicts()
    if unused := unused_chips(trace, chips):
        warn(unused)
    for row in table:
        row["operator"] = UNLINKED if row["operator"] is None else row["operator"]
    return Kernels(
        rows=rows,
        table=table,
        roofs=_roofs(trace, rows, chips),
        without=peaks_used(trace, chips),
        notes=kernel_notes(alone, chips, parse_grouping(KERNELS_BY)) if rows else [],
    )


def _roofs(
    trace: Trace, rows: Iterable[KernelRow], chips: Sequence[Device]
) -> dict[int | None, ChipRoof]:
    """By device: its bandwidth, and the peaks of the dtypes that its kernels compute in."""
    used: dict[int | None, list[float]] = {}
    for row in rows:
        if row.compute_pct and row.tflops_per_s:
            used.setdefault(row.device, []).append(row.tflops_per_s * 1e14 / row.compute_pct)
    roofs = {}
    for device, peaks in used.items():
        chip = device_of(trace.events, -1 if device is None else device, chips)
        if chip is None:
            continue
        # A row's kernels may compute in several dtypes; then its peak is that of none.
        levels = {
            dtype: peak
            for dtype, peak in chip.peaks.items()
            if any(abs(peak - one) < 1e-6 * peak for one in peaks)
        }
        roofs[device] = ChipRoof(chip.name, chip.bandwidth_bytes_per_s, levels or dict(chip.peaks))
    return roofs


# -------------------------------------------------------------------------- operators, memory


def _operators(trace: Trace, alone: Ranks) -> Operators:
    rows = trace.ops()
    empty = "recorded without operators" if not len(rows) else ""
    notes = [*notes_of(alone, no_flops), calls_in_words([call_counts(trace)])] if rows else []
    return Operators(
        table=rows.to_dicts(),
        fields=rows.columns,
        modules=_tree(trace, "module"),
        stacks=_tree(trace, "stack"),
        without=empty,
        notes=[note for note in notes if note],
    )


def _tree(trace: Trace, by: TreeBy) -> Tree:
    note = tree_note(trace, by)
    why = ungrouped(trace, by) if note else ""
    return Tree(trace.tree(by), f"{note}: {why}" if note and why else note)


def _memory(trace: Trace, alone: Ranks) -> Memory:
    peaks = trace.memory()
    gaps = [why for why in [no_memory(trace)] if why]
    return Memory(
        peaks=peaks,
        points=trace.memory_timeline(MOMENTS),
        without=" ".join(gaps) or "nothing was allocated",
        notes=[*gaps, *memory_notes(alone)] if peaks else [],
    )
