"""Output of the first run's teardown, kept until the teardown phase."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.capture.unpatched import muted
from pytest_torchprof.session.isolation.silence import terminal_of, write_to

if TYPE_CHECKING:
    import pytest


class OwnHook:
    """The teardown hook, limited to pytest's runner, capture and logging plugins."""

    def __init__(self) -> None:
        self._plugins: set[Any] = set()
        self._hook: Callable[..., Any] | None = None

    def of(self, item: pytest.Item) -> Callable[..., Any]:
        """The hook's caller; made again after plugins were registered."""
        manager = item.config.pluginmanager
        plugins = manager.get_plugins()
        if self._hook is None or plugins != self._plugins:
            kept = [manager.get_plugin(n) for n in ("runner", "capturemanager", "logging-plugin")]
            others = [plugin for plugin in plugins if plugin not in kept]
            self._plugins = plugins
            self._hook = manager.subset_hook_caller("pytest_runtest_teardown", others)
        return self._hook


class FirstTeardown:
    """The first run's teardown error and output, kept until the teardown phase."""

    def __init__(self, item: pytest.Item) -> None:
        self.error: BaseException | None = None
        self.over = False
        self._item = item
        self._sections: list[tuple[str, str, str]] = []
        self._terminal = ""

    def keep(self, teardown: Callable[[], BaseException | None]) -> None:
        """Tear down; the error and the output do not reach report and terminal yet."""
        known = self._item._report_sections
        before = len(known)
        terminal = terminal_of(self._item)
        try:
            with Undo() as undo:
                write_to(terminal, sink := io.StringIO(), undo)
                if self._item.config.getoption("capture", "no") == "tee-sys":
                    undo.enter_context(muted(1, 2))
                self.error = teardown()
        finally:
            self._sections = known[before:]
            del known[before:]
            self._terminal = sink.getvalue()
            self.over = True

    def show(self) -> None:
        """Write to the terminal what was meant for it."""
        terminal = terminal_of(self._item)
        if self._terminal and terminal is not None:
            terminal.write(self._terminal, flush=True)

    def say(self) -> None:
        """Write the captured output again, while the teardown phase is captured."""
        if not self._sections:
            return
        with PATCH_GUARD:
            logging_plugin = self._item.config.pluginmanager.getplugin("logging-plugin")
            for _, key, text in self._sections:
                if key == "log" and logging_plugin is not None:
                    logging_plugin.report_handler.stream.write(f"{text}\n")
                elif key in ("stdout", "stderr"):
                    getattr(sys, key).write(text)
