"""`torchprof bound`: what a chip would at least have to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.one_product import builder_of
from support.trace_builder import TraceBuilder

if TYPE_CHECKING:
    from support.command_line import Say

FIELDS = ["operator", "calls", "flops", "bytes", "bound_ms", "limit", "share"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return builder_of(device=None).save(tmp_path / "cpu.pt.trace.json.gz")


def test_a_row_has_the_work_and_what_limits_it(say: Say, trace: Path) -> None:
    status, out, _ = say("bound", trace, "--device", "T4", "--format", "json")
    document = json.loads(out)
    assert (0, "torchprof-bound/1") == (status, document["schema"])
    product, addition = document["rows"]
    assert FIELDS == list(product)
    assert ("aten::mm", 1, 2 * 256 * 512 * 1024) == tuple(product[f] for f in FIELDS[:3])
    moved = 2 * (256 * 512 + 512 * 1024 + 256 * 1024)
    assert moved == product["bytes"]
    assert moved / 320e9 * 1e3 == pytest.approx(product["bound_ms"], rel=0.01)
    assert ("memory", "launch") == (product["limit"], addition["limit"])
    assert 1 == pytest.approx(product["share"] + addition["share"])


def test_several_chips_are_compared(say: Say, trace: Path) -> None:
    chips = ("--device", "H100 SXM", "--device", "t4")
    rows = json.loads(say("bound", trace, *chips, "--format", "json")[1])["rows"]
    assert ["H100 SXM", "H100 SXM", "T4", "T4"] == [row["device"] for row in rows]
    fast, slow = (row["bound_ms"] for row in rows if row["operator"] == "aten::mm")
    assert fast < slow
    assert "device" in say("bound", trace, *chips)[1]


def test_it_says_what_it_is(say: Say, trace: Path) -> None:
    out = say("bound", trace, "--device", "T4")[1]
    assert "a lower bound, no prediction" in out
    assert "T4: 320 GB/s" in out


def test_a_trace_of_a_known_device_needs_no_other(say: Say, tmp_path: Path) -> None:
    gpu = builder_of().save(tmp_path / "gpu.pt.trace.json.gz")
    status, out, _ = say("bound", gpu)
    assert 0 == status
    assert "H100 SXM: 3.35 TB/s" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no chip to estimate for; add --device CHIP"),
        (("--device", "H100"), "'H100' is one of H100 SXM, H100 PCIe, H100 NVL; name one of them"),
        (("--device", "nothing"), "no chip 'nothing' is known"),
    ],
)
def test_it_needs_one_chip_that_is_known(
    say: Say, trace: Path, arguments: tuple[str, ...], says: str
) -> None:
    status, out, err = say("bound", trace, *arguments)
    assert (2, "") == (status, out)
    assert says in err
    assert 1 == len(err.splitlines())


def test_a_report_leads_to_the_traces_of_its_tests(say: Say, trace: Path, tmp_path: Path) -> None:
    test: dict[str, Any] = {
        "nodeid": "test_a.py::test_a",
        "outcome": "passed",
        "status": "ok",
        "reason": None,
    }
    test |= {"metrics": {}, "findings": [], "trace": trace.name}
    report = tmp_path / "report.json"
    document: dict[str, Any] = {"schema": "torchprof-report/1", "environment": {}, "tests": [test]}
    report.write_text(json.dumps(document), "utf-8")
    status, out, _ = say("bound", report, "--device", "T4", "--format", "json")
    assert (0, [str(trace)]) == (status, json.loads(out)["traces"])
    document["tests"] = [{**test, "trace": None}]
    report.write_text(json.dumps(document), "utf-8")
    status, _, err = say("bound", report, "--device", "T4")
    assert 2 == status
    assert "none of its tests has a trace" in err


def test_without_shapes_it_says_that_only_launches_count(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.op("aten::relu"):
        pass
    out = say("bound", b.save(tmp_path / "bare.pt.trace.json"), "--device", "T4")[1]
    assert "only a kernel's least time for each operator: recorded without shapes" in out
