"""Others that watch the tests, or hand things out to them: a further run is no matter of theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


@contextmanager
def coverage_paused() -> Iterator[None]:
    """Lines that only a further run reaches are not covered by the tests.

    Paused as coverage.py pauses itself, so that it is still at work for whoever asks.
    """
    module = sys.modules.get("coverage")
    current = getattr(getattr(module, "Coverage", None), "current", lambda: None)()
    collector: Any = getattr(current, "_collector", None)
    if not (getattr(current, "_started", False) and hasattr(collector, "pause")):
        yield
        return
    collector.pause()
    try:
        yield
    finally:
        collector.resume()


@contextmanager
def snapshots_uncounted(item: pytest.Item) -> Iterator[None]:
    """Syrupy counts a comparison of snapshots once, as the test makes it."""
    session = getattr(item.config, "_syrupy", None)
    made: list[Any] = getattr(session, "_assertions", [])
    known = len(made)
    try:
        yield
    finally:
        del made[known:]


@contextmanager
def folders_noted(item: pytest.Item, made: list[Path]) -> Iterator[None]:
    """Note the temporary folders that are handed out: the numbers of others count up from them."""
    factory: Any = getattr(item.config, "_tmp_path_factory", None)
    if not hasattr(factory, "mktemp"):
        yield
        return
    make = factory.mktemp

    def noted(*args: Any, **kwargs: Any) -> Path:
        folder: Path = make(*args, **kwargs)
        made.append(folder)
        return folder

    factory.mktemp = noted
    try:
        yield
    finally:
        if vars(factory).get("mktemp") is noted:
            del factory.mktemp
