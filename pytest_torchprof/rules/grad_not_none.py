"""Rules about gradients that are filled with zeros."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.chip import on_cpu
from pytest_torchprof.rules.evidence.calls import filled, filled_shapes, guessed, least_ns
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Names,
    are_named,
    marks_named,
    selected_operators,
)
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import (
    are_free,
    are_outermost,
    frames_around,
    free_named,
    has_frames,
    marked,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

_ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
_ZEROES_LISTS: Final = Names(r"aten::_foreach_zero_$")
_OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
_ZERO_GRAD_FRAME: Final = late(
    r"torch[/\\](nn[/\\]modules[/\\]module|optim[/\\]optimizer)\.py\(\d+\): zero_grad$"
)
#: The operator that stores a gradient for the optimizer.
_PUTS: Final = "torch::autograd::AccumulateGrad"
#: Operators that fill a tensor with zeros, or with a number that torch may or may not record.
_ZEROES: Final = ("aten::zero_", "aten::_foreach_zero_")
_SETS: Final = "aten::fill_"
#: Time to fill a small gradient and to add to it; and for each element of a large one.
_GRADIENT_NS: Final = 1200
_ELEMENT_NS: Final = 0.5
#: Where gradients on a CPU take more, what the fix saves depends on the allocator: glibc's returns
#: what is freed to the system, which clears each page for the next gradients.
_KEPT_BYTES: Final = 1 << 20
_ZERO: Final = late(r"-?0+\.?0*(e[-+]?\d+)?$")

#: The fix if torch's version is unknown, or before 2.0, when zeros were the default.
_SINCE_2: Final = (
    "call zero_grad(set_to_none=True), the default since torch 2.0: gradients then become None"
)
_BY_DEFAULT: Final = "call zero_grad() without set_to_none=False: gradients then become None"
_CALLED: Final = "zero_grad fills the gradients with zeros"
_SAID: Final = "gradients are filled with zeros"
_BY_HAND: Final = "set them to None: parameter.grad = None, or zero_grad()"


@rule(
    "grad-not-none",
    fix=_SINCE_2,
    triggers=r"aten::((_foreach_)?zero_|fill_)$",
    blind=lambda trace: guessed(trace, _ZERO_GRAD, _ZEROES_LISTS),
    sees_host=True,
    gradients=Threshold(2, "1", "a test of a derivative zeroes one gradient to take another"),
    cpu_share=Threshold(
        0.003, "1", "of all that the test does on a CPU, by counts, not times; less does not matter"
    ),
)
def grad_not_none(trace: Events, *, gradients: float, cpu_share: float) -> Matches:
    """Gradients are filled with zeros, where they could just be dropped.

    ## What it does

    Counts how often gradients are filled with zeros before another backward pass: by an optimizer's
    `zero_grad`, as torch's annotation says; or by hand or by a module's, if `gradients` or more
    are. By hand means `zero_`, `fill_(0)` and `grad[:] = 0`. A live test recognizes gradients as
    tensors that backward passes have stored; in a stored trace, only annotations and frames tell.

    Not counted: gradients that are zeroed between a backward pass and the optimizer's step, and on
    a CPU, all of it if it is less than `cpu_share` of all that the test does, by counts.

    ## Why it is slow

    Each gradient is written once to become zero, and read and added to in the next backward pass,
    which would otherwise just store it. Until then its memory stays allocated. On a CPU the cost is
    unknown for more than 1 MiB of gradients, where it depends on the allocator.

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
    if not len(fills) and not len(free_named(trace, _SETS)):
        return NO_MATCHES_OF_CALLS
    above = trace.parent[fills]
    annotated = are_named(trace, above, _ZERO_GRAD)
    found = list[_Call]()
    for mark in distinct(above[annotated]).tolist():
        found.append(_annotated(trace, fills[above == mark], mark))
    rest = fills[~annotated]
    rest = rest[are_outermost(trace, rest)]
    if has_frames(trace):
        frame = frames_around(trace, _ZERO_GRAD_FRAME, rest)
        for one in distinct(frame[frame >= 0]).tolist():
            mine = rest[frame == one]
            found.append(_annotated(trace, mine, int(mine[0])))
        rest = rest[frame < 0]
    puts = selected_operators(trace, _PUTS)
    ends = trace.region is not None and len(puts) > 0  # a stored trace is a part of what ran
    found = _before(puts, found) if ends else found
    adds = selected_operators(trace, "aten::add_", "aten::add")
    adds = adds[marked(trace, puts)[trace.parent[adds]]]
    asks = False
    if len(puts):
        by_hand, asks = _by_hand(trace, rest, puts, adds)
        by_hand = _before(puts, by_hand) if ends else by_hand
        if sum(call.gradients for call in by_hand) >= gradients:
            found += by_hand
    if not found:
        return NONE_SO_FAR if asks else NO_MATCHES
    if _estimated_ns(trace, found) < least_ns(trace, cpu_share):
        return NONE_SO_FAR if asks else NO_MATCHES
    found.sort(key=lambda call: call.event)
    cost, span = _costs_ns(trace, found, adds)
    return Matches(
        np.array([call.event for call in found], np.int64),
        [_SAID if call.fix == _BY_HAND else _CALLED for call in found],
        cost_ns=cost,
        span_ns=span,
        fix=[call.fix for call in found],
        wants_tensors=asks,
    )


