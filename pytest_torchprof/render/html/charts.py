"""The plots of the pages."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

from pytest_torchprof.analysis.breakdown import IDLE, BreakdownRow
from pytest_torchprof.analysis.memory import Category
from pytest_torchprof.core.records import Frozen, Mutable
from pytest_torchprof.core.units import format_pair, format_quantity, plural
from pytest_torchprof.render.html.svg import (
    Linear,
    Logarithmic,
    byte_ticks,
    category_class,
    category_name,
    coordinate,
    decades,
    drawing,
    element,
    joined,
    legend,
    mark,
    shown,
    text,
    ticks,
)
from pytest_torchprof.render.table import cell
from pytest_torchprof.work.kernels import kernel_category

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.analysis.breakdown import BusyTimeline
    from pytest_torchprof.analysis.kernels import KernelRow
    from pytest_torchprof.analysis.memory import MemoryPoint, PeakMemory
    from pytest_torchprof.analysis.operators import TreeRow
    from pytest_torchprof.places.idle_rows import IdleRow


# ---- Kernels under the roof of their chip, on logarithmic axes: Williams, Waterman and Patterson
# (2009), https://doi.org/10.1145/1498765.1498785.

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


# ---- Kernels without counted FLOPs, by how much of the memory's bandwidth they reach.

_BANDWIDTH_LEFT, _BANDWIDTH_RIGHT, _BANDWIDTH_TOP, _BANDWIDTH_BOTTOM = 64, 944, 8, 118
#: Dots stand in rows, in turn, so that fewer cover each other.
_LANES: Final = 4


def bandwidth_plot(rows: Sequence[tuple[int, KernelRow]]) -> Markup:
    """One dot for each row that has a share of the bandwidth, with its number in the table; its
    height means nothing.
    """
    rows = sorted(rows, key=lambda one: -one[1].total_ms)[:MOST_DOTS]
    shares = [row.bandwidth_pct or 0.0 for _, row in rows]
    x = Linear(0, max(100.0, *shares), _BANDWIDTH_LEFT, _BANDWIDTH_RIGHT)
    parts = []
    for tick in ticks(0, x.high, 5):
        at = x.at(tick)
        class_ = "roof" if tick == 100 else "grid"
        parts.append(
            element("line", class_=class_, x1=at, x2=at, y1=_BANDWIDTH_TOP, y2=_BANDWIDTH_BOTTOM)
        )
        anchor = "end" if at > _WIDTH - 60 else "middle"
        parts.append(text(at, _BANDWIDTH_BOTTOM + 16, f"{tick:.0f} %", "small", anchor))
    middle = (_BANDWIDTH_LEFT + _BANDWIDTH_RIGHT) / 2
    parts.append(
        text(middle, _BANDWIDTH_BOTTOM + 36, "of the memory's bandwidth", "small", "middle")
    )
    longest = max(row.total_ms for _, row in rows)
    height = (_BANDWIDTH_BOTTOM - _BANDWIDTH_TOP) / _LANES
    for order, (number, row) in enumerate(rows):
        up = _BANDWIDTH_TOP + (order % _LANES + 0.5) * height
        told = f"{cell('gb_per_s', row.gb_per_s)} GB/s"
        parts.append(kernel_dot(number, row, x.at(row.bandwidth_pct or 0.0), up, longest, told))
    label = (
        f"{plural(len(rows), 'kernel')} without counted FLOPs, by the share of the memory's "
        "bandwidth that each reaches; the area of a dot is its time"
    )
    return drawing("bandwidth", _WIDTH, _BANDWIDTH_BOTTOM + 42, label, *parts, class_="roomy")


# ---- What became slower and what faster, as bars to both sides.

_ROW: Final = 24
#: Names are left of it, bars on both sides of the middle right of it.
_NAMES: Final = 320
_EDGE: Final = 76
#: Letters of a name that have room.
_LETTERS: Final = 40
MOST_BARS: Final = 20


class Change(Frozen, frozen=True):
    """A name and its ms in both traces."""

    name: str
    before_ms: float
    now_ms: float

    @property
    def ms(self) -> float:
        """By how much it grew."""
        return self.now_ms - self.before_ms


def change_bars(name: str, changes: Sequence[Change], what: str) -> Markup:
    """The largest changes, in their order, slower to the right; ``what`` is what the time is."""
    rows = [change for change in changes if change.ms][:MOST_BARS]
    most = max(abs(change.ms) for change in rows)
    middle = (_NAMES + _WIDTH) / 2
    unit = (_WIDTH - middle - _EDGE) / most
    height = len(rows) * _ROW
    parts = [element("line", class_="zero", x1=middle, x2=middle, y1=0, y2=height)]
    for at, change in enumerate(rows):
        width = max(abs(change.ms) * unit, 0.5)
        top, grew = at * _ROW, change.ms > 0
        before, now = format_pair(change.before_ms, change.now_ms, "ms")
        sign = "+" if grew else ""
        bar = element(
            "rect",
            class_="up" if grew else "down",
            x=middle if grew else middle - width,
            y=top + 4,
            width=width,
            height=_ROW - 8,
        )
        label = text(
            middle + width + 6 if grew else middle - width - 6,
            top + 16,
            f"{sign}{format_quantity(change.ms, 'ms')}",
            "small",
            None if grew else "end",
        )
        who = text(0, top + 16, shown(change.name, _LETTERS))
        title = f"{shown(change.name)}: {before} → {now}"
        parts.append(mark(who, bar, label, title=title, value=change.ms))
    told = f"The {plural(len(rows), 'largest change')} of {what}, slower to the right"
    told = told.replace("1 largest", "largest")
    plot = drawing(name, _WIDTH, height, told, *parts, class_="roomy")
    return joined((element("p", told, class_="quiet"), plot))


# ---- A tree from the top down: each part as wide as its time, its children below it.

_ICICLE_ROW: Final = 22
#: Narrower parts are merged.
_ICICLE_LEAST: Final = 4.0
#: So many parts are drawn at most, the largest; and so many levels.
MOST_PARTS: Final = 1200
MOST_LEVELS: Final = 28
#: Of a letter, on average, at the size of the labels.
_LETTER: Final = 7.2
#: A Python function as the profiler names it.
_FRAME: Final = re.compile(r".+\(\d+\): (.+)")
#: How much of all time a part itself takes, from which each shade begins.
_SHADES: Final = (0.2, 0.1, 0.05, 0.01)


class Node(Mutable):
    """A part of the tree: ``own`` and ``total`` are ms; ``names`` are several in a chain."""

    names: list[str]
    own: float
    total: float
    count: int
    below: list[Node] = msgspec.field(default_factory=list)

    @property
    def size(self) -> int:
        """How many parts the subtree has."""
        return 1 + sum(node.size for node in self.below)


def tree_of(rows: Sequence[TreeRow], *, on_device: bool, chains: bool = False) -> Node:
    """The rows, each parent before its children, below one root: by device time, or by CPU time.

    ``chains``: a part that is nothing but one child becomes one with it.
    """
    root = Node([], 0.0, 0.0, 0)
    path = [root]
    for row in rows:
        own, total = (row.self_cuda_ms, row.cuda_ms) if on_device else (row.self_cpu_ms, row.cpu_ms)
        node = Node([row.name], own or 0.0, total or 0.0, row.count)
        del path[row.depth :]
        path[-1].below.append(node)
        path.append(node)
    root.total = sum(node.total for node in root.below)
    if chains:
        root.below = [_chained(node) for node in root.below]
    return root


def _chained(node: Node) -> Node:
    while len(node.below) == 1 and not node.own:
        (child,) = node.below
        node = Node([*node.names, *child.names], child.own, child.total, child.count, child.below)
    node.below = [_chained(child) for child in node.below]
    return node


class _Box(Mutable):
    """Where a part stands; without a node, it is ``merged`` siblings."""

    x: float
    level: int
    width: float
    total: float
    node: Node | None
    merged: int = 0


def icicle(name: str, root: Node, label: str, what: str) -> Markup:
    """The plot; ``what`` is what the time is, such as ``device time``."""
    boxes = list(_boxes(root))
    deepest = max((box.level for box in boxes), default=0)
    parts = [_whole(root, what)]
    parts += [_part(box, root.total) for box in boxes]
    return drawing(name, _WIDTH, (deepest + 1) * _ICICLE_ROW, label, *parts, class_="icicle roomy")


def _boxes(root: Node) -> Iterator[_Box]:
    """The parts that are wide enough, and the rest of each row of siblings as one."""
    if not root.total:
        return
    sizes = sorted(_totals(root), reverse=True)
    least = max(root.total * _ICICLE_LEAST / _WIDTH, *sizes[MOST_PARTS : MOST_PARTS + 1], 0.0)
    stack = [(root, 0.0, 1)]
    while stack:
        parent, x, level = stack.pop()
        small, rest = 0, 0.0
        for child in parent.below:
            width = _WIDTH * child.total / root.total
            if child.total >= least:
                yield _Box(x, level, width, child.total, child)
                if level < MOST_LEVELS:
                    stack.append((child, x, level + 1))
                x += width
            else:
                small, rest = small + 1, rest + child.total
        if rest > 0:
            yield _Box(x, level, _WIDTH * rest / root.total, rest, None, small)


def _totals(root: Node) -> Iterator[float]:
    stack = [*root.below]
    while stack:
        node = stack.pop()
        yield node.total
        stack += node.below


def _whole(root: Node, what: str) -> Markup:
    words = f"{what}: {format_quantity(root.total, 'ms')}"
    box = element("rect", class_="h-root", x=0, y=0, width=_WIDTH, height=_ICICLE_ROW - 1)
    return mark(box, text(6, 15, words), title=words, value=root.total)


def _part(box: _Box, whole: float) -> Markup:
    top = box.level * _ICICLE_ROW
    share, time = cell("share", box.total / whole), format_quantity(box.total, "ms")
    if box.node is None:
        name, title, shade = f"{box.merged} more", f"{plural(box.merged, 'smaller part')}", "h-more"
    else:
        node = box.node
        times = f" ×{node.count}" if node.count > 1 else ""
        name = f"{node.names[-1]}{times}"
        title = " > ".join(shown(one, 120) for one in node.names[-4:])
        title = f"… > {title}{times}" if len(node.names) > 4 else f"{title}{times}"
        if node.own != node.total:
            time += f" ({format_quantity(node.own, 'ms')} itself)"
        if box.level == MOST_LEVELS and node.below:
            title += f"; {plural(node.size - 1, 'part')} below it are not drawn"
        shade = f"h-{sum(node.own / whole >= least for least in _SHADES)}"
    width = max(box.width - 1, 0.5)
    shapes = [element("rect", class_=shade, x=box.x, y=top, width=width, height=_ICICLE_ROW - 1)]
    letters = int((box.width - 10) / _LETTER)
    if letters >= 3:
        shapes.append(text(box.x + 5, top + 15, _label(name, letters)))
    return mark(*shapes, title=f"{title}: {time}, {share}", value=box.total)


def _label(name: str, letters: int) -> str:
    """What fits: of a Python function that does not, its name alone."""
    found = _FRAME.fullmatch(name) if len(name) > letters else None
    return shown(found[1] if found else name, letters)


# ---- The live memory of a device over time, by what it is for, with the peak.

_MEMORY_HEIGHT: Final = 244
_MEMORY_LEFT, _MEMORY_RIGHT, _MEMORY_TOP, _MEMORY_BOTTOM = 76, 944, 22, 206
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
    x = Linear(points[0].at_ms, points[-1].at_ms, _MEMORY_LEFT, _MEMORY_RIGHT)
    high = max(top.live_bytes, low + 1)
    y = Linear(low, high + 0.08 * (high - low), _MEMORY_BOTTOM, _MEMORY_TOP)
    categories = [one for one in _ORDER if any(_bytes(point, one) for point in points)]
    parts = _memory_grid(x, y, top.live_bytes)
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
        parts.append(text(_MEMORY_LEFT, _MEMORY_HEIGHT - 2, words, "small"))
    plot = drawing("memory", _WIDTH, _MEMORY_HEIGHT, label, *parts, class_="roomy")
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


def _memory_grid(x: Linear, y: Linear, most: int) -> list[Markup]:
    parts = []
    for tick in byte_ticks(y.low, most, 4):
        at = y.at(tick)
        parts.append(
            element("line", class_="grid", x1=_MEMORY_LEFT, x2=_MEMORY_RIGHT, y1=at, y2=at)
        )
        words = format_quantity(tick, "B") if tick else "0"
        parts.append(text(_MEMORY_LEFT - 8, at + 4, words, "small", "end"))
    for tick in ticks(x.low, x.high, 6):
        at = x.at(tick)
        parts.append(
            element("line", class_="grid", x1=at, x2=at, y1=_MEMORY_BOTTOM, y2=_MEMORY_BOTTOM + 4)
        )
        words = format_quantity(tick, "ms") if tick else "0"
        anchor = "end" if at > _MEMORY_RIGHT - 24 else "middle"
        parts.append(text(at, _MEMORY_BOTTOM + 18, words, "small", anchor))
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
            y=_MEMORY_TOP,
            width=max(right - left, 1),
            height=_MEMORY_BOTTOM - _MEMORY_TOP,
        )
        told = f"{what}: {', '.join(parts)}" if parts else what
        marks.append(mark(shape, title=told, value=point.live_bytes))
    return marks


def _peak(top: MemoryPoint, x: Linear, y: Linear, peak: PeakMemory) -> list[Markup]:
    at, up = x.at(top.at_ms), y.at(top.live_bytes)
    words = f"{format_quantity(top.live_bytes, 'B')} at {format_quantity(top.at_ms, 'ms')}"
    title = f"peak: {words}, {format_quantity(peak.peak_bytes, 'B')} above the start"
    anchor = "end" if at > (_MEMORY_LEFT + _MEMORY_RIGHT) / 2 else "start"
    shift = -8 if anchor == "end" else 8
    dot = element("circle", class_="peak", cx=at, cy=up, r=4)
    return [
        mark(dot, title=title, value=peak.peak_bytes),
        text(at + shift, max(up - 6, 12), f"peak {words}", "small strong", anchor),
    ]


# ---- Parts of a whole as one bar: where the device's time goes, and why it is idle.

_BAR_HEIGHT: Final = 28


class Part(Frozen, frozen=True):
    """One part of a bar: its class, its name, its ms, and its share if that is known."""

    class_: str
    name: str
    time_ms: float
    share: float | None

    @property
    def words(self) -> str:
        """The time, with the share."""
        time = format_quantity(self.time_ms, "ms")
        return time if self.share is None else f"{time} · {cell('share', self.share)}"


def breakdown_parts(rows: Sequence[BreakdownRow]) -> list[Part]:
    """The parts of one device's span: what it ran, the most first, then its idle time.

    Rows without a time are left out.
    """
    known = [row for row in rows if row.time_ms is not None]
    known.sort(key=lambda row: (row.category == IDLE, -(row.time_ms or 0)))
    return [
        Part(category_class(row.category), category_name(row.category), row.time_ms or 0, row.share)
        for row in known
    ]


#: Causes beyond these many share the last class.
_CAUSES: Final = 8


def idle_parts(rows: Sequence[IdleRow]) -> list[Part]:
    """The causes of one device's idle time, the most first."""
    return [
        Part(f"i-{min(at, _CAUSES) + 1}", row.cause, row.time_ms, row.share)
        for at, row in enumerate(rows)
    ]


