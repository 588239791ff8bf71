"""What one call of a module repeats is no loop over batches, in any session."""

from __future__ import annotations

import pytest
from support.sessions import accept, calls, run

SOURCE = """
    import torch
    from pathlib import Path
    from torch import nn

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower, self.out = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

        def forward(self, levels):
            return [self.out(self.tower(level).relu()) for level in levels]

    LEVELS = [torch.randn(1, 4, size, size) for size in (8, 4, 2, 1)]

    def test_one_call():
        with open({calls!r}, "a") as file:
            file.write("call\\n")
        assert len(Head()(LEVELS)) == 4

    def test_each_batch():
        head = Head()
        assert [head(LEVELS)[0].amax().item() for _ in range(3)]

    def test_beside_training():
        teacher, student = Head(), Head()
        for _ in range(3):
            target = teacher(LEVELS)[0].detach()
            sum(out.sum() for out in student(LEVELS)).add(target.sum()).backward()
"""


@pytest.fixture(autouse=True)
def _tests(pytester: pytest.Pytester) -> None:
    file = str(pytester.path / "calls")
    pytester.makepyfile(test_it=SOURCE.replace("{calls!r}", repr(file)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--torchprof-warmup=0", "--torchprof-rounds=0"), marks=pytest.mark.thorough),
    ],
)
def test_only_repeated_calls_are_found(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    ran = run(pytester, "--torchprof", *options)
    found = {name: [one["rule"] for one in test["findings"]] for name, test in ran.tests.items()}
    alone = ["missing-no-grad"] if options else []  # no other run can tell
    assert found["test_one_call"] == alone
    assert found["test_each_batch"] == found["test_beside_training"] == ["missing-no-grad"]
    assert ran.tests["test_one_call"]["metrics"]["findings"]["value"] == len(alone)


@pytest.mark.thorough
def test_beside_a_backward_pass_the_fix_is_what_training_can_use(
    pytester: pytest.Pytester,
) -> None:
    tests = run(pytester, "--torchprof").tests
    (plain,), (beside,) = (
        tests[name]["findings"] for name in ("test_each_batch", "test_beside_training")
    )
    assert plain["fix"].startswith("wrap it in torch.inference_mode()")
    assert beside["fix"].startswith("wrap it in torch.no_grad()")


@pytest.mark.thorough
def test_what_is_accepted_is_what_is_compared(pytester: pytest.Pytester) -> None:
    assert accept(pytester).tests["test_one_call"]["metrics"]["findings"]["value"] == 0
    assert run(pytester, "--torchprof").ret == 0


def test_the_run_that_tells_calls_is_the_one_that_tells_lines(pytester: pytest.Pytester) -> None:
    run(pytester, "--torchprof", "-k", "one_call", "--torchprof-rounds=1")
    assert calls(pytester) == 5  # the warm-up, the round, the profile, its tensors, its lines
