"""The reference kernel: a fixed workload that measures the machine's current speed.

A stored time compares with a new one only as a multiple of the time that the same machine took for
constant work, measured within the same second. The work is a mix of what a test on the CPU spends
its time on: operators that are mostly dispatch, small matrix products, elementwise work on more
data than a core's nearest caches hold, and plain Python.

It runs on the CPU, in one thread, whatever the test runs on. On an accelerator it would need memory
there, which a test could see. It writes into tensors that it keeps, so it allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.unpatched import REAL, no_collection

#: Increase with any change of the work, so that times of different work are not compared.
VERSION = 1

#: Side of the matrices (0.5 MFLOP per product), and elements of the long vectors (1 MiB each).
_SIDE, _LENGTH = 64, 2**18
_PRODUCTS, _LOOPS = 8, 2000


class Lap(NamedTuple):
    """One run of the kernel: wall and process CPU time in ns."""

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
    cpu, wall = REAL.cpu_clock(), REAL.clock()
    work()
    return Lap(REAL.clock() - wall, REAL.cpu_clock() - cpu)


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
