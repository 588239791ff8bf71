"""The run that tells the user's lines: right in every kind of code, and unnoticed by the test."""

from __future__ import annotations

import bdb
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.live import captured, placing
from support.messages import messages
from support.sessions import NO_OTHER_PLUGINS, Ran, accept, calls, replaced_rules, run
from support.trace_builder import TraceBuilder

from pytest_torchprof.capture import lines as tracing
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.places.place import LINE, MODULE, Located, Marks, _Run
from pytest_torchprof.render.findings import called_from
from pytest_torchprof.rules.rule import Matches, Rule
from pytest_torchprof.trace.names import REGION, Kind, selected_operators
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

MUL = "repeated-cast"
HERE = "# <- here"


def multiplications(trace: Events) -> Matches:
    return Matches(selected_operators(trace, "aten::mul"), "it multiplies")


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load the compiler whole: inner sessions forget imports, and it cannot be loaded twice."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


@pytest.fixture(autouse=True)
def rules() -> Iterator[dict[str, Rule]]:
    """One rule, which matches each multiplication."""
    with replaced_rules() as known:
        known[MUL] = Rule(MUL, multiplications, "add", "aten::mul$")
        yield known


def places(ran: Ran, test: str = "test_it") -> dict[str | None, str | None]:
    """Location → module of a test's findings."""
    return {f["location"]: f["module"] for f in ran.tests[test]["findings"]}


def marked(pytester: pytest.Pytester, *files: str) -> set[str]:
    """The lines with a mark."""
    return {
        f"{file}:{number}"
        for file in files
        for number, line in enumerate((pytester.path / file).read_text("utf-8").splitlines(), 1)
        if line.endswith(HERE)
    }


