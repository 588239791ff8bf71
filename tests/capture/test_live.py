"""Live captures: the same as the exported file, the same every time, and what torch says."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec.structs import replace
from support.live import captured, captured_file
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchprof.analysis.operators import kernel_totals, op_rows
from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.profiler import Capture
from pytest_torchprof.core.errors import CaptureError
from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import MissingValue, Sample, Value
from pytest_torchprof.trace.facts import VERSION, Facts, Quantity
from pytest_torchprof.trace.names import REGION, Kind
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.verdict.metrics import METRICS, measure_all

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

Block = Callable[[], Any]


def train(model: nn.Module, *inputs: torch.Tensor) -> Block:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(*inputs).float().square().mean().backward()
        optimizer.step()

    return step


class Attention(nn.Module):
    """A transformer block spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).view(2, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(2, 8, 32)
        return self.out(mixed)


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x).relu()
        x = x + self.norm(self.first(x)).relu()
        return self.head(x.mean((2, 3)))


class Seq2Seq(nn.Module):
    """A loop of matrix products, as of cells that are not fused."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(9, 16), nn.Linear(32, 16), nn.Linear(16, 9)

    def forward(self, tokens: torch.Tensor) -> Any:
        state = torch.zeros(tokens.shape[0], 16)
        for at in range(tokens.shape[1]):
            state = self.cell(torch.cat([self.embed(tokens[:, at]), state], 1)).tanh()
        return self.head(state)


@pytest.fixture(scope="module")
def steps() -> dict[str, Block]:
    torch.manual_seed(0)
    blocks = {
        "attention": train(Attention(), torch.randn(2, 8, 32)),
        "convolution": train(Residual(), torch.randn(2, 3, 16, 16)),
        "sequence": train(Seq2Seq(), torch.randint(9, (3, 5))),
    }
    for block in blocks.values():
        block()
        block()
    return blocks


STEPS = ["attention", "convolution", "sequence"]


def exact(values: dict[str, Value]) -> dict[str, Value]:
    return {k: v for k, v in values.items() if METRICS[k].klass == "exact"}


# ------------------------------------------------------------------------------------- captures


@pytest.mark.parametrize("name", STEPS)
def test_the_exported_file_says_the_same(
    name: str, steps: dict[str, Block], tmp_path: Path
) -> None:
    facts = Facts(
        wall_ms=Quantity.of(Sample.of([2.5, 3.5])),
        cpu_ms=Quantity.of(because("no_rounds", "no timed rounds (--torchprof-rounds=0)")),
        graph_breaks=0,
    )
    trace, path = captured_file(steps[name], tmp_path, facts)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for again in (read_trace(path), read_trace(packed)):
        assert measure_all(again) == measure_all(trace)
        assert again.facts == trace.facts == replace(facts, version=VERSION)
        assert op_rows(again) == op_rows(trace)
        assert kernel_totals(again) == kernel_totals(trace) == {}
        view, known = (t.within(op="aten::mm") for t in (again, trace))
        assert measure_all(view) == measure_all(known)


@pytest.mark.parametrize("name", STEPS)
def test_two_captures_of_one_payload_are_identical(
    name: str, steps: dict[str, Block], tmp_path: Path
) -> None:
    captured(steps[name], tmp_path)
    first, second = (measure_all(captured(steps[name], tmp_path)) for _ in range(2))
    assert exact(first) == exact(second)
    measured = {k for k, v in exact(first).items() if not isinstance(v, MissingValue)}
    assert {"flops", "ops", "peak_cpu_bytes", "allocated_cpu_bytes"} <= measured


@pytest.mark.parametrize("name", STEPS)
def test_flops_are_those_of_flop_counter_mode(
    name: str, steps: dict[str, Block], tmp_path: Path
) -> None:
    counter = FlopCounterMode(display=False)
    with counter:
        steps[name]()
    values = measure_all(captured(steps[name], tmp_path))
    assert values["flops"] == counter.get_total_flops() > 0


def test_nothing_in_the_block_is_a_true_zero(tmp_path: Path) -> None:
    values = measure_all(captured(lambda: None, tmp_path))
    names = "self_cpu_ms flops ops peak_cpu_bytes allocated_cpu_bytes leaked_cpu_bytes"
    assert {name: values[name] for name in names.split()} == dict.fromkeys(names.split(), 0)


def test_a_block_whose_session_somebody_ended_is_a_failed_capture(tmp_path: Path) -> None:
    capture = Capture()
    capture.start()
    capture._profiler.stop()
    with pytest.raises(CaptureError):
        capture.stop(tmp_path, Facts()).events()
    assert captured(lambda: torch.ones(1), tmp_path).region


def test_a_session_that_lost_the_region_is_a_failed_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_torchprof.capture import profiler as room

    monkeypatch.setattr(room, "REGION", "of another name")
    with pytest.raises(CaptureError, match="nothing recorded"):
        captured(lambda: torch.ones(1), tmp_path)


# ----------------------------------------------------------------------------- what torch says


def torch_says(block: Block, folder: Path) -> tuple[Any, Events]:
    """A session of torch's own around a region like ours: its averages, and its file."""
    with (
        profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True
        ) as session,
        record_function(REGION),
    ):
        block()
    session.export_chrome_trace(str(folder / "trace.json"))
    return session, read_trace(folder / "trace.json")


