"""The rule about a device that waits for launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.attribution import launches
from pytest_torchprof.analysis.missing import waits_gap, wall_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import LAUNCHES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


@rule(
    "launch-bound",
    fix="fewer, larger kernels: torch.compile, CUDA graphs, foreach or fused forms, larger batches",
    triggers=LAUNCHES,
    needs="device",
    ready=waits_gap,
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
    messages, wall = list[str](), wall_ns(trace)
    for device, mine in launches(trace).items():
        steady = mine.single & (mine.pace >= 0) & (mine.pace <= pause * 1e6)
        waited = steady & mine.late & (mine.gap > 0)
        count = int(mine.single.sum())
        if count < kernels or 2 * waited.sum() < count:
            continue
        kernel_ns = np.median(trace.dur[mine.event[mine.single]])
        # A longer gap has another cause than the launch.
        idle_ns = np.minimum(mine.gap, mine.pace)[waited]
        share = idle_ns.sum() / (idle_ns.sum() + mine.busy_ns)
        if wall is not None:
            share = min(share, 1 - mine.busy_ns / wall)
        if kernel_ns < np.median(mine.pace[steady]) and share >= idle_share:
            text = (
                f"device {device} is idle for most of the time while the host launches {count} "
                "kernels one by one"
            )
            messages += [text] * len(idle_ns)
            event = np.full(len(idle_ns), _around(trace, mine.call[mine.single]))
            # One match, whose cost is that of all gaps.
            one = np.eye(1, len(idle_ns), dtype=np.int64)[0]
            end = trace.ts[mine.event[waited]]
            found.append((event, one, idle_ns, end - mine.gap[waited], end))
    if not found:
        return NO_MATCHES
    event, one, cost, begin, end = map(np.concatenate, zip(*found, strict=True))
    return Matches(event, messages, one, cost, span_ns=(begin, end))


def _around(trace: Events, calls: Ints) -> int:
    """The innermost host event around all of these calls, or -1."""
    first, last = int(calls.min()), int(calls.max())
    end, at = trace.ts[last], int(trace.parent[first])
    while at >= 0 and trace.ts[at] + trace.dur[at] < end:
        at = int(trace.parent[at])
    return at
