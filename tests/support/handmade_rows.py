"""Rows of `torchprof ab` with known answers, and what stands for the run that they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.reasons import words

from pytest_torchprof.core.values import Sample
from pytest_torchprof.verdict.paired import (
    Decision,
    Difference,
    PairedRow,
    PairedVerdict,
    RowVerdict,
)

if TYPE_CHECKING:
    import pytest


def sample(median: float, spread: float = 0.04, n: int = 40) -> Sample:
    """Times in ms around a median."""
    off = median * spread
    return Sample(n, median, median - off, median + off, median - 2 * off)


def decided(
    name: str,
    verdict: PairedVerdict,
    ratio: float,
    interval: float = 0.01,
    *,
    spread: float = 0.04,
    ms: float = 3.21,
    reason: str | None = None,
    differences: Sequence[Difference] = (),
) -> PairedRow:
    """A test that was compared: B takes ``ratio`` times as long as A."""
    decision = Decision(verdict, ratio, ratio - interval, ratio + interval, 0.99, 60, 1e-6)
    return PairedRow(
        f"tests/test_perf.py::{name}",
        verdict,
        None if reason is None else words(reason),
        sample(ms, spread),
        sample(ms * ratio, spread),
        sample(ms * 0.9, spread),
        sample(ms * ratio * 0.9, spread),
        decision,
        tuple(differences),
        2.0,
        2.3,
    )


def undecided(
    name: str, verdict: RowVerdict, reason: str | None = None, broken: Any = ""
) -> PairedRow:
    """A test without a decision."""
    why = None if reason is None else words(reason)
    return PairedRow(f"tests/test_perf.py::{name}", verdict, why, broken=broken)


SLOWER = decided(
    "test_step[float32-cpu]",
    "slower",
    1.102,
    differences=[Difference("flops", 1_200_000_000, 1_400_000_000), Difference("ops", None, 12)],
)
SAME = decided("test_load", "same", 1.0005, ms=0.0041)
UNCLEAR = decided("test_jumpy", "unclear", 1.03, 0.05, spread=0.34, ms=220)
BRIEF = replace(
    UNCLEAR,
    decision=Decision("unclear", 1.1, 1.0, 1.2, 0.5, 2, 0.5, words("2 pairs of turns")),
)
FASTER = decided("test_eval", "faster", 0.5, ms=12)
NEW = undecided("test_attention", "new")
GONE = undecided("test_old", "gone")
SKIPPED = undecided("test_cuda", "skipped", "needs a GPU")
FAILED = undecided("test_bad", "failed", "ZeroDivisionError: division by zero", "B")
FAILED_A = undecided("test_fixed", "failed", "fails in A: ZeroDivisionError: division by zero", "A")
DIED = undecided("test_crash", "error", "the worker of B died: signal 11", "B")
EVERY = [SAME, NEW, SLOWER, GONE, UNCLEAR, SKIPPED, FAILED, FAILED_A, FASTER, DIED]


@dataclass
class Fake:
    """Stands for two sides and their workers: gives these rows, and keeps what it was asked."""

    rows: Sequence[PairedRow] = ()
    error: BaseException | None = None
    during: Callable[[], object] = lambda: None
    closing: Callable[[], object] = lambda: None
    notes: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    request: Any = None
    options: Any = None
    closed: bool = False
    told: list[tuple[str, int, int]] = field(default_factory=list)

    @contextmanager
    def sides(self, request: Any) -> Iterator[Any]:
        """As `ab.sides.sides`."""
        self.request = request
        here = {"cwd": Path.cwd(), "python": "python", "args": request.args, "others": ()}
        a = SimpleNamespace(name="A", label="main (3f2a91c)", root=Path("a"), notes=(), **here)
        label = "working tree, uncommitted changes"
        b = SimpleNamespace(name="B", label=label, root=Path.cwd(), notes=self.notes, **here)
        try:
            yield a, b, object()
        finally:
            self.closed = True
            self.closing()

    def run(
        self, a: Any, b: Any, cleanup: Any, options: Any, progress: Any, rows: list[PairedRow]
    ) -> list[str]:
        """As `ab.controller.run`."""
        self.options = options
        for done, row in enumerate(self.rows):
            progress(row.nodeid, done, len(self.rows))
            rows.append(row)
        self.during()
        if self.error is not None:
            raise self.error
        return list(self.message)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have the command use it."""
        patch.setitem(
            sys.modules,
            "pytest_torchprof.ab.sides",
            SimpleNamespace(Request=SimpleNamespace, sides=self.sides),
        )
        patch.setitem(
            sys.modules,
            "pytest_torchprof.ab.controller",
            SimpleNamespace(
                Options=lambda *args: SimpleNamespace(
                    **dict(zip(("min_time_s", "rounds", "threshold"), args, strict=True))
                ),
                run=self.run,
            ),
        )
