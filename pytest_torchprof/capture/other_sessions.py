"""Notice profiler sessions of other code: a test's own, or another plugin's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.unpatched import REAL

#: What begins a session, and what ends it, in torch.autograd's two modules.
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
        #: Whether another thread's session has replaced ours.
        self.taken_over = False
        #: Threads in which a session, of ours or another, has ended within a backward pass, so that
        #: the autograd engine brings its state and its callbacks back; or ended in another thread.
        self._brought_back: set[int] = set()
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        #: The threads in which sessions of others run.
        self._running: set[int] = set()

    @property
    def run_now(self) -> bool:
        """Whether a session of other code runs in any thread; torch itself tells of this one.

        A thread that has ended will not end its session, which does no harm then.
        """
        running = self._running
        return bool(running) and not running.isdisjoint(sys._current_frames())

    @property
    def run_here(self) -> bool:
        """Whether a session of other code runs in this thread."""
        return REAL.current_thread() in self._running

    def watch(self) -> None:
        """Watch until `forget`."""
        import torch.autograd.profiler as room

        self.forget()
        for where in (room, sys.modules.get("torch.autograd.profiler_legacy")):
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

    def ours_starts(self) -> None:
        """Stop reporting while a session of ours starts, until `ours_started`."""
        self._ours_starts = True

    def ours_started(self) -> None:
        """Report again: ours has started, or failed to."""
        self._ours_starts = False

    def take_over(self) -> None:
        """Note that another thread's session replaces ours, until `ours_ended`."""
        self.taken_over = True

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
        self._running.discard(me)
        if real_torch().in_backward():
            self._brought_back.add(me)
        if began_in not in {None, me}:
            self._brought_back.add(began_in)

    def cleared(self) -> None:
        """Note that nothing is left in this thread."""
        self._brought_back.discard(REAL.current_thread())

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
            if not (ours or prepares):
                self._running.add(REAL.current_thread())
            return result

        return start

    def _noting_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self.ended_here()

        return end


OTHERS = Others()
