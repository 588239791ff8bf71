"""Events by their names, however many expressions the rules have."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace import names
from pytest_torchprof.trace.names import Names, are_named, events_named, operators_named
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.trace.tree import outermost

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@pytest.mark.parametrize("repeats", [1, 1000])
def test_more_expressions_than_bits_in_an_integer_are_all_distinguished(
    repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_ALL", [])
    monkeypatch.setattr(names, "_KNOWN", {})
    words = [f"aten::word{number}" for number in range(150)]
    known = [Names(f"{word}$") for word in words]
    b = TraceBuilder()
    for _ in range(repeats):
        for word in words[::30]:
            with b.op(word):
                pass
    trace = parse_trace(b.to_bytes())
    every = np.arange(len(trace))
    for number, one in enumerate(known):
        expected = [] if number % 30 else [words[number]] * repeats
        assert expected == [trace.names[trace.name[row]] for row in operators_named(trace, one)]
        assert len(expected) == np.count_nonzero(are_named(trace, every, one))
    names._joined.cache_clear()
    assert 2 * repeats == len(events_named(trace, known[0], known[120], known[121]))


def trace_of(*words: str, nested: bool = False, pause_us: int = 1) -> Events:
    """Operators of these names, one after the other or within each other."""
    b = TraceBuilder()
    with ExitStack() as inside:
        for word in words:
            if nested:
                inside.enter_context(b.op(word))
            else:
                with b.op(word):
                    b.advance(pause_us)
    return parse_trace(b.to_bytes())


def test_traces_of_the_same_calls_share_what_follows_from_them_and_others_do_not() -> None:
    one, again = (trace_of("aten::mm", "aten::add", pause_us=us) for us in (1, 50))
    assert one.by_name is again.by_name
    assert one.ts.tolist() != again.ts.tolist()
    assert operators_named(one, "aten::add") is operators_named(again, "aten::add")
    inner = trace_of("aten::mm", "aten::add", nested=True)
    other = trace_of("aten::add", "aten::mm")
    assert [0, 1] == outermost(one).tolist() == outermost(again).tolist()
    assert [0] == outermost(inner).tolist()
    assert [0] == operators_named(other, "aten::add").tolist()
    assert [1] == operators_named(one, "aten::add").tolist()


def test_what_is_shared_cannot_be_changed() -> None:
    trace = trace_of("aten::mm", "aten::add")
    for shared in (operators_named(trace, "aten::mm"), events_named(trace, "aten::mm")):
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        outermost(trace)[0] = 7


def test_expressions_that_are_made_later_are_looked_up_in_a_known_trace() -> None:
    first = trace_of("aten::late_word", "aten::add")
    assert [1] == operators_named(first, "aten::add").tolist()
    late = Names("aten::late_")
    assert [0] == operators_named(first, late).tolist()
    assert [0] == operators_named(trace_of("aten::late_word", "aten::add"), late).tolist()
