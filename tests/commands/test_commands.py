"""The subcommands of `torchprof` on traces with known answers, and on what is no trace."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.one_product import BF16, H100, builder_of
from support.trace_builder import TraceBuilder

from pytest_torchprof import NotMeasured, Trace
from pytest_torchprof.cli import COMMANDS
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.trace.facts import FACTS_KEY, Facts
from pytest_torchprof.trace.names import REGION

if TYPE_CHECKING:
    from support.command_line import Say


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return builder_of().save(tmp_path / "one.pt.trace.json.gz")


def rows(out: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(out)["rows"]
    return found


def named(out: str, key: str = "name") -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows(out)}


# -------------------------------------------------------------------- each command


def test_summary_says_how_noisy_a_time_is(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    rounds = {"n": 9, "median": 3.21, "low": 3.1, "high": 3.36, "minimum": 3.0}
    b.metadata(FACTS_KEY, {"wall_ms": rounds, "cpu_ms": {"median": 2.0}})
    with b.annotation(REGION):
        pass
    trace = b.save(tmp_path / "noisy.pt.trace.json")
    _, out, _ = say("summary", trace)
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line}
    assert rows["wall_ms"].startswith("3.21 ms ±4 %")
    assert rows["cpu_ms"].startswith("2 ms")
    metrics = json.loads(say("summary", trace, "--format", "json")[1])["metrics"]
    assert (3.21, 9, 3.0) == tuple(metrics["wall_ms"][k] for k in ("value", "n", "min"))
    assert "n" not in metrics["cpu_ms"]


def test_summary_has_the_metrics_of_the_plugin(say: Say, trace: Path) -> None:
    status, out, _ = say("summary", trace, "--format", "json")
    document = json.loads(out)
    metrics = document["metrics"]
    assert (0, "torchprof-summary/1") == (status, document["schema"])
    expected = {"flops": 2 * 256 * 512 * 1024, "ops": 2, "dispatches": 3, "kernels": 3}
    expected["d2h_bytes"] = 1024
    assert expected == {name: metrics[name]["value"] for name in expected}
    assert metrics["self_cuda_ms"]["value"] == pytest.approx(0.018)
    assert "not_measured" == metrics["wall_ms"]["status"]
    assert metrics["wall_ms"]["reason"]


def test_summary_names_in_one_line_what_no_stored_trace_has(say: Say, trace: Path) -> None:
    out = say("summary", trace)[1]
    (line,) = (line for line in out.splitlines() if "only a live test" in line)
    assert line.startswith("only a live test measures wall_ms, cpu_ms, instructions, graph_breaks")
    firsts = {row.split()[0] for row in out.splitlines() if row}
    assert {"flops", "self_cuda_ms"} <= firsts
    assert {"wall_ms", "compile_ms"}.isdisjoint(firsts)
    metrics = json.loads(say("summary", trace, "--format", "json")[1])["metrics"]
    assert (None, "only a live test measures it") == (
        metrics["wall_ms"]["value"], metrics["wall_ms"]["reason"],
    )  # fmt: skip


OPS = (
    "name calls self_cpu_ms cpu_ms self_cuda_ms cuda_ms self_cpu_bytes self_cuda_bytes flops share"
)
KERNELS = (
    "device kernel operator calls total_ms mean_us flops tflops_per_s bytes gb_per_s compute_pct "
    "bandwidth_pct bound kernel_short operators"
)
LAUNCHES = (
    "arithmetic_intensity roofline_ms ms_to_gain grid block registers_per_thread "
    "shared_memory_bytes occupancy_pct blocks_per_sm warps_per_sm waves tail"
)
DIFF = (
    "name change calls_a calls_b cpu_ms_a cpu_ms_b cuda_ms_a cuda_ms_b "
    "self_cpu_ms_a self_cpu_ms_b self_cuda_ms_a self_cuda_ms_b"
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (("ops",), OPS),
        (("ops", "--by", "shape"), f"{OPS} shapes"),
        (("ops", "--by", "stack"), f"{OPS} stack"),
        (("ops", "--by", "module"), f"{OPS} module"),
        (("kernels",), KERNELS),
        (("kernels", "--by", "op"), KERNELS),
        (("kernels", "--by", "kernel"), KERNELS),
        (("kernels", "--by", "op,kernel,shape"), f"{KERNELS} shapes {LAUNCHES}"),
        (("kernels", "--by", "name,shape"), f"{KERNELS} shapes {LAUNCHES}"),
        (("kernels", "--by", "op,shape"), f"{KERNELS} shapes {LAUNCHES}"),
        (("kernels", "--by", "op,name"), f"{KERNELS} {LAUNCHES}"),
        (("memory",), "device peak_bytes at_ms rows"),
    ],
)
def test_json_rows_have_the_fields_that_are_promised(
    say: Say, trace: Path, arguments: tuple[str, ...], fields: str
) -> None:
    command, *options = arguments
    status, out, _ = say(command, trace, *options, "--format", "json")
    document = json.loads(out)
    assert (0, f"torchprof-{command}/1") == (status, document["schema"])
    assert document["rows"]
    assert {tuple(fields.split())} == {tuple(row) for row in document["rows"]}


def test_diff_rows_have_the_fields_that_are_promised(say: Say, tmp_path: Path) -> None:
    a, b = (builder_of(n).save(tmp_path / f"{n}.json") for n in (1, 3))
    for by in ("op", "kernel"):
        _, out, _ = say("diff", a, b, "--by", by, "--format", "json")
        assert {tuple(DIFF.split())} == {tuple(row) for row in rows(out)}


def test_ops_counts_calls_time_flops_and_share(say: Say, trace: Path) -> None:
    ops = named(say("ops", trace, "--format", "json")[1])
    mm = ops["aten::mm"]
    assert (1, 2 * 256 * 512 * 1024, 2**20) == (mm["calls"], mm["flops"], mm["self_cuda_bytes"])
    assert (pytest.approx(0.01), pytest.approx(0.01)) == (mm["self_cuda_ms"], mm["cuda_ms"])
    assert pytest.approx(10 / 18) == mm["share"]
    assert pytest.approx(0.001) == ops["(no operator)"]["self_cuda_ms"]


def test_kernels_compares_with_the_peak_of_the_chip(say: Say, trace: Path) -> None:
    kernels = named(say("kernels", trace, "--format", "json")[1], "kernel")
    gemm = kernels["nvjet_tst_128x64"]
    flops = 2 * 256 * 512 * 1024
    assert ("aten::mm", 1, flops) == (gemm["operator"], gemm["calls"], gemm["flops"])
    assert pytest.approx(flops / 10e-6 / 1e12) == gemm["tflops_per_s"]
    assert pytest.approx(100 * flops / 10e-6 / 989.4e12, rel=1e-3) == gemm["compute_pct"]
    copy = kernels["Memcpy DtoH (Device -> Pageable)"]
    assert (1024, 0) == (copy["bytes"], copy["flops"])
    assert kernels["ghost_copy"]["operator"] is None


def test_kernels_over_the_peak_of_compute_are_a_fault_to_report(say: Say, tmp_path: Path) -> None:
    """Nothing computes faster than the chip can; from its cache, a kernel does read faster."""
    quick = builder_of()
    with quick.op("aten::mm", [[4096, 4096]] * 2, BF16):
        quick.launch("nvjet_tst_256x128", 100)  # 139 GFLOP in 100 us
    with quick.op("aten::add", [[2**20], [2**20]]):
        quick.launch("void at::native::add_kernel<half>(int)", 1)
    path = quick.save(tmp_path / "quick.json")
    _, out, _ = say("kernels", path)
    warning = next(line for line in out.splitlines() if line.startswith("warning: "))
    assert warning.startswith(
        "warning: 1 row over 100 % of peak compute, the highest nvjet_tst_256"
    )
    assert "(138.9 %)" in warning
    assert "please report it" in warning
    assert "over 100 % of the bandwidth: data came from the L2 cache" in out
    _, out, _ = say("kernels", path, "--format", "json")
    assert warning in json.loads(out)["notes"]
    _, out, _ = say("kernels", builder_of().save(tmp_path / "slow.json"))
    assert "over 100 %" not in out


def test_kernels_by_operator_kernel_and_shape_say_what_there_is_to_gain(
    say: Say, trace: Path
) -> None:
    """268 MFLOP and 1.8 MB in 10 us, where an H100 needs 0.54 us for the bytes."""
    by = ("kernels", trace, "--by", "op,kernel,shape")
    status, out, _ = say(*by, "--format", "json")
    document = json.loads(out)
    row = document["rows"][0]
    assert (0, "aten::mm", [[256, 512], [512, 1024]]) == (status, row["operator"], row["shapes"])
    assert [{"operator": "aten::mm", "calls": 1}] == row["operators"]
    size = 2 * (256 * 512 + 512 * 1024 + 256 * 1024)
    assert row["roofline_ms"] == pytest.approx(1e3 * size / 3352e9)
    assert row["ms_to_gain"] == pytest.approx(0.01 - row["roofline_ms"] / 0.7)
    assert row["arithmetic_intensity"] == pytest.approx(2 * 256 * 512 * 1024 / size)
    assert ([1024, 1, 1], [128, 1, 1]) == (row["grid"], row["block"])
    assert row["waves"] == pytest.approx(1024 / (132 * 16))
    gains = [row["ms_to_gain"] for row in document["rows"] if row["ms_to_gain"] is not None]
    assert document["total"]["ms_to_gain"] == pytest.approx(sum(gains))
    notes = "\n".join(document["notes"])
    assert "gain: total - roofline / 0.7" in notes
    assert "1 copied over a bus" in notes
    assert "1 without a runtime call" in notes


def test_kernels_by_several_words_print_as_table_csv_and_markdown(
    say: Say, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    by = ("kernels", trace, "--by", "op,kernel,shape")
    _, table, _ = say(*by)
    head = next(line for line in table.splitlines() if line.startswith("operator"))
    assert {"kernel", "shapes", "gain", "roofline", "FLOP/B", "waves", "tail"} <= {*head.split()}
    ghost = next(line for line in table.splitlines() if "ghost_copy" in line)
    assert ghost.startswith("(unlinked)")
    (first, *_) = csv.DictReader(io.StringIO(say(*by, "--format", "csv")[1]))
    assert ("[1024, 1, 1]", "[[256, 512], [512, 1024]]") == (first["grid"], first["shapes"])
    assert "nvjet_tst_128x64" == first["kernel_short"]
    _, markdown, _ = say(*by, "--format", "markdown")
    assert "1024×1×1" in markdown
    assert "`[[256, 512], [512, 1024]]`" in markdown


def test_kernels_sort_by_what_there_is_to_gain(say: Say, trace: Path) -> None:
    by = ("kernels", trace, "--by", "op,kernel,shape", "--format", "json", "--sort")
    for field in ("gain", "ms_to_gain"):
        gains = [row["ms_to_gain"] for row in rows(say(*by, field)[1])]
        known = [gain for gain in gains if gain is not None]
        assert known == sorted(known, reverse=True)
        assert [None] * (len(gains) - len(known)) == gains[len(known) :]


def test_a_kernels_short_name_is_in_tables_and_the_full_one_in_json(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    builder = TraceBuilder(H100)
    name = "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_nt_align8"
    for operator in ("aten::mm", "aten::addmm"):
        with builder.op(operator, [[8, 8], [8, 8]], BF16):
            builder.launch(f"void cutlass::Kernel2<{name}>({name}::Params)")
    trace = builder.save(tmp_path / "x.json")
    _, out, _ = say("kernels", trace)
    assert "cutlass gemm bf16 256x128x64 nt" in out
    assert "aten::mm ×1, aten::addmm ×1" in out
    (row,) = rows(say("kernels", trace, "--format", "json")[1])
    assert f"void cutlass::Kernel2<{name}>({name}::Params)" == row["kernel"]
    assert "cutlass gemm bf16 256x128x64 nt" == row["kernel_short"]
    assert [("aten::mm", 1), ("aten::addmm", 1)] == [
        (one["operator"], one["calls"]) for one in row["operators"]
    ]


def test_kernels_by_shape_without_shapes_say_so(say: Say, tmp_path: Path) -> None:
    builder = TraceBuilder(H100)
    with builder.op("aten::mm"):
        builder.launch("gemm")
    trace = builder.save(tmp_path / "x.json")
    assert "recorded without shapes" in say("kernels", trace, "--by", "op,shape")[1]
    assert "recorded without shapes" not in say("kernels", trace, "--by", "op,kernel")[1]


def test_kernels_lists_what_is_unknown(say: Say, tmp_path: Path) -> None:
    trace = builder_of(device="ACME X1").save(tmp_path / "x.json")
    _, out, _ = say("kernels", trace)
    assert "no peaks are known for ACME X1: --device-peaks FILE adds a chip" in out
    assert "1 of 4 device events have no runtime call" in out
    assert "%" not in out.partition("bound")[0].partition("share")[0]


def test_a_users_file_adds_a_chip(say: Say, tmp_path: Path) -> None:
    trace = builder_of(device="ACME X1").save(tmp_path / "x.json")
    peaks = tmp_path / "peaks.json"
    peaks.write_text(
        json.dumps({"name": "ACME X1", "peaks": {"bf16": "100 TFLOP/s"}, "bandwidth": "1 TB/s"})
    )
    _, out, err = say("kernels", trace, "--device-peaks", peaks, "--format", "json")
    gemm = named(out, "kernel")["nvjet_tst_128x64"]
    assert pytest.approx(100 * 2 * 256 * 512 * 1024 / 10e-6 / 100e12) == gemm["compute_pct"], err


def test_memory_says_what_was_live_at_the_peak(say: Say, trace: Path) -> None:
    memory = named(say("memory", trace, "--format", "json")[1], "device")
    assert {"cpu": 4096, "cuda:0": 2**20} == {d: row["peak_bytes"] for d, row in memory.items()}
    assert [{"operator": "aten::mm", "bytes": 2**20, "count": 1}] == memory["cuda:0"]["rows"]


def test_diff_says_what_changed_and_fails_over_a_limit(say: Say, tmp_path: Path) -> None:
    a, b = (builder_of(n).save(tmp_path / f"{n}.json") for n in (1, 3))
    status, out, _ = say("diff", a, b, "--format", "json")
    assert (0, "slower") == (status, named(out)["aten::mm"]["change"])
    assert 1 == say("diff", a, b, "--fail-over", "50")[0]
    assert 1 == say("diff", a, b, "--fail-over", "50%", "--by", "kernel")[0]
    assert 0 == say("diff", a, b, "--fail-over", "500")[0]
    assert 0 == say("diff", b, a, "--fail-over", "0")[0]
    assert 0 == say("diff", a, a, "--fail-over", "0")[0]


def test_diff_says_where_new_operators_are_called(say: Say, tmp_path: Path) -> None:
    paths = []
    for names in (["aten::mm"], ["aten::mm", "aten::clone", "aten::copy_"]):
        b = TraceBuilder()
        with b.python("model.py(12): forward"):
            for name in names:
                with b.op(name):
                    b.advance(1)
        paths.append(b.save(tmp_path / f"{len(names)}.json"))
    assert "\nnew at model.py:12: clone, copy_\n" in say("diff", *paths)[1]
    assert "new at" not in say("diff", *paths, "--by", "kernel")[1]
    assert "new at" not in say("diff", *reversed(paths))[1]


def test_stacks_add_up_to_the_metric(say: Say, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.folded"
    status, out, _ = say("stacks", trace, target, "--metric", "self_cuda_ms", "--format", "json")
    lines = target.read_text().splitlines()
    assert (0, 18) == (status, sum(int(line.rpartition(" ")[2]) for line in lines))
    assert any(line.endswith("aten::matmul;aten::mm;nvjet_tst_128x64 10") for line in lines)
    assert len(lines) == rows(out)[0]["lines"]


def test_augment_adds_to_the_trace_and_leaves_it_as_it_is(
    say: Say, trace: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    before = trace.read_bytes()
    assert 0 == say("augment", trace, target)[0]
    events = json.loads(target.read_text())["traceEvents"]
    (gemm,) = (e for e in events if e.get("name") == "nvjet_tst_128x64")
    assert 2 * 256 * 512 * 1024 == gemm["args"]["flops"]
    assert before == trace.read_bytes()
    assert 2 == say("augment", trace, trace)[0]
    assert before == trace.read_bytes()
    one, other = (say("summary", path, "--format", "csv")[1] for path in (trace, target))
    assert one == other


def test_stacks_of_what_was_not_measured_are_an_error_and_no_file(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::add")
    trace, target = b.save(tmp_path / "cpu.json"), tmp_path / "out.folded"
    status, out, err = say("stacks", trace, target, "--metric", "self_cuda_ms")
    assert (2, "") == (status, out)
    assert "no stacks of self_cuda_ms: no accelerator in this capture; ask for self_cpu_ms" in err
    assert not target.exists()
    with pytest.raises(TraceError, match="no accelerator in this capture"):
        Trace.load(trace).stacks("self_cuda_ms")


def test_stacks_of_a_part_are_said_to_be_of_a_part(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder(H100)
    b.facts(Facts(accelerator="H100"))
    with b.annotation(REGION), b.op("aten::mm"):
        b.launch("gemm")
        b.launch("gemm", record_kernel=False)
    status, out, _ = say(
        "stacks", b.save(tmp_path / "a.json"), tmp_path / "o", "--metric", "self_cuda_ms"
    )
    assert 0 == status
    assert "stacks of a part: partial capture: 1 of 2 launches" in out


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A stored trace that lost one of its kernels."""
    b = TraceBuilder(H100)
    with b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch("gemm", record_kernel=False)
        b.launch("gemm")
    return b.save(tmp_path / "half.json")


