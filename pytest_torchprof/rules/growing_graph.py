"""A rule about steps that take more and more operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


@rule(
    "growing-graph",
    memory=True,
    fix="register hooks once, keep running sums, and detach what one step hands to the next",
    triggers={rf"{OPTIMIZER_STEP.pattern}|{LAYER.pattern}": "steps"},
    steps=Threshold(5, "1", "fewer may grow by chance, or while something is warmed up"),
)
def growing_graph(trace: Events, *, steps: float) -> Matches:
    """Each step takes more operators than the one before.

    ## What it does

    Counts stretches of `steps` (5) steps or more that call as many layers, and the same operators
    more each: to compute again what the step has computed, or to read what is older than the step
    before. Steps are an optimizer's, or else runs of the first layer. The place is such a line in
    the last step. Only live tests are checked. Steps that differ otherwise are not counted, as on
    data of different lengths.

    ## Why it is slow

    The time of all steps grows with the square of their number. The cost is the time of the further
    operators.

    ## Example

    ```python
    for x, y in loader:
        losses.append(step(x, y))
        print(sum(losses) / len(losses))
    ```

    ## Use instead

    ```python
    for number, (x, y) in enumerate(loader, 1):
        total += step(x, y)
        print(total / number)
    ```
    """
    if trace.tensors is None and not trace.could_know_tensors:
        return NO_MATCHES
    bounds = _bounds(trace, steps)
    operators = np.flatnonzero(trace.selection & (trace.kind == OPERATOR))
    more = np.diff(_count(bounds, operators))
    layers = np.diff(_count(bounds, outermost_named(trace, LAYER)))
    alike = (more[1:] > 0) & (more[1:] == more[:-1]) & (layers[1:] == 0) & (layers[:-1] == 0)
    edges = np.flatnonzero(np.diff(alike, prepend=False, append=False))
    runs = [(a, b + 2) for a, b in zip(edges[::2], edges[1::2], strict=True) if b + 2 - a >= steps]
    if not runs or trace.tensors is None:
        return NONE_SO_FAR if runs else NO_MATCHES
    event, span, cost, messages = [], [], [], []
    for first, stop in runs:
        own = bounds[first : stop + 1]
        rows = _further(trace, own, operators)
        size = _count(own, rows)
        if not size[-1] or (np.diff(size)[2:] <= 0).any():  # nothing is that old in the first ones
            continue
        event.append(int(rows[rows >= own[-2]][0]))
        span.append(trace.ts[own[[0, -1]]])
        cost.append(int(trace.dur[rows].sum()))
        messages.append(f"each of {stop - first} steps takes {more[first]} operators more")
    begin, end = np.array(span, np.int64).reshape(-1, 2).T
    rows, cost_ns = np.array(event, np.int64), np.array(cost, np.int64)
    return Matches(begun_by(trace, rows), messages, cost_ns=cost_ns, span_ns=(begin, end))


def _bounds(trace: Events, steps: float) -> Ints:
    """The events that begin steps: an optimizer's, or else the runs of the first layer."""
    bounds: Ints = np.sort(marks_named(trace, OPTIMIZER_STEP))
    if len(bounds) <= steps:
        bounds = outermost_named(trace, LAYER)
        bounds = bounds[trace.selection[bounds]]
        bounds = bounds[trace.name[bounds] == trace.name[bounds[:1]]]
        owns = own_tensors(trace, bounds) if len(bounds) > steps else []
        bounds = bounds[: len(owns)][[not own.isdisjoint(owns[0]) for own in owns]]
    return bounds


def _count(bounds: Ints, rows: Ints) -> Ints:
    """How many of these events are in each step."""
    found: Ints = np.diff(np.searchsorted(rows, bounds))
    return found


def _further(trace: Events, bounds: Ints, operators: Ints) -> Ints:
    """What reads something older than the step before, or computes again what its step computed,
    if each step has as many more operators of its name, and of each other name.
    """
    begin, end = np.searchsorted(operators, bounds[[0, -1]])
    step = np.searchsorted(bounds, operators[begin:end], side="right") - 1
    counts = np.zeros((len(bounds) - 1, len(trace.names)), np.int64)
    np.add.at(counts, (step, trace.name[operators[begin:end]]), 1)
    more = np.diff(counts, axis=0)
    if (more != more[0]).any():
        return operators[:0]
    graph = dataflow(trace)
    step = np.searchsorted(bounds, graph.event, side="right")
    writer = graph.writer[graph.reads.value]
    old = (writer >= 0) & (step[writer] < step[graph.reads.node] - 1)
    calls = np.sort(forward_calls(trace))
    calls = calls[(calls >= bounds[0]) & (calls < bounds[-1])]
    known = graph.again(calls)
    key = known * len(bounds) + np.searchsorted(bounds, calls, side="right")
    again = np.ones(len(calls), bool)
    again[np.unique(key, return_index=True)[1]] = False
    rows = np.concatenate([graph.event[graph.reads.node[old]], calls[again & (known >= 0)]])
    rows = rows[(rows >= bounds[0]) & (rows < bounds[-1]) & (more[0][trace.name[rows]] > 0)]
    found: Ints = nesting.distinct(rows)
    return found
