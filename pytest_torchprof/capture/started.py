"""Processes that a measured test starts: told to capture themselves, collected, and ended."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec

from pytest_torchprof.capture.children import JOB, VARIABLE, Done, Job, write
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.processes import STARTED, descendants, fields_of, helps
from pytest_torchprof.capture.profiler import hold
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.places.place import Marks  # noqa: TC001 - a record's type
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


# ---- What a measured run learns from the processes that it starts: their traces, by file.
#
# Nothing of it is seen by the test: the environment is given to started programs only, and no
# file exists until a process is started.

_STARTUP = Path(__file__).parent / "startup"
#: A process that is handing over has this long to finish.
_HANDOVER_S = 30.0
_POLL_S = 0.005
#: In a process that a server forks, which has no environment of ours.
_CODE = """\
try:
    import importlib.util, sys
    spec = importlib.util.spec_from_file_location("_torchprof_arming", {path!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.arm({handed!r}, served=True)
except Exception:
    pass
"""


class ChildTrace(Frozen, frozen=True):
    """The trace of a process that a test has started, and its open, unlinked file.

    ``label`` is its rank as text, or ``process N``; ``ranks`` is the size of its group. ``marks``
    are those in it, if lines were located.
    """

    label: str
    trace: Events
    file: IO[bytes]
    rank: int | None = None
    ranks: int | None = None
    marks: Marks | None = None


class Collected(NamedTuple):
    """What was handed over.

    ``lost`` says why something is missing. ``pids`` are processes that are accounted for. Of those
    that would have handed over, ``forks`` were forked by the test's process; ``cpu_ns`` is the CPU
    time of those that have ended.
    """

    traces: tuple[ChildTrace, ...]
    lost: Reason | None
    pids: frozenset[int]
    forks: int
    cpu_ns: int


class _Process(NamedTuple):
    """The files of a process, by their names."""

    order: tuple[int, ...]
    pid: int
    stem: str
    kinds: set[str]


class Handover:
    """The folder of one measured run; ``job`` makes what started processes need to know."""

    def __init__(self, job: Callable[[], Job]) -> None:
        self._job = job
        self.folder: Path | None = None
        self._last = 0
        self._pid = REAL.getpid()
        self._prefix = ""
        #: The numbers of forks.
        self._forks: set[int] = set()

    # ---------------------------------------------------------------- while processes start

    def watch(self, replace: Callable[..., None], undo: ExitStack) -> None:
        """Tell processes that a server forks; it may be older than the run."""
        room = sys.modules.get("multiprocessing.spawn")
        if "multiprocessing.popen_forkserver" in sys.modules and room is not None:
            replace(room, "get_preparation_data", self._telling, undo)

    def fork(self) -> Callable[[], None]:
        """Number a process that is about to be forked; returns what it calls to capture itself."""
        folder, number = self._folder_now(), self._next(forks=True)

        def begin() -> None:
            self._prefix, self._last = f"{number}.", 0
            from pytest_torchprof.capture.children import begin_capture

            begin_capture(folder, number, forked=True)

        return begin

    def told(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of `fork_exec` or `posix_spawn`, with our variables in the environment."""
        at = 5 if isinstance(arguments[0], list | tuple) and len(arguments) > 5 else 2
        given = arguments[at]
        folder = self._folder_now()
        variables: dict[bytes, bytes] = {}
        if isinstance(given, list | tuple):  # of NAME=VALUE
            pairs = (os.fsencode(one).partition(b"=") for one in given)
            variables = {key: value for key, _, value in pairs}
        else:
            mapping = os.environ if given is None else given
            variables = {os.fsencode(k): os.fsencode(v) for k, v in mapping.items()}
        self._add(variables, folder, self._next())
        as_list = [key + b"=" + value for key, value in variables.items()]
        told: Any = as_list if at == 5 else variables
        return (*arguments[:at], told, *arguments[at + 1 :])

    def _add(self, variables: dict[bytes, bytes], folder: Path, number: str) -> None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        variables[VARIABLE.encode()] = os.fsencode(f"{python}:{number}:{folder}")
        ours = os.fsencode(_STARTUP)
        before = variables.get(b"PYTHONPATH", b"")
        if ours not in before.split(os.pathsep.encode()):
            variables[b"PYTHONPATH"] = ours + (os.pathsep.encode() + before if before else b"")

    def _telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_preparation_data(*args: Any, **options: Any) -> Any:
            data = original(*args, **options)
            caller = REAL.frame(1)
            if caller.f_globals.get("__name__") == "multiprocessing.popen_forkserver":
                with suppress(Exception):
                    target = getattr(caller.f_locals.get("process_obj"), "_target", None)
                    if getattr(target, "__module__", "") != "torch.utils.data._utils.worker":
                        handed = f"{self._next()}:{self._folder_now()}"
                        data["torchprof"] = _Code(handed)
            return data

        return get_preparation_data

    def _next(self, *, forks: bool = False) -> str:
        self._last += 1
        if forks and not self._prefix:
            self._forks.add(self._last)
        return f"{self._prefix}{self._last}"

    def _folder_now(self) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="torchprof-processes-"))
            write(self.folder / JOB, self._job())
        return self.folder

    # ---------------------------------------------------------------- once the region is over

    def collect(self) -> Collected | None:
        """What was handed over; None if no process was started."""
        if self.folder is None or REAL.getpid() != self._pid:
            return None
        processes = self._settled()
        lost: list[Reason] = []
        traces: list[ChildTrace] = []
        labels = self._labels(processes)
        seen = {one.order[0] for one in processes}
        cpu_ns = 0
        for one in processes:
            if "begun" not in one.kinds:
                continue
            found = self._read(one, labels[one.stem])
            if isinstance(found, Reason):
                lost.append(found)
                continue
            done, trace = found
            cpu_ns += done.cpu_ns
            if trace is not None:
                traces.append(trace)
        several = because(*Why.SEVERAL, gaps=tuple(lost)) if lost[1:] else None
        return Collected(
            tuple(traces),
            several or next(iter(lost), None),
            frozenset(one.pid for one in processes if one.kinds & {"done", "execs"} == {"done"}),
            len(seen & self._forks),
            cpu_ns,
        )

    def _settled(self) -> list[_Process]:
        """The processes in the order of their numbers, once none is handing over any more."""
        until = REAL.clock() + int(_HANDOVER_S * 1e9)
        while True:
            processes = self._processes()
            busy = (
                one.pid
                for one in processes
                if "ending" in one.kinds and "done" not in one.kinds and is_alive(one.pid)
            )
            if not any(busy) or REAL.clock() > until:
                return processes
            REAL.sleep(_POLL_S)

    def _processes(self) -> list[_Process]:
        assert self.folder is not None  # noqa: S101 - by callers
        found: dict[str, set[str]] = {}
        for name in REAL.listdir(self.folder):
            number, dash, rest = name.partition("-")
            if not dash or name.startswith("."):
                continue
            pid, _, kind = rest.partition(".")
            stem = f"{number}-{pid}"
            found.setdefault(stem, set()).add(kind)
        made = []
        for stem, kinds in found.items():
            number, _, pid = stem.partition("-")
            made.append(_Process(tuple(map(int, number.split("."))), int(pid), stem, kinds))
        return sorted(made)

    def _labels(self, processes: list[_Process]) -> dict[str, str]:
        begun = [one for one in processes if "begun" in one.kinds]
        return {one.stem: f"process {n}" for n, one in enumerate(begun, 1)}

    def _read(self, one: _Process, label: str) -> Reason | tuple[Done, ChildTrace | None]:
        """How it ended, and its trace; or why its numbers are unknown."""
        assert self.folder is not None  # noqa: S101 - by callers
        if "done" not in one.kinds:
            why = Why.CHILD_RUNS_ON if is_alive(one.pid) else Why.CHILD_WAS_KILLED
            return because(*why, process=label)
        try:
            done = msgspec.json.decode((self.folder / f"{one.stem}.done").read_bytes(), type=Done)
            if done.aside:
                return done, None
            label = label if done.rank is None else f"rank {done.rank}"
            if done.reason is not None:
                return because(*Why.OF_CHILD, process=label, why=done.reason)
            path = self.folder / f"{one.stem}.pt.trace.json"
            trace = parse_trace(path.read_bytes(), source=str(path))
            if trace.region is None:
                return because(*Why.OF_CHILD, process=label, why=because(*Why.NOTHING_RECORDED))
            return done, ChildTrace(label, trace, hold(path), done.rank, done.ranks, done.marks)
        except (OSError, TraceError, msgspec.DecodeError) as error:
            return because(
                *Why.OF_CHILD, process=label, why=because(*Why.ERROR, message=str(error))
            )

    def close(self) -> None:
        """Remove the folder; a process that has not ended hands nothing over any more."""
        if self.folder is not None and REAL.getpid() == self._pid:
            folder, self.folder = self.folder, None
            shutil.rmtree(folder, ignore_errors=True)


