"""Findings and operators with their places, for the message of a failing test."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.findings import more_modules

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Finding, Profile

#: An operator's name → (location, module, calls) for each place that calls it.
Where = Callable[[str], Sequence[tuple[str, str | None, int]]]

_MOST_PLACES = 3


class Accepted(NamedTuple):
    """Accepted counts by rule; None for those of ``apart`` that have none.

    ``apart`` are rules that a metric of their own counts: of these, no lines are accepted.
    """

    counts: Mapping[str, int | None]
    apart: Collection[str] = ()


def accepted_counts(profile: Profile, baseline: Baseline | None) -> Accepted | None:
    """What is accepted of each rule; None without a baseline that knows findings."""
    if baseline is None or "findings" not in baseline.metrics:
        return None
    apart = {rule: metric for rule, metric in profile.gated.items() if metric}
    own = {rule: baseline.metrics.get(metric) for rule, metric in apart.items()}
    counts = {rule: None if count is None else int(count) for rule, count in own.items()}
    return Accepted({**baseline.findings, **counts}, apart)


def finding_lines(findings: Iterable[Finding], before: Accepted | None, room: int) -> list[str]:
    """A block per rule, costliest first: counts, places, what was found, and the fix.

    ``before`` has accepted counts, None without a baseline.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    groups = sorted(by_rule.values(), key=lambda rows: (-_cost(rows), rows[0].rule))
    lines: list[str] = []
    for number, rows in enumerate(groups):
        block, rest = _block(rows, before), groups[number + 1 :]
        if len(lines) + len(block) + bool(rest) > room:
            names = ", ".join(rows[0].rule for rows in groups[number:])
            left = sum(f.count for rows in groups[number:] for f in rows)
            return [*lines, f"  … and {left} more: {names}"]
        lines += block
    return lines


def _cost(findings: Iterable[Finding]) -> float:
    return sum(finding.cost_ms or 0 for finding in findings)


def _block(found: Sequence[Finding], before: Accepted | None) -> list[str]:
    rule, now, cost = found[0].rule, sum(f.count for f in found), _cost(found)
    gated = found[0].gated
    accepted = None if before is None or not gated else before.counts.get(rule, 0)
    counts = f"×{now}" if accepted is None else f"{accepted} → {now}"
    counts += "" if gated else " (advice)"
    if accepted and before is not None and rule in before.apart:
        counts += f" ({accepted} of these accepted: a baseline keeps no lines)"
    costs = f", about {format_quantity(cost, 'ms')}" if cost else ""
    moved = sum(f.bytes or 0 for f in found)
    moves = f", {format_quantity(moved, 'B')} moved" if moved else ""
    lines = [f"  {rule} {counts}{costs}{moves}:"]
    for finding in found[:_MOST_PLACES]:
        times = f" ({finding.count}×)" if finding.count > 1 else ""
        more = more_modules(finding.module, finding.modules)
        module = f" in {finding.module}{more}" if finding.module else ""
        place = f"{finding.location}{times}{module}: " if finding.location else ""
        lines.append(f"    {place}{finding.message}")
    if left := len(found[_MOST_PLACES:]):
        lines.append(f"    … and {plural(left, 'more place')}")
    fixes = dict.fromkeys(f.fix for f in found if f.fix)
    return lines + [f"    fix: {fix}" for fix in fixes]


# -------------------------------------------------------------------- operators


def called_from(places: Sequence[tuple[str, str | None, int]]) -> str:
    """``tests/test_a.py:31 (3×), :40 in model.blocks.*.attn``; empty if nothing is known."""
    count: dict[str, int] = {}
    for location, _, calls in places:
        count[location] = count.get(location, 0) + calls
    words, file = [], ""
    ordered = sorted(count, key=lambda at: (-count[at], _file_and_line(at)))
    for location in ordered[:_MOST_PLACES]:
        here, _, line = location.rpartition(":")
        times = f" ({count[location]}×)" if count[location] > 1 else ""
        words.append(f"{'' if here == file else here}:{line}{times}")
        file = here
    if left := ordered[_MOST_PLACES:]:
        words.append(f"{len(left)} more")
    return ", ".join(words) + _within({module for _, module, _ in places})


def _file_and_line(location: str) -> tuple[str, int]:
    file, _, line = location.rpartition(":")
    return file, int(line)


def _within(modules: set[str | None]) -> str:
    """The module of all calls; modules that differ only in numbers are shown as one."""
    if len(modules) > 1:
        modules = {module and re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module) for module in modules}
    (module, *others) = modules or {None}
    return f" in {module}" if module and not others else ""
