"""Threads that libraries start beside a program, which run no operators of its own."""

from __future__ import annotations

from typing import Any

#: Modules whose threads pass messages or watch processes.
_ROOMS = (
    "multiprocessing.",
    "concurrent.futures.process",
    "subprocess",
    "torch.distributed.",
    "torch.multiprocessing",
    "torch.testing._internal.",
    "pytest_torchprof.",
)
_NAMES = ("QueueFeederThread",)


def is_helper(arguments: tuple[Any, ...]) -> bool:
    """Whether these arguments of the function that starts a thread are those of a helper."""
    thread = getattr(arguments[0], "__self__", None) if arguments else None
    if thread is None:
        return False
    named: str = getattr(thread, "name", "")
    target = getattr(thread, "_target", None) or type(thread)
    room = getattr(target, "__module__", None) or ""
    return named.startswith(_NAMES) or f"{room}.".startswith(_ROOMS)
