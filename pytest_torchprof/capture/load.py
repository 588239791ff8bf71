"""Other load on the machine, and the reference kernel that measures its current speed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.patches import REAL, no_collection
from pytest_torchprof.core.unknown import Reason, Sentence, Why, because

# ---- Detect other load on the machine while a test is timed.
#
# Each of `PROBES` reads a counter before and after the rounds; the difference tells whether the
# times can be trusted. Probes that the system does not offer are skipped.

#: Linux's CPU statistics; our tests replace these paths.
STAT = Path("/proc/stat")
THROTTLES = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup/cpu.stat")

#: Shorter windows are too coarse: the system counts CPU time in ticks of 10 ms.
LEAST_S = 0.2

#: Share of all CPUs that other processes may use (a desktop's idle programs need a tenth), and that
#: the hypervisor may take.
_OTHERS, _STOLEN = 0.25, 0.05


class Window(NamedTuple):
    """The time between two readings of a probe: the increase, the seconds, the CPUs."""

    increase: float
    seconds: float
    cpus: int


class Probe(NamedTuple):
    """One sign of a busy machine: a counter that only grows, and how to explain an increase.

    ``read`` raises OSError or ValueError if there is no such counter; ``explain`` returns None for
    a negligible increase.
    """

    read: Callable[[], float]
    explain: Callable[[Window], Reason | None]


def _cpu_seconds() -> list[float]:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, …"""
    with REAL.open(STAT, encoding="ascii") as file:
        name, *ticks = file.readline().split()
    if name != "cpu" or len(ticks) < 8:
        raise ValueError(f"{STAT} has no line for all CPUs")
    return [int(tick) / os.sysconf("SC_CLK_TCK") for tick in ticks]


def _others() -> float:
    """CPU seconds of everything except this process and the children that it has waited for."""
    user, nice, system, _, _, irq, softirq, *_ = _cpu_seconds()
    return user + nice + system + irq + softirq - sum(os.times()[:4])


def _steal() -> float:
    return _cpu_seconds()[7]


def _throttled() -> float:
    """How often a CPU was throttled because of heat."""
    files = [*THROTTLES.glob("cpu*/thermal_throttle/*_count")]
    if not files:
        raise ValueError("no thermal counters")
    return sum(int(_text(file)) for file in files)


def _held_back() -> float:
    """Seconds that this container waited with its CPU quota used up."""
    rows = dict(line.split(maxsplit=1) for line in _text(CGROUP).splitlines())
    if "throttled_usec" not in rows:
        raise ValueError(f"{CGROUP} counts no throttling")
    return int(rows["throttled_usec"]) / 1e6


def _text(path: Path) -> str:
    with REAL.open(path, encoding="ascii") as file:
        return str(file.read())


def _share(limit: float, why: Sentence) -> Callable[[Window], Reason | None]:
    def explain(window: Window) -> Reason | None:
        share = window.increase / (window.seconds * window.cpus)
        # In tens of percent, so that many tests share a reason.
        return because(*why, share=round(min(max(share, 0.1), 1.0), 1)) if share > limit else None

    return explain


PROBES: dict[str, Probe] = {
    "others": Probe(_others, _share(_OTHERS, Why.OTHERS_BUSY)),
    "steal": Probe(_steal, _share(_STOLEN, Why.HYPERVISOR_TOOK)),
    "throttle": Probe(
        _throttled,
        lambda w: (
            because("throttled", "a CPU was throttled because of heat") if w.increase > 0 else None
        ),
    ),
    "quota": Probe(
        _held_back,
        lambda w: (
            because("quota_used_up", "the container's CPU quota was used up")
            if w.increase > _STOLEN * w.seconds
            else None
        ),
    ),
}


