"""What named regions cost: a test with ten of them against the same work in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.pairs import Row, summarize
from benchmarks.processes import QUIET, project

#: Each pair of tests does the same work. Which of the two comes first changes.
TESTS = """\
import pytest
import torch
from benchmarks import payloads

X = torch.ones(64)
BODY = {body}

@pytest.mark.parametrize("ours", [side for n in range({pairs}) for side in (n % 2, 1 - n % 2)])
def test_regions(torchprof, ours):
{test}
"""
#: Ten steps, each in a region of its own or all in one, of ten laps.
STEPS = """\
    for n in range(10):
        with torchprof(f"part {n if ours else 0}"):
            BODY()
"""
LAPS = """\
    for n in range(1000):
        with torchprof(f"part {n % 10 if ours else 0}"):
            BODY()
"""
ONE_LAP = """\
    if ours:
        for n in range(1000):
            with torchprof("part"):
                BODY()
    else:
        with torchprof("part"):
            for n in range(1000):
                BODY()
"""


class Case(NamedTuple):
    """Two tests, as one of `TESTS`; ``pairs``: of them, normally and with ``--quick``."""

    body: str
    test: str
    pairs: tuple[int, int]
    goal: float | None
    note: str


_TEN = "a test under --torchprof, with baseline; ours: ten regions; peer: the same work in one"
CASES = {
    "10 MLP steps": Case("payloads.mlp()", STEPS, (40, 10), 1.1, _TEN),
    "10 transformer steps": Case("payloads.gpt()", STEPS, (4, 1), 1.1, _TEN),
    "1,000 laps": Case("X.neg_", LAPS, (20, 6), 1.1, _TEN),
    "1,000 laps for 1": Case(
        "X.neg_", ONE_LAP, (20, 6), None,
        "a test under --torchprof, with baseline; ours: 1,000 laps of one operator each; "
        "peer: one lap around all",
    ),
}  # fmt: skip


def regions(*, quick: bool) -> Iterator[Row]:
    """Wall time of whole tests, their runs and judging included, in one session."""
    for name, case in CASES.items():
        count = case.pairs[quick] + 1
        text = TESTS.format(body=case.body, pairs=count, test=case.test)
        with project(test_regions=text) as tests:
            tests.environment["OMP_NUM_THREADS"] = "1"
            tests.cost(["-m", "pytest", *QUIET, "--torchprof", "--accept"])
            options = ("--torchprof", "--torchprof-json=regions.json")
            times: list[float] = tests.ask("clock", *QUIET, *options)["times"]
        samples = []
        for n in range(1, count):  # the first pair warms up
            pair = times[2 * n : 2 * n + 2]
            samples.append((pair[1 - n % 2], pair[n % 2]))
        yield summarize(f"regions: {name}", samples, unit="ms", goal=case.goal, note=case.note)
