"""The plots of the pages: bars, time, memory, the roofline, trees, and what changed."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from markupsafe import Markup
from msgspec import field

from pytest_torchprof.analysis.breakdown import EXPOSED, IDLE
from pytest_torchprof.analysis.memory import Category
from pytest_torchprof.core.records import Frozen, Mutable
from pytest_torchprof.core.units import format_pair, format_quantity, plural
from pytest_torchprof.render.html.svg import (
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    box,
    category_class,
    coordinate,
    drawing,
    element,
    in_unit,
    joined,
    legend,
    line,
    mark,
    shown,
    text,
    turned,
    x_axis,
    y_axis,
)
from pytest_torchprof.render.table import cell
from pytest_torchprof.work.kernels import kernel_category

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.analysis.breakdown import BreakdownRow, BusyTimeline
    from pytest_torchprof.analysis.kernels import KernelRow
    from pytest_torchprof.analysis.memory import MemoryPoint, PeakMemory
    from pytest_torchprof.analysis.operators import TreeRow
    from pytest_torchprof.places.idle_rows import IdleRow


# ---- Parts of a whole as one bar: where the device's time goes, and why it is idle.

_BAR: Final = 28
#: Causes of idle time beyond these many share the last class.
_CAUSES: Final = 8


#: A part of a bar: its class, its name, its ms, and its share if that is known.
Part: TypeAlias = tuple[str, str, float, "float | None"]


def category_name(category: str) -> str:
    """In words, as in the table of `torchprof summary`."""
    return f"{category}, exposed" if category in EXPOSED else category


def breakdown_parts(rows: Sequence[BreakdownRow]) -> list[Part]:
    """What a device ran, the most first, then its idle time; rows without a time are left out."""
    known = [(row, row.time_ms) for row in rows if row.time_ms is not None]
    known.sort(key=lambda one: (one[0].category == IDLE, -one[1]))
    return [
        (category_class(row.category), category_name(row.category), time_ms, row.share)
        for row, time_ms in known
    ]


def idle_parts(rows: Sequence[IdleRow]) -> list[Part]:
    """The causes of one device's idle time, the most first."""
    return [
        (f"i-{min(at, _CAUSES) + 1}", row.cause, row.time_ms, row.share)
        for at, row in enumerate(rows)
    ]


def stacked_bar(name: str, parts: Sequence[Part], label: str) -> Markup:
    """The bar, as wide as the page, and a legend with every number; nothing without parts."""
    if not parts:
        return Markup("")
    whole = sum(time_ms for _, _, time_ms, _ in parts)
    x, bars, entries = 0.0, [], []
    for class_, who, time_ms, share in parts:
        width = WIDTH * time_ms / whole if whole else 0.0
        time = format_quantity(time_ms, "ms")
        words = time if share is None else f"{time} · {cell('share', share)}"
        bars.append(mark(box(class_, x, 0, width, _BAR), title=f"{who}: {words}", value=time_ms))
        entries.append((class_, who, words, time_ms))
        x += width
    return drawing(name, _BAR, label, bars, "bar") + legend(entries)


# ---- A device over time: what it was busy with, when it was idle, and the steps.

_BAND: Final = 16  # of the steps
_DEVICE: Final = 72  # the height of a device
_GAP: Final = 14
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
    begin, end = min(row.edges[0] for row in rows), max(row.edges[-1] for row in rows)
    x = Scale(begin / 1e6, end / 1e6, LEFT, RIGHT)
    drawn = [step for step in steps if step.end_ns > begin and step.begin_ns < end]
    top = _BAND + 8 if drawn and len(drawn) <= MOST_STEPS else 0
    bottom = top + len(rows) * (_DEVICE + _GAP) - _GAP
    parts = x_axis(x, x.ticks(6), in_unit("ms"), top, bottom + 4)
    parts += [_step(step, x, top) for step in drawn] if top else []
    for at, row in enumerate(rows):
        parts += _device(row, x, top + at * (_DEVICE + _GAP))
    shares = max(len(row.edges) - 1 for row in rows)
    label = (
        f"What {len(rows)} device{'s were' if len(rows) > 1 else ' was'} busy with over "
        f"{format_quantity((end - begin) / 1e6, 'ms')}, in {shares} shares of the time"
    )
    return drawing("timeline", bottom + 22, label, parts)


