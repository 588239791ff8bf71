"""The rule about collectives that are started asynchronously, in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import measured_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import CollectiveArgs, decode, decode_list
from pytest_torchprof.trace.names import COLLECTIVE_CALLS, DEVICE_KINDS, OPERATOR, Kind, Names
from pytest_torchprof.trace.tree import in_backward, marked, within_named

if TYPE_CHECKING:
    from pytest_torchprof.analysis.communication import CommCalls
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: What overlaps if it is called asynchronously. C++ code starts broadcasts so by default.
_OVERLAPS: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
#: Where torch itself calls them.
_TORCH: Final = Names(
    r"FSDP::|FullyShardedDataParallel\.|DistributedDataParallel\.|_?c10d_functional|fsdp::"
    r"|Optimizer\."
)


@rule(
    "blocking-collective",
    fix="do other work between the start and the wait, or wait for several at once; if there is no "
    "other work, async_op=True is of no use",
    triggers=COLLECTIVE_CALLS,
    timed=True,
    size=Threshold(2**16, "B", "smaller ones have nothing to hide"),
    share=Threshold(0.01, "1", "less is not worth a change"),
)
def blocking_collective(trace: Events, *, size: float, share: float) -> Matches:
    """A collective is started asynchronously, and waited for at once.

    ## What it does

    Looks at collectives with `async_op=True` of `size` (64 KiB) or more whose wait follows the
    start with no operator between them. All of them together must take `share` (0.01) or more of
    the time. The cost is the duration of the work.

    Not counted: what torch itself starts and waits for, hooks of a backward pass, broadcasts, sends
    and receives. A wait for gloo leaves no event: it is known by when the host goes on, so the
    matches are not compared with a baseline.

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
    chosen = nesting.among(found.operation, _OVERLAPS) & (comm_sizes(trace).size >= size)
    chosen &= (trace.kind[found.event] == OPERATOR) & (found.end >= 0)
    at = np.flatnonzero(chosen)
    # The operator's ``asyncOp``, which older torch lacks.
    arguments = [decode_list(one.concrete) for one in trace.operands(found.event[at])]
    at = at[[("True" in values) for values in arguments]] if len(at) else at
    at = at[~in_backward(trace, found.event[at])]
    at = at[~within_named(trace, found.event[at], _TORCH)]
    at = at[_waited_at_once(trace, found, at)] if len(at) else at
    duration = found.end[at] - found.begin[at]
    if not len(at) or duration.sum() < share * measured_ns(trace):
        return NO_MATCHES
    event = found.event[at]
    messages = [
        f"{found.operation[i]} is started asynchronously, and waited for at once"
        for i in at.tolist()
    ]
    until = np.maximum(trace.ts[event] + trace.dur[event], found.end[at])
    return Matches(event, messages, cost_ns=duration, span_ns=(trace.ts[event], until))


def _waited_at_once(trace: Events, found: CommCalls, at: Ints) -> Bools:
    """Whether the next thing on the thread is a wait, or begins when gloo's work is just over."""
    noted = np.flatnonzero(trace.named("record_param_comms"))
    args = decode(CollectiveArgs, trace.args[noted])
    waits = noted[[one.collective == "wait" for one in args]] if len(noted) else noted
    others = np.flatnonzero((trace.kind == OPERATOR) | trace.is_kind(Kind.ANNOTATION))
    # What the call itself consists of does not count.
    others = others[~nesting.below(marked(trace, found.event), trace.parent, others)]
    on_host, verdicts = not trace.has(*DEVICE_KINDS), np.zeros(len(at), bool)
    for number, i in enumerate(at.tolist()):
        event = found.event[i]
        done = int(trace.ts[event] + trace.dur[event])
        mine = others[trace.thread[others] == trace.thread[event]]
        after = mine[np.searchsorted(trace.ts[mine], done) :][:1]
        if not len(after):
            continue
        verdicts[number] = nesting.among(after, waits)[0]
        if on_host and found.work[i] >= 0 and found.end[i] > done:
            pause = int(trace.ts[after[0]] - found.end[i])
            verdicts[number] |= 0 <= pause <= found.end[i] - found.begin[i]
    return verdicts
