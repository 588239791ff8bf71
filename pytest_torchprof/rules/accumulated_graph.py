"""Rules about sums over steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.evidence.autograd import (
    all_used,
    flat,
    forward_calls,
    has_regions,
    makers,
    node_steps,
    numbers,
    recorded,
)
from pytest_torchprof.rules.evidence.calls import LAYER, running_again
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, marks_named
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import engine_steps, outermost_named

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_JOINS: Final = Names(r"aten::(add_?|sub_?|lerp_?|mul_?|div_?|stack|cat)$")
#: These are not sums, but a sum that passes through them still is one.
_SCALES: Final = frozenset({"aten::mul", "aten::mul_", "aten::div", "aten::div_"})
_OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
#: In a trace with more calls, the origin of each term is not searched.
_MANY: Final = 10_000


@rule(
    "accumulated-graph",
    memory=True,
    fix="sum without the graph: loss.item(), or loss.detach(), which does not wait for the device",
    triggers=_JOINS.pattern,
    steps=Threshold(3, "1", "a few graphs are soon dropped"),
)
def accumulated_graph(trace: Events, *, steps: float) -> Matches:
    """A loss is summed over steps with its graph, which keeps the graphs of all steps.

    ## What it does

    Counts sums that autograd recorded, that no backward pass in the trace used, and whose terms
    were made in `steps` steps or more, by the same operator: by `+=`, a moving average, or `sum` or
    `torch.stack` of a list. Between two training steps there is a backward pass; two evaluation
    steps run the same layers, and the later one takes nothing that was computed before. Only live
    tests are checked, which identify tensors.

    Not counted: losses that are summed for one backward pass; what is detached; what is updated in
    place and is more than a number.

    ## Why it is slow

    As long as the sum exists, no node of any step's graph is freed, nor what a node keeps: memory
    grows with each step. What that costs in time is unknown.

    ## Example

    ```python
    for batch, target in loader:
        loss = step(batch, target)
        total += loss
    ```

    ## Use instead

    ```python
    for batch, target in loader:
        loss = step(batch, target)
        total += loss.detach()
    ```
    """
    if not _may_repeat(trace, steps):
        return NO_MATCHES_OF_CALLS
    if not len(joins := _unused_joins(trace)):
        return NO_MATCHES
    bounds = _bounds(trace)
    trained = len(bounds) >= steps
    if not trained and not _has_layers(trace, steps):
        return NO_MATCHES
    sums = _sums(trace, joins)
    if sums is None:
        return NONE_SO_FAR
    sums = [one for one in sums if len(one.terms) >= steps]
    if not sums or len(forward_calls(trace)) > _MANY:
        return NO_MATCHES
    made_by = makers(trace)
    found = list[_Sum]()
    for one in sums:
        # A statistic that is updated through `.data` looks the same, and keeps no graph.
        in_place = trace.names[trace.name[one.last]].endswith("_")
        if in_place and not _is_scalar(trace, one.last):
            continue
        rows = distinct(
            np.array([made_by[term] for term in one.terms if term in made_by], np.int64)
        )
        most = _in_training(trace, rows, bounds)
        if most == 1 and _is_scalar(trace, one.last):
            most = _in_evaluation(trace, rows, one, made_by, steps)
        if most >= steps:
            found.append(one)
    return Matches(
        np.array([one.last for one in found], np.int64),
        "a sum of losses keeps the graph of each step",
        cost_ns=np.full(len(found), -1, np.int64),
    )


@dataclass
class _Sum:
    """A sum: the operators that made it, and the last of them that summed; the tensors that it is,
    and those that it sums.
    """

    rows: list[int] = field(default_factory=list)
    last: int = -1
    own: set[int] = field(default_factory=set)
    terms: set[int] = field(default_factory=set)


def _unused_joins(trace: Events) -> Ints:
    """Operators that may sum and recorded a node that no backward pass ran."""
    if all_used(trace, _JOINS):
        return np.zeros(0, np.int64)
    found = recorded(trace, _JOINS)
    found = found.where(trace.selection[found.rows])
    if not len(found.rows):
        return found.rows
    ran = nesting.distinct(numbers(trace, node_steps(trace)))
    stepped = bool(len(marks_named(trace, _OPTIMIZER_STEP)))
    if ran[-1:].max(initial=-1) < 0 and stepped:
        return found.rows[:0]  # the backward pass was on a thread not recorded
    used = np.searchsorted(ran, found.first) < np.searchsorted(ran, found.after)
    return np.sort(found.rows[~used])


def _bounds(trace: Events) -> Ints:
    """When the training steps end: each optimizer's step, or else each backward pass."""
    marks = trace.ts[marks_named(trace, _OPTIMIZER_STEP)]
    if len(marks):
        return np.sort(marks)
    ran = np.sort(trace.ts[node_steps(trace)])
    called = np.sort(trace.ts[forward_calls(trace)])
    begins = np.diff(np.searchsorted(called, ran), prepend=-1) != 0
    passes: Ints = ran[begins]
    return passes


