"""A payload is judged alike however it was recorded: by us, or by torch.profiler alone."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from labelled import corpus
from recorded import record

from pytest_torchprof.rules import RULES
from pytest_torchprof.trace.read import read

if TYPE_CHECKING:
    from labelled.case import Case

#: Of what torch.compile did, a live capture notes more than the events say.
RECORDED = frozenset(rule.code for rule in RULES.values() if rule.gated_by is not None)


def is_compared(block: Any) -> bool:
    """Live ones, but for those that are all about what a live capture notes."""
    return corpus.is_live(block) and not hasattr(block, "capture")


@cache
def payloads(theme: str) -> list[tuple[Case, Any]]:
    """The live examples of one file, each of which ran once."""
    made = [(case, corpus.prepared(case)) for case in corpus.themes()[theme]]
    return [(case, block) for case, block in made if is_compared(block)]


def stored(case: Case, block: Any, **options: bool) -> corpus.Answer:
    """What the rules say where torch.profiler recorded the payload."""
    with tempfile.TemporaryDirectory() as folder:
        return corpus.asked(case, read(record(block, Path(folder), **options)))


def differing(case: Case, other: corpus.Answer) -> list[str]:
    """Rules that checked both and matched another number of times than in the live capture."""
    live = corpus.evaluate(case)
    counts, others = live.checked.counts, other.checked.counts
    unchecked = {*live.checked.unchecked, *other.checked.unchecked, *RECORDED}
    return [
        f"{case.name}: {code} matches {others.get(code, 0)} times, {counts.get(code, 0)} live"
        for code in sorted({*counts, *others} - unchecked)
        if counts.get(code, 0) != others.get(code, 0)
    ]


@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "no stacks"])
@pytest.mark.parametrize("theme", corpus.themes())
def test_a_stored_trace_has_the_findings_of_the_live_capture(theme: str, stacks: bool) -> None:
    problems = []
    for case, block in payloads(theme):
        other = stored(case, block, stacks=stacks, memory=True)
        problems += differing(case, other)
        problems += [
            f"{case.name}: {code} is not checked"
            for code in {*other.checked.unchecked} - {*corpus.evaluate(case).checked.unchecked}
            if "live" not in RULES[code].needs and code not in RECORDED
        ]
    assert [] == problems


@pytest.mark.parametrize("theme", corpus.themes())
def test_without_memory_events_a_rule_says_the_same_or_that_it_is_not_checked(theme: str) -> None:
    assert [] == [
        said
        for case, block in payloads(theme)
        for said in differing(case, stored(case, block, stacks=False))
    ]


@pytest.mark.parametrize("theme", corpus.themes())
def test_without_shapes_a_rule_that_needs_them_is_not_checked_instead_of_silent(theme: str) -> None:
    problems = []
    for case, block in payloads(theme):
        bare = stored(case, block, shapes=False, stacks=False, memory=True)
        problems += [
            f"{case.name}: {code} is silent without shapes"
            for code in corpus.evaluate(case).checked.counts
            if "shapes" in RULES[code].needs and code not in bare.checked.unchecked
        ]
    assert [] == problems
