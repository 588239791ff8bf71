"""Run torch.profiler around a block and return its `Events`."""

from __future__ import annotations

import _thread
import gc
import itertools
import os
import secrets
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from io import BytesIO  # bound before a test may replace it
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace as struct_replace

from pytest_torchprof.capture.clock import collect, instruction_counter
from pytest_torchprof.capture.compiling import CompiledCalls
from pytest_torchprof.capture.dynamo import Packages, foreign, graph_facts, look_for_graphs
from pytest_torchprof.capture.limits import LIMIT_OF_EVENTS, Watchdog
from pytest_torchprof.capture.lines import StorageNumbers
from pytest_torchprof.capture.load import run_reference
from pytest_torchprof.capture.machine import (
    accelerator,
    allows_tf32,
    kineto_quiet,
    lend_threads,
    real_torch,
    synchronize,
    unseen_allocator,
)
from pytest_torchprof.capture.patches import REAL, muted, no_collection
from pytest_torchprof.capture.patches import replace as replace_function
from pytest_torchprof.capture.processes import Children, add_facts, described_groups, watch_forks
from pytest_torchprof.capture.sessions import (
    BEYOND,
    begin,
    empty,
    end,
    give_way,
    may_end,
    new_session,
    profiler_active,
    require_free,
    sees_threads,
)
from pytest_torchprof.capture.threads import (
    LeftThreads,
    StartedThreads,
    Threads,
    expect_threads,
    threads_now,
)
from pytest_torchprof.core.errors import NotCapturedError, StorageError, TraceError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.process import blocks_apart, heap_of_process, place_apart
from pytest_torchprof.core.records import others_froze
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.names import REGION, region_mark
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.capture.lines import LineTracer
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.capture.started import ChildTrace, Handover
    from pytest_torchprof.trace.events import Events


# ---- A temporary file for a trace that torch writes and we read back.

_NEXT_STEP = "free some space there, or set TMPDIR to a folder with more"
#: A file up to this size stays in memory after it is read.
SMALL_BYTES = 2**20


@contextmanager
def passing_file(parent: Path | None = None) -> Iterator[Path]:
    """A private file with an unguessable name, which is deleted at the end of the block.

    It is in this folder, or in the system's folder for temporary files.

    Raises:
        StorageError: the system has no folder for temporary files.
    """
    try:
        folder = parent or Path(_temporary())
    except OSError as error:
        raise StorageError("cannot write a trace", system_message(error), _NEXT_STEP) from error
    path = folder / f"torchprof-{secrets.token_hex(16)}.pt.trace.json"
    try:
        yield path
    finally:
        _clear(path)


@cache
def _temporary() -> str:
    return tempfile.gettempdir()


def _clear(path: Path) -> None:
    for name in (path, _unfinished(path)):
        with suppress(OSError):  # never made, or renamed
            REAL.unlink(name)


def _unfinished(path: Path) -> str:
    """The file that Kineto writes to, and renames at the end."""
    return f"{path}.tmp"


