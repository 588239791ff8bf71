"""Budgets of the whole project: the ini option ``torchprof_budgets``."""

from __future__ import annotations

import pytest
from support.sessions import run

TESTS = """
    import pytest
    import torch
    X = torch.ones(4)

    def test_one(): X + X

    def test_two(): (X + X) - X

    @pytest.mark.max_ops(9)
    def test_own(): (X + X) - X

    @pytest.mark.torchprof(enabled=False)
    def test_out(): (X + X) - X
"""


DEEP = "def test_deep(): torch.ones(4) + 1 + 1\n"


def session(pytester: pytest.Pytester, *lines: str) -> tuple[dict[str, str], str]:
    """The statuses of the tests under these lines, and the output."""
    pytester.makeini("[pytest]\ntorchprof_budgets =\n" + "".join(f"    {one}\n" for one in lines))
    folder = pytester.mkdir("unit") if not (pytester.path / "unit").exists() else None
    if folder is not None:
        (folder / "test_deep.py").write_text(f"import torch\n{DEEP}")
    pytester.makepyfile(test_it=TESTS)
    ran = run(pytester, "--torchprof")
    return ran.statuses, ran.out


@pytest.mark.thorough
@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("lines", "over"),
    [
        (["max_ops = 1"], {"test_two", "test_deep"}),
        (["max_ops = 2"], {"test_deep"}),
        (["unit/*: max_ops = 1"], {"test_deep"}),
        (["test_*.py: max_ops = 1"], {"test_two"}),
        (["max_ops = 1", "unit/*: max_ops = 100"], {"test_two"}),
        (["min_ops = 2"], {"test_one"}),
        (["max_ops = 0, op=aten::sub"], {"test_two", "test_own"}),
        (["max_ops = 1, op=aten::su*"], set()),
        (["max_ops = 1, on=cuda"], set()),
        (["max_allocated_cpu_bytes = 0.02 KiB"], {"test_two", "test_own", "test_deep"}),
        ([], set()),
    ],
)
def test_lines_limit_the_tests_of_matching_files(
    pytester: pytest.Pytester, lines: list[str], over: set[str]
) -> None:
    statuses, out = session(pytester, *lines)
    found = {name for name, status in statuses.items() if status == "over_budget"}
    assert over == found, out
    assert "not checked:" not in out  # also where the operator does not run


def test_the_failure_says_where_the_limit_stands(pytester: pytest.Pytester) -> None:
    _, out = session(pytester, "max_ops = 1", "max_ops = 0, op=aten::sub")
    assert "ops 2 is over the budget of 1  (torchprof_budgets in tox.ini)" in out
    assert "ops[op=aten::sub] 1 is over the budget of 0  (torchprof_budgets in tox.ini)" in out


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("max_opps = 1", "'max_opps = 1': max_opps: no such metric. Did you mean max_ops"),
        ("max_ops", "'max_ops': it is no budget; write lines like `tests/unit/*: max_peak_cpu_"),
        ("max_ops = much", '"much" is not a count'),
        ("max_ops = 1, opp=x", "max_ops has no argument 'opp'. Did you mean op"),
        ("max_ops = 1, on=H1000", "is no chip of the table of devices"),
        ("max_ops = -1", "-1 is not a count: it is negative"),
    ],
)
def test_an_invalid_line_is_one_clear_error(
    pytester: pytest.Pytester, line: str, shown: str
) -> None:
    pytester.makeini(f"[pytest]\ntorchprof_budgets = {line}\n")
    pytester.makepyfile(test_it="def test_it(): pass\n")
    message = run(pytester, "--torchprof").usage_error()
    assert "torchprof_budgets in tox.ini" in message
    assert shown in " ".join(message.split())
