"""`torchprof ab`'s engine: one run of two folders with every kind of test, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.ab.controller import Options, Worker, run
from pytest_torchprof.ab.sides import Request, sides
from pytest_torchprof.core.errors import AbError, AbStoppedError
from pytest_torchprof.core.unknown import because

if TYPE_CHECKING:
    from pytest_torchprof.verdict.paired import PairedRow

#: Of both sides.
KINDS = """
import asyncio, gc, logging, os, random, time, unittest, warnings
import pytest, torch
from hypothesis import given, settings, strategies as st
from side import NAME, WORK

IN_A = NAME == "A"
ONES = torch.ones(8, 8)
calls = dict.fromkeys(["flaky", "set up", "torn down", "late"], 0)

@pytest.fixture
def counted():
    calls["set up"] += 1
    yield []
    calls["torn down"] += 1

@pytest.fixture(scope="class")
def shared():
    return []

def test_same():
    ONES + ONES

def test_slower():
    for _ in range(WORK):
        ONES + ONES

def test_fails_in_a():
    assert not IN_A

def test_fails_in_b():
    assert IN_A, "as it should"

def test_skipped():
    pytest.skip("not today")

def test_skipped_in_b():
    if not IN_A:
        pytest.skip("not in B")

@pytest.mark.xfail(reason="known")
def test_xfails():
    raise ValueError

@pytest.mark.xfail(strict=True)
def test_xpasses():
    pass

def test_once_a_fixture(counted):
    counted.append(1)
    assert len(counted) == 1

def test_fixtures_end():
    assert calls["set up"] == calls["torn down"] > 1  # more often than in a run

def test_fails_later():
    calls["flaky"] += 1
    assert calls["flaky"] < 9

@pytest.fixture
def ends_badly():
    yield
    raise RuntimeError("no end")

def test_teardown_fails(ends_badly):
    pass

@pytest.mark.max_ops(0)
def test_over_budget():
    ONES + ONES

@pytest.mark.torchprof(enabled=False)
def test_not_profiled():
    ONES + ONES

def test_numbers(torchprof):
    with torchprof:
        ONES + ONES
    assert torchprof.stats.ops == 99

def test_region(torchprof):
    time.sleep(0.002)
    with torchprof:
        ONES + ONES

def test_function(torchprof):
    time.sleep(0.002)
    assert torchprof(lambda: ONES + ONES, rounds=2).sum() == 128
    assert torchprof.stats.ops == 99

def test_callables(torchprof):
    called = []
    result = torchprof.ab(lambda: called.append("a"), lambda: called.append("b"), min_time=60)
    assert called == ["a", "b"]
    result.assert_not_slower(by="5 %")

def test_two_regions(torchprof):
    with torchprof:
        pass
    with torchprof:
        pass

class TestUnit(unittest.TestCase):
    def setUp(self):
        self.fresh = []

    def test_it(self):
        self.assertEqual(self.fresh, [])
        self.fresh.append(1)

class TestClass:
    def test_it(self, shared):
        shared.append(1)

@pytest.mark.parametrize("size", [1, 2])
def test_sizes(size):
    torch.ones(size)

@pytest.mark.asyncio
async def test_async():
    await asyncio.sleep(0)

@settings(max_examples=3, database=None, deadline=None)
@given(st.integers())
def test_drawn(number):
    assert number + 1 > number

def test_prints(capsys):
    print("x" * 100)
    assert capsys.readouterr().out

def test_shouts():
    print("y" * 1000)
    logging.getLogger("a").warning("z" * 1000)
    warnings.warn("w" * 100)

def test_logs(caplog):
    logging.getLogger("a").warning("once")
    assert len(caplog.records) == 1

def test_files(tmp_path):
    (tmp_path / "a").write_text("b")

def test_patches(monkeypatch):
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 1)
    monkeypatch.setattr(time, "process_time_ns", lambda: 1)
    monkeypatch.setattr(gc, "collect", None)
    ONES + ONES

def test_random():
    assert random.random() != torch.rand(1).item()

def test_dies():
    if not IN_A:
        os._exit(3)

def test_lives():
    ONES + ONES
