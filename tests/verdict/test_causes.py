"""What changed in the user's code, from two details of a test."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_torchprof.core.values import Detail, DetailRow, Finding, HeldRow, Verdict
from pytest_torchprof.verdict.causes import causes_of
from pytest_torchprof.verdict.seen import Caller, Line, Seen, together

BLOCK, NET, TEST = "lib.py::Block.forward", "lib.py::Net.forward", "test_x.py::test_x"
LINES = {BLOCK: 9, NET: 20, TEST: 5, "lib.py::helper": 30}


def row(function: str, operator: str, calls: int, **more: Any) -> DetailRow:
    dtype = more.pop("dtype", "float32")
    flops, size = more.pop("flops", 0), more.pop("bytes", 100 * calls)
    return DetailRow(function, f"aten::{operator}", dtype, calls, flops, size, **more)


def line(function: str, number: int | None = None, text: str = "") -> Line:
    file = function.partition("::")[0]
    return Line(f"{file}:{number or LINES[function]}", function, text)


def seen(*rows: DetailRow, stack: tuple[str, ...] = (TEST, NET), **more: Any) -> Seen:
    """What ran now: each row at its function's line, within these functions."""
    detail = Detail(rows, more.pop("runs", {}), {}, more.pop("held", ()), more.pop("grad", None))
    lines = {
        one.key: more.get("lines", {}).get(one.operator) or (line(one.function),) for one in rows
    }
    ways = {one.key: [*takewhile(one.function.__ne__, stack)] for one in rows}
    stacks = {one.key: (*map(line, ways[one.key]), line(one.function)) for one in rows}
    return Seen(detail, lines, stacks, more.pop("callers", {}))


def more_of(**metrics: tuple[int, int]) -> list[Verdict]:
    return [Verdict(name, now, "regressed", before) for name, (before, now) in metrics.items()]


ADD, MM = row(BLOCK, "add", 4), row(BLOCK, "mm", 4, flops=4_000)
RUNS = {BLOCK: 4, NET: 1}


def first(
    before: Detail, now: Seen, **metrics: tuple[int, int]
) -> tuple[str, str | None, str | None, str]:
    cause = causes_of(before, now, more_of(**metrics))[0]
    return cause.kind, cause.place, cause.function, cause.message


def test_a_new_operator_is_named_with_its_line() -> None:
    before = Detail((ADD, MM), RUNS)
    now = seen(ADD, row(BLOCK, "clone", 4), MM, runs=RUNS)
    assert ("new_operators", "lib.py:9", "Block.forward", "clone ×4 is new") == first(
        before, now, ops=(8, 12), moved_bytes=(800, 1200)
    )


def test_of_several_lines_the_new_one_is_named() -> None:
    before = Detail((row(BLOCK, "clone", 4, texts={"old": 4}),), RUNS)
    lines = {"aten::clone": (line(BLOCK, 11, "old"), line(BLOCK, 12, "new"))}
    now = seen(row(BLOCK, "clone", 8), runs=RUNS, lines=lines)
    kind, place, _, message = first(before, now, ops=(4, 8))
    assert ("new_operators", "lib.py:12") == (kind, place)
    assert "clone is called 8 times instead of 4" == message


def test_a_function_that_runs_again_is_blamed_on_the_new_call() -> None:
    before = Detail((ADD, MM), RUNS, {NET: {f"{TEST} old": 1}})
    callers = {
        NET: (Caller(line(TEST, 5, "old"), "", 1), Caller(line(TEST, 6, "new"), "", 1)),
        BLOCK: (Caller(line(NET), "", 8),),
    }
    twice = [row(BLOCK, "add", 8), row(BLOCK, "mm", 8, flops=8_000)]
    now = seen(*twice, runs={BLOCK: 8, NET: 2}, callers=callers)
    found = first(before, now, ops=(8, 16), flops=(4_000, 8_000))
    assert (
        "runs_more_often",
        "test_x.py:6",
        "test_x",
        "Net.forward runs twice instead of once",
    ) == found


