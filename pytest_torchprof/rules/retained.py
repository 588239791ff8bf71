"""Rules about graphs that are kept to be walked again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.arguments import AutogradArgs, decode, decode_part
from pytest_torchprof.events import Kind
from pytest_torchprof.rules import identity
from pytest_torchprof.rules.grouping import reach
from pytest_torchprof.rules.levels import (
    are_engine_steps,
    are_gradchecked,
    compiled,
    engine_steps,
)
from pytest_torchprof.rules.names import Names, are_named, marks_named, operators_named
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.rules.tree import outermost

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

_EVALUATES: Final = Names(r"autograd::engine::evaluate_function: ")
_GRADIENT: Final = Names(r"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")
_ACCUMULATE: Final = Names(r"torch::autograd::AccumulateGrad$")
_OPTIMIZER: Final = Names(r"Optimizer\.")


@rule(
    "backward-twice",
    fix="add the losses and call backward once: (first + second).backward(), without retain_graph",
    triggers=_EVALUATES.pattern,
    nodes=Threshold(4, "1", "so little is walked again in no time"),
)
def backward_twice(trace: Trace, *, nodes: float) -> Matches:
    """Several backward passes go through the same graph, where one would do.

    What it does
        Counts backward passes that ran ``nodes`` (4) or more nodes of a graph which an earlier pass
        had run already, with ``retain_graph=True``, where both added to the same gradients and
        nothing looked at these in between: the gradients of the sum of the losses are the same.
        Not: passes with an optimizer's step or a ``zero_grad`` between them, as those of a GAN;
        gradients that are read, clipped or kept between the passes; ``torch.autograd.grad``, whose
        results are apart, as in a Jacobian; graphs of gradients (``create_graph=True``);
        ``torch.autograd.gradcheck``.

    Why it is slow
        The nodes that the losses share run once for each of them, and all their activations stay in
        memory until the last pass.

    Example
        .. code:: python

            features = backbone(batch)
            head_a(features).sum().backward(retain_graph=True)
            head_b(features).sum().backward()

    Use instead
        .. code:: python

            features = backbone(batch)
            (head_a(features).sum() + head_b(features).sum()).backward()
    """
    steps = engine_steps(trace)
    steps = steps[trace.selection[steps] & are_named(trace, steps, _EVALUATES)]
    again = _repeated(trace, steps)
    if not again:
        return NO_MATCHES
    gradients = _Gradients.of(trace)
    found = [
        one
        for one in again
        if len(one.rows) >= nodes
        and _is_plain(trace, one)
        and not are_gradchecked(trace, one.rows[:1]).any()
        and gradients.only_added(one)
    ]
    if gradients.asks and identity.wanted(trace):
        return NONE_SO_FAR
    if not found:
        return NO_MATCHES
    event = np.array([one.rows[0] for one in found], np.int64)
    spans = [reach(trace, one.rows) for one in found]
    begin = np.array([starts.min() for starts, _ in spans], np.int64)
    end = np.array([ends.max() for _, ends in spans], np.int64)
    return Matches(
        event,
        [f"{len(one.rows)} nodes of a graph run in one more backward pass" for one in found],
        # With what is between the nodes: gradients that are added, and the engine itself.
        cost_ns=end - begin,
        span_ns=(begin, end),
    )


@dataclass(frozen=True)
class _Again:
    """Nodes that ran in an earlier pass too: their steps then and now, and the passes' bounds."""

    before: Ints
    rows: Ints
    #: When the earlier pass ended, and this one began.
    between: tuple[int, int]
    #: When the earlier pass began, and this one ended.
    around: tuple[int, int]


def _repeated(trace: Trace, steps: Ints) -> list[_Again]:
    """Pairs of passes with nodes in common, one behind the other."""
    if len(steps) < 2:
        return []
    args = decode(AutogradArgs, trace.args[steps])
    node = np.array([(a.forward_thread, a.sequence) for a in args], np.int64)
    known = (node[:, 1] >= 0) & ~are_named(trace, steps, _GRADIENT)
    node = np.column_stack([node, trace.name[steps]])
    _, number = np.unique(node, axis=0, return_inverse=True)
    number = np.where(known, number.reshape(-1), -1)
    if np.bincount(number[known]).max(initial=0) < 2:
        return []
    of_pass = _passes(trace, steps)
    last: dict[int, int] = {}
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for at in np.flatnonzero(known).tolist():
        earlier = last.get(int(number[at]))
        if earlier is not None and of_pass[earlier] != of_pass[at]:
            pairs.setdefault((int(of_pass[earlier]), int(of_pass[at])), []).append((earlier, at))
        last[int(number[at])] = at
    ends = trace.ts[steps] + trace.dur[steps]
    starts = trace.ts[steps]
    found = []
    for (one, other), nodes in pairs.items():
        before, now = np.array(nodes, np.int64).T
        first, second = of_pass == one, of_pass == other
        between = int(ends[first].max()), int(starts[second].min())
        around = int(starts[first].min()), int(ends[second].max())
        found.append(_Again(steps[before], steps[now], between, around))
    return found


