"""A finding of a live example names the line that the example marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from labelled import corpus
from labelled.case import MARK
from labelled.on_device import marked_lines, misplaced
from support import live
from support.recorded import quiet

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES


@pytest.mark.thorough
@pytest.mark.parametrize("code", RULES)
def test_each_finding_of_a_live_positive_is_at_a_marked_line(code: str, tmp_path: Path) -> None:
    problems, every = [], corpus.cases()
    for case in every:
        if case.rule != code or not case.matches:
            continue
        block = corpus.prepared(case)
        if not corpus.is_live(block):
            continue
        if not (lines := marked_lines(case, every)):
            problems.append(f"{case.name}: no line is marked {MARK}")
            continue
        trace = corpus.requested(case, corpus.trace_of(block, tmp_path))
        with quiet():
            placing = live.placing(block, trace, tmp_path)
        found = check(trace, [RULES[code]], thresholds={code: dict(case.thresholds)})
        findings = [f for f in found.findings(placing) if f.rule == code]
        problems += misplaced(case, findings, lines) or ([] if findings else [f"{case.name}: none"])
    assert [] == problems
