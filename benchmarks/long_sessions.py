"""The cost of profiling many tests: time per empty test, and memory that is not released."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.pairs import Row, difference, paired, summarize
from benchmarks.processes import QUIET, Project, project

ON = ("--torchprof", "--torchprof-warmup=1", "--torchprof-rounds=0")
EMPTY = """\
import pytest
import torch  # whose loggers make each phase of a test longer, in both sessions

@pytest.mark.parametrize("n", range({count}))
def test_empty(n):
    pass
"""
SMALL = """\
import pytest
import torch

MODEL, BATCH = torch.nn.Linear(64, 64), torch.ones(8, 64)

def body():
    MODEL(BATCH).sum().backward()

@pytest.mark.parametrize("n", range({count}))
def test_small(n):
    body()
"""


def empty(*, quick: bool) -> Iterator[Row]:
    """What one profiled run adds to an empty test; the session's own start is left out."""
    with project(test_empty=EMPTY.format(count=200)) as tests:
        tests.cost(["-m", "pytest", *QUIET, "--torchprof", "--accept"])

        def median(mode: str, *arguments: str) -> float:
            times: list[float] = tests.ask(mode, *QUIET, *arguments)["times"]
            return statistics.median(times)

        samples = paired(
            lambda: median("clock", *ON), lambda: median("bare"), 1 if quick else 3, warm=False
        )
    yield summarize(
        "empty: one profiled run",
        samples,
        unit="ms",
        figure=difference,
        goal=2.5,
        note="median of 200 empty tests with a baseline, warm-up run included; peer: plugin off, "
        "each test within a bare profiler session that nobody reads",
    )


def rss(*, quick: bool) -> Iterator[Row]:
    """Growth of resident memory from a fifth of the tests to the last."""
    count = 250 if quick else 1000
    with project(test_small=SMALL.format(count=count)) as tests:
        samples = paired(
            lambda: _growth(tests, "clock", *QUIET, *ON),
            lambda: _growth(tests, "sessions", "test_small.py", str(count)),
            1,  # it repeats to within 1 MiB
            warm=False,
        )
        plain = _growth(tests, "clock", *QUIET)
    yield summarize(
        f"rss: growth, test {count // 5} to {count}",
        samples,
        unit="MiB",
        figure=difference,
        goal=10.0,
        note=f"peer: as many bare profiler sessions, exported, without pytest; pytest alone grows "
        f"by {plain:.1f} MiB",
    )


def _growth(tests: Project, mode: str, *arguments: str) -> float:
    resident: list[float] = tests.ask(mode, *arguments)["resident"]
    return resident[-1] - resident[len(resident) // 5 - 1]
