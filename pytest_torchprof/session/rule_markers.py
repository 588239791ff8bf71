"""The markers that forbid or allow findings of rules."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.session.markers import check_arguments

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.results import Budget
    from pytest_torchprof.verdict.allowances import Allowance


def antipatterns_of(item: pytest.Item) -> tuple[list[Budget], dict[str, str]]:
    """(limits of 0 set by ``no_antipatterns``; rule → reason, set by ``allow_antipatterns``).

    Markers at all levels count. If one forbids by name what another allows, the closer one wins;
    at the same level, the one that allows.

    Raises:
        SettingsError: an unknown rule, or an allowance without a reason.
    """
    from pytest_torchprof.core.results import Budget

    any_rule, named = False, set[str]()
    places: dict[int, tuple[dict[str, str], set[str]]] = {}
    for node, mark in item.iter_markers_with_node():
        allowed, forbidden = places.setdefault(id(node), ({}, set()))
        if mark.name == "no_antipatterns":
            check_arguments(mark.name, mark.kwargs, ())
            forbidden |= _rules_of(mark, item.config)
            any_rule |= not mark.args
        elif mark.name == "allow_antipatterns":
            reason = _reason_of(mark)
            if _PLACES.isdisjoint(mark.kwargs):
                allowed.update(dict.fromkeys(_rules_of(mark, item.config), reason))
    reasons: dict[str, str | None] = {}
    for allowed, forbidden in places.values():  # closest first
        reasons = {**dict.fromkeys(forbidden), **allowed, **reasons}
        named |= forbidden
    budgets = [Budget("findings", 0)] if any_rule else []
    if named:
        budgets.append(Budget("findings", 0, rules=tuple(sorted(named))))
    return budgets, {rule: reason for rule, reason in reasons.items() if reason is not None}


#: Where ``allow_antipatterns`` may allow findings, if not in the whole test.
_PLACES: Final = frozenset({"op", "module", "line"})


def _reason_of(mark: pytest.Mark) -> str:
    """The reason of an allowance.

    Raises:
        SettingsError: it has no rules or no reason, or a place that is none.
    """
    check_arguments(mark.name, mark.kwargs, ("reason", *sorted(_PLACES)))
    reason = mark.kwargs.get("reason")
    if not mark.args or not isinstance(reason, str) or not reason.strip():
        raise SettingsError(
            'allow_antipatterns takes rules and a reason: ("host-sync", reason="…")'
        )
    for name in sorted(_PLACES & mark.kwargs.keys()):
        value = mark.kwargs[name]
        if not isinstance(value, str) or not value.strip():
            raise SettingsError(f"allow_antipatterns: {name}={value!r} is no name; give a text")
    return reason


def allowances_of(item: pytest.Item) -> tuple[Allowance, ...]:
    """What ``allow_antipatterns`` allows at one place only.

    Raises:
        SettingsError: as `antipatterns_of`.
    """
    marks = [
        mark
        for mark in item.iter_markers("allow_antipatterns")
        if not _PLACES.isdisjoint(mark.kwargs)
    ]
    if not marks:
        return ()
    from pytest_torchprof.verdict.allowances import Allowance

    return tuple(
        Allowance(
            tuple(sorted(_rules_of(mark, item.config))),
            _reason_of(mark),
            **{name: mark.kwargs[name] for name in _PLACES & mark.kwargs.keys() - {"line"}},
            line=_line(mark.kwargs.get("line")),
        )
        for mark in marks
    )


def _line(line: str | None) -> str | None:
    """The line without what a path may have in it and a location has not: ``./x.py:3``."""
    if line is None:
        return None
    path, separator, number = line.rpartition(":")
    if not (separator and number.isdecimal()):
        path, separator, number = line, "", ""
    return f"{posixpath.normpath(path)}{separator}{number}"


def _rules_of(mark: pytest.Mark, config: pytest.Config) -> frozenset[str]:
    from pytest_torchprof.session.known_rules import check_rules

    return check_rules(map(str, mark.args), config)
