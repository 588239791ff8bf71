"""The capture of a process that a measured test has started, from torch's import to its end.

It hands its trace over by file when the process ends: at `atexit`, or at `os._exit`, with which
forked processes end. A process that is killed hands nothing over, and its parent notices.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pytest_torchprof.capture.children.helper_threads import is_helper
from pytest_torchprof.capture.children.protocol import JOB, Done, Job, write
from pytest_torchprof.capture.children.termination import on_termination
from pytest_torchprof.capture.inductor import graph_facts
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import accelerator, allows_tf32, kineto_quiet, real_torch
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.process_groups import described_groups
from pytest_torchprof.capture.processes import watch_forks
from pytest_torchprof.capture.profiler import OWN_PROFILER, Capture
from pytest_torchprof.capture.torch_sessions import disable
from pytest_torchprof.capture.unpatched import REAL, muted
from pytest_torchprof.capture.watchdog import LIMIT_OF_EVENTS, Watchdog
from pytest_torchprof.core.errors import CaptureError, NotCapturedError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.trace.facts import Facts

#: Names the measured test's folder to whoever reads a process's environment.
_OF = "TORCHPROF_PROCESS_OF"
_DATALOADER = "torch.utils.data._utils.worker"

#: A lock that is free is had by then, also on a busy machine.
_UNLOCKED_S = 5.0

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
            OTHERS.ours_ended()
            if (device := accelerator()) is not None:
                # Ending its session would call CUDA, which does not work in a forked process.
                raise NotCapturedError(because(Why.CHILD_FORKED_WITH_DEVICE, device=device))
            _require_unlocked()
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
        with PATCH_GUARD, suppress(Exception):
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
            reason = because(Why.CHILD_ENDED_IN_THREAD)
        if reason is None:
            try:
                self._stop()
            except Exception as error:  # noqa: BLE001 - said instead of the numbers
                reason = _reason_of(error)
        tracer = self._tracer
        if tracer is None or not tracer.usable:
            return Done(rank, ranks, reason, cpu_ns=cpu_ns)
        lines, modules = tuple(tracer.lines), tuple(tracer.modules)
        return Done(rank, ranks, reason, cpu_ns=cpu_ns, lines=lines, modules=modules)

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
    return because(Why.ERROR, message=f"{type(error).__name__}: {error}")


def _require_unlocked() -> None:
    """Raise if a thread that this process was forked without holds a lock of torch for ever.

    The first operator of a thread waits for the lock of torch's callbacks, as does our start.
    """
    passed = threading.Event()

    def touch() -> None:
        real_torch().empty(0)
        passed.set()

    thread = REAL.thread(target=touch, daemon=True)
    thread.start()
    if not passed.wait(_UNLOCKED_S):
        raise NotCapturedError(because(Why.CHILD_FORKED_IN_TORCH))
    thread.join()  # it would seem to work for the test


def _is_dataloader_worker() -> bool:
    process: Any = sys.modules.get("multiprocessing.process")
    target = getattr(process and process.current_process(), "_target", None)
    return getattr(target, "__module__", None) == _DATALOADER