def test_what_a_checkpoint_recomputes_is_blamed_on_its_call() -> None:
    before = Detail((ADD,), RUNS, {BLOCK: {f"{NET} old": 4}})
    checkpoint = "torch.utils.checkpoint"
    callers = {
        BLOCK: (
            Caller(line(TEST), f"{checkpoint}.recompute_fn", 4),
            Caller(line(NET), f"{checkpoint}.checkpoint", 4),
        )
    }
    now = seen(row(BLOCK, "add", 8), runs={BLOCK: 8, NET: 1}, callers=callers)
    kind, place, function, message = first(before, now, ops=(4, 8))
    assert ("runs_more_often", "lib.py:20", "Net.forward") == (kind, place, function)
    assert "recomputes it in backward" in message


def test_larger_inputs_of_several_functions_are_blamed_on_their_caller() -> None:
    other = "lib.py::helper"
    rows = [ADD, row(other, "mul", 4), row(NET, "mm", 1, flops=1_000)]
    larger = [row(BLOCK, "add", 4, bytes=4_000), row(other, "mul", 4, bytes=4_000)]
    larger += [row(NET, "mm", 1, flops=9_000)]
    rows += [row(TEST, "argmax", 1), row(TEST, "eq", 1)]
    larger += rows[-2:]
    now = seen(*larger, runs={BLOCK: 4})
    kind, place, function, _ = first(Detail(tuple(rows), {BLOCK: 4}), now, moved_bytes=(900, 8_100))
    assert ("larger_inputs", "test_x.py:5", "test_x") == (kind, place, function)


def test_larger_inputs_of_an_optimizer_follow_from_those_of_the_model() -> None:
    def rows(size: int) -> list[DetailRow]:
        backward = replace(row(BLOCK, "mm", 4, flops=2 * size, bytes=size), operator="MmBackward0")
        state = row(TEST, "zeros_like", 9, bytes=size)
        return [ADD, row(BLOCK, "mm", 4, flops=size, bytes=size), backward, state]

    before, now = Detail((*rows(4_000),), RUNS), seen(*rows(6_000), runs=RUNS)
    kind, place, _, message = first(before, now, flops=(12_000, 18_000), peak_cpu_bytes=(1, 2))
    assert ("larger_inputs", "lib.py:9") == (kind, place)
    assert "larger inputs of mm and 2 other operators: FLOPs of mm 4 kFLOP → 6 kFLOP" == message


def test_a_root_in_another_folder_changes_nothing() -> None:
    """A checkout, or a CI job, that runs the tests from another folder."""
    names = {BLOCK: f"examples/{BLOCK}", NET: f"examples/{NET}", TEST: f"examples/{TEST}"}
    rows = [replace(one, function=names[one.function]) for one in (ADD, MM)]
    before = Detail((*rows,), {names[one]: n for one, n in RUNS.items()},
                    {names[NET]: {f"{names[TEST]} old": 1}})  # fmt: skip
    now = seen(ADD, MM, row(BLOCK, "clone", 4), runs=RUNS)
    causes = causes_of(before, now, more_of(ops=(8, 12)))
    assert ["clone ×4 is new"] == [one.message for one in causes]


def test_gradients_that_add_up_are_told_at_their_backward() -> None:
    node = replace(row(TEST, "x", 8), operator="AccumulateGrad")
    counts: tuple[Any, Any] = {"aten::add": {"ops": 4}}, {"aten::add_": {"accumulations": 8}}
    (cause,) = causes_of(
        Detail((ADD,), RUNS), seen(ADD, node, runs=RUNS), more_of(ops=(8, 8)), operators=counts
    )
    assert "test_x.py:5" == cause.place
    assert "gradients add up in aten::add_ 0 → 8 times: is a zero_grad missing?" == cause.message


