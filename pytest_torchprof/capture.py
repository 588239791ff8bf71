"""Runs torch.profiler around a block and hands out a `Trace`. The only room that touches torch."""

from __future__ import annotations

import gc
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pytest_torchprof.errors import CaptureError
from pytest_torchprof.events import FACTS_KEY, REGION, Trace
from pytest_torchprof.trace.read import read

#: What torch's counter answers where there is no hardware counter.
_NO_INSTRUCTIONS = 2**64 - 1
OWN_PROFILER = "the test runs torch.profiler itself, and two sessions cannot be nested"


@dataclass(frozen=True)
class Machine:
    """What the numbers depend on: the accelerator, and torch's version."""

    accelerator: str | None
    device_type: str | None
    torch_version: str
    threads: int | None
    host: str

    @property
    def key(self) -> str:
        """The environment key of baselines: ``cpu, torch 2.13``, ``NVIDIA H200, torch 2.13``."""
        release = ".".join(self.torch_version.split("+")[0].split(".")[:2])
        key = f"{self.accelerator or 'cpu'}, torch {release}"
        return key if self.threads == 1 else f"{key}, {self.threads} threads"


def quiet_kineto() -> None:
    """Keep Kineto's own lines off stderr; works only before torch is imported."""
    if "torch" not in sys.modules:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def probe_machine(threads: int | None) -> Machine:
    """The machine as torch sees it; ``threads`` are the intra-op threads of profiled runs.

    Raises:
        CaptureError: torch is not installed or cannot be imported.
    """
    try:
        import torch
    except ImportError as error:
        raise CaptureError(
            f"--torchprof needs torch, and importing it failed: {error}. "
            "Install torch (pip install torch), or leave out --torchprof."
        ) from error
    if threads is None:
        threads = torch.get_num_threads()
    device = _accelerator()
    if device is None:
        return Machine(None, None, str(torch.__version__), threads, _host())
    module = getattr(torch, device)
    name = module.get_device_name() if hasattr(module, "get_device_name") else device
    return Machine(str(name), device, str(torch.__version__), threads, _host())


def _host() -> str:
    """The CPU's model and number, for telling one machine's times from another's."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), model)
    return f"{model} x{os.cpu_count()}"


def _accelerator() -> str | None:
    import torch

    probe = getattr(torch, "accelerator", None)
    if probe is not None and probe.is_available():
        return str(probe.current_accelerator().type)
    return "cuda" if torch.cuda.is_available() else None


def prime() -> None:
    """Pay for the first profiler session of the process (0.5 to 1.7 s), outside any test."""
    import torch

    with muted(2):
        profiler = _profiler(stacks=False)
        profiler.start()
        torch.ones(1)
        profiler.stop()
        _counts_instructions()


@contextmanager
def muted(*fds: int) -> Iterator[None]:
    """Send what is written to these file descriptors nowhere, C++ code's lines included."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(fd, os.dup(fd)) for fd in fds]
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for fd, _ in saved:
            os.dup2(null, fd)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in saved:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(null)


def synchronize() -> None:
    """Wait for the accelerator, where there is one."""
    import torch

    device = _accelerator()
    if device is not None and getattr(getattr(torch, device), "is_initialized", lambda: True)():
        getattr(torch, device).synchronize()