class _Code:
    """Runs our code in the process that unpickles it, in which our package may not be found."""

    def __init__(self, handed: str) -> None:
        self._handed = handed

    def __reduce__(self) -> tuple[Any, ...]:
        code = _CODE.format(path=str(_STARTUP / "arming.py"), handed=self._handed)
        return exec, (code, {"__name__": "_torchprof"})


def is_alive(pid: int) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        with REAL.open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        pass
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


# ---- End the processes that a run has left behind, once it is given up or has failed.
#
# Its test would have ended them itself, or waited for them. They would work during later tests,
# and Python waits at its end for those of ``multiprocessing``.

#: A process that does not end upon SIGTERM by then is killed. In ours, a thread ends one that waits
#: in native code after 1 s: see `capture.children`.
_PATIENCE_S = 2.0
#: The system ends a killed process soon.
_KILLED_S = 1.0
_LEFTOVER_POLL_S = 0.01


def end_processes(ticks: int) -> None:
    """End the descendants that were started since then, see `ticks_now`; on Linux.

    Helpers of Python and torch stay, as they serve later tests: servers of forks, trackers, and
    compilers.
    """
    born = _born_since(ticks)
    for number, patience_s in ((signal.SIGTERM, _PATIENCE_S), (_KILL, _KILLED_S)):
        for pid in born:
            with suppress(OSError):  # it has just ended
                os.kill(pid, number)
        until = REAL.clock() + int(patience_s * 1e9)
        while (born := [*filter(is_alive, born)]) and REAL.clock() < until:
            REAL.sleep(_LEFTOVER_POLL_S)
        if not born:
            break
    room: Any = sys.modules.get("multiprocessing.process")
    if room is not None:
        room.active_children()  # waits for those that have ended


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def _born_since(ticks: int) -> list[int]:
    found = []
    for pid in descendants():
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            if int(fields_of(pid)[STARTED]) >= ticks and not helps(pid):
                found.append(pid)
    return found