def reserve(path: Path) -> None:
    """Make the file that torch is about to write, private to its owner and not somebody's link."""
    handle = REAL.open_fd(_unfinished(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    REAL.close(handle)


def no_room(path: Path, error: Exception | str) -> StorageError:
    """The error for a trace that could not be written completely."""
    found = system_message(error) if isinstance(error, Exception) else error
    return StorageError(f"cannot write a trace to {path.parent}", found, _NEXT_STEP)


def hold(path: Path) -> IO[bytes]:
    """The file, open; it may be unlinked."""
    if os.name == "nt":  # an open file cannot be unlinked
        return BytesIO(path.read_bytes())
    file: IO[bytes] = REAL.open(path, "rb")
    return file


class Recording(NamedTuple):
    """What torch has written: the file's path and text, and the tensors that are not in it.

    Nothing is read of it while the test's fixtures are alive, so that no patch of theirs matters.
    """

    path: Path
    text: bytes
    results: Any = None

    def hold(self) -> IO[bytes]:
        """The text, open; it may be unlinked. That of a large one is only in its file."""
        return BytesIO(self.text) if len(self.text) <= SMALL_BYTES else hold(self.path)

    def events(self) -> Events:
        """The trace of the region.

        Raises:
            CaptureError: it is empty.
            StorageError: there was no space for the file.
        """
        try:
            trace = parse_trace(self.text, source=str(self.path))
        except TraceError as error:
            raise no_room(self.path, error) from error
        if trace.cut or not trace.is_live:
            raise no_room(self.path, "part of it is missing")
        if trace.region is None:
            raise NotCapturedError(because(*Why.NOTHING_RECORDED))
        if self.results is not None:
            trace = replace(trace, tensors=StorageNumbers(self.results, _base_ns(trace)))
        return trace


OWN_PROFILER = because(
    "own_profiler", ("the test runs torch.profiler itself, and profiler sessions cannot be nested")
)
_FILE_NUMBERS = itertools.count()
#: torch's records stay between the tensors of a block: holes of larger ones would never be filled.
_APART_BYTES = 2**17


class Capture:
    """One profiled block: `start`, then `stop` for its `Events`, or `abandon`.

    ``first``: the block also decides the test's outcome, so its side effects are kept to a minimum.
    ``everywhere``: all threads are seen, but memory events are not. ``watchdog``: a capture that
    outgrows the machine is ended, and other
    processes are looked at, see `Watchdog`. ``tracer``: marks what runs; with one that does not
    measure, shapes and memory are not recorded.
    ``tensors``: the trace identifies tensors, which takes memory for each event. ``frozen``: other
    code of ours has frozen older objects.
    ``handover`` makes what processes that the block starts hand over by. ``helpers``: this process
    is one of those; tells by the arguments that start a thread whether it runs no operators.
    ``idle_kernels`` are launched before the region.
    """

    #: The capture whose session runs; there is only one of ours.
    current: ClassVar[Capture | None] = None

    def __init__(
        self,
        *,
        threads: int | None = 1,
        first: bool = False,
        everywhere: bool = False,
        watchdog: bool = False,
        tracer: LineTracer | None = None,
        tensors: bool = False,
        frozen: bool = False,
        handover: Callable[[], Handover] | None = None,
        helpers: Callable[[tuple[Any, ...]], bool] | None = None,
        idle_kernels: int = 0,
    ) -> None:
        self._threads, self._first = threads, first
        self._frozen, self._everywhere = frozen, everywhere
        self._tracer = tracer
        self._tensors = tensors and not everywhere  # needs memory events
        self._details = tracer is None or tracer.measures
        aside = lambda: self.step_aside(LIMIT_OF_EVENTS)  # noqa: E731
        self._children = Children(handover)
        looks = self._children.look
        self._watchdog = Watchdog(aside, looks=looks) if watchdog else None
        self._running = self._in_region = False
        self._pid = REAL.getpid()
        self._thread = REAL.current_thread()
        self._undo = ExitStack()
        self.aside: Reason | None = None
        #: Python threads were started in the block; ``other_threads``: others existed before.
        self.started_threads = False
        self.other_threads = False
        self._threads_at_work = Threads()
        self._started = StartedThreads()
        self._left = LeftThreads()
        self._helpers, self._idle_kernels = helpers, idle_kernels
        self._elsewhere: Reason | None = None
        #: Anomaly detection was on before the region.
        self._anomaly = False
        #: The groups of torch.distributed at different times, described; None without one.
        self.groups: set[str | None] = {described_groups()}
        self.packages = Packages()
        self._compiled_calls = CompiledCalls()

    def start(self) -> None:
        """Begin the measured region.

        Raises:
            CaptureError: another profiler session is active, or a CUDA graph is captured.
        """
        if Capture.current is not None:
            Capture.current.abandon()  # left over from a capture that could not be ended
        if Capture.current is not None:
            raise NotCapturedError(BEYOND)
        require_free()
        synchronize()
        look_for_graphs()  # the collector will not see them later
        with ExitStack() as undo:
            undo.enter_context(blocks_apart(_APART_BYTES))
            self._set_threads(undo)
            # No collection within the block, and nothing from before it to be collected. Freezing
            # hides older garbage from the collector instantly; a full collection would take 50 to
            # 100 ms to find it. Checking whether other code has frozen objects takes time
            # proportional to their number.
            if not (self._first or self._frozen or others_froze()):
                gc.freeze()
                undo.callback(gc.unfreeze)
            else:
                collect()
            undo.enter_context(no_collection())
            self._watch_threads(undo)
            self._children.watch(replace_function, undo)
            self.packages.watch(replace_function, undo)
            self._compiled_calls.watch(replace_function, undo)
            self._profiler = new_session(
                everywhere=self._everywhere, details=self._details, tensors=self._tensors
            )
            begin(self._profiler, self._idle_kernels)
            self._running = True
            Capture.current = self
            self._undo = undo.pop_all()
        self._anomaly = real_torch().detects_anomalies()
        self._children.begin()  # before the thread that looks at them
        if self._watchdog is not None:
            self._watchdog.start()
            self._undo.callback(self._watchdog.stop)
            self.started_threads = False  # that one was ours
        self._threads_at_work.begin(self._watchdog.native_ids if self._watchdog else ())
        self._started.begin()
        self._region = real_torch().region(REGION)
        self._region.__enter__()
        self._in_region = True
        if self._tracer is not None:
            self._tracer.start()

    # ---------------------------------------------------------------- what a block runs under

    def _set_threads(self, undo: ExitStack) -> None:
        """Set the requested intra-op threads; a test sees its own, and may set others."""
        wanted, own = self._threads, real_torch().get_threads()
        give_back = lend_threads(wanted, undo)
        if wanted in (None, own) or not self._first:
            return

        def asked(original: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any) -> Any:
                if not (args or sets):
                    return own
                sets.append(True)
                give_back()
                return original(*args)

            return answer

        import torch

        sets: list[bool] = []
        for name in ("get_num_threads", "set_num_threads"):
            replace_function(torch, name, asked, undo)

    def _watch_threads(self, undo: ExitStack) -> None:
        """Record threads that start; `threading.Thread` itself looks unchanged to the test."""

        def recording(original: Callable[..., Any]) -> Callable[..., Any]:
            def start(*args: Any, **kwargs: Any) -> Any:
                if self._helpers is None or not self._helpers(args):
                    self.started_threads = True
                return original(*args, **kwargs)

            return start

        for room, name in (
            (threading, "_start_new_thread"),
            (threading, "_start_joinable_thread"),
            (_thread, "start_new_thread"),
        ):
            if hasattr(room, name):
                replace_function(room, name, recording, undo)

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """A context that marks a region of this name; None in another thread, or after the end."""
        if not self._in_region or REAL.current_thread() != self._thread:
            return None
        return self._lap(name)

    @contextmanager
    def _lap(self, name: str) -> Iterator[None]:
        with real_torch().mark(region_mark(name)):
            yield
            # What is live at the end is no garbage. Only what the lap has made is looked through.
            if not self._first:
                collect(0)

    # ---------------------------------------------------------------- the end

    def end_region(self) -> None:
        """End the measured region; the session continues, to see what a collection frees."""
        if REAL.getpid() != self._pid:
            return
        self.end_lines()
        if self._in_region and self._running:
            self._region.__exit__(None, None, None)
            started, self.other_threads = self._threads_at_work.end(woken=self._children.ended)
            self._elsewhere = self._children.end()
            if self._helpers is not None:
                # There is no other run, native threads are libraries', and its own children are
                # accounted for by the process that it is of.
                self.other_threads = False
                self._elsewhere = (
                    because(
                        "child_uses_threads",
                        "threads did work too, which is not recorded in a started process",
                    )
                    if self.started_threads
                    else None
                )
            else:
                self.started_threads |= started
            if self._elsewhere is None and (self.other_threads or self.started_threads):
                if not sees_threads():
                    self._elsewhere = because(
                        "threads_work",
                        "other threads did work too, and this torch cannot profile them",
                    )
                elif self._first and (self.started_threads or self._threads_at_work.pool_worked):
                    self._elsewhere = because(
                        "pool_work",
                        (
                            "other threads did work too, which only another run can count: give "
                            "the test a warm-up run"
                        ),
                    )
            if self._elsewhere is None:
                self._left = self._started.end(any_started=self.started_threads)
                self._elsewhere = because(*Why.THREAD_LEFT) if self._left.at_work else None
        self._in_region = False

    def take_children(self) -> tuple[ChildTrace, ...]:
        """What the processes that the block started have handed over, once the region is over."""
        return self._children.take()

    def end_lines(self) -> None:
        """Mark no more lines."""
        if self._tracer is not None:
            self._tracer.stop()

    def step_aside(self, reason: Reason = OWN_PROFILER) -> None:
        """Stop at once, so that the test's own profiler session works."""
        if REAL.getpid() != self._pid:
            return
        if not self._running:
            return
        again, self.aside = self.aside is not None, reason
        if may_end(self._thread):
            self._halt()
        elif not again:
            give_way()

    def stop(self, place: Path, facts: Facts) -> Recording:
        """What torch has recorded, in a file that is ``place``, or one in this folder.

        ``facts`` go into the trace's metadata, so that the file is complete, together with the work
        of other processes, if there was any.

        Raises:
            CaptureError: other code took over or ended the session, or it is empty.
            StorageError: there is no space for the file.
        """
        if REAL.getpid() != self._pid:
            raise NotCapturedError(
                because("forked_while_profiled", "the test forked, and this is the child")
            )
        self.end_region()
        if self.aside is not None:
            self._discard()
            raise NotCapturedError(self.aside)
        if real_torch().in_backward() or REAL.current_thread() != self._thread:
            self._discard()
            raise NotCapturedError(BEYOND)
        facts |= Facts(
            anomaly_before=True if self._anomaly else None,
            compiled_calls=self._compiled_calls.count or None,
            elsewhere=self._elsewhere,
            left_threads=self._left.left or None,
        )
        collect()
        facts |= Facts(awaited=synchronize() or None)
        if not self._everywhere and not profiler_active():
            self._halt()
            raise NotCapturedError(because(*Why.PROFILER_ENDED))
        try:
            add_facts(self._profiler, facts, self.groups)
        finally:
            self._halt()
        profiler = self._profiler
        del self._profiler, self._region
        # Torch crashes when it writes a session that another one has ended.
        if self._everywhere and not profiler.profiler.kineto_results.events():
            raise NotCapturedError(because(*Why.PROFILER_ENDED))
        path = place
        if not place.name.endswith(".json"):
            path = place / f"{self._pid}-{next(_FILE_NUMBERS)}.pt.trace.json"
        try:
            reserve(path)
            profiler.export_chrome_trace(str(path))
            results = profiler.profiler.kineto_results if self._tensors else None
            empty(profiler)
            with REAL.open(path, "rb", buffering=0) as file:  # it is read at once
                return Recording(path, file.read(), results)
        except FileNotFoundError:  # torch does not report a full disk
            raise no_room(path, "torch wrote no file, as happens when the disk is full") from None
        except OSError as error:
            raise no_room(path, error) from error

    def abandon(self) -> None:
        """End the session and discard it; safe at any time, and in a forked child."""
        if REAL.getpid() != self._pid:
            return
        try:
            if self._running or self.aside is not None:
                self.end_region()
                self._discard()
        finally:
            self._children.close()

    def _discard(self) -> None:
        self._halt()
        if not self._running:
            empty(self._profiler)

    def _halt(self) -> None:
        if not self._running:
            return
        try:
            self.end_lines()
            if self._in_region and REAL.current_thread() == self._thread:
                self._region.__exit__(None, None, None)
                self._in_region = False
            if may_end(self._thread):
                self._running, Capture.current = False, None
                end(self._profiler, self._thread, everywhere=self._everywhere)
        finally:
            self._undo.close()


def _base_ns(trace: Events) -> int:
    base = trace.metadata.get("baseTimeNanoseconds")  # missing before torch 2.4
    return base if isinstance(base, int) else 0


# ---- One-time work per process for profiling, done before the tests.

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
        _temporary()  # caches it, before tests may replace it
    foreign()  # caches a look at the file system
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
        instruction_counter()
        run_reference(1)
        if device is not None:
            _DEVICE_RECORDS.append(_has_device_records(profiler))


def _has_device_records(profiler: Any) -> bool:
    import torch

    results = profiler.profiler.kineto_results
    return any(
        event.device_type() != torch._C._autograd.DeviceType.CPU for event in results.events()
    )


# ---- The facts about the process that every live capture stores.


def facts_now(machine: Machine, compiled: Facts, first: Facts | None = None) -> Facts:
    """Facts about this process now, except those of timed rounds.

    ``compiled``: facts of all compilations since the test began. ``first``: facts of the first
    run's compilations, once it is over. Counts are those of the first run, since a test does not
    decide how often it runs.
    """
    of_process = struct_replace(
        first or compiled,
        compiled=compiled.compiled,
        environment=machine.key,
        accelerator=machine.accelerator,
        device_type=machine.device_type,
        torch=machine.torch_version,
        # Else device metrics would always be 0.
        no_device=because(*Why.NO_DEVICE_RECORDS)
        if _DEVICE_RECORDS and not _DEVICE_RECORDS[0]
        else None,
        no_device_memory=unseen_allocator(),
        allow_tf32=allows_tf32(),
    )
    return of_process | graph_facts()
