"""A rule about communication between devices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import launched_at
from pytest_torchprof.analysis.communication import collectives
from pytest_torchprof.analysis.device_time import measured_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting, steps
from pytest_torchprof.trace.names import Names
from pytest_torchprof.trace.tree import in_backward, within_named

if TYPE_CHECKING:
    from pytest_torchprof.analysis.communication import Collectives
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: What `work.kernels` calls communication, by names of kernels.
_KERNELS: Final = (
    r".*([nr]ccl|NCCL|oneccl|[aA]ll_?[rR]educe|[aA]ll_?[gG]ather|[rR]educe_?[sS]catter"
    r"|[aA]ll_?[tT]o_?[aA]ll|cross_device_reduce|multimem_|nvshmem|mscclpp|deep_ep|lamport)"
)
_FSDP: Final = Names(r"FullyShardedDataParallel\.|FSDP::")
#: From this number of steps on, what is in one of them only is one-time work.
_STEPS: Final = 3
_ONCE: Final = ("broadcast", "barrier")

_GRADIENTS: Final = (
    "let the backward pass hide it: larger buckets (bucket_cap_mb), gradient_as_bucket_view=True, "
    "no_sync() for all but the last of accumulated batches, bf16 gradients (a DDP hook)"
)
_UNITS: Final = (
    "prefetch the next unit (FSDP's forward_prefetch, backward_prefetch), fewer and larger units, "
    "and reshard_after_forward=False if memory allows"
)
_FIXES: Final = {
    "all_reduce": "sequence parallelism, or asynchronous tensor parallelism that splits products "
    "and sends their parts; fewer ranks per group, on the fastest links",
    "all_to_all": "start it early (async_op=True) and compute something else until its result is "
    "needed, such as the dense part; send fewer bytes (bf16, fp8)",
    "broadcast": "broadcast_buffers=False in DDP if buffers need no synchronization",
    "barrier": "remove the barrier from the loop",
    "send and receive": "more, smaller micro-batches, or an interleaved pipeline schedule",
}
_OTHERS: Final = "start it early (async_op=True), and compute something else until it is needed"
_LATE: Final = (
    "give all ranks the same work at the same time: look for the rank that waits least, and for "
    "what only it does (loading, logging, a larger batch)"
)


@rule(
    "exposed-communication",
    fix=_OTHERS,
    triggers=_KERNELS,
    needs="device",
    timed=True,
    share=Threshold(0.05, "1", "less is within what steps vary"),
    gain=Threshold(0.01, "1", "less is not worth a change"),
)
def exposed_communication(trace: Events, *, share: float, gain: float) -> Matches:
    """Devices exchange data while they compute nothing.

    ## What it does

    Looks at kernels that communicate (NCCL, RCCL and others) beside which no computation runs. It
    is a finding for each kind of collective, group and place if all are so exposed for `share`
    (0.05) or more of the device's span, and hiding them would gain `gain` (0.01) or more. The cost
    is the exposed time just before the next computation, if the host was not late anyway. Of the
    traces of several ranks, `torchprof lint` counts the transfer only, not the wait for the last
    rank; of one trace, it says whether they mostly wait. `torchprof ranks` tells for which rank.

    Not counted: groups of one rank, what is before the first computation or after the last, and
    what occurs in only one of three or more steps. Times decide here, so the matches are not
    compared with a baseline.

    ## Why it is slow

    A collective uses the links and a few multiprocessors; the others are free to compute. It runs
    on a stream of its own, so what does not depend on its result can run meanwhile.

    ## Example

    ```python
    for batch in micro_batches:  # gradients are reduced for each
        loss(ddp_model(batch)).backward()
    ```

    ## Use instead

    ```python
    with ddp_model.no_sync():
        for batch in micro_batches[:-1]:
            loss(ddp_model(batch)).backward()
    loss(ddp_model(micro_batches[-1])).backward()
    ```
    """
    found = collectives(trace)
    counted = (found.exposed_ns > 0) & (found.ranks != 1) & ~_happen_once(trace, found)
    span = measured_ns(trace) * max(len(nesting.distinct(trace.device[found.event])), 1)
    exposed, gained = found.exposed_ns[counted].sum(), found.gain_ns[counted].sum()
    if exposed < max(share * span, 1) or gained < max(gain * span, 1):
        return NO_MATCHES
    keys = list(zip(found.kind, found.group, strict=True))
    worth = {keys[i] for i in np.flatnonzero(counted & (found.gain_ns > 0)).tolist()}
    at = np.array([i for i in np.flatnonzero(counted).tolist() if keys[i] in worth], np.int64)
    several = len({*found.group} - {""}) > 1
    messages = list[str]()
    for i in at.tolist():
        name = f" in the group {found.group[i]}" if several and found.group[i] else ""
        ranks = f" over {found.ranks[i]} ranks" if found.ranks[i] else ""
        more = ", and mostly waits for other ranks" if found.waits[i] else ""
        messages.append(f"{found.kind[i]}{name}{ranks} is not hidden by computation{more}")
    begin = launched_at(trace, found.event[at])
    return Matches(
        found.operator[at],
        messages,
        cost_ns=found.gain_ns[at],
        fix=_fixes(trace, found, at),
        span_ns=(begin, begin + 1),
    )


def _happen_once(trace: Events, found: Collectives) -> Bools:
    """Which of them are one-time work: of a kind and group that only one step has, from its begin
    to that of the next one.
    """
    every = steps.steps_of(trace)
    if len(every) < _STEPS:
        return nesting.among(found.kind, _ONCE) & (len(every) == 0)
    step = np.searchsorted(every.begin, launched_at(trace, found.event), side="right") - 1
    keys = list(zip(found.kind, found.group, strict=True))
    in_steps = Counter(key for key, one in {*zip(keys, step.tolist(), strict=True)} if one >= 0)
    return np.array([in_steps[key] == 1 for key in keys], bool)


def _fixes(trace: Events, found: Collectives, at: Ints) -> list[str]:
    """What to do about each of these collectives, which depends on who calls them."""
    of_gradients = _in_backward_only(trace, found)[at]
    of_units = within_named(trace, np.maximum(found.operator[at], 0), _FSDP)
    fixes = list[str]()
    for i, gradients, units in zip(at.tolist(), of_gradients, of_units, strict=True):
        known = found.operator[i] >= 0
        if found.waits[i]:
            fixes.append(_LATE)
        elif found.kind[i] == "all_reduce" and gradients and known:
            fixes.append(_GRADIENTS)
        else:
            fixes.append(_UNITS if units and known else _FIXES.get(found.kind[i], _OTHERS))
    return fixes


def _in_backward_only(trace: Events, found: Collectives) -> Bools:
    """Which are of a group that reduces in backward passes and never outside: its gradients, since
    tensor parallel layers reduce in both.
    """
    known = found.operator >= 0
    backward = in_backward(trace, np.maximum(found.operator, 0)) & known
    keys = list(zip(found.kind, found.group, strict=True))
    forward = {keys[i] for i in np.flatnonzero(~backward).tolist()}
    return np.array([key not in forward for key in keys], bool)
