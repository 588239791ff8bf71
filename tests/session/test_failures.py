"""A regression fails the test in its call phase, with a message that says what and why."""

from __future__ import annotations

import shlex
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.messages import messages
from support.sessions import ADD, accept, baseline_file, calls, doctor, run

MODEL = """
    import pytest
    import torch

    class Net(torch.nn.Module):
        def __init__(self, width={width}):
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, width), torch.nn.Linear(width, 4)

        def forward(self, x):
            x = self.first(x){extra}
            {hold}
            return self.last(torch.relu(x))

    @pytest.fixture
    def step():
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def run(x):
            {zero}
            model(x).sum().backward()
            optimizer.step()
        run(torch.ones(2, 8))
        return run

    def test_forward(): Net()(torch.ones(2, 8))

    def test_step(step): step(torch.ones(2, 8))

    def test_bystander(): torch.ones(2, 8) * 2
"""
GOOD = {"width": 16, "extra": "", "hold": "pass", "zero": "optimizer.zero_grad()"}
NET = {"test_forward", "test_step"}


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("change", "red", "shown"),
    [
        (
            {"extra": " * 2"},
            NET,
            ["  ops ", "(Net.forward): mul is new"],
        ),
        (
            {"width": 32},
            NET,
            ["  flops ", "linear", "allocated_cpu_bytes "],
        ),
        (
            {"hold": "self.kept = x.clone()"},
            NET,
            ["  ops ", "clone is new"],
        ),
        (
            {"zero": "pass"},
            {"test_step"},
            ["  ops ", "is a zero_grad missing?"],
        ),
    ],
    ids=["operator", "layer", "copy", "zero_grad"],
)
def test_a_change_turns_exactly_the_tests_concerned_red_and_is_named(
    pytester: pytest.Pytester, change: dict[str, object], red: set[str], shown: list[str]
) -> None:
    pytester.makepyfile(test_it=MODEL.format(**GOOD))
    accept(pytester)
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())
    pytester.makepyfile(test_it=MODEL.format(**{**GOOD, **change}))
    ran = run(pytester, "--torchprof")
    assert red == {name for name, test in ran.tests.items() if test["outcome"] == "failed"}
    assert red == {name for name, status in ran.statuses.items() if status == "regressed"}
    whole = 0
    for name in red:
        lines = messages(ran.out)[name]
        assert len(lines) <= 12, name
        assert f"accept: pytest --accept test_it.py::{name}" == lines[-1]
        if not lines[0].startswith("same cause as test_it.py::"):
            whole += 1
            for words in shown:
                assert any(words in line for line in lines), (name, words, lines)
    assert 1 == whole


def test_an_activation_held_alive_is_named_by_its_peak(pytester: pytest.Pytester) -> None:
    source = """
    import torch
    X = torch.ones(1024)

    def test_it():
        a = X + X
        {hold}
        a = None
        b = X * X
    """
    pytester.makepyfile(test_it=source.format(hold="pass"))
    accept(pytester)
    pytester.makepyfile(test_it=source.format(hold="c = a"))
    lines = messages(run(pytester, "--torchprof").out)["test_it"]
    assert "  peak_cpu_bytes 4 KiB → 8 KiB  (+100.0 %)" in lines
    assert lines[0].startswith("test_it.py:8 (test_it): what mul allocates is kept longer")


