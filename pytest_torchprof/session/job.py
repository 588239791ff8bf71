"""A session that is one rank of a job, as under ``torchrun -m pytest``."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from pytest_torchprof.capture.machine import Machine, probe_machine
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.profiler import hold
from pytest_torchprof.capture.started import ChildTrace
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.render import escape
from pytest_torchprof.session.hooks import PLAN, TorchprofSession
from pytest_torchprof.session.runs import Runner
from pytest_torchprof.session.verdicts import LAUNCHER
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.values import Settings
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.plan import RunKind


# ---- Ranks of one job agree on each test by files in one folder: no process group is needed.
#
# Each writes its own files, and reads the others'. A rank that has ended, that does not run a
# test, or that takes too long is noticed, so that no rank waits for ever.

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
        super().__init__(reason.code)
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
                raise RankLostError(because(*Why.OF_CHILD, process=f"rank {rank}", why=found))
            if over or not self._runs(rank, nodeid):
                why_not = Why.RANK_ENDED if over else Why.RANK_RUNS_IT_NOT
                raise RankLostError(because(*(why_not), rank=rank))
            if REAL.clock() > until:
                raise RankLostError(
                    because(
                        "rank_silent",
                        "rank {rank} did not come so far within {limit_s:.0f} s",
                        rank=rank,
                        limit_s=limit_s,
                    )
                )
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


# ---- A session that is one rank of a job, as under ``torchrun -m pytest``.
#
# All ranks run each test equally often, each measures its own process, and rank 0 compares,
# prints and writes. The others wait for its verdict, and fail with it.

#: Ranks wait at least this long for each other, and this many times the test's first run.
LEAST_S, TIMES = 60.0, 20
#: In which order ranks do runs that not all of them want.
_ORDER: tuple[RunKind, ...] = (
    "warmup",
    "round",
    "alone",
    "pairs",
    "profile",
    "modules",
    "threads",
    "numbers",
    "tensors",
    "lines",
)
#: A run in which nothing is measured, beside a rank that measures.
_COMPANY: RunKind = "numbers"
_END = "end"


class RankMachine(Machine, frozen=True):
    """The machine of a job of several ranks."""

    ranks: int = 1

    @property
    def key(self) -> str:
        """The environment key of baselines: ``cpu, torch 2.13 × 4 ranks``."""
        return f"{super().key} × {self.ranks} ranks"


class JobRunner(Runner):
    """Does the same runs of a test in each rank."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def _further(self, item: pytest.Item, gatherer: Gatherer) -> Iterable[RunKind]:
        return self._agreed(item.nodeid, gatherer, super()._further(item, gatherer))

    def _agreed(
        self, nodeid: str, gatherer: Gatherer, kinds: Iterable[RunKind]
    ) -> Iterator[RunKind]:
        """The runs that any rank wants; one that does not want it comes along."""
        own = (kind for kind in kinds if kind not in ("lines", "reseeded"))
        wanted: str = next(own, _END)
        step = 0
        while gatherer.reason is None:
            try:
                said = self._ranks.agree(nodeid, f"run{step}", wanted, self.limit_s)
            except RankLostError as error:
                gatherer.refuse(error.reason, timed=False)
                return
            step += 1
            kind = next((one for one in _ORDER if one in said), None)
            if kind is None:
                return
            if kind != wanted:
                yield _COMPANY
                continue
            yield kind
            wanted = next(own, _END)

    @property
    def limit_s(self) -> float:
        """How long to wait for other ranks."""
        return self._deadline.limit_s if self._deadline is not None else LEAST_S


