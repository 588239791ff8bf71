"""Live captures on the CPU, without pytest around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.capture import Capture, LineTracer, prime
from pytest_torchprof.rules.located import Located

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.rules.places import Placing

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


def placing(block: Callable[[], Any], trace: Trace, folder: Path) -> Placing:
    """Runs the block once more, as the locating run does: where the events of its trace were.

    Locations are absolute.
    """
    tracer = LineTracer()
    capture = Capture(tracer=tracer)
    capture.start()
    try:
        block()
        marked, _ = capture.stop(folder, {})
    finally:
        capture.abandon()
    assert tracer.gap is None, tracer.gap
    located = Located(marked, tracer.lines, tracer.modules)
    located(trace, np.zeros(0, np.int64))  # fails here rather than where it is asked
    return located
