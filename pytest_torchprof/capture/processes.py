"""Detect work that child processes do for a test, which the profiler of its own does not see."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.sessions import add_metadata
from pytest_torchprof.capture.startup.arming import HELPERS
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace.facts import FACTS_KEY, Facts

if TYPE_CHECKING:
    from pytest_torchprof.capture.started import ChildTrace, Handover


# ---- Detect work that child processes do for a test, which the profiler of its own does not see.
#
# In a measured run they are asked to capture themselves: see `capture.children`. Of other ones,
# whether one may have run torch is judged by what is known about it. A fork of this process has
# torch loaded. A program that was started must load torch first, which takes a while: a thread
# looks which ones have (`Children.look`); where the system lists no processes, CPU time tells
# whether they can have. One that has just been started may load it yet if it is a Python or a
# shell. A DataLoader's workers are handled separately: see `analysis.missing`.

FORKED = because(
    "forked_work", "a process that the test forked did work too, which is not recorded"
)

#: Importing torch takes at least this much CPU time: 1.4 s on our machine, 0.5 s on the fastest.
_IMPORT_NS = 250_000_000
#: CPU time above which a process has done work; a waiting one uses none.
_WORKED_NS = 100_000
#: Programs that never run torch, however long they take, by the last part of their names.
_HARMLESS = late(
    r"(^|-)(git|hg|uname|gcc|g\+\+|cc|c\+\+|clang|clang\+\+|ld|lld|as|ar|nm|objdump|readelf|make|"
    r"cmake|ninja|nvcc|hipcc|ptxas|cuobjdump|nvdisasm|nvidia-smi|rocm-smi|tar|gzip|unzip|curl|wget|"
    r"pt_data_worker|pt_helper)"
    r"(-?[\d.]+)?$"
)
#: Programs that can start a Python, or import torch, at any time.
_MAY_LOAD = late(r"python|pypy|^(ba|da|z|k|fi)?sh$")
#: One that has just been started may become another program.
_SETTLED_NS = 300_000_000
#: One that runs for longer without torch is a server or a loop: it is not about to load torch.
_LOADS_S = 3
#: Whether the system lists processes, and when they started.
_LISTED = hasattr(time, "CLOCK_BOOTTIME") and os.path.exists("/proc/self/stat")  # noqa: PTH110
_DATALOADER, _WORKER = "torch.utils.data._utils.worker", "pt_data_worker"
#: What a helper of Python or torch is called here, whatever its own name.
_HELPER = "pt_helper"
#: A server of forks, and what it has forked, which has the same command line.
_FORKSERVER = "from multiprocessing.forkserver import"
#: Of a process's fields after its name. Source: proc_pid_stat(5), whose numbers are larger by 3.
#: Times are in ticks since the boot; where the stack begins tells a fork from another program.
_PARENT, STARTED, _STACK = 1, 19, 25
#: Loaded where multiprocessing has used a server of forks.
_SERVER = "multiprocessing.popen_forkserver"
#: A program started with neither `subprocess` nor `os.posix_spawn`, as by `os.system`.
_UNNAMED = "a program of unknown name"

#: Python cannot remove the hook, so it stays; it does nothing while this is empty.
_WATCHING: list[Children] = []


def watch_forks() -> None:
    """Notice forks from here on; once per process."""
    if not _FORKS_WATCHED and hasattr(os, "register_at_fork"):
        _FORKS_WATCHED.append(True)
        os.register_at_fork(before=_forks, after_in_parent=_forked, after_in_child=_in_fork)


_FORKS_WATCHED: list[bool] = []
#: Code objects of functions that start a program.
_STARTS: set[CodeType] = set()


def _forks() -> None:
    known = _known(REAL.frame(1)) if _WATCHING or _captured() else ""
    for children in _WATCHING:
        children.before_fork(known)
    for child in _captured():
        child.before_fork(counts=known is None)


def _forked() -> None:
    for children in _WATCHING:
        children.note_fork(_known(REAL.frame(1)))


def _in_fork() -> None:
    watching, captured = list(_WATCHING), list(_captured())
    _WATCHING.clear()
    for children in watching:
        children.in_fork()
    for child in captured:
        child.in_fork()


def _captured() -> Sequence[Any]:
    """The capture of this process, if a measured test in another one has started it."""
    room = sys.modules.get("pytest_torchprof.capture.children")
    return () if room is None else room.HERE


def _known(frame: FrameType | None, *, forks: bool = True) -> str | None:
    """The name of a DataLoader's worker; empty for a program, which is recorded as such."""
    for _ in range(8):
        if frame is None:
            return None
        if frame.f_code in _STARTS or (forks and frame.f_globals.get("__name__") == "subprocess"):
            return ""
        process = frame.f_locals.get("process_obj")
        if process is not None:
            target = getattr(process, "_target", None)
            return _WORKER if getattr(target, "__module__", None) == _DATALOADER else None
        frame = frame.f_back
    return None


