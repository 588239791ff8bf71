"""Ranks of one job agree on each test by files in one folder: no process group is needed.

Each writes its own files, and reads the others'. A rank that has ended, that does not run a test,
or that takes too long is noticed, so that no rank waits for ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.reasons import Reason, Why, because

_POLL_S = 0.002
#: What `torchrun` sets for each rank.
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIX = "torchprof-job-"
#: A folder that ranks on several nodes share.
SHARED = "TORCHPROF_JOB"


def world_of(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of ranks, as `torchrun` tells each process; None outside of a job.

    >>> names = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    >>> world_of(names), world_of({})
    ((1, 2), None)
    """
    rank, size = (environ.get(name, "") for name in _NAMES[:2])
    if not (rank.isdecimal() and size.isdecimal()) or not all(map(environ.get, _NAMES)):
        return None
    return (int(rank), int(size)) if int(size) > 1 else None


def folder_of(environ: Mapping[str, str]) -> Path:
    """The folder of this job, which exists afterwards, private to its user.

    Raises:
        SettingsError: the ranks are on several nodes and no shared folder is named, or it cannot be
            made.
    """
    here = environ.get("LOCAL_WORLD_SIZE") or environ.get("WORLD_SIZE")
    shared = environ.get(SHARED)
    if shared is None and here != environ.get("WORLD_SIZE"):
        raise SettingsError(
            "the ranks of this job are on several nodes",
            f"{here} of {environ.get('WORLD_SIZE')} are on this one",
            f"set {SHARED} to an empty folder that all nodes share",
        )
    # What started the ranks is one process for all of them on a node.
    same = "" if shared else f"{os.getppid()} {_started(os.getppid())}"
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    key = hashlib.sha256(" ".join([same, *(environ.get(n, "") for n in names)]).encode())
    path = Path(shared or tempfile.gettempdir()) / f"{_PREFIX}{key.hexdigest()[:16]}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SettingsError(f"the ranks cannot meet in {path}", str(error), "free it") from error
    foreign = hasattr(os, "getuid") and found.st_uid != os.getuid()
    if foreign or not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"the ranks cannot meet in {path}", "it is not ours", "remove it")
    return path


def sweep() -> None:
    """Remove folders of earlier jobs that were ended from outside, so that no rank could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            said = [_read(file) for file in folder.glob("*.pid")]
            ours = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
            if ours and said and not any(_started(pid) == at for ((pid, at),) in said):
                shutil.rmtree(folder, ignore_errors=True)


def _started(pid: int) -> str:
    """When a process started, in ticks; numbers of processes are used again."""
    try:
        with REAL.open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()  # type: ignore[no-any-return]
    except (OSError, IndexError):
        return ""


class RankLostError(Exception):
    """Another rank does not take part in a test; ``reason`` says which one, and why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.why.value)
        self.reason = reason


class Ranks:
    """This rank and the others, as seen through the folder of the job."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self._tests: dict[int, frozenset[str]] = {}
        self._write(f"{rank}.pid", [REAL.getpid(), _started(REAL.getpid())])

    # ---------------------------------------------------------------- what this rank says

    def will_run(self, nodeids: Iterable[str]) -> None:
        """Tell which tests this rank runs."""
        self._write(f"{self.rank}.tests", list(nodeids))

    def leave(self, nodeid: str, reason: Reason) -> None:
        """Tell that this rank does not, or no longer, take part in a test."""
        path = self._name(nodeid, "out", self.rank)
        if not (self.folder / path).exists():
            self._write(path, reason)

    def tell(self, nodeid: str, step: str, content: object) -> None:
        """Say something about a test."""
        self._write(self._name(nodeid, step, self.rank), content)

    def end(self) -> None:
        """Tell that the session of this rank is over; the last one removes the folder."""
        with suppress(OSError):
            self._write(f"{self.rank}.over", None)
            if all(self._is_over(rank) for rank in range(self.size)):
                shutil.rmtree(self.folder, ignore_errors=True)

    def wait_for_end(self, rank: int, limit_s: float) -> None:
        """Wait until the session of this rank is over."""
        until = REAL.clock() + int(limit_s * 1e9)
        while not self._is_over(rank) and REAL.clock() < until:
            REAL.sleep(_POLL_S)

    # ---------------------------------------------------------------- what the others say

    def agree(self, nodeid: str, step: str, content: object, limit_s: float) -> list[Any]:
        """Say something about a test, and return what each rank says, by rank.

        Raises:
            RankLostError: another rank left the test, ended, or took longer than the limit.
        """
        self.tell(nodeid, step, content)
        return [self.hear(nodeid, step, rank, limit_s) for rank in range(self.size)]

    def hear(self, nodeid: str, step: str, rank: int, limit_s: float) -> Any:
        """What this rank says; see `agree`."""
        path = self.folder / self._name(nodeid, step, rank)
        out = self.folder / self._name(nodeid, "out", rank)
        until = REAL.clock() + int(limit_s * 1e9)
        while True:
            over = self._is_over(rank)  # asked first: it may write and end at once
            if (said := _read(path)) is not None:
                return said[0]
            if (why := _read(out)) is not None:
                found = msgspec.convert(why[0], Reason)
                raise RankLostError(because(Why.OF_CHILD, process=f"rank {rank}", why=found))
            if over or not self._runs(rank, nodeid):
                why_not = Why.RANK_ENDED if over else Why.RANK_RUNS_IT_NOT
                raise RankLostError(because(why_not, rank=rank))
            if REAL.clock() > until:
                raise RankLostError(because(Why.RANK_SILENT, rank=rank, limit_s=limit_s))
            REAL.sleep(_POLL_S)

    def _runs(self, rank: int, nodeid: str) -> bool:
        if rank not in self._tests:
            said = _read(self.folder / f"{rank}.tests")
            if said is None:
                return True
            self._tests[rank] = frozenset(said[0])
        return nodeid in self._tests[rank]

    def _is_over(self, rank: int) -> bool:
        """Whether the rank has ended, in its own way or not."""
        if (self.folder / f"{rank}.over").exists():
            return True
        said = _read(self.folder / f"{rank}.pid")
        if said is None or SHARED in os.environ or not Path("/proc/self").exists():
            return False
        pid, started = said[0]
        return _started(pid) != started or _is_zombie(pid)

    # ---------------------------------------------------------------- files

    @staticmethod
    def _name(nodeid: str, step: str, rank: int) -> str:
        digest = hashlib.sha256(nodeid.encode(errors="backslashreplace")).hexdigest()[:16]
        return f"{digest}.{step}.{rank}"

    def trace_of(self, nodeid: str, rank: int) -> Path:
        """Where a rank puts its trace of a test."""
        return self.folder / f"{self._name(nodeid, 'trace', rank)}.pt.trace.json.gz"

    def _write(self, name: str, content: object) -> None:
        draft = self.folder / f".{name}"
        draft.write_bytes(msgspec.json.encode([content]))
        draft.replace(self.folder / name)


def _is_zombie(pid: int) -> bool:
    try:
        with REAL.open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _read(path: Path) -> Any:
    try:
        with REAL.open(path, "rb") as file:
            return msgspec.json.decode(file.read())
    except OSError:
        return None
