"""torch.compile in tests: what counts, and that our runs do not make it compile again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from support.sessions import accept, calls, read_baseline, read_detail, run

from pytest_torchprof.baseline.store import render
from pytest_torchprof.capture.compiling import switched_off
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.verdict.metrics import METRICS


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load the compiler whole: inner sessions forget imports, and it cannot be loaded twice."""
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


SHARED = """
    import torch

    def twice(x):
        return x.sin() + x.cos()

    compiled = torch.compile(twice, backend="eager")
    X = torch.ones(4, 4)

    def test_one():
        compiled(X)

    def test_other():
        compiled(X)
"""

BREAKS = """
    import torch

    X = torch.ones(4, 4)

    def broken(x):
        y = x.sin()
        print("a graph break")
        return y.cos()

    def test_anew():
        torch.compile(broken, backend="eager")(X)
"""

RECOMPILES = """
    import torch

    def test_recompiles():
        def twice(x, flag):
            return x.sin() if flag else x.cos()

        compiled = torch.compile(twice, backend="eager")
        compiled(torch.ones(4), True)
        compiled(torch.ones(4), False)
"""

CALLED = """
    import torch

    def test_called(torchprof):
        compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
        torchprof(lambda: compiled(torch.ones(4)), rounds=3)
"""


QUOTED = r"""
    import torch

    def test_it():
        def broken(x):
            torch._dynamo.graph_break(msg='a "quoted" b\\c')
            return x.cos()

        torch.compile(broken, backend="eager")(torch.ones(4))
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    torch.__version__.startswith("2.6"), reason="graph_break() of torch 2.6 takes no message"
)
def test_a_reason_of_dynamos_with_quotes_or_backslashes_loses_no_trace(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=QUOTED)
    ran = run(pytester, "--torchprof")
    assert 1 == ran.metric("graph_breaks", "test_it")["value"], ran.out


#: What torch's own records of the first run say, without a device.
OF_FIRST_RUN = [
    name for name, metric in METRICS.items() if metric.depends_on_order and name != "cudagraphs"
]

OFF = """
    import contextlib
    import pytest, torch, torch._dynamo.config

    @pytest.fixture(autouse=True, scope="module")
    def off():
        with {setup}: yield

    def broken(x):
        torch._dynamo.graph_break()
        return x.cos()

    @pytest.mark.max_graph_breaks(0)
    @pytest.mark.max_recompiles(0)
    @pytest.mark.max_graphs(1)
    def test_it():
        torch.compile(broken, backend="eager")(torch.ones(4))
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("variable", "setup", "how"),
    [
        ("TORCHDYNAMO_DISABLE", "contextlib.nullcontext()", "TORCHDYNAMO_DISABLE=1"),
        (
            None,
            "torch.compiler.set_stance('force_eager')",
            "the stance force_eager",
        ),
        (
            None,
            "torch._dynamo.config.patch(disable=True)",
            "torch._dynamo.config.disable",
        ),
    ],
    ids=["variable", "stance", "config"],
)
def test_nothing_is_known_of_compilations_where_the_compiler_is_switched_off(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    setup: str,
    how: str,
) -> None:
    pytester.makepyfile(test_it=OFF.format(setup=setup))
    if variable:
        monkeypatch.setenv(variable, "1")
    reason = because(*Why.DYNAMO_OFF, how=how).text
    ran = run(pytester, "--torchprof")
    for name in OF_FIRST_RUN:
        row = ran.metric(name, "test_it")
        assert (None, "not_measured", reason) == (row["value"], row["status"], row["reason"])
    for name in ("graph_breaks", "recompiles", "graphs"):
        assert f"budget max_{name} not checked: {reason}" in ran.out
    accept(pytester)
    assert not any(name in str(read_baseline(pytester)) for name in OF_FIRST_RUN)


