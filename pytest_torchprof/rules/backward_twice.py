"""Rules about graphs that are kept for another backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.breakdown import gain
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.evidence.autograd import (
    engine_nodes,
    forward_calls,
    hooks_read,
    outlive,
)
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.arguments import AutogradArgs, decode
from pytest_torchprof.trace.names import (
    OPERATOR,
    Names,
    are_named,
    marks_named,
    selected_operators,
)
from pytest_torchprof.trace.tree import marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

_OPTIMIZER: Final = Names(r"Optimizer\.")
#: The operator that stores a gradient for the optimizer; `autograd.grad` does not run it.
_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
#: ``backward`` calls this first, to make the initial gradient.
_BEGINS: Final = "aten::ones_like"


def _unidentified(trace: Events) -> Reason | None:
    """Passes that run nodes again, to gradients of which a stored trace does not tell which."""
    if trace.tensors is not None or trace.could_know_tensors or not trace.once(_passes):
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

    Not counted: if something takes the earlier pass's results before the later one begins, a hook
    reads or keeps a gradient, the gradients are zeroed, or an optimizer steps, as each loss then
    needs its own pass; `torch.autograd.grad`; what follows a pass with `create_graph=True`.

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
    passes = trace.once(_passes)
    if len(passes) < 2:
        return NO_MATCHES
    asks = False
    found: list[tuple[_Pass, Ints]] = []
    first: list[_Pass] = []
    for early, late, again in _pairs(passes):
        if len(again) < nodes or not _adds_up(trace, early, late):
            continue
        number = next((n for n, (one, _) in enumerate(found) if one.steps is early.steps), -1)
        free = _is_free(trace, early, late)
        asks |= free is None
        if free:
            found.append((late, again))
            first.append(first[number] if number >= 0 else early)
    if not found:
        return NONE_SO_FAR if asks else NO_MATCHES
    # Includes what is between the nodes: additions of gradients, and the engine itself.
    begin = np.array([trace.ts[again].min() for _, again in found], np.int64)
    end = np.array([(trace.ts[a] + trace.dur[a]).max() for _, a in found], np.int64)
    event = np.array([_begin(trace, late) for late, _ in found], np.int64)
    before = np.array([_begin(trace, one) for one in first], np.int64)
    return Matches(
        event,
        "backward runs a graph that an earlier backward has already run",
        cost_ns=gain(trace).between(begin, end),
        span_ns=(begin, end),
        wants_tensors=asks,
        # Their place is where the two differ: one function may call backward for both.
        parts=list(np.stack([event, before], axis=1)),
        apart=before,
    )


class _Pass(NamedTuple):
    """Steps of the engine in one backward pass, in time order; the nodes that they run, by number
    and name; the operators that store gradients.
    """

    steps: Ints
    nodes: dict[tuple[int, int, int], int]
    puts: Ints

    def within(self, trace: Events, rows: Ints) -> Ints:
        """Those of these events that happened during the pass."""
        begin = trace.ts[self.steps[0]]
        end = (trace.ts[self.steps] + trace.dur[self.steps]).max()
        found: Ints = rows[(trace.ts[rows] >= begin) & (trace.ts[rows] <= end)]
        return found


def _passes(trace: Events) -> list[_Pass]:
    """All passes; none if no node runs twice."""
    steps, args = engine_nodes(trace)
    names = trace.name[steps].tolist()
    nodes = [
        (one.forward_thread, one.sequence, name) for one, name in zip(args, names, strict=True)
    ]
    known = [node for node in nodes if node[1] >= 0]
    if len(set(known)) == len(known):
        return []
    # The engine goes from node to node; between two passes, the user's code calls something.
    called = np.sort(trace.ts[forward_calls(trace)])
    place = np.searchsorted(called, trace.ts[steps]).tolist()
    puts = selected_operators(trace, _ACCUMULATE)
    found, begin, seen = list[_Pass](), 0, dict[tuple[int, int, int], int]()
    for at in range(len(steps) + 1):
        if at == len(steps) or (at and place[at] != place[at - 1]) or nodes[at] in seen:
            one = _Pass(steps[begin:at], seen, puts)
            found.append(one._replace(puts=one.within(trace, puts)))
            begin, seen = at, {}
        if at < len(steps) and nodes[at][1] >= 0:
            seen[nodes[at]] = int(steps[at])
    return found


def _pairs(passes: list[_Pass]) -> Iterator[tuple[_Pass, _Pass, Ints]]:
    """Passes that run nodes again, with the last pass that ran them and the steps that do."""
    ran = dict[tuple[int, int, int], int]()
    for number, late in enumerate(passes):
        before = [ran[node] for node in late.nodes if node in ran]
        if before:
            again = [row for node, row in late.nodes.items() if node in ran]
            yield passes[max(before)], late, np.array(again, np.int64)
        ran.update(dict.fromkeys(late.nodes, number))


def _adds_up(trace: Events, early: _Pass, late: _Pass) -> bool:
    """Whether the later pass adds to the gradients of the earlier one, as far as known."""
    if not trace.selection[late.steps[0]] or not len(early.puts) or not len(_adding(trace, late)):
        return False
    marks = marks_named(trace, _OPTIMIZER)
    begin, end = trace.ts[early.steps[-1]], trace.ts[late.steps[0]]
    if ((trace.ts[marks] > begin) & (trace.ts[marks] < end)).any():
        return False
    # With create_graph=True, the pass itself records nodes.
    inside = early.within(trace, np.flatnonzero(trace.kind == OPERATOR))
    args = decode(AutogradArgs, trace.args[inside])
    return not any(one.sequence >= 0 and one.forward_thread == 0 for one in args)


def _adding(trace: Events, one: _Pass) -> Ints:
    """The additions to existing gradients."""
    adds = selected_operators(trace, "aten::add_", "aten::add")
    found: Ints = adds[marked(trace, one.puts)[trace.parent[adds]]]
    return found


def _between(trace: Events, early: _Pass, late: _Pass) -> Ints:
    """Calls after one pass and before the other, except for the one that begins it."""
    called = forward_calls(trace)
    begin, end = trace.ts[early.steps[-1]], trace.ts[late.steps[0]]
    called = called[(trace.ts[called] > begin) & (trace.ts[called] < end)]
    rest: Ints = called[~are_named(trace, called, _BEGINS)]
    return rest


def _is_free(trace: Events, early: _Pass, late: _Pass) -> bool | None:
    """Whether both add to the same gradients, and nothing takes the earlier one's results before
    the later one begins; None if another run could tell.
    """
    if trace.tensors is None:
        return None if trace.could_know_tensors else False
    if _is_kept(trace, early, late):
        return False
    between = _between(trace, early, late)
    adds, more = _adding(trace, early), _adding(trace, late)
    put, added, again, calls = (
        _flat(one[:first] for one in trace.taken(rows) or ())
        for rows, first in ((early.puts, 1), (adds, 1), (more, 1), (between, None))
    )
    made = set[int]().union(*trace.made(early.steps) or ())
    return not (put | added).isdisjoint(again) and (put | added | made).isdisjoint(calls)


def _is_kept(trace: Events, early: _Pass, late: _Pass) -> bool:
    """Whether a hook takes a gradient of the earlier pass, or something still holds one."""
    if hooks_read(trace, early.steps, early.puts):
        return True
    adds = marked(trace, trace.parent[_adding(trace, early)])[early.puts]
    until = int(trace.ts[late.steps[0]])
    return outlive(trace, early.steps, early.puts, adds, until)


def _flat(taken: Iterable[Sequence[Taken]]) -> set[int]:
    """The numbers of all tensors among arguments."""
    every = (one for arguments in taken for one in arguments)
    return {n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0}


def _begin(trace: Events, one: _Pass) -> int:
    """The event with the place of a pass's call: its first gradient, or where one is stored."""
    called = forward_calls(trace)
    before = called[trace.ts[called] < trace.ts[one.steps[0]]]
    if len(before):
        last = before[np.argmax(trace.ts[before])]
        if trace.names[trace.name[last]] == _BEGINS:
            return int(last)
    return int(one.puts[0]) if len(one.puts) else int(one.steps[0])
