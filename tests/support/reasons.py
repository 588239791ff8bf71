"""Reasons in tests: made-up ones, and what is said of those that came out."""

from __future__ import annotations

from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue, Value


def words(text: str) -> Reason:
    """A reason that is said in these words."""
    return because(*Why.SOMEBODY_SAID, text=text)


def value_in_words(value: Value) -> Value:
    """The value, with its reason said in words where it has none."""
    if not isinstance(value, MissingValue):
        return value
    return MissingValue(words(value.reason.text), value.at_hand, value.at_least)
