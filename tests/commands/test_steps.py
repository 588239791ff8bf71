"""`torchprof steps`, and the other commands on some steps or per step."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.stepped import loop
from support.trace_builder import TraceBuilder

from pytest_torchprof import Trace, diff
from pytest_torchprof.cli import COMMANDS
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

FIELDS = (
    "step start_ms duration_ms self_cpu_ms self_cuda_ms cuda_busy_ms cuda_idle_ms ops kernels "
    "copies copied_bytes peak_cpu_bytes peak_cuda_bytes outlier"
)
STATISTICS = (
    "field count median low high minimum maximum spread outliers drift drift_share drift_p_value"
)
#: Commands that take steps, and what they need besides a trace.
TABLES = ("summary", "steps", "ops", "kernels", "lint", "memory")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return loop([500, 20, 20, 20, 20, 20]).save(tmp_path / "loop.pt.trace.json")


def asked(say: Say, *arguments: str | Path) -> dict[str, Any]:
    status, out, err = say(*arguments, "--format", "json")
    assert (0, "") == (status, err)
    document: dict[str, Any] = json.loads(out)
    return document


def test_steps_has_a_row_per_step_and_a_summary(say: Say, trace: Path) -> None:
    document = asked(say, "steps", trace)
    assert "torchprof-steps/1" == document["schema"]
    assert {tuple(FIELDS.split())} == {tuple(row) for row in document["rows"]}
    assert {tuple(STATISTICS.split())} == {tuple(row) for row in document["statistics"]}
    assert list(range(3, 9)) == [row["step"] for row in document["rows"]]
    assert "ProfilerStep*" == document["step_names"]
    assert {"self_cpu_ms", "self_cuda_ms", "ops", "kernels", "copies", "copied_bytes"} == set(
        document["outside"]
    )
    (busy,) = [one for one in document["statistics"] if one["field"] == "cuda_busy_ms"]
    assert [3] == busy["outliers"]


def test_the_table_of_steps_says_what_is_usual_and_what_stands_out(say: Say, trace: Path) -> None:
    _, out, _ = say("steps", trace)
    assert "6 steps: ProfilerStep*" in out
    assert "duration: median " in out
    assert "cuda_busy: median 25 us ±0 %; outliers: step 3" in out
    assert "outside of steps: self_cpu 6 us, self_cuda 5 us, ops 1, kernels 1" in out
    rows = list(csv.DictReader(io.StringIO(say("steps", trace, "--format", "csv")[1])))
    assert FIELDS.split() == list(rows[0])
    assert say("steps", trace, "--format", "markdown")[1].count("\n|") == 8


def test_a_drift_is_said(say: Say, tmp_path: Path) -> None:
    path = loop([100 + 10 * n for n in range(12)]).save(tmp_path / "drift.json")
    _, out, _ = say("steps", path)
    assert "cuda_busy: median 160 us ±17 %; rises by 10 us a step, +69 % from first to last" in out


@pytest.mark.parametrize("command", TABLES)
def test_a_table_of_some_steps_says_which(say: Say, trace: Path, command: str) -> None:
    document = asked(say, command, trace, "--step", "5:7")
    assert [5, 6] == document["steps"]
    assert "steps" not in asked(say, command, trace)
    _, out, _ = say(command, trace, "--step", "5:7")
    assert "; only steps 5 to 6 of 3 to 8 (ProfilerStep*)" in out.splitlines()[0]


def test_tables_of_some_steps_tell_of_these_only(say: Say, trace: Path) -> None:
    ops = {row["name"]: row for row in asked(say, "ops", trace, "--step", "5:7")["rows"]}
    assert 2 == ops["aten::mm"]["calls"]
    assert "aten::randn" not in ops
    kernels = {row["kernel"]: row for row in asked(say, "kernels", trace, "--step", "3")["rows"]}
    assert {"gemm": 1, "Memcpy HtoD (Pageable -> Device)": 1} == {
        name: row["calls"] for name, row in kernels.items()
    }
    metrics = asked(say, "summary", trace, "--step", "4:")["metrics"]
    assert (5, 5 * 1024) == (metrics["kernels"]["value"], metrics["h2d_bytes"]["value"])
    (peak,) = asked(say, "memory", trace, "--step", "4")["rows"]
    assert 4096 == peak["peak_bytes"]


@pytest.mark.thorough
def test_findings_of_steps_are_those_of_the_whole(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(4):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(number):
                with b.op("aten::item", [[]]), b.op("aten::_local_scalar_dense", [[]]):
                    b.memcpy("DtoH", 4)
                    b.sync("cudaStreamSynchronize", 850)
            b.launch("gemm", 5)
    path = b.save(tmp_path / "reads.json")

    def found(*options: str) -> int:
        rows = asked(say, "lint", path, *options)["findings"]
        return sum(row["count"] for row in rows if row["rule"] == "host-sync")

    whole = found()
    assert whole
    assert whole == sum(found("--step", str(number)) for number in range(4))
    assert (0, whole) == (found("--step", "0"), found("--step", ":"))
    cost = asked(say, "lint", path, "--step", "1")["findings"][0]["cost_ms"]
    assert cost <= asked(say, "steps", path, "--step", "1")["rows"][0]["duration_ms"]
    metrics = asked(say, "summary", path, "--step", "3")["metrics"]
    assert metrics["findings"]["value"] >= found("--step", "3")


def test_stacks_of_some_steps(say: Say, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "folded.txt"
    status, out, _ = say("stacks", trace, target, "--metric", "self_cuda_ms", "--step", "3")
    assert (0, True) == (status, "only step 3 of 3 to 8" in out)
    assert "init" not in target.read_text()
    assert "ProfilerStep;aten::mm;" in target.read_text()


def test_steps_by_a_name_of_ones_own(say: Say, tmp_path: Path) -> None:
    path = loop([20, 20], name="batch {}", first=40).save(tmp_path / "own.json")
    for options in (["--step", "41"], ["--step", "41", "--step-name", "batch *"]):
        assert [41] == asked(say, "ops", path, *options)["steps"]
    assert [40] == asked(say, "ops", path, "--step-name", "batch 40")["steps"]
    assert [40, 41] == asked(say, "ops", path, "--step-name", "batch *")["steps"]


@pytest.mark.parametrize("name", [c.name for c in COMMANDS if c.name in (*TABLES, "stacks")])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "9"], "there is no step 9: its steps (ProfilerStep*) are 3 to 8; choose one"),
        (["--step", "5:5"], "there is no step from 5 to before 5: its steps"),
        (["--step", "x"], "argument --step: 'x' is not N or A:B, such as 3 or 2:5"),
        (["--step=-1"], "argument --step: '-1' is not N or A:B"),
        (["--step", "1:2:3"], "argument --step: '1:2:3' is not N or A:B"),
        (["--step-name", "nothing"], "no annotation is called nothing: its annotations are"),
    ],
)
def test_bad_steps_are_one_line(
    say: Say, trace: Path, tmp_path: Path, name: str, options: list[str], message: str
) -> None:
    target = [tmp_path / "out.txt"] if name == "stacks" else []
    status, out, err = say(name, trace, *target, *options)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert message in err


def test_a_trace_without_steps_is_one_line(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::add")
    path = b.save(tmp_path / "none.json")
    for arguments in (("steps", path), ("ops", path, "--step", "1"), ("ops", path, "--step", ":")):
        status, out, err = say(*arguments)
        assert (2, "", 1) == (status, out, err.count("\n"))
        assert "none.json: no steps: no ProfilerStep" in err


def test_steps_of_ranks(say: Say, tmp_path: Path) -> None:
    for rank, count in ((0, 3), (1, 2)):
        loop([20] * count).save(tmp_path / f"rank{rank}.json")
    document = asked(say, "steps", tmp_path)
    assert [(0, 3), (0, 4), (0, 5), (1, 3), (1, 4)] == [
        (row["rank"], row["step"]) for row in document["rows"]
    ]
    assert {"0", "1"} == set(document["outside"])
    assert {"0": [4], "1": [4]} == asked(say, "ops", tmp_path, "--step", "4")["steps"]
    assert {"0": [4, 5], "1": [4]} == asked(say, "ops", tmp_path, "--step", "4:")["steps"]
    status, _, err = say("ops", tmp_path, "--step", "5")
    assert (2, True) == (status, "rank1.json: there is no step 5: its steps" in err)


# -------------------------------------------------------------------- two traces


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Of 10 and of 4 equal steps."""
    return tuple(loop([20] * n).save(tmp_path / f"{n}.json") for n in (10, 4))  # type: ignore[return-value]


