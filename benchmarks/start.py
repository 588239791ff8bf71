"""The startup time of a profiled session, compared with the import of torch."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.pairs import Row, paired, summarize
from benchmarks.processes import QUIET, block_others, project

ONE = """\
import torch

def test_one():
    torch.ones(2) + 1
"""


def start(*, quick: bool) -> Iterator[Row]:
    """CPU time of a session with one small test: with profiling, minus without, plus the import."""
    with project(own_cache=True, test_one=ONE) as tests:
        # A second OpenMP thread would spin while it waits for work, which would count.
        tests.environment["OMP_NUM_THREADS"] = "1"
        session = ["-m", "pytest", *QUIET, *block_others(), "test_one.py"]

        def cpu(*command: str) -> float:
            return tests.cost(command).cpu_ms

        pairs = paired(
            lambda: (cpu(*session, "--torchprof"), 0.0),
            lambda: (cpu(*session), cpu("-c", "import torch")),
            5 if quick else 20,
        )
        samples = [(ours - plain + torch, torch) for (ours, _), (plain, torch) in pairs]
    yield summarize(
        "start: one test",
        samples,
        unit="ms",
        goal=1.1,
        note="user and system time; ours: import torch, and what a session of one test that "
        "imports torch takes more with --torchprof; peer: import torch",
    )
