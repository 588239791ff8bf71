"""`torchprof diff --html`: every number of the page is the command's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.html_pages import Element, read_page
from support.trace_builder import TraceBuilder
from support.trace_pages import (
    assert_drawn_well,
    marks_of,
    number_of,
    plots_of,
    table_of,
    tables_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say


def run(path: Path, *kernels: tuple[str, str, float], steps: int = 3, rank: int = -1) -> Path:
    """Steps with these operators, kernels and us of each."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    if rank >= 0:
        b.metadata("distributedInfo", {"rank": rank, "world_size": 2, "backend": "nccl"})
    for step in range(steps):
        with b.annotation(f"ProfilerStep#{step}"):
            for operator, kernel, us in kernels:
                with b.op(operator):
                    b.launch(kernel, us)
    return b.save(path)


OLD = ("aten::mm", "ampere_sgemm_128x64_tn", 40), ("aten::mul", "mul_kernel", 10)
NEW = ("aten::mm", "ampere_sgemm_128x64_tn", 70), ("aten::add", "add_kernel", 5)


def page_of(say: Say, tmp_path: Path, *words: str | Path) -> Element:
    target = tmp_path / "page.html"
    status, _, err = say("diff", *words, "--html", target)
    assert (0, "") == (status, err)
    return read_page(target.read_text("utf-8"))


def answer(say: Say, *words: str | Path) -> Any:
    status, out, _ = say(*words, "--format", "json")
    assert status == 0
    return json.loads(out)


def assert_same(page: Element, found: Any, name: str) -> None:
    """The table and the bars are those of the command."""
    rows = [row for row in found["rows"] if row["change"] != "same"]
    shown = table_of(page, name)
    assert min(len(rows), 50) == len(shown)
    for row, cells in zip(rows, shown, strict=False):
        assert {field: row[field] for field in cells} == cells
    (plot,) = plots_of(page, f"changed-{name}")
    assert_drawn_well(plot)
    grown = [row["self_cuda_ms_b"] - row["self_cuda_ms_a"] for row in rows]
    assert set(marks_of(plot)) <= set(grown)
    assert max(map(abs, grown)) == abs(marks_of(plot)[0])


def test_every_number_of_the_page_is_the_commands(say: Say, tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.json", *OLD), run(tmp_path / "b.json", *NEW)
    page = page_of(say, tmp_path, a, b)
    found = answer(say, "diff", a, b)
    assert_same(page, found, "operators")
    assert_same(page, answer(say, "diff", a, b, "--by", "kernel"), "kernels")
    for row in found["growth"]:
        card = page.one("div", data_growth=row["metric"])
        assert row["percent"] == number_of(card.one("span", class_="t-value"))
    metrics = [answer(say, "summary", trace)["metrics"] for trace in (a, b)]
    rows = page.one("table", data_table="metrics").one("tbody").every("tr")
    for row in rows:
        name = row.attributes["data-metric"] or ""
        values = [number_of(td) for td in row.every("td") if "data-value" in td.attributes]
        assert [one[name]["value"] for one in metrics] == values
    assert "vanished" in page.text
    assert "appeared" in page.text


def test_traces_of_different_length_are_compared_per_step(say: Say, tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.json", *OLD), run(tmp_path / "b.json", *NEW, steps=5)
    page = page_of(say, tmp_path, a, b)
    assert_same(page, answer(say, "diff", a, b), "operators")
    assert "per step: a has 3 steps, b 5" in page.text
    assert "all steps together: 3 of A, 5 of B" in page.text


def test_equal_traces_have_no_change(say: Say, tmp_path: Path) -> None:
    a = run(tmp_path / "a.json", *OLD)
    page = page_of(say, tmp_path, a, a)
    assert ["metrics"] == tables_of(page)
    assert "no operator changed" in page.text
    assert "no kernel changed" in page.text


def test_each_rank_has_its_own_sections(say: Say, tmp_path: Path) -> None:
    sides = []
    for name, kernels in (("a", OLD), ("b", NEW)):
        (folder := tmp_path / name).mkdir()
        for rank in range(2):
            run(folder / f"rank{rank}.json", *kernels, rank=rank)
        sides.append(folder)
    page = page_of(say, tmp_path, *sides)
    anchors = [section.attributes["id"] for section in page.every("section")]
    assert len(set(anchors)) == len(anchors) == 8
    assert "rank 1: Kernels" in page.text


@pytest.mark.parametrize("name", ["a.json", "notes.html", "."])
def test_neither_traces_nor_other_files_are_replaced(say: Say, tmp_path: Path, name: str) -> None:
    a, b = run(tmp_path / "a.json", *OLD), run(tmp_path / "b.json", *NEW)
    (tmp_path / "notes.html").write_text("mine")
    before = a.read_bytes()
    status, out, err = say("diff", a, b, "--html", tmp_path / name)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert (before, "mine") == (a.read_bytes(), (tmp_path / "notes.html").read_text())
