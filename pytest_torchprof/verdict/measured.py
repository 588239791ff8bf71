"""The result of all runs of one test, which is all that judging needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.core.results import Budget
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.rules.engine.rule import Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.allowances import Allowance
    from pytest_torchprof.verdict.metric import Metric
    from pytest_torchprof.verdict.processes import Process
    from pytest_torchprof.verdict.recorded import Recordings


#: Asks, by kind of scope, for all names that could run in this process.
CouldRun: TypeAlias = Callable[[], Mapping[str, frozenset[str]]]


class Measured(Frozen, frozen=True):
    """A test that was measured.

    ``checked`` is its trace and what the rules found. ``modules`` is a trace in which modules are
    marked, or ``modules_gap`` says why there is none; ``unseen_modules`` are classes of modules
    that may have run in it unmarked. ``located`` maps events to lines, and ``lines_gap`` says why
    lines are missing or incomplete. ``environment``, ``host`` and ``cpu_capability`` are the
    machine's, and ``busy`` says what else it did. ``unmeasured`` are metrics that the test itself
    compares but that were not measured, and ``region_gaps`` why numbers of named regions are
    unknown; ``mismatch`` is a failed inline expectation, metric →
    expected text. ``pairs_gap`` says why callables that the test compares were not compared.
    ``allowances`` are findings that markers allow in one place.
    ``own`` are metrics of functions that users have defined, and ``recorded`` are values that the
    test itself records. ``reseeded`` and ``recorded_reseeded`` are of a run with another seed.
    ``seed`` is that of the profiled run, of a test that uses random generators, and ``draws`` says
    whether the numbers that it draws depend on it. ``could_run`` is asked about unknown names.
    ``processes`` are those that it has beside its own, and ``rank`` is that of its own, if it is
    one of a job. ``located_processes`` maps events of those others to lines.
    """

    checked: Checked
    environment: str
    host: str
    cpu_capability: str = ""
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = ()
    allowed: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    modules: Events | None = None
    modules_gap: Reason | None = None
    unseen_modules: frozenset[str] = frozenset()
    located: Placing | None = None
    lines_gap: Reason | None = None
    busy: tuple[Reason, ...] = ()
    mismatch: Mapping[str, str] | None = None
    unmeasured: tuple[str, ...] = ()
    region_gaps: Mapping[str, Reason] = {}
    pairs_gap: Reason | None = None
    own: tuple[Metric, ...] = ()
    processes: tuple[Process, ...] = ()
    rank: str | None = None
    located_processes: Mapping[str, Placing] = {}
    allowances: tuple[Allowance, ...] = ()
    recorded: Recordings = msgspec.field(default_factory=dict)
    reseeded: Checked | None = None
    recorded_reseeded: Recordings = msgspec.field(default_factory=dict)
    seed: int | None = None
    draws: bool = False
    could_run: CouldRun = dict

    @property
    def trace(self) -> Events:
        """The trace of the profiled run."""
        return self.checked.trace


class Unmeasured(Frozen, frozen=True):
    """A test that was not measured, and why; ``stats_asked``: it compares numbers anyway."""

    reason: Reason
    environment: str
    budgets: tuple[Budget, ...] = ()
    stats_asked: bool = False