KINDS = {
    "plain": """
        def test_it():
            X + X
            X * X  # <- here
            X + X
    """,
    "two lines": """
        def test_it():
            X * X  # <- here
            X * X; X * X  # <- here
    """,
    "block": """
        def test_it(torchprof):
            X * X
            with torchprof:
                X + X
                X * X  # <- here
            X * X
    """,
    "callable": """
        def work():
            return X * X  # <- here

        def test_it(torchprof):
            assert torchprof(work).shape == (4,)
    """,
    "callable of another": """
        def test_it(torchprof):
            torchprof(lambda: X * X)  # <- here
    """,
    "helper": """
        def twice(x):
            return x * 2  # <- here

        def test_it():
            twice(X)
    """,
    "several lines": """
        def test_it():
            torch.add(
                X,
                X * X,  # <- here
            )
    """,
    "loop": """
        def test_it():
            for i in range(3):
                X + X
                X * X  # <- here
    """,
    "comprehension": """
        def test_it():
            [x * x for x in X]  # <- here
    """,
    "generator": """
        def batches():
            for _ in range(3):
                y = yield X
                y * y  # <- here

        def test_it():
            g = batches()
            next(g)
            for _ in range(2):
                g.send(X)
                X + X
            X * X  # <- here
    """,
    "exception": """
        def broken():
            try:
                X @ torch.ones(3)
            finally:
                X * X  # <- here

        def test_it():
            try:
                broken()
            except RuntimeError:
                X * X  # <- here
            with pytest.raises(RuntimeError):
                broken()
            X * X  # <- here
    """,
    "recursion": """
        def down(n):
            if n:
                down(n - 1)
                X * X  # <- here

        def test_it():
            down(200)
    """,
    "context manager": """
        import contextlib

        @contextlib.contextmanager
        def around():
            X * X  # <- here
            yield
            X * X  # <- here

        def test_it():
            with around():
                X + X
    """,
    "decorated": """
        @torch.no_grad()
        def work():
            X * X  # <- here

        def test_it():
            work()
    """,
    "property": """
        class Thing:
            @property
            def value(self):
                return X * X  # <- here

        def test_it():
            Thing().value
    """,
    "class": """
        class TestIt:
            def test_it(self):
                X * X  # <- here
    """,
    "parametrised": """
        @pytest.mark.parametrize("n", [1])
        def test_it(n):
            X * n  # <- here
    """,
    "fixture": """
        @pytest.fixture
        def work():
            yield lambda: X * X  # <- here

        def test_it(work):
            work()
    """,
    "unittest": """
        import unittest

        class TestIt(unittest.TestCase):
            def setUp(self):
                self.x = X * X  # <- here

            def test_it(self):
                X * X  # <- here
    """,
    "backward": """
        def test_it():
            x = X.clone().requires_grad_()
            y = (x * x).sum()  # <- here
            y.backward()
    """,
    "own backward": """
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x + x

            @staticmethod
            def backward(ctx, g):
                return g * 2  # <- here

        def test_it():
            Twice.apply(X.clone().requires_grad_()).sum().backward()
    """,
    "in place": """
        def test_it():
            x = X.clone()
            x[0] = X[0] * 2  # <- here
            x += 1
    """,
    "async by hand": """
        import asyncio

        async def work():
            await asyncio.sleep(0)
            X * X  # <- here

        async def main():
            await asyncio.gather(work(), work())
            X * X  # <- here

        def test_it():
            asyncio.run(main())
    """,
    "loader": """
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return X * i  # <- here

        def test_it():
            for batch in DataLoader(Data(), batch_size=2):
                batch * 2  # <- here
    """,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_is_at_the_users_line(pytester: pytest.Pytester, kind: str) -> None:
    body = "import pytest\nimport torch\n\nX = torch.ones(4)\n\n" + textwrap.dedent(KINDS[kind])
    (pytester.path / "test_it.py").write_text(body, "utf-8")
    ran = run(pytester, "--torchprof")
    (test,) = ran.report["tests"]
    assert "passed" == test["outcome"], ran.out
    assert marked(pytester, "test_it.py") == {f["location"] for f in test["findings"]}


def test_an_async_tests_lines(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_asyncio", reason="pytest-asyncio is not installed")
    pytester.makepyfile(
        test_it="""
        import asyncio, pytest, torch
        X = torch.ones(4)

        @pytest.mark.asyncio
        async def test_it(torchprof):
            await asyncio.sleep(0)
            with torchprof:
                X * X  # <- here
                await asyncio.sleep(0)
                X * X  # <- here
        """
    )
    scope = "-oasyncio_default_fixture_loop_scope=function"  # which some versions warn of, if unset
    ran = run(pytester, "--torchprof", scope, needs=("asyncio",))
    assert marked(pytester, "test_it.py") == set(places(ran))


# -------------------------------------------------------------------- whose line


def test_the_innermost_line_of_the_users_own_package_counts(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("net")
    (pytester.path / "net" / "model.py").write_text(
        "import torch\n\n"
        "class Block(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2  # <- here\n",
        "utf-8",
    )
    pytester.makepyfile(
        test_it="""
        import torch
        from net.model import Block

        def test_it():
            block = Block()
            block(torch.ones(4))
        """
    )
    pytester.syspathinsert()
    ran = run(pytester, "--torchprof")
    assert marked(pytester, "net/model.py") == set(places(ran))


def test_the_line_of_a_package_that_is_installed_is_the_one_that_calls_it(
    pytester: pytest.Pytester,
) -> None:
    folder = pytester.mkdir("site-packages")
    (folder / "installed_net.py").write_text("def twice(x):\n    return x * 2\n", "utf-8")
    pytester.syspathinsert(folder)
    pytester.makepyfile(
        test_it="""
        import torch
        from installed_net import twice

        def test_it():
            twice(torch.ones(4))  # <- here
        """
    )
    ran = run(pytester, "--torchprof")
    assert marked(pytester, "test_it.py") == set(places(ran))


def test_a_test_that_is_installed_itself_has_lines_all_the_same(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("site-packages")
    (folder / "test_it.py").write_text(
        "import torch\n\ndef test_it():\n    torch.ones(4) * 2  # <- here\n", "utf-8"
    )
    ran = run(pytester, "--torchprof", "site-packages/test_it.py")
    assert marked(pytester, "site-packages/test_it.py") == set(places(ran))


# -------------------------------------------------------------------- modules

NET = """
    import pytest, torch
    from torch import nn

    class Attention(nn.Module):
        def forward(self, x):
            return x * 2

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attention()
        def forward(self, x):
            return self.attn(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x
        def first(self, x):
            return self.blocks[0](x)

    X = torch.ones(4)
    MODEL = Net()

    @pytest.fixture
    def net():
        return Net()

    class Trainer:
        def __init__(self):
            self.model = Net()
        def step(self):
            self.model(X)

    {test}
"""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("body", "module", "modules"),
    [
        ("model = Net(); model(X)", "model.blocks.*.attn", 2),
        ("MODEL.blocks[1](X)", "MODEL.blocks.1.attn", 1),
        ("net(X)", "net.blocks.*.attn", 2),
        ("Trainer().step()", "model.blocks.*.attn", 2),
        ("net.first(X)", "net.blocks.0.attn", 1),
        ("Net()(X)", "Net.blocks.*.attn", 2),
        ("seq = nn.Sequential(Block(), Block()); seq(X)", "seq.*.attn", 2),
        ("Attention().forward(X)", None, None),
        ("net.blocks[0].attn(X)", "net.blocks.0.attn", 1),
        ("f = torch.compile(net, backend='eager'); f(X)", "f", 1),
        # What is only known by the name that pytest gives to a part of an assertion.
        ("assert Net()(X).shape == (4,)", "Net.blocks.*.attn", 2),
        ("assert Net().eval().blocks[1](X).shape == (4,)", "Block.attn", 1),
    ],
)  # fmt: skip
def test_a_finding_names_its_module(
    pytester: pytest.Pytester, body: str, module: str | None, modules: int | None
) -> None:
    pytester.makepyfile(test_it=NET.format(test=f"def test_it(net): {body}"))
    ran = run(pytester, "--torchprof")
    assert {(module, modules)} == {
        (f["module"], f["modules"]) for f in ran.tests["test_it"]["findings"]
    }


# -------------------------------------------------------------------- when


@pytest.mark.thorough
def test_only_a_test_with_something_to_say_is_run_once_more(pytester: pytest.Pytester) -> None:
    source = """
        import pytest, torch
        from support.sessions import note
        X = torch.ones(4)

        def test_good():
            note("good")
            X + X

        @pytest.mark.max_wall_ms(0)
        def test_slow():
            note("slow")
            X + X

        @pytest.mark.max_ops(0)
        def test_budget():
            note("budget")
            X + X

        def test_changed():
            note("changed")
            X + X{change}

        def test_found():
            note("found")
            X {operator} X
    """
    # A time that a busy machine makes longer is confirmed by further runs.
    pytester.makeini("[pytest]\ntorchprof_time = off")
    pytester.makepyfile(test_it=source.format(change="", operator="+"))
    run(pytester, "--accept")
    names = ("good", "slow", "budget", "changed", "found")
    assert [5, 5, 5, 5, 5] == [calls(pytester, name) for name in names]
    pytester.makepyfile(test_it=source.format(change=" + X", operator="*"))
    run(pytester, "--torchprof")
    assert [8, 8, 9, 9, 9] == [calls(pytester, name) for name in names]
    accept(pytester, "--deselect=test_it.py::test_budget", "--deselect=test_it.py::test_slow")
    assert [12, 8, 9, 14, 14] == [calls(pytester, name) for name in names]
    run(pytester, "--torchprof", "-k", "found")
    assert 17 == calls(pytester, "found")


def test_a_callable_is_called_once_more_within_the_same_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        from support.sessions import note
        X = torch.ones(4)

        def work():
            note("work")
            return X * X

        def test_it(torchprof):
            note("test")
            assert torchprof(work, warmup=2, rounds=3) is not None
        """
    )
    ran = run(pytester, "--torchprof")
    assert (1, 7) == (calls(pytester, "test"), calls(pytester, "work"))
    assert {"test_it.py:7"} == set(places(ran))


@pytest.mark.thorough
def test_where_the_profiled_run_is_the_only_one_the_message_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch
        @pytest.mark.no_antipatterns
        def test_it(): torch.ones(4) * 2
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-warmup=0", "--torchprof-rounds=0")
    assert {"aten::mul": None} == places(ran)
    lines = messages(ran.out)["test_it"]
    assert "    aten::mul: it multiplies" in lines
    assert (
        "  your lines are unknown: the profiled run was the only one "
        "(--torchprof-warmup=0 --torchprof-rounds=0)" in lines
    )


@pytest.mark.thorough
def test_under_xdist_too(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.mark.parametrize("n", [1, 2])
        @pytest.mark.no_antipatterns("for-loop-indexing")
        def test_it(n):
            x = torch.rand(40, 3)
            for i in range(40):
                row = x[i]  # <- here
                row + n
        """
    )
    ran = run(pytester, "--torchprof", "-n1", needs=("xdist",))
    assert {"failed": 2} == ran.outcomes
    assert {"over_budget"} == set(ran.statuses.values())
    for test in ran.report["tests"]:
        (found,) = [f for f in test["findings"] if f["rule"] == "for-loop-indexing"]
        assert (1, "test_it.py:8") == (found["count"], found["location"])


# -------------------------------------------------------------------- operators


def test_the_operators_that_changed_have_their_lines(pytester: pytest.Pytester) -> None:
    source = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def forward(self, x):
            y = x @ x
            return {more}y

    def test_it():
        net = Net()
        x = torch.ones(4, 4)
        x @ x
        net(x)
    """
    pytester.makepyfile(test_it=source.format(more=""))
    accept(pytester)
    pytester.makepyfile(test_it=source.format(more="x @ x @ "))
    lines = messages(run(pytester, "--torchprof").out)["test_it"]
    cost = "flops +100.0 %, moved_bytes +85.7 %, ops +2"
    what = "test_it.py:7 (Net.forward): matmul is called 3 times instead of 1"
    assert f"{what} — {cost}" == lines[0]
    assert 1 == sum("matmul" in line for line in lines)  # said once


def test_a_limit_within_an_operator_says_where_that_was_called(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.mark.max_flops(10, op="aten::mm")
        def test_it():
            x = torch.ones(4, 4)
            for _ in range(3):
                x @ x
        """
    )
    lines = messages(run(pytester, "--torchprof").out)["test_it"]
    assert "  aten::mm is called at test_it.py:7 (3×)" in lines


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([], ""),
        ([("a.py:3", None, 1)], "a.py:3"),
        ([("a.py:3", None, 2), ("b.py:1", None, 1)], "a.py:3 (2×), b.py:1"),
        ([("a.py:30", "net", 1), ("a.py:4", "net", 1)], "a.py:4, :30 in net"),
        ([("a.py:3", "net.0.attn", 1), ("a.py:3", "net.11.attn", 1)], "a.py:3 (2×) in net.*.attn"),
        ([("a.py:3", "net", 1), ("a.py:3", None, 1)], "a.py:3 (2×)"),
        ([("a.py:3", "net", 1), ("a.py:4", "model", 1)], "a.py:3, :4"),
        ([(f"a.py:{n}", None, 1) for n in range(1, 6)], "a.py:1, :2, :3, 2 more"),
    ],
)
def test_places_as_text(places: list[tuple[str, str | None, int]], text: str) -> None:
    assert text == called_from(places)


