"""Live captures on the CPU, without pytest around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.capture.compiling import CompileCount
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import probe_machine
from pytest_torchprof.capture.profiler import Capture, facts_now, prime
from pytest_torchprof.places.place import Located
from pytest_torchprof.trace.facts import Facts

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

prime()


def captured_file(
    block: Callable[[], Any],
    folder: Path,
    facts: Facts | None = None,
    *,
    tensors: bool = False,
) -> tuple[Events, Path]:
    """The trace of a block that is run once, and its file. What it returns is not kept.

    ``facts``: to be noted instead of those that every capture in a session notes.
    """
    before = CompileCount.now()
    capture = Capture(tensors=tensors)
    capture.start()
    try:
        block()
        if facts is None:
            facts = facts_now(probe_machine(1), CompileCount.now().since(before))
        recording = capture.stop(folder, facts)
        return recording.events(), recording.path
    finally:
        capture.abandon()


def captured(block: Callable[[], Any], folder: Path, *, tensors: bool = False) -> Events:
    """The trace of a block that is run once; ``tensors``: it knows which tensor is which."""
    return captured_file(block, folder, tensors=tensors)[0]


class Compiling:
    """A payload with what torch.compile did from here on to the end of its first run."""

    def __init__(self, block: Callable[[], Any]) -> None:
        self._block = block
        self._before = CompileCount.now()
        self._first: Facts | None = None

    def __call__(self) -> None:
        """Run it once."""
        self._block()
        self._first = self._first or CompileCount.now().since(self._before)

    def capture(self, folder: Path) -> Events:
        """The trace of another run, with the facts of the first."""
        if self._first is None:
            self()
        capture = Capture(tensors=True)
        capture.start()
        try:
            self._block()
            compiled = CompileCount.now().since(self._before)
            facts = facts_now(probe_machine(1), compiled, self._first)
            return capture.stop(folder, facts).events()
        finally:
            capture.abandon()


def placing(block: Callable[[], Any], trace: Events, folder: Path) -> Located:
    """Runs the block once more, as the locating run does: where the events of its trace were.

    Locations are absolute.
    """
    tracer = LineTracer()
    capture = Capture(tracer=tracer)
    capture.start()
    try:
        block()
        marked = capture.stop(folder, Facts()).events()
    finally:
        capture.abandon()
    assert tracer.gap is None, tracer.gap
    located = Located(marked, tracer.marks)
    located(trace, np.zeros(0, np.int64))  # fails here rather than where it is asked
    return located
