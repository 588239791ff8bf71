"""Traces as any user of torch.profiler stores them: no region, no facts, nothing of ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_torchprof.capture.patches import muted
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@contextmanager
def quiet() -> Iterator[None]:
    """One intra-op thread, as in captures of ours; what torch warns examples of is not tested."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


def record(
    block: Callable[[], Any],
    folder: Path,
    *,
    shapes: bool = True,
    stacks: bool = True,
    memory: bool = False,
) -> Path:
    """Run the block under torch's own profiler and export what it saw."""
    path = folder / f"recorded_{shapes:d}{stacks:d}{memory:d}.json"
    with quiet(), muted(2):  # Kineto's own lines
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=memory,
        ) as profiler:
            block()
        profiler.export_chrome_trace(str(path))
    return path


@dataclass(frozen=True)
class Recorded:
    """An example that is a stored trace: its block runs once, under torch's own profiler."""

    block: Callable[[], Any]
    shapes: bool = True
    stacks: bool = True

    def capture(self, folder: Path) -> Events:
        """Record it and read it back."""
        return read_trace(record(self.block, folder, shapes=self.shapes, stacks=self.stacks))