# -------------------------------------------------------------------- nobody's matter but ours


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "last",
    [
        "raise RuntimeError('three is enough')",
        "pytest.skip('three is enough')",
        "with torch.profiler.profile(): X + X",
        "sys.settrace(None)",
        "X + X",
    ],
)
def test_an_error_while_locating_leaves_the_numbers(pytester: pytest.Pytester, last: str) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, sys, torch
        X = torch.ones(4)
        RUNS = []

        def test_it():
            RUNS.append(1)
            X * X
            if len(RUNS) == 4:
                {last}
        """
    )
    ran = run(pytester, "--torchprof")
    test = ran.tests["test_it"]
    assert ("passed", "new", None) == (test["outcome"], test["status"], test["reason"])
    assert (1, 1) == (test["metrics"]["ops"]["value"], test["metrics"]["findings"]["value"])
    expected = "test_it.py:7" if last == "X + X" else "aten::mul"
    assert {expected: None} == places(ran)


def test_the_reason_for_missing_lines_is_in_the_message(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch
        RUNS = []

        @pytest.mark.no_antipatterns
        def test_it():
            RUNS.append(1)
            assert len(RUNS) < 4, "again"
            torch.ones(4) * 2
        """
    )
    lines = messages(run(pytester, "--torchprof").out)["test_it"]
    message = "  your lines are unknown: cannot be run twice: AssertionError: again"
    assert any(line.startswith(message) for line in lines), lines


