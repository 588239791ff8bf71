"""Parts of a whole as one bar: where the device's time goes, and why it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.breakdown import IDLE, BreakdownRow
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.render.html.plots.palette import category_class, category_name
from pytest_torchprof.render.html.plots.svg import drawing, element, legend, mark
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from pytest_torchprof.places.idle_rows import IdleRow

_WIDTH: Final = 960
_HEIGHT: Final = 28


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
        shape = element("rect", class_=part.class_, x=x, y=0, width=width, height=_HEIGHT)
        bars.append(mark(shape, title=f"{part.name}: {part.words}", value=part.time_ms))
        x += width
    plot = drawing(name, _WIDTH, _HEIGHT, label, *bars, class_="bar", stretched=True)
    entries = [(part.class_, part.name, part.words, part.time_ms) for part in parts]
    return plot + legend(entries)
