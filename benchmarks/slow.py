"""``python -m benchmarks.slow``: false alarms and misses of a CPU time of 3 times the accepted.

A hundred tests of 50 us to 2 s are accepted in one process and compared, unchanged, in others: on a
machine that is as idle as it is, beside busy loops, and under ``-n 2``. None of them should be red.
Then tests that do the same operators many times slower, each of which should be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.processes import QUIET, Project, block_others, project
from pytest_torchprof.verdict.compare import SLOW

#: By kind, about how long a unit takes, in us; each test repeats it to take its time.
TESTS = """\
import json
import random

import numpy as np
import pytest
import torch
from torch import nn

x, y = torch.full((48, 48), 0.5), torch.full((48, 48), 0.25)
line, long = torch.ones(4096), torch.ones(2**21)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
image = torch.full((2, 3, 24, 24), 0.5)
layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
words = torch.full((2, 16, 32), 0.5)
square = torch.full((512, 512), 0.5)


def step():
    model.zero_grad()
    model(torch.randn(8, 64)).sum().backward()


def values():
    return sorted(random.random() for _ in range(400))


KINDS = {
    "products": (12, lambda: x @ y),
    "elements": (10, lambda: (line * 2 + 1).relu_()),
    "memory": (5000, lambda: ((long * 2 + 1).relu_() - 1).sum()),
    "python": (30, lambda: sum(i * i for i in range(600))),
    "objects": (90, values),
    "text": (60, lambda: json.loads(json.dumps({str(i): [i] * 3 for i in range(40)}))),
    "arrays": (60, lambda: np.sort(np.arange(4096)[::-1] % 97)),
    "training": (150, step),
    "convolution": (180, lambda: convolution(image)),
    "attention": (500, lambda: layer(words).sum().backward()),
    "large": (4000, lambda: square @ square),
}


def repeated(kind, us):
    unit, work = KINDS[kind]
    for _ in range(max(1, round(us / unit))):
        work()


@pytest.mark.parametrize(("kind", "us"), LENGTHS)
def test_unchanged(kind, us):
    repeated(kind, us)
"""
_KINDS = ("products", "elements", "python", "objects", "text", "arrays", "training", "convolution",
          "attention", "memory")  # fmt: skip
#: Nine tests in ten take 50 us to 30 ms, for which chance is greatest.
_SHORT_US = [50 * 600 ** (n / 8) for n in range(9)]
#: Of few operators, so that the profiled run is short.
_LONG = [("large", 100_000), ("python", 140_000), ("memory", 200_000), ("objects", 280_000),
         ("large", 400_000), ("text", 560_000), ("arrays", 800_000), ("memory", 1_100_000),
         ("python", 1_500_000), ("large", 2_000_000)]  # fmt: skip

#: The same operators, with values, shapes or Python code that take many times as long.
CASES = """\
import os

import numpy as np
import torch
from torch import nn

SLOW = bool(int(os.environ["SLOW"]))


def test_denormals():
    x, half = torch.full((100_000,), 1e-39 if SLOW else 1.0), torch.full((100_000,), 0.5)
    for _ in range(50):
        x * half


def test_prime_fft():
    x = torch.ones(32, 16411 if SLOW else 16384)
    for _ in range(4):
        torch.fft.fft(x)


def test_list_of_arrays():
    frames = [np.full((64, 64), 0.5) for _ in range(32)]
    model = nn.Linear(64, 8)
    with torch.inference_mode():
        for i in range(0, 32, 8):
            rows = frames[i : i + 8]
            rows = torch.tensor(rows if SLOW else np.array(rows), dtype=torch.float32)
            model(rows)


def test_module_hooks():
    layer, x = nn.Linear(8, 8), torch.ones(2, 8)
    seen = []
    for n in range(400):
        if SLOW or n == 0:
            layer.register_forward_hook(lambda *_: seen.append(1))
        layer(x)


def test_tensor_hooks():
    w = torch.ones(8, requires_grad=True)
    for n in range(3000):
        if SLOW or n == 0:
            w.register_hook(lambda g: None)
        w.sum().backward()
