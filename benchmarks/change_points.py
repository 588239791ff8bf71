"""``python -m benchmarks.change_points``: how often noise is taken for a drift, and a step found.

Records times of the same code in one process after the other (``--record FILE``), judges a
recording (``--from FILE``), or does both without either. Each process sets up some works and times
a few calls of each, as a test session does; a run's value is the median, as in a history. A step is
simulated: the last values are multiplied. The last row is what a recording allows: a threshold that
is set with hindsight, so high that the series itself never passes it, and that knows where to look.
Apache Otava is judged on the same series where it can be imported:
python -m pip install --target build/rivals --no-deps apache-otava scipy
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tabulate import tabulate

from benchmarks.times.stored import RIVALS
from benchmarks.times.work import WORK
from pytest_torchprof.analysis.steps import change_points

#: Calls of each work before those that are timed, and how many are.
_WARM, _ROUNDS = 3, 5
#: Runs before a step, and those after it that are known when the question is asked.
_BEFORE, _AFTER = 200, 10
#: A step is found if a change point is so close to it.
_CLOSE = 5

#: Positions of change points in a series.
Procedure = Callable[[Sequence[float]], list[int]]
#: A series per work and kind of time, in ms.
Recording = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, judge, or both; print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.change_points", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="only record, into this file")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="file", help="only judge this")
    parser.add_argument("--runs", type=int, default=500)
    options = parser.parse_args(arguments)
    if options.file:
        judge(json.loads(options.file.read_text("utf-8")))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = options.record or Path(folder, "series.json")
        file.write_text(json.dumps(record(options.runs)), "utf-8")
        if options.record is None:
            judge(json.loads(file.read_text("utf-8")))
    return 0


def record(runs: int) -> Recording:
    """The series of this many processes."""
    import torch

    torch.set_num_threads(1)
    for make in WORK.values():  # what torch sets up once belongs to no run
        make()()
    found: Recording = {}
    started = time.monotonic()
    for number in range(runs):
        for name, value in _in_a_process().items():
            found.setdefault(name, []).append(value)
        if not (number + 1) % 50:
            spent = time.monotonic() - started
            print(f"{number + 1} of {runs} runs, {spent:.0f} s", file=sys.stderr, flush=True)
    return found


def _in_a_process() -> dict[str, float]:
    """The values of one run, from a process of its own."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(_measured(), out)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        values: dict[str, float] = json.load(answer)
    os.waitpid(child, 0)
    return values


def _measured() -> dict[str, float]:
    found: dict[str, float] = {}
    for name, make in WORK.items():
        body = make()
        for _ in range(_WARM):
            body()
        wall, cpu = [], []
        for _ in range(_ROUNDS):
            at, used = time.perf_counter_ns(), time.process_time_ns()
            body()
            cpu.append((time.process_time_ns() - used) / 1e6)
            wall.append((time.perf_counter_ns() - at) / 1e6)
        found[f"{name}, wall"] = statistics.median(wall)
        found[f"{name}, cpu"] = statistics.median(cpu)
        found[f"{name}, one round"] = wall[0]
    return found


def ours(values: Sequence[float]) -> list[int]:
    """As `torchprof history` finds drifts."""
    return [point.at for point in change_points(values)]


def procedures() -> dict[str, Procedure]:
    """Ours, and those of Otava where it is here."""
    found: dict[str, Procedure] = {"torchprof history": ours}
    if RIVALS.is_dir() and str(RIVALS) not in sys.path:
        sys.path.append(str(RIVALS))
    try:
        import otava.analysis as otava  # type: ignore[import-not-found]
    except ImportError:
        print("Otava is not here, so its rows are left out", file=sys.stderr)
        return found

    def windows(values: Sequence[float], least: float = 0.0) -> list[int]:
        points, _ = otava.compute_change_points(list(values), 50, 0.001, least)
        return [int(point.index) for point in points]

    def permuted(values: Sequence[float]) -> list[int]:
        points, _ = otava.compute_change_points_orig(list(values), 0.001, seed=0)
        return [int(point.index) for point in points]

    return {
        **found,
        "Otava, as it is by default": windows,
        "Otava, at least 2 %": lambda values: windows(values, 0.02),
        "Otava, its permutation test": permuted,
    }


def judge(series: Recording) -> None:
    """Print how each procedure does on these series."""
    rows: list[tuple[object, ...]] = []
    for name, procedure in procedures().items():
        started = time.perf_counter()
        alarms = {key: len(procedure(values)) for key, values in series.items()}
        shuffled = sum(len(procedure(values)) for values in _in_random_order(series))
        spent = (time.perf_counter() - started) / len(alarms) / 2
        steps = [_finds(procedure, values) for values in series.values()]
        cases = [hit for hits in steps for hit in hits]
        alarmed = sum(map(bool, alarms.values()))
        rows.append((name, f"{sum(alarms.values())} in {alarmed} of {len(alarms)}", shuffled,
                     f"{100 * sum(cases) / len(cases):.0f} % of {len(cases)}",
                     f"{spent * 1000:.0f} ms"))  # fmt: skip
        for key, count in alarms.items():
            values = series[key]
            found = _finds(procedure, values)
            print(f"{name}: {key}: {count} change points, {sum(found)} of {len(found)} steps; "
                  f"spread {_spread(values):.1%}, neighbors {_neighbors(values):.1%}",
                  file=sys.stderr)  # fmt: skip
    possible = [hit for values in series.values() for hit in _can_find(values)]
    share = f"{100 * sum(possible) / len(possible):.0f} % of {len(possible)}"
    rows.append(("a threshold with hindsight", "0", "", share, ""))
    headers = ("procedure", "in noise as recorded", "shuffled", "finds +5 %", "a series")
    print(tabulate(rows, headers, disable_numparse=True))


def _in_random_order(series: Recording) -> Iterator[list[float]]:
    import random

    for number, values in enumerate(series.values()):
        yield random.Random(number).sample(values, len(values))


def _finds(procedure: Procedure, values: Sequence[float]) -> list[bool]:
    """Whether a step of 5 % is found, at several places."""
    hits = []
    for end in _ends(values):
        part = list(values[end - _BEFORE - _AFTER : end])
        part[_BEFORE:] = [1.05 * value for value in part[_BEFORE:]]
        hits.append(any(abs(at - _BEFORE) <= _CLOSE for at in procedure(part)))
    return hits


def _ends(values: Sequence[float]) -> range:
    """How many values are known when the question is asked, at several places."""
    return range(_BEFORE + _AFTER, len(values) + 1, 45)


def _can_find(values: Sequence[float]) -> list[bool]:
    """Whether the same steps raise the newest level by more than it ever rises by itself."""
    logs = np.log(values)
    before = np.median(sliding_window_view(logs, _BEFORE), axis=1)[:-_AFTER]
    rises = np.median(sliding_window_view(logs[_BEFORE:], _AFTER), axis=1) - before
    hits = []
    for end in _ends(values):
        at = end - _BEFORE - _AFTER
        others = np.concatenate((rises[: max(at - _AFTER + 1, 0)], rises[at + _AFTER :]))
        hits.append(bool(rises[at] + math.log(1.05) > others.max()))
    return hits


def _spread(values: Sequence[float]) -> float:
    """Half the distance of the quartiles, by the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


def _neighbors(values: Sequence[float]) -> float:
    """The median distance of neighbors, by the median."""
    steps = [abs(b - a) for a, b in pairwise(values)]
    return statistics.median(steps) / statistics.median(values)


if __name__ == "__main__":
    raise SystemExit(main())
