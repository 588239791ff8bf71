"""A session that is one rank of a job, as under ``torchrun -m pytest``.

All ranks run each test equally often, each measures its own process, and rank 0 compares, prints
and writes. The others wait for its verdict, and fail with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from pytest_torchprof.capture.children.parent import ChildTrace
from pytest_torchprof.capture.exports import hold
from pytest_torchprof.capture.machine import Machine, probe_machine
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render import escape
from pytest_torchprof.session.hooks import TorchprofSession
from pytest_torchprof.session.job.ranks import RankLostError, Ranks, folder_of, sweep
from pytest_torchprof.session.judging.subject import LAUNCHER
from pytest_torchprof.session.planning import PLAN
from pytest_torchprof.session.runs.reruns import Runner
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.session.runs.gather import Gatherer

#: Ranks wait at least this long for each other, and this many times the test's first run.
LEAST_S, TIMES = 60.0, 20
#: In which order ranks do runs that not all of them want.
_ORDER: tuple[RunKind, ...] = (
    "warmup",
    "round",
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

    def _rerun_all(
        self, item: pytest.Item, gatherer: Gatherer, kinds: Iterable[RunKind]
    ) -> BaseException | None:
        return super()._rerun_all(item, gatherer, self._agreed(item.nodeid, gatherer, kinds))

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
                raise RankLostError(because(Why.RANK_STARTS_PROCESSES))
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
        return because(Why.SETUP_FAILED if report.failed else Why.SKIPPED)
    return because(Why.FAILED if report.failed else Why.SKIPPED)
