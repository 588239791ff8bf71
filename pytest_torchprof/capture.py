"""Runs torch.profiler around a block and hands out a `Trace`. The only room that touches torch."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_torchprof.errors import CaptureError
from pytest_torchprof.events import FACTS_KEY, REGION, Trace
from pytest_torchprof.trace.read import parse

if TYPE_CHECKING:
    from typing_extensions import Self

#: What torch's counter answers where there is no hardware counter.
_NO_INSTRUCTIONS = 2**64 - 1
OWN_PROFILER = "the test runs torch.profiler itself, and two sessions cannot be nested"

#: What runs while a test's patches are in place, bound before them: a test that replaces `open`,
#: the clock or `gc.collect` must neither break us nor count our calls. In a namespace, because
#: tools that replace the file system or the clock look through the globals of all modules.
REAL = SimpleNamespace(
    clock=time.perf_counter_ns,
    cpu_clock=time.process_time_ns,
    collect=gc.collect,
    getpid=os.getpid,
    dup=os.dup,
    dup2=os.dup2,
    close=os.close,
    open_fd=os.open,
    open=open,
    unlink=os.unlink,
    current_thread=threading.get_ident,
    thread=threading.Thread,
)
_FILE_NUMBERS = itertools.count()


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


@cache
def _accelerator() -> str | None:
    """Asked once: a test that pretends there is a device, or none, does not change the answer."""
    import torch

    probe = getattr(torch, "accelerator", None)
    if probe is not None and probe.is_available():
        return str(probe.current_accelerator().type)
    return "cuda" if torch.cuda.is_available() else None


def prime() -> None:
    """Pay for the first profiler session of the process (0.5 to 1.7 s), outside any test."""
    import torch

    if profiler_active():
        return  # somebody profiles the session; each test will say so
    with muted(2):
        older = torch.ones(1)
        profiler = _profiler()
        profiler.start()
        del older  # torch warns of it, once in a process
        torch.ones(1)
        profiler.stop()
        _counts_instructions()


@contextmanager
def muted(*fds: int, flush: bool = True) -> Iterator[None]:
    """Send what is written to these file descriptors nowhere, C++ code's lines included.

    Without ``flush``, only C++ code's: what Python holds back is written later, as it would be.
    """
    if flush:
        _flush()
    saved = []
    for fd in fds:
        with suppress(OSError):  # a test may have closed it
            saved.append((fd, REAL.dup(fd)))
    null = REAL.open_fd(os.devnull, os.O_WRONLY)
    try:
        for fd, _ in saved:
            REAL.dup2(null, fd)
        yield
    finally:
        if flush:
            _flush()
        for fd, copy in saved:
            REAL.dup2(copy, fd)
            REAL.close(copy)
        REAL.close(null)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed by a test
            stream.flush()  # type: ignore[union-attr]


@cache
def _torch() -> SimpleNamespace:
    """What we use of torch while a test runs, bound before a test can replace it, see `REAL`."""
    import torch

    device = _accelerator()
    module = getattr(torch, device) if device is not None else None
    return SimpleNamespace(
        active=getattr(torch.autograd, "_profiler_enabled", lambda: False),
        profile=torch.profiler.profile,
        activity=torch.profiler.ProfilerActivity,
        config=torch._C._profiler._ExperimentalConfig,
        region=torch.profiler.record_function,
        get_threads=torch.get_num_threads,
        set_threads=torch.set_num_threads,
        synchronize=getattr(module, "synchronize", lambda: None),
        initialized=getattr(module, "is_initialized", lambda: True),
    )


def synchronize() -> None:
    """Wait for the accelerator, where there is one."""
    if _accelerator() is not None and _torch().initialized():
        _torch().synchronize()


def _profiler(*, stacks: bool = False, everywhere: bool = False) -> Any:
    t = _torch()
    ProfilerActivity = t.activity  # noqa: N806 - torch's name
    activities = [ProfilerActivity.CPU]
    device = _accelerator()
    if device is not None:
        name = device.upper() if hasattr(ProfilerActivity, device.upper()) else "PrivateUse1"
        activities.append(getattr(ProfilerActivity, name))
    extra: dict[str, Any] = {}
    if stacks:
        # Without it, Python events of torch's own frames are left out on some versions.
        extra["experimental_config"] = t.config(verbose=True)
    if everywhere:
        extra["experimental_config"] = t.config(profile_all_threads=True)
    return t.profile(
        activities=activities, record_shapes=True, profile_memory=True, with_stack=stacks, **extra
    )


def profiler_active() -> bool:
    """Whether somebody's session runs in this thread."""
    return bool(_torch().active())


