"""What one run of a test brings in: a time, a trace, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.capture.stopwatch import Round
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.trace.events import Events


class Timed(Frozen, frozen=True):
    """A warm-up run or a round; ``first``: it decided the test's outcome."""

    kind: RunKind
    round: Round
    first: bool = False


class Captured(Frozen, frozen=True):
    """A run under the profiler.

    ``file`` is the trace's text, open; it has no name any more, and whoever takes the value closes
    it. ``compiled``: the run had to compile something. ``started_threads`` of the test's own and
    ``other_threads`` of torch's were at work. ``marks`` are the lines and the modules of the run's
    markers, by their numbers, and ``gap`` says why there are none, or not all.
    """

    kind: RunKind
    trace: Events
    file: IO[bytes]
    first: bool = False
    compiled: bool = False
    started_threads: bool = False
    other_threads: bool = False
    marks: tuple[Sequence[str | None], Sequence[str]] | None = None
    gap: Reason | None = None


class NoModules(Frozen, frozen=True):
    """A run that was to mark modules, and why it did not: the test's other numbers are there."""

    gap: Reason


Brought = Timed | Captured | NoModules