def stacked_bar(name: str, parts: Sequence[Part], label: str) -> Markup:
    """The bar, and a legend with every number; the bar is as wide as the page."""
    whole = sum(part.time_ms for part in parts)
    x, bars = 0.0, []
    for part in parts:
        width = _WIDTH * part.time_ms / whole if whole else 0.0
        shape = element("rect", class_=part.class_, x=x, y=0, width=width, height=_BAR_HEIGHT)
        bars.append(mark(shape, title=f"{part.name}: {part.words}", value=part.time_ms))
        x += width
    plot = drawing(name, _WIDTH, _BAR_HEIGHT, label, *bars, class_="bar", stretched=True)
    entries = [(part.class_, part.name, part.words, part.time_ms) for part in parts]
    return plot + legend(entries)


# ---- A device over time: what it was busy with, when it was idle, and the steps.

_TIMELINE_LEFT: Final = 64
_BAND: Final = 16  # of the steps
_TIMELINE_ROW: Final = 72  # of a device
_GAP: Final = 14
_AXIS: Final = 22
#: More steps than these would be narrower than a pixel or two.
MOST_STEPS: Final = 200
MOST_DEVICES: Final = 8
#: A step's number needs so many pixels.
_LABEL: Final = 26


class StepMark(Frozen, frozen=True):
    """A step: its number, and when it began and ended, in ns since the trace's first event."""

    number: int
    begin_ns: int
    end_ns: int


