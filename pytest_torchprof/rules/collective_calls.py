"""Rules about how code calls collectives: many small ones, and asynchronous ones in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.evidence.calls import in_backward
from pytest_torchprof.rules.evidence.pauses import measured_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import CollectiveArgs, decode, decode_list
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    OPERATOR,
    STEP,
    Kind,
    Names,
    communicates,
    events_named,
)
from pytest_torchprof.trace.ranks import world_size_of
from pytest_torchprof.trace.tree import marked, within_named
from pytest_torchprof.work.kernels import operator_category

if TYPE_CHECKING:
    from pytest_torchprof.analysis.communication import CommCalls, CommSizes
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_CALLS: Final = r"_?c10d(_functional\w*)?::|record_param_comms$|(nccl|rccl|xccl|gloo|mpi|ucc):"
#: They can carry several tensors at once: `torch.distributed` and NCCL take coalesced ones.
_BUCKETS: Final = frozenset({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"})
#: What overlaps if it is called asynchronously. C++ code starts broadcasts so by default.
_OVERLAPS: Final = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all"})
#: Work between two calls that may make what the second one carries.
_WORK: Final = frozenset({"gemm", "attention", "convolution", "normalization", "reduction"})
#: Operators that make a tensor with values of its own.
_MAKERS: Final = Names(
    r"aten::(ones|zeros|full|rand|normal|uniform|arange|linspace|eye|fill_|scalar_tensor|tensor"
    r"|lift_fresh|_to_copy|bernoulli|exponential)(_like|n|int)?(_like)?$"
)
_STEPS: Final = Names(STEP.pattern)
#: Where torch itself calls them.
_TORCH: Final = Names(
    r"FSDP::|FullyShardedDataParallel\.|DistributedDataParallel\.|_?c10d_functional|fsdp::"
    r"|Optimizer\."
)
#: A wait that begins within this share of the work's duration after it was the cause of the pause.
_SOON: Final = 0.2
_AT_ONCE_NS: Final = 100_000


def _sized(trace: Events) -> Reason | None:
    """Sizes of collectives: recorded shapes, or the parameters that NCCL records."""
    if not communicates(trace):
        return None
    from pytest_torchprof.analysis.communication import comm_calls, comm_sizes

    size = comm_sizes(trace).size
    if not len(size) or (size >= 0).any():
        return None
    event = comm_calls(trace).event[0]
    name = trace.names[trace.name[event]]
    return because(*Why.NO_COMM_SIZES, unsized=len(size), calls=len(size), name=name)


@rule(
    "small-collectives",
    fix="put the tensors into one flat buffer, so that one collective carries all of them; for "
    "gradients, DistributedDataParallel does",
    triggers=_CALLS,
    ready=_sized,
    calls=Threshold(8, "1", "fewer cost little"),
    size=Threshold(2**20, "B", "larger ones take longer than their start"),
)
def small_collectives(trace: Events, *, calls: float, size: float) -> Matches:
    """Many small collectives in a row, where one could carry all of it.

    ## What it does

    Looks for `calls` (8) or more collectives of one kind, group and dtype, one after the other, in
    which each carries less than `size` (1 MiB), with nothing between them that may make what the
    next one carries. A row is one match. The cost is the time of all but the longest.

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
    hooked = in_backward(trace, found.event)
    events, messages, costs, begins, ends, parts = ([] for _ in range(6))
    for row in _rows(trace, found, sizes, hooked, size):
        if len(row) < calls or len({*sizes.size[row].tolist()}) < 2:
            continue
        at = np.array(row, np.int64)
        event = found.event[at]
        largest = format_quantity(int(sizes.size[at].max()), "B")
        total = format_quantity(int(sizes.size[at].sum()), "B")
        kind = found.operation[row[0]]
        messages.append(f"{len(row)} {kind} in a row, of at most {largest}, carry {total} in all")
        events.append(int(event[0]))
        costs.append(_all_but_one_ns(found, at))
        begins.append(int(trace.ts[event[0]]))
        ends.append(int(max(trace.ts[event[-1]] + trace.dur[event[-1]], found.end[at].max())))
        parts.append(event)
    if not events:
        return NO_MATCHES
    return Matches(
        np.array(events, np.int64),
        messages,
        cost_ns=np.array(costs, np.int64),
        span_ns=(np.array(begins, np.int64), np.array(ends, np.int64)),
        parts=parts,
    )


def _all_but_one_ns(found: CommCalls, row: Ints) -> int:
    """What one collective saves that stands for a row of them; -1 if unknown.

    That one waits as long for the last rank as the longest of them.
    """
    begin, end = found.begin[row], found.end[row]
    if (end < 0).any():
        return -1
    total = min(int((end - begin).sum()), int(end.max() - begin.min()))
    return max(total - int((end - begin).max()), 0)


def _rows(
    trace: Events, found: CommCalls, sizes: CommSizes, hooked: Bools, limit: float
) -> list[list[int]]:
    """Runs of calls that one could replace, as indices of them."""
    number = np.array(
        [operator_category(name) in _WORK for name in trace.names] or [False], bool
    )  # by name, once each
    makes = number[trace.name] & (trace.kind == OPERATOR)
    makes[events_named(trace, _MAKERS)] = True
    makes[nesting.above(found.event, trace.parent)] = False
    inner = np.flatnonzero(makes)
    makes[inner[nesting.below(marked(trace, found.event), trace.parent, inner)]] = False
    makes[events_named(trace, _STEPS)] = True
    work = np.sort(trace.ts[np.flatnonzero(makes)])
    small = (sizes.size > 0) & (sizes.size < limit) & ~hooked
    small &= nesting.among(found.operation, [*_BUCKETS]) & (trace.kind[found.event] != Kind.KERNEL)
    key = list(zip(found.operation, sizes.key, sizes.dtype, strict=True))
    rows = list[list[int]]()
    for mine in nesting.by_thread(trace.thread[found.event]):
        row = list[int]()
        for i in mine.tolist():
            same = bool(row) and key[row[-1]] == key[i]
            if same:
                since = int(trace.ts[found.event[row[-1]]])
                until = int(trace.ts[found.event[i]])
                same = not np.searchsorted(work, until) - np.searchsorted(work, since)
            if not (same and small[i]):
                rows.append(row)
                row = []
            if small[i]:
                row.append(i)
        rows.append(row)
    return [row for row in rows if row]


