"""Kernels under the roof of their chip, on logarithmic axes: Williams, Waterman and Patterson
(2009), https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.html.plots.palette import category_class
from pytest_torchprof.render.html.plots.scales import Logarithmic, decades
from pytest_torchprof.render.html.plots.svg import drawing, element, mark, shown, text
from pytest_torchprof.render.row_formats import cell
from pytest_torchprof.work.categories import kernel_category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pytest_torchprof.analysis.kernel_rows import KernelRow

_WIDTH: Final = 960
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 944, 16, 376
#: Radius of the smallest dot, and what the one with most time has more.
_LEAST, _MORE = 3.5, 16.5
#: Dots beyond these many, the ones with least time, are left out.
MOST_DOTS: Final = 400
#: Dots at least this large have their number in the table written in them.
_NUMBERED: Final = 8


class ChipRoof(Frozen, frozen=True):
    """The limits of a chip: bytes/s of its memory, and FLOP/s by the dtypes that have this peak."""

    chip: str
    bytes_per_s: float
    flops_per_s: dict[str, float]


class Dot(Frozen, frozen=True):
    """A row of the table of kernels that has both coordinates: FLOP/B and TFLOP/s."""

    number: int
    row: KernelRow
    intensity: float
    rate: float


def dots_of(rows: Sequence[KernelRow]) -> tuple[list[Dot], list[tuple[int, KernelRow]]]:
    """Rows with a place in the plot, and the rows without, numbered as in the table."""
    dots, without = [], []
    for number, row in enumerate(rows, 1):
        intensity, rate = row.arithmetic_intensity, row.tflops_per_s
        if intensity and rate and intensity > 0 and rate > 0 and math.isfinite(rate):
            dots.append(Dot(number, row, intensity, rate))
        else:
            without.append((number, row))
    return dots, without


def category_of(row: KernelRow) -> str:
    """The category of a row's kernel, as in the breakdown."""
    if row.kernel.startswith(("Memcpy", "Memset")):
        return "copy"
    return kernel_category(row.kernel, row.operator or "")


def roofline_plot(dots: Sequence[Dot], roof: ChipRoof | None) -> Markup:
    """One dot for each row, its area by time; none without dots. ``roof`` is None if unknown."""
    dots = sorted(dots, key=lambda dot: -dot.row.total_ms)[:MOST_DOTS]
    x, y = _axes(dots, roof)
    parts = _grid(x, y)
    if roof is not None:
        parts += _roof(roof, x, y)
    longest = max(dot.row.total_ms for dot in dots)
    for dot in dots:  # the smallest last, above the others
        parts += [_dot(dot, x, y, longest)]
    under = f"under the roof of {shown(roof.chip, 60)}" if roof else "of a chip without known peaks"
    label = (
        f"{plural(len(dots), 'kernel')} {under}: FLOP/s by FLOPs per byte, both logarithmic; the "
        "area of a dot is its time"
    )
    return drawing("roofline", _WIDTH, _HEIGHT, label, *parts, class_="roomy")


def _axes(dots: Sequence[Dot], roof: ChipRoof | None) -> tuple[Logarithmic, Logarithmic]:
    """Axes that have all dots and the ridges of the roof, with some room around."""
    across, up = [dot.intensity for dot in dots], [dot.rate for dot in dots]
    if roof is not None:
        ridges = [peak / roof.bytes_per_s for peak in roof.flops_per_s.values()]
        across += [*ridges, *(ridge * 4 for ridge in ridges)]
        up += [peak / 1e12 for peak in roof.flops_per_s.values()]
        up += [min(up), min(across) * roof.bytes_per_s / 1e12]
    x = Logarithmic(min(across) / 2, max(across) * 2, _LEFT, _RIGHT)
    return x, Logarithmic(min(up) / 2, max(up) * 2.5, _BOTTOM, _TOP)


