"""A rule about sums over steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.calls import LAYER, own_tensors
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.trace.tree import (
    all_used,
    backward_of,
    has_regions,
    outermost_named,
    recorded,
)
from pytest_torchprof.work.autograd import forward_passes, hides_backward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events

_JOINS: Final = Names(r"aten::(add_?|sub_?|lerp_?|stack|cat)$")
#: These are not sums, but a sum that passes through them still is one.
_SCALES: Final = Names(r"aten::(mul_?|div_?)$")


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
    come from `steps` (3) passes or more through the same layers, none of which takes what another
    made: by `+=`, a moving average, or `sum` or `torch.stack` of a list. Only live tests are
    checked, which identify tensors.

    Not counted: losses that are summed for one backward pass; what is detached; sums of more than
    numbers without training, and those that are updated in place.

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
    layers = outermost_named(trace, LAYER)
    often = np.bincount(trace.name[layers]).max(initial=0) >= steps
    if not often and not has_regions(trace):
        return NO_MATCHES_OF_CALLS
    if all_used(trace, _JOINS):
        return NO_MATCHES
    found = recorded(trace)
    used = backward_of(trace, found.rows) >= 0
    joins = set(found.rows[~used & are_named(trace, found.rows, _JOINS)].tolist())
    if not joins or hides_backward(trace):
        return NO_MATCHES
    if (known := forward_passes(trace, LAYER)) is None:
        return NONE_SO_FAR
    through = {*joins, *found.rows[~used & are_named(trace, found.rows, _SCALES)].tolist()}
    through &= known.sources.keys()
    of = dict(zip(found.rows.tolist(), known.number.tolist(), strict=True))
    trained = set(known.number[used].tolist())
    weights = defaultdict[int, set[object]](set)
    rows = found.rows[are_named(trace, found.rows, LAYER)]
    for row, own in zip(rows.tolist(), own_tensors(trace, rows), strict=True):
        weights[of[row]] |= own
    sums = list[int]()
    for end in through.difference(chain.from_iterable(known.sources[row] for row in through)):
        inside, terms = _summed(end, through, known.sources)
        if not (last := max(joins & inside, default=-1)) + 1 or not trace.selection[last]:
            continue
        seen, counts = set[int](), Counter[object]()
        for term in sorted(terms):
            new = known.joined(term, of) - seen
            seen |= new
            counts.update({own for one in new for own in weights[one]})
        # A statistic that is updated through `.data` looks the same, and keeps no graph.
        in_place = trace.names[trace.name[last]].endswith("_")
        counted = _is_of_numbers(trace, last) or not (in_place or trained.isdisjoint(seen))
        if max(counts.values(), default=0) >= steps and counted:
            sums.append(last)
    return Matches(
        np.array(sorted(sums), np.int64),
        "a sum of losses keeps the graph of each step",
        cost_ns=np.full(len(sums), -1, np.int64),
    )


def _summed(
    end: int, through: set[int], sources: Mapping[int, set[int]]
) -> tuple[set[int], set[int]]:
    """The operators of a sum, by its last one, and those that made its terms."""
    inside, terms, todo = set[int](), set[int](), [end]
    while todo:
        row = todo.pop()
        if row not in through:
            terms.add(row)
        elif row not in inside:
            inside.add(row)
            todo += sources[row]
    return inside, terms


def _is_of_numbers(trace: Events, row: int) -> bool:
    """Whether an operator's first tensor, or each of its list, is a number."""
    (args,) = trace.operands(np.array([row]))
    dims = decode_part(args.dims)
    of_list = bool(dims and dims[0]) and isinstance(dims[0][0], list)
    return all(n == 1 for shape in (dims[0] if of_list else dims[:1]) for n in shape)
