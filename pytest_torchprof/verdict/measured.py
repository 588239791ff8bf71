"""What the runs of one test have brought in, once they are over: all that judging goes by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.core.results import Budget
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.rules.engine.rule import Rule
    from pytest_torchprof.trace.events import Events


class Measured(Frozen, frozen=True):
    """A test that was measured.

    ``checked`` is its trace with what the rules found. ``modules`` is a trace in which modules are
    marked, or ``modules_gap`` says why there is none; ``located`` tells where events happened, and
    ``lines_gap`` why that is not known, or not of all. ``environment`` and ``host`` are the
    machine's, and ``busy`` says what else it did. The test itself has compared numbers that were
    not measured (``unmeasured``), or found them other than it expects inline
    (``mismatch``: metric → expected text).
    """

    checked: Checked
    environment: str
    host: str
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = ()
    allowed: Mapping[str, str] = {}
    ignored: frozenset[str] = frozenset()
    modules: Events | None = None
    modules_gap: Reason | None = None
    located: Placing | None = None
    lines_gap: Reason | None = None
    busy: tuple[Reason, ...] = ()
    mismatch: Mapping[str, str] | None = None
    unmeasured: tuple[str, ...] = ()

    @property
    def trace(self) -> Events:
        """Of the profiled run."""
        return self.checked.trace


class Unmeasured(Frozen, frozen=True):
    """A test that was not measured, and why; ``stats_asked``: it compares numbers all the same."""

    reason: Reason
    environment: str
    budgets: tuple[Budget, ...] = ()
    stats_asked: bool = False
