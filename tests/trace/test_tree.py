"""Which operators no other encloses, and which of these no optimizer does."""

from __future__ import annotations

import numpy as np
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace.names import Names
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.trace.tree import are_free, outermost, outermost_named

_STEP = "Optimizer.step#SGD.step"


def test_operators_in_an_optimizer_are_not_free_however_deep() -> None:
    b = TraceBuilder()
    with b.annotation("epoch"):
        with b.op("aten::linear"), b.op("aten::addmm"):
            pass
        with b.annotation(_STEP):
            with b.op("aten::mul_"):
                pass
            with b.annotation("update"), b.op("aten::add_"), b.op("aten::to"):
                pass
        with b.annotation("validate"), b.annotation("batch"), b.op("aten::mm"):
            pass
    with b.op("aten::sum"):
        pass
    trace = parse_trace(b.to_bytes())

    def names(rows: np.ndarray) -> list[str]:
        return [trace.names[number] for number in trace.name[rows].tolist()]

    assert ["aten::linear", "aten::mul_", "aten::add_", "aten::mm", "aten::sum"] == names(
        outermost(trace)
    )
    assert ["aten::linear", "aten::mm", "aten::sum"] == names(
        np.flatnonzero(are_free(trace, np.arange(len(trace))))
    )
    assert ["aten::mm"] == names(outermost_named(trace, Names(r"aten::(mm|addmm|to)$")))


def test_without_an_optimizer_all_outermost_operators_are_free() -> None:
    b = TraceBuilder()
    with b.annotation("batch"), b.op("aten::add"), b.op("aten::to"):
        pass
    trace = parse_trace(b.to_bytes())
    assert are_free(trace, outermost(trace)).all()
    assert len(outermost(trace)) == np.count_nonzero(are_free(trace, np.arange(len(trace))))