@cache
def sees_threads() -> bool:
    """Whether torch can profile all threads; by default it sees only the one that began."""
    try:
        _torch().config(profile_all_threads=True)
    except TypeError:
        return False
    return True


@contextmanager
def watching(on_start: Callable[[], None]) -> Iterator[None]:
    """Call ``on_start`` just before the block starts a profiler session of its own."""
    import torch.autograd.profiler as room
    import torch.autograd.profiler_legacy as old_room

    places = [
        (where, name, getattr(where, name))
        for where in (room, old_room)
        for name in ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
        if hasattr(where, name)
    ]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if not Capture.starting:
                on_start()
            return original(*args, **kwargs)

        return start

    with ExitStack() as stack:
        for where, name, original in places:
            stack.enter_context(_replaced(where, name, wrap(original)))
        yield


@contextmanager
def _replaced(where: Any, name: str, new: Any) -> Iterator[None]:
    """An attribute replaced, and put back unless somebody else has replaced it since."""
    old = getattr(where, name)
    setattr(where, name, new)
    try:
        yield
    finally:
        if getattr(where, name) is new:
            setattr(where, name, old)


class Capture:
    """One profiled block: `start`, then `stop` for its `Trace`, or `abandon`.

    ``first``: the block decides the test's outcome too, so what it can see of us is kept to a
    minimum. ``everywhere``: all threads are seen, at the price of memory events.
    """

    #: A session of ours is about to start, so `watching` has nothing to report.
    starting: ClassVar[bool] = False

    def __init__(
        self,
        *,
        threads: int | None = 1,
        stacks: bool = False,
        first: bool = False,
        everywhere: bool = False,
    ) -> None:
        self._threads = threads
        self._stacks = stacks
        self._first = first
        self._everywhere = everywhere
        self._running = False
        self._in_region = False
        self._taken_over = False
        self._pid = REAL.getpid()
        self._thread = REAL.current_thread()
        self._undo = ExitStack()
        self.aside: str | None = None
        #: Python threads were started in the block; others were there before.
        self.started_threads = False
        self.other_threads = False

    def start(self) -> None:
        """Begin the measured region.

        Raises:
            CaptureError: another profiler session is active, or a hook that stacks would end.
        """
        if profiler_active():
            raise CaptureError("another profiler session is active while the test runs")
        if self._stacks and sys.getprofile() is not None:
            raise CaptureError("a sys.setprofile hook is active, and recording stacks would end it")
        synchronize()
        with ExitStack() as undo:
            self._set_threads(undo)
            self._set_collector(undo)
            self._watch_threads(undo)
            self._profiler = _profiler(stacks=self._stacks, everywhere=self._everywhere)
            Capture.starting = True
            try:
                with muted(2, flush=False):  # Kineto, where torch was imported before us
                    self._profiler.start()
            finally:
                Capture.starting = False
            self._running = True
            self._undo = undo.pop_all()
        self._region = _torch().region(REGION)
        self._region.__enter__()
        self._in_region = True

    # ---------------------------------------------------------------- what a block runs under

    def _set_threads(self, undo: ExitStack) -> None:
        """The intra-op threads asked for; a test that has set others by the end keeps its own."""
        t, wanted, old = _torch(), self._threads, _torch().get_threads()
        if wanted is None or wanted == old:
            return
        t.set_threads(wanted)
        given_back: list[bool] = []

        def give_back() -> None:
            if not given_back and t.get_threads() == wanted:
                t.set_threads(old)
            given_back.append(True)

        undo.callback(give_back)
        if not self._first:
            return

        def asked(original: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any) -> Any:
                give_back()
                self.aside = self.aside or (
                    "the test uses torch's number of threads, so its first run cannot be the "
                    "profiled one: give it a warm-up run"
                )
                return original(*args)

            return answer

        import torch

        originals = {"get_num_threads": t.get_threads, "set_num_threads": t.set_threads}
        for name, original in originals.items():
            undo.enter_context(_replaced(torch, name, asked(original)))

    def _set_collector(self, undo: ExitStack) -> None:
        """No collection within the block, and nothing from before it to be collected."""
        # Freezing hides older garbage from the collector in no time; a full collection would find
        # it in 50 to 100 ms. Either way nothing from before is freed inside the region.
        if not self._first and gc.get_freeze_count() == 0:
            gc.freeze()
            undo.callback(gc.unfreeze)
        else:
            REAL.collect()
        undo.enter_context(no_collection())

    def _watch_threads(self, undo: ExitStack) -> None:
        """Note threads that start; `threading.Thread` itself stays as the test knows it."""
        self.other_threads = threading.active_count() > 1

        def noted(original: Callable[..., Any]) -> Callable[..., Any]:
            def start(*args: Any, **kwargs: Any) -> Any:
                self.started_threads = True
                return original(*args, **kwargs)

            return start

        for name in ("_start_new_thread", "_start_joinable_thread"):
            if (original := getattr(threading, name, None)) is not None:
                undo.enter_context(_replaced(threading, name, noted(original)))

    # ---------------------------------------------------------------- the end

    def end_region(self) -> None:
        """End the measured region; the session goes on, to see what a collection frees."""
        if self._in_region and self._running:
            self._region.__exit__(None, None, None)
        self._in_region = False

    def step_aside(self, reason: str = OWN_PROFILER) -> None:
        """Stop at once, so that the test's own profiler session works."""
        if not self._running or REAL.getpid() != self._pid:
            return
        self.aside = reason
        if REAL.current_thread() == self._thread:
            self._halt()
        else:
            self._taken_over = True  # a session ends only in the thread that began it

    def stop(self, folder: Path, facts: Mapping[str, Any]) -> tuple[Trace, Path]:
        """The trace of the region, and the file in ``folder`` that holds it.

        ``facts`` go into the trace's metadata, so that the file says all that was known.

        Raises:
            CaptureError: the session was taken over or ended by somebody else, or is empty.
        """
        import msgspec

        if REAL.getpid() != self._pid:
            raise CaptureError("the test has forked, and this is the child")
        self.end_region()
        if self.aside is not None:
            self._halt()
            raise CaptureError(self.aside)
        REAL.collect()
        synchronize()
        if not self._everywhere and not profiler_active():
            self._halt()
            raise CaptureError("somebody else ended the profiler session of the test")
        try:
            self._profiler.add_metadata_json(FACTS_KEY, msgspec.json.encode(facts).decode())
        finally:
            self._halt()
        profiler = self._profiler
        del self._profiler, self._region
        # Torch crashes on writing a session that another one has ended.
        if self._everywhere and not profiler.profiler.kineto_results.events():
            raise CaptureError("somebody else ended the profiler session of the test")
        path = folder / f"{self._pid}-{next(_FILE_NUMBERS)}.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        with REAL.open(path, "rb") as file:
            trace = parse(file.read(), source=str(path))
        if trace.region is None:
            REAL.unlink(path)
            raise CaptureError("the profiler recorded nothing, not even the measured region")
        return trace, path

    def abandon(self) -> None:
        """End the session and forget it; safe at any time, and in a forked child."""
        if self._running and REAL.getpid() == self._pid:
            self.end_region()
            self._halt()

    def _halt(self) -> None:
        if not self._running:
            return
        self._running = False
        try:
            if self._in_region:
                self._region.__exit__(None, None, None)
                self._in_region = False
            if self._taken_over:
                _begin_elsewhere()
            with muted(2, flush=False):
                self._profiler.stop()
        finally:
            self._undo.close()


