"""The live memory of a device over time, by what it is for, with the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.block_categories import Category
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.render.html.plots.palette import category_class
from pytest_torchprof.render.html.plots.scales import Linear, byte_ticks, ticks
from pytest_torchprof.render.html.plots.svg import (
    coordinate,
    drawing,
    element,
    legend,
    mark,
    shown,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pytest_torchprof.analysis.live_bytes import PeakMemory
    from pytest_torchprof.analysis.memory_timeline import MemoryPoint

_WIDTH: Final = 960
_HEIGHT: Final = 244
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 944, 22, 206
#: From the bottom of the stack up.
_ORDER: Final = (
    Category.BEFORE,
    Category.PARAMETERS,
    Category.OPTIMIZER_STATE,
    Category.GRADIENTS,
    Category.ACTIVATIONS,
    Category.TEMPORARIES,
    Category.UNKNOWN,
)


def _bytes(point: MemoryPoint, category: Category) -> int:
    value: int = getattr(point, f"{category.name.lower()}_bytes")
    return value


def memory_plot(points: Sequence[MemoryPoint], peak: PeakMemory) -> Markup:
    """The level of one device, stacked by category; at least one point.

    What was freed of blocks from before the trace is below zero, so that the top is always the
    level.
    """
    top = max(points, key=lambda point: point.live_bytes)
    low = _lowest(points, top.live_bytes)
    x = Linear(points[0].at_ms, points[-1].at_ms, _LEFT, _RIGHT)
    high = max(top.live_bytes, low + 1)
    y = Linear(low, high + 0.08 * (high - low), _BOTTOM, _TOP)
    categories = [one for one in _ORDER if any(_bytes(point, one) for point in points)]
    parts = _grid(x, y, top.live_bytes)
    base = [max(low, 0)] * len(points)
    for category in categories:
        sizes = [_bytes(point, category) for point in points]
        if category is Category.BEFORE:
            sizes = [size - max(low, 0) for size in sizes]
        until = [at + size for at, size in zip(base, sizes, strict=True)]
        area = _area(base, until, points, x, y)
        shape = element("path", class_=category_class(_class(category)), d=area)
        parts.append(mark(shape, title=category.label))
        base = until
    parts += _moments(points, x)
    parts += _peak(top, x, y, peak)
    name = shown(peak.device, 40)
    label = (
        f"Live memory of {name} over {format_quantity(points[-1].at_ms - points[0].at_ms, 'ms')}, "
        f"at most {format_quantity(top.live_bytes, 'B')} after {format_quantity(top.at_ms, 'ms')}"
    )
    if low > 0:
        label += f"; the axis begins at {format_quantity(low, 'B')}, which was live before"
        words = f"from {format_quantity(low, 'B')}, live before the trace"
        parts.append(text(_LEFT, _HEIGHT - 2, words, "small"))
    plot = drawing("memory", _WIDTH, _HEIGHT, label, *parts, class_="roomy")
    entries = [
        (
            category_class(_class(one)),
            one.label,
            format_quantity(_bytes(top, one), "B"),
            _bytes(top, one),
        )
        for one in reversed(categories)
    ]
    return plot + legend(entries)


def _lowest(points: Sequence[MemoryPoint], top: int) -> int:
    """Where the axis begins: at 0 or below; at what was live before all along, if that is most."""
    before = min(point.before_bytes for point in points)
    return before if before < 0 or 2 * before > top else 0


def _class(category: Category) -> str:
    return f"m {category.name.lower()}"


def _area(
    base: Sequence[float],
    until: Sequence[float],
    points: Sequence[MemoryPoint],
    x: Linear,
    y: Linear,
) -> str:
    """Steps: a level holds until the next change."""
    forth, back = [], []
    for at, (low, high) in enumerate(zip(base, until, strict=True)):
        left = coordinate(x.at(points[at].at_ms))
        right = coordinate(x.at(points[min(at + 1, len(points) - 1)].at_ms))
        forth.append(f"{left} {coordinate(y.at(high))}H{right}")
        back.append(f"{right} {coordinate(y.at(low))}H{left}")
    return f"M{'L'.join(forth)}L{'L'.join(reversed(back))}z"


def _grid(x: Linear, y: Linear, most: int) -> list[Markup]:
    parts = []
    for tick in byte_ticks(y.low, most, 4):
        at = y.at(tick)
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=at, y2=at))
        words = format_quantity(tick, "B") if tick else "0"
        parts.append(text(_LEFT - 8, at + 4, words, "small", "end"))
    for tick in ticks(x.low, x.high, 6):
        at = x.at(tick)
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=_BOTTOM, y2=_BOTTOM + 4))
        words = format_quantity(tick, "ms") if tick else "0"
        anchor = "end" if at > _RIGHT - 24 else "middle"
        parts.append(text(at, _BOTTOM + 18, words, "small", anchor))
    return parts


def _moments(points: Sequence[MemoryPoint], x: Linear) -> list[Markup]:
    """What a pointer is told at each moment."""
    marks = []
    for at, point in enumerate(points):
        left = x.at(point.at_ms)
        right = x.at(points[min(at + 1, len(points) - 1)].at_ms)
        parts = [
            f"{one.label} {format_quantity(_bytes(point, one), 'B')}"
            for one in _ORDER
            if _bytes(point, one)
        ]
        what = f"{format_quantity(point.live_bytes, 'B')} at {format_quantity(point.at_ms, 'ms')}"
        shape = element(
            "rect",
            class_="t-hit",
            x=left,
            y=_TOP,
            width=max(right - left, 1),
            height=_BOTTOM - _TOP,
        )
        told = f"{what}: {', '.join(parts)}" if parts else what
        marks.append(mark(shape, title=told, value=point.live_bytes))
    return marks


def _peak(top: MemoryPoint, x: Linear, y: Linear, peak: PeakMemory) -> list[Markup]:
    at, up = x.at(top.at_ms), y.at(top.live_bytes)
    words = f"{format_quantity(top.live_bytes, 'B')} at {format_quantity(top.at_ms, 'ms')}"
    title = f"peak: {words}, {format_quantity(peak.peak_bytes, 'B')} above the start"
    anchor = "end" if at > (_LEFT + _RIGHT) / 2 else "start"
    shift = -8 if anchor == "end" else 8
    dot = element("circle", class_="peak", cx=at, cy=up, r=4)
    return [
        mark(dot, title=title, value=peak.peak_bytes),
        text(at + shift, max(up - 6, 12), f"peak {words}", "small strong", anchor),
    ]
