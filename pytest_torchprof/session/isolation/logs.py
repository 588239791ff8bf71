"""Reruns write no logs, and pytest's log handlers do not slow them."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.undo import Undo


def no_logs(item: pytest.Item, undo: Undo) -> None:
    """Keep log records out of pytest's live log and log file; ``caplog`` still gets them."""
    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    for name in ("log_cli_handler", "log_file_handler"):
        if (handler := getattr(plugin, name, None)) is not None:
            handler.addFilter(_nothing)
            undo.callback(handler.removeFilter, _nothing)
    _one_handler(item, plugin, undo)


def _nothing(_: object) -> bool:
    return False


def _one_handler(item: pytest.Item, plugin: Any, undo: Undo) -> None:
    """Attach pytest's handler of log records once for all phases of all reruns.

    Pytest attaches two handlers to each logger that does not propagate. Torch alone has 43, so
    each phase of each run takes a quarter of a millisecond.
    """
    from _pytest import logging as theirs

    handler = getattr(plugin, "caplog_handler", None)
    dear = hasattr(theirs.catching_logs, "attached_loggers")
    if handler is None or not dear or "caplog" in getattr(item, "fixturenames", ["caplog"]):
        return
    root = logging.getLogger()
    if (level := plugin.log_level) is not None:
        handler.setLevel(level)
        undo.callback(root.setLevel, root.level)
        root.setLevel(min(root.level, level))
    # Like `addHandler`, without its locks, which are not needed here and take most of the time.
    attached = [logger.handlers for logger in (root, *_apart_loggers(len(root.manager.loggerDict)))]
    for handlers in attached:
        if handler not in handlers:
            handlers.append(handler)
    undo.callback(_detach, attached, handler)
    plugin._runtest_for = _Attached(root.handlers, handler, theirs).phase
    undo.callback(delattr, plugin, "_runtest_for")


@lru_cache(maxsize=1)
def _apart_loggers(_: int) -> list[logging.Logger]:
    """Loggers that do not propagate; searched again when the number of loggers changes."""
    known = logging.getLogger().manager.loggerDict
    return [one for one in list(known.values()) if not getattr(one, "propagate", True)]  # type: ignore[misc]


def _detach(attached: list[list[Any]], handler: Any) -> None:
    for handlers in attached:
        if handler in handlers:
            handlers.remove(handler)


class _Attached:
    """What pytest's logging does around a phase, with a handler that is already attached."""

    def __init__(self, handlers: list[Any], handler: Any, theirs: Any) -> None:
        self._handlers = handlers
        self._handler = handler
        self._theirs = theirs

    def phase(self, item: pytest.Item, when: str) -> _Attached:
        """Within it, fixtures find the records where they expect them."""
        handler = self._handler
        if handler not in self._handlers:  # a test may have removed all of them
            self._handlers.append(handler)
        handler.reset()
        item.stash[self._theirs.caplog_records_key][when] = handler.records
        item.stash[self._theirs.caplog_handler_key] = handler
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