def test_traces_of_different_length_are_compared_per_step(say: Say, two: tuple[Path, Path]) -> None:
    document = asked(say, "diff", *two)
    assert {"a": 10, "b": 4} == document["per_step"]
    rows = {row["name"]: row for row in document["rows"]}
    assert ("same", 1, 1) == tuple(rows["aten::mm"][k] for k in ("change", "calls_a", "calls_b"))
    assert "aten::randn" not in rows
    assert {0.0} == {round(one["percent"], 3) for one in document["growth"]}
    (note,) = [note for note in document["notes"] if note.startswith("per step")]
    assert "a has 10 steps, b 4 (ProfilerStep*)" in note
    assert "--no-per-step" in note
    assert 0 == say("diff", *two, "--fail-over", "1")[0]
    assert 1 == say("diff", *reversed(two), "--fail-over", "1", "--no-per-step")[0]


def test_totals_are_compared_if_asked_for_or_if_the_steps_are_as_many(
    say: Say, two: tuple[Path, Path]
) -> None:
    for document in (
        asked(say, "diff", *two, "--no-per-step"),
        asked(say, "diff", two[0], two[0]),
    ):
        assert document["per_step"] is None
        rows = {row["name"]: row for row in document["rows"]}
        assert 10 == rows["aten::mm"]["calls_a"]
        assert "aten::randn" in rows
    document = asked(say, "diff", two[0], two[0], "--per-step")
    assert {"a": 10, "b": 10} == document["per_step"]
    assert not [note for note in document["notes"] if "--no-per-step" in note]


