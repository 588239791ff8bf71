"""The anti-pattern rules: rows of data, each with one function from `Events` to its matches.

To add a rule, write it in the file of its theme in `rules/`, and it is in `RULES`; a new file is
added to `THEMES`. What several rules ask of a trace is in `rules/evidence/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.rules import (
    attention,
    blocked_copies,
    collective_calls,
    communication,
    compilation,
    copies,
    data_loading,
    debugging,
    decoding,
    fusion,
    graphs,
    grids,
    growing,
    half_precision,
    layers,
    layouts,
    manual_attention,
    one_time,
    optimizers,
    parameters,
    pauses,
    precision,
    products,
    repetition,
    retained,
    sums,
    tensor_loops,
    vocabulary,
    waiting,
    zeroing,
)
from pytest_torchprof.rules.engine.check import Checked, check
from pytest_torchprof.rules.engine.rule import Matches, Rule, Threshold, rule
from pytest_torchprof.rules.engine.warming import warm

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

__all__ = [
    "CODES",
    "RULES",
    "Checked",
    "Matches",
    "Rule",
    "Threshold",
    "check",
    "rule",
    "warm_up",
]

#: The rules' files, by theme.
THEMES = (
    data_loading,
    optimizers,
    parameters,
    zeroing,
    graphs,
    layers,
    tensor_loops,
    growing,
    decoding,
    products,
    precision,
    half_precision,
    attention,
    manual_attention,
    fusion,
    grids,
    layouts,
    waiting,
    one_time,
    copies,
    blocked_copies,
    pauses,
    communication,
    collective_calls,
    repetition,
    compilation,
    debugging,
    vocabulary,
    retained,
    sums,
)

#: Rules by code, in the order of the files of their themes.
RULES: Mapping[str, Rule] = {
    found.code: found
    for theme in THEMES
    for found in vars(theme).values()
    if isinstance(found, Rule)
}

#: The codes that markers and options accept.
CODES = tuple(RULES)


def warm_up() -> Events:
    """Do the first check's one-time work, some milliseconds, before the first test.

    Returns the trace that was checked, for other warm-ups.
    """
    return warm(RULES.values())
