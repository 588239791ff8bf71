"""What dynamo's records say, of any version: read from records like its own."""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter, defaultdict, deque
from traceback import FrameSummary
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_torchprof.capture import compiling
from pytest_torchprof.capture.compiling import CompileCount
from pytest_torchprof.core.unknown import because
from pytest_torchprof.trace.facts import CompileWork

LIBRARY = f"{sysconfig.get_path('purelib')}/net/blocks.py"
STDLIB = f"{sysconfig.get_path('stdlib')}/contextlib.py"
TORCH = f"{torch.__file__.removesuffix('__init__.py')}nn/modules/linear.py"


class Dynamo(SimpleNamespace):
    """Stands for ``torch._dynamo.utils``, with what dynamo notes of frames of ``net.py``."""

    def __init__(self, kept: int = 64) -> None:
        super().__init__(counters=defaultdict(Counter), graph_break_reasons=[], guard_failures={})
        self._compilation_metrics = deque[Any](maxlen=kept)

    def get_compilation_metrics(self) -> list[Any]:
        return list(self._compilation_metrics)

    def compiled(self, name: str = "0/0", **fields: Any) -> None:
        known = {"co_name": "step", "co_filename": "/projects/net.py", "co_firstlineno": 3}
        self._compilation_metrics.append(SimpleNamespace(compile_id=name, **{**known, **fields}))

    def broke(self, text: str, *frames: tuple[str, int]) -> None:
        stack = [FrameSummary(file, line, "step") for file, line in frames]
        self.counters["graph_break"][text] += 1
        self.graph_break_reasons.append(SimpleNamespace(reason=text, user_stack=stack))


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Dynamo:
    utils = Dynamo()
    monkeypatch.setattr(compiling, "_LOG", compiling._Log())
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    return utils


def test_nothing_is_read_until_dynamo_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_LOG", compiling._Log())
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    before = CompileCount.now()
    facts = CompileCount.now().since(before)
    assert (0, 0, ()) == (facts.graph_breaks, facts.recompiles, facts.compiled)


# ------------------------------------------------------------------ torch's own numbers


def test_until_dynamo_is_used_its_numbers_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_LOG", compiling._Log())
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    work = CompileCount.now().since(CompileCount.now()).compile_work
    none = CompileWork(graphs=0, cudagraph_skips=0, cache_hits=0, cache_misses=0, ms=0.0)
    assert none == work


def test_numbers_are_what_dynamos_counters_count_between_two_readings(dynamo: Dynamo) -> None:
    count(dynamo, 5)
    before = CompileCount.now()
    count(dynamo, 1)
    assert COUNTED_ONCE == CompileCount.now().since(before).compile_work


@pytest.mark.parametrize("counted", [0, 5])
def test_a_test_may_clear_dynamos_counters(dynamo: Dynamo, counted: int) -> None:
    count(dynamo, counted)
    before = CompileCount.now()
    count(dynamo, 2)
    dynamo.counters.clear()
    between = CompileCount.now()
    count(dynamo, 1)
    now = CompileCount.now()
    assert COUNTED_ONCE == now.since(between).compile_work
    assert 3 == (now.since(before).compile_work or CompileWork()).graphs


def test_a_test_may_clear_a_counter_in_place(dynamo: Dynamo) -> None:
    count(dynamo, 5)
    before = CompileCount.now()
    for counter in dynamo.counters.values():
        counter.clear()
    count(dynamo, 1)
    assert COUNTED_ONCE == CompileCount.now().since(before).compile_work


COUNTED_ONCE = CompileWork(graphs=1, cudagraph_skips=1, cache_hits=2, cache_misses=2, ms=0.0)


def count(dynamo: Dynamo, times: int) -> None:
    names = {
        "stats": ["unique_graphs", "calls_captured"],
        "aot_autograd": ["autograd_cache_hit", "autograd_cache_miss", "total"],
        "inductor": ["fxgraph_cache_hit", "fxgraph_cache_miss", "cudagraph_skips"],
    }
    for group, counted in names.items():
        for name in counted:
            dynamo.counters[group][name] += times


