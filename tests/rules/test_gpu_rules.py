"""On a real GPU: what the rules find in programs as strangers write them, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from labelled import corpus, kept_traces, on_device
from support.sessions import run

from pytest_torchprof.rules.registry import CODES, RULES

if TYPE_CHECKING:
    from labelled.case import Case

#: On one GPU that multiplies TF32: it has no other to talk to, and reads of the host are its waits.
NO_POSITIVES = {"half-unused", "host-read"}
ELSEWHERE = {"exposed-communication", "small-collectives", "blocking-collective"}
#: Of a rule about a device's work; examples of the others also run on a CPU.
ENOUGH = 3


@pytest.mark.gpu
@pytest.mark.thorough
@pytest.mark.parametrize("case", on_device.cases(), ids=lambda case: f"{case.rule}:{case.name}")
def test_a_rule_matches_a_live_example_as_often_as_it_says(case: Case, tmp_path: Path) -> None:
    with on_device.settled():
        ran = on_device.run(case, tmp_path)
    assert [] == ran.problems


@pytest.mark.gpu
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # what torch says of the examples, and Python of their forks
@pytest.mark.parametrize("theme", sorted(corpus.themes()))
def test_no_rule_raises_on_what_the_cpu_s_examples_do_on_a_gpu(theme: str, tmp_path: Path) -> None:
    raised = {}
    for case in corpus.themes()[theme]:
        with on_device.settled():
            ran = on_device.run_moved(case, tmp_path)
        if ran is not None and ran.answer.checked.errors:
            raised[case.name] = dict(ran.answer.checked.errors)
    assert {} == raised


@pytest.mark.parametrize("code", [code for code in CODES if code not in ELSEWHERE])
def test_a_rule_has_live_examples_of_both_kinds(code: str) -> None:
    own = [case for case in on_device.cases() if case.rule == code]
    enough = ENOUGH if code in kept_traces.CODES else 1
    positives = sum(case.matches != 0 for case in own)
    assert positives >= (0 if code in NO_POSITIVES else enough)
    assert len(own) - positives >= enough


def test_live_examples_are_of_rules_that_exist_and_have_names_of_their_own() -> None:
    names = [case.name for case in on_device.cases()]
    assert len(names) == len(set(names))
    assert {case.rule for case in on_device.cases()} <= set(RULES)
    assert {code for case in on_device.cases() for code in case.also} <= set(CODES)


IN_A_SUITE = """
    import torch
    from torch.nn import functional as F

    DEVICE = "cuda"

    def test_logging():
        x = torch.ones(100, device=DEVICE)
        total = 0.0
        for _ in range(3):
            total += x.mul(2).sum().item()  # host-sync

    def test_noise():
        noise = torch.randn(64, 64).to(DEVICE)  # extra-cuda-copy
        noise.relu()

    def test_batches():
        x = torch.ones(100, device=DEVICE)
        (torch.arange(100_000.0) + 1).to(DEVICE).add(x.sum())  # pageable-copy

    def test_attention():
        q = torch.ones(8, 256, 64, device=DEVICE, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)  # math-attention

    def test_rows():
        x = torch.ones(32, 64, device=DEVICE)
        y = torch.empty_like(x)
        for i in range(32):
            y[i] = x[i] * i  # for-loop-indexing

    def test_clean():
        x = torch.ones(1024, 1024, device=DEVICE, dtype=torch.bfloat16)
        (x @ x).relu()
"""


@pytest.mark.gpu
@pytest.mark.thorough
def test_a_suite_on_a_gpu_is_told_the_line_of_each_finding(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_it=IN_A_SUITE)
    lines = path.read_text("utf-8").splitlines()
    ran = run(pytester, "--torchprof")
    found = {
        (finding["rule"], finding["location"])
        for test in ran.tests.values()
        for finding in test["findings"]
        if finding["rule"] not in on_device.TIMED
    }
    marked = {
        (line.rpartition("  # ")[2], f"test_it.py:{number}")
        for number, line in enumerate(lines, 1)
        if "  # " in line
    }
    assert marked == found
    assert {"passed": 6} == ran.outcomes
