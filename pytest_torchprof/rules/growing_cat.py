"""growing-cat: a tensor that grows by being copied."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import is_trifle
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, operators_named
from pytest_torchprof.trace.tensors import LONGEST_LIST, listed
from pytest_torchprof.trace.tree import calls, in_backward
from pytest_torchprof.work.op_calls import calls_of
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.op_calls import OpCall, Shape

#: What ``hstack``, ``stack``, ``pad`` and so on call.
_JOIN: Final = Names(r"aten::(cat|constant_pad_nd)$")
#: Layers with parameters for each feature that they take.
_PARAMETERS: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|prelu)$")
#: A tensor that doubles each time copies its final size once in total; above this, it counts.
_AGAIN: Final = 2
#: The number of joins of a chain that are looked at, and of calls between two.
_LINKS: Final = 16
_LOOKED: Final = 200
_COLLECT: Final = "collect the parts in a list, and join them once after the loop"
_ALLOCATE: Final = (
    "allocate it once at its final length, and write each part in place (for keys and values: a "
    "static cache)"
)


@rule(
    "growing-cat",
    fix=f"{_COLLECT}; or {_ALLOCATE}",
    triggers={_JOIN.pattern: "repeats"},
    needs="shapes",
    repeats=Threshold(10, "1", "a few parts are joined as fast one by one"),
    operators=Threshold(50, "1", "with more operators per iteration, the join hardly matters"),
    bytes=Threshold(
        1 << 20, "B", "of a tensor that is needed each time; copying less takes almost no time"
    ),
    cpu_share=Threshold(0.003, "1", "of all calls that the test makes on a CPU"),
)
def growing_cat(
    trace: Events,
    *,
    repeats: float,
    operators: float,
    bytes: float,  # noqa: A002 - as users set it
    cpu_share: float,
) -> Matches:
    """A tensor grows by being copied as a whole each time.

    ## What it does

    Counts tensors that `cat`, `hstack`, `pad` and so on extended `repeats` (10) times or more, each
    time from the previous result; and growing lists of tensors that are joined again each time. A
    tensor counts if `bytes` (1 MiB) or more were copied again in total, or at any size if almost
    nothing takes it in between, at most `operators` (50) are called in each iteration, and the
    joins are `cpu_share` (0.003) of all calls on a CPU. Not counted: features for each of which
    layers have parameters, as in DenseNet; a moving window; a tensor that doubles each time.

    ## Why it is slow

    Each time, everything so far is copied, and memory for it is allocated: for n parts, n²/2
    are copied.

    ## Example

    ```python
    out = torch.empty(0, 8)
    for batch in batches:
        out = torch.cat([out, model(batch)])
    ```

    ## Use instead

    ```python
    out = torch.cat([model(batch) for batch in batches])
    ```
    """
    joins, found = _joins(trace), list[tuple[list[_Link], int, bool]]()
    for links in _chains(trace, joins):
        again = sum(link.old for link in links)
        if len(links) < repeats or again < _AGAIN * prod(links[-1].out):
            continue
        copied = again * _item_bytes(trace, links[-1])
        taken, is_necessary = _takers(trace, links)
        every = len(_between(trace, links[0], links[-1])) / (len(links) - 1)
        if not is_necessary and (copied >= bytes or (every <= operators and not taken)):
            found.append((links, copied, taken))
    trifle = is_trifle(trace, sum(len(links) for links, _, _ in found), cpu_share)
    found = [one for one in found if one[1] >= bytes or not trifle]
    if not found:
        # A trace has no shapes of long lists, unless tensors are identified.
        long = len(joins) >= repeats and any(not call.first for _, call in joins)
        return NONE_SO_FAR if long and trace.could_know_tensors else NO_MATCHES
    begin, end = ([links[at] for links, _, _ in found] for at in (0, -1))
    first, last = (np.array([link.row for link in some]) for some in (begin, end))
    return Matches(
        np.array([links[1].row for links, _, _ in found]),
        [_message(*ends) for ends in zip(begin, end, strict=True)],
        cost_ns=np.array([_copying_ns(trace, links) for links, _, _ in found]),
        bytes=np.array([copied for _, copied, _ in found]),
        fix=[_ALLOCATE if taken or links[-1].listed else _COLLECT for links, _, taken in found],
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        wants_tensors=True,
    )


class _Link(NamedTuple):
    """A join: its event, what it makes, and how many elements of it are copied again.

    ``listed``: it joins all of a list that has grown.
    """

    row: int
    call: OpCall
    out: Shape
    old: int
    listed: bool


def _message(begin: _Link, end: _Link) -> str:
    least = "at least " * (end.listed and len(end.call.shapes[0]) == LONGEST_LIST)
    ends = f"from {[*begin.out]} to {least}{[*end.out]}"
    return f"{end.call.name} grows a tensor by copying it, {ends}"


def _joins(trace: Events) -> list[tuple[int, OpCall]]:
    """The joins outside of backward passes, with the shapes of lists of any length if known."""
    rows = operators_named(trace, _JOIN)
    rows = rows[trace.selection[rows]]
    rows = rows[~in_backward(trace, rows)]
    lists = listed(trace, rows) or [None] * len(rows)
    return [
        (row, replace(call, shapes=(known.shapes, *call.shapes[1:])) if known else call)
        for row, call, known in zip(rows.tolist(), calls_of(trace, rows), lists, strict=True)
    ]


def _chains(trace: Events, joins: list[tuple[int, OpCall]]) -> list[list[_Link]]:
    """Joins of what an earlier one made, by the identity of tensors, or by shape if unknown."""
    rows = np.array([row for row, _ in joins], np.int64)
    taken, made = trace.taken(rows), trace.made(rows)
    waiting = defaultdict[object, deque[list[_Link]]](deque)
    out = list[list[_Link]]()
    for at, (row, call) in enumerate(joins):
        if not (joined := _joined(call)):
            continue
        parts = call.shapes[0]
        numbers = taken[at][0] if taken and taken[at] else (-1,) * len(parts)
        keys = (*zip(numbers if isinstance(numbers, tuple) else (numbers,), parts, strict=False),)
        grown = [key for key in keys if waiting[key] and key[1] != joined][:1]
        listed = not grown and len(keys) > 2 and bool(waiting[keys[:-1]])
        links = waiting[keys[:-1] if listed else grown[0]].popleft() if grown or listed else []
        old = sum(map(prod, parts[:-1])) if listed else max(prod(s) for _, s in grown or keys)
        if not links:
            out.append(links)
        links.append(_Link(row, call, joined, old, listed))
        for key in (*((one, joined) for one in (made[at] if made else [-1])), keys):
            waiting[key].append(links)
    return out


def _joined(call: OpCall) -> Shape:
    """The shape of a join's result; empty if unknown."""
    some = [shape for shape in call.shapes[0] if shape != (0,)] if call.shapes else []
    if not some or any(len(shape) != len(some[0]) for shape in some):
        return ()
    out, numbers = (
        [*some[0]],
        [int(one) for one in re.findall(rb"-?\d+", call.concrete.split(b"]")[0])],
    )
    if call.base == "cat":
        axis = numbers[0] if numbers else 0
        out[axis] = sum(shape[axis] for shape in some)
    else:  # from the last axis on, what is added before and after it
        for n, more in enumerate(numbers[: 2 * len(out)]):
            out[-1 - n // 2] += more
    return tuple(out)


def _item_bytes(trace: Events, link: _Link) -> int:
    """The size of an element; 4 where it is unknown, as for lists in a stored trace."""
    (known,) = listed(trace, np.array([link.row])) or [None]
    return known.item_bytes if known else ELEMENT_BYTES.get(link.call.types[0], 4)


def _between(trace: Events, first: _Link, last: _Link) -> Ints:
    """The calls that begin and end between two joins."""
    rows = calls(trace)
    rows = rows[(rows > first.row) & (rows < last.row)]
    over = trace.ts[rows] + trace.dur[rows] <= trace.ts[last.row]
    found: Ints = rows[over & (trace.thread[rows] == trace.thread[first.row])]
    return found


def _takers(trace: Events, links: list[_Link]) -> tuple[bool, bool]:
    """Whether something takes most results before they are extended again, and needs them so:
    layers with parameters for each of the joined features.
    """
    pairs = [*pairwise(links)][:: -(-len(links) // _LINKS)]
    taken = needed = 0
    for link, after in pairs:
        between = calls_of(trace, _between(trace, link, after)[:_LOOKED])
        takers = [call for call in between if any(link.out in some for some in call.shapes)]
        grown = {n for n, more in zip(link.out, after.out, strict=False) if n != more}
        layers = [call for call in takers if _PARAMETERS.match(call.name)]
        needed += any(grown & {*some[0][:2]} for call in layers for some in call.shapes[1:] if some)
        taken += bool(takers)
    return 2 * taken >= len(pairs), 2 * needed >= len(pairs)


def _copying_ns(trace: Events, links: list[_Link]) -> int:
    """The time in which the joins copy what was joined before."""
    rows = np.array([link.row for link in links])
    ns = trace.dur[rows] + (trace.once(launched_ns)[rows] if trace.has(*DEVICE_KINDS) else 0)
    return int((ns * [link.old / max(prod(link.out), 1) for link in links]).sum())
