"""The code of a measured process: one way to read a trace.

Usage: ``python -m benchmarks.reader HOW FILE``; prints the seconds that the reading alone took.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

Reading = Callable[[Path], object]


def plain() -> Reading:
    """What any script starts with; the garbage collector is on, as it is by default."""
    import json

    return lambda path: json.loads(path.read_text(encoding="utf-8"))


def ours() -> Reading:
    """Into a `Trace`."""
    from pytest_torchprof.trace.read import read_trace

    return read_trace


def metrics() -> Reading:
    """Into a `Trace`, and every metric of it."""
    from pytest_torchprof.trace.read import read_trace
    from pytest_torchprof.verdict.metrics import measure_all

    return lambda path: measure_all(read_trace(path))


def rules() -> Reading:
    """Into a `Trace`, and every anti-pattern rule, with the places of what they find."""
    from pytest_torchprof.rules.registry import check_all
    from pytest_torchprof.trace.read import read_trace

    return lambda path: check_all(read_trace(path)).findings()


def hta() -> Reading:
    """HolisticTraceAnalysis's load, which precedes any query."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    return lambda path: TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))


HOW = {"plain": plain, "ours": ours, "metrics": metrics, "rules": rules, "hta": hta}

if __name__ == "__main__":
    READ = HOW[sys.argv[1]]()  # imports are not counted
    START = time.perf_counter()
    READ(Path(sys.argv[2]))
    print(time.perf_counter() - START)
