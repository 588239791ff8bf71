"""Kernels of a trace: the roofline plot of each device, and the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import plural
from pytest_torchprof.render.html.data_table import data_table, notes
from pytest_torchprof.render.html.plots.bandwidth_plot import bandwidth_plot
from pytest_torchprof.render.html.plots.palette import category_class
from pytest_torchprof.render.html.plots.roofline_plot import (
    MOST_DOTS,
    Dot,
    category_of,
    dots_of,
    roofline_plot,
)
from pytest_torchprof.render.html.plots.svg import element, keys, nothing
from pytest_torchprof.render.row_formats import cell
from pytest_torchprof.work.categories import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from pytest_torchprof.analysis.kernel_rows import KernelRow
    from pytest_torchprof.render.html.trace_facts import Kernels

KERNEL_ROWS: Final = 50
#: Devices with a plot of their own; more are those of a node, which do the same.
_PLOTS: Final = 4
_FIELDS: Final = (
    *("operator", "kernel", "calls", "total_ms", "ms_to_gain", "tflops_per_s", "gb_per_s"),
    *("arithmetic_intensity", "compute_pct", "bandwidth_pct", "bound"),
)
_HEADINGS: Final = {"total_ms": "time", "bandwidth_pct": "memory", "bound": "bound by"}


def kernels(found: Kernels) -> Iterable[Markup | None]:
    """A plot for each device, then all kernels, copies and memsets, most time first."""
    if not found.rows:
        yield nothing(found.without)
        return
    dots, without = dots_of(found.rows)
    devices = dict.fromkeys(row.device for row in found.rows)
    for device in list(devices)[:_PLOTS]:
        name = "The device" if device is None else f"Device {device}"
        of = f"{name}: " if len(devices) > 1 else ""
        mine = [dot for dot in dots if dot.row.device == device]
        if mine:
            yield element("h3", f"{of}Roofline")
            yield roofline_plot(mine, found.roofs.get(device))
        moving = [one for one in without if one[1].device == device and one[1].bandwidth_pct]
        if moving:
            yield element("h3", f"{of}Memory bandwidth, where no FLOPs are counted")
            yield bandwidth_plot(moving)
    yield _categories(found.rows)
    yield notes(_no_place(found.rows, dots, without, len(devices) - _PLOTS))
    yield element("h3", "By operator and kernel")
    yield data_table(
        "kernels",
        found.table[:KERNEL_ROWS],
        ("device", *_FIELDS) if len(devices) > 1 else _FIELDS,
        numbered=True,
        headings=_HEADINGS,
    )
    yield notes([*_left_out(found.rows), *found.notes])


def _categories(rows: Sequence[KernelRow]) -> Markup:
    """What the colors of the dots are, in the order of the breakdown."""
    used = {category_of(row) for row in rows if row.bandwidth_pct or row.arithmetic_intensity}
    names = [category for category in CATEGORIES if category in used]
    return keys([(category_class(name), name) for name in names])


def _no_place(
    rows: Sequence[KernelRow],
    dots: Sequence[Dot],
    without: Sequence[tuple[int, KernelRow]],
    more: int,
) -> list[str]:
    """What has no dot under the roof, what has none at all, and how much time that is."""
    lines = []
    whole = sum(row.total_ms for row in rows)

    def of(some: Sequence[KernelRow]) -> str:
        part = sum(row.total_ms for row in some)
        share = f" ({cell('share', part / whole)} of the device time)" if whole else ""
        return f"{len(some):,} of {plural(len(rows), 'row')}{share}"

    left = [row for _, row in without]
    if left:
        flops = sum(not row.tflops_per_s for row in left)
        parts = [f"{flops:,} without FLOPs"] if flops else []
        parts += [f"{len(left) - flops:,} without bytes"] if len(left) > flops else []
        lines.append(f"not under the roof: {of(left)}, {' and '.join(parts)}")
    if nowhere := [row for row in left if not row.bandwidth_pct]:
        lines.append(f"in no plot: {of(nowhere)}, without FLOPs and without a share of bandwidth")
    if len(dots) > MOST_DOTS:
        lines.append(f"the {MOST_DOTS} dots with most time of {len(dots):,} are drawn")
    if more > 0:
        lines.append(f"{plural(more, 'more device')} without a plot")
    return lines


def _left_out(rows: Sequence[KernelRow]) -> list[str]:
    rest = rows[KERNEL_ROWS:]
    if not rest:
        return []
    part, whole = sum(row.total_ms for row in rest), sum(row.total_ms for row in rows)
    share = f" ({cell('share', part / whole)} of the device time)" if whole else ""
    return [f"{plural(len(rest), 'more row')}{share} are left out: torchprof kernels has all"]