def test_the_message_to_the_letter(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    pytester.makepyfile(test_it=ADD.replace("X + X", "X + X - X"))
    assert [
        "test_it.py:6 (test_add): sub is new — ops +1, moved_bytes +100.0 %",
        "  ops 1 → 2  (+100.0 %), moved_bytes 48 B → 96 B  (+100.0 %)",
        "accept: pytest --accept test_it.py::test_add",
    ] == messages(run(pytester, "--torchprof").out)["test_add"]


def test_a_removed_operator_and_one_called_more_often_are_distinguished(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    pytester.makepyfile(test_it=ADD.replace("X + X", "X - X; X - X; X * X"))
    lines = messages(run(pytester, "--torchprof").out)["test_add"]
    assert lines[0].startswith("test_it.py:6 (test_add): sub ×2, mul are new — ops +2, ")
    assert "  gone: add" == lines[1]


@pytest.mark.thorough
@pytest.mark.parametrize("args", [(), ("--torchprof-strict",)])
def test_an_operator_in_anothers_place_is_noted_and_fails_nothing(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    pytester.makepyfile(test_it=ADD.replace("X + X", "X - X"))
    ran = run(pytester, "--torchprof", *args)
    assert ({"passed": 1}, {"test_add": "ok"}) == (ran.outcomes, ran.statuses)
    reason = "as many operators as accepted, but others: aten::add 1 → 0, aten::sub 0 → 1"
    assert reason == ran.tests["test_add"]["reason"]
    assert f"{reason} (test_it.py::test_add)" in ran.out.splitlines()
    accept(pytester)
    again = run(pytester, "--torchprof")
    assert (None, False) == (again.tests["test_add"]["reason"], "but others" in again.out)


def test_a_change_that_touches_everything_stays_within_12_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    calls_of_many = "; ".join(
        f"getattr(torch, {name!r})(X)"
        for name in ("sin", "cos", "tan", "exp", "log", "sqrt", "abs", "neg", "ceil", "floor")
    )
    body = f"A = torch.ones(9, 9); A @ A; {calls_of_many}"
    pytester.makepyfile(test_it=ADD.replace("X + X", body))
    lines = messages(run(pytester, "--torchprof").out)["test_add"]
    assert len(lines) <= 12
    assert any("more" in line for line in lines)
    assert lines[-1].startswith("accept: pytest --accept")


def test_the_accept_command_is_quoted_for_the_shell(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.mark.parametrize("p", ["a b'c"])
        def test_p(p): torch.ones(1)
        """
    )
    accept(pytester)
    doctor(pytester, "test_p[a b'c]", ops=0)
    out = run(pytester, "--torchprof").out
    assert """pytest --accept 'test_it.py::test_p[a b'"'"'c]'""" in out


def test_the_accept_command_works_where_it_is_printed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "other settings.ini").write_text("[pytest]\n", "utf-8")
    pytester.makepyfile(test_it=ADD)
    monkeypatch.chdir(pytester.mkdir("below"))
    options = [
        "--torchprof-warmup=2",
        "--torchprof-time=gate",
        "--torchprof-baselines=my numbers",
        "--torchprof-threads=2",
        "-c",
        "../other settings.ini",
        "--rootdir=..",
        "-o",
        "torchprof_rounds=0",
    ]
    given = [*options, "../test_it.py::test_add", "--torchprof-columns=ops"]
    accept(pytester, *given)
    path = pytester.path / "my numbers" / "test_it.json"
    accepted = path.read_text("utf-8")
    path.write_text(accepted.replace('"ops": 1', '"ops": 3'), "utf-8")
    ran = run(pytester, "--torchprof", "--torchprof-strict", *given)
    assert {"failed": 1} == ran.outcomes
    command = messages(ran.out)["test_add"][-1].removeprefix("accept: ")
    words = shlex.split(command)
    assert ["pytest", "--accept", *options, "../test_it.py::test_add"] == words
    accept(pytester, *words[2:])
    assert ('"ops": 1' in path.read_text("utf-8")) is ('"ops": 1' in accepted) is True


def test_accepting_prints_no_hint_to_accept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=0, peak_cpu_bytes=1)
    text = ADD.replace("import torch\n", "import torch, pytest\n")
    text = text.replace("def test_add", "@pytest.mark.max_peak_cpu_bytes(1)\n    def test_add")
    pytester.makepyfile(test_it=text)
    for option in ("--torchprof", "--accept"):
        ran = run(pytester, option)
        assert {"failed": 1} == ran.outcomes
        assert ("\naccept: " in ran.out) is (option == "--torchprof")


def test_several_metrics_are_listed_with_over_budget_first(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    text = ADD.replace("import torch\n", "import torch, pytest\n")
    text = text.replace("def test_add", "@pytest.mark.max_peak_cpu_bytes(1)\n    def test_add")
    pytester.makepyfile(test_it=text.replace("X + X", "X + X + X"))
    ran = run(pytester, "--torchprof")
    lines = messages(ran.out)["test_add"]
    assert "peak_cpu_bytes 32 B is over the budget of 1 B" == lines[0]
    assert lines[1].startswith("  also test_it.py:7 (test_add): add is called 2 times")
    assert "  ops 1 → 2  (+100.0 %), moved_bytes 48 B → 96 B  (+100.0 %)" in lines
    assert {"test_add": "over_budget"} == ran.statuses


# -------------------------------------------------------------------- an ordinary failure


@pytest.fixture
def regressed(pytester: pytest.Pytester) -> pytest.Pytester:
    """Two tests, of which the second has regressed."""
    pytester.makepyfile(
        test_it="""
        import torch
        X = torch.ones(4)
        def test_a(): X + X
        def test_b(): X + X
        def test_c(): X + X
        """
    )
    accept(pytester)
    doctor(pytester, "test_b", ops=0)
    return pytester


def test_it_fails_in_the_call_phase(regressed: pytest.Pytester) -> None:
    ran = run(regressed, "--torchprof", "-rA")
    assert {"passed": 2, "failed": 1} == ran.outcomes
    assert "FAILED test_it.py::test_b - ops 0 → 1 (from 0): regressed against the b" in ran.out
    assert "Traceback" not in ran.out
    assert "pytest_torchprof" not in ran.out.replace("plugins:", "")


def test_x_stops_at_it(regressed: pytest.Pytester) -> None:
    assert {"passed": 1, "failed": 1} == run(regressed, "--torchprof", "-x").outcomes


def test_lf_runs_it_again(regressed: pytest.Pytester) -> None:
    run(regressed, "--torchprof", needs=["cacheprovider"])
    ran = run(regressed, "--torchprof", "--lf", needs=["cacheprovider"])
    assert ({"failed": 1}, {"test_b"}) == (ran.outcomes, set(ran.tests))


def test_junit_sees_it(regressed: pytest.Pytester) -> None:
    run(regressed, "--torchprof", "--junitxml=junit.xml")
    cases = ET.parse(regressed.path / "junit.xml").getroot().iter("testcase")
    failed = {c.get("name"): c.find("failure") for c in cases if c.find("failure") is not None}
    assert ["test_b"] == list(failed)
    failure = failed["test_b"]
    assert failure is not None
    assert "regressed against the baseline" in (failure.text or "")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "outcome"),
    [
        ("@pytest.mark.xfail", "xfailed"),
        ("@pytest.mark.xfail(strict=False)", "xfailed"),
        ('@pytest.mark.xfail(reason="slow", strict=False)', "xfailed"),
        ("@pytest.mark.xfail(raises=ValueError)", "failed"),
    ],
)
def test_xfail_expects_it(pytester: pytest.Pytester, marker: str, outcome: str) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        X = torch.ones(4)

        {marker}
        @pytest.mark.max_ops(0)
        def test_add(): X + X
        """
    )
    ran = run(pytester, "--torchprof")
    test = ran.tests["test_add"]
    assert ({outcome: 1}, outcome, "over_budget") == (
        ran.outcomes, test["outcome"], test["status"],
    )  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("args", [(), ("--torchprof-strict",)])
@pytest.mark.parametrize("limit", ["", "@pytest.mark.max_ops(0)"])
def test_a_strict_xfail_that_passes_functionally_fails_and_is_not_compared(
    pytester: pytest.Pytester, limit: str, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        X = torch.ones(4)

        {limit}
        @pytest.mark.xfail(strict=True)
        def test_add(): X + X
        """
    )
    ran = run(pytester, "--torchprof", *args)
    test = ran.tests["test_add"]
    assert ({"failed": 1}, "failed", "not_profiled") == (
        ran.outcomes, test["outcome"], test["status"],
    )  # fmt: skip
    assert "passed against a strict xfail, which is a failure" == test["reason"]
    assert "[XPASS(strict)]" in ran.out
    assert {"failed" if limit else "passed": 1} == run(
        pytester, "--torchprof", "--runxfail"
    ).outcomes


def test_a_rerun_plugin_runs_it_again(regressed: pytest.Pytester) -> None:
    ran = run(regressed, "--torchprof", "--reruns=2", needs=["rerunfailures"])
    assert {"passed": 2, "failed": 1, "rerun": 2} == ran.outcomes
    assert {"test_a": "ok", "test_b": "regressed", "test_c": "ok"} == ran.statuses


# -------------------------------------------------------------------- functional failures


@pytest.mark.one_in(3)
@pytest.mark.parametrize("args", [("--torchprof",), ("--accept",), ("--torchprof", "-x")])
def test_a_functional_failure_is_never_masked_and_never_compared(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    before = baseline_file(pytester).read_bytes()
    text = ADD.replace("X + X", "X + X + X; assert X is None, 'my own words'")
    pytester.makepyfile(test_it=text)
    ran = run(pytester, *args)
    assert {"failed": 1} == ran.outcomes
    assert "AssertionError: my own words" in ran.out
    assert "regressed" not in ran.out
    test = ran.tests["test_add"]
    assert ("failed", "not_profiled", "failed", {}) == (
        test["outcome"], test["status"], test["reason"], test["metrics"],
    )  # fmt: skip
    assert before == baseline_file(pytester).read_bytes()


def test_a_functional_failure_ends_the_runs_of_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from support.sessions import note

        @pytest.mark.max_ops(0)
        def test_add():
            note("calls")
            assert 0
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-strict", "--torchprof-rounds=5")
    assert (1, "failed") == (calls(pytester), ran.tests["test_add"]["outcome"])
    assert "over budget" not in ran.out


def test_a_test_that_depends_on_the_thread_count_learns_which_run_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        torch.set_num_threads(2)

        def test_threads():
            assert torch.get_num_threads() == 2
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    reason = "fails in the profiled run, which has 1 intra-op thread (--torchprof-threads=keep "
    assert ran.tests["test_threads"]["reason"].startswith(reason)
    kept = run(pytester, "--torchprof", "--torchprof-threads=keep")
    assert {"test_threads": "new"} == kept.statuses


@pytest.mark.thorough
def test_a_test_that_cannot_run_twice_keeps_its_outcome(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        once = []

        def test_first():
            once.append(1)
            assert len(once) == 1, "a second run"
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, {"test_first": "not_profiled"}) == (ran.outcomes, ran.statuses)
    reason = ran.tests["test_first"]["reason"]
    assert reason.startswith("cannot be run twice: AssertionError: a second run")
    alone = run(pytester, "--torchprof", "--torchprof-warmup=0", "--torchprof-rounds=0")
    assert {"test_first": "new"} == alone.statuses


def test_two_modules_may_regress_apart(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(test_it=ADD, test_other=ADD)
    accept(pytester)
    doctor(pytester, ops=0)
    ran = run(pytester, "--torchprof")
    found = {test["nodeid"]: test["status"] for test in ran.report["tests"]}
    assert {"test_it.py::test_add": "regressed", "test_other.py::test_add": "ok"} == found


def test_a_line_that_calls_an_operator_within_a_module_and_outside_of_any(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import torch

        class Twice(torch.nn.Module):
            def forward(self, x):
                return double(x)

        def double(x):
            for _ in range({times}): x = x.mul(2)
            return x

        def test_it():
            double(torch.ones(8))
            Twice()(torch.ones(8))
    """
    pytester.makepyfile(test_it=textwrap.dedent(source.format(times=1)))
    accept(pytester)
    pytester.makepyfile(test_it=textwrap.dedent(source.format(times=3)))
    ran = run(pytester, "--torchprof")
    assert {"test_it": "regressed"} == ran.statuses, ran.out
    assert "test_it.py:8 (double): mul is called 6 times instead of 2 — " in ran.out


TRAINS = """
    import torch
    w, x = torch.ones(4, requires_grad=True), torch.ones(4)

    def test_it():
        w.grad = None
        (w * x).sum().backward()
        (w * x).sum().backward()
"""


def test_a_lost_detail_file_turns_nothing_red(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TRAINS)
    accept(pytester)
    (detail,) = pytester.path.glob("__torchprof__/*.detail.jsonl")
    detail.unlink()
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())


def test_an_odd_detail_file_leaves_a_regression_red_and_is_mended(
    pytester: pytest.Pytester,
) -> None:
    """It may be of a later version, or damaged."""
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    (detail,) = pytester.path.glob("__torchprof__/*.detail.jsonl")
    detail.write_text(detail.read_text("utf-8").replace("float32", "float77"), "utf-8")
    pytester.makepyfile(test_it=ADD.replace("X + X", "X + X + X"))
    assert {"failed": 1} == run(pytester, "--torchprof").outcomes
    detail.write_bytes(detail.read_bytes().replace(b"float77", b"float\xff7"))
    assert {"failed": 1} == run(pytester, "--torchprof").outcomes
    accept(pytester)
    assert "float32" in detail.read_text("utf-8")


def test_the_cause_of_a_test_that_may_fail_is_told_where_it_is_heard(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import pytest, torch
        X = torch.ones(4)
        def f(): return X + X{more}

        @pytest.mark.xfail
        def test_a(): f()

        def test_b(): f()
    """
    pytester.makepyfile(test_it=source.format(more=""))
    accept(pytester)
    pytester.makepyfile(test_it=source.format(more=" * X"))
    ran = run(pytester, "--torchprof")
    assert "test_it.py:3 (f): mul is new" in messages(ran.out)["test_b"][0]
