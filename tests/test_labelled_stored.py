"""A payload is judged alike however it was recorded: by us, or by torch.profiler alone."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from labelled import corpus
from recorded import record

from pytest_torchprof.rules import RULES
from pytest_torchprof.trace.read import read

if TYPE_CHECKING:
    from labelled.case import Case


def payloads(theme: str) -> Iterator[tuple[Case, Any]]:
    """The live examples of one file, each of which ran once."""
    for case in corpus.themes()[theme]:
        if corpus.is_live(made := corpus.prepared(case)):
            yield case, made


def stored(case: Case, block: Any, **options: bool) -> corpus.Answer:
    """What the rules say where torch.profiler recorded the payload."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        return corpus.asked(case, read(record(block, Path(folder), **options)))


def differing(live: corpus.Answer, other: corpus.Answer) -> list[str]:
    """Rules that both checked and that matched another number of times."""
    counts, others = live.checked.counts, other.checked.counts
    unchecked = {*live.checked.unchecked, *other.checked.unchecked}
    return [
        f"{live.case.name}: {code} matches {others.get(code, 0)} times, {counts.get(code, 0)} live"
        for code in sorted({*counts, *others} - unchecked)
        if counts.get(code, 0) != others.get(code, 0)
    ]


@pytest.mark.parametrize("theme", corpus.themes())
def test_a_stored_trace_has_the_findings_of_the_live_capture(theme: str) -> None:
    problems = []
    for case, block in payloads(theme):
        live = corpus.evaluate(case)
        for stacks in (True, False):
            other = stored(case, block, stacks=stacks)
            problems += [f"{said}, stacks {stacks}" for said in differing(live, other)]
            lost = {*other.checked.unchecked} - {*live.checked.unchecked}
            problems += [
                f"{case.name}: {code} is not checked"
                for code in lost
                if code in RULES and "live" not in RULES[code].needs
            ]
    assert [] == problems


@pytest.mark.parametrize("theme", corpus.themes())
def test_without_shapes_a_rule_that_needs_them_is_not_checked_instead_of_silent(theme: str) -> None:
    problems = []
    for case, block in payloads(theme):
        live = corpus.evaluate(case)
        bare = stored(case, block, shapes=False, stacks=False)
        problems += differing(live, bare)
        problems += [
            f"{case.name}: {code} is silent without shapes"
            for code in live.checked.counts
            if "shapes" in RULES[code].needs and code not in bare.checked.unchecked
        ]
    assert [] == problems
