"""The capture of a process that a measured test has started, from torch's import to its end."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from pytest_torchprof.capture.dynamo import graph_facts
from pytest_torchprof.capture.limits import LIMIT_OF_EVENTS, Watchdog
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import accelerator, allows_tf32, kineto_quiet
from pytest_torchprof.capture.patches import REAL, muted
from pytest_torchprof.capture.processes import described_groups, watch_forks
from pytest_torchprof.capture.profiler import OWN_PROFILER, Capture
from pytest_torchprof.capture.sessions import OTHERS, disable
from pytest_torchprof.core.errors import CaptureError, NotCapturedError
from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.unknown import (
    Reason,
    Why,
    because,
)
from pytest_torchprof.places.place import Marks  # noqa: TC001 - msgspec reads it
from pytest_torchprof.trace.facts import Facts

# ---- Threads that libraries start beside a program, which run no operators of its own.

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


# ---- Hand over before SIGTERM ends a process, as pools end their workers with it.
#
# Python runs a handler between two steps of its own, so a process that waits in native code would
# no longer end. A thread then ends it as the system would have.

#: A process that has not handled the signal by then waits in native code.
_PATIENCE_S = 1.0
#: libc's SIG_DFL.
_DEFAULT = ctypes.c_void_p(0)


def on_termination(call: Callable[[], None], is_ending: Callable[[], bool]) -> None:
    """Call it when SIGTERM would end this process, which then ends as it would have.

    A process that ``is_ending`` already, and is handing over, ends in its own way.

    Does nothing if the program handles the signal itself, or outside the main thread.
    """
    mine = REAL.getpid()
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":
        return
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_DFL and getattr(before, "__module__", None) != __name__:
        return
    handled = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if REAL.getpid() == mine:
            handled.set()
            if is_ending():
                return
            with suppress(Exception):
                call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(REAL.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
    read, write = os.pipe()
    os.set_blocking(write, False)
    if (theirs := signal.set_wakeup_fd(write, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(theirs)  # an event loop's
        os.close(read)
        os.close(write)
        return

    def wait() -> None:
        while os.read(read, 1) != bytes([signal.SIGTERM]):
            pass
        if not handled.wait(_PATIENCE_S):
            ctypes.CDLL(None).signal(signal.SIGTERM, _DEFAULT)
            os.kill(REAL.getpid(), signal.SIGTERM)

    REAL.thread(target=wait, name="torchprof-termination", daemon=True).start()


# ---- What a measured test's process and the processes that it starts tell each other by files.
#
# In a private folder of the measured run: ``job.json`` from the test's process, and from each
# other process ``NUMBER-PID.seen`` (a Python that would capture itself, if it imports torch),
# ``NUMBER-PID.begun`` (its capture has begun), ``NUMBER-PID.execs`` (it becomes another program),
# ``NUMBER-PID.ending`` (it is ending) and ``NUMBER-PID.done`` (it has ended, with its trace in
# ``NUMBER-PID.pt.trace.json``, or the reason why there is none). Numbers count the processes that
# the test's process starts, from 1, so that they are the same in each run; of a process that is
# started by another one, both numbers, as in ``1.2``.

JOB = "job.json"
#: The environment variable that a started program finds the folder by.
VARIABLE = "TORCHPROF_CHILD"


class Job(Sendable, frozen=True):
    """What a process needs to know to capture itself.

    ``threads``: intra-op threads, as in the test's process. ``parent_rank``: the variable ``RANK``
    that the test's own process has, which then says nothing of the processes that it starts.
    ``own_files``: lines are located, and these files are the user's; None if they are not.
    """

    threads: int | None
    facts: Facts
    parent_rank: str | None = None
    own_files: tuple[str, ...] | None = None


class Done(Sendable, frozen=True, omit_defaults=True):
    """How a process ended: a trace beside this file, or the ``reason`` why there is none.

    ``rank`` is that of torch.distributed's default group, or the environment's, None without.
    ``aside``: it runs nothing of the test by itself, such as a worker of a DataLoader.
    ``cpu_ns``: the CPU time that it used. ``marks`` are those in the trace, if lines were
    located.
    """

    rank: int | None = None
    ranks: int | None = None
    reason: Reason | None = None
    aside: bool = False
    cpu_ns: int = 0
    marks: Marks | None = None


def write(path: Path, content: Sendable) -> None:
    """Write a file that a reader finds whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(msgspec.json.encode(content))
    draft.replace(path)


