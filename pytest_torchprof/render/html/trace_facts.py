"""What the page of a trace tells: the tables of the commands, and why a part is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.analysis.breakdown import BreakdownRow
    from pytest_torchprof.analysis.busy_timeline import BusyTimeline
    from pytest_torchprof.analysis.kernel_rows import KernelRow
    from pytest_torchprof.analysis.live_bytes import PeakMemory
    from pytest_torchprof.analysis.memory_timeline import MemoryPoint
    from pytest_torchprof.analysis.tree_rows import TreeRow
    from pytest_torchprof.places.idle_rows import IdleRow
    from pytest_torchprof.render.html.plots.roofline_plot import ChipRoof
    from pytest_torchprof.render.html.plots.timeline import StepMark

#: A row as ``--format json`` prints it.
Row = Mapping[str, Any]


class DeviceTime(Frozen, frozen=True):
    """Where the time goes. ``without`` says why there is no device time, if there is none.

    ``idle_without``: why there is no idle time.
    """

    breakdown: Sequence[BreakdownRow]
    timelines: Sequence[BusyTimeline]
    steps: Sequence[StepMark]
    idle_causes: Sequence[IdleRow]
    idle: Sequence[Row]
    without: str
    idle_without: str
    notes: Sequence[str]


class Found(Frozen, frozen=True):
    """What the rules found, the costliest first; ``unchecked`` and ``errors`` by rule, in words."""

    rows: Sequence[Row]
    unchecked: Mapping[str, str]
    errors: Mapping[str, str]
    notes: Sequence[str]


class Kernels(Frozen, frozen=True):
    """Kernels by operator, with a roof for each device that has one."""

    rows: Sequence[KernelRow]
    table: Sequence[Row]
    roofs: Mapping[int | None, ChipRoof]
    without: str
    notes: Sequence[str]


class Tree(Frozen, frozen=True):
    """A tree of the trace's work, and what its parts are, if not those that were asked for."""

    rows: Sequence[TreeRow]
    note: str


class Operators(Frozen, frozen=True):
    """Key averages by name, and two trees."""

    table: Sequence[Row]
    fields: Sequence[str]
    modules: Tree
    stacks: Tree
    without: str
    notes: Sequence[str]


class Memory(Frozen, frozen=True):
    """Peaks by device, and levels over time; ``without`` says why there are none."""

    peaks: Sequence[PeakMemory]
    points: Sequence[MemoryPoint]
    without: str
    notes: Sequence[str]


class TraceFacts(Frozen, frozen=True):
    """All of a page. ``label`` distinguishes several traces, and is empty for one."""

    label: str
    heading: str
    warnings: Sequence[str]
    events: int
    metrics: Sequence[Row]
    step_name: str
    step_numbers: Sequence[int]
    step_median_ms: float | None
    time: DeviceTime
    found: Found
    kernels: Kernels
    operators: Operators
    memory: Memory


class DiffFacts(Frozen, frozen=True):
    """A comparison of two traces; ``label`` distinguishes ranks."""

    label: str
    headings: tuple[str, str]
    metrics: Sequence[tuple[Row, Row]]
    growth: Sequence[Row]
    metric_note: str
    operators: Sequence[Row]
    kernels: Sequence[Row]
    notes: Sequence[str]
