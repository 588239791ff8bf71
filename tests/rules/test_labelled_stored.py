"""A payload is judged alike however it was recorded: by us, or by torch.profiler alone."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from labelled import corpus
from labelled.corpus import Answer
from support.recorded import record

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from labelled.case import Case

#: Of what torch.compile did, a live capture notes more than the events say.
RECORDED = frozenset(rule.code for rule in RULES.values() if rule.gated_by is not None)
#: What only a live test asks for.
ON_REQUEST = frozenset(rule.code for rule in RULES.values() if rule.on_request)
#: A stored trace is a part of what ran: gradients zeroed after its last backward pass count there,
#: as the next pass may come after it.
OPEN_ENDED = frozenset({"grad-not-none"})


def is_compared(block: Any) -> bool:
    """Live ones, but for those that are all about what a live capture notes."""
    return corpus.is_live(block) and not hasattr(block, "capture")


def payloads(theme: str) -> list[tuple[Case, Any]]:
    """The live examples of one file, each of which ran once."""
    made = [(case, corpus.prepared(case)) for case in corpus.themes()[theme]]
    return [(case, block) for case, block in made if is_compared(block)]


def stored(case: Case, block: Any, **options: bool) -> Answer:
    """What the rules say where torch.profiler recorded the payload."""
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(record(block, Path(folder), **options))
        return Answer(
            case, check(trace, RULES.values(), thresholds={case.rule: dict(case.thresholds)})
        )


def differing(case: Case, other: Answer) -> list[str]:
    """Rules that checked both and matched another number of times than in the live capture.

    Which tensor is which, a stored trace does not know, nor does a live test's first capture; its
    frames may tell as much. How often a rule matches is labelled for the example's own alone. A
    timed rule counts what two runs took, and only a live test knows how busy its machine was: the
    stored trace may differ, but never be silent where the live capture is not.
    """
    full = corpus.evaluate(case).checked.counts
    live = corpus.without_tensors(corpus.evaluate(case))
    counts, others = live.counts, other.checked.counts
    unchecked = {*live.unchecked, *other.checked.unchecked, *RECORDED, *ON_REQUEST}
    return [
        f"{case.name}: {code} matches {others.get(code, 0)} times, {counts.get(code, 0)} live"
        for code in sorted({*counts, *others} - unchecked)
        if others.get(code, 0) not in (counts.get(code, 0), full.get(code, 0))
        and not (code in case.also and others.get(code) and full.get(code))
        and not (RULES[code].timed and (others.get(code) or not full.get(code)))
        and not (code in OPEN_ENDED and others.get(code, 0) > full.get(code, 0))
    ]


def unlike_live(case: Case, block: Any, *, stacks: bool) -> list[str]:
    """A stored trace has the findings of the live capture."""
    other = stored(case, block, stacks=stacks, memory=True)
    return differing(case, other) + [
        f"{case.name}: {code} is not checked"
        for code in {*other.checked.unchecked} - {*corpus.evaluate(case).checked.unchecked}
        if "live" not in RULES[code].needs and code not in RECORDED
    ]


def unlike_without_memory(case: Case, block: Any) -> list[str]:
    """Without memory events a rule says the same, or that it is not checked, or of what part."""
    other = stored(case, block, stacks=False)
    told = {code for code, why in other.checked.partly.items() if "memory" in why.text}
    return [
        message
        for message in differing(case, other)
        if message.split(": ")[1].split()[0] not in told
    ]


def silent_without_shapes(case: Case, block: Any) -> list[str]:
    """Without shapes a rule that needs them is not checked."""
    bare = stored(case, block, shapes=False, stacks=False, memory=True)
    return [
        f"{case.name}: {code} is silent"
        for code in corpus.evaluate(case).checked.counts.keys() - ON_REQUEST
        if "shapes" in RULES[code].needs and code not in bare.checked.unchecked
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("theme", corpus.themes())
def test_a_stored_trace_is_judged_like_the_live_capture_or_says_what_it_lacks(theme: str) -> None:
    """All at once, so that each payload is made and captured but once."""
    problems: dict[str, list[str]] = defaultdict(list)
    for case, block in payloads(theme):
        problems["with stacks"] += unlike_live(case, block, stacks=True)
        problems["without stacks"] += unlike_live(case, block, stacks=False)
        problems["without memory"] += unlike_without_memory(case, block)
        problems["without shapes"] += silent_without_shapes(case, block)
    assert {} == {how: message for how, message in problems.items() if message}
