"""``python -m benchmarks.ab_callables``: `torchprof.ab` within tests, with real extra work.

Runs tests that compare a callable with one that does the same, or more of it, and prints how often
each verdict was given, and the cost. All comparisons of an amount are in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from benchmarks.ab_live import VERDICTS
from benchmarks.times.recording import competitor

ROOT = Path(__file__).parent.parent
HEADERS = ("extra work", "callable", "comparisons", *VERDICTS, "failed by 5 %", "time / limit")
#: Each callable's name, with the side of its matrices and the products in a unit; a unit is a
#: hundredth of a call.
_SIZES = {"100us": (4, 1), "1ms": (32, 3), "5ms": (64, 3), "20ms": (128, 3)}

_TESTS = """\
import json
import time

import pytest
import torch

torch.set_num_threads(1)

def work(size, times, units):
    x = torch.full((size, size), 0.01)
    for _ in range(units):
        for _ in range(times):
            x = torch.mm(x, x).clamp_(0.0, 1.0)
    return x

# Two functions of the same code, as two callables are two objects.
other = type(work)(work.__code__.replace(), globals())

@pytest.mark.parametrize("number", range({number}))
@pytest.mark.parametrize("name", {names})
@pytest.mark.parametrize("extra", {extras})
def test_compares(name, number, extra, torchprof):
    size, times = {sizes}[name]
    began = time.perf_counter()
    result = torchprof.ab(
        lambda: work(size, times, 100), lambda: other(size, times, 100 + extra), min_time={min_time}
    )
    if not isinstance(result.ratio, float):
        return
    try:
        result.assert_not_slower(by="5 %")
        failed = False
    except BaseException:
        failed = True
    row = [extra, name, result.verdict, failed, time.perf_counter() - began, result.ratio]
    with open("rows", "a") as file:
        print(json.dumps(row), file=file)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, count, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ab_callables", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=24, help="of each amount (default: 24)")
    parser.add_argument("--min-time", type=float, default=1.0, help="as `torchprof.ab` has it")
    parser.add_argument("--extra", type=int, nargs="+", default=[0, 10], help="percent of work")
    parser.add_argument("--hog", action="store_true", help="beside a process that never rests")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with competitor() if options.hog else nullcontext():
        rows = compared(-(-options.comparisons // len(_SIZES)), options.extra, options.min_time)
    lines = []
    for extra in options.extra:
        of_extra = [row for row in rows if row[0] == extra]
        for name in (*_SIZES, "all"):
            found = [row for row in of_extra if name in (row[1], "all")]
            lines.append(_line(extra, name, found, 2 * options.min_time))
    print(tabulate(lines, HEADERS, tablefmt="github", disable_numparse=True))
    print(
        f"\n{options.min_time:g} s a callable at most; 1 % of error each; "
        f"{'beside' if options.hog else 'without'} a competing process of ours; "
        f"{time.monotonic() - started:.0f} s"
    )
    return 0


def compared(number: int, extras: Sequence[int], min_time: float) -> list[list[Any]]:
    """A row of each comparison: extra work, name, verdict, whether it fails by 5 %, seconds, ratio.

    Raises:
        RuntimeError: a test did not pass.
    """
    with TemporaryDirectory(prefix="ab-callables-") as name:
        folder = Path(name)
        tests = _TESTS.format(
            number=number,
            names=list(_SIZES),
            extras=list(extras),
            sizes=_SIZES,
            min_time=min_time,
        )
        (folder / "test_work.py").write_text(tests, "utf-8")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--torchprof", "-p", "no:cacheprovider", name],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"pytest ended with status {done.returncode}: {done.stdout[-2000:]}")
        return [json.loads(line) for line in (folder / "rows").read_text("utf-8").splitlines()]


def _line(extra: int, name: str, rows: Sequence[Sequence[Any]], limit_s: float) -> list[str]:
    total = max(len(rows), 1)
    verdicts = Counter(row[2] for row in rows)
    counted = [f"{verdicts[verdict]} ({verdicts[verdict] / total:.1%})" for verdict in VERDICTS]
    failed = sum(row[3] for row in rows)
    cost = sum(row[4] for row in rows) / total / limit_s
    failing = f"{failed} ({failed / total:.1%})"
    return [f"+{extra} %", name, str(len(rows)), *counted, failing, f"{cost:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
