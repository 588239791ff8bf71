"""Names that identify events: our own markers, and names from torch and from drivers."""

from __future__ import annotations

from functools import lru_cache

from pytest_torchprof.core.lazy_regex import late

#: The annotation around the measured region of a live capture.
REGION = "torchprof::call"
#: Prefix of the annotation of a region that a test has named; the name follows.
REGION_MARK = "torchprof::region:"
#: Prefix of the name of an event that is open while a module runs; the module's class follows.
MODULE_MARK = "torchprof::module:"

#: Calls in which the host waits for the device: explicit synchronization, and copies without
#: ``Async`` in their name, which return when the copy is done.
SYNC_CALL = late(
    r"^(cuda|hip|musa|xpu)(Device|Stream|Event)Synchronize"
    r"|^cu(Ctx|Stream|Event)Synchronize"
    r"|^(cuda|hip|cu)Memcpy(?!.*(Async|Peer))"
)
#: Calls that put a kernel (or a graph of them) on a stream.
LAUNCH_CALL = late(
    r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch|ModuleLaunch|Enqueue(Cooperative)?KernelLaunch"
)
H2D = late(r"HtoD|HostToDevice|M2D")
D2H = late(r"DtoH|DeviceToHost|D2M")
#: torch's annotation of a step, with its number; grouped, torch writes it with a star.
STEP, ALL_STEPS = late(r"^ProfilerStep\*?#\d+$"), "ProfilerStep*"
MODULE = late(r"^nn\.Module: (\w+?)_\d+$")


@lru_cache(maxsize=10_000)
def shown_name(name: str) -> str:
    """The name under which an event is grouped: all steps share one."""
    return ALL_STEPS if STEP.match(name) else region_name(name)


def region_name(name: str) -> str:
    """The name of a region as the user wrote it, of a test's or a ``record_function``.

    >>> region_name("torchprof::region:decode"), region_name("forward")
    ('decode', 'forward')
    """
    return name.removeprefix(REGION_MARK)