LOST = "device times are of a part: partial capture: 1 of 2 launches"


@pytest.mark.parametrize("command", ["ops", "kernels"])
def test_tables_of_a_trace_that_lost_kernels_say_so(say: Say, half: Path, command: str) -> None:
    assert LOST in say(command, half)[1]
    notes = json.loads(say(command, half, "--format", "json")[1])["notes"]
    assert any(note.startswith(LOST) for note in notes)


def test_the_summary_of_a_trace_that_lost_kernels_has_no_device_times(say: Say, half: Path) -> None:
    metrics = json.loads(say("summary", half, "--format", "json")[1])["metrics"]
    kernels, times = metrics["kernels"], metrics["self_cuda_ms"]
    assert (None, 1) == (kernels["value"], kernels["at_least"])
    assert kernels["reason"].startswith("at least 1: partial capture: 1 of 2 launches")
    assert times["value"] is None
    assert times["reason"].startswith("partial capture: 1 of 2 launches")


@pytest.mark.parametrize("by", ["op", "kernel"])
def test_a_limit_on_growth_does_not_pass_on_a_trace_that_lost_kernels(
    say: Say, half: Path, trace: Path, by: str
) -> None:
    for a, b, side in ((trace, half, "b"), (half, trace, "a"), (half, half, "a")):
        status, out, _ = say("diff", a, b, "--by", by, "--fail-over", "100000")
        assert (1, True) == (status, "could not be checked" in out)
        assert f"{side}: {LOST}" in out
        assert 0 == say("diff", a, b, "--by", by)[0]


