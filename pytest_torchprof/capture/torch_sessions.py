"""Create sessions of torch's profiler, and end them in any state."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any

from pytest_torchprof.capture.machine import (
    accelerator,
    captures_graph,
    real_torch,
    uses_accelerator,
)
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.unpatched import REAL, is_silent, muted
from pytest_torchprof.core.errors import NotCapturedError
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Why, because

#: Whether sessions write nothing to stderr, once known, so that they need no muting.
_SILENT: list[bool] = []


#: What torch says, in newer versions, when a session begins beside one of another thread.
_NOT_FREE = "Can't disable Kineto profiler when it's not running"
#: An escape in a JSON string.
_ESCAPE = late(r"\\(u[0-9a-fA-F]{4}|.)")


def add_metadata(profiler: Any, key: str, text: str) -> None:
    """Add JSON to a trace's metadata; quotes in its strings become apostrophes.

    torch replaces every backslash by a slash, so an escaped quote would end its string.
    """
    plain = {'"': "'", "\\": "/"}
    profiler.add_metadata_json(key, _ESCAPE.sub(lambda found: plain.get(found[1], " "), text))


def new_session(*, everywhere: bool = False, details: bool = True, tensors: bool = False) -> Any:
    """A profiler, not yet started, for the CPU and the accelerator if there is one.

    ``everywhere``: records all threads, but no memory. ``details``: shapes and memory are
    recorded. ``tensors``: the results identify the tensors of each operator.
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


def begin(profiler: Any, idle_kernels: int = 0) -> None:
    """Begin a session of ours with as many kernels that do nothing, and wait for them."""
    try:
        with quiet(), OTHERS.ours():
            _start(profiler)
        OTHERS.ours_began = REAL.current_thread(), real_torch().in_backward()
        spin = real_torch().spin
        if idle_kernels and spin is not None and uses_accelerator():
            for _ in range(idle_kernels):
                spin(1)
            real_torch().synchronize()
    except BaseException:
        disable()
        raise


def _start(profiler: Any) -> None:
    if OTHERS.left:
        _end_left()
    try:
        profiler.start()
    except RuntimeError as error:
        if _NOT_FREE not in str(error):
            raise
        if not OTHERS.may_be_left:
            raise NotCapturedError(because(Why.OTHER_PROFILER)) from error
        _end_left()
        _start(profiler)
    else:
        OTHERS.may_be_left = False


def _end_left() -> None:
    """End what the backend runs and no thread knows of.

    What begins without being prepared takes it over; preparing would cancel it, and leave the
    backend a pointer to what is gone: observers of its log, in Kineto's GenericActivityProfiler.
    """
    with OTHERS.ours():
        real_torch().begin_unprepared()
        real_torch().disable()
    OTHERS.ended()


def give_way(ours_in: int) -> None:
    """End our session of the thread ``ours_in`` for one that this thread is about to begin.

    Only the backend ends it, except in a thread of torch's, which has the state of the one that it
    works for; see `end` for the rest.
    """
    OTHERS.take_over(ours_in)
    with quiet(), suppress(RuntimeError):
        if profiler_active():
            real_torch().disable()
            OTHERS.ended()
        else:
            _end_left()


def end(profiler: Any, *, everywhere: bool, sound: bool) -> None:
    """End our session, of all threads if ``everywhere``, whatever became of it.

    ``sound``: nothing is known to have interfered with it; torch may warn otherwise.
    """
    if real_torch().in_backward() and OTHERS.ours_records_here:
        OTHERS.ours_ended_in = real_torch().backward_pass()
    known = everywhere or profiler_active()
    sound = sound and known and not OTHERS.taken_over
    with quiet(sound=sound), suppress(RuntimeError):  # older torch: already ended
        if OTHERS.taken_over:
            if not everywhere:
                _end_replaced(profiler)
        elif OTHERS.ours_lost and not known:
            _end_left()
        elif OTHERS.ours_began is not None or everywhere:
            profiler.stop()


def _end_replaced(profiler: Any) -> None:
    """End the rest of a session that has given way.

    Torch crashes if the backend runs none then, or when the other one ends.
    """
    needed = OTHERS.need_backend
    if profiler_active():
        if not OTHERS.replacement_runs:
            begin_elsewhere()
        profiler.stop()
    if needed and not OTHERS.replacement_runs:
        begin_elsewhere()


def require_free() -> None:
    """Check that a session of ours may begin here.

    Raises:
        NotCapturedError: another one is active, in any thread, one of ours has ended in this
            backward pass, or the current stream captures a graph, which what begins a session would
            invalidate.
    """
    if OTHERS.brought_back:
        end_restored()
    # Torch would let ours replace one of another thread, and crash when that one ends.
    if OTHERS.run_now or profiler_active():
        raise NotCapturedError(because(Why.OTHER_PROFILER))
    if OTHERS.ours_ended_in == real_torch().backward_pass():
        raise NotCapturedError(because(Why.WITHIN_BACKWARD))
    if captures_graph():
        raise NotCapturedError(because(Why.GRAPH_CAPTURE))


@cache
def sees_threads() -> bool:
    """Whether torch can profile all threads; by default it only records the starting thread."""
    try:
        real_torch().config(profile_all_threads=True)
    except TypeError:
        return False
    return True


def learn_silence() -> None:
    """Find out with one session whether sessions write to stderr here."""
    _SILENT[:] = [accelerator() is None and is_silent(_session)]


def _session() -> None:
    profiler = new_session()
    profiler.start()
    profiler.stop()


def quiet(*, sound: bool = True) -> AbstractContextManager[None]:
    """Context for starting or ending a session; ``sound``: no other code has interfered with it."""
    return nullcontext() if sound and _SILENT == [True] else muted(2, flush=False)


def disable() -> None:
    """End a session that torch's own function failed to end: it must not outlive the test."""
    if profiler_active():
        with suppress(RuntimeError):  # it had not started yet
            real_torch().disable()
        OTHERS.ended()
        OTHERS.ended_here()


def end_restored() -> None:
    """End what the autograd engine restored of our session, if that ended within a backward pass.

    It looks active then, and its callbacks record operators, but the backend does not run it.
    """
    if OTHERS.run_here or not (OTHERS.brought_back or profiler_active()):
        return
    if profiler_active() and not (OTHERS.left or OTHERS.ours_lost):
        begin_elsewhere()
    with muted(2):
        disable()
        real_torch().clear_callbacks()  # it did not know them any more
    if not real_torch().in_backward():
        OTHERS.cleared()


def empty(profiler: Any) -> None:
    """Release all events now: the profile is a reference cycle, and collections are rare here."""
    vars(profiler).clear()


def begin_elsewhere() -> None:
    """Begin a session in a separate thread, for ours to end.

    A session in a test's thread makes the backend end ours too, and torch crashes when it stops a
    session that the backend is not running.
    """

    def start() -> None:
        with OTHERS.ours():
            new_session().start()

    thread = REAL.thread(target=start)
    with muted(2):
        thread.start()
        thread.join()
        # Torch reports errors until the system thread has ended too.
        for _ in range(100):
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110 - quick
                break
            REAL.sleep(0.001)
