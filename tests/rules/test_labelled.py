"""Every rule on every labelled example: as often as stated, and no other rule."""

from __future__ import annotations

import pytest
from labelled import corpus

from pytest_torchprof.rules.registry import CODES, RULES

ENOUGH = 5
#: Near misses are real programs, and some rules have few.
SOME = 4
THRESHOLDS = [(code, name) for code, rule in RULES.items() for name in rule.thresholds]


#: Their examples take longest: those of the first two compile, the others loop.
SLOW = {"compilation", "graphs", "clean_language", "decoding", "growing", "outsider_cuda"}


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "theme",
    [
        pytest.param(theme, marks=pytest.mark.thorough if theme in SLOW else ())
        for theme in corpus.themes()
    ],
)
def test_rules_match_each_example_as_often_as_it_says(theme: str) -> None:
    problems = {}
    for case in corpus.themes()[theme]:
        # Where times decide, other work on the machine may keep an example waiting.
        tries = 3 if case.rule in RULES and RULES[case.rule].timed else 1
        for _ in range(tries):
            answer = corpus.evaluate(case)
            if not answer.problems:
                break
            corpus.evaluate.cache_clear()
        else:
            problems[case.name] = answer.problems
    assert {} == problems


@pytest.mark.thorough
@pytest.mark.parametrize("theme", corpus.themes())
def test_a_rule_that_depends_on_the_identity_of_tensors_requests_it(theme: str) -> None:
    silent = {
        case.name: (answer.checked.counts, other.counts)
        for case in corpus.themes()[theme]
        if (answer := corpus.evaluate(case)).checked.trace.tensors is not None
        and not (other := corpus.without_tensors(answer)).wants_tensors
        and other.counts != answer.checked.counts
    }
    assert {} == silent


@pytest.mark.thorough
@pytest.mark.parametrize("theme", corpus.themes())
def test_what_is_compared_does_not_depend_on_times(theme: str) -> None:
    moved = dict[str, str]()
    for case in corpus.themes()[theme]:
        answer = corpus.evaluate(case)
        trace = corpus.at_other_times(answer.checked.trace)
        counts = corpus.asked(case, trace).checked.counts
        for code in {*counts, *answer.checked.counts}:
            if not RULES[code].timed and counts.get(code) != answer.checked.counts.get(code):
                moved[case.name] = code
    assert {} == moved


@pytest.mark.thorough
@pytest.mark.parametrize("theme", corpus.themes())
def test_a_rule_finds_nothing_in_a_trace_that_lacks_what_triggers_it(theme: str) -> None:
    answers = {case.name: corpus.evaluate(case) for case in corpus.themes()[theme]}
    found = {name: corpus.overlooked(answer) for name, answer in answers.items()}
    assert {} == {name: message for name, message in found.items() if message}


@pytest.mark.thorough
@pytest.mark.parametrize("code", CODES)
def test_a_rule_has_examples_of_both_kinds(code: str) -> None:
    kinds = corpus.kinds(code)
    assert kinds["positive"] >= ENOUGH
    assert kinds["near miss"] >= SOME


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "name"), THRESHOLDS)
def test_a_threshold_has_examples_on_both_sides(code: str, name: str) -> None:
    assert set() == corpus.one_sided(code, name)


def test_every_example_is_of_a_rule_that_exists() -> None:
    assert {case.rule for case in corpus.cases()} <= {"clean", *CODES}
    assert {code for case in corpus.cases() for code in case.also} <= set(CODES)
    assert set(CODES) == set(RULES)


def test_there_are_many_clean_examples() -> None:
    assert 50 <= sum(case.rule == "clean" for case in corpus.cases())
