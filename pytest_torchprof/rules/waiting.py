"""Rules about host and device waiting for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import launches, names_fit
from pytest_torchprof.analysis.device_time import idle, idle_by_waits
from pytest_torchprof.analysis.missing import absent_gap, device_gap, waits_gap, wall_ns
from pytest_torchprof.analysis.waits import Waits, waits
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import LAUNCHES
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


#: What leads to each of these.
_BY: Final = {
    "aten::_local_scalar_dense": "item, float, bool, or if of a tensor",
    "aten::where": "where of one argument",
    "aten::nonzero": "a mask as an index, or where of one argument",
    "aten::resolve_neg": "tolist or numpy",
}
_KEEP_THERE: Final = (
    "keep the value on the device: sum it up there, or use where, masked_fill or a fixed shape; "
    "or read it once, late"
)


def _has_accelerator(trace: Events) -> Reason | None:
    """An accelerator in the capture, even one without records: the waiting calls are visible."""
    return None if trace.once(waits_gap) is None else trace.once(absent_gap)


def _knows_waits(trace: Events) -> Reason | None:
    """The calls in which the host waits, which are known on CUDA and ROCm."""
    return trace.once(waits_gap)


_CONVOLUTION: Final = late(r"aten::(_?convolution|cudnn_conv|miopen_conv|conv)")
_EVENT: Final = late(r"\w*EventSynchronize")
_READ_LATE: Final = "keep the value on the device, or read it once, late, with non_blocking=True"
_LEAVE_OUT: Final = (
    "remove the synchronization, or wait only for the event that matters: streams keep the order"
)


@rule(
    "host-sync",
    fix=_READ_LATE,
    triggers=r"\w*Synchronize|\w*Memcpy|Memcpy (DtoH|DeviceToHost|D2M)",
    ready=_has_accelerator,
    blind=_knows_waits,
)
def host_sync(trace: Events) -> Matches:
    """The host waits for the device, to read a value or by request.

    ## What it does

    Counts copies from the device that the host waits for, and calls that synchronize with the
    device, a stream or an event. The innermost operator identifies them: `item`, `tolist` and `if
    tensor` lead to `_local_scalar_dense`; masks as indices and `unique` to `nonzero`; `.cpu()` and
    `print` to `copy_`. A wait costs at most the time in which no device had anything to do, during
    it and until the next kernel.

    Not counted: copies to the device, waits of one stream for another, those of collectives and of
    searches for the fastest convolution, and synchronization that delays nothing. On XPU, only
    copies count.

    ## Why it is slow

    The host runs ahead of the device and queues its work. When it waits, the queue runs empty, and
    the device is idle until the host has launched more.

    ## Example

    ```python
    for batch in batches:
        loss = step(batch)
        total += loss.item()
    ```

    ## Use instead

    ```python
    for batch in batches:
        total += step(batch).detach()  # stays on the device
    print(total.item())
    ```
    """
    found = waits(trace)
    found = found.at(~_of_searches(trace, found))
    first = np.where(found.call >= 0, found.call, found.last)
    known = (first >= 0) & (found.last >= 0)
    begin = np.where(known, trace.ts[first], 0)
    end = np.where(known, trace.ts[found.last] + trace.dur[found.last], 0)
    until = np.where(known, idle(trace).next_begin(end), 0)
    # Without the wait, the host would have been ahead by the time it waited.
    cost = np.zeros(len(found), np.int64)
    cost[known] = np.minimum(idle_by_waits(trace, begin[known], end[known]), found.ns[known])
    if trace.once(device_gap) is not None:  # when the device was idle is unknown
        cost[:] = -1
    return Matches(
        np.where(found.operator >= 0, found.operator, found.call),
        _messages(trace, found),
        cost_ns=cost,
        bytes=found.bytes,
        fix=[_READ_LATE if copies else _LEAVE_OUT for copies in found.copies.tolist()],
        span_ns=(begin, until),
    )


def _of_searches(trace: Events, found: Waits) -> Bools:
    """Waits of libraries that time kernels to find the fastest one: see `warmup-in-capture`.

    cuDNN's waits for an event after each kernel that it times, and for the device after each first
    try. Source: cudnn-frontend, ``time_sorted_plan``.
    """
    convolves = names_fit(trace, found.operator, _CONVOLUTION.match) & ~found.copies
    timed = found.operator[convolves & names_fit(trace, found.last, _EVENT.match)]
    return convolves & among(found.operator, timed)


def _messages(trace: Events, found: Waits) -> list[str]:
    def names(rows: Ints) -> list[str | None]:
        return [None if row < 0 else trace.names[trace.name[row]] for row in rows.tolist()]

    of_each = zip(names(found.operator), names(found.last), found.copies.tolist(), strict=True)
    return [_sentence(operator, call, copies=copies) for operator, call, copies in of_each]


def _sentence(operator: str | None, call: str | None, *, copies: bool) -> str:
    waits = f"the host waits in {call}" if call else "the host waits"
    if copies:
        return f"{operator or 'a copy'} reads back from the device: {waits}"
    return f"{operator}: {waits}" if operator else f"a call to synchronize: {waits}"


@rule(
    "host-read",
    fix=_KEEP_THERE,
    triggers=(
        r"aten::(_local_scalar_dense|nonzero|where|masked_select|_unique2?|unique_dim|"
        r"unique_consecutive|unique_dim_consecutive|equal|bincount|histc|_coalesce|one_hot|"
        r"resolve_neg)$"
    ),
    gated_by="host_reads",
    on_request=True,
)
def host_read(trace: Events) -> Matches:
    """The host asks for a value that would be on a device, and would wait for it there.

    ## What it does

    Counts operators that would make the host wait if their tensors were on a device, in a test that
    ran on the CPU: `item` and all that calls it, such as `float(x)`, `if x:`; `tolist`, `numpy`;
    `nonzero`, with masks as indices; `masked_select`, `unique`, `equal`, `bincount`, `one_hot` and
    others. The rule is checked only in tests that ask for it: with `--torchprof-device`, a limit on
    `host_reads` or its column, or a marker that forbids or allows it.

    Not counted is what is on the host by design: a `DataLoader` and its sampler, seeds, and
    counters of optimizers' steps. Allow others by operator, module or line:
    `allow_antipatterns("host-read", line="sampler.py", reason="…")`.

    ## Why it is slow

    The host runs ahead of the device and queues its work. When it waits, the queue runs empty, and
    the device is idle until the host has launched more.

    ## Example

    ```python
    for batch in batches:
        loss = step(batch)
        total += loss.item()
        hard = losses[losses > 2]
    ```

    ## Use instead

    ```python
    for batch in batches:
        total += step(batch).detach()
        hard = torch.where(losses > 2, losses, 0)  # as many as before
    print(total.item())
    ```
    """
    if trace.whole.once(waits_gap) is None:
        return NO_MATCHES
    from pytest_torchprof.analysis.estimates import host_reads  # few tests ask for it
    from pytest_torchprof.work.launches import READS

    found = host_reads(trace)
    if not len(found.event):
        return NO_MATCHES
    names = [trace.names[name] for name in trace.name[found.event].tolist()]
    return Matches(
        found.event,
        [_read_by(name, getattr(READS.get(name), "what", "values")) for name in names],
        count=found.count,
        cost_ns=np.full(len(names), -1, np.int64),
    )


def _read_by(name: str, what: str) -> str:
    by = _BY.get(name, name.removeprefix("aten::").strip("_"))
    return f"on a device the host would wait for {what}: {by}"


@rule(
    "launch-bound",
    fix="fewer, larger kernels: torch.compile, CUDA graphs, foreach or fused forms, larger batches",
    triggers=LAUNCHES,
    needs="device",
    ready=_knows_waits,
    timed=True,
    kernels=Threshold(50, "1", "a few kernels cannot become many fewer"),
    idle_share=Threshold(0.5, "1", "below, the device works at least as long as it waits"),
    pause=Threshold(1, "ms", "a host that launches nothing for this long does something else"),
)
def launch_bound(trace: Events, *, kernels: float, idle_share: float, pause: float) -> Matches:
    """The device is idle for most of the time while the host launches kernels one by one.

    ## What it does

    Matches once for a device on which at least `kernels` (50) kernels were launched one by one, if
    they take less time than the host takes from launch to launch (by the medians), and if waiting
    for launches keeps it idle for `idle_share` (0.5) or more of the time, in a live test also of
    the unprofiled time.

    Idle time does not count if the host waited or loaded data, or launched nothing for `pause` (1
    ms). Times decide here, so the matches may change with the machine.

    ## Why it is slow

    Each operator takes the host 5 to 50 us, of which a launch is a few. A kernel that is done
    sooner leaves the device with nothing to do.

    ## Example

    ```python
    for weight in weights:  # a thousand of them, all small
        weight.mul_(0.9)
    ```

    ## Use instead

    ```python
    torch._foreach_mul_(weights, 0.9)  # or torch.compile(mode="reduce-overhead")
    ```
    """
    found: list[tuple[Ints, ...]] = []
    messages = list[str]()
    for device, mine in launches(trace).items():
        steady = mine.single & (mine.pace >= 0) & (mine.pace <= pause * 1e6)
        waited = steady & mine.late & (mine.gap > 0)
        count = int(mine.single.sum())
        if count < kernels or 2 * waited.sum() < count:
            continue
        kernel_ns = np.median(trace.dur[mine.event[mine.single]])
        # A longer gap has another cause than the launch.
        idle_ns = np.minimum(mine.gap, mine.pace)[waited]
        total = int(idle_ns.sum())
        share = min(total / (total + mine.busy_ns), _unprofiled_share(trace, mine.busy_ns))
        if kernel_ns < np.median(mine.pace[steady]) and share >= idle_share:
            text = (
                f"device {device} is idle for most of the time while the host launches {count} "
                "kernels one by one"
            )
            event = np.full(len(idle_ns), _around(trace, mine.call[mine.single]))
            messages += [text] * len(idle_ns)
            # One match, whose cost is that of all gaps.
            one = np.eye(1, len(idle_ns), dtype=np.int64)[0]
            end = trace.ts[mine.event[waited]]
            found.append((event, one, idle_ns, end - mine.gap[waited], end))
    if not found:
        return NO_MATCHES
    event, one, cost, begin, end = map(np.concatenate, zip(*found, strict=True))
    return Matches(event, messages, one, cost, span_ns=(begin, end))


def _unprofiled_share(trace: Events, busy_ns: int) -> float:
    """The share of the test's unprofiled time in which the device is idle; 1 if unknown."""
    wall = wall_ns(trace)
    return 1.0 if wall is None else 1 - busy_ns / wall


def _around(trace: Events, calls: Ints) -> int:
    """The innermost host event around all of these calls, or -1."""
    first, last = int(calls.min()), int(calls.max())
    end, at = trace.ts[last], int(trace.parent[first])
    while at >= 0 and trace.ts[at] + trace.dur[at] < end:
        at = int(trace.parent[at])
    return at
