"""The result of one run of a test: a time, a trace, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.capture.children.parent import ChildTrace
    from pytest_torchprof.capture.stopwatch import Round
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.trace.events import Events


class Timed(Frozen, frozen=True):
    """A warm-up run or a timed round; ``first``: it decided the test's outcome; ``recorded``: it
    captured CUDA graphs.
    """

    kind: RunKind
    round: Round
    first: bool = False
    recorded: bool = False


class Captured(Frozen, frozen=True):
    """A run under the profiler.

    ``file`` is the open, unlinked file of the trace's text; the receiver closes it. ``compiled``:
    the run compiled something; ``recorded``: it only captured CUDA graphs. ``started_threads`` of
    the test and ``other_threads`` of torch did work. ``marks`` are the lines and the modules of the
    run's markers, by number, and ``gap`` says why they are missing or incomplete. ``doubted`` are
    the numbers of lines that were not marked each time they ran, and ``unseen`` the classes of
    modules that may have run without a marker. ``children`` are the traces of processes that it
    started; the receiver closes their files, too.
    """

    kind: RunKind
    trace: Events
    file: IO[bytes]
    first: bool = False
    compiled: bool = False
    recorded: bool = False
    started_threads: bool = False
    other_threads: bool = False
    marks: tuple[Sequence[str | None], Sequence[str]] | None = None
    doubted: frozenset[int] = frozenset()
    gap: Reason | None = None
    unseen: frozenset[str] = frozenset()
    children: tuple[ChildTrace, ...] = ()


class NoModules(Frozen, frozen=True):
    """A run that should have marked modules, and why it did not; other numbers are unaffected."""

    gap: Reason


Brought = Timed | Captured | NoModules
