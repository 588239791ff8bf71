"""Live captures on the CPU, without pytest around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture import Capture, prime

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace

prime()


def captured_file(
    block: Callable[[], Any], folder: Path, facts: Mapping[str, Any] | None = None
) -> tuple[Trace, Path]:
    """The trace of a block that is run once, and its file. What it returns is not kept."""
    capture = Capture()
    capture.start()
    try:
        block()
        return capture.stop(folder, facts or {})
    finally:
        capture.abandon()


def captured(block: Callable[[], Any], folder: Path) -> Trace:
    """The trace of a block that is run once."""
    return captured_file(block, folder)[0]
