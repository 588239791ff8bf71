"""A rule about steps that take more and more operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.calls import LAYER, own_tensors
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import OPERATOR, marks_named
from pytest_torchprof.trace.tree import begun_by, forward_calls, outermost_named
from pytest_torchprof.work.autograd import OPTIMIZER_STEP
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_NONE: Final = np.zeros(0, np.int64)


@rule(
    "growing-graph",
    memory=True,
    fix="look for what each step adds: a hook that is registered again, a list that is walked from "
    "its start, a graph that is not detached",
    triggers=rf"{OPTIMIZER_STEP.pattern}|{LAYER.pattern}",
    steps=Threshold(5, "1", "fewer may grow by chance, or while something is warmed up"),
)
def growing_graph(trace: Events, *, steps: float) -> Matches:
    """Each step takes more operators than the one before.

    ## What it does

    Counts stretches of `steps` (5) steps or more that call the same layers equally often, and of
    which each calls the same further operators as the one before it did: to compute again what was
    computed in the step, or to read what is older than the step before. Steps are those of an
    optimizer, or else each run of the first layer. The place is a line in the last step that does
    so. Only live tests are checked.

    Not counted: steps that differ in another way, as on data of different lengths, or that run
    layers more often.

    ## Why it is slow

    The first steps are as fast as ever, and the last ones take most of the time: in all it grows
    with the square of the number of steps. The cost is the time of the further operators.

    ## Example

    ```python
    for x, y in loader:
        model.register_forward_hook(log)
        losses.append(step(x, y))
        print(sum(losses) / len(losses))
    ```

    ## Use instead

    ```python
    model.register_forward_hook(log)
    for x, y in loader:
        total += step(x, y)
        print(total / (number := number + 1))
    ```
    """
    bounds = _bounds(trace, steps)
    operators = np.flatnonzero(trace.selection & (trace.kind == OPERATOR))
    step = np.searchsorted(bounds, operators, side="right") - 1
    operators, step = (one[(step >= 0) & (step < len(bounds) - 1)] for one in (operators, step))
    grows = np.diff(np.bincount(step, minlength=len(bounds) - 1)) > 0 if len(bounds) else _NONE
    if np.count_nonzero(grows) < steps - 1:
        return NO_MATCHES
    counts = np.zeros((len(grows) + 1, len(trace.names)), np.int64)
    np.add.at(counts, (step, trace.name[operators]), 1)
    more = np.diff(counts, axis=0)
    layers = np.bincount(
        np.searchsorted(bounds, outermost_named(trace, LAYER), side="right"),
        minlength=len(bounds) + 1,
    )[1:-1]
    alike = grows[1:] & grows[:-1] & (more[1:] == more[:-1]).all(axis=1)
    alike &= (layers[2:] == layers[1:-1]) & (layers[1:-1] == layers[:-2])
    edges = np.flatnonzero(np.diff(alike.astype(np.int8), prepend=0, append=0))
    runs = [(a, b + 2) for a, b in zip(edges[::2], edges[1::2], strict=True) if b + 2 - a >= steps]
    if runs and trace.tensors is None:
        return NONE_SO_FAR
    event, span, cost, messages = [], [], [], []
    for first, stop in runs:
        rows, of = _further(trace, bounds[first : stop + 1], more[first])
        size = np.bincount(of, minlength=stop - first)
        if not size[-1] or (np.diff(size)[2:] <= 0).any():  # nothing is that old in the first ones
            continue
        event.append(int(rows[of == stop - first - 1][0]))
        span.append((trace.ts[bounds[first]], trace.ts[bounds[stop]]))
        cost.append(int(trace.dur[rows].sum()))
        n = more[first].sum()
        messages.append(f"each of {stop - first} steps takes {n} operators more than the last one")
    begin, end = np.array(span, np.int64).reshape(-1, 2).T
    return Matches(
        begun_by(trace, np.array(event, np.int64)),
        messages,
        cost_ns=np.array(cost, np.int64),
        span_ns=(begin, end),
    )


def _bounds(trace: Events, steps: float) -> Ints:
    """The events that begin steps: an optimizer's, or else the runs of the first layer."""
    marks = np.sort(marks_named(trace, OPTIMIZER_STEP))
    if len(marks) > steps:
        return marks
    layers = outermost_named(trace, LAYER)
    layers = layers[trace.selection[layers]]
    if len(layers) <= steps:
        return layers[:0]
    owns = own_tensors(trace, layers)
    return layers[[not own.isdisjoint(owns[0]) for own in owns]]


def _further(trace: Events, bounds: Ints, more: Ints) -> tuple[Ints, Ints]:
    """What reads something older than the step before, or computes again what was computed in its
    step, and its step; of the operators of which there are ``more`` in each step, by name.
    """
    graph, steps = dataflow(trace), len(bounds) - 1
    step = np.searchsorted(bounds, graph.event, side="right") - 1
    writer = graph.writer[graph.reads.value]
    old = (writer >= 0) & (step[writer] < step[graph.reads.node] - 1)
    calls = np.sort(forward_calls(trace))
    calls = calls[(calls >= bounds[0]) & (calls < bounds[-1])]
    key = graph.again(calls) * steps + np.searchsorted(bounds, calls, side="right") - 1
    _, first = np.unique(key, return_index=True)
    again = np.ones(len(calls), bool)
    again[first] = False
    again &= key >= 0
    rows = np.concatenate([graph.event[graph.reads.node[old]], calls[again]])
    rows = nesting.distinct(rows[more[trace.name[rows]] > 0])
    of = np.searchsorted(bounds, rows, side="right") - 1
    inside = (of >= 0) & (of < steps)
    return rows[inside], of[inside]
