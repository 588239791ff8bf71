"""--torchprof-ignore: anti-pattern rules to switch off."""

from __future__ import annotations

import pytest
from support.sessions import ADD, run

ZEROS = """
    import pytest
    import torch

    @pytest.fixture
    def parts():
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        return optimizer

    {marker}
    def test_zeros(parts):
        parts.zero_grad(set_to_none=False)
"""


def findings(pytester: pytest.Pytester, marker: str, *args: str) -> set[str]:
    """The rules that matched, accepted ones left out."""
    pytester.makepyfile(test_it=ZEROS.format(marker=marker))
    (test,) = run(pytester, "--torchprof", *args).report["tests"]
    return {row["rule"] for row in test["findings"] if not row["accepted"]}


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("ini", "args", "found"),
    [
        (None, (), True),
        (None, ("--torchprof-ignore=grad-not-none",), False),
        (None, ("--torchprof-ignore=host-sync , grad-not-none",), False),
        (None, ("--torchprof-ignore=host-sync",), True),
        ("grad-not-none", (), False),
        ("grad-not-none", ("--torchprof-ignore=host-sync",), True),
    ],
)
def test_an_ignored_rule_finds_nothing(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], found: bool
) -> None:
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_ignore = {ini}")
    assert found is ("grad-not-none" in findings(pytester, "", *args))


def test_an_ignored_rule_does_not_count_among_the_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ZEROS.format(marker="@pytest.mark.max_findings(0)"))
    assert {"failed": 1} == run(pytester, "--torchprof").outcomes
    ignore = "--torchprof-ignore=grad-not-none,single-tensor-optimizer"
    ran = run(pytester, "--torchprof", ignore)
    assert ({"passed": 1}, 0) == (ran.outcomes, ran.metric("findings", "test_zeros")["value"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host-synk", "there is no anti-pattern rule 'host-synk'. Did you mean host-sync?"),
        ("host-sync,fp32", "there is no anti-pattern rule 'fp32'. "),
        ("zzz", "there is no anti-pattern rule 'zzz'. Known are: sync-dataloader, starved-"),
    ],
)
@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_rule_is_a_usage_error_with_the_near_matches(
    pytester: pytest.Pytester, text: str, message: str, where: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    given, source = [f"--torchprof-ignore={text}"], "--torchprof-ignore"
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_ignore = {text}")
        given, source = [], "ini option torchprof_ignore"
    assert f"ERROR: {source}: {message}" in run(pytester, "--torchprof", *given).usage_error()
