"""A device over time: what it was busy with, when it was idle, and the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from pytest_torchprof.analysis.breakdown import IDLE
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.render.html.plots.palette import category_class, category_name
from pytest_torchprof.render.html.plots.scales import Linear, ticks
from pytest_torchprof.render.html.plots.svg import coordinate, drawing, element, joined, mark, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.analysis.busy_timeline import BusyTimeline

_WIDTH: Final = 960
_LEFT: Final = 64
_BAND: Final = 16  # of the steps
_ROW: Final = 72  # of a device
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
    x = Linear(begin, end, _LEFT, _WIDTH - 8)
    drawn = [step for step in steps if step.end_ns > begin and step.begin_ns < end]
    top = _BAND + 8 if drawn and len(drawn) <= MOST_STEPS else 0
    bottom = top + len(rows) * (_ROW + _GAP) - _GAP
    parts = _axis(x, top, bottom)
    parts += [_step(step, x, top) for step in drawn] if top else []
    for at, row in enumerate(rows):
        parts.append(_device(row, x, top + at * (_ROW + _GAP)))
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
        y = float(top + _ROW)
        told = []
        for category, values in row.ns_by_category.items():
            ns, share = values[at], values[at] / (end - begin) if end > begin else 0.0
            if not ns:
                continue
            told.append(f"{category_name(category)} {format_quantity(ns / 1e6, 'ms')}")
            if category == IDLE:
                continue
            high = share * _ROW
            y -= high
            paths.setdefault(category, []).append(
                f"M{coordinate(left)} {coordinate(y)}H{coordinate(right)}"
                f"V{coordinate(y + high)}H{coordinate(left)}z"
            )
        at_ms = format_quantity(begin / 1e6, "ms")
        titles.append(
            mark(
                element("rect", class_="t-hit", x=left, y=top, width=right - left, height=_ROW),
                title=f"{name} at {at_ms}: {', '.join(told) or 'not measured'}",
            )
        )
    back = element(
        "rect",
        class_="c-idle" if IDLE in row.ns_by_category else "not-measured",
        x=x.at(row.edges[0]),
        y=top,
        width=x.at(row.edges[-1]) - x.at(row.edges[0]),
        height=_ROW,
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
    return joined([back, *filled, *titles, text(0, top + _ROW / 2 + 4, name, "small")])


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
