"""Say on a terminal which run a slow test is in; in a log, nothing."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.capture.unpatched import REAL

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.session.plan import RunKind

#: Tests that are done within this many seconds say nothing.
AFTER_S = 3.0
#: With less room than this in the line, nothing is said.
_ROOM: Final = 12
_WORDS: Final[dict[RunKind, str]] = {
    "warmup": "warm-up",
    "round": "timed",
    "pairs": "compared",
    "profile": "profiled",
    "modules": "profiled by module",
    "threads": "profiled with other threads",
    "numbers": "for the numbers that the test asks for",
    "tensors": "to identify tensors",
    "reseeded": "with another seed",
    "lines": "to find your lines",
}


# Bound here, since tests may replace them.
_write, _dup, _close = os.write, os.dup, os.close


class Progress:
    """Writes behind pytest's own line on a terminal, and takes it away again."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._terminal = -1
        self._shown = 0

    def open(self, config: pytest.Config) -> None:
        """Find the terminal, if there is one, while nothing captures the descriptor of stdout."""
        self._writer = _writer_of(config)
        if self._writer is not None and sys.__stdout__ is not None:
            with suppress(OSError, ValueError):
                self._terminal = _dup(sys.__stdout__.fileno())

    def show(self, number: int, kind: RunKind, since_ns: int) -> None:
        """Name the run that begins, if the test began long enough ago."""
        if self._terminal < 0 or REAL.clock() - since_ns < AFTER_S * 1e9:
            return
        self.clear()
        room = self._writer.fullwidth - self._writer.width_of_current_line - 1
        text = f" run {number}, {_WORDS[kind]} …"[:room]
        if room >= _ROOM:
            self._shown = len(text)
            self._write(f"{text}{chr(8) * len(text)}")

    def clear(self) -> None:
        """Take away what was shown."""
        if self._shown:
            blank, self._shown = self._shown, 0
            self._write(f"{' ' * blank}{chr(8) * blank}")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal has gone
            _write(self._terminal, text.encode(errors="replace"))

    def close(self) -> None:
        """Give the terminal back."""
        self.clear()
        if self._terminal >= 0:
            _close(self._terminal)
            self._terminal = -1


def _writer_of(config: pytest.Config) -> Any:
    """Pytest's writer, if it writes to a terminal that tests do not write to."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    shared = config.getoption("capture", "fd") != "fd" or config.getoption("verbose", 0) > 1
    if reporter is None or shared or not getattr(reporter, "isatty", False):
        return None
    return reporter._tw  # nothing public tells the column
