"""Measured numbers that know their unit and where they come from, so that assertions show both."""

from __future__ import annotations

import operator
from functools import partialmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.units import format_quantity

if TYPE_CHECKING:
    from collections.abc import Callable


class Source(NamedTuple):
    """Where a number comes from: a metric of a region of the test that ``owner`` measured.

    ``lap`` is None for all laps together.
    """

    owner: Any
    region: str
    metric: str
    lap: int | None = None

    @property
    def part(self) -> str:
        """The region as failures name it, with the lap in brackets."""
        return self.region if self.lap is None else f"{self.region}[{self.lap}]"

    def __str__(self) -> str:
        return f"{self.part}.{self.metric}"


class _Named:
    """What both kinds of numbers share: the text of the expression, its unit and its sources."""

    whole: bool
    unit: str
    text: str
    sources: tuple[Source, ...]

    def __repr__(self) -> str:
        """With its unit and origin: ``3 MiB (plain.peak_cpu_bytes)``."""
        shown = format_quantity(self.plain(), self.unit) if self.unit else f"{self.plain():g}"
        return f"{shown} ({self.text})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """The number alone in this format; without one, with its unit and origin."""
        return format(self.plain(), spec) if spec else repr(self)

    def __reduce__(self) -> Any:
        """Another process, or a copy, has the number alone."""
        return type(self.plain()), (self.plain(),)

    def plain(self) -> Any:
        """The number alone."""
        raise NotImplementedError


class RegionNumber(_Named, float):
    """A number: a ``float`` in all respects, since ``0.6 * count`` of an ``int`` forgets the count.

    A whole one formats and serves as an index like an ``int``.
    """

    def plain(self) -> int | float:
        """The number alone."""
        value = float.__add__(self, 0.0)
        return int(value) if self.whole else value

    def __index__(self) -> int:
        """The number, if it is whole."""
        if not self.whole:
            raise TypeError(f"{self!r} is not a whole number")
        return int(self)


class LargeRegionNumber(_Named, int):
    """A count that a ``float`` cannot hold exactly."""

    def plain(self) -> int:
        """The number alone."""
        return int.__add__(self, 0)


#: Up to here, a float holds each whole number.
_EXACT = 2**53


def region_number(
    value: float, unit: str, text: str, *sources: Source
) -> RegionNumber | LargeRegionNumber:
    """A number with its unit and its origin.

    >>> peak = region_number(3 * 2**20, "B", "plain.peak_cpu_bytes")
    >>> peak, 0.5 * peak, peak > 2**20
    (3 MiB (plain.peak_cpu_bytes), 1.5 MiB (0.5 * plain.peak_cpu_bytes), True)
    """
    whole = isinstance(value, int)
    made: RegionNumber | LargeRegionNumber = RegionNumber(value)
    if whole and abs(value) > _EXACT:
        made = LargeRegionNumber(value)
    made.whole, made.unit, made.text, made.sources = whole, unit, text, sources
    return made


_KEEPS_UNIT = frozenset({"+", "-", "%", "//"})


def _operation(sign: str, function: Callable[[Any, Any], Any]) -> None:
    """Define an operator, both ways round, on both kinds of numbers."""

    def apply(one: Any, other: Any, *, turned: bool) -> Any:
        plain = other.plain() if isinstance(other, _Named) else other
        if not isinstance(plain, int | float):
            return NotImplemented
        left, right = (plain, one.plain()) if turned else (one.plain(), plain)
        value = function(left, right)
        left, right = (other, one) if turned else (one, other)
        units = [side.unit if isinstance(side, _Named) else "" for side in (left, right)]
        return region_number(
            value,
            _unit(sign, *units),
            f"{_text(left)} {sign} {_text(right)}",
            *one.sources,
            *(other.sources if isinstance(other, _Named) else ()),
        )

    for kind in (RegionNumber, LargeRegionNumber):
        setattr(kind, f"__{function.__name__}__", partialmethod(apply, turned=False))
        setattr(kind, f"__r{function.__name__}__", partialmethod(apply, turned=True))


def _unit(sign: str, left: str, right: str) -> str:
    """The unit of a result; empty where it has none that we have a name for."""
    if sign in _KEEPS_UNIT:
        return left or right
    if sign == "*":
        return left or right if not (left and right) else ""
    return left if sign == "/" and not right else ""


def _text(side: Any) -> str:
    if not isinstance(side, _Named):
        return f"{side}"
    return f"({side.text})" if " " in side.text else side.text


for _sign, _function in {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}.items():
    _operation(_sign, _function)


def in_unit_of(number: object, other: object) -> str:
    """The text of ``other``: a plain number in the unit of the ``number`` that it is compared with.

    >>> in_unit_of(region_number(2048, "B", "decode.peak_cpu_bytes"), 1024)
    '1 KiB'
    """
    plain = isinstance(other, int | float) and not isinstance(other, _Named)
    if plain and isinstance(number, _Named) and number.unit:
        return format_quantity(other, number.unit)  # type: ignore[arg-type]
    return repr(other)
