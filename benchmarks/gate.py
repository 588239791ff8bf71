"""``python -m benchmarks.gate``: false alarms and misses of ``--torchprof-time=gate``.

A small project of tests of 50 us to 50 ms is accepted in one process, and gated repeatedly in
others: unchanged, which should never fail, and with half as much work again, which should always
fail. Every few processes the baseline is accepted anew, so that no single one decides the result.
A test is one comparison.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.processes import QUIET, Project, block_others, project

#: What the tests do, ``units()`` times: 2, or 3 to make them slower.
TESTS = """\
import os

import pytest
import torch
from torch import nn


def units():
    return range(int(os.environ.get("UNITS", "2")))


def small(times):
    x, y = torch.full((64, 64), 0.5), torch.full((64, 64), 0.25)


    def products():
        for _ in range(times):
            x @ y

    return products


def elements(size):
    x = torch.ones(size)
    return lambda: (x * 2 + 1).relu_().sum()


def repeated(times, work):
    return lambda: [work() for _ in range(times)]


def python(loops):
    return lambda: sum(i * i for i in range(loops))


def training(width, batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
    optimizer, data = torch.optim.SGD(model.parameters(), 0.01), torch.randn(batch, width)

    def step():
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return step


def convolution(size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))
    data = torch.randn(2, 3, size, size)

    def forward():
        with torch.no_grad():
            model(data)

    return forward


def attention(length):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    data = torch.randn(2, length, 64)
    return lambda: layer(data).sum().backward()


PAYLOADS = {
    "mm": small(40),
    "mm-many": small(300),
    "elements": repeated(4, elements(30_000)),
    "elements-many": elements(2**21),
    "python": python(4000),
    "python-many": python(40_000),
    "training": training(32, 8),
    "training-wide": training(512, 64),
    "convolution": convolution(24),
    "convolution-large": convolution(96),
    "attention": attention(16),
    "attention-long": attention(128),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_payload(name):
    work = PAYLOADS[name]
    for _ in units():
        work()
"""
UNITS, SLOWER = 2, 3
#: Gated processes per baseline, and how many of them run the slower tests.
_OF_A_BASELINE, _SLOWER_OF_THEM = 5, 1
METRICS = ("wall_ms", "cpu_ms")


@dataclass(frozen=True)
class Compared:
    """One test of one process against its baseline."""

    test: str
    slower: bool
    statuses: tuple[str, ...]
    reason: str | None
    multiples: tuple[float, ...]
    medians: tuple[float, ...]

    @property
    def failed(self) -> bool:
        """Whether the gate fails it."""
        return "regressed" in self.statuses


def compare(tests: Project, count: int, arguments: Sequence[str]) -> Iterator[Compared]:
    """At least ``count`` comparisons of unchanged tests, and the slower ones that go with them."""
    report, done, process = tests.folder / "report.json", 0, 0
    flags = [*QUIET, *block_others(), "--torchprof-time=gate", f"--torchprof-json={report}"]
    flags += arguments
    while done < count:
        if process % _OF_A_BASELINE == 0:
            for old in tests.folder.glob("__torchprof__/*"):
                old.unlink()
            _run(tests, UNITS, ["--accept", *flags])
        slower = process % _OF_A_BASELINE < _SLOWER_OF_THEM
        process += 1
        _run(tests, SLOWER if slower else UNITS, ["--torchprof", *flags])
        for record in json.loads(report.read_text("utf-8"))["tests"]:
            found = _compared(record, slower=slower)
            if found is not None:
                done += not slower
                yield found
        print(f"\r{done} of {count} ", end="", file=sys.stderr, flush=True)


def _run(tests: Project, units: int, arguments: Sequence[str]) -> None:
    tests.environment["UNITS"] = str(units)
    tests.cost(["-m", "pytest", *arguments], allowed=(0, 1))


def _compared(record: dict[str, Any], *, slower: bool) -> Compared | None:
    metrics = [record["metrics"].get(name, {}) for name in METRICS]
    if not all(metric.get("baseline") for metric in metrics):
        return None
    return Compared(
        record["nodeid"],
        slower,
        tuple(metric["status"] for metric in metrics),
        next((metric["reason"] for metric in metrics if metric.get("reason")), None),
        tuple(_quotient(m.get("normalised"), m.get("normalised_baseline")) for m in metrics),
        tuple(_quotient(m["value"], m["baseline"]) for m in metrics),
    )


def _quotient(now: float | None, before: float | None) -> float:
    return now / before if now and before else math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the results, and store every comparison if requested."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=200, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all comparisons there")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with project(test_payloads=TESTS) as tests:
        found = list(compare(tests, options.comparisons, options.pytest))
    print(file=sys.stderr)
    print(tabulate(_verdicts(found), headers="keys"))
    print()
    print(tabulate(_ratios(found), headers="keys", floatfmt=".3f"))
    for reason in sorted({one.reason for one in found if one.reason}):
        print(f"not gated: {reason}")
    print(f"{time.monotonic() - started:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps([vars(one) for one in found], indent=1) + "\n", "utf-8")
    return 0


def _verdicts(found: Sequence[Compared]) -> list[dict[str, Any]]:
    rows = []
    for name, slower in (("unchanged", False), ("+50 %", True)):
        some = [one for one in found if one.slower is slower]
        gated = [one for one in some if one.reason is None]
        failed = sum(one.failed for one in gated)
        share = f"{failed / len(gated):.1%}" if gated else "–"
        rows.append({"work": name, "comparisons": len(some), "gated": len(gated),
                     "failed": failed, "share": share})  # fmt: skip
    return rows


def _ratios(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """The ratios of measured to accepted numbers, gated or not, and raw medians."""
    rows = []
    for index, metric in enumerate(METRICS):
        for slower in (False, True):
            for what in ("multiples", "medians"):
                some = [getattr(one, what)[index] for one in found if one.slower is slower]
                known = [ratio for ratio in some if not math.isnan(ratio)]
                if not known:
                    continue
                parts = np.quantile(known, (0, 0.01, 0.5, 0.99, 1)).tolist()
                row = dict(zip(("least", "1 %", "median", "99 %", "most"), parts, strict=True))
                over = float(np.mean(np.array(known) > 1.25))
                work = "+50 %" if slower else "unchanged"
                rows.append({"metric": metric, "work": work, "of": what, **row, "over 25 %": over})
    return rows


if __name__ == "__main__":
    sys.exit(main())
