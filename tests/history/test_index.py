"""The index: only new documents are read, and it can always be rebuilt."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.histories import run, save

from pytest_torchprof.core.files import cache_folder
from pytest_torchprof.history.index import Index, Series, asked
from pytest_torchprof.history.runs import OwnKind, RunRegion, RunTest
from pytest_torchprof.history.stores import Folder, Store, store_of

#: Of Python 3.12 and later; the children do nothing with what other tests have started.
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded:DeprecationWarning")

C = "c" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchprof"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a history."""
    return tmp_path / "history"


def stored(store: Store) -> dict[tuple[str, str | None, str], list[float]]:
    """All values, by test, region and metric, in the order of their runs' clocks."""

    def read(index: Index) -> dict[tuple[str, str | None, str], list[float]]:
        names = {run.id: run.name for run in index.runs()}
        found: dict[tuple[str, str | None, str], list[float]] = {}
        for one in index.series():
            pairs = sorted(index.values(one.id), key=lambda pair: names[pair[0]])
            found[one.test, one.region, one.metric] = [value for _, value in pairs]
        return found

    return asked(store, read)


def series_of(store: Store, **question: Any) -> list[Series]:
    return asked(store, lambda index: index.series(**question))


def the_file(cache: Path) -> Path:
    (path,) = cache.glob("history-*.sqlite")
    return path