def test_memory_says_in_every_format_why_there_is_no_peak(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::empty")
    trace = b.save(tmp_path / "cpu.json")
    why = "no peak: recorded without memory events (profile_memory=True records them)"
    assert why in json.loads(say("memory", trace, "--format", "json")[1])["notes"]
    assert why in say("memory", trace)[1]


def test_stacks_never_overwrite_their_trace(say: Say, trace: Path) -> None:
    before = trace.read_bytes()
    status, out, err = say("stacks", trace, trace)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert before == trace.read_bytes()


def test_an_empty_trace_has_no_zeros(say: Say, tmp_path: Path, trace: Path) -> None:
    for text in ("[]", '{"traceEvents": []}'):
        empty = tmp_path / "empty.json"
        empty.write_text(text)
        metrics = json.loads(say("summary", empty, "--format", "json")[1])["metrics"]
        assert [None] * len(metrics) == [metric["value"] for metric in metrics.values()]
        for name in ("self_cpu_ms", "flops", "ops"):
            assert "no operators in this trace" == metrics[name]["reason"]
        known = Trace.load(empty).metrics()
        assert all(isinstance(value, NotMeasured) for value in known.values())
        for command in ("ops", "lint"):
            assert "no operators in this trace" in " ".join(say(command, empty)[1].split())
        before = rows(say("diff", empty, trace, "--format", "json")[1])
        assert {None} == {row["cpu_ms_a"] for row in before}


def test_a_limit_on_growth_does_not_pass_on_what_was_not_measured(
    say: Say, trace: Path, tmp_path: Path
) -> None:
    empty, cut = tmp_path / "empty.json", tmp_path / "cut.json"
    empty.write_text('{"traceEvents": [], "schemaVersion": 1}')
    whole = builder_of().to_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    for a, b in ((trace, empty), (trace, cut), (cut, trace), (empty, empty)):
        status, out, _ = say("diff", a, b, "--fail-over", "10")
        assert (1, True) == (status, "could not be checked" in out)
        assert 0 == say("diff", a, b)[0]


def test_what_only_moved_was_not_replaced(say: Say, tmp_path: Path) -> None:
    paths = []
    for first in (True, False):
        builder = TraceBuilder(H100)
        with builder.op("aten::work", [[4]]):
            if first:
                builder.memcpy("HtoD", 64)
            builder.launch("kernel_a")
            builder.launch("kernel_a" if first else "kernel_b")
            if not first:
                builder.memcpy("HtoD", 64)
        paths.append(builder.save(tmp_path / f"{first}.json"))
    _, out, _ = say("diff", *paths, "--by", "kernel")
    assert "kernel_b  appeared" in out
    assert "Memcpy" not in out


def test_a_grouping_the_trace_has_no_data_for_is_reported(say: Say, tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::add")
    trace = builder.save(tmp_path / "x.json")
    for by, option in (
        ("shape", "record_shapes"),
        ("stack", "with_stack"),
        ("module", "with_stack"),
    ):
        _, out, _ = say("ops", trace, "--by", by)
        assert f"({option}=True records them)" in out
    assert "gives them" not in say("ops", trace)[1]


def test_peaks_of_another_chip_are_reported_as_unused(
    say: Say, trace: Path, tmp_path: Path
) -> None:
    peaks = tmp_path / "peaks.json"
    peaks.write_text('{"name": "Other", "peaks": {"bf16": "1 TFLOP/s"}, "bandwidth": "1 TB/s"}')
    _, out, err = say("kernels", trace, "--device-peaks", peaks)
    assert f"none of its devices matches this trace ({H100})" in err
    assert "% of the peaks of H100 SXM" in out


def test_a_trace_of_the_cpu_has_no_kernels_and_says_so(say: Say, tmp_path: Path) -> None:
    trace = builder_of(device=None).save(tmp_path / "x.json")
    assert "no device events in this trace" in say("kernels", trace)[1]


def test_kernels_of_a_graph_are_reported_as_uncounted(say: Say, tmp_path: Path) -> None:
    builder = TraceBuilder(H100)
    builder.graph_launch(["gemm", "add"])
    trace = builder.save(tmp_path / "x.json")
    for command in ("summary", "kernels"):
        message = "2 of 2 kernels were replayed from a graph: their FLOPs are not"
        assert message in say(command, trace)[1]
        assert message in json.loads(say(command, trace, "--format", "json")[1])["notes"][0]


def test_kernels_that_nothing_launched_say_so_in_their_row(say: Say, trace: Path) -> None:
    line = next(line for line in say("kernels", trace)[1].splitlines() if line.startswith("ghost"))
    assert "(unlinked)" in line
    assert "device events have no runtime call: operator (unlinked)" in say("kernels", trace)[1]


@pytest.mark.thorough
def test_a_closed_stdout_is_not_an_error(trace: Path) -> None:
    code = f"{sys.executable} -m pytest_torchprof ops {trace} >&-"
    ran = subprocess.run(code, shell=True, capture_output=True, text=True, check=False)
    assert (0, "") == (ran.returncode, ran.stderr)


@pytest.mark.parametrize("command", ["stacks", "augment"])
def test_several_ranks_require_a_choice(say: Say, tmp_path: Path, command: str) -> None:
    folder, target = tmp_path / "job", tmp_path / "out"
    folder.mkdir()
    for rank in (0, 1):
        builder_of(rank=rank).save(folder / f"rank{rank}.json")
    status, _, err = say(command, folder, target)
    assert (2, True) == (status, "give --rank N" in err)
    assert 0 == say(command, folder, target, "--rank", "1")[0]
    assert target.stat().st_size


def test_an_augmented_trace_keeps_one_set_of_counters(
    say: Say, trace: Path, tmp_path: Path
) -> None:
    once, twice = tmp_path / "1.json", tmp_path / "2.json"
    say("augment", trace, once)
    say("augment", once, twice)
    counters = [path.read_text().count('"ph": "C"') for path in (once, twice)]
    assert counters[0] == counters[1] > 0


def test_the_diff_names_both_sides_and_their_totals(say: Say, tmp_path: Path) -> None:
    a, b = (builder_of(n).save(tmp_path / f"{n}.json") for n in (1, 3))
    document = json.loads(say("diff", a, b, "--format", "json")[1])
    assert {"a": [str(a)], "b": [str(b)]} == document["traces"]
    growth = {row["metric"]: row for row in document["growth"]}
    assert pytest.approx(0.018) == growth["self_cuda_ms"]["before"]
    assert pytest.approx(0.038) == growth["self_cuda_ms"]["now"]


# -------------------------------------------------------------------- formats and ranks


@pytest.mark.one_in(3)
@pytest.mark.parametrize("command", ["summary", "ops", "kernels", "memory", "lint"])
def test_every_format_says_the_same(say: Say, trace: Path, command: str) -> None:
    printed = {f: say(command, trace, "--format", f) for f in ("table", "json", "csv", "markdown")}
    assert {0} == {status for status, *_ in printed.values()}
    count = len(list(csv.DictReader(io.StringIO(printed["csv"][1]))))
    if command in ("ops", "kernels"):
        assert count == len(rows(printed["json"][1]))
        assert (
            count == sum(line.startswith("| ") for line in printed["markdown"][1].splitlines()) - 2
        )


def test_a_folder_of_ranks_is_one_table_with_a_total(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        builder_of(1 + rank, rank=rank).save(folder / f"rank{rank}.json")
    for paths in ([folder], [folder / "rank1.json", folder / "rank0.json"]):
        _, out, _ = say("ops", *paths, "--format", "json")
        document = json.loads(out)
        calls = {(row["rank"], row["calls"]) for row in rows(out) if row["name"] == "aten::mm"}
        assert {(0, 1), (1, 1)} == calls
        assert pytest.approx(1.0) == sum(row["share"] for row in document["rows"])
        assert pytest.approx(0.046) == document["total"]["self_cuda_ms"]
    _, out, _ = say("summary", folder, "--format", "json")
    assert {"0", "1"} == json.loads(out)["ranks"].keys()
    metrics = json.loads(out)["metrics"]
    assert (4, 6) == (metrics["ops"]["value"], metrics["dispatches"]["value"])
    _, out, _ = say("ops", folder, "--rank", "1", "--format", "json")
    assert "rank" not in rows(out)[0]
    status, _, err = say("ops", folder, "--rank", "7")
    assert (2, 1) == (status, err.count("\n"))


def test_sort_and_limit_report_how_many_rows_were_left_out(say: Say, trace: Path) -> None:
    _, out, _ = say("ops", trace, "--sort", "calls", "--limit", "2")
    assert "… and" in out
    assert "--limit 0 shows all" in out
    assert 2 == len(rows(say("ops", trace, "--limit", "2", "--format", "json")[1]))
    names = [row["name"] for row in rows(say("ops", trace, "--sort", "name", "--format=json")[1])]
    assert sorted(names) == names
    one, other = (say("kernels", trace, "--sort", field)[1] for field in ("total", "share"))
    assert one == other
    status, _, err = say("ops", trace, "--sort", "nonsense")
    assert (2, 1) == (status, err.count("\n"))


# -------------------------------------------------------------------- bad input


@pytest.mark.one_in(4)
@pytest.mark.parametrize("command", [c.name for c in COMMANDS if not c.rest])
@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"{}", b'{"traceEvents": 3}', b"PK\x03\x04", b"\x1f\x8b\x08junk", b"[1, 2]"],
)
def test_a_file_that_is_not_a_trace_is_one_line_on_stderr(
    say: Say, tmp_path: Path, command: str, content: bytes
) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    target = tmp_path / "out"
    given: dict[str, list[str | Path]] = {
        "diff": [file],
        "augment": [target],
        "stacks": [target],
        "export": ["--format", "csv"],
        "merge": ["-o", target],
        "report": ["-o", target],
    }
    status, out, err = say(command, file, *given.get(command, []))
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert "x.json" in err
    assert "Traceback" not in err
    assert not target.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("summary", "missing.json"),
        ("summary",),
        ("nonsense",),
        ("ops", ".", "--by", "colour"),
        ("ops", "x.json", "--limit", "-1"),
        ("diff", "x.json"),
        ("diff", "x.json", "x.json", "--fail-over", "nan"),
        ("diff", "x.json", "x.json", "--fail-over", "-3"),
        ("summary", "x.json", "--format", "xml"),
        ("kernels", "x.json", "--device-peaks", "missing.json"),
        ("kernels", "x.json", "--by", "op,color"),
        ("kernels", "x.json", "--by", "shape"),
        ("kernels", "x.json", "--by", "op,op"),
        ("stacks", "x.json", "out", "--metric", "flops"),
        ("stacks", "x.json", "x.json/out"),
        ("augment", "x.json", "x.json/out.json"),
        ("summary", ""),
        ("kernels", "x.json", "--device-peaks", ""),
    ],
)
def test_bad_usage_is_one_line_on_stderr(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    builder_of().save("x.json")
    status, out, err = say(*arguments)
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert "internal error" not in err


MISSING = "No such file or directory; give a .json or .json.gz trace of torch.profiler, or a folder"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("summary", "gone"), f"gone: cannot be read: {MISSING} of them"),
        (("diff", "x.json", "x.json/a"), "x.json/a: cannot be read: Not a directory; give a"),
        (("lint", "folder"), "no file ends in .json or .json.gz; give the folder of --torchprof-"),
        (("augment", "x.json", "folder"), "folder: cannot be written: Is a directory; name ano"),
        (("stacks", "x.json", "folder"), "folder: cannot be written: Is a directory; name another"),
        (("ops", "cut.gz"), "while decompressing data: invalid block type; copy it again"),
        (("summary", "pipe"), "pipe: cannot be read: it is a named pipe without a writer"),
        (("kernels", "x.json", "--device-peaks", "pipe"), "it is a named pipe without a writer"),
    ],
)  # fmt: skip
def test_a_wrong_path_is_described_with_what_to_give_instead(
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_torchprof.core.files._PIPE_S", 0.01)
    builder_of().save("x.json")
    Path("folder").mkdir()
    Path("cut.gz").write_bytes(gzip.compress(b"{}")[:10] + b"\xff" * 9)
    os.mkfifo("pipe")
    status, out, err = say(*arguments)
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert message in err
    assert "Errno" not in err


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["/dev/stdin", "pipe"])
def test_a_pipe_that_somebody_writes_into_is_read(trace: Path, tmp_path: Path, source: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    feed = f"cat {trace} > pipe &" if source == "pipe" else f"cat {trace} |"
    command = f"{feed} {sys.executable} -m pytest_torchprof ops {source} --rank 0 --format csv"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "aten::mm,1," in done.stdout


@pytest.mark.thorough
def test_a_closed_pipe_is_not_an_error(trace: Path) -> None:
    code = f"{sys.executable} -m pytest_torchprof ops {trace} --by shape | head -n 1"
    ran = subprocess.run(code, shell=True, capture_output=True, text=True, check=True)
    assert "" == ran.stderr


@pytest.mark.thorough
def test_output_works_on_a_terminal_without_unicode(trace: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest_torchprof", "kernels", str(trace)],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )
    assert b"nvjet" in ran.stdout


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_help_of_each_command_says_what_it_does(say: Say, command: str) -> None:
    status, out, _ = say(command, "--help")
    assert (0, True) == (status, f"usage: torchprof {command}" in out)


def test_a_large_trace_on_a_terminal_has_a_progress_bar(
    say: Say, trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pytest_torchprof.commands import inputs

    assert "" == say("summary", trace)[2]
    monkeypatch.setattr(inputs, "BAR_FROM_BYTES", 1)
    assert "" == say("summary", trace)[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for words in ([trace], [tmp_path], [tmp_path, "--jobs", "2"]):
        status, _, err = say("summary", *words)
        assert (0, True) == (status, "reading: " in err)


def test_a_sum_of_bytes_of_which_a_part_is_unknown_is_unknown(say: Say, tmp_path: Path) -> None:
    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    with builder.op("aten::mm", [[256, 512], [512, 1024]], ["float", "float"]):
        builder.launch("gemm", 10)
    whole = json.loads(say("kernels", builder.save(tmp_path / "a.json"), "--format", "json")[1])
    assert isinstance(whole["total"]["bytes"], int)
    builder.kernel_without_runtime("my_kernel", 1)
    part = json.loads(say("kernels", builder.save(tmp_path / "b.json"), "--format", "json")[1])
    assert part["total"]["bytes"] is None
    (note,) = (note for note in part["notes"] if note.startswith("no total of bytes: at least "))
    assert note.endswith(": those of 1 of 2 device events are unknown")


def test_a_lower_bound_of_one_rank_gives_no_total(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        builder = builder_of(rank=rank)
        if rank:
            builder.kernel_without_runtime("my_kernel", 1)
        builder.save(folder / f"rank{rank}.json")
    rows = json.loads(say("summary", folder, "--format", "json")[1])["metrics"]["flops"]
    assert (None, None) == (rows["value"], rows.get("at_least"))
    assert rows["reason"].startswith("on one rank, at least 268 MFLOP: my_kernel (1 call")


def test_the_lower_bound_of_a_single_trace_is_a_field_in_json(say: Say, tmp_path: Path) -> None:
    builder = builder_of()
    builder.kernel_without_runtime("my_kernel", 1)
    path = builder.save(tmp_path / "one.json")
    flops = json.loads(say("summary", path, "--format", "json")[1])["metrics"]["flops"]
    known = Trace.load(path).metrics()["flops"]
    assert isinstance(known, NotMeasured)
    assert (None, known.at_hand, known.reason) == (
        flops["value"], flops["at_least"], flops["reason"],
    )  # fmt: skip
    assert flops["reason"].startswith("at least 268 MFLOP: my_kernel (1 call")


OTHER_FILES = ("def test_it(): pass\n", '{"schema": "torchprof-baseline/1"}', "[1, 2]", "a;b c\n")


@pytest.mark.parametrize("command", ["augment", "stacks"])
@pytest.mark.parametrize("text", OTHER_FILES)
def test_an_output_never_replaces_a_file_of_another_kind(
    say: Say, trace: Path, tmp_path: Path, command: str, text: str
) -> None:
    target = tmp_path / "target"
    target.write_text(text)
    status, _, err = say(command, trace, target)
    assert (2, 1) == (status, err.count("\n"))
    assert "it exists and is not a" in err
    assert text == target.read_text()


@pytest.mark.parametrize("command", ["augment", "stacks"])
def test_an_output_replaces_an_earlier_one(
    say: Say, trace: Path, tmp_path: Path, command: str
) -> None:
    for name in ("a.json", "b.json.gz"):
        target = tmp_path / name
        target.touch()
        assert [0, 0] == [say(command, trace, target)[0] for _ in range(2)]
    assert 0 == say(command, trace, "/dev/null")[0]
