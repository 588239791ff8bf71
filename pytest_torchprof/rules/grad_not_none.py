"""The rule about gradients that are filled with zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import took_ns
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import is_trifle
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    around,
    rule,
)
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named, marks_named, selected_operators
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import are_free, frames_around, marked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

_ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
_STEP: Final = Names(r"Optimizer\.step#")
_ZERO_GRAD_FRAME: Final = late(
    r"torch[/\\](nn[/\\]modules[/\\]module|optim[/\\]optimizer)\.py\(\d+\): zero_grad$"
)
#: The operator that stores a gradient for the optimizer.
_PUTS: Final = "torch::autograd::AccumulateGrad"
#: Operators that fill a tensor with zeros, or with a number that torch may or may not record.
_ZEROES: Final = ("aten::zero_", "aten::_foreach_zero_")
_SETS: Final = "aten::fill_"
_ZERO: Final = late(r"-?0+\.?0*(e[-+]?\d+)?$")
#: What is said, and what to do instead: of ``zero_grad``, and of what is done by hand.
_SAID: Final = "zero_grad fills the gradients with zeros", "gradients are filled with zeros"
_DROP: Final = (
    "call zero_grad() without set_to_none=False (before torch 2.0: zero_grad(set_to_none=True)): "
    "gradients then become None"
)
_FIX: Final = _DROP, "set them to None: parameter.grad = None, or zero_grad()"


@rule(
    "grad-not-none",
    fix=_DROP,
    triggers=r"aten::((_foreach_)?zero_|fill_)$",
    gradients=Threshold(2, "1", "a test of a derivative zeroes one gradient to take another"),
    cpu_share=Threshold(0.003, "1", "of all calls of the test on a CPU; fewer do not matter"),
)
def grad_not_none(trace: Events, *, gradients: float, cpu_share: float) -> Matches:
    """Gradients are filled with zeros, where they could just be dropped.

    ## What it does

    Counts how often gradients are filled with zeros before another backward pass: by an optimizer's
    `zero_grad`, as torch's annotation says; or by hand or by a module's, if `gradients` or more
    are: `zero_`, `fill_(0)` and `grad[:] = 0` of tensors that backward passes have stored. In a
    stored trace, only annotations and frames tell.

    Not counted: gradients that are zeroed between a backward pass and the optimizer's step, and on
    a CPU, fewer calls than `cpu_share` of all. The cost is the time to fill, and to add to zeros.

    ## Why it is slow

    Each gradient is written once to become zero, and read and added to in the next backward pass,
    which would otherwise just store it. Until then its memory stays allocated.

    ## Example

    ```python
    optimizer.zero_grad(set_to_none=False)
    ```

    ## Use instead

    ```python
    optimizer.zero_grad()  # before torch 2.0: zero_grad(set_to_none=True)
    ```
    """
    fills, sets = selected_operators(trace, *_ZEROES), selected_operators(trace, _SETS)
    if not len(fills) and not len(sets):
        return NO_MATCHES_OF_CALLS
    puts = selected_operators(trace, _PUTS)
    # A stored trace is a part of what ran: a backward pass may follow.
    last = int(puts.max()) if trace.region is not None and len(puts) else len(trace)
    # torch omits the number that it fills a gradient with, which is nothing but 0.
    values = [str([*decode_list(args.concrete), "", ""][1]) for args in trace.operands(sets)]
    sets = sets[[not value or bool(_ZERO.match(value)) for value in values]]
    call = _zero_grad_of(trace, fills)
    rest = np.sort(np.concatenate([fills[call < 0], sets]))
    rest = rest[are_free(trace, rest) & (rest < last)]
    adds = selected_operators(trace, "aten::add_", "aten::add")
    adds = adds[marked(trace, puts)[trace.parent[adds]]]
    by_hand = _by_hand(trace, rest, puts, adds, gradients)
    mine = by_hand or {}
    found = {one: fills[call == one] for one in distinct(call[call >= 0]).tolist()} | mine
    found = {one: found[one] for one in sorted(found) if found[one][0] < last}
    if not found or is_trifle(trace, sum(map(len, found.values())), cpu_share):
        return NONE_SO_FAR if by_hand is None else NO_MATCHES
    parts = [_with_adds(trace, rows, adds) for rows in found.values()]
    time = [around(trace, rows) for rows in parts]
    return Matches(
        np.array([*found], np.int64),
        [_SAID[one in mine] for one in found],
        cost_ns=np.array([took_ns(trace, rows).sum() for rows in parts], np.int64),
        span_ns=(np.array([a.min() for a, _ in time]), np.array([b.max() for _, b in time])),
        fix=[_FIX[one in mine] for one in found],
        wants_tensors=by_hand is None,
    )


def _zero_grad_of(trace: Events, fills: Ints) -> Ints:
    """The call of ``zero_grad`` that each of these is in, by its annotation, else by the first
    operator in its frame; -1 for none.
    """
    above = trace.parent[fills]
    call = np.where(are_named(trace, above, _ZERO_GRAD), above, -1)
    frame = np.where(call < 0, frames_around(trace, _ZERO_GRAD_FRAME, fills), -1)
    for one in distinct(frame[frame >= 0]).tolist():
        call[frame == one] = fills[frame == one][0]
    return call


def _by_hand(
    trace: Events, rows: Ints, puts: Ints, adds: Ints, least: float
) -> dict[int, Ints] | None:
    """Those of these operators that fill gradients, by the first one after each backward pass; none
    if they are fewer gradients. None if only a capture that identifies tensors can tell.
    """
    known = {one for args in trace.operands(puts) for one in _shapes(args)}
    rows = rows[[not known.isdisjoint(_shapes(args) or known) for args in trace.operands(rows)]]
    if not len(rows):
        return {}
    stored, taken = trace.taken(np.concatenate([puts, adds])), trace.taken(rows)
    if stored is None or taken is None:
        return None
    gradients = {-1}.union(*map(_tensors, stored)) - {-1}
    filled = np.array([len(gradients & _tensors(arguments)) for arguments in taken])
    # Between a backward pass and the optimizer's step, they leave parameters as they are.
    steps, none = np.sort(marks_named(trace, _STEP)), len(trace)
    (put, next_put), (step, next_step) = (
        [np.r_[-1, some, none][some.searchsorted(rows) + more] for more in (0, 1)]
        for some in (puts, steps)
    )
    chosen = (filled > 0) & ~((next_step < next_put) & (put > step))
    if filled[chosen].sum() < least:
        return {}
    rows, put = rows[chosen], put[chosen]
    return {int(rows[put == one][0]): rows[put == one] for one in distinct(put).tolist()}


def _tensors(taken: Sequence[Taken]) -> set[int]:
    """The tensors of a call's first argument."""
    first = taken[0] if taken else ()
    return {*(first if isinstance(first, tuple) else (first,))} - {-1}


def _with_adds(trace: Events, fills: Ints, adds: Ints) -> Ints:
    """These operators, and those that add the next gradients to the zeros."""
    count = sum(len(_shapes(args)) for args in trace.operands(fills))
    at = int(adds.searchsorted(fills[-1]))
    return np.concatenate([fills, adds[at : at + count]])


def _shapes(args: OpArgs) -> list[str]:
    """The shapes of what an operator fills or stores, one or those of a list; none if unknown."""
    first = decode_list(args.dims)[:1]
    listed = decode_list(args.types)[:1] == ["TensorList"]
    return [str(one) for one in (first[0] if first and listed else first)]
