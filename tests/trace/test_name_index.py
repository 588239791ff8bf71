"""Events by their names, however many expressions the rules have."""

from __future__ import annotations

import numpy as np
import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace import name_index
from pytest_torchprof.trace.name_index import Names, are_named, events_named, operators_named
from pytest_torchprof.trace.read import parse_trace


@pytest.mark.parametrize("repeats", [1, 1000])
def test_more_expressions_than_bits_in_an_integer_are_all_distinguished(
    repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_index, "_ALL", [])
    monkeypatch.setattr(name_index, "_KNOWN", {})
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
    name_index._joined.cache_clear()
    assert 2 * repeats == len(events_named(trace, known[0], known[120], known[121]))