def _may_repeat(trace: Events, steps: float) -> bool:
    """A quick check whether enough steps may have ended, or layers of one name run often enough."""
    stepped = len(marks_named(trace, _OPTIMIZER_STEP))
    if stepped >= steps or (not stepped and len(engine_steps(trace)) >= steps):
        return True
    if has_regions(trace):
        return True
    layers = outermost_named(trace, LAYER)
    return len(layers) >= steps and bool(np.bincount(trace.name[layers]).max() >= steps)


def _has_layers(trace: Events, repeats: float) -> bool:
    """Whether layers of one name run at least as often as there must be steps."""
    rows = recorded(trace, LAYER).rows
    return bool(np.bincount(trace.name[rows]).max(initial=0) >= repeats)


# --------------------------------------------------------------------------- what is summed


def _sums(trace: Events, rows: Ints) -> list[_Sum] | None:
    """The sums that these operators make; None if tensors are not identified."""
    taken, made = trace.taken(rows), trace.made(rows)
    if taken is None or made is None:
        return None
    known: dict[int, _Sum] = {}
    for row, arguments, new in zip(rows.tolist(), taken, made, strict=True):
        name = trace.names[trace.name[row]]
        operands = flat([arguments])
        owners = {id(known[one]): known[one] for one in operands if one in known}
        if name in _SCALES and not owners:
            continue
        total = next(iter(owners.values()), _Sum())
        for other in list(owners.values())[1:]:
            total.rows += other.rows
            total.last = max(total.last, other.last)
            total.own |= other.own
            total.terms |= other.terms
        if name not in _SCALES:
            total.last = row
            total.terms |= {one for one in operands if one not in total.own}
        total.rows.append(row)
        total.own |= set(operands[:1]) if name.endswith("_") else new
        if name.endswith("_") and operands[:1] and operands[0] in total.terms:
            total.terms.discard(operands[0])
        known.update(dict.fromkeys(total.own, total))
    return list({id(one): one for one in known.values()}.values())


# ------------------------------------------------------------------------------ in which steps


def _in_training(trace: Events, makers: Ints, bounds: Ints) -> int:
    """In how many steps one operator made terms."""
    by_name = defaultdict[int, set[int]](set)
    step = np.searchsorted(bounds, trace.ts[makers]).tolist()
    for name, number in zip(trace.name[makers].tolist(), step, strict=True):
        by_name[name].add(number)
    return max(map(len, by_name.values()), default=0)


def _in_evaluation(
    trace: Events, makers: Ints, one: _Sum, made_by: dict[int, int], repeats: float
) -> int:
    """How many terms come from layers that run again, and from nothing computed before."""
    layers = np.sort(recorded(trace, LAYER).rows)
    owns, _ = running_again(trace, layers, repeats)
    again = layers[[own is not None for own in owns]]
    called = np.sort(forward_calls(trace))
    count = 1
    for before, maker in zip(makers[:-1].tolist(), makers[1:].tolist(), strict=True):
        if not ((again > before) & (again <= maker)).any():
            continue
        inside = called[(called > before) & (called <= maker)]
        operands = set(flat(trace.taken(inside) or ()))
        earlier = {n for n in operands if made_by.get(n, maker) <= before}
        if not earlier - one.own - one.terms:
            count += 1
        if count >= repeats:
            break
    return count


def _is_scalar(trace: Events, row: int) -> bool:
    """Whether a sum is of numbers."""
    (args,) = trace.operands(np.array([row]))
    dims = decode_part(args.dims)
    shapes = dims[0] if dims and dims[0] and isinstance(dims[0][0], list) else dims[:1]
    return all(all(n == 1 for n in shape) for shape in shapes)
