"""The rule about gradients that are filled with zeros."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
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
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Names,
    are_named,
    marks_named,
    selected_operators,
)
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import are_free, frames_around, marked
from pytest_torchprof.work.autograd import flat

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

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

_NONE: Final = (
    "call zero_grad() without set_to_none=False, which is the default since torch 2.0: gradients "
    "then become None"
)
_BY_HAND: Final = "set them to None: parameter.grad = None, or zero_grad()"
_CALLED: Final = "zero_grad fills the gradients with zeros"
_SAID: Final = "gradients are filled with zeros"


@rule(
    "grad-not-none",
    fix=_NONE,
    triggers=r"aten::((_foreach_)?zero_|fill_)$",
    gradients=Threshold(2, "1", "a test of a derivative zeroes one gradient to take another"),
    cpu_share=Threshold(0.003, "1", "of all calls of the test on a CPU; fewer do not matter"),
)
def grad_not_none(trace: Events, *, gradients: float, cpu_share: float) -> Matches:
    """Gradients are filled with zeros, where they could just be dropped.

    ## What it does

    Counts how often gradients are filled with zeros before another backward pass: by an optimizer's
    `zero_grad`, as torch's annotation says; or by hand or by a module's, if `gradients` or more
    are. By hand means `zero_`, `fill_(0)` and `grad[:] = 0`. A live test recognizes gradients as
    tensors that backward passes have stored; in a stored trace, only annotations and frames tell.

    Not counted: gradients that are zeroed between a backward pass and the optimizer's step, and on
    a CPU, fewer calls than `cpu_share` of all that the test makes. The cost is the time of the
    operators that fill.

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
    fills = selected_operators(trace, *_ZEROES)
    sets = selected_operators(trace, _SETS)
    if not len(fills) and not len(sets):
        return NO_MATCHES_OF_CALLS
    puts = selected_operators(trace, _PUTS)
    # A stored trace is a part of what ran: a backward pass may follow.
    ends = trace.region is not None and len(puts) > 0
    last = int(puts.max()) if ends else len(trace)
    call = _zero_grad_of(trace, fills)
    found = {one: fills[call == one] for one in distinct(call[call >= 0]).tolist()}
    sets = sets[[_is_zero(args) for args in trace.operands(sets)]]
    rest = np.sort(np.concatenate([fills[call < 0], sets]))
    rest = rest[are_free(trace, rest) & (rest < last)]
    adds = selected_operators(trace, "aten::add_", "aten::add")
    adds = adds[marked(trace, puts)[trace.parent[adds]]]
    by_hand = _by_hand(trace, rest, puts, adds) if len(puts) else {}
    nothing = NO_MATCHES if by_hand is not None else NONE_SO_FAR
    mine = {one: rows for one, (rows, _) in (by_hand or {}).items()}
    if sum(number for _, number in (by_hand or {}).values()) < gradients:
        mine = {}
    found = {one: rows for one, rows in sorted((found | mine).items()) if rows[0] < last}
    if not found or is_trifle(trace, sum(map(len, found.values())), cpu_share):
        return nothing
    parts = [_with_adds(trace, rows, adds) for rows in found.values()]
    time = [around(trace, rows) for rows in parts]
    return Matches(
        np.array([*found], np.int64),
        [_SAID if one in mine else _CALLED for one in found],
        cost_ns=np.array([_took_ns(trace, rows) for rows in parts], np.int64),
        span_ns=(np.array([a.min() for a, _ in time]), np.array([b.max() for _, b in time])),
        fix=[_BY_HAND if one in mine else _NONE for one in found],
        wants_tensors=by_hand is None,
    )


def _zero_grad_of(trace: Events, fills: Ints) -> Ints:
    """The call of ``zero_grad`` that each of these is in, by its annotation, else by the first
    operator in its frame; -1 for none.
    """
    above = trace.parent[fills]
    call = np.where(are_named(trace, above, _ZERO_GRAD), above, -1)
    frame = frames_around(trace, _ZERO_GRAD_FRAME, fills)
    for one in distinct(frame[(frame >= 0) & (call < 0)]).tolist():
        call[(frame == one) & (call < 0)] = fills[(frame == one) & (call < 0)][0]
    return call


def _by_hand(
    trace: Events, rows: Ints, puts: Ints, adds: Ints
) -> dict[int, tuple[Ints, int]] | None:
    """Of these operators those that fill gradients, and how many, by the first one after each
    backward pass; None if only a capture that identifies tensors can tell.
    """
    stores = np.concatenate([puts, adds])
    shapes = [_shapes(args) for args in trace.operands(stores)]
    possible = {"", *(one for some in shapes for one in some[:1])}
    every = [_shapes(args) or [""] for args in trace.operands(rows)]
    fits = [not possible.isdisjoint(some) for some in every]
    rows, every = rows[fits], [*compress(every, fits)]
    if not len(rows):
        return {}
    stored, taken = trace.taken(stores), trace.taken(rows)
    if stored is None or taken is None:
        return None
    known: dict[int, set[str]] = {}
    for arguments, some in zip(stored, shapes, strict=True):
        for number, shape in zip(flat([arguments[:1]]), some, strict=False):
            known.setdefault(number, set()).add(shape)
    found: dict[int, tuple[Ints, int]] = {}
    passes = dict[int, int]()
    leaves = _leaves_parameters(trace, rows, puts).tolist()
    after = puts.searchsorted(rows).tolist()
    for row, arguments, some, left, place in zip(
        rows.tolist(), taken, every, leaves, after, strict=True
    ):
        numbers = flat([arguments[:1]])
        sizes = some if len(some) == len(numbers) else [""] * len(numbers)
        filled = {
            n
            for n, shape in zip(numbers, sizes, strict=True)
            if n in known and (not shape or shape in known[n])
        }
        if filled and not left:
            first = passes.setdefault(place, row)
            before, count = found.get(first, (rows[:0], 0))
            found[first] = np.append(before, row), count + len(filled)
    return found


def _leaves_parameters(trace: Events, rows: Ints, puts: Ints) -> Bools:
    """Which of these are after a backward pass, and before the optimizer's step."""
    steps, none = np.sort(marks_named(trace, _STEP)), len(trace)
    last, next_ = (
        [np.r_[-1, some, none][some.searchsorted(rows) + more] for some in (puts, steps)]
        for more in (0, 1)
    )
    left: Bools = (next_[1] < next_[0]) & (last[0] > last[1])
    return left


def _with_adds(trace: Events, fills: Ints, adds: Ints) -> Ints:
    """These operators, and those that add the next gradients to the zeros."""
    count = sum(len(_shapes(args)) for args in trace.operands(fills))
    at = int(adds.searchsorted(fills[-1]))
    return np.concatenate([fills, adds[at : at + count]])


def _took_ns(trace: Events, rows: Ints) -> int:
    """The time of these operators, of those on a device what they launched."""
    first, below = launched_in(trace, rows, kinds=DEVICE_KINDS)
    return int(np.where(first >= 0, below, trace.dur[rows]).sum())


def _shapes(args: OpArgs) -> list[str]:
    """The shapes of what an operator fills or stores, one or those of a list; none if unknown."""
    first = decode_list(args.dims)[:1]
    is_list = bool(first and first[0]) and isinstance(first[0][0], list)
    return [str(one) for one in (first[0] if is_list else first)]


def _is_zero(args: OpArgs) -> bool:
    """Whether a call fills a tensor with 0. torch omits the number that it fills a gradient with,
    which is nothing else.
    """
    value = str((decode_list(args.concrete)[1:2] or [""])[0])
    return not value or _ZERO.match(value) is not None
