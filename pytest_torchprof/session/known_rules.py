"""The anti-pattern rules of one pytest session."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.core.errors import SettingsError

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
        books[key] = gather([(_source(config, impl), _answer(config, impl)) for impl in hooks])
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


def _answer(config: pytest.Config, impl: Any) -> object:
    """Call one hook implementation by itself, so that an error can name its source."""
    try:
        return impl.function(*[{"config": config}[name] for name in impl.argnames])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise SettingsError(
            f"pytest_torchprof_rules in {_source(config, impl)} raised",
            f"{type(error).__name__}: {error}",
        ) from error


def _source(config: pytest.Config, impl: Any) -> str:
    """The conftest file, or the plugin's name."""
    file = getattr(impl.plugin, "__file__", None)
    if file and os.path.basename(file) == "conftest.py":  # noqa: PTH119 - a name, not a file
        return os.path.relpath(file, config.rootpath)
    return f"the plugin {impl.plugin_name}"
