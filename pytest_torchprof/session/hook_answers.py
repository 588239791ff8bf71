"""What the hooks answer that conftest files and plugins implement, each with its source."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import SettingsError

if TYPE_CHECKING:
    import pytest


def answers_of(hooks: Iterable[Any], name: str, config: pytest.Config) -> list[tuple[str, object]]:
    """(source, answer) of each implementation of the hook of this name.

    Raises:
        SettingsError: an implementation raises.
    """
    return [(_source(config, impl), _answer(config, impl, name)) for impl in hooks]


def _answer(config: pytest.Config, impl: Any, name: str) -> object:
    """Call one hook implementation by itself, so that an error can name its source."""
    try:
        return impl.function(*[{"config": config}[argument] for argument in impl.argnames])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise SettingsError(
            f"{name} in {_source(config, impl)} raised", f"{type(error).__name__}: {error}"
        ) from error


def _source(config: pytest.Config, impl: Any) -> str:
    """The conftest file, or the plugin's name."""
    file = getattr(impl.plugin, "__file__", None)
    if file and os.path.basename(file) == "conftest.py":  # noqa: PTH119 - a name, not a file
        return os.path.relpath(file, config.rootpath)
    return f"the plugin {impl.plugin_name}"
