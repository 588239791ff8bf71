"""Findings that a marker allows in one place: at a line, within a module, or in an operator."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.places.place import PATH_SEPARATOR, by_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.core.results import Finding, Value
    from pytest_torchprof.verdict.measured import Measured


class Allowance(Frozen, frozen=True):
    """What ``allow_antipatterns`` allows with a place: rules, the reason, and where.

    ``line`` is ``file`` or ``file:line``, by the end of the path; ``module`` the class or path of a
    module around it, and ``op`` an operator, each by name or glob. All that are given must fit.
    """

    rules: tuple[str, ...]
    reason: str
    op: str | None = None
    module: str | None = None
    line: str | None = None

    def allows(self, finding: Finding) -> bool:
        """Whether this finding is at such a place.

        >>> from pytest_torchprof.core.results import Finding
        >>> found = Finding("host-read", 1, "", "src/sampler.py:12", path="aten::item")
        >>> Allowance(("host-read",), "by design", line="sampler.py").allows(found)
        True
        >>> Allowance(("host-read",), "by design", line="sampler.py:1").allows(found)
        False
        """
        if finding.rule not in self.rules:
            return False
        return (
            (self.op is None or _any(self.op, (finding.path or "").split(PATH_SEPARATOR)))
            and (self.module is None or _in_module(self.module, finding.module or ""))
            and (self.line is None or _at_line(self.line, finding.location or ""))
        )


def _any(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _in_module(pattern: str, path: str) -> bool:
    """A module's path, or a part of it, which is an attribute or a class."""
    return bool(path) and _any(pattern, [path, *path.replace(PATH_SEPARATOR, ".").split(".")])


def _at_line(line: str, location: str) -> bool:
    if ":" not in line:
        location = location.rpartition(":")[0]
    return location == line or location.endswith(f"/{line}")


def allowance_of(finding: Finding, allowances: Sequence[Allowance]) -> Allowance | None:
    """The first that allows it; None if none does."""
    return next((one for one in allowances if one.allows(finding)), None)


def allowed_matches(measured: Measured) -> dict[str, int]:
    """How many matches of each rule are allowed at their places, as far as these are known."""
    if not measured.allowances:
        return {}
    counts: dict[str, int] = {}
    for finding in measured.checked.findings(measured.located or by_operator):
        if allowance_of(finding, measured.allowances) is not None:
            counts[finding.rule] = counts.get(finding.rule, 0) + finding.count
    return counts


def without_allowed(
    measured: Measured, values: dict[str, Value], found: dict[str, int]
) -> tuple[dict[str, Value], dict[str, int]]:
    """Metrics and matches without what is allowed at its place."""
    allowed = allowed_matches(measured)
    if not allowed:
        return values, found
    less = {"findings": 0}
    for rule in measured.rules:
        if rule.code in allowed:
            metric = rule.gated_by if rule.on_request and rule.gated_by else "findings"
            less[metric] = less.get(metric, 0) + allowed[rule.code]
    values = {
        name: value - less[name] if name in less and isinstance(value, int) else value
        for name, value in values.items()
    }
    return values, {rule: count - allowed.get(rule, 0) for rule, count in found.items()}