def timeline(rows: Sequence[BusyTimeline], steps: Sequence[StepMark] = ()) -> Markup:
    """A row for each device on one axis of time: of each share, how much of it was busy and with
    what, from the bottom; what is not filled is idle, or unknown if the trace has only a part.
    """
    rows = rows[:MOST_DEVICES]
    begin = min(row.edges[0] for row in rows)
    end = max(row.edges[-1] for row in rows)
    x = Linear(begin, end, _TIMELINE_LEFT, _WIDTH - 8)
    drawn = [step for step in steps if step.end_ns > begin and step.begin_ns < end]
    top = _BAND + 8 if drawn and len(drawn) <= MOST_STEPS else 0
    bottom = top + len(rows) * (_TIMELINE_ROW + _GAP) - _GAP
    parts = _axis(x, top, bottom)
    parts += [_step(step, x, top) for step in drawn] if top else []
    for at, row in enumerate(rows):
        parts.append(_device(row, x, top + at * (_TIMELINE_ROW + _GAP)))
    shares = max(len(row.edges) - 1 for row in rows)
    label = (
        f"What {len(rows)} device{'s were' if len(rows) > 1 else ' was'} busy with over "
        f"{format_quantity((end - begin) / 1e6, 'ms')}, in {shares} shares of the time"
    )
    return drawing("timeline", _WIDTH, bottom + _AXIS, label, *parts, class_="roomy")


