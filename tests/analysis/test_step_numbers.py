"""What steps did: the table equals each step's own metrics, and parts and rest are the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.stepped import loop, outside_of_steps, record_steps
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.analysis.operators import GROUPINGS, By, op_stats
from pytest_torchprof.analysis.steps import ADDS_UP, step_numbers
from pytest_torchprof.core.values import ALL_STEPS, MissingValue, StepRange
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps, steps_of
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.parts import StepRow, step_table

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchprof.trace.events import Events

LABELS = {"torch": "", "numbered": "batch {}", "alike": "train"}
#: Beside other work, a pause between steps can be longer than they are: then nothing tells them.
RECORDINGS = 10


@pytest.fixture(scope="module", params=LABELS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Events:
    file: Path = tmp_path_factory.mktemp("steps") / "ten.json"
    for _ in range(RECORDINGS):
        trace = read_trace(record_steps(file, 10, label=LABELS[request.param]))
        if len(steps_of(trace)):
            break
    return trace


def each_step(trace: Events, name: str = "") -> list[Events]:
    numbers = steps_of(trace, name).number.tolist()
    return [trace.part(("step", name, StepRange(n, n + 1))) for n in numbers]


def assert_parts_are_the_whole(trace: Events, name: str = "") -> int:
    """Compare every metric that adds up; return how many are measured."""
    parts = [*each_step(trace, name), outside_of_steps(trace, name)]
    compared = 0
    for metric in METRICS.values():
        whole = measure(metric, trace)
        if metric.adds_up and not isinstance(whole, MissingValue):
            found = [measure(metric, part) for part in parts]
            assert not any(isinstance(value, MissingValue) for value in found), metric.name
            assert whole == sum(found), metric.name  # type: ignore[arg-type]
            compared += 1
    assert measure(METRICS["self_cpu_ms"], trace) == pytest.approx(
        sum(measure(METRICS["self_cpu_ms"], part) for part in parts)  # type: ignore[misc]
    )
    return compared


def assert_rows_are_metrics(trace: Events, name: str = "") -> None:
    """Each field of the table is the metric of that name, of the step alone."""
    same = set(METRICS) & set(StepRow.__dataclass_fields__)
    assert 8 == len(same)
    for row, part in zip(step_table(trace, name).rows, each_step(trace, name), strict=True):
        for field in same:
            value = measure(METRICS[field], part)
            expected = None if isinstance(value, MissingValue) else value
            assert pytest.approx(expected) == getattr(row, field), (field, row.step)


def test_ten_recorded_steps_and_the_rest_are_the_whole(recorded: Events) -> None:
    assert 10 == len(steps_of(recorded))
    assert 4 <= assert_parts_are_the_whole(recorded)
    assert_rows_are_metrics(recorded)
    assert_parts_are_the_whole(recorded, "forward")
    assert_rows_are_metrics(recorded, "forward")


@pytest.mark.thorough
@pytest.mark.parametrize("by", GROUPINGS)
def test_tables_of_the_steps_and_of_the_rest_add_up(recorded: Events, by: By) -> None:
    parts = [*each_step(recorded), outside_of_steps(recorded)]
    fields = ("calls", "self_cpu_ms", "self_cpu_bytes", "flops")

    def sums(trace: Events) -> list[float]:
        rows = op_stats(trace, by)
        return [sum(getattr(row, field) or 0 for row in rows) for field in fields]

    total = [sum(column) for column in zip(*map(sums, parts), strict=True)]
    assert pytest.approx(sums(recorded)) == total


def test_the_columns_have_the_rest_as_their_last_entry(recorded: Events) -> None:
    numbers = step_numbers(recorded)
    lengths = {name: len(column) - len(numbers.step) for name, column in numbers.columns.items()}
    assert {name: int(name in ADDS_UP) for name in lengths} == lengths
    whole = measure(METRICS["ops"], recorded)
    assert whole == numbers.columns["ops"].sum()


def test_work_on_a_device() -> None:
    trace = parse_trace(loop([500, 20, 20]).to_bytes())
    table = step_table(trace)
    assert [3, 4, 5] == [row.step for row in table.rows]
    assert [1, 1, 1] == [row.kernels for row in table.rows]
    assert [1024] * 3 == [row.copied_bytes for row in table.rows]
    assert [4096] * 3 == [row.peak_cuda_bytes for row in table.rows]
    assert (0.005, 1) == (table.outside["self_cuda_ms"], table.outside["kernels"])
    assert_rows_are_metrics(trace)
    assert 8 <= assert_parts_are_the_whole(trace)


def test_a_part_has_its_own_steps_and_the_same_rest() -> None:
    trace = parse_trace(loop([500, 20, 20]).to_bytes())
    whole, part = step_table(trace), step_table(at_steps(trace, StepRange(4)))
    assert whole.rows[1:] == part.rows
    assert whole.outside == part.outside


def test_what_was_not_recorded_is_unknown_with_the_reason() -> None:
    b = TraceBuilder()
    with b.annotation("ProfilerStep#0"):
        b.op("aten::add")
    b.metadata("profile_memory", 0)
    table = step_table(parse_trace(b.to_bytes()))
    (row,) = table.rows
    assert (None, None, None) == (row.kernels, row.cuda_busy_ms, row.peak_cpu_bytes)
    assert {"kernels", "cuda_busy_ms", "peak_cpu_bytes"} <= set(table.unknown)
    assert {"ops", "duration_ms", "self_cpu_ms"} == {one.field for one in table.statistics}
    assert table.outside["kernels"] is None


def test_outliers_and_drift_are_of_the_steps_numbers() -> None:
    slow_start = step_table(parse_trace(loop([10] * 8, host_us=100).to_bytes()))
    assert {None} == {row.outlier for row in slow_start.rows}
    b = TraceBuilder()
    for number, us in enumerate([900, 10, 11, 12, 13, 14, 15, 16], 5):
        b.annotation(f"ProfilerStep#{number}", us)
    table = step_table(parse_trace(b.to_bytes()))
    assert ["slow", *[None] * 7] == [row.outlier for row in table.rows]
    duration = next(one for one in table.statistics if one.field == "duration_ms")
    assert ([5], 8, 0.0135) == (duration.outliers, duration.count, duration.median)
    assert pytest.approx(0.001) == duration.drift
    assert pytest.approx(7 / 13.5, abs=0.03) == duration.drift_share


def test_few_steps_have_no_outliers() -> None:
    table = step_table(parse_trace(loop([1, 1, 1]).to_bytes()))
    assert [None] * len(table.statistics) == [one.outliers for one in table.statistics]


BLOCKS = st.lists(
    st.tuples(st.integers(1, 100), st.sampled_from(["cpu", "cuda"]), st.integers(0, 7)),
    max_size=14,
)


@pytest.mark.thorough
@given(BLOCKS, st.integers(1, 5))
def test_peaks_are_those_of_each_step_alone(blocks: list[tuple[int, str, int]], steps: int) -> None:
    """Blocks are freed so many events later, in this step, a later one, or never."""
    b = TraceBuilder("Some GPU")
    due: dict[int, list[int]] = {}
    for number in range(steps):
        with b.annotation(f"ProfilerStep#{number}"):
            b.memory(-7)
            for at in range(number, len(blocks), steps):
                size, device, life = blocks[at]
                with b.op("aten::empty"):
                    due.setdefault(at + life * steps // 2 + 1, []).append(b.memory(size, device))
                for key in [key for key in due if key <= at]:
                    for address in due.pop(key):
                        b.free(address)
    trace = parse_trace(b.to_bytes())
    for on_device, column in ((False, "peak_cpu_bytes"), (True, "peak_cuda_bytes")):
        alone = [usage(part, on_device=on_device).peak_bytes for part in each_step(trace)]
        assert alone == step_numbers(trace).columns[column].tolist()


PATHS = sorted(CORPUS.rglob("*.json.gz"))


@pytest.mark.thorough
@pytest.mark.skipif(not PATHS, reason="no real traces: TORCHPROF_TRACE_CORPUS has none")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.partition(".")[0])
def test_steps_of_real_traces(path: Path) -> None:
    trace = read_trace(path)
    if not len(steps_of(trace)):
        assert "alexnet" in path.name or "TORCHPROF" in str(CORPUS)
        return
    assert_parts_are_the_whole(trace)
    assert_rows_are_metrics(trace)
    assert (at_steps(trace, ALL_STEPS).selection <= trace.selection).all()
