"""What is watched of the device while a test runs, because torch does not tell afterwards."""

from __future__ import annotations

from pytest_torchprof.capture.caching_allocator import CACHING_ALLOCATOR
from pytest_torchprof.capture.cuda_graphs import CUDA_GRAPHS

_WATCHED = (CUDA_GRAPHS, CACHING_ALLOCATOR)


def watch_device() -> None:
    """Watch from now on."""
    for one in _WATCHED:
        one.watch()


def leave_device() -> None:
    """Watch no more."""
    for one in _WATCHED:
        one.stop()
