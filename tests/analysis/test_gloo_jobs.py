"""Real jobs of two and four ranks on gloo: counts and bytes are those computed by hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import gloo_job

from pytest_torchprof.analysis.communication import comm_calls, comm_sizes
from pytest_torchprof.analysis.rank_waits import rank_calls, waits_between
from pytest_torchprof.trace.ranks import read_ranks
from pytest_torchprof.verdict.metrics import METRICS, measure

RECORDED = Path(__file__).resolve().parents[1] / "data" / "gloo"
#: Bytes of the parameters of each layer, in fp32: 128 × 32 + 128, and 32 × 128 + 32.
FIRST, SECOND = 4 * 4224, 4 * 4128
BOTH = FIRST + SECOND
#: Bytes of a micro-batch of two samples of 16 features.
MICRO = 4 * 2 * 16


def expected(kind: str, rank: int, ranks: int) -> tuple[Counter[tuple[str, int]], int]:
    """Calls by operation and size, and bytes, of one step."""
    calls = Counter[tuple[str, int]]()
    if kind == "ddp":
        calls = Counter({("all_reduce", FIRST): 1, ("all_reduce", SECOND): 1})
    elif kind == "fsdp2":  # gathered for the forward pass, and again for the backward pass
        calls = Counter({("all_gather", FIRST): 2, ("all_gather", SECOND): 2})
        calls += Counter({("reduce_scatter", FIRST): 1, ("reduce_scatter", SECOND): 1})
    elif kind == "tensor_parallel":  # the output, 8 × 32
        calls = Counter({("all_reduce", 4 * 8 * 32): 1})
    else:  # each neighbor sends or gets an activation and a gradient for each micro-batch
        neighbors = (rank > 0) + (rank < ranks - 1)
        calls = Counter({("send", MICRO): 4 * neighbors, ("receive", MICRO): 4 * neighbors})
    return calls, sum(size * count for (_, size), count in calls.items())


def problems(kind: str, folder: Path) -> list[str]:
    """What of these traces is not as computed, or not as torch's `CommDebugMode` counts."""
    traces = dict(read_ranks([folder]))
    found = []
    for rank, trace in traces.items():
        calls, size = expected(kind, rank, len(traces))
        own = comm_calls(trace)
        seen = Counter(zip(own.operation, comm_sizes(trace).size.tolist(), strict=True))
        if seen != calls:
            found.append(f"rank {rank}: {seen}, not {calls}")
        values = [measure(METRICS[name], trace) for name in ("collectives", "comm_bytes")]
        if values != [calls.total(), size]:
            found.append(f"rank {rank}: {values}, not {[calls.total(), size]}")
        counted = trace.metadata["comm_debug_mode"]
        if counted and sum(counted.values()) != calls.total():
            found.append(f"rank {rank}: torch counts {counted}, not {calls}")
        if (own.end < own.begin).any() or (own.begin < 0).any():
            found.append(f"rank {rank}: calls without times")
    waits = waits_between({rank: rank_calls(trace) for rank, trace in traces.items()})
    together = 0 if kind == "pipeline" else expected(kind, 0, 2)[0].total()
    if (waits.collectives, waits.mismatches) != (together, ()):
        found.append(f"{waits.collectives} of {together} collectives match: {waits.mismatches}")
    return found


@pytest.mark.parametrize("kind", gloo_job.KINDS)
def test_recorded_jobs_of_two_ranks(kind: str) -> None:
    assert [] == problems(kind, RECORDED / kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", gloo_job.KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_jobs_of_today(kind: str, ranks: int, tmp_path: Path) -> None:
    command = [sys.executable, gloo_job.__file__, kind, str(ranks), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert 0 == done.returncode, done.stderr
    assert [] == problems(kind, tmp_path)
