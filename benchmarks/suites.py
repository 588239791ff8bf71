"""``python -m benchmarks.suites CHECKOUT…``: the slowdown of a third-party suite when profiled.

A checkout is a folder from which ``pytest`` runs, with the dependencies of its tests installed
here. Every nth test runs, so that a pair of runs takes a minute or two: 20 for gpytorch, 40 for
linear_operator. Baselines and caches go to a temporary folder; nothing is written into the
checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from benchmarks.pairs import Row, paired, summarize
from benchmarks.processes import Project, project

#: Three runs: warm-up, timed, profiled.
GOAL = 3.0
_QUIET = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:randomly",
    "--tb=no",
    "-Wignore",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each of the checkouts and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites", description=__doc__)
    parser.add_argument("checkout", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=20, metavar="N", help="run every nth test")
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args(arguments)
    rows = [
        row
        for folder in options.checkout
        for row in suite(folder.resolve(), options.every, options.pairs)
    ]
    print(
        tabulate(
            [
                (r.name, f"{r.ours:.1f} s", f"{r.peer:.1f} s", f"{r.figure:.2f} ×",
                 f"{r.low:.2f}–{r.high:.2f}", r.pairs, f"≤ {r.goal:g} ×", r.verdict)
                for r in rows
            ],
            ("suite", "profiled", "plain", "figure", "min–max", "pairs", "goal", ""),
        )
    )  # fmt: skip
    print(
        "\nours: --torchprof without baselines; CPU time of the tests, without start and collection"
    )
    return 0


def suite(folder: Path, every: int, pairs: int) -> Iterator[Row]:
    """CPU time of the tests' protocols and wall time of the session, profiled against plain."""
    with project(own_cache=True) as tests:
        # A second OpenMP thread would spin while it waits for work, which would count.
        tests.environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", KINETO_LOG_LEVEL="99")
        here = replace(tests, folder=folder)
        samples = paired(
            lambda: _run(here, tests.folder, every, profiled=True),
            lambda: _run(here, tests.folder, every, profiled=False),
            pairs,
            warm=False,
        )
    for at, what in enumerate(("CPU", "wall")):
        yield summarize(
            f"{folder.name}, {what}",
            [(ours[at], peer[at]) for ours, peer in samples],
            unit="s",
            goal=GOAL,
        )


def _run(here: Project, scratch: Path, every: int, *, profiled: bool) -> tuple[float, float]:
    """(CPU time of all tests, wall time of the session) in s."""
    report = scratch / "report.json"
    ours = ("--torchprof", f"--torchprof-baselines={scratch / 'baselines'}") if profiled else ()
    command = ["-m", "benchmarks.suites", "--child", str(report), str(every), *_QUIET, *ours, "."]
    wall = here.cost(command, allowed=(0, 1)).wall_ms / 1000
    return float(json.loads(report.read_text("utf-8"))["cpu_s"]), wall


def _child(report: str, every: int, arguments: list[str]) -> int:
    """A pytest session of every nth test, which records the time of its tests."""
    import time
    from collections.abc import Generator

    import pytest

    spent = [0.0]

    class Clock:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = items[::every]

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self) -> Generator[None, object, object]:
            start = time.process_time()
            result = yield
            spent[0] += time.process_time() - start
            return result

    status = int(pytest.main(arguments, plugins=[Clock()]))
    Path(report).write_text(json.dumps({"cpu_s": spent[0]}), "utf-8")
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(_child(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
    sys.exit(main())
