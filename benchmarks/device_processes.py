"""Whether exact metrics are the same in each process, on the device that there is.

`python -m benchmarks.device_processes [--processes 20] [--at-once 7] [--seconds 100] [--out DIR]
[--own 20] [--expandable 0] [--accept] [--device CHIP]`

Copies ``examples/`` with its baselines and ``benchmarks/device_tests/`` into a temporary project.
Processes, several at a time, profile the same tests: with one or two OpenMP threads, in two workers
of pytest-xdist if it is installed, in other orders of tests, with and without timed rounds, and the
last four with an allocator that has no free blocks when a test starts. ``--own`` is the number of
those that run ``device_tests/``, too. ``--expandable`` adds processes that run these alone with
expandable segments, and are compared with each other. With ``--accept``, a first process accepts
what it measures as the baselines of this machine. For each test and metric that is not a time, the
values of all processes are compared. What differs is printed with its values, and two traces of
each such test are kept. No process starts after ``--seconds``, and each is ended after
``--timeout``.

In ``--out``: ``processes.json`` with all values, ``accepted/`` with the baselines, ``output/`` with
what pytest printed, and ``traces/``. The status is 1 if an exact metric of an example differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tabulate import tabulate

from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.verdict.metrics import METRICS

ROOT = Path(__file__).parent.parent
#: Where tests of one kind are in the project.
_EXAMPLES, _OWN = "examples", "device_tests"
_PYTEST = ("-p", "no:cacheprovider", "-p", "benchmarks.shuffling", "--import-mode=importlib", "-q")
#: What happens to a test, and what is said of its metrics.
_USUAL = ("passed, ok", "passed, new", "skipped, not_profiled")
#: At most so many traces, and so many bytes of them, are kept.
_TRACES, _TRACE_BYTES = 40, 12 * 2**20


class Process(NamedTuple):
    """How one process differs from the others."""

    number: int
    threads: int | None
    order: str = ""
    workers: int = 0
    empties: bool = False
    rounds: bool = True
    folders: tuple[str, ...] = (_EXAMPLES, _OWN)
    expandable: bool = False

    @property
    def title(self) -> str:
        """All of it in a few words."""
        parts = [
            f"{self.threads} threads" if self.threads else "default threads",
            *([f"order {self.order}"] if self.order else ()),
            *([f"-n {self.workers}"] if self.workers else ()),
            *(["empty pool"] if self.empties else ()),
            *(["expandable segments"] if self.expandable else ()),
        ]
        return ", ".join(parts)


class Run(NamedTuple):
    """What a process measured: test → metric → value, or why there is none; and what it took."""

    process: Process
    seconds: float
    status: int | None
    values: dict[str, dict[str, Any]]
    outcomes: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all processes, compare, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_processes")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--timeout", type=float, default=60, help="of one process")
    parser.add_argument("--out", type=Path, default=Path("build/device-processes"))
    parser.add_argument("--own", type=int, default=20, help="processes with our own tests")
    parser.add_argument("--expandable", type=int, default=0, help="more, with expandable segments")
    parser.add_argument("--accept", action="store_true", help="in a first process")
    parser.add_argument("--device", help="estimate the work of this chip, too")
    parser.add_argument("-k", default="", help="only these tests, as for pytest")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="processes-") as name:
        project = Path(name)
        _fill(project)
        planned_ones = planned(options.processes, options.own, options.expandable)
        runs = []
        if options.accept:
            runs.append(_run(project, planned_ones.pop(0), options, end, accept=True))
            _keep_baselines(project, options.out)
        longest = sorted(planned_ones, key=lambda one: -len(one.folders))
        with ThreadPoolExecutor(options.at_once) as pool:
            tasks = [pool.submit(_run, project, one, options, end) for one in longest]
            runs += [task.result() for task in tasks]
        runs.sort(key=lambda run: run.process.number)
        done = [run for run in runs if run.values]
        differing = differences([run for run in done if not run.process.expandable])
        _keep_traces(project, options.out, done, differing)
    apart = {
        "with an empty pool": differences([run for run in done if run.process.empties]),
        "with expandable segments": differences([run for run in done if run.process.expandable]),
    }
    _report(options.out, runs, done, differing, apart)
    exact = [d for d in differing if d["class"] == "exact" and d["test"].startswith(_EXAMPLES)]
    return 1 if exact or len(done) < len(runs) else 0


def planned(count: int, own: int = 20, expandable: int = 0) -> list[Process]:
    """So many processes; the first four are like most users' runs.

    >>> [one.title for one in planned(12)][3:6]
    ['1 threads, -n 2', '1 threads, order reversed', '2 threads, order 5']
    >>> [one.number for one in planned(9, 2, 1) if _OWN in one.folders]
    [0, 3, 9]
    """
    orders = ["", "", "", "", "reversed"]
    workers = 2 if find_spec("xdist") is not None else 0
    first = [0, 3, 5, 7, count - 1, count - 3]  # the last two with an empty pool
    with_own = [*first, *(n for n in range(count) if n not in first)][:own]
    usual = [
        Process(
            number,
            (None, 1, 2)[number % 3] if number != 3 else 1,
            orders[number] if number < len(orders) else str(number) if number % 2 else "",
            workers if number in (3, 8, 13) else 0,
            empties=number >= count - 4 and count > 8,
            rounds=number < len(orders),
            folders=(_EXAMPLES, _OWN) if number in with_own else (_EXAMPLES,),
        )
        for number in range(count)
    ]
    return usual + [
        Process(number, 1, str(number), rounds=False, folders=(_OWN,), expandable=True)
        for number in range(count, count + expandable)
    ]


def _fill(project: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples", project / _EXAMPLES, ignore=ignored)
    shutil.copytree(ROOT / "benchmarks" / "device_tests", project / _OWN, ignore=ignored)
    (project / "pytest.ini").write_text("[pytest]\n", "utf-8")


def _run(
    project: Path,
    process: Process,
    options: argparse.Namespace,
    end: float,
    *,
    accept: bool = False,
) -> Run:
    """Profile all tests in a process of its own."""
    number = process.number
    left = min(options.timeout, end - time.monotonic())
    if left <= 0:
        return Run(process, 0, None, {}, {})
    report = project / f"report-{number}.json"
    traces = project / f"traces-{number}"
    command = [sys.executable, "-m", "pytest", *_PYTEST, "--accept" if accept else "--torchprof"]
    command += [f"--torchprof-json={report}", f"--torchprof-traces={traces}"]
    command += ["--torchprof-traces-of=all", "--torchprof-top=0", *process.folders]
    command += [] if process.rounds else ["--torchprof-rounds=0"]
    command += ["-k", options.k] if options.k else []
    command += [f"--torchprof-device={options.device}"] if options.device else []
    if find_spec("xdist") is not None:
        command += ["-n", str(process.workers)]
    output = options.out / "output"
    output.mkdir(exist_ok=True)
    begin = time.monotonic()
    with (output / f"{number}.txt").open("w", encoding="utf-8") as file:
        file.write(f"# {process.title}\n")
        file.flush()
        try:
            status: int | None = subprocess.run(
                command,
                cwd=project,
                env=_environment(process),
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=left,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    seconds = time.monotonic() - begin
    print(f"process {number}: {process.title}: status {status}, {seconds:.0f} s", flush=True)
    if status not in {0, 1} or not report.exists():
        return Run(process, seconds, status, {}, {})
    tests = json.loads(report.read_text("utf-8"))["tests"]
    return Run(
        process,
        seconds,
        status,
        {test["nodeid"]: _values(test) for test in tests},
        {test["nodeid"]: f"{test['outcome']}, {test['status']}" for test in tests},
    )


def _environment(process: Process) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"OMP_NUM_THREADS", "PYTEST_ADDOPTS"}}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    if process.threads:
        kept["OMP_NUM_THREADS"] = str(process.threads)
    if process.order:
        kept["TORCHPROF_BENCH_ORDER"] = process.order
    if process.empties:
        kept["TORCHPROF_BENCH_EMPTY"] = "1"
    if process.expandable:
        kept["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return kept


def _values(test: dict[str, Any]) -> dict[str, Any]:
    """The metrics that are no times, and the findings of each rule."""
    found: dict[str, Any] = {
        name: entry.get("value")
        if entry.get("value") is not None
        else _unknown(str(entry.get("reason")))
        for name, entry in (test.get("metrics") or {}).items()
        if entry.get("class") != "time" and name != "findings"
    }
    counts: dict[str, int] = defaultdict(int)
    for finding in test.get("findings") or ():
        counts[finding["rule"]] += finding["count"]
    return found | {f"findings of {rule}": count for rule, count in counts.items()}


def _unknown(reason: str) -> str:
    """Why there is no value, without shares of time.

    >>> _unknown("at least 8 B: aten::index (2 calls, 5 % of the time): each moves too little")
    'not measured: at least 8 B'
    """
    known, _, _ = reason.partition(": ")
    return f"not measured: {known if known.startswith('at least') else reason}"


def _class(metric: str) -> str:
    """As in the table of metrics; those of rules that depend on time are not compared."""
    if metric in METRICS:
        return METRICS[metric].klass if METRICS[metric].compared else "not compared"
    rule = RULES.get(metric.removeprefix("findings of "))
    return "by time" if rule is not None and rule.timed else "exact"


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The tests and metrics of which not all processes have the same value.

    A rule without findings counts as 0.
    """
    found = []
    for test in sorted({test for run in runs for test in run.values}):
        present = [run for run in runs if test in run.values]
        for metric in sorted({name for run in present for name in run.values[test]}):
            values = {run.process.number: run.values[test].get(metric, 0) for run in present}
            if len(set(map(str, values.values()))) > 1:
                row = {"test": test, "metric": metric, "class": _class(metric), "values": values}
                found.append(row)
    return found


