"""``python -m benchmarks.ab_examples``: `torchprof ab` on ``examples/``, unchanged and slowed down.

Copies the examples into a temporary git repository. Runs the command on them against themselves,
and then with a tenth (``--extra``) of real work added to one test, calibrated by that test's
duration: only that test should be found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tabulate import tabulate

from benchmarks.ab_live import ROOT, commit, compared, git

HEADERS = ("more work", "run", "slower", "faster", "same", "unclear", "other", "seconds")
_SLOWED = """

def _with_more_work(test):
    import functools

    x = torch.full((48, 48), 0.01)

    @functools.wraps(test)
    def slowed(*args, **kwargs):
        test(*args, **kwargs)
        for _ in range({times}):
            torch.mm(x, x)

    return slowed


{name} = _with_more_work({name})
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print a line for each run; the exit status says whether all were as expected."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ab_examples", description=__doc__)
    parser.add_argument("--itself", type=int, default=20, help="runs of the same code (20)")
    parser.add_argument("--runs", type=int, default=10, help="runs with more work (10)")
    parser.add_argument("--extra", type=float, default=10.0, help="percent of work (10)")
    parser.add_argument("--min-time", type=float, default=1.0, help="as `torchprof ab` has it")
    parser.add_argument(
        "--slow",
        nargs="+",
        default=["test_gpt.py::test_logits_do_not_depend_on_later_tokens"],
        metavar="TEST",
        help="tests that get more work, one at a time, in turn",
    )
    options = parser.parse_args(arguments)
    lines, wrong = list[list[str]](), 0
    with repository() as folder:
        for number in range(options.itself):
            line, changed = run(folder, options.min_time)
            wrong += bool(changed)
            lines.append(["none", str(number + 1), *line])
            print(lines[-1], *changed, file=sys.stderr, flush=True)
        for number in range(options.runs):
            test = f"examples/{options.slow[number % len(options.slow)]}"
            with slowed(folder, test, options.extra):
                line, changed = run(folder, options.min_time)
            wrong += len(changed) != 1 or not changed[0].startswith(f"{test} slower")
            lines.append([f"{test} +{options.extra:g} %", str(number + 1), *line])
            print(lines[-1], *changed, file=sys.stderr, flush=True)
    print(tabulate(lines, HEADERS, tablefmt="github", disable_numparse=True))
    print(f"\n{wrong} of {len(lines)} runs were not as expected")
    return 1 if wrong else 0


@contextmanager
def repository() -> Iterator[Path]:
    """Only the examples, as the tag ``base``."""
    with TemporaryDirectory(prefix="ab-examples-") as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", "__torchprof__")
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        (folder / ".gitignore").write_text("__pycache__/\n", "utf-8")
        git(folder, "init", "-q")
        commit(folder, "the examples")
        git(folder, "tag", "base")
        yield folder


def run(folder: Path, min_time: float) -> tuple[list[str], list[str]]:
    """How often each verdict was given, and the tests reported as slower or faster."""
    started = time.monotonic()
    rows = compared(folder, min_time, "examples")
    verdicts = Counter(row["verdict"] for row in rows)
    counts = [verdicts.pop(name, 0) for name in ("slower", "faster", "same", "unclear")]
    changed = [
        f"{row['name']} {row['verdict']} by {row['change']:+.1%} "
        f"({row['low']:+.1%} … {row['high']:+.1%})"
        for row in rows
        if row["verdict"] in ("slower", "faster")
    ]
    line = [*counts, verdicts.total(), f"{time.monotonic() - started:.0f}"]
    return [str(cell) for cell in line], changed


@contextmanager
def slowed(folder: Path, test: str, percent: float) -> Iterator[None]:
    """The working tree has this much more work in one test; uncommitted, as a change may be."""
    name, _, function = test.partition("::")
    file = folder / name
    before = file.read_text("utf-8")
    wall_ms = _wall_ms(compared(folder, 0.3, test))
    tried = 1000
    try:
        file.write_text(before + _SLOWED.format(name=function, times=tried), "utf-8")
        more_ms = _wall_ms(compared(folder, 0.3, test)) - wall_ms
        if more_ms <= 0:
            raise SystemExit(f"{test}: {tried} more products take no time; the machine is busy")
        times = round(wall_ms * percent / 100 * tried / more_ms)
        file.write_text(before + _SLOWED.format(name=function, times=times), "utf-8")
        yield
    finally:
        file.write_text(before, "utf-8")


def _wall_ms(rows: list[dict[str, Any]]) -> float:
    if not rows or rows[0]["wall_ms_b"] is None:
        raise SystemExit(f"the test to be slowed down was not measured: {rows}")
    return float(rows[0]["wall_ms_b"])


if __name__ == "__main__":
    sys.exit(main())
