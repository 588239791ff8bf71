"""One-time work per process for profiling, done before the tests."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.exports import memory_works
from pytest_torchprof.capture.forking import expect_threads, threads_now
from pytest_torchprof.capture.machine import accelerator, kineto_quiet, synchronize
from pytest_torchprof.capture.processes import watch_forks
from pytest_torchprof.capture.reference import run_reference
from pytest_torchprof.capture.stopwatch import counts_instructions
from pytest_torchprof.capture.tasks import Threads
from pytest_torchprof.capture.torch_sessions import learn_silence, new_session, profiler_active
from pytest_torchprof.capture.unpatched import muted
from pytest_torchprof.capture.user_frames import foreign
from pytest_torchprof.core.heap import heap_of_process, place_apart
from pytest_torchprof.core.reasons import Reason, Why, because

#: Whether the first session recorded work on the accelerator, once known.
_DEVICE_RECORDS: list[bool] = []


def prime(*, whole: bool = False) -> None:
    """Start and stop the process's first profiler session, which is slow, outside any test.

    ``whole``: also import dynamo (1 to 2 s), because a first run will be measured, in which an
    optimizer or a compiled function would import it.
    """
    import torch

    if whole:
        import torch._dynamo
    with suppress(OSError):  # if there is none, a test reports it
        tempfile.gettempdir()  # caches it in the module, before tests may replace it
    foreign()  # caches a look at the file system
    memory_works()
    heap_of_process()  # finds the C library before a test may replace what does
    place_apart()  # as it is after a capture: the first test's rounds are like those of others
    watch_forks()
    Threads.settle()
    if profiler_active():
        return  # other code profiles the session; each test reports that
    with muted(2), kineto_quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning of torch's must not end the session as an error
        older = torch.ones(1)
        before = threads_now()
        profiler = new_session()
        profiler.start()
        del older  # torch warns about it, once per process
        torch.ones(1)
        if (device := accelerator()) is not None:
            torch.ones(1, device=device)
            synchronize()
        profiler.stop()
        expect_threads(threads_now() - before)
        counts_instructions()
        run_reference(1)
        if device is not None:
            _DEVICE_RECORDS.append(_has_device_records(profiler))
    learn_silence()


def _has_device_records(profiler: Any) -> bool:
    import torch

    results = profiler.profiler.kineto_results
    return any(
        event.device_type() != torch._C._autograd.DeviceType.CPU for event in results.events()
    )


def device_fault() -> Reason | None:
    """Why device metrics would always be 0 in this process; None if they work."""
    if not _DEVICE_RECORDS or _DEVICE_RECORDS[0]:
        return None
    return because(Why.NO_DEVICE_RECORDS)