def _profiler(*, stacks: bool) -> Any:
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    device = _accelerator()
    if device is not None:
        name = device.upper() if hasattr(ProfilerActivity, device.upper()) else "PrivateUse1"
        activities.append(getattr(ProfilerActivity, name))
    extra: dict[str, Any] = {}
    if stacks:
        # Without it, Python events of torch's own frames are left out on some versions.
        extra["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
    return profile(
        activities=activities, record_shapes=True, profile_memory=True, with_stack=stacks, **extra
    )


def profiler_active() -> bool:
    """Whether somebody's session runs in this thread."""
    import torch

    enabled = getattr(torch.autograd, "_profiler_enabled", None)
    return bool(enabled()) if enabled is not None else False


@contextmanager
def watching(on_start: Callable[[], None]) -> Iterator[None]:
    """Call ``on_start`` just before the block starts a profiler session of its own."""
    import torch.autograd.profiler as room

    names = [n for n in ("_prepare_profiler", "_enable_profiler") if hasattr(room, n)]
    originals = {name: getattr(room, name) for name in names}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if not Capture.starting:
                on_start()
            return original(*args, **kwargs)

        return start

    for name, original in originals.items():
        setattr(room, name, wrap(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(room, name, original)


class Capture:
    """One profiled block: `start`, then `stop` for its `Trace`, or `abandon`.

    ``only_run``: the block decides the test's outcome too, so the collector's state is left as a
    test may expect it, at the price of a full collection.
    """

    #: A session of ours is about to start, so `watching` has nothing to report.
    starting: ClassVar[bool] = False

    def __init__(
        self, *, threads: int | None = 1, stacks: bool = False, only_run: bool = False
    ) -> None:
        self._threads = threads
        self._stacks = stacks
        self._freeze = not only_run and gc.get_freeze_count() == 0
        self._running = False
        self._in_region = False
        self._pid = os.getpid()
        self.aside: str | None = None

    def start(self) -> None:
        """Begin the measured region.

        Raises:
            CaptureError: another profiler session is active.
        """
        import torch

        if profiler_active():
            raise CaptureError("another profiler session is active while the test runs")
        synchronize()
        self._old_threads = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        self._gc_was_enabled = gc.isenabled()
        # Freezing hides older garbage from the collector in no time; a full collection would find
        # it in 50 to 100 ms. Either way nothing from before is freed inside the region.
        if self._freeze:
            gc.freeze()
        else:
            gc.collect()
        gc.disable()
        self._profiler = _profiler(stacks=self._stacks)
        Capture.starting = True
        try:
            self._profiler.start()
        finally:
            Capture.starting = False
        self._running = True
        self._region = torch.profiler.record_function(REGION)
        self._region.__enter__()
        self._in_region = True

    def end_region(self) -> None:
        """End the measured region; the session goes on, to see what a collection frees."""
        if self._in_region and self._running:
            self._region.__exit__(None, None, None)
        self._in_region = False

    def step_aside(self, reason: str = OWN_PROFILER) -> None:
        """Stop at once, so that the test's own profiler session works."""
        if self._running and os.getpid() == self._pid:
            self.aside = reason
            self._halt()

    def stop(self, folder: Path, facts: Mapping[str, Any]) -> tuple[Trace, Path]:
        """The trace of the region, and the file in ``folder`` that holds it.

        ``facts`` go into the trace's metadata, so that the file says all that was known.

        Raises:
            CaptureError: the session was taken over or ended by somebody else, or is empty.
        """
        import msgspec

        self.end_region()
        if self.aside is not None:
            raise CaptureError(self.aside)
        gc.collect()
        synchronize()
        if not profiler_active():
            self._halt()
            raise CaptureError("somebody else ended the profiler session of the test")
        try:
            self._profiler.add_metadata_json(FACTS_KEY, msgspec.json.encode(facts).decode())
        finally:
            self._halt()
        handle, name = tempfile.mkstemp(suffix=".pt.trace.json", dir=folder)
        os.close(handle)
        path = Path(name)
        self._profiler.export_chrome_trace(name)
        del self._profiler
        trace = read(path)
        if trace.region is None:
            path.unlink()
            raise CaptureError("the profiler recorded nothing, not even the measured region")
        return trace, path

    def abandon(self) -> None:
        """End the session and forget it; safe at any time, and in a forked child."""
        if self._running and os.getpid() == self._pid:
            self.end_region()
            self._halt()

    def _halt(self) -> None:
        import torch

        if not self._running:
            return
        self._running = False
        try:
            self.end_region()
            self._profiler.stop()
        finally:
            if self._freeze:
                gc.unfreeze()
            if self._gc_was_enabled:
                gc.enable()
            if torch.get_num_threads() != self._old_threads:
                torch.set_num_threads(self._old_threads)


@dataclass(frozen=True)
class Round:
    """One unprofiled run: wall and process CPU time in ns, instructions or None."""

    wall_ns: int
    cpu_ns: int
    instructions: int | None


class Stopwatch:
    """Times a block, device work included; ``result`` is there after the block."""

    result: Round | None = None

    def __enter__(self) -> Stopwatch:
        """Start the clocks, with the device idle and the collector off."""
        synchronize()
        self._gc_was_enabled = gc.isenabled()
        gc.disable()
        self._counter = _start_instructions()
        self._cpu = time.process_time_ns()
        self._wall = time.perf_counter_ns()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop them once the device is idle again."""
        synchronize()
        wall = time.perf_counter_ns() - self._wall
        cpu = time.process_time_ns() - self._cpu
        instructions = _end_instructions(self._counter)
        if self._gc_was_enabled:
            gc.enable()
        self.result = Round(wall, cpu, instructions)


@cache
def _counts_instructions() -> bool:
    """Whether torch has a counter, and the machine one to read; asking in vain prints to stderr."""
    import torch

    counter = getattr(torch._C, "_instruction_counter", None)
    if counter is None:
        return False
    with muted(2):
        try:
            return bool(counter.end(counter.start()) != _NO_INSTRUCTIONS)
        except RuntimeError:
            return False


def _start_instructions() -> Any:
    import torch

    return torch._C._instruction_counter.start() if _counts_instructions() else None


def _end_instructions(counter: Any) -> int | None:
    import torch

    return None if counter is None else int(torch._C._instruction_counter.end(counter))


@dataclass(frozen=True)
class CompileCount:
    """Graph breaks and recompilations that torch.compile has counted so far in this process."""

    graph_breaks: int
    recompiled: frozenset[int]

    @classmethod
    def now(cls) -> CompileCount:
        """Read dynamo's counters; all zero while dynamo has not been imported."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return cls(0, frozenset())
        breaks = utils.counters.get("graph_break", {})
        records = getattr(utils, "get_compilation_metrics", list)()
        # A compile id is "frame/attempt": an attempt after the first is a recompilation.
        again = (r for r in records if not str(r.compile_id).endswith(("/0", "None")))
        return cls(sum(breaks.values()), frozenset(id(r) for r in again))

    def since(self, before: CompileCount) -> dict[str, int]:
        """The facts ``graph_breaks`` and ``recompiles`` between two readings."""
        return {
            # A test may clear dynamo's counters: then what is there now is all its own.
            "graph_breaks": self.graph_breaks - before.graph_breaks
            if self.graph_breaks >= before.graph_breaks
            else self.graph_breaks,
            "recompiles": len(self.recompiled - before.recompiled),
        }
