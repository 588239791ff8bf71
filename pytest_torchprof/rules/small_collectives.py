"""The rule about many small collectives where one could carry all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    COLLECTIVE_CALLS,
    OPERATOR,
    STEP,
    Kind,
    Names,
    communicates,
    events_named,
)
from pytest_torchprof.trace.tree import in_backward, marked
from pytest_torchprof.work.kernels import operator_category

if TYPE_CHECKING:
    from pytest_torchprof.analysis.communication import CommCalls, CommSizes
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: They can carry several tensors at once: `torch.distributed` and NCCL take coalesced ones.
_BUCKETS: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
#: Work between two calls that may make what the second one carries, by categories and by names.
_WORK: Final = frozenset({"gemm", "attention", "convolution", "normalization", "reduction"})
_MAKERS: Final = Names(
    r"aten::(ones|zeros|full|rand|normal|uniform|arange|linspace|eye|fill_|scalar_tensor|tensor"
    r"|lift_fresh|_to_copy|bernoulli|exponential)(_like|n|int)?(_like)?$"
)
_STEPS: Final = Names(STEP.pattern)


def _sized(trace: Events) -> Reason | None:
    """Sizes of collectives: recorded shapes, or the parameters that NCCL records."""
    if not communicates(trace):
        return None
    from pytest_torchprof.analysis.communication import comm_calls, comm_sizes

    size = comm_sizes(trace).size
    if not len(size) or (size >= 0).any():
        return None
    name = trace.names[trace.name[comm_calls(trace).event[0]]]
    return because(*Why.NO_COMM_SIZES, unsized=len(size), calls=len(size), name=name)


@rule(
    "small-collectives",
    fix="put the tensors into one flat buffer, so that one collective carries all of them; for "
    "gradients, DistributedDataParallel does",
    triggers=COLLECTIVE_CALLS,
    ready=_sized,
    calls=Threshold(8, "1", "fewer cost little"),
    size=Threshold(2**20, "B", "larger ones take longer than their start"),
)
def small_collectives(trace: Events, *, calls: float, size: float) -> Matches:
    """Many small collectives in a row, where one could carry all of it.

    ## What it does

    Looks for `calls` (8) or more collectives of one kind, group and dtype, one after the other,
    each of which carries less than `size` (1 MiB), with nothing between them that may make what the
    next one carries. A row is one match; the cost is the time of all but the longest.

    Not counted: barriers, sends and receives; rows of one size, such as a benchmark; those in hooks
    of a backward pass, which hides them.

    ## Why it is slow

    Each collective costs a start, on all ranks: a kernel launch or a message through sockets, and a
    wait for the last rank. Below about 1 MiB that takes longer than the bytes themselves.

    ## Example

    ```python
    for p in model.parameters():
        dist.all_reduce(p.grad)
    ```

    ## Use instead

    ```python
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))
    ```
    """
    from pytest_torchprof.analysis.communication import comm_calls, comm_sizes

    found, sizes = comm_calls(trace), comm_sizes(trace)
    rows = [
        row
        for row in _rows(trace, found, sizes, size)
        if len(row) >= calls and len({*sizes.size[row].tolist()}) > 1
    ]
    if not rows:
        return NO_MATCHES
    parts = [found.event[row] for row in rows]
    until = np.maximum(trace.ts[found.event] + trace.dur[found.event], found.end)
    return Matches(
        np.array([events[0] for events in parts], np.int64),
        [
            f"{len(row)} {found.operation[row[0]]} in a row, of at most "
            f"{format_quantity(int(sizes.size[row].max()), 'B')}, carry "
            f"{format_quantity(int(sizes.size[row].sum()), 'B')} in all"
            for row in rows
        ],
        cost_ns=np.array([_all_but_one_ns(found, row) for row in rows], np.int64),
        span_ns=(
            np.array([trace.ts[events[0]] for events in parts], np.int64),
            np.array([until[row].max() for row in rows], np.int64),
        ),
        parts=parts,
    )


def _rows(trace: Events, found: CommCalls, sizes: CommSizes, size: float) -> list[Ints]:
    """Runs of small calls that one could replace, as indices of them."""
    small = (sizes.size > 0) & (sizes.size < size) & ~in_backward(trace, found.event)
    small &= nesting.among(found.operation, _BUCKETS) & (trace.kind[found.event] != Kind.KERNEL)
    kinds = dict[object, int]()
    thread = trace.thread[found.event]
    keys = zip(found.operation, sizes.key, sizes.dtype, thread.tolist(), strict=True)
    key = np.array([kinds.setdefault(one, len(kinds)) for one in keys], np.int64)
    before = np.searchsorted(_work(trace, found), trace.ts[found.event])
    order = np.argsort(thread, kind="stable")
    one, next_ = order[:-1], order[1:]
    same = (key[one] == key[next_]) & (before[one] == before[next_]) & small[one] & small[next_]
    runs = np.split(order, np.flatnonzero(~same) + 1)
    return [run for run in runs if len(run) and small[run[0]]]


def _work(trace: Events, found: CommCalls) -> Ints:
    """When operators begin that may make what a call carries, or a step does, in order."""
    computes = np.array([operator_category(name) in _WORK for name in trace.names] or [False])
    makers = np.flatnonzero(computes[trace.name] & (trace.kind == OPERATOR))
    makers = np.concatenate([makers, events_named(trace, _MAKERS)])
    makers = makers[~nesting.above(found.event, trace.parent)[makers]]
    makers = makers[~nesting.below(marked(trace, found.event), trace.parent, makers)]
    begins: Ints = np.sort(trace.ts[np.concatenate([makers, events_named(trace, _STEPS)])])
    return begins


def _all_but_one_ns(found: CommCalls, row: Ints) -> int:
    """What one collective saves that stands for a row of them; -1 if unknown.

    That one waits as long for the last rank as the longest of them.
    """
    begin, end = found.begin[row], found.end[row]
    if (end < 0).any():
        return -1
    total = min(int((end - begin).sum()), int(end.max() - begin.min()))
    return max(total - int((end - begin).max()), 0)
