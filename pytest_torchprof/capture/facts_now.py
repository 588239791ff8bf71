"""What every live capture notes of its process, whatever runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.capture.inductor import graph_facts
from pytest_torchprof.capture.machine import allows_tf32
from pytest_torchprof.capture.priming import device_fault
from pytest_torchprof.trace.facts import Facts

if TYPE_CHECKING:
    from pytest_torchprof.capture.machine import Machine


def facts_now(machine: Machine, compiled: Facts, first: Facts | None = None) -> Facts:
    """The facts of this process as it is now, without those of timed rounds.

    ``compiled``: of all compilations since the test began; ``first``: of those of its first run,
    if that is over. Counts are of the first run alone: the number of runs is no matter of the
    test's.
    """
    of_process = Facts(
        environment=machine.key,
        accelerator=machine.accelerator,
        device_type=machine.device_type,
        torch=machine.torch_version,
        no_device=device_fault(),
        allow_tf32=allows_tf32(),
    )
    counts = replace(first or compiled, compiled=compiled.compiled)
    return of_process | counts | graph_facts()