def _step(step: StepMark, x: Linear, top: float) -> Markup:
    """A band for the step's annotation on the host."""
    left = x.at(max(step.begin_ns, x.low))
    width = x.at(min(step.end_ns, x.high)) - left
    time = format_quantity((step.end_ns - step.begin_ns) / 1e6, "ms")
    title = f"step {step.number}: {time} on the host"
    band = element("rect", class_="step", x=left, y=0, width=max(width - 1, 0.5), height=_BAND)
    number = Markup("")
    if width > _LABEL:
        number = text(left + width / 2, _BAND - 4, str(step.number), "small", "middle")
    line = element("line", class_="grid", x1=left, x2=left, y1=_BAND, y2=top)
    return mark(band, number, line, title=title, value=step.end_ns - step.begin_ns)


def _device(row: BusyTimeline, x: Linear, top: float) -> Markup:
    """One device: a bar for each share of the time, stacked by category.

    Neighbors of one category share a path, which keeps a page small.
    """
    name = "device" if row.device is None else f"device {row.device}"
    paths: dict[str, list[str]] = {}
    titles = []
    for at in range(len(row.edges) - 1):
        begin, end = row.edges[at], row.edges[at + 1]
        left, right = x.at(begin), x.at(end)
        y = float(top + _TIMELINE_ROW)
        told = []
        for category, values in row.ns_by_category.items():
            ns, share = values[at], values[at] / (end - begin) if end > begin else 0.0
            if not ns:
                continue
            told.append(f"{category_name(category)} {format_quantity(ns / 1e6, 'ms')}")
            if category == IDLE:
                continue
            high = share * _TIMELINE_ROW
            y -= high
            paths.setdefault(category, []).append(
                f"M{coordinate(left)} {coordinate(y)}H{coordinate(right)}"
                f"V{coordinate(y + high)}H{coordinate(left)}z"
            )
        at_ms = format_quantity(begin / 1e6, "ms")
        titles.append(
            mark(
                element(
                    "rect", class_="t-hit", x=left, y=top, width=right - left, height=_TIMELINE_ROW
                ),
                title=f"{name} at {at_ms}: {', '.join(told) or 'not measured'}",
            )
        )
    back = element(
        "rect",
        class_="c-idle" if IDLE in row.ns_by_category else "not-measured",
        x=x.at(row.edges[0]),
        y=top,
        width=x.at(row.edges[-1]) - x.at(row.edges[0]),
        height=_TIMELINE_ROW,
    )
    filled = [
        element(
            "path",
            class_=category_class(category),
            d="".join(path),
            data_category=category,
            data_value=sum(row.ns_by_category[category]),
        )
        for category, path in paths.items()
    ]
    return joined([back, *filled, *titles, text(0, top + _TIMELINE_ROW / 2 + 4, name, "small")])


def _axis(x: Linear, top: float, bottom: float) -> list[Markup]:
    """Ticks in ms since the trace's first event."""
    marks = []
    for tick in ticks(x.low / 1e6, x.high / 1e6, 6):
        at = x.at(tick * 1e6)
        marks.append(element("line", class_="grid", x1=at, x2=at, y1=top, y2=bottom + 4))
        words = format_quantity(tick, "ms") if tick else "0"
        anchor = "end" if at > _WIDTH - 40 else "middle"
        marks.append(text(at, bottom + 17, words, "small", anchor))
    return marks
