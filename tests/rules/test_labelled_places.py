"""A finding of a live example names the line that the example marks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from labelled import corpus
from labelled.case import MARK, Case
from support import live
from support.recorded import quiet

from pytest_torchprof.rules.engine.check import check
from pytest_torchprof.rules.engine.registry import RULES

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Finding


def marked_lines(case: Case) -> set[int]:
    """Lines marked in the example's function, or else in what its file's examples share."""
    path = Path(inspect.getsourcefile(case.make) or "")
    marked = {
        number
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.endswith(MARK)
    }
    spans = {other.make: _span(other) for other in corpus.cases() if _file(other) == path}
    own = marked & spans[case.make]
    return own or marked - set().union(*spans.values())


def _file(case: Case) -> Path:
    return Path(inspect.getsourcefile(case.make) or "")


def _span(case: Case) -> set[int]:
    lines, first = inspect.getsourcelines(case.make)
    return set(range(first, first + len(lines)))


def misplaced(case: Case, findings: list[Finding], lines: set[int]) -> list[str]:
    """Findings that name another file, an unmarked line, or none."""
    wanted = {f"{_file(case).name}:{line}" for line in lines}
    return [
        f"{case.name}: {finding.location or finding.path}, not {' or '.join(sorted(wanted))}"
        for finding in findings
        if (finding.location or "").replace("\\", "/").rpartition("/")[2] not in wanted
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("code", RULES)
def test_each_finding_of_a_live_positive_is_at_a_marked_line(code: str, tmp_path: Path) -> None:
    problems = []
    for case in corpus.cases():
        if case.rule != code or not case.matches:
            continue
        block = corpus.prepared(case)
        if not corpus.is_live(block):
            continue
        if not (lines := marked_lines(case)):
            problems.append(f"{case.name}: no line is marked {MARK}")
            continue
        trace = corpus.requested(case, corpus.trace_of(block, tmp_path))
        with quiet():
            placing = live.placing(block, trace, tmp_path)
        found = check(trace, [RULES[code]], thresholds={code: dict(case.thresholds)})
        findings = [f for f in found.findings(placing) if f.rule == code]
        problems += misplaced(case, findings, lines) or ([] if findings else [f"{case.name}: none"])
    assert [] == problems