@pytest.mark.parametrize(("report", "cost_ns"), [(False, 0), (True, 0), (False, -1)])
def test_what_fails_no_test_and_is_a_trifle_is_located_only_for_a_report(
    pytester: pytest.Pytester, rules: dict[str, Rule], report: bool, cost_ns: int
) -> None:
    def find(trace: Events) -> Matches:
        rows = selected_operators(trace, "aten::mul")
        return Matches(rows, "it multiplies", cost_ns=np.full(len(rows), cost_ns))

    rules[MUL] = Rule(MUL, find, "add", "aten::mul$")
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        def note(name):
            with open("calls", "a") as file:
                print(name, file=file)

        def test_new():
            note("new")
            torch.ones(4) * 2

        @pytest.mark.no_antipatterns
        def test_forbidden():
            note("forbidden")
            torch.ones(4) * 2
        """
    )
    args = ["--torchprof", *(["--torchprof-json=r.json"] if report else [])]
    pytester.runpytest_inprocess(*args, *NO_OTHER_PLUGINS).assert_outcomes(passed=1, failed=1)
    counted = Counter((pytester.path / "calls").read_text("utf-8").split())
    assert counted == {"new": 3 + (report or cost_ns < 0), "forbidden": 4}


def test_a_call_that_fails_while_locating_returns_what_the_one_before_did(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        X, CALLS = torch.ones(4), []

        def work():
            CALLS.append(1)
            assert len(CALLS) < 4
            return X * len(CALLS)

        def test_it(torchprof):
            assert torchprof(work)[0] == 3
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, {"test_it": "new"}) == (ran.outcomes, ran.statuses)


def test_a_tracer_is_taken_away_and_given_back_at_one_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that one that keeps count of calls and returns, as coverage's does, is not confused."""
    depths: list[int] = []
    settrace = REAL.settrace

    def noted(tracer: Any) -> None:
        depths.append(tracing._depth())
        settrace(tracer)

    monkeypatch.setattr(REAL, "settrace", noted)
    tracer = tracing.LineTracer()

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            tracer.stop()

    tracer.start()
    deeper(3)
    assert 2 == len(depths)
    assert depths[0] == depths[1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["settrace", "gettrace", "_getframe"])
