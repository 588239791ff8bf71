"""``python -m benchmarks.ab_live``: `torchprof ab` on a real repository, with real extra work.

Makes a temporary git repository with a small package and its tests, and commits of it: one with the
same code, others that do more of the same work. Then runs the command on them repeatedly, and
prints how often each verdict was given, and the cost.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from benchmarks.times.recording import competitor

ROOT = Path(__file__).parent.parent
#: A run that is interrupted ends within this time.
_TO_END_S = 20.0
VERDICTS = ("slower", "faster", "same", "unclear")
HEADERS = ("extra work", "test", "comparisons", *VERDICTS, "time of both / one side's")

_PACKAGE = """\
import torch

UNITS = {units}

def work(size, times):
    x = torch.full((size, size), 0.01)
    for _ in range(UNITS):
        for _ in range(times):
            x = torch.mm(x, x).clamp_(0.0, 1.0)
    return x
"""
#: Each test's name, with the side of its matrices and the products in a unit; a unit is a hundredth
#: of the test.
_SIZES = {"100us": (4, 1), "1ms": (32, 3), "5ms": (64, 3), "20ms": (128, 3)}
_TESTS = """\
import pytest
import torch
from payload import work

@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)

@pytest.mark.parametrize("copy", range({copies}))
@pytest.mark.parametrize(("size", "times"), {sizes}, ids={names})
def test_work(size, times, copy):
    work(size, times)
"""


@dataclass
class Tally:
    """The verdicts on one test and amount of extra work."""

    verdicts: Counter[str] = field(default_factory=Counter)
    measured_s: float = 0.0
    spent_s: float = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Count a row of the command's JSON."""
        self.verdicts[row["verdict"]] += 1
        self.measured_s += row["measured_s"]
        self.spent_s += row["spent_s"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, count, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ab_live", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=24, help="of each amount (default: 24)")
    parser.add_argument("--min-time", type=float, default=1.0, help="as `torchprof ab` has it")
    parser.add_argument("--extra", type=int, nargs="+", default=[0, 5, 10], help="percent of work")
    parser.add_argument(
        "--copies",
        type=int,
        default=1,
        help="of each of the four tests; all tests of a run share the allowed error, so with more "
        "of them each answer is stricter than that of a single test (default: 1)",
    )
    parser.add_argument("--hog", action="store_true", help="beside a process that never rests")
    options = parser.parse_args(arguments)
    tests = options.copies * len(_SIZES)
    runs = -(-options.comparisons // tests)
    tallies: dict[tuple[int, str], Tally] = {}
    started = time.monotonic()
    with (
        repository(options.copies, options.extra) as folder,
        competitor() if options.hog else nullcontext(),
    ):
        for number in range(runs):
            for extra in options.extra:
                print(f"\rrun {number + 1} of {runs}, +{extra} %", end="", file=sys.stderr)
                git(folder, "checkout", "-q", f"extra-{extra}")
                for row in compared(folder, options.min_time, "test_work.py"):
                    name = row["name"].partition("[")[2].split("-")[0]
                    tallies.setdefault((extra, name), Tally()).add(row)
    print(file=sys.stderr)
    print(tabulate(list(lines(tallies)), HEADERS, tablefmt="github", disable_numparse=True))
    print(
        f"\n{options.min_time:g} s a side and test at most; {tests} tests in a run share 1 % of "
        f"error; {'beside' if options.hog else 'without'} a competing process of ours; "
        f"{time.monotonic() - started:.0f} s"
    )
    return 0


@contextmanager
def repository(copies: int, extras: Sequence[int]) -> Iterator[Path]:
    """A repository whose tag ``base`` is A, and a branch for each amount of extra work."""
    with TemporaryDirectory(prefix="ab-live-") as name:
        folder = Path(name)
        tests = _TESTS.format(copies=copies, sizes=list(_SIZES.values()), names=list(_SIZES))
        (folder / "test_work.py").write_text(tests, "utf-8")
        (folder / "conftest.py").write_text("", "utf-8")
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n", "utf-8")
        (folder / ".gitignore").write_text("__pycache__/\n", "utf-8")
        git(folder, "init", "-q")
        _commit_units(folder, 100, "base")
        git(folder, "tag", "base")
        for extra in extras:
            git(folder, "checkout", "-q", "-b", f"extra-{extra}", "base")
            _commit_units(folder, 100 + extra, f"{extra} % more work")
        yield folder


def _commit_units(folder: Path, units: int, message: str) -> None:
    text = f'"""{message}."""\n\n' + _PACKAGE.format(units=units)
    (folder / "payload.py").write_text(text, "utf-8")
    commit(folder, message)


def commit(folder: Path, message: str) -> None:
    """Commit everything."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def git(folder: Path, *arguments: str) -> None:
    """Run git as an anonymous user."""
    who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


def compared(
    folder: Path,
    min_time: float,
    *tests: str,
    base: str = "base",
    pairs: int | None = None,
    limit_s: float | None = None,
) -> list[dict[str, Any]]:
    """The rows of one run of the command: the tag ``base`` and what is checked out.

    ``pairs`` of turns, instead of a time. After ``limit_s`` it is interrupted: the rows so far.

    Raises:
        RuntimeError: it has compared nothing.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest_torchprof", "ab", base]
    command += ["--rounds", str(pairs)] if pairs else ["--min-time", str(min_time)]
    with subprocess.Popen(
        [*command, "--format", "json", "--limit", "0", "--", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            out, errors = running.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            out, errors = running.communicate(timeout=_TO_END_S)
    try:
        rows: list[dict[str, Any]] = json.loads(out)["rows"]
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"ab ended with status {running.returncode}: {errors}") from error
    return rows


def lines(tallies: dict[tuple[int, str], Tally]) -> Iterator[list[str]]:
    """One line for each test, and one for all tests of an amount."""
    for extra in dict.fromkeys(extra for extra, _ in tallies):
        whole = Tally()
        for (of, name), tally in tallies.items():
            if of == extra:
                whole.verdicts += tally.verdicts
                whole.measured_s += tally.measured_s
                whole.spent_s += tally.spent_s
                yield _line(extra, name, tally)
        yield _line(extra, "all", whole)


def _line(extra: int, name: str, tally: Tally) -> list[str]:
    total = tally.verdicts.total()
    others = {verdict: n for verdict, n in tally.verdicts.items() if verdict not in VERDICTS}
    counted = [f"{tally.verdicts[v]} ({tally.verdicts[v] / total:.1%})" for v in VERDICTS]
    cost = 2 * tally.spent_s / tally.measured_s if tally.measured_s else float("nan")
    named = name + (f", also {others}" if others else "")
    return [f"+{extra} %", named, str(total), *counted, f"{cost:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
