"""Reasons that captures note in their traces."""

from __future__ import annotations

import json

import msgspec
import pytest

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.trace.facts import reason_of

NOTED = because(Why.PROGRAM_WORK, programs=("python", "a \N{BOMB}"))


@pytest.mark.parametrize("reason", [NOTED, because(Why.COMPILATIONS_LOST, kept=64)])
def test_a_reason_is_the_same_once_it_was_stored(reason: Reason) -> None:
    read = reason_of(json.loads(msgspec.json.encode(reason)))
    assert reason == read
    assert repr(reason) == repr(read)


def test_earlier_versions_noted_text_and_later_ones_may_know_more_reasons() -> None:
    text, newer = reason_of("no rounds"), reason_of({"why": "too_hot", "data": [["celsius", 90]]})
    assert text is not None
    assert newer is not None
    assert "no rounds" == in_words(text)
    assert "for a reason that this version does not know (too_hot)" == in_words(newer)


@pytest.mark.parametrize("noted", [None, "", 0, 1.5, True, [], {}, {"why": 3}, {"median": 2.0}])
def test_what_is_no_reason_is_none(noted: object) -> None:
    assert reason_of(noted) is None