UNCOMPILED = """
    import pytest
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    STANCE, CONFIG = torch.compiler.set_stance, torch._dynamo.config.patch
    X = torch.ones(4, 4)

    def broken(x):
        torch._dynamo.graph_break()
        return x @ x

    def one_by_one(x):
        yield x @ x

    def backend(graph, examples):
        raise RuntimeError("no such target")

    @pytest.mark.max_graph_breaks(0)
    @pytest.mark.max_recompiles(0)
    def test_it():
        torch.compiler.reset()
        {body}
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "body",
    [
        "torch.compile(broken, disable=True)(X)",
        "with FlopCounterMode(display=False): torch.compile(broken, backend='eager')(X)",
        "with STANCE('eager_on_recompile'): torch.compile(broken, backend='eager')(X)",
        "with STANCE('force_eager'): torch.compile(broken, backend='eager')(X)",
        "with CONFIG(disable=True): torch.compile(broken, backend='eager')(X)",
        "with CONFIG(suppress_errors=True): torch.compile(lambda x: x @ x, backend=backend)(X)",
        "list(torch.compile(one_by_one, backend='eager')(X))",
    ],
    ids=["disabled", "mode", "stance", "forced", "config", "failing", "generator"],
)
def test_of_what_ran_uncompiled_no_graph_break_is_known(
    pytester: pytest.Pytester, body: str
) -> None:
    pytester.makepyfile(test_it=UNCOMPILED.format(body=body))
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    for name in ("graph_breaks", "recompiles"):
        row = ran.metric(name, "test_it")
        assert (None, "not_measured") == (row["value"], row["status"]), (name, row)
        assert f"budget max_{name} not checked: " in ran.out


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "body",
    [
        "torch.compile(lambda x: x @ x, backend='eager')(X)",
        "X @ X",
        "torch.compiler.disable(broken)(X)",
        "torch.compile(broken, backend='eager')",
    ],
    ids=["compiled", "plain", "a disabled function", "never called"],
)
def test_what_ran_compiled_or_asked_for_no_compiler_has_no_graph_breaks(
    pytester: pytest.Pytester, body: str
) -> None:
    pytester.makepyfile(test_it=UNCOMPILED.format(body=body))
    ran = run(pytester, "--torchprof")
    assert [0, 0] == [ran.metric(m, "test_it")["value"] for m in ("graph_breaks", "recompiles")]


GRAPHS = """
    import pytest
    import torch
    from torch._dynamo.testing import CompileCounter

    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    def test_two():
        torch.compiler.reset()
        counter = CompileCounter()
        torch.compile(broken, backend=counter)(torch.ones(4))
        assert counter.frame_count == 2

    @pytest.mark.max_graphs(1)
    def test_over():
        torch.compiler.reset()
        torch.compile(broken, backend="eager")(torch.ones(4))

    @pytest.mark.max_graphs(0)
    @pytest.mark.max_compile_ms(0)
    def test_eager():
        broken(torch.ones(4))

    def test_cleared():
        torch.compiler.reset()
        torch.compile(broken, backend="eager")(torch.ones(4))
        torch._dynamo.utils.counters.clear()
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(4))
"""


@pytest.mark.thorough
def test_graphs_are_those_that_a_backend_gets_in_the_first_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=GRAPHS)
    ran = run(pytester, "--torchprof")
    found = [ran.metric("graphs", name)["value"] for name in ran.tests]
    assert [2, 2, 0, 3] == found, ran.out
    assert {"passed": 3, "failed": 1} == ran.outcomes
    assert "graphs" in ran.out
    spent = [ran.metric("compile_ms", name)["value"] for name in ran.tests]
    assert 0 == spent[2]
    assert min(spent[0], spent[1], spent[3]) > 0
    for name in ("cudagraph_skips", "compile_cache_hits", "compile_cache_misses"):
        assert [0] * 4 == [ran.metric(name, test)["value"] for test in ran.tests]


EARLIER = """
    import pytest
    import torch

    compiled = torch.compile(lambda x: x.sin(), backend="eager")
    X = torch.ones(4, 4)

    def test_one():
        compiled(X)

    @pytest.mark.max_graphs(1)
    @pytest.mark.max_compile_ms(1)
    def test_within():
        compiled(X)

    @pytest.mark.max_graphs(0)
    def test_over():
        compiled(X)
        torch.compile(lambda x: x.cos(), backend="eager")(X)
