"""A tensor that is made contiguous, or cloned, again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import alike
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Names,
    are_named,
    count,
    selected_operators,
)
from pytest_torchprof.trace.tree import are_called, are_outermost, step_of
from pytest_torchprof.work.counting import operands_of
from pytest_torchprof.work.dataflow import ACCUMULATE, dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES, torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_COPY: Final = Names(r"aten::(clone|contiguous|reshape|flatten|ravel)$")
_CLONE: Final = Names(r"aten::clone$")
_KERNEL: Final = late(r"copy|clone", re.IGNORECASE)
#: In-place operators that are as fast when they make a new tensor: these need no copy. Without
#: ``relu_``: nn.ReLU(inplace=True) at the start of a model that gets a copy for it.
_ELEMENTWISE: Final = Names(
    r"aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|tanh|sigmoid|clamp|clamp_min|"
    r"clamp_max|square|round|floor|ceil|reciprocal|remainder|lerp|addcmul|addcdiv)_$"
)
REPEATS: Final = 5

_ONCE: Final = (
    "copy it once, before the loop (to channels_last: x.to(memory_format=torch.channels_last)), "
    "and use that; or use the operator on the view, which most operators support"
)
_NEW: Final = "write out of place: x.add(y) instead of x.clone().add_(y)"


def unidentified(trace: Events, names: Names) -> Reason | None:
    """Why enough such copies may be of one tensor: only a live test tells."""
    if trace.tensors is not None or trace.could_know_tensors or count(trace, names) < REPEATS:
        return None
    return because(
        "tensors_unidentified", "which of them are of one tensor, only a live test can tell"
    )


def _unseen(trace: Events) -> Reason | None:
    """Copies that graphs launched, and those of unidentified tensors: what they copy is unknown."""
    return blind_kernels(trace, _KERNEL.search) or unidentified(trace, _CLONE)


@rule(
    "contiguous-copy",
    fix=_ONCE,
    triggers={_CLONE.pattern: "repeats"},
    needs="shapes",
    blind=_unseen,
    sees_host=True,
    repeats=Threshold(REPEATS, "1", "per tensor; fewer are the parts of one layer"),
    elements=Threshold(16, "1", "fewer cost only the call: a mean per channel, a step number"),
    cpu_share=Threshold(0.01, "1", "of the calls of a test on a CPU; fewer do not matter"),
)
def contiguous_copy(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is made contiguous, or cloned, again and again.

    ## What it does

    Looks in each step for at least `repeats` copies of one tensor, or of one part of it, by
    `contiguous`, `clone`, or a `reshape` or `flatten` that has to copy, while nothing writes to it;
    the copies after the first one are counted. A test in which enough copies look alike is captured
    once more to identify the tensors; a stored trace, which does not identify them, is not checked.

    Not counted: tensors of fewer than `elements` elements; on a CPU, copies that are less than
    `cpu_share` of all calls; clones that exist side by side; copies that are written to, except by
    an arithmetic operator that could make a new tensor instead: `x.clone().add_(y)` is `x.add(y)`;
    what operators, backward passes, optimizers and loaders copy.

    ## Why it is slow

    Each copy allocates memory, and reads and writes the whole tensor, with strided access.

    ## Example

    ```python
    for x in batches:
        y = x @ weight.t().contiguous()
    ```

    ## Use instead

    ```python
    transposed = weight.t().contiguous()
    for x in batches:
        y = x @ transposed
    ```
    """
    rows = selected_operators(trace, _CLONE)
    top, _ = outermost_of(trace, rows, _COPY)
    called = are_called(trace, top)
    cloned = are_named(trace, top, _CLONE)
    found = []
    for copies in again(trace, rows[called], repeats, _ONCE):
        shape, source, _ = copies.kind
        if prod(shape) < elements:
            continue
        if trace.tensors is None:
            return NONE_SO_FAR if trace.could_know_tensors else NO_MATCHES
        beside = cloned[rows.searchsorted(copies.rows)].all() and _held(trace, copies, repeats)
        kept = without_needed(trace, copies, _NEW, unwritten=bool(beside))
        if len(kept.rows) >= repeats:
            found.append((f"{list(shape)} of {torch_name(source)} copied again and again", kept))
    return matches(trace, found, outermost=top, rows=rows, share=cpu_share)


# ---- Copies of one tensor, for casts too.


class Copies(NamedTuple):
    """Calls that copy the same part of the same tensor, in order; ``fix``: if it is another one.

    ``kind``: shape, and the C++ types of the tensor and of the copy.
    """

    rows: Ints
    kind: tuple[tuple[int, ...], str, str]
    fix: str


