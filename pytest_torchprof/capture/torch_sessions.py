"""Make sessions of torch's profiler, and end them in any state."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

from pytest_torchprof.capture.machine import accelerator, real_torch
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.real import REAL, is_silent, muted

#: Whether a session writes nothing to stderr, once that is known: then it need not be muted.
_SILENT: list[bool] = []


def new_session(*, everywhere: bool = False, details: bool = True, tensors: bool = False) -> Any:
    """A profiler that is not started yet, of the CPU and of the accelerator if there is one.

    ``everywhere``: all threads are seen, but memory is not. ``details``: shapes and memory are
    recorded. ``tensors``: its results can be asked for the tensors of each operator.
    """
    t = real_torch()
    ProfilerActivity = t.activity  # noqa: N806 - torch's name
    activities = [ProfilerActivity.CPU]
    device = accelerator()
    if device is not None:
        name = device.upper() if hasattr(ProfilerActivity, device.upper()) else "PrivateUse1"
        # An activity that this build cannot record would give zeros.
        if (activity := getattr(ProfilerActivity, name)) in t.supported():
            activities.append(activity)
    extra: dict[str, Any] = {}
    if everywhere:
        extra["experimental_config"] = t.config(profile_all_threads=True)
    if not (extra or tensors) and device is None and t.trace_only is not None:
        extra["experimental_config"] = t.trace_only
    return t.profile(
        activities=activities,
        record_shapes=details,
        profile_memory=details,
        **extra,
    )


def profiler_active() -> bool:
    """Whether any profiler session runs in this thread."""
    return bool(real_torch().active())


@cache
def sees_threads() -> bool:
    """Whether torch can profile all threads; by default it only sees the one that began."""
    try:
        real_torch().config(profile_all_threads=True)
    except TypeError:
        return False
    return True


def learn_silence() -> None:
    """Find out whether sessions write to stderr here, by one."""
    _SILENT[:] = [accelerator() is None and is_silent(_session)]


def _session() -> None:
    profiler = new_session()
    profiler.start()
    profiler.stop()


def unheard(*, sound: bool = True) -> AbstractContextManager[None]:
    """Around the start or end of a session; ``sound``: no other code has interfered with it."""
    return nullcontext() if sound and _SILENT == [True] else muted(2, flush=False)


def disable() -> None:
    """End a session that torch's own function failed to end: it must not outlive the test."""
    if profiler_active():
        with suppress(RuntimeError):  # it had not begun yet
            real_torch().disable()


def empty(profiler: Any) -> None:
    """Release all events now: torch's profile is a cycle, and collections are rare here."""
    vars(profiler).clear()


def begin_elsewhere() -> None:
    """Begin a session in a separate thread, for ours to end.

    If a test's thread has run a session, the backend has ended ours with it, and torch crashes when
    it stops what the backend does not run.
    """

    def begin() -> None:
        OTHERS.ours_starts()
        try:
            new_session().start()
        finally:
            OTHERS.ours_started()

    thread = REAL.thread(target=begin)
    with muted(2):
        thread.start()
        thread.join()
        # Torch complains about the thread's leftovers until the system has ended it too.
        for _ in range(100):
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110 - quick
                break
            REAL.sleep(0.001)