def _keep_baselines(project: Path, out: Path) -> None:
    for folder in (_EXAMPLES, _OWN):
        written = project / folder / "__torchprof__"
        if written.is_dir():
            shutil.copytree(written, out / "accepted" / folder, dirs_exist_ok=True)


def _keep_traces(
    project: Path, out: Path, runs: Sequence[Run], differing: Iterable[dict[str, Any]]
) -> None:
    """Of each test that differs, a trace of a process with each of two values."""
    kept, size = set[str](), 0
    for row in sorted(differing, key=lambda one: one["class"] != "exact"):
        test = row["test"]
        if test in kept or row["class"] not in {"exact", "near"}:
            continue
        kept.add(test)
        firsts: dict[str, int] = {}
        for number, value in row["values"].items():
            firsts.setdefault(str(value), number)
        stem = test.replace("/", "+").replace("::", ".")
        for number in list(firsts.values())[:2]:
            for file in (project / f"traces-{number}").rglob(f"{_glob(stem)}*.gz"):
                size += file.stat().st_size
                if size > _TRACE_BYTES or len(kept) > _TRACES // 2:
                    return
                (out / "traces").mkdir(exist_ok=True)
                shutil.copy(file, out / "traces" / f"{number}-{file.name}")
    # What the first process recorded, whatever differs.
    first = project / f"traces-{runs[0].process.number}" if runs else project
    for file in sorted(first.rglob("*.gz")):
        size += file.stat().st_size
        if size > _TRACE_BYTES:
            return
        (out / "traces").mkdir(exist_ok=True)
        shutil.copy(file, out / "traces" / f"first-{file.name}")


