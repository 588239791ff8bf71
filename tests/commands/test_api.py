"""The Python API on stored traces: what notebooks and scripts use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.one_product import builder_of
from support.sessions import ADD, run
from support.trace_builder import TraceBuilder

import pytest_torchprof
from pytest_torchprof import NotMeasured, SettingsError, Trace, diff, load_ranks
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.work.devices import Device

#: 1 GB/s.
SLOW = Device("Slow", {"fp32": 1e12}, 1e9)
DOCS = Path(__file__).parents[2] / "docs" / "traces.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return builder_of().save(tmp_path / "step.pt.trace.json.gz")


def test_the_example_of_the_docs_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder_of(3).save(path.with_name("before.pt.trace.json.gz"))
    monkeypatch.chdir(path.parent)
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["trace"], Trace)


def test_rows_are_a_list_a_table_and_dictionaries(path: Path) -> None:
    rows = Trace.load(path).kernels()
    assert "nvjet_tst_128x64" == rows[0].kernel
    assert rows.fields == tuple(rows.to_dicts()[0])
    assert str(rows).startswith("device")
    html = rows._repr_html_()
    assert html.startswith("<table>")
    assert "nvjet_tst_128x64" in html
    assert pytest.approx(0.018) == rows.total()["total_ms"]


def test_a_path_may_be_text(path: Path) -> None:
    assert Trace.load(str(path)).metrics() == Trace.load(path).metrics()


@pytest.mark.parametrize("method", ["ops", "kernels"])
def test_an_unknown_grouping_is_an_error_that_lists_the_known(path: Path, method: str) -> None:
    with pytest.raises(ValueError, match="by must be one of name, "):
        getattr(Trace.load(path), method)(by="colour")


def test_kernels_by_several_words_have_more_fields(path: Path) -> None:
    rows = Trace.load(path).kernels(by="op,kernel,shape")
    assert rows.fields == tuple(rows.to_dicts()[0])
    assert {"operator", "kernel", "shapes", "ms_to_gain", "waves"} <= {*rows.columns}
    assert {"kernel_short", "operators"} <= {*rows.fields} - {*rows.columns}
    assert "roofline" in str(rows)
    assert rows.total()["ms_to_gain"] == pytest.approx(sum(row.ms_to_gain or 0 for row in rows))
    assert "ms_to_gain" not in Trace.load(path).kernels().total()


def test_other_unknown_words_are_errors_too(path: Path) -> None:
    trace = Trace.load(path)
    with pytest.raises(ValueError, match="metric must be one of self_cpu_ms, self_cuda_ms"):
        trace.stacks("flops")
    with pytest.raises(ValueError, match="by must be one of op, kernel"):
        diff(trace, trace, by="colour")  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="missing"):
        Trace.load("missing.json")


def test_ranks_are_traces_by_number(tmp_path: Path) -> None:
    for rank in (3, 1):
        builder_of(rank, rank=rank).save(tmp_path / f"{rank}.json")
    ranks = load_ranks([tmp_path])
    assert [1, 3] == list(ranks) == list(load_ranks(str(tmp_path)))
    assert [tmp_path / "1.json", tmp_path / "3.json"] == [trace.path for trace in ranks.values()]


def test_a_trace_of_a_live_test_has_the_same_metrics_as_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-traces=kept", "--torchprof-traces-of=all")
    (file,) = (pytester.path / "kept").iterdir()
    stored = Trace.load(file).metrics()
    live = {name: metric["value"] for name, metric in ran.tests["test_add"]["metrics"].items()}
    assert live == {
        name: value if isinstance(value, int | float) else None for name, value in stored.items()
    }
    assert 1 == live["ops"]


def test_what_a_device_would_do_is_estimated_for_any_chip(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.op("aten::mul", [[1000, 1000], [1000, 1000]], ["float", "float"]):
        b.memory(4_000_000, "cpu")
    trace = Trace.load(b.save(tmp_path / "host.pt.trace.json"))
    here, there = trace.estimates("H100 SXM"), trace.estimates(SLOW)
    assert ["host_reads", "launches", "bound_ms", "estimated_cuda_bytes"] == list(here)
    assert (0, 1, 4_000_256) == (
        here["host_reads"],
        here["launches"],
        here["estimated_cuda_bytes"],
    )
    assert pytest.approx(12_000_000 / 3352e9 * 1e3) == here["bound_ms"]
    assert pytest.approx(12.0) == there["bound_ms"]
    (row,) = trace.bound("H100 SXM")
    assert ("H100 SXM", "aten::mul", here["bound_ms"]) == (row.device, row.operator, row.bound_ms)


def test_the_peak_on_a_device_is_not_estimated(tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.op("aten::empty", [[1000]], ["float"]):
        b.memory(4096, "cuda")
        b.memory(1 << 20, "cpu")
    trace = Trace.load(b.save(tmp_path / "device.pt.trace.json"))
    assert 4096 == trace.estimates()["estimated_cuda_bytes"] == trace.metrics()["peak_cuda_bytes"]


def test_without_a_chip_only_the_bound_is_unknown(path: Path) -> None:
    estimates = Trace.load(path).estimates()
    assert {name for name, value in estimates.items() if isinstance(value, NotMeasured)} == {
        "bound_ms"
    }
    with pytest.raises(SettingsError, match="did you mean"):
        Trace.load(path).bound("H100 SMX")


def test_the_package_is_light_until_it_is_used() -> None:
    code = (
        "import sys, pytest_torchprof\n"
        "print(sorted({'numpy', 'msgspec', 'torch', 'pytest'} & sys.modules.keys()))\n"
        "pytest_torchprof.Trace\n"
        "print(sorted({'numpy', 'torch', 'pytest'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]\n['numpy']\n" == ran.stdout


def test_names_complete_and_a_trace_has_a_repr(path: Path) -> None:
    assert {"Trace", "augment", "diff", "load_ranks"} <= set(dir(pytest_torchprof))
    assert "events>" in repr(Trace.load(path))


def test_a_name_that_is_not_there_is_the_usual_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pytest_torchprof.nonsense  # noqa: B018 - that is what is tested


def test_a_metric_without_a_value_says_why_in_words(path: Path) -> None:
    missing = Trace.load(path).metrics()["wall_ms"]
    assert isinstance(missing, pytest_torchprof.NotMeasured)
    assert (
        missing.reason == {row.metric: row.reason for row in Trace.load(path).summary()}["wall_ms"]
    )
    assert json.loads(json.dumps(missing.reason)) in repr(missing)


def test_a_rule_that_was_not_checked_says_why_in_words(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(20):
        builder.op("aten::to")
        builder.op("aten::_to_copy")
        builder.op("aten::copy_")
    found = Trace.load(builder.save(tmp_path / "no_shapes.json")).lint()
    why = "recorded without shapes (record_shapes=True records them)"
    assert why == found.unchecked["repeated-cast"]
    assert () == found.findings()
