"""Metrics that users define: what they declare of one, and the numbers that they may give.

A test may record numbers without profiling, so this loads nothing.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Collection
from typing import Any, Literal

from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.core.structs import Sendable

Better = Literal["lower", "higher"]
Compare = Literal["exact", "near", "time", "never"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "better": ("lower", "higher"),
    "compare": ("exact", "near", "time", "never"),
}
#: Attributes of a region's numbers, keys beside times in a baseline, and an argument of markers.
_RESERVED = frozenset(
    {"laps", "table", "assert_expected_inline", "machine", "normalised", "metric", "own"}
)
_LONGEST_UNIT = 20
#: Beyond this, a baseline holds no number.
_LARGEST = 2**63 - 1


class OwnMetric(Sendable, frozen=True):
    """A metric that a test records, or that a user's function finds in a trace.

    ``unit`` is any text; empty where only a limit names the metric. ``compare``: ``exact`` must
    equal the baseline, ``near`` may differ by 1 %, ``time`` follows ``--torchprof-time``, and
    ``never`` is not stored. ``recorded``: by the test, not found in a trace.
    """

    name: str
    unit: str = "1"
    better: Better = "lower"
    compare: Compare = "exact"
    recorded: bool = False


def declared(
    name: object,
    unit: object,
    better: object,
    compare: object,
    *,
    taken: Collection[str],
    recorded: bool = False,
) -> OwnMetric:
    """The metric that a user declares; ``taken`` are the names of others.

    Raises:
        SettingsError: an argument is invalid, or the name is taken.
    """
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise SettingsError(
            f"a metric cannot be named {_shown(name)}",
            "it is not an identifier",
            'name it like a variable, "tokens_per_s"',
        )
    if name in taken or name in _RESERVED:
        raise SettingsError(
            f"a metric of one's own cannot be named {name!r}",
            "torchprof has a meaning for this name" if name in _RESERVED else "it is taken",
            "give it another name",
        )
    if not isinstance(unit, str) or not unit or len(unit) > _LONGEST_UNIT or unit.split() != [unit]:
        raise SettingsError(
            f"{name}: {_shown(unit)} is not a unit",
            "a unit is a short text without spaces",
            'write unit="1/s", or "1" for a plain number',
        )
    for what, given in {"better": better, "compare": compare}.items():
        if given not in _CHOICES[what]:
            known = ", ".join(_CHOICES[what])
            hint = near(str(given), _CHOICES[what], listed=True)
            raise SettingsError(f"{name}: {what}={_shown(given)} is not one of {known}", "", hint)
    return OwnMetric(name, unit, better, compare, recorded)  # type: ignore[arg-type]


def number_of(value: Any, name: str) -> int | float:
    """The number that a user gives for a metric; of a tensor or an array, its only element.

    Raises:
        SettingsError: it is no finite number.

    >>> number_of(3, "tokens"), number_of(0.5, "loss")
    (3, 0.5)
    """
    __tracebackhide__ = True
    kind = type(value)
    found = ""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        found = "it is a truth value"
    elif not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
        found = f"{kind.__name__} is not a number"
    else:
        try:
            number = _plain(value)
        except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError) as error:
            found = str(error).partition("\n")[0] or type(error).__name__
        else:
            if -_LARGEST <= number <= _LARGEST:
                return number
            endless = number != number or number in (float("inf"), float("-inf"))  # noqa: PLR0124
            found = "it is not finite" if endless else "it is too large"
    raise SettingsError(
        f"{name} cannot be {_shown(value)}", found, "record a finite number, such as seconds"
    )


def _plain(value: Any) -> int | float:
    """An int if it is whole by its type, otherwise a float."""
    if hasattr(type(value), "plain"):  # a number of a region
        value = value.plain()
    elif hasattr(value, "dtype") and hasattr(value, "item"):  # of a tensor or an array
        value = value.item()
    if isinstance(value, float):
        return float(value)
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _shown(value: object) -> str:
    """A value in a message, shortened; one that cannot be shown has its type."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print the largest
    return " ".join(reprlib.repr(value).split())