def _glob(stem: str) -> str:
    return stem.replace("[", "?").replace("]", "?")


def _report(
    out: Path,
    runs: Sequence[Run],
    done: Sequence[Run],
    differing: Sequence[dict[str, Any]],
    apart: dict[str, list[dict[str, Any]]],
) -> None:
    document = {
        "machine": _machine(),
        "processes": [
            {
                **run.process._asdict(),
                "title": run.process.title,
                "seconds": round(run.seconds, 1),
                "status": run.status,
                "outcomes": run.outcomes,
            }
            for run in runs
        ],
        "differences": differing,
        "differences_among": apart,
        "values": {run.process.number: run.values for run in done},
    }
    (out / "processes.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(f"\n{len(done)} of {len(runs)} processes ended and reported")
    for run in done:
        odd = {t: o for t, o in run.outcomes.items() if o not in _USUAL}
        for test, outcome in odd.items():
            print(f"process {run.process.number}: {test}: {outcome}")
    usual = [run for run in done if not run.process.expandable]
    for part in (_EXAMPLES, _OWN):
        print(f"\n{part}: tests with the same value in all processes")
        print(tabulate(_totals(part, usual, differing), ("metric", "class", "same", "tests")))
    for title, rows in (("", differing), *apart.items()):
        print(f"\nnot the same{title and f' among those {title}'}:")
        _print_rows(rows)


def _print_rows(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        numbers = defaultdict(list)
        for number, value in row["values"].items():
            numbers[str(value)].append(number)
        values = "; ".join(f"{value} in {which}" for value, which in numbers.items())
        print(f"{row['test']}: {row['metric']} ({row['class']}): {values}"[:600])


def _totals(
    part: str, done: Sequence[Run], differing: Sequence[dict[str, Any]]
) -> list[tuple[str, str, int, int]]:
    """For each metric that was measured anywhere: the tests in which all have one value."""
    tests = defaultdict(set)
    for run in done:
        for test, values in run.values.items():
            for metric, value in values.items():
                if test.startswith(part) and not str(value).startswith("not measured"):
                    tests[metric].add(test)
    differs = {(row["test"], row["metric"]) for row in differing}
    return [
        (m, _class(m), sum((test, m) not in differs for test in which), len(which))
        for m, which in sorted(tests.items())
    ]


def _machine() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cpus": os.cpu_count()}
    if torch.cuda.is_available():
        found |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


if __name__ == "__main__":
    raise SystemExit(main())