"""


@pytest.mark.thorough
def test_graphs_of_code_that_was_compiled_earlier_are_not_taken_for_none(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=EARLIER)
    ran = run(pytester, "--torchprof")
    assert {"passed": 2, "failed": 1} == ran.outcomes
    rows = {name: ran.metric("graphs", name) for name in ("test_one", "test_within", "test_over")}
    assert ["new", "not_measured", "over_budget"] == [row["status"] for row in rows.values()]
    assert "compiled before the test started" in str(rows["test_within"]["reason"])
    assert "budget max_graphs not checked" in ran.out
    assert "budget max_compile_ms not checked" in ran.out


def test_a_metric_that_a_baseline_lacks_is_new_until_the_next_accept(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it="import torch\n\ndef test_it():\n    torch.ones(3).add_(1)")
    accept(pytester)
    path = pytester.path / "__torchprof__" / "test_it.json"
    full = path.read_text("utf-8")
    added = ("graphs", "cudagraph_skips", "moved_bytes")
    older = json.loads(full)
    (entry,) = older["tests"]["test_it"].values()
    for name in added:
        entry["zero"] = [zero for zero in entry["zero"] if zero != name]
        entry["metrics"].pop(name, None)
    path.write_text(before := render(older), "utf-8")
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    assert ["new"] * 3 == [ran.metric(name, "test_it")["status"] for name in added]
    assert before == path.read_text("utf-8")
    assert "moved_bytes" in run(pytester, "--torchprof", "--torchprof-strict").out
    accept(pytester)
    (accepted,) = json.loads(path.read_text("utf-8"))["tests"]["test_it"].values()
    (first,) = json.loads(full)["tests"]["test_it"].values()
    assert (first["metrics"], first["zero"]) == (accepted["metrics"], accepted["zero"])


@pytest.mark.thorough
@pytest.mark.parametrize("reset", ["torch.compiler.reset()", ""])
def test_loops_that_an_earlier_test_compiled_are_not_missing_in_another(
    pytester: pytest.Pytester, reset: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest
        import torch
        import torch._inductor.config as inductor
        from torch import nn

        def test_frozen():
            torch.compiler.reset()
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
            options = dict(max_autotune=True, freezing=True, max_autotune_gemm_backends="CPP")
            with inductor.patch(**options), torch.no_grad():
                torch.compile(model)(torch.ones(32, 64))

        def test_other():
            {reset}
            torch.compile(lambda x: x * 2, backend="eager")(torch.ones(4, 4))
        """
    )
    if run(pytester, subprocess=True).ret:
        pytest.skip("this torch cannot compile the frozen model")
    ran = run(pytester, "--torchprof", subprocess=True)
    assert 0 == ran.metric("flops", "test_other")["value"], ran.metric("flops", "test_other")
    frozen = ran.metric("flops", "test_frozen")
    assert frozen["value"] in {None, 2 * 32 * 64 * 64}, frozen


