"""Sessions of torch's profiler: ours, and those of the test."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

from pytest_torchprof.capture.machine import (
    accelerator,
    captures_graph,
    real_torch,
    uses_accelerator,
)
from pytest_torchprof.capture.patches import REAL, is_silent, muted
from pytest_torchprof.core.errors import NotCapturedError
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Why, because

# ---- Notice profiler sessions of other code: a test's own, or another plugin's.

#: What begins a session, and what ends it, by their names in several modules of torch.
_BEGIN = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_END = ("_disable_profiler", "_disable_profiler_legacy")


def _at_once(call: Callable[[], None]) -> None:
    call()


class Others:
    """Notices other profiler sessions before they start; one per process.

    The functions that begin and end a session are wrapped before the tests, once for all of them:
    torch's are looked up at each use, so a test can still replace one.
    """

    def __init__(self) -> None:
        self._on_start: Callable[[], None] | None = None
        self._ours_starts = False
        #: Whether another thread's session has replaced ours.
        self.taken_over = False
        #: Threads in which a session, of ours or another, has ended within a backward pass, so that
        #: the autograd engine brings its state and its callbacks back; or ended in another thread.
        self._brought_back: set[int] = set()
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._is_back)
        #: Whether the backend may run a session that nothing will end, and whether it surely does.
        self.may_be_left = self.left = False
        #: Of our session: the thread and whether it was in a backward pass when it began; None once
        #: the backend has ended it.
        self.ours_began: tuple[int, bool] | None = None
        #: The backward pass in which ours has ended that had begun before it. Operators of its are
        #: under way; with another session, torch writes their end to memory that it has freed.
        self.ours_ended_in: int | None = None
        #: Whether a session that has replaced ours runs.
        self.replacement_runs = False
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        #: The threads in which sessions of others run; whether they began in a backward pass. None
        #: where it cannot be told that one is lost: not of this thread alone, or not the backend's.
        self._running: dict[int, bool | None] = {}

    @property
    def run_now(self) -> bool:
        """Whether a session of other code runs in any thread."""
        self._lose()
        return bool(self._running)

    @property
    def need_backend(self) -> bool:
        """Whether other code will end a session of the backend's, which then has to run one."""
        self._lose()
        return any(how is not None for how in self._running.values())

    @property
    def run_here(self) -> bool:
        """Whether a session of other code runs in this thread."""
        self._lose()
        return REAL.current_thread() in self._running

    def _lose(self) -> None:
        """Give up sessions that nothing will end: those of threads that have ended, and one that
        this thread began in a backward pass, which took its state along.
        """
        if not self._running:
            return
        alive, me = sys._current_frames(), REAL.current_thread()
        gone = [thread for thread in self._running if thread not in alive]
        if self._running.get(me) and not real_torch().in_backward():
            gone.append(me)
        for thread in gone:
            self.left |= self._running.pop(thread) is not None

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

    def take_over(self, ours_in: int) -> None:
        """Note that this thread's session replaces ours, until `ours_ended`.

        A thread of torch's has the state of the one that it works for: it ends our session, whose
        callbacks stay where they are.
        """
        self.taken_over = True
        if real_torch().active():
            self._comes_back(ours_in)

    def ours_ended(self) -> None:
        """Note that neither our session nor its replacement is running."""
        self.taken_over = False

    @property
    def brought_back(self) -> bool:
        """Whether something is left in this thread of a session that has ended."""
        return REAL.current_thread() in self._brought_back

    def ended_here(self, began_in: int | None = None) -> None:
        """Note that no session runs in this thread; one of ours may have ``began_in`` another."""
        me = REAL.current_thread()
        self._running.pop(me, None)
        if real_torch().in_backward():
            self._comes_back(me)
        if began_in is not None and began_in != me:
            self._brought_back.add(began_in)

    def _comes_back(self, thread: int) -> None:
        """Note that state and callbacks of a session that has ended are in ``thread``, or will be.

        The callbacks would record operators in memory that is freed, so the main thread clears them
        between two of its instructions, before it calls any.
        """
        self._brought_back.add(thread)
        if thread == threading.main_thread().ident:
            soon = real_torch().after_backward if real_torch().in_backward() else _at_once
            soon(self._ask)

    def _ask(self) -> None:
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _is_back(self, _: object) -> int:
        if self.brought_back:
            if real_torch().in_backward():
                self._ask()
            elif not self.run_here:
                real_torch().clear_callbacks()
        return 0

    def cleared(self) -> None:
        """Note that nothing is left in this thread."""
        self._brought_back.discard(REAL.current_thread())

    @property
    def ours_lost(self) -> bool:
        """Whether the backend runs our session, and this thread does not know of it."""
        if self.ours_began is None or real_torch().in_backward():
            return False
        thread, in_backward = self.ours_began
        return in_backward or thread != REAL.current_thread()

    @property
    def ours_records_here(self) -> bool:
        """Whether our session records the operators around this line of a backward pass.

        A device's thread works in the state of the one that has begun the pass.
        """
        if self.ours_began is None:
            return False
        thread, in_backward = self.ours_began
        here = thread == REAL.current_thread() or real_torch().active()
        return here and not in_backward

    def ended(self) -> None:
        """Note that the backend has ended what it ran."""
        self.left = self.may_be_left = self.replacement_runs = False
        self.ours_began = None

    def _noted_end(self, *, known_here: bool) -> None:
        """Note that torch was asked for an end, by a thread that has a session or not.

        If another thread began it, that one still seems to have it: a hook of a gradient runs in a
        thread of the device's. Where this one has none, newer versions of torch do nothing, in
        silence.
        """
        began_here = REAL.current_thread() in self._running
        if began_here and not known_here:
            self.left |= self._running[REAL.current_thread()] is not None
        if known_here:
            self.ended()
        if known_here and not (began_here or self.taken_over):
            for thread in [thread for thread, how in self._running.items() if how is not None]:
                del self._running[thread]
                self._comes_back(thread)

    def forget(self) -> None:
        """Restore what is wrapped."""
        while self._wrapped:
            where, name, original, wrapped = self._wrapped.pop()
            if getattr(where, name) is wrapped:
                setattr(where, name, original)

    def _telling(self, original: Callable[..., Any], *, prepares: bool) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            ours = self._ours_starts
            if self._on_start is not None and not ours:
                self._on_start()
            try:
                result = original(*args, **kwargs)
            except RuntimeError:
                # With a session in another thread, torch 2.6 cannot prepare a new one, but can
                # begin it.
                if prepares and self.taken_over:
                    return None
                raise
            if not ours:
                t = real_torch()
                of_backend = t.runs_backend() and not prepares
                self.replacement_runs |= self.taken_over and of_backend
                within = t.in_backward() if of_backend else None
                self._running[REAL.current_thread()] = within
            return result

        return start

    def _noting_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            self._lose()  # before the backend ends: what is left then is left no more
            known_here = real_torch().runs_backend()
            try:
                result = original(*args, **kwargs)
            except RuntimeError:
                self.may_be_left = True
                raise
            else:
                self._noted_end(known_here=known_here)
                return result
            finally:
                self.ended_here()

        return end


OTHERS = Others()


# ---- Create sessions of torch's profiler, and end them in any state.

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
            raise NotCapturedError(because(*Why.OTHER_PROFILER)) from error
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
        raise NotCapturedError(because(*Why.OTHER_PROFILER))
    if OTHERS.ours_ended_in == real_torch().backward_pass():
        raise NotCapturedError(
            because(
                "within_backward",
                (
                    "the measured block begins in a backward pass of the first run, which was "
                    "profiled until then (a warm-up, --torchprof-warmup=1, avoids that)"
                ),
            )
        )
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