def test_a_test_that_patches_what_tracing_needs_leaves_no_tracer_behind(
    pytester: pytest.Pytester, name: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import sys, torch

        def test_it(monkeypatch):
            monkeypatch.setattr(sys, "{name}", lambda *_: None)
            torch.ones(4) * 2
        """
    )
    before = sys.gettrace()
    try:
        ran = run(pytester, "--torchprof")
        now = sys.gettrace()
    finally:
        sys.settrace(before)
    assert now is before
    assert {"test_it.py:5": None} == places(ran)


def test_another_tracer_goes_on_afterwards(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def test_it(torchprof):
            with torchprof:
                torch.ones(4) * 2
        """
    )

    def tracer(_: FrameType, __: str, ___: object) -> Any:
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        ran = run(pytester, "--torchprof")
        now = sys.gettrace()
    finally:
        sys.settrace(before)
    assert now is tracer
    assert {"test_it.py:5": None} == places(ran)


@pytest.mark.thorough
def test_coverage_counts_on(pytester: pytest.Pytester) -> None:
    pytest.importorskip("coverage", reason="coverage is not installed")
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        @pytest.mark.max_ops(0)
        def test_it(torchprof):
            with torchprof:
                torch.ones(4) * 2
            later = 1

        def test_later():
            another = 1
        """
    )
    command = ["-m", "coverage", "run", "--include=test_it.py", "-m", "pytest", "--torchprof"]
    done = pytester.run(sys.executable, *command, "-p", "no:cacheprovider")
    done.stdout.fnmatch_lines(
        ["  aten::fill_  1 ops  test_it.py:7", "*2 tests profiled in 7 runs: *"]
    )
    done = pytester.run(sys.executable, "-m", "coverage", "report", "-m")
    done.stdout.fnmatch_lines(["test_it.py * 100%*"])


def test_a_debugger_is_left_alone(tmp_path: Path) -> None:
    class Debugger(bdb.Bdb):
        pass

    tracer = tracing.LineTracer()
    before, debugger = sys.gettrace(), Debugger()
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)
    try:
        tracer.start()
        now = sys.gettrace()
        tracer.stop()
    finally:
        sys.settrace(before)
    assert debugger.trace_dispatch == now
    assert (because("traced_by_debugger", "a debugger traces the test"), False) == (
        tracer.gap,
        tracer.usable,
    )


def test_a_test_that_traces_itself_gets_what_it_asks_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import sys, torch

        def work():
            return torch.ones(4) * 2

        def test_it():
            seen = []
            def tracer(frame, event, arg):
                seen.append((frame.f_code.co_name, event))
                return tracer
            before = sys.gettrace()
            sys.settrace(tracer)
            work()
            sys.settrace(before)
            assert ("work", "line") in seen
            assert ("work", "return") in seen
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, "new") == (ran.outcomes, ran.statuses["test_it"])


def test_too_many_lines_are_located_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MOST_MARKS", 50)
    tracer = tracing.LineTracer()
    tracer.start()
    for _ in range(100):
        pass
    before = len(tracer._open), sys.gettrace()
    tracer.stop()
    assert ((0, None), because(*Why.TOO_MANY_LINES, most=50), True) == (
        before,
        tracer.gap,
        tracer.usable,
    )


def test_findings_without_a_line_say_why(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MOST_MARKS", 50)
    pytester.makepyfile(
        test_it="""
        import torch

        X = torch.ones(4)

        def test_it():
            for i in range(100):
                X * X
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"test_it.py:7", "aten::mul"} == set(places(ran))
    why = "only the first 50 of your lines that run are located"
    assert why == ran.tests["test_it"]["reason"]
    ran.result.stdout.fnmatch_lines([f"*{why}*"])