@pytest.mark.parametrize("loaded", [False, True])
def test_the_variable_counts_only_until_the_compiler_has_read_it(
    monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch._dynamo.config")
    assert (None if loaded else "TORCH_COMPILE_DISABLE=1") == switched_off()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("threads", ["1", "2", "keep"])
def test_the_profiled_run_does_what_compiled_code_does_not_what_compiling_does(
    pytester: pytest.Pytester, threads: str
) -> None:
    pytester.makepyfile(test_it=SHARED)
    pytester.makeconftest("import torch\ntorch.set_num_threads(2)")
    ran = run(pytester, "--torchprof", f"--torchprof-threads={threads}")
    # Cache lookup, region and, since torch 2.7, its bytecode are events of operators' category too.
    one, other = (ran.metric("dispatches", name)["value"] for name in ran.tests)
    assert one == other
    assert one in {5, 6}
    assert [3, 3] == [ran.metric("ops", name)["value"] for name in ran.tests]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rounds",
    [0, pytest.param(1, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize(
    "warmup",
    [0, pytest.param(1, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough)],
)
def test_compilation_counts_do_not_grow_with_the_number_of_runs(
    pytester: pytest.Pytester, rounds: int, warmup: int
) -> None:
    pytester.makepyfile(test_it=BREAKS + RECOMPILES)
    ran = run(
        pytester, "--torchprof", f"--torchprof-rounds={rounds}", f"--torchprof-warmup={warmup}"
    )
    counts = [
        ran.metric(metric, test)["value"]
        for test in ("test_anew", "test_recompiles")
        for metric in ("graph_breaks", "recompiles")
    ]
    assert [1, 0, 0, 1] == counts


def test_a_callable_is_counted_over_its_own_calls(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CALLED)
    ran = run(pytester, "--torchprof")
    values = [ran.metric(m, "test_called")["value"] for m in ("graph_breaks", "recompiles")]
    assert [0, 0] == values


@pytest.mark.thorough
def test_code_that_an_earlier_test_compiled_leaves_no_count_to_compare(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SHARED)
    ran = accept(pytester)
    assert 0 == ran.metric("graph_breaks", "test_one")["value"]
    later = ran.metric("graph_breaks", "test_other")
    assert (None, "the test runs code that was compiled before the test started") == (
        later["value"],
        later["reason"],
    )
    for names in (["test_other"], ["test_other", "test_one"]):
        alone = run(pytester, "--torchprof", *(f"test_it.py::{name}" for name in names))
        assert {"passed": len(names)} == alone.outcomes


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize("chosen", ["test_other", "test_one or test_other"])
@pytest.mark.parametrize("accepted", ["test_other", "test_one or test_other"])
def test_strict_does_not_require_counts_that_depend_on_earlier_tests(
    pytester: pytest.Pytester, chosen: str, accepted: str
) -> None:
    pytester.makepyfile(test_it=SHARED)
    accept(pytester, "-k", accepted)
    ran = run(pytester, "--torchprof", "--torchprof-strict", "-k", chosen)
    assert {"ok"} == {
        test["status"] for name, test in ran.tests.items() if name in accepted and name in chosen
    }
    assert not re.search("strict: .*graph_breaks", ran.out)


@pytest.mark.thorough
def test_a_first_run_that_compiles_is_not_the_one_that_is_counted(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=BREAKS)
    accept(pytester)
    ran = run(pytester, "--torchprof", "--torchprof-warmup=0", "--torchprof-rounds=0")
    assert ({"passed": 1}, {"test_anew": "ok"}) == (ran.outcomes, ran.statuses)


@pytest.mark.parametrize(
    ("extra", "runs"),
    [
        # Warm-up, timed, profiled, and profiled once more.
        pytest.param((), 4, marks=pytest.mark.thorough),
        pytest.param(("--torchprof-warmup=0",), 3, marks=pytest.mark.thorough),
        pytest.param(
            ("--torchprof-warmup=0", "--torchprof-rounds=0"), 2, marks=pytest.mark.thorough
        ),
    ],
)
def test_a_test_that_compiles_in_each_run_is_profiled_twice_and_no_more(
    pytester: pytest.Pytester, extra: tuple[str, ...], runs: int
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        import torch._dynamo  # or the first call takes seconds, and needs no round after it

        def test_anew():
            with open("calls", "a") as file:
                print("called", file=file)
            torch.compiler.reset()
            torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(4))
        """
    )
    # In its own process: in this one xdist's thread may work, and the first run then not count.
    ran = run(pytester, "--torchprof", *extra, subprocess=True)
    assert ({"test_anew": "new"}, runs) == (ran.statuses, calls(pytester))


@pytest.mark.thorough
def test_the_numbers_of_compiled_frames_are_not_operators(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SHARED)
    accept(pytester)
    detail = read_detail(pytester, "test_one")
    assert 1 == detail["operators"]["Torch-Compiled Region"]["calls"]
    for args in (("-k", "test_other"), ("--torchprof-threads=1",)):
        assert "as many operators" not in run(pytester, "--torchprof", *args).out


FIXTURE = """
    import pytest
    import torch

    X = torch.ones(4)

    @pytest.fixture(scope="module")
    def compiled():
        def step(x):
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos()

        compiled = torch.compile(step, backend="eager")
        compiled(X)
        return compiled

    def test_that_sets_the_fixture_up(compiled):
        compiled(X)

    {marker}
    def test_later(compiled):
        compiled({argument})
"""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "argument", "statuses"),
    [
        ("max_graph_breaks(1)", "X", ("graph_breaks", 1, "ok")),
        ("max_graph_breaks(0)", "X", ("graph_breaks", 1, "over_budget")),
        ("max_recompiles(0)", "X", ("recompiles", 0, "ok")),
        ("max_recompiles(1)", "X.double()", ("recompiles", 2, "over_budget")),
    ],
)
def test_a_budget_holds_for_code_that_was_compiled_before_the_test(
    pytester: pytest.Pytester, marker: str, argument: str, statuses: tuple[str, int, str]
) -> None:
    text = FIXTURE.format(marker=f"@pytest.mark.{marker}", argument=argument)
    pytester.makepyfile(test_it=text)
    metric, value, status = statuses
    found = run(pytester, "--torchprof").metric(metric, "test_later")
    assert (value, status) == (found["value"], found["status"])


@pytest.mark.thorough
def test_without_a_budget_such_code_is_compared_with_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FIXTURE.format(marker="", argument="X.double()"))
    ran = accept(pytester)
    for metric in ("graph_breaks", "recompiles"):
        assert "not_measured" == ran.metric(metric, "test_later")["status"]
    alone = run(pytester, "--torchprof", "test_it.py::test_later")
    assert {"passed": 1} == alone.outcomes


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("body", "breaks"),
    [
        ("return x.cos() if x.sum() > 0 else x.sin()", 1),
        ("for _ in range(2): x = x.sin(); torch._dynamo.graph_break()\n        return x", 1),
        ("return x.cos() if x.shape[0] > 0 else x.sin()", 0),
    ],
)
def test_branches_on_values_and_frames_left_to_python_are_graph_breaks(
    pytester: pytest.Pytester, body: str, breaks: int
) -> None:
    pytester.makepyfile(
        test_it=f"""
    import pytest
    import torch

    def step(x):
        {body}

    @pytest.mark.max_graph_breaks(0)
    def test_it():
        torch.compile(step, backend="eager")(torch.ones(4))
    """
    )
    found = run(pytester, "--torchprof").metric("graph_breaks", "test_it")
    status = "over_budget" if breaks else "new"
    if found["value"] is None:  # of a torch that does not say it
        assert "step ran in Python, and this torch does not say" in found["reason"]
        assert "in range" in body
        return
    assert (breaks, status) == (found["value"], found["status"])


@pytest.mark.thorough
def test_a_reset_within_the_test_loses_no_graph_break(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def step(x):
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos()

        def test_it():
            for _ in range(2):
                torch._dynamo.reset()
                torch.compile(step, backend="eager")(torch.ones(4))
        """
    )
    ran = run(pytester, "--torchprof")
    assert [2, 0] == [ran.metric(m, "test_it")["value"] for m in ("graph_breaks", "recompiles")]


def test_the_kept_trace_says_where_and_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=BREAKS)
    args = ("--torchprof-traces=traces", "--torchprof-traces-of=all")
    file = run(pytester, "--torchprof", *args).tests["test_anew"]["trace"]
    (finding,) = check(read_trace(Path(str(file))), [RULES["graph-break"]]).findings()
    assert (1, f"{pytester.path}/test_it.py:7") == (finding.count, finding.location)
    assert "print" in finding.message