def _step(step: StepMark, x: Scale, top: float) -> Markup:
    """A band for the step's annotation on the host."""
    left, right = x.at(max(step.begin_ns / 1e6, x.low)), x.at(min(step.end_ns / 1e6, x.high))
    ns = step.end_ns - step.begin_ns
    parts = [box("step", left, 0, max(right - left - 1, 0.5), _BAND)]
    if right - left > _LABEL:
        parts.append(text((left + right) / 2, _BAND - 4, str(step.number), "small", "middle"))
    title = f"step {step.number}: {format_quantity(ns / 1e6, 'ms')} on the host"
    return mark(*parts, line("grid", left, left, _BAND, top), title=title, value=ns)


def _device(row: BusyTimeline, x: Scale, top: float) -> Iterator[Markup]:
    """One device: a bar for each share of the time, stacked by category.

    Neighbors of one category share a path, which keeps a page small.
    """
    name = "device" if row.device is None else f"device {row.device}"
    at = [x.at(edge / 1e6) for edge in row.edges]
    paths: dict[str, str] = {}
    titles = []
    for share, (left, right) in enumerate(pairwise(at)):
        ns = row.edges[share + 1] - row.edges[share]
        bottom = float(top + _DEVICE)
        told = []
        for category, values in row.ns_by_category.items():
            if not values[share]:
                continue
            told.append(f"{category_name(category)} {format_quantity(values[share] / 1e6, 'ms')}")
            if category == IDLE:
                continue
            high = bottom - (values[share] / ns if ns else 0) * _DEVICE
            paths[category] = paths.get(category, "") + (
                f"M{coordinate(left)} {coordinate(high)}H{coordinate(right)}"
                f"V{coordinate(bottom)}H{coordinate(left)}z"
            )
            bottom = high
        when = format_quantity(row.edges[share] / 1e6, "ms")
        title = f"{name} at {when}: {', '.join(told) or 'not measured'}"
        titles.append(mark(box("t-hit", left, top, right - left, _DEVICE), title=title))
    rest = "c-idle" if IDLE in row.ns_by_category else "not-measured"
    yield box(rest, at[0], top, at[-1] - at[0], _DEVICE)
    for category, path in paths.items():
        total, class_ = sum(row.ns_by_category[category]), category_class(category)
        yield element("path", class_=class_, d=path, data_category=category, data_value=total)
    yield from titles
    yield text(0, top + _DEVICE / 2 + 4, name, "small")


# ---- The live memory of a device over time, by what it is for, with the peak.

_MEMORY_TOP, _MEMORY_BOTTOM, _MEMORY_HEIGHT = 22, 206, 244
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


def memory_plot(points: Sequence[MemoryPoint], peak: PeakMemory) -> Markup:
    """The level of one device, stacked by category; at least one point.

    What was freed of blocks from before the trace is below zero, so that the top is always the
    level. Where most was live before all along, the axis begins there.
    """
    top = max(points, key=lambda point: point.live_bytes)
    before = min(point.before_bytes for point in points)
    low = before if before < 0 or 2 * before > top.live_bytes else 0
    high = max(top.live_bytes, low + 1)
    x = Scale(points[0].at_ms, points[-1].at_ms, LEFT, RIGHT)
    y = Scale(low, high + 0.08 * (high - low), _MEMORY_BOTTOM, _MEMORY_TOP)
    sizes = {one: [_bytes(point, one) for point in points] for one in _ORDER}
    used = [one for one in _ORDER if any(sizes[one])]
    unit = 1024.0 ** max(0, math.floor(math.log(max(top.live_bytes - low, 1), 1024)))
    parts = y_axis(y, Scale(low, top.live_bytes, 0, 1).ticks(4, unit), in_unit("B"))
    parts += x_axis(x, x.ticks(6), in_unit("ms"), _MEMORY_BOTTOM, _MEMORY_BOTTOM + 4)
    edges = [x.at(point.at_ms) for point in points]
    spans = list(zip(edges, [*edges[1:], edges[-1]], strict=True))
    level = [max(low, 0)] * len(points)
    for one in used:
        start = max(low, 0) if one is Category.BEFORE else 0
        above = [at + size - start for at, size in zip(level, sizes[one], strict=True)]
        shape = element("path", class_=_memory_class(one), d=_area(level, above, spans, y))
        parts.append(mark(shape, title=one.label))
        level = above
    for point, (left, right) in zip(points, spans, strict=True):
        kept = [f"{one.label} {_size(point, one)}" for one in used if _bytes(point, one)]
        title = f"{_level(point)}{': ' if kept else ''}{', '.join(kept)}"
        hit = box("t-hit", left, _MEMORY_TOP, max(right - left, 1), _MEMORY_BOTTOM - _MEMORY_TOP)
        parts.append(mark(hit, title=title, value=point.live_bytes))
    parts += _peak(top, peak, x.at(top.at_ms), y.at(top.live_bytes))
    label = (
        f"Live memory of {shown(peak.device, 40)} over "
        f"{format_quantity(points[-1].at_ms - points[0].at_ms, 'ms')}, at most "
        f"{format_quantity(top.live_bytes, 'B')} after {format_quantity(top.at_ms, 'ms')}"
    )
    if low > 0:
        label += f"; the axis begins at {format_quantity(low, 'B')}, which was live before"
        words = f"from {format_quantity(low, 'B')}, live before the trace"
        parts.append(text(LEFT, _MEMORY_HEIGHT - 2, words, "small"))
    return drawing("memory", _MEMORY_HEIGHT, label, parts) + legend(
        (_memory_class(one), one.label, _size(top, one), _bytes(top, one)) for one in reversed(used)
    )


