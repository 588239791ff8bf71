"""Drifts of many tests at once: the machine may have changed, not the code. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.history.ancestry import Order
    from pytest_torchprof.history.question import SeriesAnswer

#: Drifts this many runs apart may have one cause.
_CLOSE = 10
#: So many tests, and at least half of those that have times there.
_LEAST = 3


def shared_drifts(series: Sequence[SeriesAnswer], order: Order) -> list[str]:
    """A line for each machine and moment at which most tests drift in one direction."""
    by_machine: dict[str, list[SeriesAnswer]] = {}
    for one in series:
        if one.series.klass == "time":
            by_machine.setdefault(one.series.machine, []).append(one)
    lines = []
    for machine, answers in sorted(by_machine.items()):
        tests = {one.series.test for one in answers}
        for slower, what in ((True, "more"), (False, "less")):
            found = sorted(
                (change.at, one.series.test)
                for one in answers
                for change in one.changes
                if (change.value > change.before) == slower
            )
            for group in _close(found):
                drifting = {test for _, test in group}
                if len(drifting) >= max(_LEAST, len(tests) / 2):
                    run = order.runs[group[0][0]]
                    at = run.commit[:10] if run.commit else run.started[:10]
                    lines.append(
                        f"{len(drifting)} of {len(tests)} tests drift to {what} at about {at} on "
                        f"{machine}: the machine may have changed, not the code"
                    )
    return lines


def _close(found: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Neighbors by position."""
    groups: list[list[tuple[int, str]]] = []
    for one in found:
        if groups and one[0] - groups[-1][-1][0] <= _CLOSE:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
