"""Kernels without counted FLOPs, by how much of the memory's bandwidth they reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import plural
from pytest_torchprof.render.html.plots.roofline_plot import MOST_DOTS, kernel_dot
from pytest_torchprof.render.html.plots.scales import Linear, ticks
from pytest_torchprof.render.html.plots.svg import drawing, element, text
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pytest_torchprof.analysis.kernel_rows import KernelRow

_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 944, 8, 118
#: Dots stand in rows, in turn, so that fewer cover each other.
_LANES: Final = 4


def bandwidth_plot(rows: Sequence[tuple[int, KernelRow]]) -> Markup:
    """One dot for each row that has a share of the bandwidth, with its number in the table; its
    height means nothing.
    """
    rows = sorted(rows, key=lambda one: -one[1].total_ms)[:MOST_DOTS]
    shares = [row.bandwidth_pct or 0.0 for _, row in rows]
    x = Linear(0, max(100.0, *shares), _LEFT, _RIGHT)
    parts = []
    for tick in ticks(0, x.high, 5):
        at = x.at(tick)
        class_ = "roof" if tick == 100 else "grid"
        parts.append(element("line", class_=class_, x1=at, x2=at, y1=_TOP, y2=_BOTTOM))
        anchor = "end" if at > _WIDTH - 60 else "middle"
        parts.append(text(at, _BOTTOM + 16, f"{tick:.0f} %", "small", anchor))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(text(middle, _BOTTOM + 36, "of the memory's bandwidth", "small", "middle"))
    longest = max(row.total_ms for _, row in rows)
    height = (_BOTTOM - _TOP) / _LANES
    for order, (number, row) in enumerate(rows):
        up = _TOP + (order % _LANES + 0.5) * height
        told = f"{cell('gb_per_s', row.gb_per_s)} GB/s"
        parts.append(kernel_dot(number, row, x.at(row.bandwidth_pct or 0.0), up, longest, told))
    label = (
        f"{plural(len(rows), 'kernel')} without counted FLOPs, by the share of the memory's "
        "bandwidth that each reaches; the area of a dot is its time"
    )
    return drawing("bandwidth", _WIDTH, _BOTTOM + 42, label, *parts, class_="roomy")
