"""`torchprof report` of traces: every number of the page is the command's, and nothing escapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.html_pages import Element, read_page
from support.real_traces import CORPUS
from support.small_traces import build
from support.trace_builder import TraceBuilder
from support.trace_pages import (
    assert_drawn_well,
    marks_of,
    metrics_of,
    number_of,
    plots_of,
    table_of,
    tables_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

SGEMM = "ampere_sgemm_128x64_tn"


def training_step(path: Path) -> Path:
    """Steps on an H100 with stacks, memory, products, copies, and a wait."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for step in range(6):
        with b.annotation(f"ProfilerStep#{step}"), b.module("nn.Module: Net_0"):
            block = b.memory(4096 * (step + 1))
            for layer in range(3):
                with (
                    b.module(f"nn.Module: Linear_{layer}"),
                    b.op("aten::mm", [[512, 1024], [1024, 2048]], types=["c10::BFloat16"] * 2),
                ):
                    b.launch("nvjet_hsh_256x128_64x4_1x2_h_bz_NNT", device_us=30 + 10 * layer)
            with b.op("aten::add", [[512, 2048], [512, 2048]]):
                b.launch("void at::native::vectorized_elementwise_kernel<4>", device_us=8)
            with b.op("aten::item"), b.op("aten::_local_scalar_dense"):
                b.memcpy("DtoH", 4)
                b.sync("cudaStreamSynchronize")
            b.free(block)
    return b.save(path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training_step(tmp_path / "step.pt.trace.json.gz")


def page_of(say: Say, tmp_path: Path, *traces: Path) -> Element:
    target = tmp_path / "page.html"
    assert (0, "", "") == say("report", *traces, "-o", target)
    return read_page(target.read_text("utf-8"))


def answer(say: Say, *words: str | Path) -> Any:
    status, out, _ = say(*words, "--format", "json")
    assert status == 0
    return json.loads(out)


def assert_same(rows: list[dict[str, Any]], page: Element, name: str, limit: int) -> None:
    """The table has the first rows with the same numbers."""
    if not rows:
        assert name not in tables_of(page)
        return
    shown = table_of(page, name)
    assert min(len(rows), limit) == len(shown)
    for row, cells in zip(rows, shown, strict=False):
        assert cells
        assert {field: row[field] for field in cells} == cells


def assert_numbers(say: Say, tmp_path: Path, trace: Path) -> None:
    """Each number of the page is that of a command's JSON."""
    page = page_of(say, tmp_path, trace)
    summary, idle = answer(say, "summary", trace), answer(say, "idle", trace)
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    assert metrics == metrics_of(page)
    for card in page.every("div", class_="t-card"):
        if name := card.attributes.get("data-metric"):
            assert metrics[name] == number_of(card.one("span", class_="t-value"))
    assert_same(summary["breakdown"], page, "breakdown", 999)
    assert_same(idle["rows"], page, "idle", 20)
    kernels = answer(say, "kernels", trace, "--by", "op,kernel")["rows"]
    assert_same(kernels, page, "kernels", 50)
    assert_same(answer(say, "ops", trace)["rows"], page, "operators", 50)
    assert_plots(say, page, trace, summary, kernels)
    assert_findings(page, answer(say, "lint", trace)["findings"])


def assert_plots(say: Say, page: Element, trace: Path, summary: Any, kernels: Any) -> None:
    """The marks, too."""
    for plot in page.every("svg"):
        assert_drawn_well(plot)
    times = sorted(row["time_ms"] for row in summary["breakdown"] if row["time_ms"] is not None)
    bars = [mark for plot in plots_of(page, "breakdown") for mark in marks_of(plot)]
    assert times == sorted(bars)
    causes = [row["time_ms"] for row in summary["idle"]]
    assert sorted(causes) == sorted(m for plot in plots_of(page, "idle") for m in marks_of(plot))
    for plot in plots_of(page, "timeline"):
        paths = [path for path in plot.every("path") if "data-category" in path.attributes]
        drawn = sorted(number_of(path) / 1e6 for path in paths)
        busy = [r["time_ms"] for r in summary["breakdown"] if r["category"] != "idle"]
        assert sorted(ms for ms in busy if ms) == drawn
    dots = [g for plot in plots_of(page, "roofline") for g in plot.every("g") if g.every("circle")]
    under = [r["total_ms"] for r in kernels if r["arithmetic_intensity"] and r["tflops_per_s"]]
    assert sorted(under) == sorted(map(number_of, dots))
    for by in ("module", "stack"):
        tree = answer(say, "ops", trace, "--by", by)["tree"]
        field = "cuda_ms" if any(row["cuda_ms"] for row in tree) else "cpu_ms"
        for plot in plots_of(page, f"icicle-{by}"):
            whole, *parts = marks_of(plot)
            assert sum(row[field] for row in tree if row["depth"] == 1) == pytest.approx(whole)
            merged = [g for g in plot.every("g") if "smaller part" in g.one("title").text]
            known = {row[field] for row in tree}
            assert len(parts) - len(merged) == sum(part in known for part in parts) - sum(
                number_of(g) in known for g in merged
            )
    memory = answer(say, "memory", trace, "--timeline", "--limit", "200")
    for row in memory["rows"]:
        assert_same(row["rows"], page, f"memory-{row['device']}", 30)
    for row, plot in zip(
        [row for row in memory["rows"] if row["at_ms"] is not None],
        plots_of(page, "memory"),
        strict=True,
    ):
        *levels, peak = marks_of(plot)
        assert row["peak_bytes"] == peak
        mine = [p["live_bytes"] for p in memory["timeline"] if p["device"] == row["device"]]
        assert mine == levels


def assert_findings(page: Element, rows: Any) -> None:
    for block in page.every("div", class_="t-finding"):
        mine = [row for row in rows if row["rule"] == block.attributes["data-rule"]]
        known = [row["cost_ms"] for row in mine if row["cost_ms"] is not None]
        gain = number_of(block.one("span", class_="t-gain"))
        assert gain == (pytest.approx(sum(known)) if known else None)
        shown = table_of(block, f"findings-{mine[0]['rule']}")
        for row, cells in zip(mine, shown, strict=False):
            told = {field: value for field, value in cells.items() if field != "bytes"}
            assert {field: row[field] for field in told} == told
    assert {row["rule"] for row in rows} == {
        block.attributes["data-rule"] for block in page.every("div", class_="t-finding")
    }


def test_every_number_of_the_page_is_that_of_a_command(
    say: Say, tmp_path: Path, trace: Path
) -> None:
    assert_numbers(say, tmp_path, trace)


@pytest.mark.thorough
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_so_is_it_for_a_small_trace(say: Say, tmp_path: Path, vendor: str) -> None:
    assert_numbers(say, tmp_path, build(vendor).save(tmp_path / "small.json"))


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json.gz")), ids=lambda path: path.name)
def test_so_is_it_for_real_traces(say: Say, tmp_path: Path, path: Path) -> None:
    assert_numbers(say, tmp_path, path)


def test_all_parts_of_a_full_trace_are_drawn(say: Say, tmp_path: Path, trace: Path) -> None:
    page = page_of(say, tmp_path, trace)
    for name in ("breakdown", "timeline", "idle", "roofline", "icicle-module", "memory"):
        assert plots_of(page, name), name
    (timeline,) = plots_of(page, "timeline")
    assert len(timeline.every("rect", class_="step")) == 6
    assert "BF16" not in (roofline := plots_of(page, "roofline")[0]).text
    assert "bf16, fp16 989 TFLOP/s" in roofline.text
    assert "3.35 TB/s" in roofline.text


def test_a_trace_without_a_device_says_so_and_has_no_zero(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder(None)
    with b.op("aten::mm", dur_us=10):
        pass
    trace = b.save(tmp_path / "cpu.json")
    page = page_of(say, tmp_path, trace)
    text = {section.attributes["id"]: section.text for section in page.every("section")}
    assert "the trace has no device events" in text["time"]
    assert "idle time is not measured" in text["idle"]
    assert "no device events in this trace" in text["kernels"]
    assert answer(say, "memory", trace)["notes"][0] in text["memory"]
    assert not plots_of(page, "timeline")
    assert metrics_of(page)["kernels"] is None
    assert "kernels" not in text["overview"]


def test_a_trace_without_shapes_stacks_and_memory_says_what_records_them(
    say: Say, tmp_path: Path
) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for step in range(2):
        with b.annotation(f"ProfilerStep#{step}"), b.op("aten::mm"):
            b.launch(SGEMM, 20)
    page = page_of(say, tmp_path, b.save(tmp_path / "bare.json"))
    text = {section.attributes["id"]: section.text for section in page.every("section")}
    assert "1 without FLOPs" in text["kernels"]
    assert "recorded without modules (with_stack=True records them)" in text["operators"]
    assert "nothing was allocated" in text["memory"]
    assert not plots_of(page, "roofline")


def test_an_empty_trace_has_a_page(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    status, _, err = say("report", path, "-o", tmp_path / "page.html")
    if status:
        assert err.count("\n") == 1
    else:
        read_page((tmp_path / "page.html").read_text("utf-8"))


def test_several_traces_have_sections_of_their_own(say: Say, tmp_path: Path, trace: Path) -> None:
    other = training_step(tmp_path / "other.json")
    page = page_of(say, tmp_path, trace, other)
    anchors = [section.attributes["id"] for section in page.every("section")]
    assert len(set(anchors)) == len(anchors) == 16
    assert len(plots_of(page, "timeline")) == 2
    assert "other.json: Kernels" in page.text


def test_a_part_of_a_trace_has_no_idle_time(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(2):
        with b.op("aten::mm"):
            b.launch(SGEMM, 20)
            b.launch(SGEMM, 20, record_kernel=False)
    with b.op("aten::mm"):
        b.launch(SGEMM, 20)
    page = page_of(say, tmp_path, b.save(tmp_path / "part.json"))
    (timeline,) = plots_of(page, "timeline")
    assert [] == timeline.every("rect", class_="c-idle")
    assert [] == plots_of(page, "idle")
    text = {section.attributes["id"]: section.text for section in page.every("section")}
    assert "device times are of a part" in text["time"]
    assert "idle time is not measured" in text["idle"]
    assert "device busy" not in text["overview"]


@pytest.mark.thorough
def test_a_folder_of_many_ranks_says_what_it_leaves_out(say: Say, tmp_path: Path) -> None:
    (folder := tmp_path / "job").mkdir()
    for rank in range(10):
        b = TraceBuilder("NVIDIA H100 80GB HBM3")
        b.metadata("distributedInfo", {"rank": rank, "world_size": 10, "backend": "nccl"})
        with b.op("aten::mm"):
            b.launch(SGEMM, 20)
        b.save(folder / f"rank{rank}.json")
    page = page_of(say, tmp_path, folder)
    assert "2 more ranks left out" in page.text
    assert len(page.every("section")) == 8 * 8
    assert "rank 7: Kernels" in page.text


def test_with_assets_the_page_has_no_styles_of_its_own(
    say: Say, tmp_path: Path, trace: Path
) -> None:
    target, folder = tmp_path / "page.html", tmp_path / "look"
    assert (0, "", "") == say("report", trace, "-o", target, "--assets", folder)
    assert [] == read_page(target.read_text("utf-8")).every("style")
    assert ".plot" in (folder / "torchprof.css").read_text("utf-8")


def test_an_existing_file_of_another_kind_is_not_replaced(
    say: Say, tmp_path: Path, trace: Path
) -> None:
    target = tmp_path / "notes.html"
    target.write_text("mine")
    status, _, err = say("report", trace, "-o", target)
    assert (2, 1, "mine") == (status, err.count("\n"), target.read_text())
    status, _, err = say("report", trace, "-o", trace)
    assert (2, 1) == (status, err.count("\n"))


def test_a_chip_can_be_described(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("New Chip")
    with b.op("aten::mm", [[512, 1024], [1024, 2048]]):
        b.launch(SGEMM, 20)
    trace, target = b.save(tmp_path / "trace.json"), tmp_path / "page.html"
    peaks = tmp_path / "chips.json"
    chip = {"name": "New Chip", "bandwidth": "2 TB/s", "peaks": {"fp32": "100 TFLOP/s"}}
    peaks.write_text(json.dumps(chip))
    assert say("report", trace, "-o", target)[0] == 0
    assert "no peaks are known for New Chip" in target.read_text("utf-8")
    status, _, err = say("report", trace, "-o", target, "--device-peaks", peaks)
    assert (0, "") == (status, err)
    assert "fp32 100 TFLOP/s" in target.read_text("utf-8")
