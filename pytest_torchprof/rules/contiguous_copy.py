"""A tensor that is made contiguous, or cloned, again and again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.rules.same_copies import (
    REPEATS,
    Copies,
    again,
    matches,
    outermost_of,
    unidentified,
    without_needed,
)
from pytest_torchprof.trace.names import (
    Names,
    are_named,
    selected_operators,
)
from pytest_torchprof.trace.tree import are_called
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events

_COPY: Final = Names(r"aten::(clone|contiguous|reshape|flatten|ravel)$")
_CLONE: Final = Names(r"aten::clone$")
_KERNEL: Final = late(r"copy|clone", re.IGNORECASE)

_ONCE: Final = (
    "copy it once, before the loop (to channels_last: x.to(memory_format=torch.channels_last)), "
    "and use that; or use the operator on the view, which most operators support"
)
_NEW: Final = "write out of place: x.add(y) instead of x.clone().add_(y)"


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
    for copies in again(trace, rows[called], repeats, elements, _ONCE):
        shape, source, _ = copies.kind
        if trace.tensors is None:
            return NONE_SO_FAR if trace.could_know_tensors else NO_MATCHES
        beside = cloned[rows.searchsorted(copies.rows)].all() and _held(trace, copies, repeats)
        kept = without_needed(trace, copies, _NEW, unwritten=bool(beside))
        if len(kept.rows) >= repeats:
            found.append((f"{list(shape)} of {torch_name(source)} copied again and again", kept))
    return matches(trace, found, outermost=top, rows=rows, share=cpu_share)


def _held(trace: Events, copies: Copies, least: float) -> bool:
    """Whether copies exist side by side, to be changed separately."""
    graph = dataflow(trace)
    made = np.concatenate([graph.left(row).value[:1] for row in copies.rows.tolist()])
    held = int(graph.outlives(made[:-1], int(trace.ts[copies.rows[-1]])).sum())
    return len(copies.rows) < least * max(1, held)