def test_attention_by_hand_names_what_is_gone() -> None:
    before = Detail((row(BLOCK, "scaled_dot_product_attention", 2), MM), RUNS)
    now = seen(MM, row(BLOCK, "matmul", 4), row(BLOCK, "softmax", 2), runs=RUNS)
    _, _, _, message = first(before, now, ops=(6, 10))
    assert "scaled_dot_product_attention is gone, matmul ×4, softmax ×2 instead" == message


def test_a_wider_dtype_is_the_first_cause() -> None:
    before = Detail((ADD, row(NET, "div", 1)), RUNS)
    now = seen(row(NET, "div", 1, dtype="float64", bytes=200),
               row(BLOCK, "add", 4, dtype="float64", bytes=800),
               row(BLOCK, "_to_copy", 1), runs=RUNS)  # fmt: skip
    kind, place, _, message = first(before, now, ops=(5, 6), moved_bytes=(500, 1_000))
    assert ("other_dtype", "lib.py:20") == (kind, place)
    assert "div in float64 instead of float32, and 1 operator after it" == message


def test_memory_that_is_kept_is_told_where_it_is_allocated() -> None:
    before = Detail((ADD, MM), RUNS, held=(HeldRow(BLOCK, "aten::mm", 400, 100, 0),))
    now = seen(ADD, MM, runs=RUNS, held=(HeldRow(BLOCK, "aten::mm", 400, 400, 0),))
    kind, place, _, message = first(before, now, peak_cpu_bytes=(100, 400))
    assert ("kept_memory", "lib.py:9") == (kind, place)
    assert "what mm allocates is kept longer, until memory is at its peak" == message


def test_a_lost_no_grad_is_told_where_all_that_is_recorded_is_called() -> None:
    before = Detail((ADD, MM), RUNS, grad={BLOCK: 0, TEST: 1})
    now = seen(ADD, MM, runs=RUNS, grad={BLOCK: 8, TEST: 1},
               held=(HeldRow(BLOCK, "aten::mm", 400, 400, 0),))  # fmt: skip
    kind, place, _, message = first(before, now, peak_cpu_bytes=(100, 400))
    assert ("kept_memory", "lib.py:9") == (kind, place)
    assert "autograd records a graph for backward here now: is a no_grad missing?" == message
    older = first(Detail((ADD, MM), RUNS), now, peak_cpu_bytes=(100, 400))
    assert "what mm allocates is kept longer, until memory is at its peak" == older[-1]


def test_costs_of_a_wider_dtype_are_what_it_adds() -> None:
    before = Detail((row(NET, "div", 2, bytes=400),), RUNS)
    now = seen(row(NET, "div", 2, dtype="float64", bytes=800), runs=RUNS)
    (cause,) = causes_of(before, now, more_of(moved_bytes=(400, 800)))
    assert {"moved_bytes": 400} == cause.metrics


def test_another_dtype_of_as_many_bytes_or_an_unknown_one_is_not_wider() -> None:
    for was, is_ in (("float16", "bfloat16"), ("complex64", "float32"), ("int128", "float64")):
        before = Detail((row(NET, "div", 2, dtype=was),), RUNS)
        now = seen(row(NET, "div", 2, dtype=is_), row(BLOCK, "clone", 4), runs=RUNS)
        assert "clone ×4 is new" == first(before, now, ops=(2, 6))[-1]


def test_memory_that_is_kept_is_told_beside_another_operator_in_place_of_one() -> None:
    before = Detail((row(BLOCK, "relu", 4), ADD), RUNS)
    now = seen(row(BLOCK, "sin", 4), ADD, runs=RUNS,
               held=(HeldRow(BLOCK, "aten::add", 400, 400, 400),))  # fmt: skip
    (cause,) = causes_of(before, now, more_of(leaked_cpu_bytes=(0, 400)))
    assert "what add allocates is kept after the test now" == cause.message
    new = seen(row(BLOCK, "sin", 4), ADD, runs=RUNS,
               held=(HeldRow(BLOCK, "aten::sin", 400, 400, 400),))  # fmt: skip
    (cause,) = causes_of(before, new, more_of(leaked_cpu_bytes=(0, 400)))
    assert "sin ×4 is new" == cause.message


