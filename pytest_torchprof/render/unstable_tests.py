"""The tests whose numbers vary, named under the summary table, and what to do about each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import format_pair, plural

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Range, Unstable

_MOST_TESTS, _MOST_METRICS, _MOST_OPERATORS = 10, 3, 3

_DRAWN: Final = (
    "with the values drawn; what varies is compared as a range",
    "to compare it exactly, fix the sizes and branches that its values decide",
)
_SAME: Final = (
    "with the same seed: a race, a cache, the time, or its own generator; that only advises",
    "to compare it, seed its own generators; --torchprof-strict compares it with the range",
)


def unstable_tests(found: Mapping[str, Unstable]) -> list[str]:
    """Lines for tests by node id: first those that vary with drawn values, then the others."""
    drawn = {test: one for test, one in found.items() if one.drawn}
    same = {test: one for test, one in found.items() if not one.drawn}
    return [*_lines(drawn, *_DRAWN), *_lines(same, *_SAME)]


def who_draws(drawn: Mapping[str, Sequence[str]], root: Path) -> list[str]:
    """Lines for files that draw while they are imported, and for fixtures, with generators.

    ``drawn`` has the generators by path, or by ``path::name`` of a fixture.
    """
    fixtures = [key for key in sorted(drawn) if "::" in key]
    files = [key for key in sorted(drawn) if "::" not in key]
    lines = []
    for keys, what, when in (files, "file", " while imported"), (fixtures, "fixture", ""):
        if not keys:
            continue
        shown = [f"{_relative(key, root)} ({', '.join(drawn[key])})" for key in keys]
        draw, their = ("draws", "its") if len(shown) == 1 else ("draw", "their")
        lines.append(
            f"{plural(len(shown), what)} {draw} random numbers{when}, so {their} tests may differ "
            f"in another process: {_listed(shown, _MOST_TESTS)}"
        )
    return [*lines, "  seed them there, or use --torchprof-seed-imports"]


def _relative(file: str, root: Path) -> str:
    path = Path(file)
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _lines(found: Mapping[str, Unstable], how: str, remedy: str) -> list[str]:
    if not found:
        return []
    lines = [f"{plural(len(found), 'test')} {'varies' if len(found) == 1 else 'vary'} {how}:"]
    lines += [f"  {test}: {_numbers(one)}" for test, one in list(found.items())[:_MOST_TESTS]]
    if (more := len(found) - _MOST_TESTS) > 0:
        lines.append(f"  … and {plural(more, 'more test')}")
    return [*lines, f"  {remedy}"]


def _numbers(one: Unstable) -> str:
    metrics = [f"{name} {_range(r, one.units[name])}" for name, r in one.ranges.items()]
    operators = [f"{name} {_range(r, '1')}" for name, r in _widest(one.operators)]
    by = f" ({_listed(operators, _MOST_OPERATORS)})" if operators else ""
    return f"{_listed(metrics, _MOST_METRICS)}{by}"


def _widest(operators: Mapping[str, Range]) -> list[tuple[str, Range]]:
    return sorted(operators.items(), key=lambda one: (one[1].low - one[1].high, one[0]))


def _range(one: Range, unit: str) -> str:
    return " to ".join(format_pair(one.low, one.high, unit))


def _listed(words: list[str], most: int) -> str:
    more = len(words) - most
    return ", ".join(words[:most]) + (f", {more} more" if more > 0 else "")