def _bytes(point: MemoryPoint, category: Category) -> int:
    value: int = getattr(point, f"{category.name.lower()}_bytes")
    return value


def _size(point: MemoryPoint, category: Category) -> str:
    return format_quantity(_bytes(point, category), "B")


def _level(point: MemoryPoint) -> str:
    return f"{format_quantity(point.live_bytes, 'B')} at {format_quantity(point.at_ms, 'ms')}"


def _memory_class(category: Category) -> str:
    return category_class(f"m {category.name}")


def _area(
    low: Sequence[float], high: Sequence[float], spans: Sequence[tuple[float, float]], y: Scale
) -> str:
    """Between both levels, in steps: each holds until the next change."""
    forth, back = [], []
    for bottom, top, span in zip(low, high, spans, strict=True):
        left, right = map(coordinate, span)
        forth.append(f"{left} {coordinate(y.at(top))}H{right}")
        back.append(f"{right} {coordinate(y.at(bottom))}H{left}")
    return f"M{'L'.join(forth)}L{'L'.join(reversed(back))}z"


def _peak(top: MemoryPoint, peak: PeakMemory, x: float, y: float) -> list[Markup]:
    title = f"peak: {_level(top)}, {format_quantity(peak.peak_bytes, 'B')} above the start"
    anchor, shift = ("end", -8) if x > (LEFT + RIGHT) / 2 else ("start", 8)
    return [
        mark(element("circle", class_="peak", cx=x, cy=y, r=4), title=title, value=peak.peak_bytes),
        text(x + shift, max(y - 6, 12), f"peak {_level(top)}", "small strong", anchor),
    ]


# ---- Kernels under the roof of their chip, on logarithmic axes: Williams, Waterman and Patterson
# (2009), https://doi.org/10.1145/1498765.1498785.

_TOP, _BOTTOM, _HEIGHT = 16, 376, 420
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


def has_dot(row: KernelRow) -> bool:
    """Whether a row of the table of kernels has both coordinates, FLOP/B and TFLOP/s."""
    intensity, rate = row.arithmetic_intensity or 0, row.tflops_per_s or 0
    return intensity > 0 and 0 < rate < math.inf


def category_of(row: KernelRow) -> str:
    """The category of a row's kernel, as in the breakdown."""
    if row.kernel.startswith(("Memcpy", "Memset")):
        return "copy"
    return kernel_category(row.kernel, row.operator or "")