@pytest.mark.thorough
def test_torch_compile_does_not_recompile_anything(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    @torch.compile(backend="eager")
    def work(x: torch.Tensor) -> torch.Tensor:
        y = helper(x)
        torch._dynamo.graph_break()
        return y * 3

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def block() -> None:
        work(torch.ones(4))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        block()
        trace = captured(block, tmp_path)
        before = dict(counters["frames"])
        place = placing(block, trace, tmp_path)
        assert before == dict(counters["frames"])
    finally:
        torch.set_num_threads(threads)
    found, at = place(trace, selected_operators(trace, "aten::mul"))
    first = work._torchdynamo_orig_callable.__code__.co_firstlineno  # type: ignore[attr-defined]
    numbers = [int((found[i].location or ":0").rpartition(":")[2]) for i in at.tolist()]
    assert [True, True] == [first <= number <= first + 5 for number in numbers]


# -------------------------------------------------------------------- two runs side by side


@pytest.mark.parametrize(
    ("known", "now", "expected"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("", "abc", [-1, -1, -1]),
        ("abc", "", []),
        # What is alike at the ends is known; in between, names that are there as often.
        ("axbc", "abc", [0, 2, 3]),
        ("abc", "axbc", [0, -1, 1, 2]),
        ("abxcba", "abcba", [0, 1, 3, 4, 5]),
        ("abcd", "acbd", [0, 2, 1, 3]),
        ("pxyq", "pyzxq", [0, 2, -1, 1, 3]),
        ("abab", "ababab", [0, 1, 2, 3, -1, -1]),
    ],
)
def test_runs_are_compared_side_by_side(known: str, now: str, expected: list[int]) -> None:
    words = [np.array([ord(c) for c in text], np.int64) for text in (known, now)]
    place = np.arange(len(known))
    assert expected == _Run(words[0], *[place] * 5).laid("place", words[1]).tolist()


def test_what_is_always_at_one_place_is_there_however_often() -> None:
    words = [np.array([ord(c) for c in text], np.int64) for text in ("axxb", "axxxxb")]
    place = np.array([5, 6, 6, 7])
    run = _Run(words[0], *[place] * 5)
    assert [5, 6, 6, 6, 6, 7] == run.laid("place", words[1]).tolist()


def gpu_step(*, marked: bool) -> Events:
    """A step on a device, whose backward runs in a thread of the engine's."""
    b = TraceBuilder("GPU")

    def line(number: int) -> AbstractContextManager[object]:
        return b.op(f"{LINE}{number}") if marked else nullcontext()

    def op(name: str, node: int) -> AbstractContextManager[object]:
        return b.op(name, args={"Sequence number": node, "Fwd thread id": 0})

    def module() -> AbstractContextManager[object]:
        return b.op(f"{MODULE}0") if marked else nullcontext()

    with b.annotation(REGION):
        with line(0), op("aten::to", 7):
            pass

        with line(1), module(), op("aten::linear", 7), op("aten::addmm", 7):
            b.launch("gemm")
        with line(2):
            if not marked:
                b.runtime("cudaMalloc")  # only once in a process
            b.sync("cudaDeviceSynchronize")
            with b.thread(99):
                name = "autograd::engine::evaluate_function: AddmmBackward0"
                back = {"Sequence number": 7, "Fwd thread id": 1}
                with b.op(name, args=back), b.op("AddmmBackward0", args=back), b.op("aten::mm"):
                    b.launch("gemm")
        with line(3):
            b.sync("cudaDeviceSynchronize")
    return parse_trace(b.to_bytes())


def test_waits_and_the_engines_own_thread_have_their_lines() -> None:
    marks = Marks(tuple(f"a.py:{n}" for n in range(4)), ("net.fc",))
    located = Located(gpu_step(marked=True), marks)
    trace = gpu_step(marked=False)

    def where(name: str) -> list[tuple[str | None, str | None]]:
        places, at = located(trace, np.flatnonzero(trace.named(name)))
        return [(places[i].location, places[i].module) for i in at.tolist()]

    assert [("a.py:0", None)] == where("aten::to")
    assert [("a.py:1", "net.fc")] == where("aten::addmm")
    assert [("a.py:1", "net.fc")] == where("aten::mm")
    assert [("a.py:2", None), ("a.py:3", None)] == where("cudaDeviceSynchronize")
    assert [("a.py:1", "net.fc")] * 2 == where("gemm")
    assert [("a.py:1", "net.fc")] * 2 == where("cudaLaunchKernel")
    assert [(None, None)] == where("cudaMalloc")


def test_a_live_blocks_operators_are_at_its_lines(tmp_path: Path) -> None:
    x = torch.ones(4)

    def block() -> None:
        x * x
        x + x

    trace = captured(block, tmp_path)
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & trace.selection)
    found, at = placing(block, trace, tmp_path)(trace, ops)
    first = block.__code__.co_firstlineno
    assert [f"{__file__}:{first + 1}", f"{__file__}:{first + 2}"] == [
        found[i].location for i in at.tolist()
    ]


def test_a_tracer_that_the_test_sets_briefly_hides_its_lines_and_is_reported(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import sys
        import torch
        def work(x):
            return x * 2
        def test_it():
            old = sys.gettrace()
            sys.settrace(lambda *_: None)
            try:
                work(torch.ones(4))
            finally:
                sys.settrace(old)
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"aten::mul": None} == places(ran)
