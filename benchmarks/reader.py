"""What runs in a measured process: one way to read a trace.

Usage: ``python -m benchmarks.reader HOW FILE``; prints the seconds that the reading alone took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def plain(path: Path) -> None:
    """What any script begins with; the garbage collector is on, as it is by default."""
    import json

    with path.open(encoding="utf-8") as file:
        json.load(file)


def ours(path: Path) -> None:
    """Into a `Trace`."""
    from pytest_torchprof.trace.read import read

    read(path)


def metrics(path: Path) -> None:
    """Into a `Trace`, and every metric of it."""
    from pytest_torchprof.metrics import measure_all
    from pytest_torchprof.trace.read import read

    print(measure_all(read(path)), file=sys.stderr)


def hta(path: Path) -> None:
    """HolisticTraceAnalysis's load, which comes before any question to it."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))


HOW = {"plain": plain, "ours": ours, "metrics": metrics, "hta": hta}

if __name__ == "__main__":
    START = time.perf_counter()
    HOW[sys.argv[1]](Path(sys.argv[2]))
    print(time.perf_counter() - START)
