"""What of a test's accepted numbers an update changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pytest_torchprof.core.results import of_rules
from pytest_torchprof.core.structs import Frozen

OWN, REGIONS, UNSTABLE, RANKS = "own", "regions", "unstable", "ranks"
SECTIONS = ("metrics", "operators", "kernels", "findings", "times")
#: Those of a region.
OF_REGION = ("metrics", "operators", "kernels", "findings", "own", "times")


class Change(Frozen, frozen=True):
    """One accepted number, before and now; None where there is none.

    ``rule`` is the one whose findings the metric counts, where it counts those of one, and
    ``region`` the named region that it is of.
    """

    test: str
    metric: str
    before: float | None
    now: float | None
    rule: str | None = None
    region: str | None = None

    @property
    def label(self) -> str:
        """The metric with its region and rule, as reports name it."""
        name = self.metric if self.rule is None else of_rules(self.metric, [self.rule])
        return name if self.region is None else f"{self.region}: {name}"


def changes(test: str, old: Mapping[str, float], new: Mapping[str, float]) -> list[Change]:
    """Names whose numbers differ, with both."""
    return [
        Change(test, name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def region_changes(
    test: str, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    """Those of named regions."""
    return [
        replace(change, region=name)
        for name in sorted(old.keys() | new.keys())
        for section in ("metrics", OWN)
        for change in changes(
            test, old.get(name, {}).get(section, {}), new.get(name, {}).get(section, {})
        )
    ]


def same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether all but times are equal, in regions, too."""
    return _timeless(old) == _timeless(new)


def _timeless(entry: Mapping[str, Any]) -> dict[str, Any]:
    sections = {
        section: entry[section]
        for section in (*SECTIONS, OWN, UNSTABLE, RANKS)
        if section != "times" and entry.get(section)
    }
    regions = {
        name: {section: part for section, part in region.items() if section != "times"}
        for name, region in entry.get(REGIONS, {}).items()
    }
    return {**sections, REGIONS: regions}
