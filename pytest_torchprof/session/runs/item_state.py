"""A pytest item's state before a run, to be restored before the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


class ItemState:
    """What an item holds before its first run: its stash, and a doctest's globals."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._stash = dict(_storage(item))
        globs = _globs(item)
        self._globs = dict(globs) if globs is not None else None

    def add_stash(self) -> None:
        """Also keep what plugins have put into the stash since."""
        self._stash = {**self._stash, **_storage(self._item)}

    def renew(self) -> None:
        """Undo what a run leaves on the item, as a fresh collection would."""
        item = self._item
        if hasattr(item, "_initrequest"):
            item._initrequest()
        if isinstance(item, pytest.Function) and isinstance(item.parent, pytest.Class):
            for name in ("_instance", "_obj"):
                item.__dict__.pop(name, None)
        if self._globs is not None and (current := _globs(item)) is not None:
            current.clear()
            current.update(self._globs)
        self.restore_stash()

    def restore_stash(self) -> None:
        """Restore stash entries that plugins delete in teardown and expect in the next one."""
        storage = _storage(self._item)
        for key, value in self._stash.items():
            storage.setdefault(key, value)


class Sibling:
    """Stands for a next item of the same scope, so that only function scope is torn down."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def listchain(self) -> list[pytest.Collector]:
        """The collectors shared with the item."""
        return self._item.parent.listchain() if self._item.parent else []  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


def _storage(item: pytest.Item) -> dict[Any, Any]:
    return item.stash._storage


def _globs(item: pytest.Item) -> dict[str, Any] | None:
    """A doctest's globals."""
    return getattr(getattr(item, "dtest", None), "globs", None)


def tmp_path_of(item: pytest.Item) -> Path | None:
    """The ``tmp_path`` folder that pytest made for this run, if any."""
    request = getattr(item, "_request", None)
    for fixture in getattr(request, "_arg2fixturedefs", {}).get("tmp_path", ()):
        cached = getattr(fixture, "cached_result", None)
        if getattr(fixture.func, "__module__", "") == "_pytest.tmpdir" and cached:
            return cached[0] if isinstance(cached[0], Path) else None
    return None
