"""Traces as any user of torch.profiler stores them: no region, no facts, nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_torchprof.trace.read import read

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace


def record(
    block: Callable[[], Any], folder: Path, *, shapes: bool = True, stacks: bool = True
) -> Path:
    """Run the block under torch's own profiler and export what it saw.

    One intra-op thread, as in captures of ours, so that both see the same operators.
    """
    path = folder / f"recorded_{shapes:d}{stacks:d}.json"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=shapes, with_stack=stacks
        ) as profiler:
            block()
    finally:
        torch.set_num_threads(threads)
    profiler.export_chrome_trace(str(path))
    return path


@dataclass(frozen=True)
class Recorded:
    """An example that is a stored trace: its block runs once, under torch's own profiler."""

    block: Callable[[], Any]
    shapes: bool = True
    stacks: bool = True

    def capture(self, folder: Path) -> Trace:
        """Record it and read it back."""
        return read(record(self.block, folder, shapes=self.shapes, stacks=self.stacks))