class _Call(NamedTuple):
    """Gradients that are filled one after the other: where, by which operators, what to do, and how
    many they are, 0 if unknown.
    """

    event: int
    fills: Ints
    fix: str
    gradients: int


def _before(puts: Ints, calls: list[_Call]) -> list[_Call]:
    """Those of these calls that a backward pass follows."""
    last = int(puts.max(initial=-1))
    return [call for call in calls if call.event < last]


def _annotated(trace: Events, rows: Ints, event: int) -> _Call:
    shapes = [filled_shapes(trace, row) for row in rows.tolist()]
    return _Call(event, rows, _fix(trace), sum(map(len, shapes)) if all(shapes) else 0)


def _fix(trace: Events) -> str:
    """What to do, by the version of torch that a live capture records."""
    major = (trace.facts.torch or "").partition(".")[0]
    return _BY_DEFAULT if major.isdigit() and int(major) >= 2 else _SINCE_2


def _estimated_ns(trace: Events, calls: list[_Call]) -> float:
    """The time to fill and to add to all these gradients on a CPU, by counts; without end if a
    shape is unknown, as of a list so long that torch omits it.
    """
    tensors = filled(trace, np.concatenate([call.fills for call in calls]))
    if tensors is None:
        return inf
    return len(tensors) * _GRADIENT_NS + sum(one.elements for one in tensors) * _ELEMENT_NS


def _costs_ns(trace: Events, calls: list[_Call], adds: Ints) -> tuple[Ints, tuple[Ints, Ints]]:
    """The time to fill the gradients, and to add the next ones to the zeros, -1 if unknown. And
    when the first of these operators begins, and the last one ends.
    """
    ends = [*(call.event for call in calls[1:]), len(trace)]
    added = [
        adds[(adds > call.fills[-1]) & (adds < end)][: call.gradients or None]
        for call, end in zip(calls, ends, strict=True)
    ]
    parts = [np.concatenate([call.fills, later]) for call, later in zip(calls, added, strict=True)]
    every = np.concatenate(parts)
    local = on_cpu(trace, every)
    _, work = launched_in(trace, every, kinds=DEVICE_KINDS)
    bounds = np.cumsum([len(rows) for rows in parts])[:-1]
    cost, slowed = [], slowdown_share(trace)
    for call, rows, here, worked in zip(
        calls, parts, np.split(local, bounds), np.split(work, bounds), strict=True
    ):
        tensors = filled(trace, call.fills[here[: len(call.fills)]])
        known = tensors is not None and sum(one.bytes for one in tensors) <= _KEPT_BYTES
        # On a device, what takes longer: the calls, or what they launched.
        took = trace.dur[rows]
        on_device = max(worked.sum(), took[~here].sum() * slowed)
        cost.append(int(took[here].sum() + on_device) if known else -1)
    begin = [trace.ts[rows].min() for rows in parts]
    until = [(trace.ts[rows] + trace.dur[rows]).max() for rows in parts]
    return np.array(cost, np.int64), (np.array(begin, np.int64), np.array(until, np.int64))


