"""On a real GPU: what the rules find in programs as strangers write them, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from labelled import corpus, on_device
from support.gpu import needs_gpu

from pytest_torchprof.rules.engine.registry import CODES, RULES

if TYPE_CHECKING:
    from labelled.case import Case

#: On one GPU that multiplies TF32: it has no other to talk to, and reads of the host are its waits.
NO_POSITIVES = {"half-unused", "host-read"}
ELSEWHERE = {"exposed-communication", "small-collectives", "blocking-collective"}
ENOUGH = 3


@needs_gpu
@pytest.mark.thorough
@pytest.mark.parametrize("case", on_device.cases(), ids=lambda case: f"{case.rule}:{case.name}")
def test_a_rule_matches_a_live_example_as_often_as_it_says(case: Case, tmp_path: Path) -> None:
    with on_device.settled():
        ran = on_device.run(case, tmp_path)
    assert [] == ran.problems


@needs_gpu
@pytest.mark.thorough
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
    positives = sum(case.matches != 0 for case in own)
    assert positives >= (0 if code in NO_POSITIVES else ENOUGH)
    assert len(own) - positives >= ENOUGH


def test_live_examples_are_of_rules_that_exist_and_have_names_of_their_own() -> None:
    names = [case.name for case in on_device.cases()]
    assert len(names) == len(set(names))
    assert {case.rule for case in on_device.cases()} <= set(RULES)
    assert {code for case in on_device.cases() for code in case.also} <= set(CODES)
