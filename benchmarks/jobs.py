"""Whether exact metrics of real jobs are the same in each run, and as computed by hand.

`python -m benchmarks.jobs [--runs 20] [--ways WAY…] [--jobs JOB…] [--ranks N…] [--out FILE]`

Jobs of ``tests/support/jobs.py`` (DDP, FSDP2, tensor parallel, pipeline) with two and four ranks on
gloo, started in each way of ``job_ways.py``, and by ``torchrun -m pytest``. Each run is a process
of pytest that profiles all of them. Of each job the table has: the runs in which it was measured,
the exact metrics of all its processes together, how many of these are not the same in all runs, and
whether FLOPs, collectives, and their bytes are in each rank what is computed by hand. What differs
is printed with its values. The status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tabulate import tabulate

from benchmarks.processes import QUIET, ROOT
from pytest_torchprof.verdict.metrics import METRICS

sys.path.insert(0, str(ROOT / "tests"))
from support.job_ways import WAYS
from support.jobs import FLOPS, JOBS, built, stepped

#: The way in which the ranks are pytest's own processes.
TORCHRUN = "torchrun -m pytest"
_STARTED = """\
import pytest
from support.job_ways import start

@pytest.mark.parametrize(("way", "job", "ranks"), {cases!r})
def test_job(way, job, ranks, tmp_path):
    start(way, job, ranks, tmp_path)
"""
_OWN = """\
import pytest
import torch.distributed as dist
from support.jobs import run_job

@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

@pytest.mark.parametrize("job", {jobs!r})
def test_job(group, job):
    run_job(job)
"""
_LISTED = re.compile(r"(?<=at least )([\d.]+ \w+): .*")
_OPTIONS = (*QUIET, "--torchprof", "--torchprof-rounds=0", "--torchprof-json=report.json")


class Case(NamedTuple):
    """A job, and how its ranks are started."""

    way: str
    job: str
    ranks: int


#: Of a process, by its label: its exact metrics; None, or why one is unknown.
Values = dict[str, dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare, and print."""
    ways = [*WAYS, TORCHRUN]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways, metavar="WAY",
                        help=f"of: {', '.join(ways)}")  # fmt: skip
    parser.add_argument("--jobs", nargs="+", choices=[*JOBS], default=[*JOBS])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--out", type=Path, help="write all values there, as JSON")
    options = parser.parse_args(arguments)
    found: dict[Case, list[Values]] = {
        Case(way, job, ranks): []
        for way in options.ways for job in options.jobs for ranks in options.ranks
    }  # fmt: skip
    failed = Counter[Case]()
    for number in range(options.runs):
        begin = time.monotonic()
        for case, values in run(found):
            if values is None:
                failed[case] += 1
            else:
                found[case].append(values)
        print(f"run {number + 1}: {time.monotonic() - begin:.0f} s", flush=True)
        if options.out is not None:
            document = [{**case._asdict(), "runs": runs} for case, runs in found.items()]
            options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return report(found, failed)


def run(cases: Mapping[Case, Any]) -> Iterator[tuple[Case, Values | None]]:
    """Profile all cases once; None for a test that failed, or was not profiled."""
    started = [case for case in cases if case.way != TORCHRUN]
    if started:
        text = _STARTED.format(cases=[tuple(case) for case in started])
        tests = pytest_run([], text)
        yield from zip(started, tests or [None] * len(started), strict=True)
    for ranks in sorted({case.ranks for case in cases if case.way == TORCHRUN}):
        own = [case for case in cases if (case.way, case.ranks) == (TORCHRUN, ranks)]
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        tests = pytest_run(launcher, _OWN.format(jobs=[case.job for case in own]))
        yield from zip(own, tests or [None] * len(own), strict=True)


def pytest_run(launcher: Sequence[str], text: str) -> list[Values | None]:
    """What the tests of this file measure, in their order; nothing if there is no report."""
    with TemporaryDirectory(prefix="jobs-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        (folder / "test_jobs.py").write_text(text, "utf-8")
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        path = [str(ROOT), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "pytest", *_OPTIONS],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        written = folder / "report.json"
        if not written.exists():
            print(done.stdout[-2000:], done.stderr[-2000:])
            return []
        tests = json.loads(written.read_text("utf-8"))["tests"]
    for test in tests:
        if test["reason"] or test["outcome"] != "passed":
            print(f"{test['nodeid']}: {test['outcome']}: {test['reason']}")
            if test["outcome"] != "passed":
                print(done.stdout[-3000:])
    return [_values(test) for test in tests]


def _values(test: dict[str, Any]) -> Values | None:
    if test["reason"] or test["outcome"] != "passed":
        return None
    by_process = {"all": test["metrics"], **test["ranks"]}
    return {label: _exact(metrics) for label, metrics in by_process.items()}


def _exact(metrics: dict[str, Any]) -> dict[str, Any]:
    """The exact metrics. Of a reason, a list of operators by their time is left out."""
    return {
        name: entry["value"] if entry["value"] is not None else _unknown(str(entry["reason"]))
        for name, entry in metrics.items()
        if METRICS[name].klass == "exact"
    }


def _unknown(reason: str) -> str:
    """Why there is no value.

    >>> _unknown("rank 0: at least 7.81 KiB: aten::cat (1 call, 5 % of the time): each moves …")
    'unknown: rank 0: at least 7.81 KiB'
    """
    return f"unknown: {_LISTED.sub(lambda found: found[1], reason)}"


def by_hand(case: Case, values: Values) -> list[str]:
    """What of these values is not as computed by hand."""
    wrong = []
    for rank in range(case.ranks):
        setup, step = built(case.job, case.ranks), stepped(case.job, rank, case.ranks)
        expected = {
            "flops": FLOPS[case.job](case.ranks),
            "collectives": setup[0] + step[0],
            "comm_bytes": setup[1] + step[1],
        }
        own = values.get(str(rank), {})
        wrong += [
            f"rank {rank}: {name} {own.get(name)}, not {value}"
            for name, value in expected.items()
            if own.get(name) != value
        ]
    return wrong


def differences(runs: Sequence[Values]) -> dict[tuple[str, str], Counter[str]]:
    """The values of what is not the same in all runs, by process and metric."""
    seen: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for values in runs:
        for label, metrics in values.items():
            for name, value in metrics.items():
                seen[label, name][str(value)] += 1
    return {
        key: values for key, values in seen.items() if len(values) > 1 or values.total() < len(runs)
    }


def report(found: Mapping[Case, Sequence[Values]], failed: Mapping[Case, int]) -> int:
    """Print the table, and what differs."""
    rows, lines = [], list[str]()
    for case, runs in found.items():
        differing = differences(runs)
        wrong = sorted({text for values in runs for text in by_hand(case, values)})
        compared = sum(map(len, runs[0].values())) if runs else 0
        by = "yes" if runs and not wrong else "no"
        unmeasured = failed.get(case, 0)
        rows.append((*case, len(runs), unmeasured, compared, len(differing), by))
        name = f"{case.way}, {case.job}, {case.ranks} ranks"
        lines += [f"{name}: {text}" for text in wrong]
        lines += [
            f"{name}: {metric} of {label}: {dict(values)}"
            for (label, metric), values in differing.items()
        ]
    headings = ("way", "job", "ranks", "runs", "not measured", "values", "differ", "as by hand")
    print(tabulate(rows, headings))
    print(*lines, sep="\n")
    return int(bool(lines) or any(failed.values()) or not all(found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
