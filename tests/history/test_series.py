"""A history in memory: which numbers are one series, and what is no document."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from support.histories import run, save

from pytest_torchprof.history.runs import OwnKind, RunRegion, RunTest, encode
from pytest_torchprof.history.series import History, Question, Series
from pytest_torchprof.history.stores import new_name, store_of

#: Of Python 3.12 and later; the children do nothing with what other tests have started.
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")

C = "c" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a history."""
    return tmp_path / "history"


def history_of(folder: Path, **question: Any) -> History:
    return History(store_of(str(folder)), Question(**question))


def series_of(folder: Path, **question: Any) -> list[Series]:
    return history_of(folder, **question).series({"repo", "other"})


def values_of(folder: Path) -> dict[str, list[float]]:
    """All values by metric, in the order of their documents' names."""
    history = history_of(folder)
    places = {run.number: run.number for run in history.runs}
    every = history.series({"repo"})
    return {one.metric: [*history.values(one, places).values()] for one in every}


def test_series_are_apart_by_all_that_makes_numbers_comparable(folder: Path) -> None:
    base = {"ops": 1, "wall_ms": 1.0}
    save(
        folder,
        run(C, base),
        run(C, base, repository="other"),
        run(C, base, environment={"key": "cpu, torch 2.14", "host": "runner-1"}),
        run(C, base, environment={"key": "cpu, torch 2.13", "host": "runner-2"}),
        run(C, base, workers=4),
        run(C, base, tests=[RunTest("t.py::test_a", "ok", None, "f" * 16, dict(base))]),
        run(C, base, environment={}),
    )
    found = series_of(folder)
    # Exact metrics do not depend on the machine; times do.
    assert 5 == sum(one.metric == "ops" for one in found)
    assert 7 == sum(one.metric == "wall_ms" for one in found)
    assert {""} == {one.machine for one in found if one.metric == "ops"}
    assert all(one.machine for one in found if one.metric == "wall_ms")


def test_bounds_on_two_chips_are_two_series(folder: Path) -> None:
    both = {"bound_ms": 0.5, "launches": 3}
    for chip in ("T4", "H100 SXM", "T4"):
        environment = {"key": "cpu, torch 2.13", "host": "a", "chip": chip}
        save(folder, run(C, both, environment=environment))
    assert [
        ("bound_ms", "cpu, torch 2.13, H100 SXM"),
        ("bound_ms", "cpu, torch 2.13, T4"),
        ("launches", "cpu, torch 2.13"),
    ] == sorted((one.metric, one.environment) for one in series_of(folder))


def test_a_metric_is_as_the_table_or_its_user_says(folder: Path) -> None:
    own = {"rate": OwnKind("1/s", "time", "higher")}
    metrics: dict[str, float] = {"flops": 1, "rate": 2.5, "kernels[op=aten::mm]": 3, "unheard": 4}
    regions = {"part": RunRegion(1, {"flops": 5})}
    test = RunTest("t.py::test_a", "ok", None, None, metrics, regions, own)
    save(folder, run(C, {}, tests=[test]))
    found = {(one.region, one.metric): one for one in series_of(folder)}
    assert {
        (None, "flops"): ("FLOP", "exact", "lower"),
        ("part", "flops"): ("FLOP", "exact", "lower"),
        (None, "rate"): ("1/s", "time", "higher"),
        (None, "kernels[op=aten::mm]"): ("1", "exact", "lower"),
        (None, "unheard"): ("1", "exact", "lower"),
    } == {key: (one.unit, one.klass, one.better) for key, one in found.items()}


def test_numbers_are_exact_also_where_runs_have_other_metrics(folder: Path) -> None:
    numbers: list[float] = [2**53, 2**53 + 1, 0, 0.1, -5, 2**63 - 1]
    for at, number in enumerate(numbers):
        save(folder, run(C, {"flops": number, "ops": 3} if at % 2 else {"flops": number}))
    found = values_of(folder)
    assert sorted(numbers) == sorted(found["flops"])
    assert [3, 3, 3] == found["ops"]
    history = history_of(folder)
    same = {one.metric: history.is_constant(one) for one in history.series({"repo"})}
    assert {"flops": False, "ops": True} == same


@pytest.mark.parametrize(
    ("question", "count"),
    [
        ({}, 4),
        ({"test": "t.py::test_a"}, 2),
        ({"test": "*test_[a-c]*"}, 4),
        ({"test": "t.py::test_b[x-1]"}, 2),  # a name is one of its own pattern
        ({"metric": "ops"}, 2),
        ({"metric": "*"}, 4),
        ({"metric": "OPS"}, 0),
        ({"test": "t.py::test_a", "metric": "ops"}, 1),
    ],
)
def test_tests_and_metrics_are_chosen_by_name_or_glob(
    folder: Path, question: dict[str, str], count: int
) -> None:
    tests = [RunTest(name, "ok", None, None, {"ops": 1, "flops": 2})
             for name in ("t.py::test_a", "t.py::test_b[x-1]")]  # fmt: skip
    save(folder, run(C, {}, tests=tests))
    assert count == len(series_of(folder, **question))


def _write(folder: str, number: int, barrier: Any) -> None:
    barrier.wait()
    store_of(folder).write(new_name("2026-01-01T00:00:00Z", C), encode(run(C, {"ops": number})))


@pytest.mark.thorough
def test_fifty_writers_at_once_lose_nothing(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(50)
    writers = [
        context.Process(target=_write, args=(str(folder), number, barrier)) for number in range(50)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [0] * 50 == [writer.exitcode for writer in writers]
    assert list(range(50)) == sorted(values_of(folder)["ops"])
    assert all(path.name.endswith(".run.json") for path in folder.iterdir())


def _write_on(folder: str, begun: Event) -> None:
    content = encode(run(C, {f"metric_{n}": n for n in range(3000)}))
    while True:
        store_of(folder).write(new_name("2026-01-01T00:00:00Z", C), content)
        begun.set()


@pytest.mark.thorough
def test_a_killed_writer_leaves_no_half_document(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    for moment in range(51):
        begun = context.Event()
        process = context.Process(target=_write_on, args=(str(folder), begun))
        process.start()
        assert begun.wait(60)
        time.sleep(moment * 0.0007)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    history = history_of(folder)
    assert (True, {}) == (len(history.runs) > 50, history.skipped)
