"""What all plots share: SVG elements, scales, and colors."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from pytest_torchprof.analysis.breakdown import EXPOSED
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable


# ---- Draw as text: elements of SVG and HTML with all names escaped and shortened.
#
# No plot has a script, a style attribute or a color of its own: classes get theirs from
# `plots.css`.

#: The longest name in a title or a table's tooltip.
LONGEST: Final = 300


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


_EMPTY: Final = frozenset({"rect", "path", "line", "circle", "polyline", "use"})


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


def mark(*shapes: Markup, title: str, value: Any = None, class_: str | None = None) -> Markup:
    """Shapes that stand for a number, which a pointer or a screen reader is told in ``title``."""
    value = None if value is None else exact(value)
    return element("g", element("title", title), *shapes, class_=class_, data_value=value)


def drawing(
    name: str,
    width: float,
    height: float,
    label: str,
    *inside: Markup,
    class_: str = "",
    stretched: bool = False,
) -> Markup:
    """A plot: ``label`` tells in words what it shows; narrow screens scroll it.

    ``stretched``: it is as wide as the page and keeps its height, so it must have no text.
    """
    plot = element(
        "svg",
        element("title", label),
        *inside,
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        preserveAspectRatio="none" if stretched else None,
        role="img",
        aria_label=label,
        data_plot=name,
        class_=f"plot {class_}".rstrip(),
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


def keys(entries: Iterable[tuple[str, str]]) -> Markup:
    """What the colors are, without numbers: class and name."""
    items = [
        element("li", element("span", class_=f"swatch {class_}", aria_hidden="true"), name)
        for class_, name in entries
    ]
    return element("ul", *items, class_="keys")


def nothing(why: str) -> Markup:
    """In place of a plot or table that would be empty: why it is."""
    return element("p", why, class_="t-nothing")


# ---- Where numbers stand on an axis, and which of them to write.


class Linear(Frozen, frozen=True):
    """From numbers to pixels.

    >>> Linear(0, 10, 100, 200).at(2.5)
    125.0
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a number."""
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.0
        return self.start + share * (self.end - self.start)


class Logarithmic(Frozen, frozen=True):
    """From positive numbers to pixels, by their logarithm.

    >>> Logarithmic(1, 100, 0, 200).at(10)
    100.0
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a number."""
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)


#: Steps between ticks, up to a power of 10.
_STEPS: Final = (1, 2, 5, 10)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About so many round numbers from ``low`` to ``high``.

    >>> ticks(0, 7.2, 5), ticks(0, 0, 5)
    ([0.0, 2.0, 4.0, 6.0], [0.0])
    """
    if not high > low:
        return [float(low)]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in _STEPS if power * one >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def byte_ticks(low: float, high: float, count: int) -> list[float]:
    """The same for bytes, which are written by powers of 1024.

    >>> [tick / 2**20 for tick in byte_ticks(0, 3 * 2**20, 4)]
    [0.0, 1.0, 2.0, 3.0]
    """
    unit = 1024.0 ** max(0, math.floor(math.log(max(high - low, 1), 1024)))
    return [tick * unit for tick in ticks(low / unit, high / unit, count)]


def decades(low: float, high: float) -> list[float]:
    """The powers of 10 from ``low`` to ``high``.

    >>> decades(0.5, 200)
    [1.0, 10.0, 100.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


# ---- The class of a mark, by what it stands for; `plots.css` gives each its color.

_NO_WORD: Final = re.compile(r"[^a-z]+")


def category_class(category: str) -> str:
    """Of a category of device time, or of memory.

    >>> category_class("gemm"), category_class("optimizer_state"), category_class("idle")
    ('c-gemm', 'c-optimizer-state', 'c-idle')
    """
    return f"c-{_NO_WORD.sub('-', category.lower())}"


def category_name(category: str) -> str:
    """In words, as in the table of `torchprof summary`."""
    return f"{category}, exposed" if category in EXPOSED else category