# --------------------------------------------------------------------------------------- by hand


def _by_hand(trace: Events, zeroes: Ints, puts: Ints, adds: Ints) -> tuple[list[_Call], bool]:
    """Calls that fill gradients, and whether only a capture that identifies tensors can tell."""
    sets = selected_operators(trace, _SETS)
    sets = sets[[_is_zero(args) for args in trace.operands(sets)]]
    rows = np.sort(np.concatenate([zeroes, sets]))
    rows = rows[are_free(trace, rows)]
    if not len(rows):
        return [], False
    known = {shape for row in puts.tolist() for shape in filled_shapes(trace, row)[:1]}
    known.add("")
    rows = rows[[not known.isdisjoint(filled_shapes(trace, row) or [""]) for row in rows.tolist()]]
    if not len(rows):
        return [], False
    put, added = trace.taken(puts), trace.taken(adds)
    taken = trace.taken(rows)
    if put is None or added is None or taken is None:
        return [], True
    gradients = _Gradients(trace)
    for row, arguments in zip((*puts.tolist(), *adds.tolist()), (*put, *added), strict=True):
        gradients.learn(row, arguments)
    found = list[_Call]()
    seen = set[int]()
    for row, arguments in zip(rows.tolist(), taken, strict=True):
        numbers = _flat(arguments[:1])
        shapes = filled_shapes(trace, row) or [""] * len(numbers)
        filled = {n for n, s in zip(numbers, shapes, strict=False) if gradients.are(n, s)}
        if not filled or gradients.leaves_parameters(row):
            continue
        if found and seen.isdisjoint(filled) and not gradients.between(found[-1].event, row):
            last = found.pop()
            fills, count = np.append(last.fills, row), last.gradients + len(filled)
            found.append(_Call(last.event, fills, _BY_HAND, count))
        else:
            found.append(_Call(row, np.array([row]), _BY_HAND, len(filled)))
            seen = set()
        seen |= filled
    return found, False


class _Gradients:
    """The tensors that backward passes have made gradients, and when."""

    def __init__(self, trace: Events) -> None:
        self._trace = trace
        self._shapes: dict[int, set[str]] = {}
        self._puts: list[int] = []
        self._steps = np.sort(marks_named(trace, _OPTIMIZER_STEP)).tolist()

    def learn(self, row: int, taken: tuple[Taken, ...]) -> None:
        """Record an operator that stores its first argument as a gradient, or adds to it."""
        self._puts.append(row)
        self._puts.sort()
        for number, shape in zip(_flat(taken[:1]), filled_shapes(self._trace, row), strict=False):
            self._shapes.setdefault(number, set()).add(shape)

    def are(self, number: int, shape: str) -> bool:
        """Whether a tensor is one, and the whole of it as far as its shape is known."""
        shapes = self._shapes.get(number, ())
        return shape in shapes or bool(shapes and not shape)

    def between(self, one: int, other: int) -> bool:
        """Whether there was a backward pass between two events."""
        return bisect_right(self._puts, one) != bisect_right(self._puts, other)

    def leaves_parameters(self, row: int) -> bool:
        """Whether it is after a backward pass, and before the optimizer's step."""
        return self._next(self._steps, row) < self._next(self._puts, row) and self._last(
            self._puts, row
        ) > self._last(self._steps, row)

    def _next(self, events: list[int], row: int) -> int:
        at = bisect_right(events, row)
        return events[at] if at < len(events) else len(self._trace)

    def _last(self, events: list[int], row: int) -> int:
        at = bisect_right(events, row)
        return events[at - 1] if at else -1


def _is_zero(args: OpArgs) -> bool:
    """Whether a call fills a tensor with 0. torch omits the number that it fills a gradient with,
    which is nothing else.
    """
    concrete = decode_part(args.concrete)
    value = str(concrete[1]) if isinstance(concrete, list) and len(concrete) > 1 else ""
    return not value or _ZERO.match(value) is not None


def _flat(taken: Iterable[Taken]) -> list[int]:
    return [n for one in taken for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]
