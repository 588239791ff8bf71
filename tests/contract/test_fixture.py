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
