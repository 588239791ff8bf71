"""Pause other time limits during reruns: alarms, pytest-timeout, faulthandler."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.undo import Undo


def timeout_of(item: pytest.Item) -> float | None:
    """The test's pytest-timeout limit in seconds; None if it has no limit."""
    settings = timeout_settings(item)
    return float(settings.timeout) if settings is not None else None


def timeout_settings(item: pytest.Item) -> Any:
    """Pytest-timeout's settings for the test; None if it has no limit."""
    module = sys.modules.get("pytest_timeout")
    settings_of: Callable[..., Any] | None = getattr(module, "_get_item_settings", None)
    if settings_of is None or not item.config.pluginmanager.is_registered(module):
        return None
    if not getattr(item.config, "_env_timeout", True) and not item.get_closest_marker("timeout"):
        return None  # no limit is set; the call below would take longer to find out
    settings = settings_of(item)
    return settings if settings.timeout and settings.timeout > 0 else None


def alarm_stopped(undo: Undo) -> bool:
    """Pause a running alarm, pytest-timeout's or the test's own; return whether there was one."""
    here = threading.current_thread() is threading.main_thread()
    if not (here and hasattr(signal, "setitimer")):
        return False
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    undo.callback(_alarm_again, signal.getsignal(signal.SIGALRM), left, interval)
    return left > 0


def _alarm_again(handler: Any, left: float, interval: float) -> None:
    if handler is not None:
        signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


def clocks_stopped(item: pytest.Item, used: float, undo: Undo, *, alarm: bool) -> None:
    """Stop the timers that run in threads: pytest-timeout's ``thread`` method, and faulthandler.

    The test has ``used`` this many seconds of its limits; ``alarm``: see `alarm_stopped`.
    """
    if not alarm:
        _timeout_stopped(item, used, undo)
    there = item.config.pluginmanager.hasplugin("faulthandler")
    limit = float((there and item.config.getini("faulthandler_timeout")) or 0)
    if limit > 0:
        from _pytest import faulthandler as plugin

        ends = getattr(plugin, "get_exit_on_timeout_config_value", lambda _: False)
        faulthandler.cancel_dump_traceback_later()
        undo.callback(
            lambda: faulthandler.dump_traceback_later(
                max(limit - used, 0.001),
                file=item.config.stash[plugin.fault_handler_stderr_fd_key],
                exit=ends(item.config),
            )
        )


def _timeout_stopped(item: pytest.Item, used: float, undo: Undo) -> None:
    settings = timeout_settings(item)
    if settings is None or settings.func_only:
        return
    item.ihook.pytest_timeout_cancel_timer(item=item)
    left = settings._replace(timeout=max(settings.timeout - used, 0.001))
    undo.callback(lambda: item.ihook.pytest_timeout_set_timer(item=item, settings=left))