def test_an_operator_in_place_of_another_is_no_more_work() -> None:
    before = Detail((row(BLOCK, "relu", 4), row(NET, "add", 1)), RUNS)
    now = seen(row(BLOCK, "clamp", 4), row(NET, "add", 1), row(NET, "clone", 2), runs=RUNS)
    (cause,) = causes_of(before, now, more_of(ops=(5, 7)))
    assert "clone ×2 is new" == cause.message


def test_a_function_that_is_split_into_two_is_no_cause() -> None:
    before = Detail((row(BLOCK, "mul", 4),), RUNS)
    now = seen(row("lib.py::helper", "mul", 2), row(NET, "mul", 2), row(NET, "clone", 1), runs=RUNS)
    assert ["clone is new"] == [one.message for one in causes_of(before, now, more_of(ops=(4, 5)))]


def test_a_function_that_calls_itself_more_often_is_told() -> None:
    name = "lib.py::helper"
    callers = {name: (Caller(line(TEST, text="a"), "", 1), Caller(line(name, text="b"), "", 7))}
    before = Detail((row(name, "add", 4),), {name: 4}, {name: {f"{TEST} a": 1, f"{name} b": 3}})
    now = seen(row(name, "add", 8), runs={name: 8}, callers=callers)
    assert "helper runs 8 times instead of 4" == first(before, now, ops=(4, 8))[-1]


def test_a_checkpoint_that_was_there_before_is_not_blamed() -> None:
    via = "torch.utils.checkpoint.checkpoint"
    before = Detail((ADD,), RUNS, {BLOCK: {f"{NET} via {via}": 4}})
    callers = {BLOCK: (Caller(line(NET), via, 8),)}
    now = seen(row(BLOCK, "add", 8), runs={BLOCK: 8, NET: 1}, callers=callers)
    assert "Block.forward runs 8 times instead of 4" == first(before, now, ops=(4, 8))[-1]


def test_rows_that_scale_exactly_are_no_cause() -> None:
    before = Detail((row(BLOCK, "mm", 49),), {BLOCK: 49})
    assert () == causes_of(before, seen(row(BLOCK, "mm", 1), runs={BLOCK: 1}), more_of(ops=(1, 2)))


def test_without_lines_on_one_side_causes_are_by_operator() -> None:
    before = Detail((row("", "add", 6),), {})
    counts: tuple[Any, Any] = {"aten::add": {"ops": 6}}, {"aten::add": {"ops": 7}}
    (cause,) = causes_of(before, seen(row(BLOCK, "add", 7)), more_of(ops=(6, 7)), operators=counts)
    assert "add 6 → 7" == cause.message


def test_code_that_only_moved_is_no_cause() -> None:
    before = Detail((row(NET, "mul", 2), ADD), RUNS)
    now = seen(row("lib.py::helper", "mul", 2), ADD, row(BLOCK, "clone", 1), runs=RUNS)
    causes = causes_of(before, now, more_of(ops=(6, 7)))
    assert ["clone is new"] == [cause.message for cause in causes]


def test_a_finding_at_the_line_belongs_to_its_cause() -> None:
    before, now = Detail((ADD,), RUNS), seen(ADD, row(BLOCK, "clone", 4), runs=RUNS)
    finding = Finding("contiguous-copy", 4, "cloned again", location="lib.py:9", fix="clone once")
    (cause,) = causes_of(before, now, more_of(ops=(4, 8)), [finding])
    assert ("new_operators", "contiguous-copy", "clone once") == (
        cause.kind,
        cause.finding,
        cause.fix,
    )
    (alone,) = causes_of(before, seen(ADD, runs=RUNS), more_of(findings=(0, 4)), [finding])
    assert ("finding", "lib.py:9") == (alone.kind, alone.place)


