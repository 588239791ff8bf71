"""The facts about the process that every live capture stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.capture.busy import load_per_processor, processors
from pytest_torchprof.capture.inductor import graph_facts
from pytest_torchprof.capture.machine import allows_tf32, unseen_allocator
from pytest_torchprof.capture.priming import device_fault

if TYPE_CHECKING:
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.trace.facts import Facts


def facts_now(machine: Machine, compiled: Facts, first: Facts | None = None) -> Facts:
    """Facts about this process now, except those of timed rounds.

    ``compiled``: facts of all compilations since the test began. ``first``: facts of the first
    run's compilations, once it is over. Counts are those of the first run, since a test does not
    decide how often it runs.
    """
    of_process = replace(
        first or compiled,
        compiled=compiled.compiled,
        environment=machine.key,
        accelerator=machine.accelerator,
        device_type=machine.device_type,
        torch=machine.torch_version,
        no_device=device_fault(),
        no_device_memory=unseen_allocator(),
        allow_tf32=allows_tf32(),
        load_per_processor=load_per_processor(),
        processors=processors(),
    )
    return of_process | graph_facts()
