"""Rules about debugging modes that were left on."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.evidence.calls import begun_by, pass_of, sizes
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import are_named, operators_named, selected_operators
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import are_engine_steps, engine_steps, once_selected
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

_ANOMALY_FIX: Final = (
    "turn torch.autograd.set_detect_anomaly off, or use it only around the step in question"
)
_FILL_FIX: Final = (
    "set torch.utils.deterministic.fill_uninitialized_memory = False, which keeps deterministic "
    "algorithms, or turn torch.use_deterministic_algorithms off where it is not needed"
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
    found = [one for one in (_anomalies(trace, passes), _fills(trace, filled)) if one is not None]
    if not found:
        return NO_MATCHES
    return Matches(
        np.concatenate([one.event for one in found]),
        [text for one in found for text in one.message],
        cost_ns=np.concatenate([one.cost_ns for one in found if one.cost_ns is not None]),
        fix=[fix for one in found for fix in one.fix or ()],
        span_ns=(
            np.concatenate([one.span_ns[0] for one in found if one.span_ns is not None]),
            np.concatenate([one.span_ns[1] for one in found if one.span_ns is not None]),
        ),
    )


# ------------------------------------------------------------------------------------- anomalies


def _anomalies(trace: Events, least: float) -> Matches | None:
    """One row per backward pass whose gradients were checked."""
    checks = selected_operators(trace, _NAN)
    if not len(checks):
        return None
    checks = checks[are_engine_steps(trace, trace.parent[checks])]
    if not len(checks):
        return None
    any_true = selected_operators(trace, _IS_ANY)
    if not among(trace.parent[checks], trace.parent[any_true]).all():
        return None  # called by a user's hook or Function
    steps = engine_steps(trace)
    steps = steps[trace.selection[steps]]
    of_pass = pass_of(trace, steps)
    number = of_pass[np.searchsorted(steps, trace.parent[checks])]
    which = distinct(number)
    if len(which) < least and not trace.facts.anomaly_before:
        return None
    rows = begun_by(trace, steps[np.searchsorted(of_pass, which)])
    begin = np.array([trace.ts[steps[of_pass == one]].min() for one in which], np.int64)
    last = np.array([_ends(trace, steps[of_pass == one]).max() for one in which], np.int64)
    asking = np.bincount(np.searchsorted(which, number), _asking_ns(trace, checks), len(which))
    text = "anomaly detection checks every gradient for NaN, and keeps a traceback for every node"
    fix = [_ANOMALY_FIX] * len(rows)
    cost = asking.astype(np.int64)
    return Matches(rows, [text] * len(rows), cost_ns=cost, fix=fix, span_ns=(begin, last))


def _asking_ns(trace: Events, checks: Ints) -> Ints:
    """From the start of each check to the end of the engine's last call for it."""
    step = trace.parent[checks]
    until = np.append(trace.ts[checks[1:]], np.iinfo(np.int64).max)
    spent: Ints = np.minimum(until, _ends(trace, step)) - trace.ts[checks]
    return spent


# ----------------------------------------------------------------------------------------- fills


def _fills(trace: Events, least: float) -> Matches | None:
    """One row per fill of newly allocated memory, if they are ``least`` bytes in total."""
    fills = once_selected(trace, _of_empty)
    if not len(fills):
        return None
    moved = _bytes(trace, fills)
    fills, moved = fills[moved >= _PAGE], moved[moved >= _PAGE]
    if not len(fills) or moved.sum() < least:
        return None
    text = "deterministic mode fills new tensors, which are then overwritten"
    made = trace.parent[fills]
    span = trace.ts[made], _ends(trace, made)
    fix = [_FILL_FIX] * len(fills)
    return Matches(fills, [text] * len(fills), cost_ns=trace.dur[fills], fix=fix, span_ns=span)


def _of_empty(trace: Events) -> Ints:
    """The selected fills that belong to making a tensor without values."""
    fills = operators_named(trace, _FILL)
    found: Ints = fills[trace.selection[fills] & are_named(trace, trace.parent[fills], *_EMPTY)]
    return found


def _bytes(trace: Events, rows: Ints) -> Ints:
    found = []
    for args in trace.operands(rows):
        dims, types = decode_part(args.dims) or [None], decode_part(args.types) or [""]
        shape = sizes(dims[0])
        found.append(0 if shape is None else prod(shape) * ELEMENT_BYTES.get(types[0], 0))
    return np.array(found, np.int64)


def _ends(trace: Events, rows: Ints) -> Ints:
    return trace.ts[rows] + trace.dur[rows]
