"""An operator has one name, however it was recorded, and itself counts where it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say
from support.trace_builder import TraceBuilder

COMMANDS = ("summary", "ops", "ops --by shape", "ops --by module", "kernels", "lint", "memory",
            "bound", "steps", "idle", "collectives", "ranks")  # fmt: skip


def training(name: Callable[[str], str]) -> TraceBuilder:
    """Three steps whose operators have these names."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for step in range(3):
        with b.annotation(f"ProfilerStep#{step}"), b.annotation("aten::mm.out"):
            with b.module("nn.Module: Net.v2_0"), b.op(name("aten::mm.out"), [[4, 5], [5, 6]]):
                b.launch("gemm", 20)
                b.memory(96)
            with b.op(name("aten::empty.memory_format"), [[]]):
                b.memory(64, device="cpu")
            for at in range(12):
                with b.op(name("aten::select.int"), [[64, 8], [], []], concrete=["", "0", f"{at}"]):
                    b.op(name("aten::as_strided"), [[64, 8]])
                b.op(name("aten::sum.dim_IntList"), [[8]])
            for custom in ("prims::add.x", "torchvision::nms", "mylib::foo.bar", "c10d::send"):
                b.op(name(custom), [[8], [8]])
            b.op("AddmmBackward0")
            b.op("forward")
            b.sync("cudaStreamSynchronize")
    return b


def base(name: str) -> str:
    return name.partition(".")[0]


def test_names_with_overloads_change_no_table(say: Say, tmp_path: Path) -> None:
    """A trace with ``capture_overload_names`` tells the same as one without."""
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    training(base).save(other)
    tables = []
    for name in (base, str):
        training(name).save(path)
        chip = {"bound": ("--device", "H100 SXM")}
        tables.append({
            command: say(*command.split(), path, *chip.get(command, ()), "--format", "json")
            for command in COMMANDS
        })  # fmt: skip
    assert tables[0] == tables[1]
    assert json.loads(tables[1]["summary"][1])["metrics"]["flops"]["value"] == 3 * 240
    changes = json.loads(say("diff", other, path, "--format", "json")[1])["rows"]
    assert {"same"} == {row["change"] for row in changes}


def names(say: Say, path: Path) -> set[str]:
    return {row["name"] for row in json.loads(say("ops", path, "--format", "json")[1])["rows"]}


def test_other_names_with_a_dot_are_kept(say: Say, tmp_path: Path) -> None:
    """Those of annotations always; those of operators where no overloads were recorded."""
    plain = training(lambda name: name if name.startswith("mylib") else base(name))
    assert {"mylib::foo.bar", "aten::mm.out"} <= names(say, plain.save(tmp_path / "a.json"))
    found = names(say, training(str).save(tmp_path / "b.json"))
    assert {"aten::mm.out", "aten::mm", "mylib::foo", "prims::add"} <= found


def test_ops_tells_operators_from_nodes_and_functions(say: Say, tmp_path: Path) -> None:
    """Autograd's nodes and TorchScript's functions are no dispatched operators."""
    notes = json.loads(say("ops", training(base).save(tmp_path / "a.json"), "--format", "json")[1])
    said = "operators (the metric ops; 6 of them are autograd nodes, TorchScript functions"
    assert said in str(notes["notes"])


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ('min_ops(8, op="Optimizer.zero_grad#SGD.zero_grad"), max_ops(8, op="Optimizer.zero*")', 1),
        ('min_ops(8, op="quiet"), max_flops(0, op="quiet"), max_moved_bytes(0, op="quiet")', 1),
        ('min_ops(24, op="busy"), max_ops(16, region="busy")', 1),
        ('max_ops(0, op="quiet")', 0),
        ('min_ops(1, region="quiet")', 0),
    ],
)
def test_an_annotation_given_as_op_counts_itself(
    pytester: pytest.Pytester, limits: str, holds: int
) -> None:
    """As an operator does; ``region=`` counts what runs while it is open."""
    marks = "".join(f"@pytest.mark.{one}\n" for one in limits.replace("), ", ")\n").splitlines())
    pytester.makepyfile(f"""
import pytest, torch
from torch.profiler import record_function

{marks}def test_steps():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        with record_function("quiet"):
            pass
        with record_function("busy"):
            torch.empty(3).neg_()
""")
    result: Any = pytester.runpytest_inprocess("--torchprof", "-q")
    result.assert_outcomes(passed=holds, failed=1 - holds)
