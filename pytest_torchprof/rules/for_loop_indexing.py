"""for-loop-indexing: a loop over the elements of a tensor."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import LAYER, is_trifle
from pytest_torchprof.rules.loops import (
    BY_MASK,
    MARKS,
    ODD,
    READS,
    STORES,
    Body,
    Moving,
    is_carried,
    moving_of,
    splits_of,
)
from pytest_torchprof.rules.rule import Matches, Threshold, rule
from pytest_torchprof.trace.names import DEVICE_KINDS, Names
from pytest_torchprof.trace.tree import are_gradchecked
from pytest_torchprof.work.repeats import APART, Stretch, sequence, stretches

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_INDEX: Final = Names(
    r"aten::(select|slice|narrow|index|index_select|index_put_|gather|take|masked_select)(\.\w+)?$"
)
#: Layers that take samples along the first dimensions, and products that may.
_ON_ROWS: Final = late(r"aten::(linear|(_native_)?batch_norm|layer_norm|rms_norm|matmul|mm)$")
#: Layers whose other tensors are their own parameters.
_UNARY: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|embedding(_bag)?)$")
#: What tests and torch do to compare, print and read numbers.
_LOOKS: Final = late(
    rf"{READS.pattern}|{MARKS.pattern}|aten::(all|any|abs|isinf|ceil|masked_select|allclose|equal"
    r"|isclose|logical_\w+|bitwise_\w+|__and__|__or__)$"
)
#: Operators that make a tensor of numbers.
_FROM_NUMBERS: Final = late(r"aten::(arange|linspace|logspace|full|eye)(\.\w+)?$")
_FOLLOWED: Final = 128  # so many iterations may be between a value and what needs it


@rule(
    "for-loop-indexing",
    fix="do it for the whole tensor at once: broadcasting, a reduction over the dimension, cumsum, "
    "torch.where, index_add or scatter_reduce for groups, torch.vmap, tolist() for the numbers",
    triggers=rf"{_INDEX.pattern}|{APART.pattern}",
    needs="shapes",
    repeats=Threshold(10, "1", "fewer are often unrolled on purpose"),
    operators=Threshold(24, "1", "a longer body is worth a loop, such as a model's layer"),
    elements=Threshold(65536, "1", "larger parts hide the cost of the calls, or have to be split"),
    cpu_share=Threshold(0.003, "1", "of all calls that the test makes on a CPU"),
)
def for_loop_indexing(
    trace: Events, *, repeats: float, operators: float, elements: float, cpu_share: float
) -> Matches:
    """A Python loop goes through a tensor element by element.

    ## What it does

    Counts loops: the same operators `repeats` (10) times or more in a row, at most `operators` (24)
    per iteration, each of which selects another part of one tensor, of at most `elements` (65,536):
    by an index or slice, as a piece of a tensor that was split (`for row in x`), or by a mask of
    one class after the other. Not counted: iterations that need what an earlier one made, other
    than to add it up (a stored trace says nothing in doubt); parts that are only written, with data
    from outside; batches that go through layers; numbers on the CPU that are only read; what a test
    compares; and on a CPU loops of less than `cpu_share` (0.003) of all calls.

    ## Why it is slow

    Each iteration pays again for its Python code, its calls and its launches.

    ## Example

    ```python
    for i in range(len(x)):
        y[i] = x[i] * i
    ```

    ## Use instead

    ```python
    y = x * torch.arange(len(x))[:, None]
    ```
    """
    calls = sequence(trace)
    splits = splits_of(trace, calls, repeats)
    named = np.array([bool(_INDEX.match(name)) for name in trace.names])
    loops, asks, done = list[tuple[Stretch, Moving]](), False, np.zeros(len(calls.rows), bool)
    for stretch in stretches(calls.key, int(repeats), int(operators)):
        span = slice(stretch.start, stretch.stop)
        if not done[span].any() and (splits or named[calls.name[span]].any()):
            body = Body(trace, calls.rows[span], stretch.period, _FOLLOWED)
            moving = moving_of(body, splits, repeats)
            if moving and prod(moving.part) <= elements and not _is_apart(body, moving, elements):
                serial = _is_serial(body, moving)
                asks |= serial is None
                if serial is False and not are_gradchecked(trace, body.rows[:1]).any():
                    done[span] = True
                    loops.append((stretch, moving))
    total = Counter[str]()
    for stretch, moving in loops:
        total[moving.message] += stretch.stop - stretch.start - stretch.period
    loops = [one for one in loops if not is_trifle(trace, total[one[1].message], cpu_share)]
    loops.sort(key=lambda one: one[0].start)
    first = calls.rows[np.array([one.start for one, _ in loops], np.int64)]
    last = calls.rows[np.array([one.stop - 1 for one, _ in loops], np.int64)]
    ends, times = trace.ts[last] + trace.dur[last], np.array([one.repeats for one, _ in loops])
    return Matches(
        np.array([moving.row for _, moving in loops], np.int64),
        [moving.message for _, moving in loops],
        # One pass instead of many; includes Python's time between the calls.
        cost_ns=((ends - trace.ts[first]) * (1 - 1 / times)).astype(np.int64),
        span_ns=(trace.ts[first], ends),
        wants_tensors=asks,
    )


def _is_apart(body: Body, moving: Moving, most: float) -> bool:
    """Whether it is no loop over elements, by what it calls, or by sizes that differ."""
    names = {call.name for call in body.first if not call.is_view}
    if all(map(_LOOKS.match, names)) and not body.trace.has(*DEVICE_KINDS):
        return True
    if names == {"aten::copy_"} and any(one.part and one.part.keeps for one in body.first):
        return True  # a picture is assembled
    if moving.masks:
        return any(LAYER.match(name) for name in names)
    if any(map(BY_MASK.match, names)) and any(map(MARKS.match, names)):
        return True  # of a size that data decides
    for at, call in enumerate(body.first):
        if sum(a.shapes != b.shapes for a, b in pairwise(body.like(at))) > ODD:
            return True
        light = call.is_view or call.in_place or LAYER.match(call.name) or _INDEX.match(call.name)
        if not light and any(prod(shape) > most for shape in call.tensors):
            return True
    return False


def _is_serial(body: Body, moving: Moving) -> bool | None:
    """Whether an iteration needs what another one made, or batches; None if shapes do not tell."""
    takers = [call for call in body.first if call.first == moving.part]
    alone = sum(call.part is not None for call in body.first) < 2
    if alone and prod(moving.part[:-1]) > 1 and any(_ON_ROWS.match(one.name) for one in takers):
        return True
    if body.taken is not None:
        return _is_from_outside(body, moving) or is_carried(body, moving.pieces)
    numbers = any(_FROM_NUMBERS.match(call.name) for call in body.first)
    for at, call in enumerate(body.first):
        into = call.in_place and not (at and body.first[at - 1].is_view)
        some = [one for one in call.tensors if one] or call.tensors
        tensors = 1 if _UNARY.match(call.name) else len(some) - (numbers and call.base in STORES)
        if not call.is_view and (into or tensors > 1):
            return None
    return None if moving.pieces and not moving.part else False


def _is_from_outside(body: Body, moving: Moving) -> bool:
    """Whether parts are only written, with data that is loaded, drawn, or made by a model.

    Data can be written at once if it is computed from numbers, or from the same tensors each time.
    """
    loads = [at for at, call in enumerate(body.first) if call.base == "lift_fresh"]
    loaded = set[int]().union(*map(body.tensors, loads))
    for at, call in enumerate(body.first):
        if call.part is not None and len({one.part for one in body.like(at)}) > 1:
            takers = body.takers(call.part.result, body.tensors(at))
            if any(number or body.first[by].base not in STORES for by, number in takers):
                return False
        if _FROM_NUMBERS.match(call.name) or (
            call.base in STORES and not any(map(any, call.shapes[1:2]))
        ):
            return False
        some = [n for n, one in enumerate(call.shapes) if any(one)]
        same = some and all(len(body.tensors(at, n) - loaded) == 1 for n in some)
        if same and not call.is_view and not call.in_place:
            return False
    return not (moving.pieces or moving.masks)
