"""Plots as pure functions: what is drawn adds up, what is small is merged, nothing is hidden."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_pages import Element, read_page
from support.trace_pages import assert_drawn_well, marks_of, number_of

from pytest_torchprof.analysis.breakdown import BreakdownRow, BusyTimeline
from pytest_torchprof.analysis.kernels import KernelRow
from pytest_torchprof.analysis.memory import MemoryPoint, PeakMemory
from pytest_torchprof.analysis.operators import TreeRow
from pytest_torchprof.render.html.charts import (
    ChipRoof,
    StepMark,
    breakdown_parts,
    change_bars,
    has_dot,
    icicle,
    memory_plot,
    roofline_plot,
    stacked_bar,
    timeline,
    tree_of,
)
from pytest_torchprof.render.html.page import data_table

H100 = ChipRoof("H100 SXM", 3.35e12, {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12})


def plot_of(markup: str) -> Element:
    plot = read_page(markup).one("svg")
    assert_drawn_well(plot)
    return plot


# ------------------------------------------------------------------------- time


def test_the_parts_of_a_bar_are_as_wide_as_their_time_and_idle_is_last() -> None:
    rows = [
        BreakdownRow(0, "idle", 6.0, 0.6, None, None),
        BreakdownRow(0, "gemm", 3.0, 0.3, 3.0, 4),
        BreakdownRow(0, "communication", 1.0, 0.1, 5.0, 1),
    ]
    plot = plot_of(stacked_bar("breakdown", breakdown_parts(rows), "Time"))
    assert [3.0, 1.0, 6.0] == marks_of(plot)
    widths = [float(rect.attributes["width"] or "") for rect in plot.every("rect")]
    assert [288, 96, 576] == widths
    assert "communication, exposed: 1 ms · 10.0 %" in plot.text


def test_a_category_without_a_time_has_no_part() -> None:
    rows = [
        BreakdownRow(0, "gemm", None, None, None, 4),
        BreakdownRow(0, "idle", None, None, None, None),
    ]
    assert [] == breakdown_parts(rows)


def test_a_timeline_has_a_path_for_each_category_and_says_what_each_share_was() -> None:
    row = BusyTimeline(
        0, [0, 10_000, 20_000], {"gemm": [10_000, 0], "copy": [0, 4_000], "idle": [0, 6_000]}
    )
    plot = plot_of(timeline([row], [StepMark(7, 0, 15_000)]))
    paths = {path.attributes["data-category"]: number_of(path) for path in plot.every("path")}
    assert {"gemm": 10_000, "copy": 4_000} == paths
    titles = [g.one("title").text for g in plot.every("g")]
    assert "device 0 at 10 us: copy, exposed 4 us, idle 6 us" in titles
    assert "step 7: 15 us on the host" in titles


def test_a_share_without_known_idle_time_is_not_called_idle() -> None:
    plot = plot_of(timeline([BusyTimeline(None, [0, 10, 20], {"gemm": [10, 0]})]))
    assert "not measured" in plot.text
    assert "idle" not in plot.text


@pytest.mark.thorough
@given(st.lists(st.integers(0, 2**50), min_size=2, max_size=6, unique=True).map(sorted))
def test_any_span_can_be_drawn(edges: list[int]) -> None:
    busy = [right - left for left, right in pairwise(edges)]
    plot_of(timeline([BusyTimeline(0, edges, {"gemm": busy, "idle": [0] * len(busy)})]))


# ---------------------------------------------------------------------- kernels


def kernel(**values: Any) -> KernelRow:
    fields = {field.name: None for field in dataclasses.fields(KernelRow)}
    row = {**fields, "kernel": "ampere_sgemm", "operator": "aten::mm", "calls": 2, "total_ms": 1.0,
           "mean_us": 500.0, "operators": (), **values}  # fmt: skip
    return KernelRow(**row)


def dots_of(rows: list[KernelRow]) -> list[tuple[int, KernelRow]]:
    return [(number, row) for number, row in enumerate(rows, 1) if has_dot(row)]


def test_a_kernel_is_a_dot_and_what_lacks_flops_or_bytes_is_none() -> None:
    rows = [
        kernel(arithmetic_intensity=100.0, tflops_per_s=300.0, total_ms=4.0),
        kernel(arithmetic_intensity=None, tflops_per_s=300.0),
        kernel(arithmetic_intensity=0.0, tflops_per_s=0.0),
        kernel(arithmetic_intensity=2.0, tflops_per_s=1.0),
    ]
    dots = dots_of(rows)
    assert [1, 4] == [number for number, _ in dots]
    plot = plot_of(roofline_plot(dots, H100))
    circles = plot.every("circle")
    radii = [float(one.attributes["r"] or "") for one in circles]
    assert radii[0] == 20
    assert radii[0] > radii[1]
    assert [4.0, 1.0] == [number_of(g) for g in plot.every("g") if g.every("circle")]


def test_a_roof_bends_where_bandwidth_and_peak_meet() -> None:
    (dot,) = dots_of([kernel(arithmetic_intensity=100.0, tflops_per_s=300.0)])
    plot = plot_of(roofline_plot([dot], H100))
    slope, *levels = plot.every("line", class_="roof")
    ends = [(slope.attributes["x2"], slope.attributes["y2"])]
    starts = [(level.attributes["x1"], level.attributes["y1"]) for level in levels]
    assert ends[0] in starts
    assert len(levels) == 2  # bf16 and fp16 have one
    assert "bf16, fp16 989 TFLOP/s" in plot.text


def test_a_chip_that_is_not_known_has_no_roof() -> None:
    (dot,) = dots_of([kernel(arithmetic_intensity=100.0, tflops_per_s=300.0)])
    plot = plot_of(roofline_plot([dot], None))
    assert [] == plot.every("line", class_="roof")
    assert "without known peaks" in (plot.attributes["aria-label"] or "")


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.floats(1e-6, 1e9), st.floats(1e-9, 1e6), st.floats(0, 1e6)), min_size=1),
    st.sampled_from([None, H100, ChipRoof("x", 1e9, {})]),
)
def test_any_kernels_can_be_drawn(
    rows: list[tuple[float, float, float]], roof: ChipRoof | None
) -> None:
    dots = dots_of([kernel(arithmetic_intensity=a, tflops_per_s=b, total_ms=c) for a, b, c in rows])
    plot_of(roofline_plot(dots, roof))


# ------------------------------------------------------------------------- trees


def node(name: str, depth: int, own: float, total: float, count: int = 1) -> TreeRow:
    fields: dict[str, Any] = {field.name: None for field in dataclasses.fields(TreeRow)}
    fields |= {"name": name, "path": [name], "depth": depth, "count": count, "calls": count}
    fields |= {"self_cpu_ms": own, "cpu_ms": total, "self_cuda_ms": own, "cuda_ms": total}
    return TreeRow(**fields)


TREE = [
    node("Net", 1, 1.0, 100.0),
    node("Block", 2, 90.0, 90.0, count=12),
    node("Head", 2, 8.8, 8.8),
    *(node(f"tiny{n}", 2, 0.05, 0.05) for n in range(4)),
]


def test_small_parts_are_one_with_their_sum() -> None:
    plot = plot_of(icicle("icicle-module", tree_of(TREE, on_device=True), "Tree", "device time"))
    titles = [g.one("title").text for g in plot.every("g")]
    assert "Block ×12: 90 ms, 90.0 %" in titles
    assert "4 smaller parts: 200 us, 0.2 %" in titles
    assert "Net: 100 ms (1 ms itself), 100 %" in titles
    assert [100.0, 100.0, 90.0, 8.8, pytest.approx(0.2)] == sorted(marks_of(plot), reverse=True)


def test_a_chain_of_functions_is_one_part() -> None:
    rows = [node("main", 1, 0.0, 10.0), node("run", 2, 0.0, 10.0), node("step", 3, 4.0, 10.0),
            node("forward", 4, 6.0, 6.0)]  # fmt: skip
    plot = plot_of(icicle("i", tree_of(rows, on_device=True, chains=True), "Tree", "time"))
    titles = [g.one("title").text for g in plot.every("g")]
    assert "main > run > step: 10 ms (4 ms itself), 100 %" in titles
    assert len(titles) == 3


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1e3)), max_size=30))
def test_parts_of_one_level_are_never_wider_than_the_whole(items: list[tuple[int, float]]) -> None:
    rows: list[TreeRow] = []
    for depth, own in items:
        deepest = rows[-1].depth + 1 if rows else 1
        rows.append(node("n", min(depth, deepest), own, 0.0))
    totals = [
        dataclasses.replace(
            row, cuda_ms=sum(inner.self_cuda_ms or 0.0 for inner in _below(rows, at))
        )
        for at, row in enumerate(rows)
    ]
    root = tree_of(totals, on_device=True)
    plot = plot_of(icicle("i", root, "Tree", "time"))
    by_level: dict[str, float] = {}
    for rect in plot.every("rect"):
        level = rect.attributes["y"] or ""
        by_level[level] = by_level.get(level, 0.0) + float(rect.attributes["width"] or "")
    assert all(width <= 960.5 for width in by_level.values())


def _below(rows: list[TreeRow], at: int) -> list[TreeRow]:
    found = [rows[at]]
    for row in rows[at + 1 :]:
        if row.depth <= rows[at].depth:
            break
        found.append(row)
    return found


def test_a_very_large_tree_draws_its_largest_parts_alone() -> None:
    rows = [node("top", 1, 0.0, 20_000.0), *(node(f"f{n}", 2, 1.0, 1.0) for n in range(20_000))]
    plot = plot_of(icicle("i", tree_of(rows, on_device=True), "Tree", "time"))
    assert "20000 smaller parts" in plot.text
    assert len(plot.every("rect")) < 10


# ------------------------------------------------------------------------ memory


def point(at_ms: float, **sizes: int) -> MemoryPoint:
    names = ("parameters", "gradients", "optimizer_state", "activations", "temporaries", "unknown",
             "before")  # fmt: skip
    parts = {f"{name}_bytes": sizes.get(name, 0) for name in names}
    return MemoryPoint("cuda:0", at_ms, sum(parts.values()), **parts)


@pytest.mark.parametrize("before", [-50, 0, 10, 5000])
def test_the_top_of_the_stack_is_the_level_whatever_was_live_before(before: int) -> None:
    points = [point(0, before=before, activations=100), point(1, before=before, activations=300)]
    peak = PeakMemory("cuda:0", 300, 1.0, [])
    page = read_page(memory_plot(points, peak))
    plot = page.one("svg")
    assert_drawn_well(plot)
    assert [100 + before, 300 + before, 300] == marks_of(plot)
    values = {li.one("span", class_="t-what").text: number_of(li.one("span", class_="t-num"))
              for li in page.every("li")}  # fmt: skip
    assert values["activations"] == 300
    assert ("live before" in values) == bool(before)
    assert ("the axis begins" in (plot.attributes["aria-label"] or "")) == (before == 5000)


# ----------------------------------------------------------------------- changes


def test_what_became_slower_is_right_and_what_became_faster_left() -> None:
    plot = plot_of(change_bars("c", [("a", 1.0, 3.0), ("b", 2.0, 1.0), ("c", 1.0, 1.0)], "time"))
    assert [2.0, -1.0] == marks_of(plot)
    slower, faster = plot.every("rect")
    assert ("up", "down") == (slower.attributes["class"], faster.attributes["class"])
    assert float(slower.attributes["width"] or "") == 2 * float(faster.attributes["width"] or "")


# ------------------------------------------------------------------------ tables


def test_a_cell_has_the_exact_value_and_an_unknown_one_is_null() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "time_ms": 1 / 3, "flops": None},
        {"name": "b", "time_ms": None, "flops": None},
    ]
    table = read_page(data_table("t", rows, ("name", "time_ms", "flops")))
    cells = table.every("td", class_="number")
    assert ["0.3333333333333333", "null"] == [cell.attributes["data-value"] for cell in cells]
    assert ["333 us", "–"] == [cell.text for cell in cells]
    assert [1 / 3, None] == [json.loads(cell.attributes["data-value"] or "") for cell in cells]
