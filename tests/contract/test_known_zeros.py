"""What is known to be 0 is 0, and what has no number says why: in one trace, and in many as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.command_line import document
from support.trace_builder import TraceBuilder

if TYPE_CHECKING:
    from support.command_line import Say


def rank(number: int, *, lost: bool = False, memory: bool = True) -> TraceBuilder:
    """A product, a sum, a copy; ``lost``: and a kernel without an operator, of unknown work."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    b.metadata("distributedInfo", {"backend": "nccl", "rank": number, "world_size": 2})
    with b.annotation("forward"), b.module("nn.Module: Net_0"):
        with b.op("aten::mm", [[4, 5], [5, 6]]):
            b.launch("gemm", 10 + number)
        with b.op("aten::add", [[4, 6], [4, 6], []]):
            b.launch("void at::native::vectorized_elementwise_kernel<4>", 3)
            if memory:
                b.memory(96)
    b.memcpy("DtoH", 96)
    if lost:
        b.kernel_without_runtime("my_gemm", 4)
    return b


@pytest.mark.parametrize("by", ["name", "shape", "module", "stack", "op", "op,kernel,shape"])
def test_flops_are_null_only_where_they_are_unknown(say: Say, tmp_path: Path, by: str) -> None:
    """Rows and totals, of one trace and merged; a null has a note that says why."""
    command = "kernels" if "op" in by else "ops"
    name = "kernel" if command == "kernels" else "name"
    for lost in (False, True):
        for number in (0, 1):
            rank(number, lost=lost and bool(number)).save(tmp_path / f"rank{number}.json")
        each = document(say, command, tmp_path, "--by", by)
        merged = document(say, command, tmp_path, "--by", by, "--merge")
        assert merged["total"]["flops"] == each["total"]["flops"] == (None if lost else 480)
        assert ("no FLOPs total: " in str(merged["notes"])) is lost
        for shown in (each, merged):
            nulls = [row for row in shown["rows"] if row["flops"] is None]
            assert lost or not nulls
            assert {"my_gemm", "(no operator)"} >= {row[name] for row in nulls}
        assert 480 == sum(row["flops"] or 0 for row in merged["rows"])


def test_merged_tables_say_what_a_part_of_the_traces_lacks(say: Say, tmp_path: Path) -> None:
    """A metric has a reason for each trace, a column without a total names the traces."""
    for number in (0, 1):
        rank(number, memory=not number, lost=True).save(tmp_path / f"rank{number}.json")
    note = "rank 1: no total of self_cuda_bytes: not recorded"
    assert note in document(say, "ops", tmp_path, "--merge")["notes"]
    rows = document(say, "summary", tmp_path, "--merge")["rows"]
    assert [] == [row["metric"] for row in rows if (row["value"] is None) != bool(row["reason"])]
    (gemm, *_) = document(say, "kernels", tmp_path, "--merge")["rows"]
    assert [{"operator": "aten::mm", "calls": 2}] == gemm["operators"]
    assert set(gemm) - {"traces", "min_ms", "max_ms", "max_rank", "share"} == set(
        document(say, "kernels", tmp_path)["rows"][0]
    ) - {"rank"}
