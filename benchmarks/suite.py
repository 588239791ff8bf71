"""The cost of profiling a whole suite."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.pairs import Row, paired, summarize
from benchmarks.processes import QUIET, ROOT, project


def suite(*, quick: bool) -> Iterator[Row]:
    """Wall time of the examples, profiled with default settings, against not profiled."""
    with project() as tests:
        # With other work on the machine, a second OpenMP thread waits longer than it computes.
        tests.environment["OMP_NUM_THREADS"] = "1"
        command = ["-m", "pytest", *QUIET, f"--rootdir={ROOT}", str(ROOT / "examples")]
        samples = paired(
            # A budget may fail on this machine: the time is the same.
            lambda: tests.cost([*command, "--torchprof"], allowed=(0, 1)).wall_ms / 1000,
            lambda: tests.cost(command).wall_ms / 1000,
            1 if quick else 3,
        )
    yield summarize(
        "suite: examples",
        samples,
        unit="s",
        note="default settings: 1 warm-up, 1 timed, 1 profiled run a test; one OpenMP thread",
    )
