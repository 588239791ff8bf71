"""recomputed: the same is computed from the same tensors, again and again."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, are_named, operators_named
from pytest_torchprof.trace.tree import marked, outermost, step_of
from pytest_torchprof.work.dataflow import (
    ACCUMULATE,
    IN_PLACE,
    OVERWRITES,
    alike_nodes,
    dataflow,
    flat_in_order,
    made_bytes,
    nodes_of,
    possible,
)

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.work.dataflow import Dataflow, Reads, Writes

#: What other rules are about: copies of one tensor, and what makes a tensor of numbers.
_NO_WORK: Final = Names(r"aten::(copy_|clone|fill_|zero_|arange|eye|full|ones|zeros)$")
#: Operators that do not compute the same each time.
_RANDOM: Final = Names(
    r"aten::\w*(rand|normal_|uniform|bernoulli|dropout|exponential|multinomial|poisson)\w*$"
)


@rule(
    "recomputed",
    fix="compute it once, before the loop or in __init__ (register_buffer), and pass it on; for "
    "parametrizations, torch.nn.utils.parametrize.cached()",
    needs="live",
    repeats=Threshold(4, "1", "of one computation in one step; fewer are often not worth a name"),
    operators=Threshold(3, "1", "in a computation; fewer only matter if what they make is large"),
    bytes=Threshold(1 << 20, "B", "made again; less takes no longer than the calls"),
)
def recomputed(
    trace: Events,
    *,
    repeats: float,
    operators: float,
    bytes: float,  # noqa: A002 - as users set it
) -> Matches:
    """The same is computed from the same tensors, again and again.

    ## What it does

    Counts computations that run `repeats` (4) times or more in one step on the same contents of the
    same tensors, with the same arguments, and whose results something new takes each time. They
    count if they have `operators` (3) or more, or make `bytes` (1 MiB) again. The place is the
    line that repeats it. Not counted: random numbers, copies and casts, which have their own rules;
    backward passes, so also checkpoints; a whole model that is called again.

    ## Why it is slow

    All repetitions but the first one compute what is already known.

    ## Example

    ```python
    for layer in layers:
        angles = torch.outer(positions, frequencies)
        x = layer(x, angles.cos(), angles.sin())
    ```

    ## Use instead

    ```python
    angles = torch.outer(positions, frequencies)
    cos, sin = angles.cos(), angles.sin()
    for layer in layers:
        x = layer(x, cos, sin)
    ```
    """
    if not _may_repeat(trace, repeats, operators, bytes):
        return NO_MATCHES
    found = _computations(trace, possible(trace), repeats, operators, bytes)
    if trace.tensors is None or not found:  # else it would not always be asked who is who
        return NONE_SO_FAR if found and trace.could_know_tensors else NO_MATCHES
    graph = dataflow(trace)
    found = _computations(trace, graph, repeats, operators, bytes)
    if not found:
        return NO_MATCHES
    events, times = [graph.event[one[0]] for one in found], [one[1] for one in found]
    first, last = (np.array([rows[at] for rows in events]) for at in (0, -1))
    names = [trace.names[name] for name in trace.name[first].tolist()]
    ns = trace.dur + (trace.once(launched_ns) if trace.has(*DEVICE_KINDS) else 0)
    return Matches(
        first,
        [
            f"{a} and what follows compute the same {n} times"
            for a, n in zip(names, times, strict=True)
        ],
        cost_ns=(np.array([ns[rows].sum() for rows in events]) * (1 - 1 / np.array(times))).astype(
            np.int64
        ),
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        wants_tensors=True,
        last=graph.event[[one[2] for one in found]],
    )


def _may_repeat(trace: Events, repeats: float, operators: float, least_bytes: float) -> bool:
    """Whether enough nodes look alike, and among them some that start a computation.

    Those do not take what they write over.
    """
    event, (kinds, _) = nodes_of(trace), alike_nodes(trace)
    free = trace.selection[event] & ~are_named(trace, event, _RANDOM)
    starts = free & (~are_named(trace, event, IN_PLACE) | are_named(trace, event, *OVERWRITES))
    often = (np.bincount(kinds[free], minlength=kinds.max(initial=0) + 1) >= repeats)[kinds] & free
    if not (often & starts).any():
        return False
    work = len({*kinds[often & ~are_named(trace, event, _NO_WORK)].tolist()})
    return work >= operators or made_bytes(trace)[often].sum() >= least_bytes


def _computations(
    trace: Events, graph: Dataflow, repeats: float, operators: float, least_bytes: float
) -> list[tuple[list[int], int, int]]:
    """Nodes that compute the same so often, the first with work first; and the second like it."""
    kinds, _ = alike_nodes(trace)
    first, reads, varies = _first_alike(trace, graph, kinds.tolist())
    times = Counter(first)
    call = nesting.nearest(marked(trace, outermost(trace)), trace.parent, graph.event).tolist()
    rare = {call[node] for node, one in enumerate(first) if one < 0 or times[one] < repeats}
    # What an operator computes within it cannot be kept for the next call.
    owner = {one: one for node, one in enumerate(first) if one == node and call[node] not in rare}
    made, out = made_bytes(trace), list[tuple[list[int], int, int]]()
    idle = are_named(trace, graph.event, _NO_WORK)
    again = sum(max(made[node], 0) * (times[node] - 1) for node in owner)
    if sum(not idle[node] for node in owner) < operators and again < least_bytes:
        return out
    used, writer = defaultdict[int, set[int]](set), graph.writer.tolist()
    for node, values in enumerate(reads):
        writers = {one: writer[one] for one in values if writer[one] >= 0}
        known = {one: first[by] for one, by in writers.items() if first[by] in owner}
        if node in owner:
            merged = {owner[one] for one in (node, *known.values())}
            if len(merged) > 1:
                owner |= {one: min(merged) for one, root in owner.items() if root in merged}
        elif first[node] not in owner and not (
            graph.backward[node] or varies.issuperset({*values} - {*known})
        ):  # something new takes it
            for value, one in known.items():
                used[one].add(writers[value])
    for root in sorted({*owner.values()}):
        mine = [node for node, one in owner.items() if one == root]
        work = [node for node in mine if not idle[node]]
        again = sum(made[node] * (times[node] - 1) for node in mine)
        enough = len(work) >= operators or again >= least_bytes
        # Inputs that look alike do not look new.
        taken = not graph.exact or max(len(used[node]) for node in mine) >= repeats
        if work and enough and taken:
            every = [node for node, one in enumerate(first) if owner.get(one) == root]
            second = next(node for node in every if node > work[0] and first[node] == work[0])
            out.append(([node for node in every if node >= work[0]], times[work[0]], second))
    return out


def _grouped(graph: Dataflow, columns: Reads | Writes) -> list[list[int]]:
    """The values that each node reads, or writes."""
    bounds = columns.node.searchsorted(np.arange(len(graph) + 1)).tolist()
    values = columns.value.tolist()
    return [values[low:high] for low, high in pairwise(bounds)]


def _first_alike(
    trace: Events, graph: Dataflow, kinds: list[int]
) -> tuple[list[int], list[list[int]], set[int]]:
    """For each node the first one of its step that computes the same, -1 for one that is not pure;
    what each one reads; and the values that depend on random numbers.
    """
    reads, writes = _grouped(graph, graph.reads), _grouped(graph, graph.writes)
    stored = np.sort(trace.ts[operators_named(trace, ACCUMULATE)])
    era = stored.searchsorted(trace.ts[graph.event]) + step_of(trace, graph.event)
    random = are_named(trace, graph.event, _RANDOM)
    pure = trace.selection[graph.event] & ~random & ~graph.backward
    parts = _parts(trace, graph)
    same, varies, out = dict[int, int](), set[int](), list[int]()
    seen = dict[object, int]()
    rows = zip(kinds, era.tolist(), pure.tolist(), random.tolist(), reads, writes, strict=True)
    for node, (kind, when, is_pure, is_random, values, wrote) in enumerate(rows):
        first = -1
        if is_pure:
            key = kind, when, *[same.get(v, v) for v in values], None, *parts[node]
            first = seen.setdefault(key, node)
            if first != node:
                same.update(zip(wrote, writes[first], strict=False))
        out.append(first)
        if is_random or not varies.isdisjoint(values):
            varies.update(wrote)
    return out, reads, varies


def _parts(trace: Events, graph: Dataflow) -> list[list[int]]:
    """Which part of its tensor each argument is, in the order in which its parts are taken."""
    if not graph.exact:
        return [[]] * len(graph)
    order = defaultdict[int, dict[int, int]](dict)
    every = zip(trace.taken(graph.event) or (), graph.parts(graph.event), strict=True)
    pairs = (zip(flat_in_order(taken), parts, strict=False) for taken, parts in every)
    return [[order[n].setdefault(part, len(order[n])) for n, part in one] for one in pairs]
