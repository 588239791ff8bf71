"""Collect garbage, in which a process group of gloo may end.

The end of a DDP model ends its process group, if the test has destroyed the group before. That
waits for gloo's threads, and holds Python's lock. A thread that has just ended its work may wait
for that lock, to release the Python objects of the work: then both wait forever. It takes less than
a millisecond, or as long as a busy machine does not let the thread run, so a test is unlikely to
collect just then. We do, right after it.

Source: torch/csrc/distributed/c10d, where ``~ProcessGroupGloo`` joins its threads. The binding of
``ProcessGroup`` releases the lock for it, and that of ``Reducer``, which a DDP model has, does not.
"""

from __future__ import annotations

from contextlib import suppress

from pytest_torchprof.capture.unpatched import REAL

_FOLDER = "/proc/self/task"
#: The name of the threads that run the operations of a group.
_GLOO = b"pt_gloo_runloop"
#: A thread that is done needs less, unless the machine is busy.
_PAUSE_S, _MOST_S = 0.001, 1.0


def collect(generation: int = 2) -> None:
    """Collect garbage up to this generation, once gloo's threads, if there are any, are at rest."""
    _GLOO_THREADS.await_rest()
    REAL.collect(generation)


class _GlooThreads:
    """The threads of gloo in this process; one for the process, as their list is."""

    def __init__(self) -> None:
        #: Other threads, and those of them that were so twice: a new thread has no name yet.
        self._others: set[str] = set()
        self._known: set[str] = set()

    def await_rest(self) -> None:
        """Return once each of them waits for work, or after a second."""
        tasks = self._found()
        if not tasks:
            return
        until, before = REAL.clock() + int(_MOST_S * 1e9), None
        while REAL.clock() < until:
            now = [_used_ns(task) for task in tasks]
            if now == before and all(_sleeps(task) for task in tasks):
                return
            before = now
            REAL.sleep(_PAUSE_S)  # without Python's lock

    def _found(self) -> list[str]:
        try:
            tasks = REAL.listdir(_FOLDER)
        except OSError:  # not on Linux
            return []
        self._known = self._known.intersection(tasks)
        unknown = [task for task in tasks if task not in self._known]
        found = [task for task in unknown if _read(task, "comm").strip() == _GLOO]
        others = set(unknown).difference(found)
        self._known |= others & self._others
        self._others = others
        return found


_GLOO_THREADS = _GlooThreads()


def _used_ns(task: str) -> int | None:
    """CPU time of a thread; None if it has ended."""
    with suppress(OSError):
        return int(REAL.any_clock((~int(task) << 3) | 6))
    return None


def _sleeps(task: str) -> bool:
    """Whether a thread neither runs nor waits for a processor; also if it has ended."""
    return _read(task, "stat").rpartition(b") ")[2][:1] in b"SI"


def _read(task: str, what: str) -> bytes:
    try:
        with REAL.open(f"{_FOLDER}/{task}/{what}", "rb", buffering=0) as file:
            return bytes(file.read())
    except OSError:  # it has just ended
        return b""