def _passes(trace: Trace, steps: Ints) -> Ints:
    """The number of the backward pass of each step: a call of the user's lies between two.

    To begin one, torch itself makes the gradient of the loss, which is such a call.
    """
    others = outermost(trace)
    others = others[~are_engine_steps(trace, others) & ~compiled(trace, others)]
    place = np.searchsorted(np.sort(trace.ts[others]), trace.ts[steps])
    return np.cumsum(np.diff(place, prepend=place[0]) != 0)


def _is_plain(trace: Trace, again: _Again) -> bool:
    """Whether no optimizer came between the passes, and the first made no graph of its own."""
    end, begin = again.between
    marks = trace.ts[marks_named(trace, _OPTIMIZER)]
    if ((marks >= end) & (marks <= begin)).any():
        return False
    is_step = np.zeros(len(trace), bool)
    is_step[again.before] = True
    inside = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.ts >= again.around[0]))
    inside = inside[trace.ts[inside] < end]
    node = inside[is_step[trace.parent[inside]] & (trace.parent[inside] >= 0)]
    is_step[node] = True  # the node within the engine's step
    made = inside[is_step[trace.parent[inside]] & ~is_step[inside] & (trace.parent[inside] >= 0)]
    numbers = [args.sequence for args in decode(AutogradArgs, trace.args[made])]
    return max(numbers, default=-1) < 0


class _Gradients:
    """What the passes add to, and whether anything looks at it meanwhile.

    ``asks``: of some it is not known, and which tensor is which would tell.
    """

    def __init__(self, trace: Trace, rows: Ints) -> None:
        self._trace, self._rows = trace, rows
        self.asks = False

    @classmethod
    def of(cls, trace: Trace) -> _Gradients:
        return cls(trace, operators_named(trace, _ACCUMULATE))

    def only_added(self, again: _Again) -> bool:
        """Whether both passes add to gradients, and no call between them takes one."""
        trace, (end, begin) = self._trace, again.between
        ts = trace.ts[self._rows]
        first = self._rows[(ts >= again.around[0]) & (ts < end)]
        second = self._rows[(ts >= begin) & (ts < again.around[1])]
        if not len(first) or not len(second):
            return False
        calls = outermost(trace)
        calls = calls[(trace.ts[calls] >= end) & (trace.ts[calls] < begin)]
        shapes = self._shapes(first)
        calls = calls[self._take(calls, shapes)]
        if not len(calls):
            return True
        gradients, taken = identity.taken(trace, first), identity.taken(trace, calls)
        if gradients is None or taken is None:
            self.asks = True
            return False
        mine = {_flat(row)[0] for row in gradients if _flat(row)}
        return mine.isdisjoint({number for row in taken for number in _flat(row)})

    def _shapes(self, rows: Ints) -> set[str]:
        found = [decode_part(args.dims) for args in self._trace.operands(rows)]
        return {str(dims[0]) for dims in found if isinstance(dims, list) and dims}

    def _take(self, calls: Ints, shapes: set[str]) -> Bools:
        """Which of these calls take a tensor of such a shape, or a list of tensors."""
        out = []
        for args in self._trace.operands(calls):
            dims = decode_part(args.dims)
            known = dims if isinstance(dims, list) else []
            listed = any(d and isinstance(d[0], list) for d in known if isinstance(d, list))
            out.append(listed or not known or any(str(d) in shapes for d in known))
        return np.array(out, bool)


def _flat(row: tuple[int | tuple[int, ...], ...]) -> list[int]:
    found: list[int] = []
    for one in row:
        found += one if isinstance(one, tuple) else (one,)
    return [number for number in found if number >= 0]