"""
ONLY = "def test_here():\n    pass\n"
DOCTEST = '"""\n>>> 1 + 1\n2\n"""\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sides a and b."""
    top = tmp_path_factory.mktemp("two sides")
    for side, work in (("a", 20), ("b", 40)):
        (top / side).mkdir()
        (top / side / "side.py").write_text(f"NAME = {side.upper()!r}\nWORK = {work}\n")
        (top / side / "test_kinds.py").write_text(KINDS)
        (top / side / "pytest.ini").write_text(
            "[pytest]\naddopts = -n 2 -x --junitxml=junit.xml --lf -p no:randomly\n"
            "filterwarnings =\n    error\n    default:w*:UserWarning\n"
        )
        (top / side / "test_text.txt").write_text(">>> 1 + 1\n2\n")
        (top / side / "test_broken_in_a.py").write_text(
            f"import side\nassert side.NAME == 'B'\n{ONLY}"
        )
        (top / side / "test_broken_in_b.py").write_text(
            f"import side\nassert side.NAME == 'A'\n{ONLY}"
        )
        (top / side / "test_unfinished_in_b.py").write_text(
            f"import side\nexec('x = (' if side.NAME == 'B' else '')\n{ONLY}"
        )
        (top / side / f"test_only_{side}.py").write_text(ONLY)
    return top


def compare(
    a: Path,
    b: Path,
    *args: str,
    options: Options | None = None,
    remaining: list[int] | None = None,
    notes: list[str] | None = None,
    rows: list[PairedRow] | None = None,
) -> list[PairedRow]:
    """Rows of two folders."""
    request = Request(None, a, b, None, None, b, args)
    rows = [] if rows is None else rows
    with sides(request) as (side_a, side_b, temporary):
        shown = run(
            side_a,
            side_b,
            temporary,
            options or Options(min_time_s=0.05),
            lambda _, number, total: (
                remaining.append(total - number) if remaining is not None else None
            ),
            rows,
        )
        if notes is not None:
            notes += shown
    return rows


@pytest.fixture(scope="module")
def left(folder: Path) -> list[int]:
    """How many tests were left, at each test."""
    return []


@pytest.fixture(scope="module")
def notes() -> list[str]:
    """What is said of the run as a whole."""
    return []


@pytest.fixture(scope="module")
def rows(folder: Path, left: list[int], notes: list[str]) -> dict[str, PairedRow]:
    """Everything compared, once."""
    found = compare(folder / "a", folder / "b", "--strict-markers", remaining=left, notes=notes)
    return {row.nodeid.removeprefix("test_kinds.py::"): row for row in found}


MEASURED = [
    "test_same",
    "test_once_a_fixture",
    "test_fixtures_end",
    "test_over_budget",
    "test_not_profiled",
    "test_numbers",
    "test_region",
    "test_function",
    "test_callables",
    "TestUnit::test_it",
    "TestClass::test_it",
    "test_sizes[1]",
    "test_sizes[2]",
    "test_async",
    "test_drawn",
    "test_prints",
    "test_shouts",
    "test_logs",
    "test_files",
    "test_patches",
    "test_random",
    "test_lives",
    "test_text.txt::test_text.txt",
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", MEASURED)
def test_every_kind_of_test_is_measured(rows: dict[str, PairedRow], name: str) -> None:
    row = rows[name]
    assert row.decision is not None, row
    assert row.verdict == row.decision.verdict
    for sample in (row.a_ms, row.b_ms):
        assert sample is not None
        assert sample.n >= row.decision.pairs
        assert sample.minimum > 0
    assert row.measured_s > 0
    assert row.spent_s > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "verdict", "broken", "reason"),
    [
        ("test_fails_in_a", "failed", "A", "fails in A: assert not True"),
        ("test_fails_in_b", "failed", "B", "fails in B: AssertionError: as it should"),
        ("test_skipped", "skipped", "AB", "not today"),
        ("test_skipped_in_b", "skipped", "B", "only in B: not in B"),
        ("test_xfails", "skipped", "AB", "xfailed: known"),
        ("test_xpasses", "failed", "AB", "fails in A and B: [XPASS(strict)]"),
        ("test_fails_later", "error", None, "fails in "),
        (
            "test_teardown_fails",
            "failed",
            "AB",
            "fails in A and B: RuntimeError: no end (teardown)",
        ),
        ("test_two_regions", "error", "AB", "the test measures more than one region"),
        ("test_dies", "error", "B", "in B: the worker exited with code 3"),
        ("test_only_b.py::test_here", "new", "", "only in B"),
        ("test_only_a.py::test_here", "gone", "", "only in A"),
        ("test_broken_in_a.py::test_here", "failed", "A", "cannot be collected in A: "),
        ("test_broken_in_b.py", "failed", "B", "cannot be collected in B: "),
        (
            "test_unfinished_in_b.py",
            "failed",
            "B",
            "cannot be collected in B: SyntaxError: '(' was ",
        ),
    ],
)
def test_what_cannot_be_compared_is_a_row_that_says_where_and_why(
    rows: dict[str, PairedRow], name: str, verdict: str, broken: str | None, reason: str
) -> None:
    row = rows[name]
    assert row.reason is not None
    assert (row.verdict, row.reason.text[: len(reason)]) == (verdict, reason)
    assert broken in (row.broken, None)
    assert row.decision is None