class Children:
    """Child processes' work between `begin` and `end`."""

    def __init__(self, handover: Callable[[], Handover] | None = None) -> None:
        #: Forks, and started programs, other than a DataLoader's workers.
        self.forks = 0
        #: What those that have captured themselves have handed over, after `end`.
        self.traces: tuple[ChildTrace, ...] = ()
        self._make_handover = handover
        self._handover: Handover | None = None
        self._in_fork: Callable[[], None] = _nothing
        #: The names of programs started since `begin`.
        self.programs: list[str] = []
        self._ended_ns = 0
        self._alive: dict[int, int] = {}
        self._had_torch: dict[int, str] = {}
        #: When it began, in the system's ticks since its boot.
        self._since = 0
        #: Names of new processes that have loaded torch, and known ones that do not count.
        self._loaded: dict[int, str] = {}
        #: Programs of ours by number and start, also once their parents have ended.
        self._seen: set[tuple[int, bytes]] = set()
        self._workers: set[int] = set()

    def take(self) -> tuple[ChildTrace, ...]:
        """What was handed over, which is the caller's to close from now on."""
        taken, self.traces = self.traces, ()
        return taken

    def close(self) -> None:
        """Close the files that nobody has taken."""
        for one in self.take():
            one.file.close()

    def before_fork(self, known: str | None) -> None:
        """Number a process that is about to be forked."""
        if self._make_handover is not None:
            self._in_fork = self._handed().fork() if known is None else _nothing

    def in_fork(self) -> None:
        """In a forked process: have it capture itself, if it is one to be measured."""
        self._in_fork()

    def note_fork(self, known: str | None) -> None:
        """Note a fork: of a DataLoader's worker by its name, of a program by "", of others None."""
        if known is None:
            self.forks += 1
        elif known:
            self.programs.append(known)

    def watch(self, replace: Callable[..., None], undo: ExitStack) -> None:
        """Record forks and started programs until ``undo``; ``replace`` wraps a function."""
        _WATCHING.append(self)
        undo.callback(self._unwatch)
        for room, name in (
            ("_posixsubprocess", "fork_exec"),
            ("subprocess", "_fork_exec"),
            ("os", "posix_spawn"),
            ("os", "posix_spawnp"),
        ):
            if hasattr(module := sys.modules.get(room), name):
                replace(module, name, self._noting, undo)
        if self._make_handover is not None and _SERVER in sys.modules:
            self._handed().watch(replace, undo)

    def _handed(self) -> Handover:
        """What started processes hand over, from the first of them on."""
        if self._handover is None:
            assert self._make_handover is not None  # noqa: S101 - by callers
            self._handover = self._make_handover()
        return self._handover

    def _unwatch(self) -> None:
        if self._handover is not None:
            self._handover.close()
        with suppress(ValueError):  # in a forked child it is gone
            _WATCHING.remove(self)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **options: Any) -> Any:
            known = None
            with suppress(Exception):  # the original reports what cannot be started
                path = args[0] if isinstance(args[0], (str, bytes, os.PathLike)) else args[0][0]
                name = os.path.basename(os.fsdecode(path))  # noqa: PTH119
                if (known := _known(REAL.frame(1), forks=False)) != "":
                    self.programs.append(known or name)
                if self._make_handover is not None and not _HARMLESS.search(known or name):
                    args = self._handed().told(args)
            made = original(*args, **options)
            if known == _WORKER:
                self._workers.add(made)
            return made

        _STARTS.add(start.__code__)
        return start

    def begin(self) -> None:
        """Watch from here on."""
        self._since, self._ended_ns = ticks_now(), _ended_ns()
        self._alive = descendants()
        # They may end before they can be inspected.
        self._had_torch = {pid: name for pid in self._alive if (name := _torch_in(pid))}

    def look(self) -> None:
        """Note which programs that were started since `begin` have loaded torch."""
        for pid in self._new():
            if pid not in self._loaded and (name := _torch_in(pid)) is not None:
                self._loaded[pid] = name

    def _new(self) -> dict[int, list[bytes]]:
        """Living programs that were started since `begin`, with their fields; not mere forks."""
        if not (_LISTED and (self.forks or self.programs or self.ended or _has_children())):
            return {}
        folder = self._handover.folder if self._handover is not None else None
        mark = os.fsencode(folder) if folder else None
        found = _started_since(self._since, mark, self._seen)
        self._seen.update((pid, fields[STARTED]) for pid, fields in found.items())
        known = {*self._alive, *self._workers}
        return {pid: fields for pid, fields in found.items() if pid not in known}

    def _running(self, ours: frozenset[int]) -> list[str]:
        """The names of new programs that are not among ``ours`` and may load torch yet."""
        until, young = REAL.clock() + _SETTLED_NS, ticks_now() - _LOADS_S * TICKS
        while True:
            found, settles = [], False
            for pid, fields in self._new().items():
                if pid in ours or fields[0] in b"ZX" or int(fields[STARTED]) < young:
                    continue
                if not _HARMLESS.search(_name(pid)):
                    with suppress(OSError):  # it has just ended, or belongs to another user
                        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))  # noqa: PTH115, PTH119
                        found += [program] if _MAY_LOAD.search(program) else []
                    settles |= fields[0] in b"RD"
            if found or not settles or REAL.clock() > until:
                return found
            REAL.sleep(0.01)

    @property
    def ended(self) -> bool:
        """Whether a child has ended since `begin`, and was waited for."""
        return _ended_ns() != self._ended_ns

    def end(self) -> Reason | None:
        """Why not all work of other processes is known; None if it (almost certainly) is."""
        found = self._handover.collect() if self._handover is not None else None
        if found is not None:
            self.traces = found.traces
            if found.lost is not None:
                return found.lost
        ours = found.pids if found is not None else frozenset()
        ended, alive = _ended_ns() - self._ended_ns, descendants()
        # Children from before that were waited for in the meantime: their earlier work does not
        # count.
        ended -= sum(ns for pid, ns in self._alive.items() if pid not in alive)
        ended -= found.cpu_ns if found is not None else 0
        used_ns = {pid: ns - self._alive.get(pid, 0) for pid, ns in alive.items()}
        worked = {pid for pid, ns in used_ns.items() if ns > _WORKED_NS and pid not in ours}
        if self.forks > (found.forks if found is not None else 0) and (ended > 0 or worked):
            return FORKED
        self.look()
        torchs = {pid: name for pid, name in self._loaded.items() if pid not in ours}
        torchs |= {pid: name for pid in worked if (name := _torch_in(pid))}
        over = {pid for pid in self._had_torch if pid not in alive or _is_zombie(pid)}
        if ended > _WORKED_NS or over & worked:
            torchs |= {pid: self._had_torch[pid] for pid in over}
        if torchs:
            return because(*Why.PROGRAM_WORK, programs=tuple(dict.fromkeys(torchs.values())))
        if running := self._running(ours):
            return because(
                "program_runs_on",
                (
                    "another process still ran at the end of the test, and may load torch: "
                    "{programs:, }"
                ),
                programs=tuple(dict.fromkeys(running)),
            )
        harmless = self.programs and all(map(_HARMLESS.search, self.programs))
        if _LISTED or harmless or ended < _IMPORT_NS:
            return None
        return because(
            "unnamed_program_work",
            "another process did work for the test, and this system does not tell which",
        )


