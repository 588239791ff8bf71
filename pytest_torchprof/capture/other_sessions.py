"""Notice profiler sessions of other code: a test's own, or another plugin's."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.unpatched import REAL

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
