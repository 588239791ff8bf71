"""What all plots share: elements of SVG and HTML as text, scales, axes, and classes of colors.

All names are escaped and shortened. No plot has a script, a style attribute or a color of its own:
classes get theirs from `plots.css`.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The longest name in a title or a table's tooltip.
LONGEST: Final = 300
#: Of a plot, in pixels: how wide it is, and where its axes begin and end.
WIDTH, LEFT, RIGHT = 960, 72, 952
_EMPTY: Final = frozenset({"rect", "path", "line", "circle"})


# ---- Elements.


def shown(name: str, width: int = LONGEST) -> str:
    r"""A name from a trace in one line: hidden characters spelled out, the middle cut.

    >>> print(shown("a\x1b[31m\nb"), shown("x" * 20, 9))
    a\x1b[31m\nb xxxx…xxxx
    """
    if len(name) > 4 * LONGEST:  # what is cut anyway needs no look at each character
        name = f"{name[: 2 * LONGEST]}…{name[-2 * LONGEST :]}"
    return shorten(escape.line(name), width)


def element(tag: str, *inside: str | Markup | None, **attributes: str | float | None) -> Markup:
    """An element; what is None is left out, and ``class_`` is ``class``, ``data_value`` is
    ``data-value``.

    >>> print(element("rect", class_="c-gemm", x=1.50, rx=None), element("b", "<"))
    <rect class="c-gemm" x="1.5"/> <b>&lt;</b>
    """
    words = [
        Markup(' {}="{}"').format(
            key.removesuffix("_").replace("_", "-"),
            coordinate(value) if isinstance(value, int | float) else value,
        )
        for key, value in attributes.items()
        if value is not None
    ]
    start = Markup("<{}{}").format(tag, joined(words))
    parts = [part for part in inside if part is not None]
    if not parts and tag in _EMPTY:
        return start + Markup("/>")
    return start + Markup(">{}</{}>").format(joined(parts), tag)


def joined(parts: Iterable[str | Markup]) -> Markup:
    """One after the other; what is not markup is escaped."""
    return Markup("").join(parts)


def coordinate(value: float) -> str:
    """A number of pixels, to a hundredth.

    >>> coordinate(12.0), coordinate(0.128), coordinate(-0.001)
    ('12', '0.13', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def exact(value: Any) -> str:
    """A value as ``--format json`` prints it, for ``data-value``.

    >>> exact(0.1), exact(None), exact(12)
    ('0.1', 'null', '12')
    """
    return json.dumps(None if value != value else value)  # noqa: PLR0124 - NaN


def text(x: float, y: float, words: str, class_: str = "", anchor: str | None = None) -> Markup:
    """A line of text; ``anchor`` as in SVG, by default its start."""
    return element("text", words, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def turned(x: float, y: float, degrees: float, words: str, class_: str) -> Markup:
    """A line of text in another direction, with its middle there."""
    move = f"translate({x:.1f} {y:.1f}) rotate({degrees:.1f})"
    return element("text", words, class_=class_, text_anchor="middle", transform=move)


def box(class_: str, x: float, y: float, width: float, height: float) -> Markup:
    """A rectangle."""
    return element("rect", class_=class_, x=x, y=y, width=width, height=height)


def line(class_: str, x1: float, x2: float, y1: float, y2: float) -> Markup:
    """A straight line."""
    return element("line", class_=class_, x1=x1, x2=x2, y1=y1, y2=y2)


def mark(*shapes: Markup, title: str, value: Any = None) -> Markup:
    """Shapes that stand for a number, which a pointer or a screen reader is told in ``title``."""
    value = None if value is None else exact(value)
    return element("g", element("title", title), *shapes, data_value=value)


def drawing(
    name: str, height: float, label: str, parts: Iterable[Markup], class_: str = "roomy"
) -> Markup:
    """A plot: ``label`` tells in words what it shows; narrow screens scroll it.

    One of the class ``bar`` keeps its height in any width instead, so it must have no text.
    """
    plot = element(
        "svg",
        element("title", label),
        *parts,
        viewBox=f"0 0 {WIDTH} {coordinate(height)}",
        preserveAspectRatio="none" if class_ == "bar" else None,
        role="img",
        aria_label=label,
        data_plot=name,
        class_=f"plot {class_}",
        xmlns="http://www.w3.org/2000/svg",
    )
    return element("div", plot, class_="plot-frame")


def legend(entries: Iterable[tuple[str, str, str, Any]]) -> Markup:
    """What the colors are: class, name, number in words, exact number."""
    items = [
        element(
            "li",
            element("span", class_=f"swatch {class_}", aria_hidden="true"),
            element("span", name, class_="t-what"),
            element("span", words, class_="t-num", data_value=exact(value)),
        )
        for class_, name, words, value in entries
    ]
    return element("ul", *items, class_="legend")


# ---- Where numbers stand on an axis, and which of them to write.


class Scale(Frozen, frozen=True):
    """From numbers to pixels; ``log``: from positive numbers, by their logarithm.

    >>> Scale(0, 10, 100, 200).at(2.5), Scale(1, 100, 0, 200, log=True).at(10)
    (125.0, 100.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a number."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        share = (value - low) / (high - low) if high != low else 0.0
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int, unit: float = 1.0) -> list[float]:
        """About so many round multiples of the ``unit``; the powers of 10 on logarithmic axes.

        >>> Scale(0, 7.2, 0, 1).ticks(5), Scale(0, 0, 0, 1).ticks(5)
        ([0.0, 2.0, 4.0, 6.0], [0])
        >>> Scale(0.5, 200, 0, 1, log=True).ticks(5)
        [1.0, 10.0, 100.0]
        """
        low, high = self.low / unit, self.high / unit
        if not high > low:
            return [self.low]
        if self.log:
            powers = range(
                math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1
            )
            return [10.0**power for power in powers]
        rough = (high - low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough * (1 - 1e-9))
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [number * step * unit for number in range(first, last + 1)]


def in_unit(unit: str) -> Callable[[float], str]:
    """What an axis says of a number of this unit."""
    return lambda value: format_quantity(value, unit) if value else "0"


def x_axis(
    x: Scale, values: Iterable[float], words: Callable[[float], str], top: float, bottom: float
) -> list[Markup]:
    """A line at each value, from ``top`` to ``bottom``, and what it is."""
    marks = []
    for value in values:
        at = x.at(value)
        anchor = "end" if at > x.end - 24 else "middle"
        marks.append(line("grid", at, at, top, bottom))
        marks.append(text(at, bottom + 14, words(value), "small", anchor))
    return marks


def y_axis(y: Scale, values: Iterable[float], words: Callable[[float], str]) -> list[Markup]:
    """A line at each value over the whole width, and what it is."""
    marks = []
    for value in values:
        marks.append(line("grid", LEFT, RIGHT, y.at(value), y.at(value)))
        marks.append(text(LEFT - 8, y.at(value) + 4, words(value), "small", "end"))
    return marks


def category_class(category: str) -> str:
    """The class of a category of device time, or of memory; `plots.css` gives it its color.

    >>> category_class("gemm"), category_class("m optimizer_state"), category_class("idle")
    ('c-gemm', 'c-m-optimizer-state', 'c-idle')
    """
    return f"c-{re.sub('[^a-z]+', '-', category.lower())}"
