"""What the ``torchprof`` fixture says of the parts that a test measures."""

import pytest
from support.sessions import run

HEAD = "import pytest, torch\n\nX = torch.ones(4)\n"
INLINE, STATS = "torchprof.assert_expected_inline('ops 1')", "assert torchprof.stats.ops == 1"
BLOCK, CALL = "with torchprof: X + X", "torchprof(lambda: X + X)"


@pytest.mark.parametrize("option", ["--torchprof", "--accept"])
@pytest.mark.parametrize(
    "body",
    [
        f"for _ in range(2):\n        {BLOCK}\n        {INLINE.replace('1', '7')}",
        f"for _ in range(2):\n        {CALL}\n        {STATS}",
        f"{BLOCK}\n    {CALL}\n    {STATS}",
        f"{CALL}\n    {INLINE}\n    {BLOCK}",
        f"def part():\n        {BLOCK}\n        {STATS}\n    part()\n    part()",
    ],
)
def test_numbers_of_two_regions_without_names_are_an_error(
    pytester: pytest.Pytester, body: str, option: str
) -> None:
    pytester.makepyfile(test_it=f"{HEAD}\ndef test_it(torchprof):\n    {body}\n")
    ran = run(pytester, option, "-q")
    assert ran.outcomes["failed"] == 1, ran.out
    assert "more than one region without a name" in ran.out
    assert ran.statuses == {"test_it": "not_profiled"}


@pytest.mark.parametrize("part", ["torchprof", "torchprof('part')"])
@pytest.mark.parametrize(
    ("body", "left"),
    [("x = f()", 400), ("f()", 0), ("x = f(); x += [x]", 400), ("x = f(); x += [x]; x = 0", 0)],
)
def test_leaked_is_what_is_live_at_the_end_of_a_block_and_not_at_its_start(
    pytester: pytest.Pytester, part: str, body: str, left: int
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
def f():
    return [torch.ones(100)]

def test_it(torchprof):
    with {part}:
        {body}
    x = 0
    numbers = torchprof.stats if "{part}" == "torchprof" else torchprof["part"]
    assert numbers.leaked_cpu_bytes == {left}

def test_laps(torchprof):
    with torchprof("outer"):
        for n in (10, 20, 40):
            with torchprof("step"):
                x = torch.ones(n)
    assert [lap.leaked_cpu_bytes for lap in torchprof["step"].laps] == [40, 40, 80]
    assert torchprof["step"].leaked_cpu_bytes == torchprof["outer"].leaked_cpu_bytes == 160
"""
    )
    ran = run(pytester, "--torchprof")
    assert ran.outcomes == {"passed": 2}, ran.out


@pytest.mark.parametrize(
    "body",
    [
        "torchprof.ab(fast, slow, min_time=0.05).assert_not_slower('5 %')",
        "assert torchprof.ab(fast, slow, min_time=0.05).verdict != 'slower'",
        f"with torchprof('a'): X + X\n    {STATS.replace('.stats', '[chr(97)]')}7",
        f"{BLOCK}\n    {STATS}7",
        f"{CALL}\n    {STATS}7",
    ],
)
def test_a_failed_comparison_of_measured_numbers_is_over_budget_and_says_so(
    pytester: pytest.Pytester, body: str
) -> None:
    source = f"import time\n{HEAD}\nfast, slow = lambda: 0, lambda: time.sleep(0.002)\n"
    pytester.makepyfile(test_it=f"{source}\ndef test_it(torchprof):\n    {body}\n")
    ran = run(pytester, "--accept", "--torchprof-html=page.html")
    test, why = ran.tests["test_it"], "assertion failed once the test's numbers were measured"
    assert (test["outcome"], test["status"]) == ("failed", "over_budget"), ran.out
    assert ran.metric("flops", "test_it")["value"] == 0
    assert why in test["reason"]
    assert why in ran.out
    assert why in (pytester.path / "page.html").read_text("utf-8")
    assert not (pytester.path / "__torchprof__").exists()
