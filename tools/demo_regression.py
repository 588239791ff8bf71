"""Put a regression into a copy of the examples, and show how pytest reports it.

Usage: python tools/demo_regression.py [copy | elementwise | wider | zero-grad]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Regression(NamedTuple):
    """A slip that passes every functional test: one edit of one file, and the tests that use it."""

    file: str
    before: str
    after: str
    tests: str


REGRESSIONS = {
    "elementwise": Regression(
        "minizoo/gpt.py",
        "x = x + self.attention(self.norm1(x))",
        "x = x + self.attention(self.norm1(x)) * 1.0",
        "test_gpt.py",
    ),
    "wider": Regression(
        "minizoo/gpt.py",
        "4 * config.width",
        "6 * config.width",
        "test_gpt.py",
    ),
    "copy": Regression(
        "minizoo/resnet.py",
        "def forward(self, x: Tensor) -> Tensor:",
        "def forward(self, x: Tensor) -> Tensor:\n        self.seen = x.clone()",
        "test_resnet.py",
    ),
    "zero-grad": Regression(
        "minizoo/training.py",
        "optimizer.zero_grad()",
        "pass",
        "test_dataloader.py",
    ),
}


def regressed_copy(name: str, folder: Path) -> Path:
    """Copy the examples into ``folder`` with the regression in them, and return the copy.

    Where the CPU has other instructions than that of the committed baselines, those of the copy are
    accepted here first.
    """
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    copy = Path(shutil.copytree(EXAMPLES, folder / "examples", ignore=ignored))
    if not accepted_on_this_cpu(copy):
        command = [sys.executable, "-m", "pytest", "--accept", "-q", "-p", "no:cacheprovider"]
        subprocess.run(command, cwd=copy, stdout=subprocess.DEVNULL, check=True)
    regress(copy, name)
    return copy


def accepted_on_this_cpu(examples: Path) -> bool:
    """Whether all numbers that depend on the CPU's instructions were accepted on such a CPU."""
    import torch

    here = torch.backends.cpu.get_cpu_capability()
    return all(
        entry.get("cpu_capability", here) == here
        for file in examples.glob("__torchprof__/*.json")
        for entries in json.loads(file.read_text("utf-8"))["tests"].values()
        for entry in entries.values()
    )


def regress(copy: Path, name: str) -> None:
    """Put the regression into a copy of the examples."""
    change = REGRESSIONS[name]
    source = copy / change.file
    text = source.read_text("utf-8")
    if change.before not in text:
        raise SystemExit(f"{change.file} has no {change.before!r} any more: fix {__file__}")
    source.write_text(text.replace(change.before, change.after), "utf-8")


def main() -> int:
    """Run it; 0 when the regression was found."""
    name = sys.argv[1] if len(sys.argv) > 1 else "copy"
    if name not in REGRESSIONS:
        print(f"unknown regression {name!r}; there are: {', '.join(REGRESSIONS)}", file=sys.stderr)
        return 2
    change = REGRESSIONS[name]
    print(f"In a copy of {change.file}, {change.before!r} became {change.after!r}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = regressed_copy(name, Path(folder))
        command = [sys.executable, "-m", "pytest", "--torchprof", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, change.tests], cwd=copy, check=False)
    print("\nThe regression was found." if done.returncode == 1 else "\nIT WAS NOT FOUND.")
    return 0 if done.returncode == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