def roofline_plot(dots: Sequence[tuple[int, KernelRow]], roof: ChipRoof | None) -> Markup:
    """One dot for each row of the table that has one, with its number there; its area is its time.

    ``roof`` is None if unknown.
    """
    dots = sorted(dots, key=lambda dot: -dot[1].total_ms)[:MOST_DOTS]
    across = [row.arithmetic_intensity or 0 for _, row in dots]
    up = [row.tflops_per_s or 0 for _, row in dots]
    if roof is not None:  # its ridges have a place, too
        ridges = [peak / roof.bytes_per_s for peak in roof.flops_per_s.values()]
        across += [*ridges, *(ridge * 4 for ridge in ridges)]
        up += [peak / 1e12 for peak in roof.flops_per_s.values()]
        up += [min(up), min(across) * roof.bytes_per_s / 1e12]
    x = Scale(min(across) / 2, max(across) * 2, LEFT, RIGHT, log=True)
    y = Scale(min(up) / 2, max(up) * 2.5, _BOTTOM, _TOP, log=True)
    parts = x_axis(x, x.ticks(0), _power, _TOP, _BOTTOM) + y_axis(y, y.ticks(0), _power)
    parts.append(text((LEFT + RIGHT) / 2, _HEIGHT - 6, "FLOPs per byte", "small", "middle"))
    parts.append(turned(13, (_TOP + _BOTTOM) / 2, -90, "TFLOP/s", "small"))
    parts += _roof(roof, x, y) if roof else ()
    parts += [_dot(*dot, x, y, dots[0][1].total_ms) for dot in dots]  # the smallest above others
    under = f"under the roof of {shown(roof.chip, 60)}" if roof else "of a chip without known peaks"
    label = (
        f"{plural(len(dots), 'kernel')} {under}: FLOP/s by FLOPs per byte, both logarithmic; the "
        "area of a dot is its time"
    )
    return drawing("roofline", _HEIGHT, label, parts)