def _nothing() -> None:
    pass


def _ended_ns() -> int:
    """CPU time of all children that ended and were waited for, including their own children."""
    if REAL.rusage is None:
        return 0
    used = REAL.rusage(_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def descendants() -> dict[int, int]:
    """CPU time in ns of each living descendant, including that of its ended children."""
    if REAL.any_clock is None or not _has_children():
        return {}
    me, found = REAL.getpid(), dict[int, int]()
    every = {} if _lists_children(me) else _processes()
    generation = {me}
    while generation:
        born = {child for pid in generation for child in _children_of(pid)}
        born |= {pid for pid, fields in every.items() if int(fields[_PARENT]) in generation}
        generation = born - set(found)
        for pid in generation:
            found[pid] = 0
            with suppress(OSError, ValueError, IndexError):  # it has just ended
                ended = sum(int(ticks) for ticks in fields_of(pid)[13:15]) * 1_000_000_000 // TICKS
                found[pid] = REAL.any_clock((~pid << 3) | 2) + ended  # its CPU clock
    return found


def _has_children() -> bool:
    if REAL.waitid is None:
        return False
    try:
        REAL.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:  # ChildProcessError: there are none, as usual
        return False
    return True


def fields_of(pid: int) -> list[bytes]:
    """The fields of a process after its name: state, parent, …"""
    with REAL.open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()  # type: ignore[no-any-return]


def _lists_children(pid: int) -> bool:
    """Whether the system lists a process's children."""
    try:
        with REAL.open(f"/proc/{pid}/task/{pid}/children", "rb"):
            return True
    except OSError:
        return False


def _children_of(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in REAL.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), REAL.open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                yield from map(int, file.read().split())


def _processes() -> dict[int, list[bytes]]:
    """The fields of each process, the oldest first: slow."""
    found: dict[int, list[bytes]] = {}
    with suppress(OSError):
        for entry in filter(str.isdigit, REAL.listdir("/proc")):
            with suppress(OSError, ValueError, IndexError):  # it has just ended
                fields = fields_of(int(entry))
                int(fields[STARTED])
                found[int(entry)] = fields
    return dict(sorted(found.items(), key=lambda one: (int(one[1][STARTED]), one[0])))


def ticks_now() -> int:
    """The time since the boot, in the ticks that the system tells the start of a process in."""
    return REAL.any_clock(time.CLOCK_BOOTTIME) * TICKS // 1_000_000_000 if _LISTED else 0


def _started_since(
    since: int, mark: bytes | None, seen: Collection[tuple[int, bytes]]
) -> dict[int, list[bytes]]:
    """Living programs that this process, or one that it has started, has started since then.

    A parent that has ended no longer tells: such a program has ``mark`` in its environment, or was
    ``seen`` before, with the time of its start. Its session does not tell either: others run there.
    """
    every, related, found = _processes(), {REAL.getpid()}, dict[int, list[bytes]]()
    for pid, fields in every.items():
        is_new = int(fields[STARTED]) >= since
        is_ours = int(fields[_PARENT]) in related or (pid, fields[STARTED]) in seen
        if not (is_ours or (is_new and mark and mark in _read(pid, "environ"))):
            continue
        related.add(pid)
        above = every.get(int(fields[_PARENT]))
        if is_new and not (above and fields[_STACK] == above[_STACK]):
            found[pid] = fields
    return found


_CHILDREN = -1  # resource.RUSAGE_CHILDREN, on every system
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _torch_in(pid: int) -> str | None:
    """The name of a process that has torch loaded, but for a helper."""
    if b"libtorch" not in _read(pid, "maps") or _HARMLESS.search(name := _name(pid)):
        return None
    return name


def _read(pid: int, kind: str) -> bytes:
    """What the system tells of a process; nothing if it has just ended or is another user's."""
    with suppress(OSError), REAL.open(f"/proc/{pid}/{kind}", "rb") as file:
        return bytes(file.read())
    return b""


def _name(pid: int) -> str:
    """The name that a process gives itself, or what a helper is called here."""
    name = _read(pid, "comm").decode("utf-8", "replace").strip()
    return _HELPER if helps(pid) else name or _UNNAMED


def helps(pid: int) -> bool:
    """Whether it is a helper of Python or torch: a server of forks, a tracker, or a compiler."""
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
    if _FORKSERVER in command:  # or is it forked by one?
        with suppress(OSError):
            parent = int(fields_of(pid)[_PARENT])
            return _FORKSERVER.encode() not in _read(parent, "cmdline")
    return any(one in command for one in HELPERS)


def _is_zombie(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return fields_of(pid)[0] in b"ZX"
    return False


# ---- Describe the groups of torch.distributed in a trace, as torch.profiler does.

_KEY = "distributedInfo"


def described_groups() -> str | None:
    """The groups that there are, as JSON; None without a default group.

    Source of the keys: torch/profiler/profiler.py, ``_KinetoProfile._get_distributed_info``.
    """
    room: Any = sys.modules.get("torch.distributed.distributed_c10d")
    with suppress(Exception):  # an older torch, or a group that is being destroyed
        if room is not None and room.is_initialized():
            return json.dumps(
                {
                    "backend": room.get_backend(),
                    "rank": room.get_rank(),
                    "world_size": room.get_world_size(),
                    "pg_count": room.get_pg_count(),
                    "pg_config": room._get_all_pg_configs(),
                },
                default=str,
            )
    return None


def add_facts(profiler: Any, facts: Facts, groups: Iterable[str | None]) -> None:
    """Add what a trace does not have by itself; ``groups``: those of earlier times, described.

    Groups are left out if they changed, as it is unknown which calls were those of which.
    """
    add_metadata(profiler, FACTS_KEY, facts.stored())
    found = {*groups}
    if (now := described_groups()) is not None or not found:
        found.add(now)
    if len(found) == 1 and (only := found.pop()) is not None:
        add_metadata(profiler, _KEY, only)