class BusyWatch:
    """Reads the probes on creation, and reports at the end what changed since."""

    def __init__(self) -> None:
        self._began = REAL.clock()
        self._before = _readings(PROBES)

    def explain(self) -> tuple[Reason, ...]:
        """Why times measured since cannot be trusted; empty if they can."""
        seconds = (REAL.clock() - self._began) / 1e9
        if seconds < LEAST_S:
            return ()
        cpus = REAL.cpus() or 1
        signs = (
            PROBES[name].explain(Window(now - self._before[name], seconds, cpus))
            for name, now in _readings(self._before).items()
        )
        return tuple(sign for sign in signs if sign is not None)


def _readings(names: Iterable[str]) -> dict[str, float]:
    found = {}
    for name in names:
        try:
            found[name] = PROBES[name].read()
        except (OSError, ValueError):
            continue
    return found


# ---- The reference kernel: a fixed workload that measures the machine's current speed.
#
# A stored time compares with a new one only as a multiple of the time that the same machine took
# for constant work, measured within the same second. The work is a mix of what a test on the CPU
# spends its time on: operators that are mostly dispatch, small matrix products, elementwise work
# on more data than a core's nearest caches hold, and plain Python.
#
# It runs on the CPU, in one thread, whatever the test runs on. On an accelerator it would need
# memory there, which a test could see. It writes into tensors that it keeps, so it allocates
# nothing.

#: Increase with any change of the work, so that times of different work are not compared.
VERSION = 1

#: Side of the matrices (0.5 MFLOP per product), and elements of the long vectors (1 MiB each).
_SIDE, _LENGTH = 64, 2**18
_PRODUCTS, _LOOPS = 8, 2000


class Lap(NamedTuple):
    """One run of the kernel: wall time and its thread's CPU time in ns.

    Not the process's, which counts threads that spin for a while after what ran before.
    """

    wall_ns: int
    cpu_ns: int


def run_reference(times: int) -> list[Lap]:
    """Run the kernel, in one thread and without garbage collection; about 0.2 ms per run."""
    t = real_torch()
    threads = t.get_threads()
    t.set_threads(1)
    try:
        work = _work()  # in one thread too: torch's pool starts with the first test that needs it
        with no_collection():
            return [_lap(work) for _ in range(times)]
    finally:
        t.set_threads(threads)


def conditions(threads: int | None = None) -> str:
    """What a normalized time depends on besides the machine; times compare only if it is equal.

    ``threads`` are those of the rounds; None for torch's current number.
    """
    return f"reference {VERSION}, {threads or real_torch().get_threads()} torch threads"


def _lap(work: Callable[[], object]) -> Lap:
    cpu, wall = REAL.thread_clock(), REAL.clock()
    work()
    return Lap(REAL.clock() - wall, REAL.thread_clock() - cpu)


@cache
def _work() -> Callable[[], object]:
    """The kernel with its tensors, made once, and run once before it counts."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes as no_modes

    # Bound now: a test may replace them, or the defaults for new tensors.
    mm, add, mul, clamp = torch.mm, torch.add, torch.mul, torch.clamp
    with torch.inference_mode(mode=False):

        def filled(*size: int) -> torch.Tensor:
            return torch.full(size, 0.01, dtype=torch.float32, device="cpu")

        left, right, out = (filled(_SIDE, _SIDE) for _ in range(3))
        source, target = (filled(_LENGTH) for _ in range(2))

    no_functions = torch._C.DisableTorchFunction
    modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

    def work() -> int:
        if any(count() for count in modes):  # which a test has left on, and may refuse our tensors
            with no_modes(), no_functions():
                return compute()
        return compute()

    def compute() -> int:
        for _ in range(_PRODUCTS):
            mm(left, right, out=out)
            add(out, left, out=out)
            mul(out, 0.5, out=out)
            clamp(out, min=0.0, out=out)
        add(source, 1.0, out=target)
        mul(target, 0.5, out=target)
        total = 0
        for i in range(_LOOPS):
            total += i & 7
        return total

    work()
    return work
