"""Rules about debugging modes that were left on."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from pytest_torchprof.rules.rule import (
    NO_MATCHES_OF_CALLS,
    Matches,
    Threshold,
    around,
    rule,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import are_named, operators_named, selected_operators
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import (
    are_engine_steps,
    begun_by,
    engine_steps,
    once_selected,
    pass_of,
)
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: What anomaly mode calls on each gradient that a node computed, since torch 1.11.
#: Source: torch/csrc/autograd/engine.cpp, call_function.
_NAN: Final = "aten::isnan"
_IS_ANY: Final = "aten::_is_any_true"
#: Operators that allocate; deterministic mode fills what they allocate.
#: Source: aten/src/ATen/native/TensorFactories.cpp, fill_empty_deterministic_.
_EMPTY: Final = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::resize_")
_FILL: Final = "aten::fill_"
#: Bytes of a tensor that takes noticeable time to fill: a page.
_PAGE: Final = 4096

#: Events, costs, begins and ends.
_Found: TypeAlias = "tuple[Ints, Ints, Ints, Ints]"
_NONE: Final = (np.zeros(0, np.int64),) * 4

_SAID: Final = (
    "anomaly detection checks every gradient for NaN, and keeps a traceback for every node",
    "deterministic mode fills new tensors, which are then overwritten",
)
_ANOMALY_FIX: Final = (
    "turn torch.autograd.set_detect_anomaly off, or use it only around the step in question"
)
_FIXES: Final = (
    _ANOMALY_FIX,
    "set torch.utils.deterministic.fill_uninitialized_memory = False, or deterministic mode off",
)


@rule(
    "debug-left-on",
    fix=_ANOMALY_FIX,
    triggers=r"aten::(isnan|fill_)$",
    passes=Threshold(3, "1", "one or two such passes are a search for a bug"),
    filled=Threshold(2**20, "B", "filling less takes almost no time"),
)
def debug_left_on(trace: Events, *, passes: float, filled: float) -> Matches:
    """A debugging mode was left on.

    ## What it does

    Counts backward passes in which anomaly detection (`torch.autograd.set_detect_anomaly`) checked
    the gradients for NaN: `passes` (3) or more of them, or any if it was already on when the test
    began. Also counts new tensors that deterministic mode (`torch.use_deterministic_algorithms`)
    filled, if they are `filled` (1 MiB) or more in total. Anomaly detection with `check_nan=False`
    is not detected.

    ## Why it is slow

    Anomaly detection keeps a Python traceback for each node of the graph, and reads a truth value
    back for each gradient: a step of a small model takes five times as long. Deterministic mode
    writes all memory of new tensors one extra time.

    ## Example

    ```python
    torch.autograd.set_detect_anomaly(True)  # left over from a search for a NaN
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    ```
    """
    if not len(selected_operators(trace, _NAN)) and not len(once_selected(trace, _of_empty)):
        return NO_MATCHES_OF_CALLS
    both = _anomalies(trace, passes), _fills(trace, filled)
    event, cost, begin, end = map(np.concatenate, zip(*both, strict=True))
    checked = np.arange(len(event)) < len(both[0][0])
    said, fixes = ([a if one else b for one in checked] for a, b in (_SAID, _FIXES))
    return Matches(event, said, cost_ns=cost, fix=fixes, span_ns=(begin, end))


def _anomalies(trace: Events, least: float) -> _Found:
    """One row per backward pass whose gradients were checked."""
    checks = selected_operators(trace, _NAN)
    checks = checks[are_engine_steps(trace, trace.parent[checks])]
    any_true = selected_operators(trace, _IS_ANY)
    if not len(checks) or not among(trace.parent[checks], trace.parent[any_true]).all():
        return _NONE  # or called by a user's hook or Function
    steps = engine_steps(trace)
    steps = steps[trace.selection[steps]]
    of_pass = pass_of(trace, steps)
    checked = of_pass[np.searchsorted(steps, trace.parent[checks])]
    which, number = np.unique(checked, return_inverse=True)
    if len(which) < least and not trace.facts.anomaly_before:
        return _NONE
    begin, end = around(trace, steps)
    first = np.searchsorted(of_pass, which)
    # From the start of each check to the end of the engine's call, or to its next check.
    until = np.append(trace.ts[checks[1:]], np.iinfo(np.int64).max)
    spent = np.minimum(until, around(trace, trace.parent[checks])[1]) - trace.ts[checks]
    cost = nesting.summed(number, spent, len(which))
    return begun_by(trace, steps[first]), cost, begin[first], np.maximum.reduceat(end, first)


def _fills(trace: Events, least: float) -> _Found:
    """One row per fill of newly allocated memory, if they are ``least`` bytes in total."""
    fills = once_selected(trace, _of_empty)
    both = zip(trace.input_shapes(fills), trace.input_types(fills), strict=True)
    moved = [prod(a[0]) * ELEMENT_BYTES.get(b[0], 0) if a and b else 0 for a, b in both]
    fills = fills[[size >= _PAGE for size in moved]] if moved else fills
    if sum(size for size in moved if size >= _PAGE) < least:
        return _NONE
    return fills, trace.dur[fills], *around(trace, trace.parent[fills])


def _of_empty(trace: Events) -> Ints:
    """The selected fills that belong to making a tensor without values."""
    fills = operators_named(trace, _FILL)
    found: Ints = fills[trace.selection[fills] & are_named(trace, trace.parent[fills], *_EMPTY)]
    return found
