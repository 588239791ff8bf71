"""The anti-pattern rules of one pytest session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.errors import SettingsError

if TYPE_CHECKING:
    from pytest_torchprof.rules.plugged import Rulebook

_BOOK = pytest.StashKey[tuple[int, "Rulebook"]]()


def rules_of(config: pytest.Config) -> Rulebook:
    """Built-in rules, those of entry points, and those of conftest files and plugins so far.

    A conftest file below the first ones is loaded during collection; its rules are there after it.

    Raises:
        SettingsError: a rule of a code that is taken, something that is no rule, or a hook that
            raises.
    """
    from pytest_torchprof.rules.plugged import gather

    hooks = config.hook.pytest_torchprof_rules.get_hookimpls()
    known = config.stash.get(_BOOK, None)
    if known is not None and known[0] == len(hooks):
        return known[1]
    asked = [(_source(config, impl), _answer(config, impl)) for impl in hooks]
    book = gather(asked)
    config.stash[_BOOK] = len(hooks), book
    return book


def _answer(config: pytest.Config, impl: Any) -> object:
    """What one implementation of the hook returns; asked apart, so that its source is known."""
    try:
        return impl.function(*[{"config": config}[name] for name in impl.argnames])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise SettingsError(
            f"pytest_torchprof_rules of {_source(config, impl)} raised",
            f"{type(error).__name__}: {error}",
        ) from error


def _source(config: pytest.Config, impl: Any) -> str:
    """The file of a conftest, or the name of a plugin."""
    file = getattr(impl.plugin, "__file__", None)
    if file and os.path.basename(file) == "conftest.py":  # noqa: PTH119 - a name, not a file
        return os.path.relpath(file, config.rootpath)
    return f"the plugin {impl.plugin_name}"
