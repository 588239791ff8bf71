"""Several traces of one job: which files are read, and which rank each is of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.trace import ranks as room
from pytest_torchprof.trace.ranks import rank_of, read_ranks
from pytest_torchprof.trace.read import read_trace as read_file
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def save(path: Path, operators: int, rank: Any = None, style: Any = ()) -> Path:
    """A trace with a distinct number of operators."""
    b = TraceBuilder()
    for _ in range(operators):
        b.op("aten::add")
    if rank is not None:
        b.metadata("distributedInfo", {"backend": "nccl", "rank": rank, "world_size": 8})
    return b.save(path, style)


def seen(found: list[tuple[int, Events]]) -> list[tuple[int, Any]]:
    """(rank, operators) of each."""
    return [(rank, measure_all(trace)["ops"]) for rank, trace in found]


def test_one_file_is_one_rank(tmp_path: Path) -> None:
    assert seen(read_ranks([save(tmp_path / "a.json", 3)])) == [(0, 3)]
    assert seen(read_ranks([save(tmp_path / "b.json", 3, rank=5)])) == [(5, 3)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("job_rank_12.pt.trace.json.gz", 12),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("worker7_step_12.1694128201553.pt.trace.json", 7),
        ("Rank 2 of 8.json", 2),
        ("worker1_rank4.json", 4),
        ("host_1234.1694128201553.pt.trace.json", 0),
        ("frank.json", 0),
        ("ranking.json", 0),
    ],
)
def test_the_rank_in_a_name(name: str, rank: int, tmp_path: Path) -> None:
    assert seen(read_ranks([save(tmp_path / name, 1)])) == [(rank, 1)]


def test_the_rank_in_the_name_of_the_folder(tmp_path: Path) -> None:
    paths = []
    for number in (1, 0):
        folder = tmp_path / f"rank_{number}"
        folder.mkdir()
        paths.append(save(folder / "trace.json", 10 + number))
    assert seen(read_ranks(paths)) == [(0, 10), (1, 11)]


@pytest.mark.parametrize("style", ["plain", "compact"])
def test_what_a_trace_says_counts_more_than_its_name(style: str, tmp_path: Path) -> None:
    """Whether it says so before its events or after them."""
    path = save(tmp_path / "rank1.json", 3, rank=6, style=() if style == "plain" else style)
    assert seen(read_ranks([path])) == [(6, 3)]


@pytest.mark.parametrize(
    ("metadata", "rank"),
    [
        ({}, None),
        ({"distributedInfo": None}, None),
        ({"distributedInfo": {}}, None),
        ({"distributedInfo": {"rank": "3"}}, 3),
        ({"distributedInfo": {"rank": -1}}, None),
        ({"distributedInfo": {"rank": True}}, None),
        ({"distributedInfo": {"rank": [1]}}, None),
    ],
)
def test_a_rank_is_a_number_from_zero(metadata: dict[str, Any], rank: int | None) -> None:
    assert rank_of(metadata) == rank


def test_traces_without_a_rank_are_numbered_in_their_order(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{name}.json", n) for n, name in enumerate("zya", 1)]
    assert seen(read_ranks(paths)) == [(0, 1), (1, 2), (2, 3)]
    paths.append(save(tmp_path / "rank1.json", 4))
    assert seen(read_ranks(paths)) == [(0, 1), (1, 4), (2, 2), (3, 3)]


def test_a_folder_is_all_its_traces_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        save(tmp_path / f"step{number}.json{'.gz' if number == 9 else ''}", number)
    (tmp_path / "notes.txt").write_text("no trace", "utf-8")
    (tmp_path / "folder.json").mkdir()
    found = read_ranks([tmp_path])
    assert seen(found) == [(0, 1), (1, 9), (2, 10)]
    assert all(trace.warnings == () for _, trace in found)


def test_files_in_a_folder_that_are_not_traces_are_skipped_and_reported(tmp_path: Path) -> None:
    (tmp_path / "a_report.json").write_text('{"schema": "other"}', "utf-8")
    save(tmp_path / "b.json", 2)
    ((rank, trace),) = read_ranks([tmp_path])
    assert (rank, measure_all(trace)["ops"]) == (0, 2)
    assert "a_report.json" in trace.warnings[0]
    with pytest.raises(TraceError, match=r"a_report\.json"):
        read_ranks([tmp_path / "b.json", tmp_path / "a_report.json"])


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace found: no file ends in \.json"):
        read_ranks([tmp_path])
    (tmp_path / "report.json").write_text("{}", "utf-8")
    with pytest.raises(TraceError, match=r"none of 1; the first: .*report\.json"):
        read_ranks([tmp_path])
    with pytest.raises(TraceError, match="cannot be read"):
        read_ranks([tmp_path / "missing"])


def test_a_second_file_of_a_rank_gets_a_number_and_a_warning(tmp_path: Path) -> None:
    first, second = (save(tmp_path / f"{n}.json", n, rank=0) for n in (1, 2))
    found = read_ranks([first, second])
    assert seen(found) == [(0, 1), (1, 2)]
    assert found[0][1].warnings == ()
    assert found[1][1].warnings == ("it claims rank 0 like 1.json: its number is 1",)


def test_another_file_of_the_chosen_rank_is_reported_as_skipped(tmp_path: Path) -> None:
    first, second = (save(tmp_path / f"{n}.json", n, rank=0) for n in (1, 2))
    ((rank, trace),) = read_ranks([first, second], rank=0)
    assert (rank, measure_all(trace)["ops"]) == (0, 1)
    message = "skipped: 2.json is rank 0 too, from another job or step"
    assert trace.warnings == (message,)


def test_a_second_file_with_the_same_name_is_named_with_its_folder(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "a" / "t.json", tmp_path / "b" / "t.json"
    for path in (first, second):
        path.parent.mkdir()
        save(path, 1, rank=0)
    (_, (_, trace)) = read_ranks([first, second])
    assert trace.warnings == (f"it claims rank 0 like {first}: its number is 1",)
    ((_, chosen),) = read_ranks([first, second], rank=0)
    message = f"skipped: {second} is rank 0 too, from another job or step"
    assert chosen.warnings == (message,)


def test_a_file_given_by_two_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    path = save(tmp_path / "traces" / "a.json", 3)
    (link := tmp_path / "link.json").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    names = [Path("traces/a.json"), path, link, Path("traces"), Path("traces/../link.json")]
    assert seen(read_ranks(names)) == [(0, 3)]


def test_one_rank_is_chosen_without_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        save(tmp_path / f"{number}.json", number + 1, rank=7 - number)
    seen_files: list[str] = []

    def watched(path: Path, **options: Any) -> Events:
        seen_files.append(path.name)
        return read_file(path, **options)

    monkeypatch.setattr(room, "read_trace", watched)
    assert seen(read_ranks([tmp_path], rank=6)) == [(6, 2)]
    assert seen_files == ["1.json"]


def test_a_rank_is_chosen_where_only_the_content_has_the_number(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.json", number + 1, rank=9 - number, style="compact")
    assert seen(read_ranks([tmp_path], rank=8)) == [(8, 2)]


def test_a_rank_that_is_not_there_is_an_error_with_those_that_are(tmp_path: Path) -> None:
    for number in (2, 5):
        save(tmp_path / f"{number}.json", 1, rank=number)
    with pytest.raises(TraceError, match="there is no rank 3: the ranks are 2, 5"):
        read_ranks([tmp_path], rank=3)


def test_progress_is_of_all_files_together(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{n}.json", n) for n in (5, 50, 10)]
    reported: list[tuple[int, int]] = []
    read_ranks(paths, progress=lambda done, total: reported.append((done, total)))
    sizes = [path.stat().st_size for path in paths]
    assert reported == [(sum(sizes[: n + 1]), sum(sizes)) for n in range(3)]