@rule(
    "blocking-collective",
    fix="do other work between the start and the wait, or wait for several at once; if there is no "
    "other work, async_op=True is of no use",
    triggers=_CALLS,
    timed=True,
    size=Threshold(2**16, "B", "smaller ones have nothing to hide"),
    share=Threshold(0.01, "1", "less is not worth a change"),
)
def blocking_collective(trace: Events, *, size: float, share: float) -> Matches:
    """A collective is started asynchronously, and waited for at once.

    ## What it does

    Looks at collectives with `async_op=True` of `size` (64 KiB) or more whose wait follows the
    start with no operator between them. All of them together must take `share` (0.01) or more of
    the time. The cost is the duration of the work; it is unknown in a live test that may use fewer
    than two processors for each rank.

    Not counted: what torch itself starts and waits for, hooks of a backward pass, broadcasts, sends
    and receives. Times decide for gloo, so the matches are not compared with a baseline.

    ## Why it is slow

    `async_op=True` returns while the collective is still running, so that other work can hide it. A
    wait right behind it gives that up: the host, or the device's stream, stands still.

    ## Example

    ```python
    work = dist.all_reduce(grads, async_op=True)
    work.wait()
    loss = head(features)
    ```

    ## Use instead

    ```python
    work = dist.all_reduce(grads, async_op=True)
    loss = head(features)
    work.wait()
    ```
    """
    from pytest_torchprof.analysis.communication import comm_calls, comm_sizes

    found = comm_calls(trace)
    chosen = nesting.among(found.operation, [*_OVERLAPS]) & (comm_sizes(trace).size >= size)
    chosen &= (trace.kind[found.event] == OPERATOR) & (found.end >= 0)
    at = np.flatnonzero(chosen)
    at = at[_asynchronous(trace, found.event[at])]
    at = at[~in_backward(trace, found.event[at])]
    at = at[~within_named(trace, found.event[at], _TORCH)]
    if not len(at):
        return NO_MATCHES
    at = at[_waited_at_once(trace, found, at)]
    duration = found.end[at] - found.begin[at]
    if not len(at) or duration.sum() < share * measured_ns(trace):
        return NO_MATCHES
    event = found.event[at]
    messages = [
        f"{found.operation[i]} is started asynchronously, and waited for at once"
        for i in at.tolist()
    ]
    until = np.maximum(trace.ts[event] + trace.dur[event], found.end[at])
    cost_ns = duration if _has_room(trace) else np.full(len(at), -1)
    return Matches(event, messages, cost_ns=cost_ns, span_ns=(trace.ts[event], until))


def _has_room(trace: Events) -> bool:
    """Whether collectives can go on beside other work, as far as the trace tells."""
    processors, ranks = trace.facts.processors, world_size_of(trace.metadata) or 1
    return trace.has(*DEVICE_KINDS) or processors is None or processors >= 2 * ranks


def _asynchronous(trace: Events, events: Ints) -> Bools:
    """Whether the operator's ``asyncOp`` is true. Older torch lacks it."""
    concrete = [decode_list(one.concrete) for one in trace.operands(events)]
    return np.array(["True" in values for values in concrete], bool)


def _waited_at_once(trace: Events, found: CommCalls, at: Ints) -> Bools:
    waits = _waits(trace)
    operators = np.flatnonzero((trace.kind == OPERATOR) | trace.is_kind(Kind.ANNOTATION))
    # What the call itself consists of does not count.
    inner = nesting.below(marked(trace, found.event), trace.parent, operators)
    operators = operators[~inner]
    by_thread = {
        thread: operators[trace.thread[operators] == thread]
        for thread in nesting.distinct(trace.thread[found.event[at]]).tolist()
    }
    on_device = trace.has(*DEVICE_KINDS)
    verdicts = list[bool]()
    for i in at.tolist():
        event = found.event[i]
        done = int(trace.ts[event] + trace.dur[event])
        mine = by_thread[int(trace.thread[event])]
        after = mine[np.searchsorted(trace.ts[mine], done) :][:1]
        if not len(after):
            verdicts.append(False)
        elif int(after[0]) in waits:
            verdicts.append(True)
        elif on_device or found.work[i] < 0:
            verdicts.append(False)
        else:
            ended, took = int(found.end[i]), int(found.end[i] - found.begin[i])
            gap = int(trace.ts[after[0]]) - ended
            verdicts.append(ended > done and 0 <= gap <= max(_SOON * took, _AT_ONCE_NS))
    return np.array(verdicts, bool)


def _waits(trace: Events) -> set[int]:
    """Events of back ends that wait for a collective."""
    rows = np.flatnonzero(trace.named("record_param_comms"))
    args = decode(CollectiveArgs, trace.args[rows])
    return {row for row, one in zip(rows.tolist(), args, strict=True) if one.collective == "wait"}