def _begin_elsewhere() -> None:
    """Begin a session in a thread of its own, for ours to end.

    When a test's thread has run a session, the backend has ended ours with it, and torch crashes
    on stopping what the backend does not run.
    """

    def begin() -> None:
        Capture.starting = True
        try:
            _profiler().start()
        finally:
            Capture.starting = False

    thread = REAL.thread(target=begin)
    with muted(2):
        thread.start()
        thread.join()


@contextmanager
def no_collection() -> Iterator[None]:
    """No automatic collection, though `gc.isenabled` says what the test expects."""
    old = gc.get_threshold()
    gc.set_threshold(0, *old[1:])
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:  # else the test has set its own
            gc.set_threshold(*old)


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None
        torch = sys.modules.get("torch")
        self._torch = torch.default_generator.get_state() if torch is not None else None
        device = getattr(torch, "cuda", None)
        self._cuda = device.get_rng_state_all() if device and device.is_initialized() else None

    def restore(self) -> None:
        """Put the generators back to where they were."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state_all(self._cuda)


@dataclass(frozen=True)
class Round:
    """One unprofiled run: wall and process CPU time in ns, instructions or None."""

    wall_ns: int
    cpu_ns: int
    instructions: int | None


class Stopwatch:
    """Times a block, device work included; ``result`` is there after the block.

    ``first``: the block decides the test's outcome too, so the collector is left alone.
    """

    result: Round | None = None

    def __init__(self, *, first: bool = False) -> None:
        self._first = first

    def __enter__(self) -> Self:
        """Start the clocks, with the device idle and the collector off."""
        synchronize()
        self._undo = ExitStack()
        if not self._first:
            self._undo.enter_context(no_collection())
        self._counter = _start_instructions()
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop them once the device is idle again."""
        synchronize()
        wall = REAL.clock() - self._wall
        cpu = REAL.cpu_clock() - self._cpu
        instructions = _end_instructions(self._counter)
        self._undo.close()
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
