"""``python -m benchmarks.histories``: how long a question to a large history takes.

The history is made up: one series of exact metrics in ten has a step, and times are noisy. It lies
in a folder that is removed afterwards; its repository has a commit per run.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_torchprof.history.question import answer
from pytest_torchprof.history.runs import RUN_SCHEMA, Run, RunTest, encode
from pytest_torchprof.history.series import Question
from pytest_torchprof.history.stores import new_name, store_of
from pytest_torchprof.verdict.metrics import METRICS

TIMES = ("wall_ms", "cpu_ms", "self_cpu_ms")
#: The share of series of exact metrics that have a step.
_STEPPED = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the history, ask it, and print how long each question took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.histories", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=25)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commits = _repository(folder / "repo", options.runs)
        store = store_of(str(folder / "history"))
        size = 0

        for at, commit in enumerate(commits):
            parents = commits[:at][-1:]
            made = _run(at, options.runs, commit, parents, options.tests, options.metrics)
            content = encode(made)
            size += len(content)
            store.write(new_name(f"2026-01-01T00:00:{at % 60:02}Z", commit), content)
        values = options.runs * options.tests * options.metrics
        print(f"{options.runs:,} runs, {values:,} values, {size / 1e6:,.0f} MB of documents")
        questions = {
            "one test, one exact metric": Question("t.py::test_7", "ops"),
            "one test, one time": Question("t.py::test_7", "wall_ms"),
            "one test, all metrics": Question("t.py::test_7"),
            "all tests, one exact metric": Question(None, "ops"),
            "all tests, one time": Question(None, "wall_ms"),
            "everything": Question(),
        }
        for what, question in questions.items():
            with clocked(what):
                found = answer(store, question, folder / "repo")
            print(f"  {found.total:,} series, {sum(len(s.changes) for s in found.series)} changes")
    return 0


@contextmanager
def clocked(what: str) -> Iterator[None]:
    """Print how long the block took."""
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.2f} s", flush=True)


def _repository(folder: Path, count: int) -> list[str]:
    """Commits in a line, made by git's fast import."""
    folder.mkdir()

    def git(*words: str, given: str = "") -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, input=given, text=True, capture_output=True, check=True
        ).stdout

    git("init", "-q", "-b", "main")
    who = "committer a <a@example.org> {} +0000\ndata 0\n"
    commits = "".join(f"commit refs/heads/main\n{who.format(at)}\n" for at in range(count))
    git("fast-import", "--quiet", given=commits)
    return git("rev-list", "--reverse", "main").split()


def _run(at: int, runs: int, commit: str, parents: list[str], tests: int, metrics: int) -> Run:
    exact = [name for name, metric in METRICS.items() if metric.klass != "time"]
    names = exact[: metrics - len(TIMES)]
    names += [f"ops[op=aten::{n}]" for n in range(metrics - len(TIMES) - len(names))]
    found = []
    for test in range(tests):
        noise = random.Random(at * tests + test)
        values: dict[str, float] = {}
        for number, name in enumerate(names):
            moment = random.Random(test * 1000 + number).random() / _STEPPED
            values[name] = 1000 * test + number + (moment < at / runs)
        values |= {name: (1 + test / 9) * noise.lognormvariate(0, 0.02) for name in TIMES}
        found.append(RunTest(f"t.py::test_{test}", "ok", "passed", "0" * 16, values))
    return Run(
        schema=RUN_SCHEMA,
        repository="repo",
        commit=commit,
        parents=parents,
        merge_base=None,
        branch="main",
        dirty=False,
        ci=None,
        started=f"2026-01-01T00:00:{at % 60:02}Z",
        environment={"key": "cpu, torch 2.13", "host": "runner"},
        versions={"torchprof": "0", "python": "3"},
        tests=found,
    )


if __name__ == "__main__":
    raise SystemExit(main())