def test_a_loader_without_workers_explains_what_its_data_set_calls() -> None:
    item = "lib.py::helper"
    callers = {item: (Caller(line(TEST, 7), "torch.utils.data._utils.fetch.fetch", 8),)}
    now = seen(row(item, "rand", 8), ADD, runs=RUNS, callers=callers)
    names = [{f"enumerate(DataLoader)#{kind}.__next__": {"calls": 9}} for kind in
             ("_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter")]  # fmt: skip
    found = causes_of(
        Detail((ADD,), RUNS), now, more_of(ops=(4, 12)), operators=(names[0], names[1])
    )
    assert [("loader", "test_x.py:7")] == [(one.kind, one.place) for one in found]


@pytest.mark.parametrize("column", ["ops", "calls"])
def test_without_a_detail_causes_are_by_operator(column: str) -> None:
    before = {"aten::copy_": {column: 2}}
    now = {"aten::copy_": {"ops": 6, "calls": 6}, "aten::view": {"calls": 9}}
    (cause,) = causes_of(None, seen(), more_of(ops=(2, 6)), operators=(before, now))
    assert ("copy_ 2 → 6", None) == (cause.message, cause.place)
    assert "by operator alone" in cause.evidence[0]


def test_without_operators_a_new_way_of_calling_is_told() -> None:
    before = Detail((ADD,), RUNS, {BLOCK: {f"{NET} text": 4}})
    callers = {BLOCK: (Caller(line(NET), "torch.utils.checkpoint.checkpoint", 4),)}
    now = seen(ADD, runs=RUNS, callers=callers)
    kind, place, _, message = first(before, now, allocated_cpu_bytes=(100, 200))
    assert ("unknown", "lib.py:20") == (kind, place)
    assert "Block.forward is called through torch.utils.checkpoint.checkpoint now" == message


def test_what_is_slower_is_named_by_its_share_of_the_time() -> None:
    before = Detail((row(BLOCK, "mm", 4, share=0.5), row(NET, "add", 1, share=0.1)), RUNS)
    now = seen(row(BLOCK, "mm", 4, share=0.1), row(NET, "add", 1, share=0.85), runs=RUNS)
    kind, place, _, message = first(before, now, cpu_ms=(4, 40))
    assert ("slower", "lib.py:20") == (kind, place)
    assert "add takes about 400 us → 34 ms of CPU time" == message


def test_what_one_of_several_processes_does_more_is_named_with_its_line() -> None:
    """Rows, runs, and calls are those of all; a share of CPU time is the test's own process's."""
    once = {BLOCK: (Caller(line(NET), "", 4),)}
    main = seen(
        row(TEST, "ones", 1, share=1.0), runs={TEST: 1}, held=(HeldRow(TEST, "x", 8, 8, 0),)
    )
    held = (HeldRow(BLOCK, "aten::add", 8, 8, 1),)
    rank = seen(ADD, replace(MM, share=0.5), runs=RUNS, held=held, callers=once)
    more = seen(ADD, row(BLOCK, "mm", 5, flops=5_000), runs=RUNS, held=held, callers=once)
    before, now = together([main, rank, rank]), together([main, rank, more])
    assert {one.operator: (one.calls, one.flops, one.share) for one in before.detail.rows} == {
        "aten::ones": (1, 0, 1.0), "aten::add": (8, 0, 0.0), "aten::mm": (8, 8_000, 0.0)
    }  # fmt: skip
    assert {TEST: 1, BLOCK: 8, NET: 2} == before.detail.runs
    assert HeldRow(BLOCK, "aten::add", 16, 8, 2) in before.detail.held  # of peaks the largest
    assert (Caller(line(NET), "", 8),) == before.callers[BLOCK]
    assert main == together([main])
    assert ("new_operators", "lib.py:9", "Block.forward", "mm is called 9 times instead of 8") == (
        first(before.detail, now, ops=(17, 18), flops=(8_000, 9_000))
    )