def again(trace: Events, rows: Ints, least: float, fix: str) -> Iterator[Copies]:
    """Copies of one tensor in one step, while nothing writes to it and no gradient is stored.

    Where tensors are not identified, those that look alike.
    """
    if len(rows) < least:
        return
    exact = trace.tensors is not None
    same = dataflow(trace).again(rows) if exact else alike(trace.name[rows], trace.args[rows])[0]
    stored = np.sort(trace.ts[selected_operators(trace, ACCUMULATE)]).searchsorted(trace.ts[rows])
    keys = np.stack([same, trace.thread[rows], step_of(trace, rows), stored])
    _, group, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    for number in np.flatnonzero(sizes >= least).tolist():
        mine = rows[group.reshape(-1) == number]
        if same[rows.searchsorted(mine[0])] >= 0 and (kind := _kind(trace, int(mine[0]))):
            yield Copies(mine, kind, fix)


def _kind(trace: Events, row: int) -> tuple[tuple[int, ...], str, str] | None:
    """What a copy is of, from the ``copy_`` in it; None if there is none, or it is unknown."""
    inside = np.arange(row + 1, min(row + 8, len(trace)))
    inside = inside[(trace.parent[inside] == row) & are_named(trace, inside, "aten::copy_")]
    for args in trace.operands(inside):
        call = operands_of(args)
        if call.dims and {*call.types[:2]} <= ELEMENT_BYTES.keys():
            return call.shape(1), call.types[1], call.types[0]
    return None


def outermost_of(trace: Events, rows: Ints, names: Names) -> tuple[Ints, Ints]:
    """The outermost operator of these names around each row, and what encloses that, or -1."""
    top, above = rows.copy(), trace.parent[rows].astype(np.int64)
    while (inside := are_named(trace, above, names)).any():
        top[inside] = above[inside]
        above[inside] = trace.parent[above[inside]]
    return top, above


def without_needed(trace: Events, copies: Copies, fix: str, *, unwritten: bool = False) -> Copies:
    """Without copies that are written to, unless the very next operator does so as a whole.

    ``fix`` is what to do about these. ``unwritten``: also without those that nothing writes to.
    """
    graph = dataflow(trace)
    kept, anew = list[int](), False
    for row in copies.rows.tolist():
        last = graph.nodes(row)[-1]
        made = graph.left(row).value
        (write,) = graph.next_write(made[:1]).tolist()
        if write < 0:
            kept += [row] * (not unwritten)
            continue
        node = int(graph.node_of(np.array([write]))[0])
        then = graph.next_write(graph.left(write).value)
        near = node == last + 1 and are_named(trace, np.array([write]), _ELEMENTWISE)[0]
        if near and (then < 0).all() and not _is_part(trace, write, copies.kind[0]):
            kept.append(row)
            anew = True
    return Copies(np.array(kept, np.int64), copies.kind, fix if anew else copies.fix)


def _is_part(trace: Events, row: int, shape: tuple[int, ...]) -> bool:
    """Whether a call takes another number of elements than this first."""
    (dims,) = trace.input_shapes(np.array([row]))
    return not dims or prod(dims[0]) != prod(shape)


def _held(trace: Events, copies: Copies, least: float) -> bool:
    """Whether copies exist side by side, to be changed separately."""
    graph = dataflow(trace)
    made = np.concatenate([graph.left(row).value[:1] for row in copies.rows.tolist()])
    held = int(graph.outlives(made[:-1], int(trace.ts[copies.rows[-1]])).sum())
    return len(copies.rows) < least * max(1, held)


def matches(
    trace: Events,
    found: Sequence[tuple[str, Copies]],
    *,
    outermost: Ints,
    rows: Ints,
    share: float,
) -> Matches:
    """A match for each copy after the first, unless they are few of a test's calls on a CPU."""
    if not found:
        return NO_MATCHES
    event = outermost[rows.searchsorted(np.concatenate([one.rows[1:] for _, one in found]))]
    if not trace.has(*DEVICE_KINDS) and len(event) < share * _calls(trace):
        return NO_MATCHES
    messages, moved, fixes = list[str](), list[int](), list[str]()
    for message, copies in found:
        shape, source, target = copies.kind
        each = prod(shape) * sum(ELEMENT_BYTES[one] for one in (source, target))
        more = len(copies.rows) - 1
        messages += [message] * more
        moved += [each] * more
        fixes += [copies.fix] * more
    cost = trace.dur[event] + (trace.once(launched_ns)[event] if trace.has(*DEVICE_KINDS) else 0)
    span = around(trace, event)
    return Matches(event, messages, None, cost, np.array(moved, np.int64), None, fixes, span)


def _calls(trace: Events) -> int:
    operators = trace.selection.nonzero()[0]
    return int(are_outermost(trace, operators).sum())