def _grid(x: Logarithmic, y: Logarithmic) -> list[Markup]:
    parts = []
    for tick in decades(x.low, x.high):
        at = x.at(tick)
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=_TOP, y2=_BOTTOM))
        parts.append(text(at, _BOTTOM + 16, _power(tick), "small", "middle"))
    for tick in decades(y.low, y.high):
        at = y.at(tick)
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=at, y2=at))
        parts.append(text(_LEFT - 8, at + 4, _power(tick), "small", "end"))
    parts.append(text((_LEFT + _RIGHT) / 2, _HEIGHT - 6, "FLOPs per byte", "small", "middle"))
    middle = (_TOP + _BOTTOM) / 2
    title = element(
        "text",
        "TFLOP/s",
        class_="small",
        text_anchor="middle",
        transform=f"translate(13 {middle:g}) rotate(-90)",
    )
    return [*parts, title]


def _power(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _roof(roof: ChipRoof, x: Logarithmic, y: Logarithmic) -> list[Markup]:
    """The slope of the bandwidth, and a level for each peak."""
    width = roof.bytes_per_s / 1e12  # TFLOP/s at one FLOP per byte
    highest = max(roof.flops_per_s.values(), default=y.high * 1e12) / 1e12
    begin = max(x.low, y.low / width)
    ridge = min(highest / width, x.high)
    left, right = x.at(begin), x.at(ridge)
    low, high = y.at(begin * width), y.at(ridge * width)
    slope = element("line", class_="roof", x1=left, x2=right, y1=low, y2=high)
    rate = format_quantity(roof.bytes_per_s, "B/s")
    parts = [mark(slope, title=f"bandwidth: {rate}", value=roof.bytes_per_s)]
    run, rise = right - left, high - low
    if run > 120:
        at, up = left + 0.3 * run, low + 0.3 * rise
        turn = math.degrees(math.atan2(rise, run))
        parts.append(
            element(
                "text",
                rate,
                class_="small roof-name",
                text_anchor="middle",
                transform=f"translate({at:.1f} {up - 7:.1f}) rotate({turn:.1f})",
            )
        )
    levels: dict[float, list[str]] = {}
    for dtype, peak in roof.flops_per_s.items():
        levels.setdefault(peak, []).append(dtype)
    written: list[float] = []
    for peak, dtypes in sorted(levels.items(), reverse=True):
        begin, level = peak / roof.bytes_per_s, y.at(peak / 1e12)
        line = element("line", class_="roof", x1=x.at(begin), x2=_RIGHT, y1=level, y2=level)
        words = f"{', '.join(dtypes)} {format_quantity(peak, 'FLOP/s')}"
        parts.append(mark(line, title=f"peak: {words}", value=peak))
        if all(abs(level - other) > 13 for other in written):
            written.append(level)
            parts.append(text(_RIGHT, level - 5, words, "small roof-name", "end"))
    return parts


def _dot(dot: Dot, x: Logarithmic, y: Logarithmic, longest: float) -> Markup:
    told = (
        f"{cell('tflops_per_s', dot.rate)} TFLOP/s at "
        f"{cell('arithmetic_intensity', dot.intensity)} FLOP/B"
    )
    return kernel_dot(dot.number, dot.row, x.at(dot.intensity), y.at(dot.rate), longest, told)


def kernel_dot(
    number: int, row: KernelRow, at: float, up: float, longest: float, told: str
) -> Markup:
    """A row of the table as a dot, its area by time relative to the ``longest`` ms; ``told`` is
    what its place means.
    """
    radius = _LEAST + _MORE * math.sqrt(row.total_ms / longest if longest else 0)
    kernel = shown(cell("kernel", row.kernel), 120)
    operator = f", {shown(cell('operator', row.operator), 80)}" if row.operator else ""
    shares = [
        f"{cell('compute_pct', share)} of {what}"
        for share, what in ((row.compute_pct, "peak compute"), (row.bandwidth_pct, "bandwidth"))
        if share is not None
    ]
    words = [
        f"{number}: {kernel}{operator}",
        f"{format_quantity(row.total_ms, 'ms')} in {plural(row.calls, 'call')}",
        told,
        *shares,
    ]
    color = category_class(category_of(row))
    shapes = [element("circle", class_=f"dot {color}", cx=at, cy=up, r=radius)]
    if radius >= _NUMBERED:
        shapes.append(text(at, up + 4, str(number), "dot-number", "middle"))
    return mark(*shapes, title="; ".join(words), value=row.total_ms)