class JobSession(TorchprofSession):
    """The plugin object of one rank."""

    def __init__(self, config: pytest.Config, settings: Settings, rank: int, size: int) -> None:
        super().__init__(config, settings)
        self.rank, self.size = rank, size
        config.stash[LAUNCHER] = ("torchrun", f"--nproc-per-node={size}", "-m")
        self._ranks: Ranks | None = None

    @property
    def ranks(self) -> Ranks:
        """The other ranks, from the start of the session on."""
        assert self._ranks is not None  # noqa: S101 - set at the start
        return self._ranks

    @property
    def machine(self) -> Machine:
        """The machine, with the number of ranks."""
        if self._machine is None:
            found = asdict(probe_machine(self.settings.threads))
            self._machine = RankMachine(**found, ranks=self.size)
        return self._machine

    def first_look(self) -> dict[str, Any]:
        """The environment: a rank has chosen its device before the tests."""
        return self.closer_look()

    def pytest_sessionstart(self) -> None:
        """Meet the other ranks."""
        if self.rank == 0:
            sweep()
        self._ranks = Ranks(folder_of(os.environ), self.rank, self.size)
        self.runner = JobRunner(self._ranks)
        super().pytest_sessionstart()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell which tests this rank runs."""
        self.ranks.will_run(item.nodeid for item in session.items if PLAN in item.stash)
        super().pytest_collection_finish(session)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the others if this rank skips a test, or fails it."""
        if report.when != "teardown" and not report.passed:
            with self.errors.careful:
                self.ranks.leave(report.nodeid, _outcome(report))
        super().pytest_runtest_logreport(report)

    def _judge(self, item: pytest.Item, gatherer: Gatherer) -> str | None:
        """Rank 0 compares the numbers of all; the others return its message."""
        nodeid, ranks = item.nodeid, self.ranks
        limit_s = self._limit_s
        if gatherer.reason is None and gatherer.export is not None:
            try:
                self._gather(nodeid, gatherer, limit_s)
            except RankLostError as error:
                gatherer.refuse(error.reason, timed=False)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                gatherer.give_up(error)
        if gatherer.reason is not None:
            ranks.leave(nodeid, gatherer.reason)
        if self.rank > 0:
            if gatherer.reason is not None:
                return super()._judge(item, gatherer)
            try:
                said = ranks.hear(nodeid, "verdict", 0, limit_s)
            except RankLostError as error:
                gatherer.refuse(error.reason, timed=False)
                return super()._judge(item, gatherer)
            return said and f"see rank 0: {said}"
        message = super()._judge(item, gatherer)
        ranks.tell(nodeid, "verdict", message and message.partition("\n")[0])
        return message

    def _gather(self, nodeid: str, gatherer: Gatherer, limit_s: float) -> None:
        """Hand this rank's trace to rank 0, which takes all of them."""
        ranks = self.ranks
        if self.rank > 0:
            assert gatherer.export is not None  # noqa: S101 - the caller has looked
            if gatherer.processes:
                raise RankLostError(
                    because("rank_starts_processes", "a rank starts processes itself")
                )
            gatherer.export(ranks.trace_of(nodeid, self.rank))
        ranks.agree(nodeid, "result", None, limit_s)
        if self.rank > 0:
            return
        found = []
        for rank in range(1, self.size):
            path = ranks.trace_of(nodeid, rank)
            trace = read_trace(path)
            found.append(ChildTrace(f"rank {rank}", trace, hold(path), rank, self.size))
            path.unlink()
        gatherer.join(str(self.rank), tuple(found))

    @property
    def _limit_s(self) -> float:
        assert isinstance(self.runner, JobRunner)  # noqa: S101 - set at the start
        return self.runner.limit_s

    def pytest_unconfigure(self) -> None:
        """End after rank 0: `torchrun` ends all ranks once one of them has failed."""
        if self._ranks is None:
            return
        if self.rank > 0:
            self._ranks.wait_for_end(0, LEAST_S)
        self._ranks.end()

    def _accept(self) -> None:
        if self.rank == 0:
            super()._accept()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """That of all ranks, in rank 0; in another one, only what went wrong there."""
        if self.rank == 0:
            super().pytest_terminal_summary(terminalreporter)
        for line in self.errors.lines if self.rank > 0 else ():
            terminalreporter.write_line(escape.line(f"ERROR: {line}"), red=True)


def settings_of(rank: int, settings: Settings) -> Settings:
    """The settings of a rank: only rank 0 writes files."""
    if rank == 0:
        return settings
    from dataclasses import replace

    return replace(
        settings, json=None, html=None, markdown=None, traces=None, history=None, ci="off"
    )


def _outcome(report: pytest.TestReport) -> Reason:
    if report.when == "setup":
        return because(*(Why.SETUP_FAILED if report.failed else Why.SKIPPED))
    return because(*(Why.FAILED if report.failed else Why.SKIPPED))