@pytest.mark.thorough
def test_a_test_without_exact_metrics_says_why(rows: dict[str, PairedRow]) -> None:
    shown = {name: row.unprofiled for name, row in rows.items() if row.unprofiled}
    assert shown.pop("test_not_profiled") == because(
        "left_out_by_marker", "its marker has enabled=False"
    )
    assert set(shown) <= {"test_two_regions"}
    assert not rows["test_not_profiled"].differences


@pytest.mark.thorough
def test_imports_of_a_dead_worker_are_reported_as_unknown(
    rows: dict[str, PairedRow], notes: list[str]
) -> None:
    assert rows["test_dies"].verdict == "error"
    shown = "it is not known where B imported modules from while tests ran: its worker died"
    assert notes == [shown]


@pytest.mark.thorough
def test_each_test_is_one_row(rows: dict[str, PairedRow]) -> None:
    assert len(rows) == len(MEASURED) + 15 + 1  # and test_slower


@pytest.mark.thorough
def test_twice_the_work_has_twice_the_operators(rows: dict[str, PairedRow]) -> None:
    row = rows["test_slower"]
    assert row.decision is not None  # of a single pair, whose times depend on what else runs
    assert [(d.metric, d.a, d.b) for d in row.differences if d.metric == "ops"] == [("ops", 20, 40)]
    assert not rows["test_same"].differences


@pytest.mark.thorough
def test_only_the_marked_region_counts(rows: dict[str, PairedRow]) -> None:
    for name in ("test_region", "test_function"):
        sample = rows[name].a_ms
        assert sample is not None
        assert sample.median < 1.5  # of more than 2


@pytest.mark.thorough
def test_progress_is_reported_before_each_test(rows: dict[str, PairedRow], left: list[int]) -> None:
    assert left == list(range(len(left)))[::-1]
    assert len(left) == len(rows) - 5


@pytest.mark.thorough
def test_nothing_is_written_beside_the_tests(rows: dict[str, PairedRow], folder: Path) -> None:
    assert rows
    for side in ("a", "b"):
        names = {path.name for path in (folder / side).iterdir()}
        assert not names & {".pytest_cache", "junit.xml", "__torchprof__"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--accept"], "--accept writes baselines"),
        (["-k", "no_such_test"], "no tests were collected"),
        pytest.param(
            ["-p", "no:torchprof"],
            "pytest did not load the torchprof plugin",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["--no-such-option"],
            "unrecognized arguments: --no-such-option",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_arguments_that_make_no_sense_are_one_clear_line(
    folder: Path, capfd: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    with pytest.raises(AbError) as caught:
        compare(folder / "a", folder / "b", "test_text.txt", *args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.thorough
def test_a_side_that_cannot_start_at_all_is_a_row_for_each_test(tmp_path: Path) -> None:
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "test_x.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    (tmp_path / "a" / "conftest.py").write_text("import no_such_thing\n")
    rows = compare(tmp_path / "a", tmp_path / "b")
    assert [row.verdict for row in rows] == ["failed", "failed"]
    assert rows[0].reason is not None
    assert "No module named 'no_such_thing'" in rows[0].reason.text


@pytest.mark.thorough
def test_exactly_so_many_rounds_and_tests_that_always_end_their_worker_end_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_x.py").write_text(
        "import os, pytest\ndef test_well(): pass\n@pytest.mark.parametrize('n', range(9))\n"
        "def test_x(n):\n    os.kill(os.getpid(), 9)\n"
    )
    rows: list[PairedRow] = []
    shown = r"3 tests in a row ended their worker.*SIGKILL"
    with pytest.raises(AbStoppedError, match=shown):
        compare(tmp_path, tmp_path, rows=rows, options=Options(rounds=9))
    assert [row.verdict == "error" for row in rows] == [False, True, True]
    assert rows[0].decision is not None
    assert rows[0].decision.pairs == 9


@pytest.mark.thorough
def test_an_interrupt_ends_the_workers_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[Any] = []
    start = Worker.start

    def noted(worker: Worker) -> None:
        start(worker)
        processes.append(worker._process)

    monkeypatch.setattr(Worker, "start", noted)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    request = Request(None, folder / "a", folder / "b", None, None, folder / "b", ())
    with (
        pytest.raises(KeyboardInterrupt),
        sides(request) as (side_a, side_b, temporary),
    ):
        run(side_a, side_b, temporary, Options(), interrupt, [])
    assert [-9, -9] == [process.returncode for process in processes]
