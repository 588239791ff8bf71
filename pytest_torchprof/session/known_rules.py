"""The anti-pattern rules of one pytest session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from pytest_torchprof.session.hook_answers import answers_of

if TYPE_CHECKING:
    from pytest_torchprof.rules.engine.gathering import Rulebook

_BOOKS = pytest.StashKey[dict[tuple[int, ...], "Rulebook"]]()


def rules_of(config: pytest.Config, item: pytest.Item | None = None) -> Rulebook:
    """Built-in rules, those of entry points, and those of plugins and conftest files.

    With ``item``, only conftest files that apply to that test; otherwise all that are loaded.

    Raises:
        SettingsError: a duplicate rule code, something that is not a rule, or a hook that
            raises.
    """
    from pytest_torchprof.rules.engine.gathering import gather

    caller = (config.hook if item is None else item.ihook).pytest_torchprof_rules
    hooks = caller.get_hookimpls()
    books = config.stash.setdefault(_BOOKS, {})
    key = tuple(map(id, hooks))
    if key not in books:
        books[key] = gather(answers_of(hooks, "pytest_torchprof_rules", config))
    return books[key]


def check_rules(codes: Iterable[str], config: pytest.Config) -> frozenset[str]:
    """Return these codes if each names a rule, built in or the user's own.

    Raises:
        SettingsError: an unknown code, with close matches, or an invalid user rule.
    """
    from pytest_torchprof.rules.engine.thresholds import checked

    return checked(codes, rules_of(config).rules)


def thresholds_of(text: str, config: pytest.Config) -> dict[str, dict[str, float]]:
    """Rule → name → value.

    Raises:
        SettingsError: an unknown rule or threshold, or a wrong unit.
    """
    from pytest_torchprof.rules.engine.thresholds import parse_thresholds

    return parse_thresholds(text, rules_of(config).rules.values()) if text.strip() else {}
