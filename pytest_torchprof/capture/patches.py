"""What a test may replace: functions bound early for our code, and wrapped ones of a run."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Functions for what starts and stops a capture while a test's patches are in place, bound before
#: them: a test that replaces `open`, the clock or `gc.collect` must neither break us nor count our
#: calls. They are in a namespace, because tools that replace the file system or the clock search
#: the globals of all modules.
REAL = SimpleNamespace(
    clock=time.perf_counter_ns,
    cpu_clock=time.process_time_ns,
    collect=gc.collect,
    sleep=time.sleep,
    getpid=os.getpid,
    dup=os.dup,
    dup2=os.dup2,
    close=os.close,
    open_fd=os.open,
    open=open,
    null=os.devnull,
    start=threading.Thread.start,
    cpus=os.cpu_count,
    unlink=os.unlink,
    current_thread=threading.get_ident,
    thread=threading.Thread,
    frame=sys._getframe,
    frames=sys._current_frames,
    gettrace=sys.gettrace,
    settrace=sys.settrace,
    recursion_limit=sys.getrecursionlimit,
    set_recursion_limit=sys.setrecursionlimit,
    thread_clock=time.thread_time_ns,
    any_clock=getattr(time, "clock_gettime_ns", None),
    native_id=threading.get_native_id,
    threads=threading.enumerate,
    listdir=os.listdir,
    stat=os.stat,
    waitid=getattr(os, "waitid", None),
    rusage=getattr(resource, "getrusage", None),
)


def real_bytes(path: str | os.PathLike[str]) -> bytes:
    """What is in a file, whatever a test puts in place of `open`."""
    with REAL.open(path, "rb") as file:
        return file.read()  # type: ignore[no-any-return]


@contextmanager
def muted(*fds: int, flush: bool = True) -> Iterator[None]:
    """Discard what is written to these file descriptors, including output of C++ code.

    Without ``flush``, only C++ code's: Python's buffered output is written later, as usual.
    """
    if flush:
        _flush()
    saved = []
    for fd in fds:
        with suppress(OSError):  # a test may have closed it
            saved.append((fd, _aside(REAL.dup(fd))))
    null = _aside(REAL.open_fd(REAL.null, os.O_WRONLY))
    try:
        for fd, _ in saved:
            REAL.dup2(null, fd)
        yield
    finally:
        if flush:
            _flush()
        for fd, copy in saved:
            with suppress(OSError):  # as above: what is left must come back
                REAL.dup2(copy, fd)
                REAL.close(copy)
        with suppress(OSError):
            REAL.close(null)


def _aside(fd: int) -> int:
    """The same file under a number that is none of the standard streams', which tests close."""
    taken = []
    while fd <= 2:
        taken.append(fd)
        fd = REAL.dup(fd)
    for one in taken:
        REAL.close(one)
    return fd


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:  # noqa: SIM105 - quicker so
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):  # none, or closed by a test
            pass


class no_collection:  # noqa: N801 - read as the statement that it stands for
    """No automatic collection, though `gc.isenabled` reports what the test expects."""

    __slots__ = ("_old",)

    def __enter__(self) -> None:
        self._old = gc.get_threshold()
        gc.set_threshold(0, *self._old[1:])

    def __exit__(self, *_: object) -> None:
        if gc.get_threshold()[0] == 0:  # else the test has set its own
            gc.set_threshold(*self._old)


def replace(
    where: Any, name: str, wrap: Callable[[Callable[..., Any]], Any], undo: ExitStack
) -> None:
    """Wrap a function; ``undo`` restores it, unless the test has replaced it."""
    old = getattr(where, name)
    new = wrap(old)
    setattr(where, name, new)

    def back() -> None:
        if getattr(where, name, None) is new:
            setattr(where, name, old)

    undo.callback(back)
