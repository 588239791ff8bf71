"""A rule about graphs that are kept for another backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.breakdown import gain
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    once_per_trace,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.tree import begun_by, engine_nodes, marked, pass_of
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: The operator that stores a gradient for the optimizer; `autograd.grad` does not run it.
_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"


def _unidentified(trace: Events) -> Reason | None:
    """Passes that run nodes again, to gradients of which a stored trace does not tell which."""
    if trace.tensors is not None or trace.could_know_tensors or not _again(trace):
        return None
    return because(
        "tensors_unidentified", "whether they add to the same gradients, only a live test can tell"
    )


@rule(
    "backward-twice",
    fix="add the losses up and call backward once, without retain_graph=True",
    triggers=r"torch::autograd::AccumulateGrad$",
    blind=_unidentified,
    nodes=Threshold(4, "1", "running so few nodes again is fast"),
)
def backward_twice(trace: Events, *, nodes: float) -> Matches:
    """A backward pass goes through a graph again, to add to the same gradients.

    ## What it does

    Counts the backward passes that run `nodes` or more nodes of a graph that an earlier pass has
    run, and add the result to the same gradients, which only a live test can tell. The place is the
    line that leads to the later pass.

    Not counted: if something keeps the earlier pass's results, or reads or writes them before the
    later one begins, such as an optimizer, as each loss then needs its own pass;
    `torch.autograd.grad`.

    ## Why it is slow

    The gradient of a sum is the sum of the gradients, so one pass over what the losses share
    gives the same. Until the last pass, the graph keeps all activations.

    ## Example

    ```python
    loss_of_labels.backward(retain_graph=True)
    loss_of_boxes.backward()
    ```

    ## Use instead

    ```python
    (loss_of_labels + loss_of_boxes).backward()
    ```
    """
    found: list[tuple[Ints, Ints, int]] = []
    if not len(operators_named(trace, _ACCUMULATE)):
        return NO_MATCHES
    for early, late, again in _again(trace):
        if len(again) < nodes or not trace.selection[late[0]]:
            continue
        if trace.tensors is None:
            return NONE_SO_FAR if trace.could_know_tensors else NO_MATCHES
        if _is_free(trace, early, late):
            begun = next((one for _, other, one in found if other is early), int(early[0]))
            found.append((again, late, begun))
    if not found:
        return NO_MATCHES
    # Includes what is between the nodes: additions of gradients, and the engine itself.
    times = [around(trace, again) for again, _, _ in found]
    begin, end = np.array([(a.min(), b.max()) for a, b in times], np.int64).T
    later, first = np.array([(late[0], early) for _, late, early in found], np.int64).T
    event, before = begun_by(trace, later), begun_by(trace, first)
    return Matches(
        event,
        "backward runs a graph that an earlier backward has already run",
        cost_ns=gain(trace).between(begin, end),
        span_ns=(begin, end),
        # Their place is where the two differ: one function may call backward for both.
        parts=list(np.stack([event, before], axis=1)),
        apart=before,
    )


@once_per_trace
def _again(trace: Events) -> list[tuple[Ints, Ints, Ints]]:
    """Passes that run nodes again: the steps of the last pass that ran them, those of this one, and
    those of them that run the nodes.
    """
    steps, args = engine_nodes(trace)
    names = trace.name[steps].tolist()
    nodes = [(a.forward_thread, a.sequence, name) for a, name in zip(args, names, strict=True)]
    known = [node for node in nodes if node[1] >= 0]
    if len(set(known)) == len(known):
        return []
    found: list[tuple[Ints, Ints, Ints]] = []
    passes: list[Ints] = []
    ran, mine, begin = dict[tuple[int, int, int], int](), dict[tuple[int, int, int], int](), 0
    number = [*pass_of(trace, steps).tolist(), -1]
    for at, node in enumerate([*nodes, (-1, -1, -1)]):
        if at and (number[at] != number[at - 1] or node in mine):
            passes.append(steps[begin:at])
            if again := [one for one in mine if one in ran]:
                rows = np.array([mine[one] for one in again], np.int64)
                found.append((passes[max(ran[one] for one in again)], passes[-1], rows))
            ran.update(dict.fromkeys(mine, len(passes) - 1))
            mine, begin = {}, at
        if node[1] >= 0:
            mine[node] = int(steps[at])
    return found


def _is_free(trace: Events, early: Ints, late: Ints) -> bool:
    """Whether a pass adds to the gradients of an earlier one, which nothing uses in between."""
    graph, ts = dataflow(trace), trace.ts
    begin, end, next_begin = ts[early[0]], (ts[early] + trace.dur[early]).max(), ts[late[0]]
    puts = operators_named(trace, _ACCUMULATE)
    stored = puts[(ts[puts] >= begin) & (ts[puts] <= end)]
    added = puts[(ts[puts] >= next_begin) & (ts[puts] <= (ts[late] + trace.dur[late]).max())]
    adds = selected_operators(trace, "aten::add_", "aten::add")
    adds = adds[marked(trace, added)[trace.parent[adds]]]
    sources = graph.writer_of(graph.values(adds))
    if not ((sources >= early[0]) & (ts[sources] <= end)).any():
        return False
    inside = graph.event[graph.writes.node]
    left = graph.writes.where((ts[inside] >= begin) & (ts[inside] <= end)).value
    read = ts[graph.readers_of(left)]
    alive = nesting.distinct(graph.tensor[left[graph.outlives(left, int(next_begin))]])
    return not ((read > end) & (read < next_begin)).any() and len(alive) <= len(stored)
