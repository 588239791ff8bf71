"""An operator has one name, however it was recorded, and itself counts where it is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import document
from support.trace_builder import TraceBuilder

if TYPE_CHECKING:
    from support.command_line import Say

COMMANDS = ("summary", "ops", "ops --by=shape", "ops --by=module", "kernels", "lint", "memory",
            "bound --device=H100-SXM", "steps", "idle", "collectives")  # fmt: skip


def training(path: Path, overloads: str) -> Path:
    """A trace of three steps, with overloads of the operators whose names begin like this."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")

    def op(name: str, *given: Any, **options: Any) -> Any:
        return b.op(
            name if name.startswith(overloads) else name.partition(".")[0], *given, **options
        )

    for step in range(3):
        with b.annotation(f"ProfilerStep#{step}"), b.annotation("aten::mm.out"):
            with b.module("nn.Module: Net.v2_0"), op("aten::mm.out", [[4, 5], [5, 6]]):
                b.launch("gemm", 20)
                b.memory(96)
            for at in range(12):
                with op("aten::select.int", [[64, 8], [], []], concrete=["", "0", f"{at}"]):
                    op("aten::as_strided", [[64, 8]])
                op("aten::sum.dim_IntList", [[8]])
            for name in ("prims::add.x", "torchvision::nms", "c10d::send", "mylib::foo.bar"):
                op(name, [[8], [8]])
            b.op("AddmmBackward0")
            b.op("forward")
            b.sync("cudaStreamSynchronize")
    return b.save(path)


def test_names_with_overloads_change_no_table(say: Say, tmp_path: Path) -> None:
    """A trace with ``capture_overload_names`` tells the same as one without.

    Names with a dot that are no overloads are kept, and `ops` tells what was not dispatched.
    """
    each = {}
    for overloads in ("none", "", "mylib"):
        path = training(tmp_path / "a.json", overloads)
        each[overloads] = [document(say, *one.split(), path) for one in COMMANDS]
    assert each["none"] == each[""]
    (plain, marked) = (
        {row["name"]: row["flops"] for row in each[one][1]["rows"]} for one in ("", "mylib")
    )
    assert (720, 0) == (plain["aten::mm"], plain["aten::mm.out"])
    assert {"mylib::foo", "mylib::foo.bar"} == {n for n in (*plain, *marked) if "mylib" in n}
    note = "operators (the metric dispatches; 6 of them are autograd nodes, TorchScript functions"
    assert note in str(each[""][1]["notes"])


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ('min_ops(8, op="Optimizer.zero_grad#SGD.zero_grad") max_ops(8, op="Optimizer.z*")', True),
        ('min_ops(8, op="quiet") max_flops(0, op="quiet") max_moved_bytes(0, op="quiet")', True),
        ('min_ops(16, op="busy") max_ops(8, region="busy")', True),
        ('min_dispatches(24, op="busy") max_dispatches(16, region="busy")', True),
        ('max_ops(0, op="quiet")', False),
        ('min_ops(1, region="quiet")', False),
    ],
)
def test_an_annotation_given_as_op_counts_itself(
    pytester: pytest.Pytester, limits: str, holds: bool
) -> None:
    """As an operator does; ``region=`` counts what runs while it is open."""
    marks = "".join(f"@pytest.mark.{one})\n" for one in limits.split(")")[:-1]).replace(". ", ".")
    pytester.makepyfile(f"""
import pytest, torch
{marks}def test_steps():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.profiler.record_function("quiet"):
            pass
        with torch.profiler.record_function("busy"):
            torch.empty(3).neg_()
""")
    result = pytester.runpytest_inprocess("--torchprof", "-q")
    result.assert_outcomes(passed=int(holds), failed=int(not holds))