def test_some_steps_of_two_traces(say: Say, two: tuple[Path, Path]) -> None:
    document = asked(say, "diff", *two, "--step", "4:6")
    assert document["per_step"] is None
    assert {2} == {row["calls_a"] for row in document["rows"]}
    assert {"a": 9, "b": 3} == asked(say, "diff", *two, "--step", "4:")["per_step"]
    status, _, err = say("diff", *two, "--step", "9")
    assert (2, True) == (status, "4.json: there is no step 9" in err)


def test_steps_of_different_names_are_not_divided_unasked(say: Say, tmp_path: Path) -> None:
    a = loop([20] * 4, name="batch {}").save(tmp_path / "a.json")
    b = loop([20] * 3).save(tmp_path / "b.json")
    assert asked(say, "diff", a, b)["per_step"] is None
    assert {"a": 4, "b": 3} == asked(say, "diff", a, b, "--per-step")["per_step"]


def test_a_guess_at_steps_is_not_enough_to_divide(say: Say, tmp_path: Path) -> None:
    """What repeats over most of the time may be the forward passes alone."""
    paths = [loop([20] * n, name="forward").save(tmp_path / f"{n}.json") for n in (4, 3)]
    document = asked(say, "diff", *paths)
    assert document["per_step"] is None
    assert "a has 4 steps, b 3 (forward): --per-step compares them per step" in document["notes"]
    assert {"a": 4, "b": 3} == asked(say, "diff", *paths, "--per-step")["per_step"]
    named = asked(say, "diff", *paths, "--step-name", "forward")
    assert {"a": 4, "b": 3} == named["per_step"]


def test_times_of_a_whole_test_are_not_those_of_a_step(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    rounds = {"n": 9, "median": 3.21, "low": 3.1, "high": 3.36, "minimum": 3.0}
    b.metadata(FACTS_KEY, {"wall_ms": rounds})
    with b.annotation(REGION):
        for number in range(2):
            with b.annotation(f"ProfilerStep#{number}"):
                b.op("aten::add")
    path = b.save(tmp_path / "live.json")
    wall = asked(say, "summary", path, "--step", "1")["metrics"]["wall_ms"]
    assert (None, "known for whole tests only") == (wall["value"], wall["reason"])
    assert 3.21 == asked(say, "summary", path)["metrics"]["wall_ms"]["value"]
    assert "±" not in say("summary", path, "--step", "1")[1]


def test_per_step_without_steps_is_an_error(say: Say, two: tuple[Path, Path]) -> None:
    b = TraceBuilder()
    b.op("aten::add")
    none = b.save(two[0].with_name("none.json"))
    status, _, err = say("diff", two[0], none, "--per-step")
    assert (2, True) == (status, "none.json: no steps" in err)
    assert asked(say, "diff", two[0], none)["per_step"] is None


def test_calls_per_step_may_be_fractions(say: Say, tmp_path: Path) -> None:
    paths = []
    for count in (3, 2):
        b = TraceBuilder()
        for number in range(count):
            with b.annotation(f"ProfilerStep#{number}"):
                b.op("aten::add")
                if not number:
                    b.op("aten::mul")
        paths.append(b.save(tmp_path / f"{count}.json"))
    rows = {row["name"]: row for row in asked(say, "diff", *paths)["rows"]}
    assert (1, 1) == (rows["aten::add"]["calls_a"], rows["aten::add"]["calls_b"])
    assert (pytest.approx(1 / 3), 0.5) == (
        rows["aten::mul"]["calls_a"],
        rows["aten::mul"]["calls_b"],
    )
    assert "0.33     0.50" in say("diff", *paths)[1]


def test_what_replaced_what_is_of_one_step(say: Say, tmp_path: Path) -> None:
    paths = []
    for count, name in ((5, "aten::tanh"), (3, "aten::gelu")):
        b = TraceBuilder()
        for number in range(count):
            with b.annotation(f"ProfilerStep#{number}"):
                for one in ("aten::mm", name, "aten::sum"):
                    b.op(one)
        paths.append(b.save(tmp_path / f"{count}.json"))
    assert "in the last step: tanh → gelu" in asked(say, "diff", *paths)["notes"]


# -------------------------------------------------------------------- from Python


def test_steps_from_python(trace: Path, two: tuple[Path, Path]) -> None:
    whole = Trace.load(trace)
    assert whole.selected_steps is None
    assert [3, 4, 5, 6, 7, 8] == [row.step for row in whole.steps()]
    assert "duration_ms" == whole.step_statistics()[0].field
    one = whole.step(5)
    assert ([5], 1) == (one.selected_steps, one.metrics()["kernels"])
    assert [5, 6] == whole.step("5:7").selected_steps
    assert whole.step(":").findings() == whole.step("3:9").findings()
    a, b = map(Trace.load, two)
    rows = {row.name: row for row in diff(a, b, per_step=True)}
    assert "same" == rows["aten::mm"].change
    with pytest.raises(SettingsError, match="there is no step 99"):
        whole.step(99)
    with pytest.raises(ValueError, match="'x' is not N or A:B"):
        whole.step("x")
