"""Sessions of torch's profiler: ours, and those of the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from pytest_torchprof.capture.machine import (
    accelerator,
    captures_graph,
    real_torch,
    uses_accelerator,
)
from pytest_torchprof.capture.patches import REAL, muted
from pytest_torchprof.core.errors import NotCapturedError
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Why, because

# ---- Notice profiler sessions of other code: a test's own, or another plugin's.

#: What begins a session, and what ends it, by their names in several modules of torch.
_BEGIN = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_END = ("_disable_profiler", "_disable_profiler_legacy")


class Others:
    """Notices other profiler sessions before they start; one per process.

    The functions that begin and end a session are wrapped before the tests, once for all of them:
    torch's are looked up at each use, so a test can still replace one.
    """

    def __init__(self) -> None:
        self._on_start: Callable[[], None] | None = None
        self._ours_starts = False
        #: Whether a session of other code has replaced ours, which has not been ended yet.
        self.replaced_ours = False
        #: The threads in which sessions of others run.
        self._running: set[int] = set()
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    @property
    def run_now(self) -> bool:
        """Whether a session of other code runs in any thread."""
        return bool(self._running)

    def watch(self) -> None:
        """Watch until `forget`."""
        import torch

        self.forget()
        real_torch()  # has the functions themselves
        rooms = [torch.autograd.profiler, sys.modules.get("torch.autograd.profiler_legacy")]
        for where in (*rooms, torch.autograd, torch._C._autograd):
            for name in (*_BEGIN, *_END):
                if hasattr(where, name):
                    original = getattr(where, name)
                    if name in _END:
                        wrapped = self._noting_end(original)
                    else:
                        wrapped = self._telling(original, prepares=name == "_prepare_profiler")
                    setattr(where, name, wrapped)
                    self._wrapped.append((where, name, original, wrapped))

    def tell(self, on_start: Callable[[], None] | None) -> None:
        """Set the callback while a test's block is measured; None for none."""
        self._on_start = on_start

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Report nothing while a session of ours starts."""
        before, self._ours_starts = self._ours_starts, True
        try:
            yield
        finally:
            self._ours_starts = before

    def forget(self) -> None:
        """Restore what is wrapped."""
        while self._wrapped:
            where, name, original, wrapped = self._wrapped.pop()
            if getattr(where, name) is wrapped:
                setattr(where, name, original)

    def _telling(self, original: Callable[..., Any], *, prepares: bool) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if self._ours_starts:
                return original(*args, **kwargs)
            if self._on_start is not None:
                self._on_start()
            try:
                result = original(*args, **kwargs)
            except RuntimeError:
                # With a session in another thread, torch 2.6 cannot prepare a new one, but can
                # begin it.
                if prepares and self.replaced_ours:
                    return None
                raise
            self._running.add(REAL.current_thread())
            return result

        return start

    def _noting_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            self._running.discard(REAL.current_thread())
            return original(*args, **kwargs)

        return end


OTHERS = Others()


# ---- Create sessions of torch's profiler, and end them in any state.

#: What torch says, in newer versions, when a session begins beside one of another thread.
_NOT_FREE = "Can't disable Kineto profiler when it's not running"
BEYOND = because(
    "within_backward",
    "the measured block begins or ends in a backward pass, or ends in another thread",
)
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
        with muted(2, flush=False), OTHERS.ours():
            profiler.start()
        spin = real_torch().spin
        if idle_kernels and spin is not None and uses_accelerator():
            for _ in range(idle_kernels):
                spin(1)
            real_torch().synchronize()
    except BaseException as error:
        disable()
        if _NOT_FREE in str(error):
            raise NotCapturedError(because(*Why.OTHER_PROFILER)) from error
        raise


def give_way() -> None:
    """End what the backend runs of our session for one that this thread is about to begin.

    The rest of ours ends in the thread that began it, outside of backward passes.
    """
    OTHERS.replaced_ours = True
    with muted(2, flush=False), suppress(RuntimeError):
        if profiler_active():  # a thread of torch's has the state of the one that it works for
            real_torch().disable()
        else:
            _end_elsewhere()


def _end_elsewhere() -> None:
    """End what the backend runs for another thread.

    What begins without being prepared takes it over; preparing would cancel it, and leave the
    backend a pointer to what is gone: observers of its log, in Kineto's GenericActivityProfiler.
    """
    with OTHERS.ours():
        real_torch().begin_unprepared()
        real_torch().disable()


def may_end(thread: int) -> bool:
    """Whether a session that began in this thread can end now.

    Within a backward pass it would come back, without its backend, when the autograd engine
    restores the thread's state; and only its thread has that state.
    """
    if real_torch().in_backward():
        return False
    return thread == REAL.current_thread() or thread not in REAL.frames()


def end(profiler: Any, thread: int, *, everywhere: bool) -> None:
    """End our session that began in this thread; ``everywhere``: of all threads. See `may_end`."""
    if OTHERS.replaced_ours:
        _end_replaced()
        return
    try:
        with muted(2, flush=False), suppress(RuntimeError):  # older torch: already ended
            if everywhere or profiler_active():
                profiler.stop()
            elif thread != REAL.current_thread():  # that one has ended
                _end_elsewhere()
    finally:
        disable()


def _end_replaced() -> None:
    """End what this thread has of a session of ours that was replaced, once no other one runs.

    Torch crashes if a thread ends a session, and the backend runs none.
    """
    if OTHERS.run_now:
        return
    OTHERS.replaced_ours = False
    if profiler_active():
        begin_elsewhere()
        with muted(2):
            disable()
            real_torch().clear_callbacks()  # they would record operators in memory that is freed


def require_free() -> None:
    """Check that a session of ours may begin here.

    Raises:
        NotCapturedError: another one is active, in any thread, this is a backward pass, or the
            current stream captures a graph, which what begins a session would invalidate.
    """
    if OTHERS.replaced_ours:
        _end_replaced()
    # Torch would let ours replace one of another thread, and crash when that one ends.
    if OTHERS.run_now or profiler_active():
        raise NotCapturedError(because(*Why.OTHER_PROFILER))
    if real_torch().in_backward():
        raise NotCapturedError(BEYOND)
    if captures_graph():
        raise NotCapturedError(because(*Why.GRAPH_CAPTURE))


@cache
def sees_threads() -> bool:
    """Whether torch can profile all threads; by default it only records the starting thread."""
    try:
        real_torch().config(profile_all_threads=True)
    except TypeError:
        return False
    return True


def disable() -> None:
    """End a session that torch's own function failed to end: it must not outlive the test."""
    if profiler_active():
        with suppress(RuntimeError):  # it had not started yet
            real_torch().disable()


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
