"""The comparison of two callables in a test, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.units import format_pair, format_quantity, plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.ab_table import changes
from pytest_torchprof.render.reason_texts import in_words

if TYPE_CHECKING:
    from pytest_torchprof.verdict.paired_decision import Decision


def comparison_line(a_ms: float, b_ms: float, decision: Decision) -> str:
    """``a 1 ms, b 1.1 ms: +10.2 % (+9.1 … +11.4 %), slower, 40 pairs``."""
    why = f" ({in_words(decision.reason)})" if decision.reason is not None else ""
    pairs = plural(decision.pairs, "pair")
    return f"{_times(a_ms, b_ms, decision)}, {decision.verdict}, {pairs}{why}"


def slower_message(
    a_ms: float, b_ms: float, decision: Decision, share: float, names: tuple[str, str]
) -> str:
    """Why a test fails whose callable ``b`` is slower than ``a`` by more than this share.

    ``names`` are those of the callables in the code.
    """
    limit = format_quantity(100 * share, "1")
    sure, pairs = f"{100 * decision.confidence:g}", plural(decision.pairs, "pair")
    lines = [
        f"torchprof: {_times(a_ms, b_ms, decision)}, slower by more than {limit} %",
        f"  a is {names[0]}, b is {names[1]}; {sure} % confidence, {pairs} of turns",
    ]
    return "\n".join(map(escape.line, lines))


def _times(a_ms: float, b_ms: float, decision: Decision) -> str:
    a, b = format_pair(a_ms, b_ms, "ms")
    change, interval = changes(decision)
    return f"a {a}, b {b}: {change} ({interval})"