class Counting(Folder):
    """A folder that notes what is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.names: list[str] = []

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self.names += names
        return super().read(names)


def test_only_new_documents_are_read(folder: Path) -> None:
    store = Counting(folder)
    first = save(folder, run(C, {"ops": 1}), run(C, {"ops": 2}))
    assert {("t.py::test_a", None, "ops"): [1, 2]} == stored(store)
    assert first == store.names
    second = save(folder, run(C, {"ops": 3}))
    assert {("t.py::test_a", None, "ops"): [1, 2, 3]} == stored(store)
    assert first + second == store.names


def test_documents_that_are_gone_are_left_out(folder: Path) -> None:
    store = store_of(str(folder))
    first, _ = save(folder, run(C, {"ops": 1}), run(C, {"ops": 2}))
    stored(store)
    (folder / first).unlink()
    assert {("t.py::test_a", None, "ops"): [2]} == stored(store)
    assert 1 == len(asked(store, lambda index: index.runs()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"no database" * 1000),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(b""),
        lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 7"),
        lambda path: sqlite3.connect(path).execute("DROP TABLE value"),
        lambda path: Path(f"{path}-journal").write_bytes(b"x" * 5000),
    ],
    ids=["missing", "other", "cut", "empty", "version", "table", "journal"],
)
def test_an_index_that_is_not_right_is_rebuilt(folder: Path, cache: Path, damage: Any) -> None:
    store = store_of(str(folder))
    save(folder, *(run(C, {"ops": n, "kernels": n}) for n in range(40)))
    expected = stored(store)
    damage(the_file(cache))
    assert expected == stored(store)
    assert expected == stored(store)


def test_without_a_place_for_it_the_index_is_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    save(folder, run(C, {"ops": 1}))
    assert {("t.py::test_a", None, "ops"): [1]} == stored(store_of(str(folder)))


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert "torchprof" in cache_folder().parts


def test_what_is_no_document_is_counted_once_and_read_again_if_it_grows(folder: Path) -> None:
    store = Counting(folder)
    (name,) = save(folder, run(C, {"ops": 1}))
    whole = (folder / name).read_bytes()
    (folder / "a.json").write_bytes(whole[:50])
    (folder / "b.json").write_text("[]")
    assert {"damaged": 1, "foreign": 1} == asked(store, lambda index: index.skipped())
    read = len(store.names)
    assert {"damaged": 1, "foreign": 1} == asked(store, lambda index: index.skipped())
    assert read == len(store.names)
    (folder / "a.json").write_bytes(whole)
    assert {"foreign": 1} == asked(store, lambda index: index.skipped())
    assert {("t.py::test_a", None, "ops"): [1, 1]} == stored(store)


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
    found = series_of(store_of(str(folder)))
    # Exact metrics do not depend on the machine; times do.
    assert 5 == sum(one.metric == "ops" for one in found)
    assert 7 == sum(one.metric == "wall_ms" for one in found)
    assert {""} == {one.machine for one in found if one.metric == "ops"}
    assert all(one.machine for one in found if one.metric == "wall_ms")


def test_a_metric_is_as_the_table_or_its_user_says(folder: Path) -> None:
    own = {"rate": OwnKind("1/s", "time", "higher")}
    metrics: dict[str, float] = {"flops": 1, "rate": 2.5, "kernels[op=aten::mm]": 3, "unheard": 4}
    regions = {"part": RunRegion(1, {"flops": 5})}
    test = RunTest("t.py::test_a", "ok", None, None, metrics, regions, own)
    save(folder, run(C, {}, tests=[test]))
    found = {(one.region, one.metric): one for one in series_of(store_of(str(folder)))}
    assert {
        (None, "flops"): ("FLOP", "exact", "lower"),
        ("part", "flops"): ("FLOP", "exact", "lower"),
        (None, "rate"): ("1/s", "time", "higher"),
        (None, "kernels[op=aten::mm]"): ("1", "exact", "lower"),
        (None, "unheard"): ("1", "exact", "lower"),
    } == {key: (one.unit, one.klass, one.better) for key, one in found.items()}


def test_numbers_are_kept_exactly(folder: Path) -> None:
    numbers: list[float] = [2**53, 2**53 + 1, 0, 0.1, -5, 2**63 - 1, 2**64 - 1]
    save(folder, *(run(C, {"flops": number}) for number in numbers))
    (found,) = stored(store_of(str(folder))).values()
    assert [*numbers[:-1], float(2**64 - 1)] == found
    assert [type(n) for n in numbers[:-1]] == [type(n) for n in found[:-1]]


def test_the_range_of_a_series_tells_whether_it_ever_changed(folder: Path) -> None:
    save(folder, run(C, {"ops": 3, "flops": 2**53, "kernels": 1}))
    save(folder, run(C, {"ops": 3, "flops": 2**53 + 1, "kernels": 2}))
    found = {one.metric: one for one in series_of(store_of(str(folder)))}
    assert (3, 3) == (found["ops"].low, found["ops"].high)
    assert found["kernels"].low < found["kernels"].high
    assert found["flops"].low < found["flops"].high  # too large for a float: not passed over


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
    assert count == len(series_of(store_of(str(folder)), **question))


def test_many_documents_are_stored_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_torchprof.history.index._BATCH", 7)
    save(folder, *(run(C, {"ops": n, "wall_ms": n / 7}) for n in range(20)))
    found = stored(store_of(str(folder)))
    assert list(range(20)) == found["t.py::test_a", None, "ops"]
    assert [n / 7 for n in range(20)] == found["t.py::test_a", None, "wall_ms"]


def _write(folder: str, number: int, barrier: Any) -> None:
    barrier.wait()
    store = store_of(folder)
    from pytest_torchprof.history.runs import encode
    from pytest_torchprof.history.stores import new_name

    store.write(new_name("2026-01-01T00:00:00Z", C), encode(run(C, {"ops": number})))


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
    (found,) = stored(store_of(str(folder))).values()
    assert list(range(50)) == sorted(found)
    assert all(path.name.endswith(".run.json") for path in folder.iterdir())


def _read(folder: str, answers: Any) -> None:
    answers.put(stored(store_of(folder)))


def test_several_readers_at_once_have_the_same_answer(folder: Path) -> None:
    save(folder, *(run(C, {"ops": n, "wall_ms": n / 7}) for n in range(60)))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    readers = [context.Process(target=_read, args=(str(folder), answers)) for _ in range(6)]
    for reader in readers:
        reader.start()
    found = [answers.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    assert [stored(store_of(str(folder)))] * 6 == found


def _write_on(folder: str) -> None:
    from pytest_torchprof.history.runs import encode
    from pytest_torchprof.history.stores import new_name

    content = encode(run(C, {f"metric_{n}": n for n in range(3000)}))
    store = store_of(folder)
    while True:
        store.write(new_name("2026-01-01T00:00:00Z", C), content)


def _index_on(folder: str) -> None:
    asked(store_of(folder), lambda index: index.runs())


def _killed(target: Any, folder: Path, after_s: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=target, args=(str(folder),))
    process.start()
    time.sleep(after_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.thorough
def test_a_killed_writer_leaves_no_half_document(folder: Path) -> None:
    for moment in range(50):
        _killed(_write_on, folder, 0.003 + moment * 0.0007)
    assert asked(store_of(str(folder)), lambda index: len(index.runs())) > 50
    assert {} == asked(store_of(str(folder)), lambda index: index.skipped())


@pytest.mark.thorough
def test_a_killed_reader_leaves_an_index_that_can_be_used(folder: Path) -> None:
    metrics = {f"metric_{n}": n for n in range(200)}
    expected = {}
    for moment in range(50):
        save(folder, *(run(C, metrics) for _ in range(8)))
        _killed(_index_on, folder, 0.002 + moment * 0.002)
        if not moment % 10:
            expected = stored(store_of(str(folder)))
            assert {(moment + 1) * 8} == {len(values) for values in expected.values()}
    assert {400} == {len(values) for values in stored(store_of(str(folder))).values()}


def test_bounds_on_two_chips_are_two_series(folder: Path) -> None:
    both = {"bound_ms": 0.5, "launches": 3}
    runs = [
        run(C, both, environment={"key": "cpu, torch 2.13", "host": "a", "chip": chip})
        for chip in ("T4", "H100 SXM", "T4")
    ]
    save(folder, *runs)
    found = [(one.metric, one.environment) for one in series_of(store_of(str(folder)))]
    assert sorted(found) == [
        ("bound_ms", "cpu, torch 2.13, H100 SXM"),
        ("bound_ms", "cpu, torch 2.13, T4"),
        ("launches", "cpu, torch 2.13"),
    ]
