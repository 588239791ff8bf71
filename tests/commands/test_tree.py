"""`torchprof ops --by module` and `--by stack` as trees."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

FIELDS = (
    "name path depth count calls self_cpu_ms cpu_ms self_cuda_ms cuda_ms self_cpu_bytes cpu_bytes "
    "self_cuda_bytes cuda_bytes self_flops flops self_kernels kernels share"
)


def model(layers: int = 3) -> TraceBuilder:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.module("nn.Module: Net_0"):
        for layer in range(layers):
            with b.module(f"nn.Module: Block_{layer}"), b.op("aten::add", [[2], [2]]):
                b.launch("add", 10)
        with b.module("nn.Module: Head_0"), b.op("aten::mm", [[2, 3], [3, 4]]):
            b.launch("gemm", 20)
    b.op("aten::clone", dur_us=500)
    return b


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return model().save(tmp_path / "model.pt.trace.json")


def tree(say: Say, *arguments: str | Path) -> list[dict[str, Any]]:
    status, out, err = say("ops", *arguments, "--format", "json")
    assert (0, "") == (status, err)
    found: list[dict[str, Any]] = json.loads(out)["tree"]
    return found


def test_json_has_the_tree_beside_the_rows(say: Say, trace: Path) -> None:
    rows = tree(say, trace, "--by", "module")
    assert {tuple(FIELDS.split())} == {tuple(row) for row in rows}
    assert [["Net"], ["Net", "Block"], ["Net", "Head"], []] == [row["path"] for row in rows]
    assert [1, 3, 1, 0] == [row["count"] for row in rows]
    assert rows == Trace.load(trace).tree().to_dicts()
    document = json.loads(say("ops", trace, "--by", "module", "--format", "json")[1])
    assert {"Net_0.Block_0", "Net_0.Block_1", "Net_0.Block_2", "Net_0.Head_0", None} == {
        row["module"] for row in document["rows"]
    }
    assert "tree" not in json.loads(say("ops", trace, "--format", "json")[1])


def test_the_table_is_indented_and_adds_up(say: Say, trace: Path) -> None:
    _, out, _ = say("ops", trace, "--by", "module")
    lines = [line.split("  ")[0] or line[:12].rstrip() for line in out.splitlines()[4:8]]
    assert ["Net", "  Block ×3", "  Head", "(no module)"] == lines
    (total,) = [line for line in out.splitlines() if line.startswith("total")]
    assert ["total", "50", "us", "4", "48", "FLOP"] == [*total.split()[:1], *total.split()[3:]]


@pytest.mark.parametrize("by", ["module", "stack"])
def test_depth(say: Say, trace: Path, by: str) -> None:
    assert [1, 1] == [row["depth"] for row in tree(say, trace, "--by", by, "--depth", "1")]
    whole = tree(say, trace, "--by", by)
    for depth in (1, 2, 3):
        rows = tree(say, trace, "--by", by, "--depth", str(depth))
        assert max(row["depth"] for row in rows) <= depth
        assert sum(row["self_kernels"] for row in whole) == sum(row["self_kernels"] for row in rows)


def test_csv_has_the_tree_with_a_depth(say: Say, trace: Path) -> None:
    def read(*options: str) -> list[dict[str, str]]:
        out = say("ops", trace, "--by", "module", "--format", "csv", *options)[1]
        return list(csv.DictReader(io.StringIO(out)))

    assert "path" not in read()[0]
    assert ["Net", "Net > Block", "Net > Head", ""] == [row["path"] for row in read("--depth", "2")]


def test_the_limit_keeps_the_largest_and_what_they_are_in(say: Say, trace: Path) -> None:
    rows = tree(say, trace, "--by", "module", "--limit", "2")
    assert [["Net"], ["Net", "Block"]] == [row["path"] for row in rows]
    out = say("ops", trace, "--by", "module", "--limit", "2")[1]
    assert "… and 2 more rows, with smaller shares: --limit 0 shows all" in out


def test_siblings_are_sorted(say: Say, trace: Path) -> None:
    def names(sort: str) -> list[str]:
        return [row["name"] for row in tree(say, trace, "--by", "module", "--sort", sort)]

    assert ["Net", "Block", "Head", "(no module)"] == names("share")
    assert ["Net", "Head", "Block", "(no module)"] == names("flops")
    assert ["(no module)", "Net", "Block", "Head"] == names("self_cpu_ms")
    status, out, err = say("ops", trace, "--by", "module", "--sort", "colour")
    assert (2, "") == (status, out)
    assert "--sort colour: no such field of a tree; one of depth, count, calls" in err


def test_ranks_have_a_tree_each(say: Say, tmp_path: Path) -> None:
    for rank, layers in ((0, 2), (1, 4)):
        model(layers).save(tmp_path / f"rank{rank}.json")
    rows = tree(say, tmp_path, "--by", "module", "--depth", "2")
    assert [(0, 2), (1, 4)] == [(r["rank"], r["count"]) for r in rows if r["name"] == "Block"]
    status, out, _ = say("ops", tmp_path, "--by", "module")
    assert (0, 2) == (status, out.count("Block ×"))
    assert (
        say("ops", tmp_path, "--by", "module", "--format", "markdown")[1].count("`· Block ×") == 2
    )


def test_a_tree_of_annotations_says_so(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.annotation("forward"):
        b.op("aten::add")
    path = b.save(tmp_path / "plain.json")
    out = say("ops", path, "--by", "module")[1]
    assert "recorded without modules (with_stack=True records them)" in out
    assert "the tree is of annotations" in out
    assert ["forward"] == [row["name"] for row in tree(say, path, "--by", "stack")]


def test_a_part_of_a_trace_has_its_own_tree(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    for step in range(3):
        with b.annotation(f"ProfilerStep#{step}"):
            for _ in range(step + 1):
                with b.module("nn.Module: Block_0"), b.op("aten::add"):
                    b.advance(2)
    path = b.save(tmp_path / "steps.json")
    for step in range(3):
        rows = tree(say, path, "--by", "module", "--step", str(step))
        assert [step + 1] == [row["calls"] for row in rows if row["name"] == "Block"]


@pytest.mark.parametrize("by", ["name", "shape"])
def test_a_depth_of_what_is_no_tree_is_an_error(say: Say, trace: Path, by: str) -> None:
    status, out, err = say("ops", trace, "--by", by, "--depth", "2")
    assert (2, "") == (status, out)
    assert f"--depth 2: --by {by} is no tree; use it with --by module or --by stack" in err


def test_a_depth_is_one_or_more(say: Say, trace: Path) -> None:
    status, _, err = say("ops", trace, "--by", "module", "--depth", "0")
    assert (2, True) == (status, "'0' is not a whole number of 1 or more" in err)
    with pytest.raises(ValueError, match="depth must be 1 or more, not 0"):
        Trace.load(trace).tree(depth=0)
    with pytest.raises(ValueError, match="by must be one of module, stack"):
        Trace.load(trace).tree(by="name")  # type: ignore[arg-type]
