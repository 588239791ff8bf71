"""A test's other processes: their numbers, and what they are told when a run starts them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.facts_now import facts_now
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.session.runs.of_device import OfDevice
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.regions import named_regions

if TYPE_CHECKING:
    from pytest_torchprof.capture.children.parent import ChildTrace
    from pytest_torchprof.capture.children.protocol import Job
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.session.plan import Plan
    from pytest_torchprof.session.runs.fixture_requests import Asked
    from pytest_torchprof.verdict.processes import Process


class OfProcesses(OfDevice):
    """The part of a `Gatherer` that is about other processes than the test's own."""

    plan: Plan
    asked: Asked
    own_files: tuple[str, ...]
    _machine: Machine
    _values: tuple[Checked, dict[str, Value]] | None
    _rank: str | None = None

    @property
    def of_processes(self) -> dict[str, Any]:
        """The fields of a `Measured` about them."""
        located = self._captures.located_processes
        return {"processes": self.processes, "rank": self._rank, "located_processes": located}

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that the profiled run has started, and what the rules find there."""
        return self._captures.processes(self.plan)

    def join(self, rank: str, others: tuple[ChildTrace, ...]) -> None:
        """Take the traces of the other ranks of the job; ``rank`` is the own one."""
        self._rank, self._values = rank, None
        self._captures.join(others)
        self._captures.no_lines(because(Why.RANKS_NOT_LOCATED))

    @property
    def _region_gaps(self) -> Mapping[str, Reason]:
        """Why numbers of named regions are not known: also, because other processes worked."""
        gaps = dict(self.asked.region_gaps)
        if self._captures.trace is None or not self.processes:
            return gaps
        from pytest_torchprof.session.runs.started import have_operators

        if have_operators(self.processes):
            why = because(Why.NOT_BY_PROCESS)
            gaps |= {name: why for name in named_regions(self._captures.trace) if name not in gaps}
        return gaps

    def job(self, *, locates: bool = False) -> Job:
        """What processes that a run starts need to know; made when one is started."""
        from pytest_torchprof.capture.children.protocol import Job

        now = facts_now(self._machine, Facts())
        own = self.own_files if locates else None
        return Job(self.plan.threads, now, os.environ.get("RANK"), own)