def _power(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _roof(roof: ChipRoof, x: Scale, y: Scale) -> Iterator[Markup]:
    """The slope of the bandwidth, and a level for each peak."""
    width = roof.bytes_per_s / 1e12  # TFLOP/s at one FLOP per byte
    highest = max(roof.flops_per_s.values(), default=y.high * 1e12) / 1e12
    begin, ridge = max(x.low, y.low / width), min(highest / width, x.high)
    left, right = x.at(begin), x.at(ridge)
    low, high = y.at(begin * width), y.at(ridge * width)
    rate = format_quantity(roof.bytes_per_s, "B/s")
    slope = line("roof", left, right, low, high)
    yield mark(slope, title=f"bandwidth: {rate}", value=roof.bytes_per_s)
    if right - left > 120:
        angle = math.degrees(math.atan2(high - low, right - left))
        middle = left + 0.3 * (right - left), low + 0.3 * (high - low) - 7
        yield turned(*middle, angle, rate, "small roof-name")
    levels: dict[float, list[str]] = {}
    for dtype, peak in roof.flops_per_s.items():
        levels.setdefault(peak, []).append(dtype)
    written: list[float] = []
    for peak, dtypes in sorted(levels.items(), reverse=True):
        level = y.at(peak / 1e12)
        words = f"{', '.join(dtypes)} {format_quantity(peak, 'FLOP/s')}"
        shape = line("roof", x.at(peak / roof.bytes_per_s), RIGHT, level, level)
        yield mark(shape, title=f"peak: {words}", value=peak)
        if all(abs(level - other) > 13 for other in written):
            written.append(level)
            yield text(RIGHT, level - 5, words, "small roof-name", "end")


def _dot(number: int, row: KernelRow, x: Scale, y: Scale, longest: float) -> Markup:
    at, up = x.at(row.arithmetic_intensity or 0), y.at(row.tflops_per_s or 0)
    radius = _LEAST + _MORE * math.sqrt(row.total_ms / longest if longest else 0)
    operator = f", {shown(cell('operator', row.operator), 80)}" if row.operator else ""
    intensity = cell("arithmetic_intensity", row.arithmetic_intensity)
    words = [
        f"{number}: {shown(cell('kernel', row.kernel), 120)}{operator}",
        f"{format_quantity(row.total_ms, 'ms')} in {plural(row.calls, 'call')}",
        f"{cell('tflops_per_s', row.tflops_per_s)} TFLOP/s at {intensity} FLOP/B",
    ]
    for share, what in ((row.compute_pct, "peak compute"), (row.bandwidth_pct, "bandwidth")):
        words += [] if share is None else [f"{cell('compute_pct', share)} of {what}"]
    class_ = f"dot {category_class(category_of(row))}"
    shapes = [element("circle", class_=class_, cx=at, cy=up, r=radius)]
    if radius >= _NUMBERED:
        shapes.append(text(at, up + 4, str(number), "dot-number", "middle"))
    return mark(*shapes, title="; ".join(words), value=row.total_ms)


# ---- A tree from the top down: each part as wide as its time, its children below it.

_ROW: Final = 22
#: Narrower parts are merged.
_NARROWEST: Final = 4.0
#: So many levels are drawn at most.
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
    below: list[Node] = field(default_factory=list)


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


def icicle(name: str, root: Node, label: str, what: str) -> Markup:
    """The plot; ``what`` is what the time is, such as ``device time``.

    Parts that are too narrow are one with their siblings that are, too.
    """
    least = root.total * _NARROWEST / WIDTH
    words = f"{what}: {format_quantity(root.total, 'ms')}"
    shape = box("h-root", 0, 0, WIDTH, _ROW - 1)
    parts = [mark(shape, text(6, 15, words), title=words, value=root.total)]
    deepest = 0
    stack = [(root, 0.0, 1)] if root.total else []
    while stack:
        parent, x, level = stack.pop()
        small = [child.total for child in parent.below if child.total < least]
        for child in parent.below:
            if child.total >= least:
                parts.append(_node(child, x, level, root.total))
                if level < MOST_LEVELS:
                    stack.append((child, x, level + 1))
                x += WIDTH * child.total / root.total
                deepest = max(deepest, level)
        if rest := sum(small):
            title, shown_name = plural(len(small), "smaller part"), f"{len(small)} more"
            parts.append(_part(shown_name, title, "h-more", x, level, rest, root.total))
            deepest = max(deepest, level)
    return drawing(name, (deepest + 1) * _ROW, label, parts, "icicle roomy")


def _node(node: Node, x: float, level: int, whole: float) -> Markup:
    times = f" ×{node.count}" if node.count > 1 else ""
    title = " > ".join(shown(one, 120) for one in node.names[-4:]) + times
    title = f"… > {title}" if len(node.names) > 4 else title
    if level == MOST_LEVELS and node.below:
        title += "; what is below it is not drawn"
    itself = f" ({format_quantity(node.own, 'ms')} itself)" if node.own != node.total else ""
    shade = f"h-{sum(node.own / whole >= least for least in _SHADES)}"
    return _part(f"{node.names[-1]}{times}", title, shade, x, level, node.total, whole, itself)


def _part(
    name: str,
    title: str,
    shade: str,
    x: float,
    level: int,
    total: float,
    whole: float,
    itself: str = "",
) -> Markup:
    """A part, with as much of its name as fits: of a Python function, first its name alone."""
    width = WIDTH * total / whole
    shapes = [box(shade, x, level * _ROW, max(width - 1, 0.5), _ROW - 1)]
    letters = int((width - 10) / _LETTER)
    if letters >= 3:
        frame = _FRAME.fullmatch(name) if len(name) > letters else None
        label = shown(frame[1] if frame else name, letters)
        shapes.append(text(x + 5, level * _ROW + 15, label))
    told = f"{title}: {format_quantity(total, 'ms')}{itself}, {cell('share', total / whole)}"
    return mark(*shapes, title=told, value=total)


# ---- What became slower and what faster, as bars to both sides.

#: Names are left of this, the bars right of it; each bar has room for a number beside it.
_NAMES, _NUMBER, _CHANGE = 320, 76, 24
MOST_BARS: Final = 20


def change_bars(name: str, changes: Sequence[tuple[str, float, float]], what: str) -> Markup:
    """The largest changes of names and their ms in both traces, slower to the right; ``what`` is
    what the time is. Nothing if there are none.
    """
    changed = [(now - before, who, before, now) for who, before, now in changes if now != before]
    rows = sorted(changed, key=lambda row: -abs(row[0]))[:MOST_BARS]
    if not rows:
        return Markup("")
    middle = (_NAMES + WIDTH) / 2
    unit = (WIDTH - middle - _NUMBER) / abs(rows[0][0])
    parts = [line("zero", middle, middle, 0, len(rows) * _CHANGE)]
    for at, (ms, who, before, now) in enumerate(rows):
        top, width = at * _CHANGE, max(abs(ms) * unit, 0.5)
        left, end, side = (
            (middle, width + 6, "start") if ms > 0 else (middle - width, -width - 6, "end")
        )
        number = f"{'+' if ms > 0 else ''}{format_quantity(ms, 'ms')}"
        title = f"{shown(who)}: {' → '.join(format_pair(before, now, 'ms'))}"
        shapes = (
            text(0, top + 16, shown(who, 40)),
            box("up" if ms > 0 else "down", left, top + 4, width, _CHANGE - 8),
            text(middle + end, top + 16, number, "small", side),
        )
        parts.append(mark(*shapes, title=title, value=ms))
    number = plural(len(rows), "largest change") if len(rows) > 1 else "largest change"
    told = f"The {number} of {what}, slower to the right"
    plot = drawing(name, len(rows) * _CHANGE, told, parts)
    return joined((element("p", told, class_="quiet"), plot))
