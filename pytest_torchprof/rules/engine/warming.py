"""Do the one-time work of a process's first check in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.rules.engine.check import check, lacking
from pytest_torchprof.trace.arguments import Arguments
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.rules.engine.rule import Rule

_STEP = "Optimizer.step#Adam.step"
#: A small training step: names, and how often in a row.
_PAYLOAD = (
    *[("aten::linear", 1), ("aten::addmm", 1), ("aten::relu", 1), ("aten::clone", 5)],
    *[("aten::select", 12), ("aten::zero_", 3)],
    ("autograd::engine::evaluate_function: AddmmBackward0", 1),
    ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 2),
    *[("aten::to", 1), ("aten::_to_copy", 6), ("aten::copy_", 6), ("aten::add_", 2)],
    *[(_STEP, 1), ("aten::addcdiv_", 3), ("aten::sqrt", 3)],
)
_ARGUMENTS = (
    b'{"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "double"], "Concrete Inputs": '
    b'["", ""], "Sequence number": 3}'
)


def warm(rules: Iterable[Rule]) -> Events:
    """Check a made-up trace: this compiles expressions, and loads what numpy loads late.

    It takes some milliseconds, once per process.
    """
    trace = _trace()
    check(trace, known := tuple(rules)).findings()
    lacking(trace, known)  # a rule imports what tells it so
    return trace


def _trace() -> Events:
    names = [name for name, _ in _PAYLOAD]
    counts = [count for _, count in _PAYLOAD]
    name = np.repeat(np.arange(len(names)), counts)
    step = int(np.flatnonzero(name == names.index(_STEP))[0])
    total = len(name)
    kind = np.full(total, Kind.OP, np.int8)
    kind[step] = Kind.ANNOTATION
    duration = np.full(total, 5, np.int64)
    duration[step] = 10 * total  # the following events are nested in it
    return Events(
        ts=np.arange(total, dtype=np.int64) * 10,
        dur=duration,
        kind=kind,
        name=name,
        thread=np.zeros(total, np.int32),
        names=names,
        args=Arguments.of([_ARGUMENTS] * total),
        threads=((0, 0),),
    )
