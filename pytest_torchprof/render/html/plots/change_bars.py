"""What became slower and what faster, as bars to both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import format_pair, format_quantity, plural
from pytest_torchprof.render.html.plots.svg import drawing, element, joined, mark, shown, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

_WIDTH: Final = 960
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
