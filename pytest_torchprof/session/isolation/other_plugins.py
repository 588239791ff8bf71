"""Hide extra runs from other plugins that watch tests or give them resources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.undo import Undo


def coverage_paused(undo: Undo) -> None:
    """Pause coverage, so that lines reached only by extra runs do not count as covered.

    This uses coverage.py's own way of pausing, so it still looks active.
    """
    module = sys.modules.get("coverage")
    if module is None:
        return
    current = getattr(getattr(module, "Coverage", None), "current", lambda: None)()
    collector: Any = getattr(current, "_collector", None)
    if getattr(current, "_started", False) and hasattr(collector, "pause"):
        collector.pause()
        undo.callback(collector.resume)


def snapshots_uncounted(item: pytest.Item, undo: Undo) -> None:
    """Make syrupy count each snapshot comparison once."""
    session = getattr(item.config, "_syrupy", None)
    if session is not None:
        made: list[Any] = getattr(session, "_assertions", [])
        undo.callback(_shorten, made, len(made))


def _shorten(made: list[Any], known: int) -> None:
    del made[known:]


def folders_noted(item: pytest.Item, made: list[Path], undo: Undo) -> None:
    """Record temporary folders as they are created, because later names count up from them."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    if not hasattr(factory, "mktemp"):
        return
    make = factory.mktemp

    def noted(*args: Any, **kwargs: Any) -> Path:
        folder: Path = make(*args, **kwargs)
        made.append(folder)
        return folder

    def back() -> None:
        if vars(factory).get("mktemp") is noted:
            del factory.mktemp

    factory.mktemp = noted
    undo.callback(back)