"""


@dataclass(frozen=True)
class Condition:
    """What else runs, and further arguments of pytest."""

    loops: int = 0
    arguments: tuple[str, ...] = ()


CONDITIONS = {
    "idle": Condition(),
    "busy": Condition(loops=os.cpu_count() or 1),
    "-n 2": Condition(arguments=("-n2",)),
}


@dataclass(frozen=True)
class Compared:
    """One test of one process against its baseline."""

    accepted: str
    condition: str
    test: str
    red: bool
    #: The new multiple of the reference kernel's CPU time, by the accepted one, of the first round.
    ratio: float
    advice: str | None


@contextmanager
def beside(loops: int) -> Iterator[None]:
    """So many processes that never rest."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    running = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def session(tests: Project, condition: str, *arguments: str, slow: bool = False) -> Any:
    """The records of one process's tests."""
    report, how = tests.folder / "report.json", CONDITIONS[condition]
    tests.environment["SLOW"] = str(int(slow))
    others = block_others() if not how.arguments else ()
    with beside(how.loops):
        command = ["-m", "pytest", *QUIET, *others, *how.arguments, f"--torchprof-json={report}"]
        tests.cost([*command, *arguments], allowed=(0, 1))
    return json.loads(report.read_text("utf-8"))["tests"]


def compared(
    tests: Project, accepted: str, condition: str, *, slow: bool = False
) -> Iterator[Compared]:
    """What a session against the baselines finds."""
    for record in session(tests, condition, "--torchprof", slow=slow):
        metric = record["metrics"].get("cpu_ms", {})
        now, before = metric.get("normalised"), metric.get("normalised_baseline")
        ratio = now / before if now and before else float("nan")
        yield Compared(
            accepted,
            condition,
            record["nodeid"].partition("::")[2],
            metric.get("status") == "regressed",
            ratio,
            record["reason"],
        )


def lengths() -> str:
    """The parameters of a hundred tests."""
    made = [(kind, round(us)) for kind, us in product(_KINDS, _SHORT_US)]
    return f"LENGTHS = {[*made, *_LONG]!r}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the results, and store every comparison if requested."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow", description=__doc__)
    parser.add_argument("--sessions", type=int, default=10, metavar="N", help="per condition")
    parser.add_argument("--cases", type=int, default=10, metavar="N", help="sessions of slow tests")
    parser.add_argument(
        "--accepted", nargs="*", default=["idle"], choices=CONDITIONS, help="in this condition"
    )
    parser.add_argument("--conditions", nargs="*", default=[*CONDITIONS], choices=CONDITIONS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all comparisons there")
    options = parser.parse_args(arguments)
    found: list[Compared] = []
    with project(test_unchanged=lengths() + TESTS) as tests:
        for accepted in options.accepted if options.sessions else ():
            for old in tests.folder.glob("__torchprof__/*"):
                old.unlink()
            session(tests, accepted, "--accept")
            for condition, _ in product(options.conditions, range(options.sessions)):
                found += compared(tests, accepted, condition)
                print(f"\r{len(found)} ", end="", file=sys.stderr, flush=True)
                keep(options.json, found)
    if found:
        print(tabulate(_unchanged(found), headers="keys", floatfmt=".3g"))
    cases: list[Compared] = []
    with project(test_slow=CASES) as tests:
        for accepted in options.accepted if options.cases else ():
            session(tests, accepted, "--accept")
            for condition, _ in product(options.conditions, range(options.cases)):
                cases += compared(tests, accepted, condition, slow=True)
                keep(options.json, [*found, *cases])
    if cases:
        print(tabulate(_slow(cases), headers="keys", floatfmt=".3g"))
    return 0


def keep(path: Path | None, found: Sequence[Compared]) -> None:
    """Write all comparisons so far."""
    if path is not None:
        path.write_text(json.dumps([vars(one) for one in found], indent=1) + "\n", "utf-8")


def _unchanged(found: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    for accepted, condition in dict.fromkeys((one.accepted, one.condition) for one in found):
        some = [one for one in found if (one.accepted, one.condition) == (accepted, condition)]
        ratios = np.array([one.ratio for one in some if one.ratio == one.ratio])
        parts = np.quantile(ratios, (0.5, 0.99, 1)).tolist() if len(ratios) else [float("nan")] * 3
        yield {
            "accepted": accepted,
            "compared": condition,
            "comparisons": len(some),
            "of multiples": len(ratios),
            "red": sum(one.red for one in some),
            "first 3 times": int((ratios >= SLOW).sum()),
            "advice": sum("CPU time" in (one.advice or "") for one in some),
            **dict(zip(("median ratio", "99 %", "most"), parts, strict=True)),
        }


def _slow(found: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    for accepted, condition, test in dict.fromkeys(
        (one.accepted, one.condition, one.test) for one in found
    ):
        some = [
            one
            for one in found
            if (one.accepted, one.condition, one.test) == (accepted, condition, test)
        ]
        yield {
            "accepted": accepted,
            "compared": condition,
            "test": test,
            "red": f"{sum(one.red for one in some)} of {len(some)}",
            "least ratio": min(one.ratio for one in some),
            "median ratio": float(np.median([one.ratio for one in some])),
        }


if __name__ == "__main__":
    sys.exit(main())