def repetitions(trace: Events) -> Counter[str]:
    """Operators that only call another form of themselves: torch counts the two as one."""
    children = Counter(trace.parent.tolist())
    return Counter(
        trace.names[trace.name[i]]
        for i in range(len(trace))
        if (above := int(trace.parent[i])) >= 0
        and children[above] == 1
        and trace.name[i] == trace.name[above]
    )


@pytest.mark.parametrize("name", STEPS)
def test_operators_are_those_of_key_averages(
    name: str, steps: dict[str, Block], tmp_path: Path
) -> None:
    session, trace = torch_says(steps[name], tmp_path)
    averages = {row.key: row for row in session.key_averages()}
    region = averages.pop(REGION)
    rows, repeated = op_rows(trace), repetitions(trace)
    assert {key: row.count + repeated[key] for key, row in averages.items()} == {
        key: row.calls for key, row in rows.items() if row.calls
    }
    for key, row in averages.items():
        assert rows[key].self_cpu_ns / 1000 == pytest.approx(
            row.self_cpu_time_total, rel=0.02, abs=2
        ), key
    total = sum(row.self_cpu_time_total for row in averages.values()) / 1000
    values = measure_all(trace)
    assert values["self_cpu_ms"] == pytest.approx(total, rel=0.02)
    assert region.cpu_time_total / 1000 > total
    annotations = int((trace.selection & trace.is_kind(Kind.ANNOTATION)).sum())
    calls = sum(row.count for row in averages.values()) + repeated.total()
    assert values["dispatches"] == calls - annotations


def test_ops_are_the_operators_of_the_region(steps: dict[str, Block], tmp_path: Path) -> None:
    for block in steps.values():
        trace, path = captured_file(block, tmp_path)
        events = json.loads(path.read_bytes(), parse_float=Decimal)["traceEvents"]
        (region,) = (e for e in events if e["name"] == REGION)
        start, end = region["ts"], region["ts"] + region["dur"]
        inside = [e for e in events if e.get("cat") == "cpu_op" and start <= e["ts"] < end]
        assert measure_all(trace)["dispatches"] == len(inside) > 0
        assert len(inside) == sum(e.get("cat") == "cpu_op" for e in events)


@pytest.mark.parametrize(
    ("loader", "measured"),
    [
        ("_MultiProcessingDataLoaderIter.__next__", False),
        ("_SingleProcessDataLoaderIter.__next__", True),
    ],
)
def test_a_peak_that_depends_on_prefetching_workers_is_not_measured(
    tmp_path: Path, loader: str, measured: bool
) -> None:
    def block() -> None:
        with record_function(f"enumerate(DataLoader)#{loader}"):
            batch = torch.ones(64)
        batch + 1

    values = measure_all(captured(block, tmp_path))
    assert measured == (not isinstance(values["peak_cpu_bytes"], MissingValue))
    assert values["allocated_cpu_bytes"] == 524  # two tensors, and the scalars


@pytest.mark.skipif(real_torch().trace_only is None, reason="this torch has no such choice")
def test_a_session_that_is_only_exported_writes_what_any_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = train(Residual(), torch.randn(2, 3, 8, 8))
    captured(step, tmp_path), captured(step, tmp_path)  # as every further run

    def written() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        document = json.loads(captured_file(step, tmp_path)[1].read_bytes())
        return document, [_undated(event) for event in document.pop("traceEvents")]

    document, events = written()
    monkeypatch.setattr(real_torch(), "trace_only", None)
    other, others = written()
    assert others == events
    assert {"aten::convolution_backward", "[memory]"} <= {event["name"] for event in events}
    assert other.keys() == document.keys()


def _undated(event: dict[str, Any]) -> dict[str, Any]:
    """The event without time, address, and what is numbered through a process."""
    numbered = {"External id", "Sequence number", "Addr", "Total Allocated", "id"}
    args = {k: v for k, v in event.get("args", {}).items() if k not in numbered}
    return {k: v for k, v in event.items() if k not in {"ts", "dur", "id", "args"}} | {"args": args}