# ---- The capture of a process that a measured test has started, from torch's import to its end.
#
# It hands its trace over by file when the process ends: at `atexit`, or at `os._exit`, with which
# forked processes end. A process that is killed hands nothing over, and its parent notices.

#: Names the measured test's folder to whoever reads a process's environment.
_OF = "TORCHPROF_PROCESS_OF"
_DATALOADER = "torch.utils.data._utils.worker"

#: The capture of this process, if it has one: its end is found through it.
HERE: list[Child] = []


def begin_capture(folder: Path, number: str, *, forked: bool = False) -> None:
    """Capture this process from here to its end; ``forked``: from a process with a session.

    Errors are handed over as the reason why there is no trace.
    """
    if forked:
        HERE.clear()
    if HERE or not folder.is_dir():
        return
    child = Child(folder, number)
    HERE.append(child)
    child.begin(forked=forked)


def step_aside() -> None:
    """End the capture of this process, if any: it measures tests itself."""
    for child in HERE:
        child.profiles_itself()


class Child:
    """This process, as seen by the test that started it."""

    def __init__(self, folder: Path, number: str) -> None:
        self.folder, self.number = folder, number
        self._pid = REAL.getpid()
        self._thread = REAL.current_thread()
        self._forks = 0
        self._fork_counts = False
        self._capture: Capture | None = None
        self._facts = Facts()
        self._reason: Reason | None = None
        self._tracer: LineTracer | None = None
        self._group: tuple[int, int] | None = None
        self._parent_rank: str | None = None
        self._watchdog = Watchdog(
            lambda: self._give_up(LIMIT_OF_EVENTS), over=lambda: not folder.is_dir()
        )

    def begin(self, *, forked: bool) -> None:
        """Start the session; see `begin_capture`."""
        with suppress(OSError):
            self._file("begun").touch(0o600)
        self._watch_end()
        try:
            self._watch_rank()
            self._start(forked=forked)
        except Exception as error:  # noqa: BLE001 - the program must not notice
            self._capture = None
            self._reason = _reason_of(error)

    def _start(self, *, forked: bool) -> None:
        job = msgspec.json.decode((self.folder / JOB).read_bytes(), type=Job)
        self._facts, self._parent_rank = job.facts, job.parent_rank
        if forked:
            gc.freeze()  # garbage from before may end what only works in the process it is of
            if Capture.current is not None:
                Capture.current.end_lines()
            Capture.current = None
            OTHERS.tell(None)
            OTHERS.replaced_ours = False
            if (device := accelerator()) is not None:
                # Ending its session would call CUDA, which does not work in a forked process.
                raise NotCapturedError(
                    because(
                        "child_forked_with_device",
                        (
                            "it was forked while {device} was in use, which a forked process "
                            "cannot use, nor end a session that records it: start it with the "
                            "method spawn"
                        ),
                        device=device,
                    )
                )
            disable()  # the session of the process that it was forked from
        else:
            watch_forks()
            OTHERS.watch()
        self._watchdog.start()
        if job.own_files is not None:
            self._tracer = LineTracer(job.own_files)
        capture = Capture(threads=job.threads, helpers=is_helper, tracer=self._tracer)
        with muted(2, flush=False), kineto_quiet():
            capture.start()
        capture.groups.discard(None)  # before its first group nothing communicates
        self._capture = capture
        OTHERS.tell(self.profiles_itself)

    def profiles_itself(self) -> None:
        """End our session: the program starts one of its own."""
        self._give_up(OWN_PROFILER)

    def _give_up(self, why: Reason) -> None:
        capture, self._capture = self._capture, None
        self._reason = self._reason or why
        if capture is not None:
            with muted(2, flush=False):
                capture.step_aside()

    # ---------------------------------------------------------------- forks of this process

    def before_fork(self, *, counts: bool) -> None:
        """Count a process that this one forks, unless it is to become another program."""
        self._forks += counts
        self._fork_counts = counts

    def in_fork(self) -> None:
        """In the forked process: capture it, too."""
        HERE.clear()
        if self._fork_counts:
            begin_capture(self.folder, f"{self.number}.{self._forks}", forked=True)

    # ---------------------------------------------------------------- the end

    def _watch_end(self) -> None:
        atexit.register(self.end)
        on_termination(self.end, lambda: self not in HERE)
        original, execve = os._exit, os.execve

        def leave(status: int) -> None:
            self.end()
            original(status)

        # A program that this process becomes is known by the folder in its environment, also once
        # its parent has ended.
        def replaced_with(path: Any, args: Any, env: Any) -> None:
            self._becomes_another()
            told = {**env, _OF: str(self.folder)} if isinstance(env, Mapping) else env
            execve(path, args, told)

        def replaced(path: Any, args: Any) -> None:
            replaced_with(path, args, os.environ)

        os._exit = leave  # type: ignore[assignment]
        os.execv, os.execve = replaced, replaced_with  # type: ignore[assignment]

    def _becomes_another(self) -> None:
        with suppress(OSError):
            if REAL.getpid() == self._pid:
                self._file("execs").touch(0o600)
        self.end()

    def _watch_rank(self) -> None:
        """Note the rank when the default group is made: at the end, it is often gone."""
        room: Any = sys.modules.get("torch.distributed.distributed_c10d")
        update = getattr(room, "_update_default_pg", None)
        if update is None:
            return

        def noting(group: Any) -> Any:
            with suppress(Exception):
                if group is not None and group is not room.GroupMember.NON_GROUP_MEMBER:
                    self._group = int(group.rank()), int(group.size())
            if group is None and self._capture is not None:  # it is being destroyed
                self._capture.groups.add(described_groups())
            return update(group)

        room._update_default_pg = noting
        with suppress(Exception):  # a forked process may have a group already
            if room.is_initialized():
                self._group = int(room.get_rank()), int(room.get_world_size())

    def end(self) -> None:
        """Hand over; once, and not in a process that was forked from this one."""
        if REAL.getpid() != self._pid or self not in HERE:
            return
        HERE.remove(self)
        atexit.unregister(self.end)
        self._watchdog.stop()
        with suppress(Exception):
            if self.folder.is_dir():
                self._file("ending").touch(0o600)
                write(self._file("done"), self._done())
            else:
                self._give_up(LIMIT_OF_EVENTS)  # nobody waits for it

    def _done(self) -> Done:
        rank, ranks = self._rank()
        cpu_ns = REAL.cpu_clock()
        # Ended while the capture began, it has run nothing of its own.
        unbegun = self._capture is None and self._reason is None
        if unbegun or _is_dataloader_worker():
            return Done(rank, ranks, aside=True, cpu_ns=cpu_ns)
        reason = self._reason
        if reason is None and REAL.current_thread() != self._thread:
            reason = because("child_ended_in_thread", "it ended in another thread than it began in")
        if reason is None:
            try:
                self._stop()
            except Exception as error:  # noqa: BLE001 - said instead of the numbers
                reason = _reason_of(error)
        tracer = self._tracer
        if tracer is None or not tracer.usable:
            return Done(rank, ranks, reason, cpu_ns=cpu_ns)
        return Done(rank, ranks, reason, cpu_ns=cpu_ns, marks=tracer.marks)

    def _stop(self) -> None:
        assert self._capture is not None  # noqa: S101 - or there was a reason
        own = Facts(packages=self._capture.packages.calls, allow_tf32=allows_tf32())
        self._capture.end_region()
        with muted(2, flush=False):
            self._capture.stop(self._file("pt.trace.json"), self._facts | graph_facts() | own)

    def _rank(self) -> tuple[int | None, int | None]:
        if self._group is not None:
            return self._group
        given, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if self._parent_rank is not None or not (given.isdecimal() and world.isdecimal()):
            return None, None
        return int(given), int(world)

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.number}-{self._pid}.{kind}"


def _reason_of(error: Exception) -> Reason:
    if isinstance(error, CaptureError):
        found = getattr(error, "reason", None)
        if isinstance(found, Reason):
            return found
    return because(*Why.ERROR, message=f"{type(error).__name__}: {error}")


def _is_dataloader_worker() -> bool:
    process: Any = sys.modules.get("multiprocessing.process")
    target = getattr(process and process.current_process(), "_target", None)
    return getattr(target, "__module__", None) == _DATALOADER