@pytest.mark.parametrize(
    ("records", "ms"),
    [
        ([], 0.0),
        # of a backend's later work, torch records only this duration
        ([{"duration_us": 1500, "entire_frame_compile_time_s": 1.0}, {"duration_us": 500}], 2.0),
        ([{"entire_frame_compile_time_s": 0.25}, {}], 250.0),
        ([{}], None),
    ],
)
def test_the_time_of_compiling_is_the_sum_over_records(
    dynamo: Dynamo, records: list[dict[str, Any]], ms: float | None
) -> None:
    before = CompileCount.now()
    for number, fields in enumerate(records):
        dynamo.compiled(f"{number}/0", **fields)
    work = CompileCount.now().since(before).compile_work
    assert work is not None
    assert ms == work.ms


def compiled_rest(
    dynamo: Dynamo, number: str, line: int, seconds: float | None, **fields: Any
) -> None:
    dynamo.compiled(
        number,
        co_name=f"torch_dynamo_resume_in_step_at_{line}",
        co_firstlineno=line,
        entire_frame_compile_time_s=seconds,
        **fields,
    )


@pytest.mark.parametrize("reasons", [None, set()])
def test_functions_of_one_name_are_told_apart_by_where_they_begin(
    dynamo: Dynamo, reasons: set[str] | None
) -> None:
    """What dynamo continues after, such as a jump, is in no record's reasons."""
    before = CompileCount.now()
    for number, line in enumerate((3, 10, 20)):
        dynamo.compiled(f"{number}/0", co_firstlineno=line, restart_reasons=reasons)
    dynamo.broke("generic_jump TensorVariable()", ("/projects/net.py", 12))
    (row,) = CompileCount.now().since(before).breaks or ()
    assert "1/0" == row.id


def test_a_skipped_function_does_not_take_the_break_of_another_of_its_name(
    dynamo: Dynamo,
) -> None:
    before = CompileCount.now()
    why = {"fail_type": "Unsupported", "fail_reason": "print in a loop", "restart_reasons": set()}
    dynamo.compiled("0/0", entire_frame_compile_time_s=9.0, **why)
    dynamo.broke("item", ("/projects/net.py", 15))
    at = {"co_firstlineno": 13, "restart_reasons": {"item"}}
    dynamo.compiled("1/0", entire_frame_compile_time_s=1.0, **at)
    compiled_rest(dynamo, "2/0", 15, 2.0, restart_reasons=set())
    rows = CompileCount.now().since(before).breaks or ()
    assert ["/projects/net.py:3", "/projects/net.py:15"] == [row.location for row in rows]


def test_a_recompilation_costs_the_backward_graph_too(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    dynamo.compiled("0/1", entire_frame_compile_time_s=1.0, recompile_reason="x == 1")
    dynamo.compiled("0/0", duration_us=7_000_000, is_forward=False)
    dynamo.compiled("0/1", duration_us=500_000, is_forward=False)
    dynamo.compiled("0/2", recompile_reason="x == 1")
    dynamo.compiled("0/1", entire_frame_compile_time_s=2.0, recompile_reason="after a reset")
    dynamo.compiled("0/1", duration_us=500_000, is_forward=False)
    dynamo.compiled("0/3", entire_frame_compile_time_s=2.0, recompile_reason="an old torch")
    dynamo.compiled("0/3", is_forward=False)
    rows = CompileCount.now().since(before).recompilations or ()
    assert [1500.0, None, 2500.0, None] == [row.ms for row in rows]


def test_what_compiled_code_does_at_run_time_is_no_compilation(dynamo: Dynamo) -> None:
    """Inductor records a CUDA graph in the second call of what an earlier run has compiled."""
    before = CompileCount.now()
    dynamo.compiled("0/1", duration_us=1_500, is_forward=True, is_runtime=True, co_name=None)
    recorded = CompileCount.now()
    assert not recorded.compiled_since(before)
    assert () == recorded.since(before).compiled
    dynamo.compiled("0/2")
    dynamo.compiled("0/2", duration_us=1_500, is_forward=True, is_runtime=True, co_name=None)
    assert CompileCount.now().compiled_since(recorded)
    assert ("0/2",) == CompileCount.now().since(recorded).compiled


def test_a_recompilation_does_not_cost_what_its_code_does_at_run_time(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    dynamo.compiled("0/1", entire_frame_compile_time_s=1.0, recompile_reason="x == 1")
    dynamo.compiled("0/1", duration_us=1_500, is_forward=True, is_runtime=True, co_name=None)
    (row,) = CompileCount.now().since(before).recompilations or ()
    assert 1000 == row.ms


def test_the_time_of_lost_records_is_unknown(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    for number in range(70):
        dynamo.compiled(f"{number}/0", duration_us=1)
    work = CompileCount.now().since(before).compile_work
    assert work is not None
    assert work.ms is None


@pytest.mark.parametrize(
    ("frames", "location"),
    [
        ([("/projects/net.py", 5)], "/projects/net.py:5"),
        ([("/projects/net.py", 5), ("/projects/parts.py", 9)], "/projects/parts.py:9"),
        ([("/projects/net.py", 5), (LIBRARY, 9)], "/projects/net.py:5"),
        ([("/projects/net.py", 5), (TORCH, 9), (STDLIB, 7)], "/projects/net.py:5"),
        ([("/projects/net.py", 5), ("<eval_with_key>.1", 2)], "/projects/net.py:5"),
        ([(TORCH, 9)], None),
    ],
)
def test_a_break_is_on_the_innermost_line_of_the_user(
    dynamo: Dynamo, frames: list[tuple[str, int]], location: str | None
) -> None:
    before = CompileCount.now()
    dynamo.broke("call to f", *frames)
    (row,) = CompileCount.now().since(before).breaks or ()
    assert ("call to f", location) == (row.reason, row.location)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("callers", "location"),
    [
        (["/projects/train.py", TORCH], "/projects/train.py:1"),
        (["/projects/main.py", "/projects/train.py", TORCH, TORCH], "/projects/train.py:2"),
        (["/projects/train.py"], None),  # dynamo leaves the innermost callers out
        ([], None),
    ],
)
def test_a_break_inside_a_library_is_where_the_user_calls_it(
    dynamo: Dynamo, callers: list[str], location: str | None
) -> None:
    before = CompileCount.now()
    dynamo.broke("call to f", (TORCH, 9))
    stack = [
        f"Line: {line}, Name: f, Filename: {file}" for line, file in enumerate([*callers, TORCH], 1)
    ]
    dynamo.compiled(co_filename=TORCH, stack_trace=stack, restart_reasons={"call to f"})
    (row,) = CompileCount.now().since(before).breaks or ()
    assert (location, "0/0") == (row.location, row.id)


def test_a_break_after_which_the_frame_is_left_to_python_is_one(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    dynamo.broke("call to f", ("/projects/net.py", 9))
    dynamo.compiled(fail_type="Unsupported", fail_reason="call to f", restart_reasons=set())
    assert 1 == CompileCount.now().since(before).graph_breaks


@pytest.mark.parametrize("message", ["L['n'] == 4", None])
def test_older_versions_number_attempts_and_note_guards_apart(
    dynamo: Dynamo, message: str | None
) -> None:
    before = CompileCount.now()
    code = (lambda: 0).__code__.replace(co_filename="/projects/net.py", co_firstlineno=3)
    dynamo.guard_failures[code] = [message] if message else []
    for attempt in range(2):
        dynamo.compiled(f"0/{attempt}")
    (row,) = CompileCount.now().since(before).recompilations or ()
    why = f"{message} does not hold" if message else "a guard failed"
    assert f"step was recompiled: {why}" == row.reason


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ("0/0: x == 4    # return x * n  # net.py:5 in step", "x == 4 does not hold"),
        (
            "0/0: tensor 'x' dtype mismatch. expected Float",
            "tensor 'x' dtype mismatch. expected Float",
        ),
        ("0/1: ___check_obj_id(f, 140123456789012)", "___check_obj_id(f, ) does not hold"),
        ("GLOBAL_STATE changed: grad_mode", "GLOBAL_STATE changed: grad_mode"),
    ],
)
def test_the_failed_guard_is_reported_in_one_line(dynamo: Dynamo, guard: str, message: str) -> None:
    before = CompileCount.now()
    dynamo.compiled("0/0", recompile_reason=None)
    dynamo.compiled("0/1", recompile_reason=guard)
    (row,) = CompileCount.now().since(before).recompilations or ()
    assert f"step was recompiled: {message}" == row.reason


WRAPPER = f"{torch.__file__.removesuffix('__init__.py')}_dynamo/external_utils.py"
PARAMETER = (
    "0/0: tensor 's._parameters['w']' size mismatch at index 1. expected 8, actual 32. "
    "Guard failed on a parameter, consider using this and that."
)
TYPE = "0/0: ___check_type_id(fn, 94712345678), type=<class 'torch.nn.modules.conv.Conv1d'>  # here"


@pytest.mark.parametrize(
    ("fields", "message", "cause"),
    [
        ({}, "step was recompiled: x == 4 does not hold", None),
        (
            {"co_name": "torch_dynamo_resume_in_torch_dynamo_resume_in_step_at_7_at_149"},
            (
                "the rest of step after a graph break (line 149) was recompiled: "
                "x == 4 does not hold"
            ),
            "rest",
        ),
        (
            {"recompile_reason": PARAMETER},
            (
                "step was recompiled: tensor 's._parameters['w']' size mismatch at index 1. "
                "expected 8, actual 32"
            ),
            "model",
        ),
        (
            {"recompile_reason": TYPE, "co_name": "inner", "co_filename": WRAPPER},
            (
                "torch's own wrapper around a compiled built-in module was recompiled: "
                "fn is not a Conv1d"
            ),
            "wrapper",
        ),
        (
            {"co_name": "inner"},
            "inner was recompiled: x == 4 does not hold",
            None,
        ),
    ],
)
def test_a_recompiled_graph_is_named_correctly(
    dynamo: Dynamo, fields: dict[str, str], message: str, cause: str | None
) -> None:
    before = CompileCount.now()
    dynamo.compiled("0/1", **{"recompile_reason": "0/0: x == 4", **fields})
    (row,) = CompileCount.now().since(before).recompilations or ()
    assert (message, cause) == (row.reason, row.cause)


@pytest.mark.parametrize(
    ("guard", "cause"),
    [
        ("n == 2        # return x * n  # net.py:4 in step", None),
        ("L['n'] == -0.2", None),
        ("G['FACTOR'] == 1e-05", None),
        ("d['a'] == .5", None),
        ("tensor 'a' size mismatch at index 1. expected 5, actual 6", None),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", "tensor"),
        ("tensor 'L['x']' requires_grad mismatch. expected requires_grad=0", "tensor"),
        ("tensor 'x' rank mismatch. expected 1, actual 2", "tensor"),
        (
            "b.size()[1] == a.size()[1]  # duck sizing added this equality because of size 5",
            "equal sizes",
        ),
        ("b.size()[1] == a.size()[1]  # a + b  # net.py:4 in step", "condition"),
        ("2 <= L['a'].size()[1]  # a.sum(1)  # net.py:4 in step", "size 0 or 1"),
        ("(x.size()[0] % 4) == 0  # if len(x) % 4 == 0  # net.py:4 in step", "condition"),
        ("mode == 'max'", "value"),
        ("L['mode'] == '2'", "value"),
        ("mask is None     # if mask is None", "value"),
        ("flag == True", "value"),
        ("dtype == torch.float64", "value"),
        ("len(items) == 2", "value"),
        ("not ___dict_contains('mode', s.__dict__)", "value"),
        ("___check_obj_id(L['mask'], 140367695821792)", "value"),
        ("___check_type_id(n, 94023), type=<class 'int'>", "value"),
        ("expected type of 'm' to be a tensor type, ' but found <class 'NoneType'>", "value"),
    ],
)
def test_the_kind_of_a_recompilation_is_that_of_its_guard(
    dynamo: Dynamo, guard: str, cause: str | None
) -> None:
    before = CompileCount.now()
    dynamo.compiled(recompile_reason=None)
    dynamo.compiled("0/1", recompile_reason=f"0/0: {guard}\nUser stack trace:\n  x == 'y'")
    (row,) = CompileCount.now().since(before).recompilations or ()
    assert cause == row.cause


def test_an_attempt_that_dynamo_abandons_is_not_a_compilation(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    dynamo.compiled("0/0", recompile_reason=None)
    nothing = {"co_name": None, "co_filename": None, "co_firstlineno": None}
    why = {"fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded"}
    dynamo.compiled("0/8", recompile_reason="0/7: n == 7", **nothing, **why)
    facts = CompileCount.now().since(before)
    message = "dynamo gave up on step after 8 compilations and runs it uncompiled: n == 7 does not"
    assert [f"{message} hold"] == [row.reason for row in facts.recompilations or ()]
    assert 0 == facts.graph_breaks


@pytest.mark.parametrize(
    ("older", "message"),
    [
        (["0/1: n == 2"], "n == 2 does not hold"),
        (["0/1: n == 2", "0/0: n == 1"], "n == 2 does not hold"),  # of the same kind
        (
            ["0/0: n == 1", "0/1: n == 2", "0/0: tensor 'x' rank mismatch. expected 1, actual 2"],
            "n == 2 does not hold; or tensor 'x' rank mismatch. expected 1, actual 2",
        ),
        (["0/1: n == 2", "0/2: m == 1"], "n == 2 does not hold"),  # of a later attempt
        (["0/1: n == 2", "0/1: m == 1"], "n == 2 does not hold"),
    ],
)
def test_failed_guards_of_other_kinds_are_reported_too(
    dynamo: Dynamo, older: list[str], message: str
) -> None:
    before = CompileCount.now()
    dynamo.guard_failures[(lambda: 0).__code__] = older
    dynamo.compiled("0/2", recompile_reason="0/1: n == 2")
    (row,) = CompileCount.now().since(before).recompilations or ()
    assert f"step was recompiled: {message}" == row.reason


def test_guards_on_thread_counts_of_the_profiled_run_are_not_reported(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    threads = "0/1: GLOBAL_STATE changed: num_threads "
    dynamo.guard_failures[(lambda: 0).__code__] = [threads, "0/0: GLOBAL_STATE changed: grad_mode"]
    dynamo.compiled("0/2", recompile_reason=threads)
    (row,) = CompileCount.now().since(before).recompilations or ()
    message = "step was recompiled: GLOBAL_STATE changed: grad_mode"
    assert (message, "grad mode") == (row.reason, row.cause)


def test_the_backward_of_a_later_attempt_is_not_another_recompilation(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    for attempt, reason in enumerate([None, "0/0: x == 4"]):
        dynamo.compiled(f"0/{attempt}", is_forward=True, recompile_reason=reason)
        dynamo.compiled(f"0/{attempt}", is_forward=False, recompile_reason=None, co_name=None)
    assert 1 == CompileCount.now().since(before).recompiles


def test_more_records_are_kept_than_by_default(dynamo: Dynamo) -> None:
    def set_limit(size: int) -> None:
        dynamo._compilation_metrics = deque(dynamo._compilation_metrics, maxlen=size)

    dynamo.set_compilation_metrics_limit = set_limit
    before = CompileCount.now()
    for attempt in range(100):
        dynamo.compiled(f"0/{attempt}")
    assert 99 == CompileCount.now().since(before).recompiles


def test_dropped_records_are_reported(dynamo: Dynamo) -> None:
    before = CompileCount.now()
    for attempt in range(65):
        dynamo.compiled(f"0/{attempt}")
    facts = CompileCount.now().since(before)
    assert {because("compilations_lost", "torch keeps at most {kept} compilations", kept=64)} == {
        facts.recompiles,
        facts.graph_breaks,
    }


def test_a_test_that_clears_counters_and_reasons_keeps_its_own(dynamo: Dynamo) -> None:
    dynamo.broke("earlier", ("/projects/net.py", 5))
    dynamo.broke("earlier", ("/projects/net.py", 6))
    before = CompileCount.now()
    dynamo.counters.clear()
    dynamo.graph_break_reasons.clear()
    dynamo.broke("own", ("/projects/net.py", 7))
    facts = CompileCount.now().since(before)
    assert ["own"] == [row.reason for row in facts.breaks or ()]


def test_breaks_of_earlier_compilations_are_known_by_their_number(dynamo: Dynamo) -> None:
    dynamo.broke("earlier", ("/projects/net.py", 5))
    dynamo.compiled("0/0", restart_reasons={"earlier"})
    dynamo.compiled("1/0", co_name="torch_dynamo_resume_in_step_at_5")
    earlier = CompileCount.now().since(CompileCount.now()).earlier_breaks or {}
    assert {"0/0": ["earlier"]} == {
        name: [r.reason for r in rows] for name, rows in earlier.items()
    }


def test_after_a_reset_numbering_starts_over(dynamo: Dynamo) -> None:
    dynamo.broke("earlier", ("/projects/net.py", 5))
    dynamo.compiled("0/0", restart_reasons={"earlier"})
    CompileCount.now()
    dynamo.compiled("0/0", restart_reasons=set())
    assert {} == CompileCount.now().since(CompileCount.now()).earlier_breaks
