"""Run torch.profiler around a block and return a `Trace`."""

from __future__ import annotations

import _thread
import gc
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_torchprof.capture.exports import SMALL_BYTES, memory_works, no_room, reserve
from pytest_torchprof.capture.forking import expect_threads, threads_now
from pytest_torchprof.capture.frames import foreign
from pytest_torchprof.capture.inductor import Packages, look_for_graphs
from pytest_torchprof.capture.machine import (
    accelerator,
    kineto_quietened,
    lend_threads,
    real_torch,
    synchronize,
)
from pytest_torchprof.capture.processes import Children, watch_forks
from pytest_torchprof.capture.real import REAL, is_silent, muted, no_collection
from pytest_torchprof.capture.reference import run_reference
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.capture.stopwatch import counts_instructions
from pytest_torchprof.capture.tasks import Threads
from pytest_torchprof.capture.tensors import StorageNumbers
from pytest_torchprof.capture.timed_calls import Tidy
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.capture.watchdog import LIMIT_SAID, Watchdog
from pytest_torchprof.core.errors import CaptureError, TraceError
from pytest_torchprof.trace.event_names import REGION
from pytest_torchprof.trace.events import FACTS_KEY, Trace
from pytest_torchprof.trace.read import parse

if TYPE_CHECKING:
    from pytest_torchprof.capture.lines import LineTracer

OWN_PROFILER = "the test runs torch.profiler itself, and profiler sessions cannot be nested"
OTHER_THREADS = "other threads did work too, and this torch cannot profile them"
FIRST_OF_POOL = (
    "other threads did work too, which only another run can count: give the test a warm-up run"
)
_FILE_NUMBERS = itertools.count()
#: A shorter region records a few megabytes on the CPU at most.
_SHORT_NS = 10_000_000


def prime(*, whole: bool = False) -> None:
    """Start and stop the process's first profiler session, which is slow, outside any test.

    ``whole``: also import dynamo (1 to 2 s), because a first run is to be measured, in which an
    optimizer or a compiled function would import it.
    """
    import torch

    if whole:
        import torch._dynamo
    with suppress(OSError):  # if there is none, a test reports it
        tempfile.gettempdir()  # caches it in the module, before tests may replace it
    foreign()  # caches a look at the file system
    memory_works()
    watch_forks()
    Threads.settle()
    if profiler_active():
        return  # other code profiles the session; each test reports that
    with muted(2), kineto_quietened():
        older = torch.ones(1)
        before = threads_now()
        profiler = _profiler()
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
    _SILENT[:] = [device is None and is_silent(_session)]


def _session() -> None:
    profiler = _profiler()
    profiler.start()
    profiler.stop()


#: Whether a session writes nothing to stderr, once that is known: then it need not be muted.
_SILENT: list[bool] = []
#: Whether the first session saw the accelerator work, once that is known.
_DEVICE_RECORDS: list[bool] = []


def _has_device_records(profiler: Any) -> bool:
    import torch

    results = profiler.profiler.kineto_results
    return any(
        event.device_type() != torch._C._autograd.DeviceType.CPU for event in results.events()
    )


def device_fault() -> str | None:
    """Why device metrics would be 0 in this process whatever runs; None if they work."""
    if not _DEVICE_RECORDS or _DEVICE_RECORDS[0]:
        return None
    return (
        "torch's profiler recorded nothing on this device; is another CUPTI client (nsys, "
        "compute-sanitizer) attached, or is a permission missing?"
    )


def _profiler(*, everywhere: bool = False, details: bool = True, tensors: bool = False) -> Any:
    t = real_torch()
    ProfilerActivity = t.activity  # noqa: N806 - torch's name
    activities = [ProfilerActivity.CPU]
    device = accelerator()
    if device is not None:
        name = device.upper() if hasattr(ProfilerActivity, device.upper()) else "PrivateUse1"
        # An activity that this build cannot record would give zeros.
        if (activity := getattr(ProfilerActivity, name)) in t.supported():
            activities.append(activity)
    extra: dict[str, Any] = {}
    if everywhere:
        extra["experimental_config"] = t.config(profile_all_threads=True)
    if not (extra or tensors) and device is None and t.trace_only is not None:
        extra["experimental_config"] = t.trace_only
    return t.profile(
        activities=activities,
        record_shapes=details,
        profile_memory=details,
        **extra,
    )


def profiler_active() -> bool:
    """Whether any profiler session runs in this thread."""
    return bool(real_torch().active())


@cache
def sees_threads() -> bool:
    """Whether torch can profile all threads; by default it only sees the one that began."""
    try:
        real_torch().config(profile_all_threads=True)
    except TypeError:
        return False
    return True


class Others:
    """Notices other profiler sessions before they start; one per process.

    The functions that begin a session are wrapped before the tests, once for all of them: torch's
    are looked up at each use, so a test can still replace one.
    """

    def __init__(self) -> None:
        self._on_start: Callable[[], None] | None = None
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    def watch(self) -> None:
        """Watch from here on, until `forget`."""
        import torch.autograd.profiler as room

        self.forget()
        for where in (room, sys.modules.get("torch.autograd.profiler_legacy")):
            for name in ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy"):
                if hasattr(where, name):
                    original = getattr(where, name)
                    prepares = name == "_prepare_profiler"
                    setattr(where, name, wrapped := self._telling(original, prepares=prepares))
                    self._wrapped.append((where, name, original, wrapped))

    def tell(self, on_start: Callable[[], None] | None) -> None:
        """Set the callback while a test's block is measured; None for none."""
        self._on_start = on_start

    def forget(self) -> None:
        """Restore what is wrapped."""
        while self._wrapped:
            where, name, original, wrapped = self._wrapped.pop()
            if getattr(where, name) is wrapped:
                setattr(where, name, original)

    def _telling(self, original: Callable[..., Any], *, prepares: bool) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if self._on_start is not None and not Capture.starting:
                self._on_start()
            try:
                return original(*args, **kwargs)
            except RuntimeError:
                # With a session in another thread, torch 2.6 cannot prepare a new one, but can
                # begin it.
                if prepares and Capture.current is not None and Capture.current.taken_over:
                    return None
                raise

        return start


OTHERS = Others()


def _replace(where: Any, name: str, wrap: Callable[[Callable[..., Any]], Any], undo: Undo) -> None:
    """Wrap a function as the test sees it; ``undo`` restores it, unless the test has."""
    old = SHELTER.seen_by_test(where, name)
    new = wrap(old)
    SHELTER.show_test(where, name, new)

    def back() -> None:
        if SHELTER.seen_by_test(where, name) is new:
            SHELTER.show_test(where, name, old)

    undo.callback(back)


class Capture:
    """One profiled block: `start`, then `stop` for its `Trace`, or `abandon`.

    ``first``: the block also decides the test's outcome, so its side effects are kept to a minimum.
    ``everywhere``: all threads are seen, but memory events are not. ``watchdog``: a capture that
    outgrows the machine is ended, see `Watchdog`. ``tracer``: marks what runs; with one that does
    not measure, shapes and memory are not recorded. ``tensors``: the trace identifies tensors,
    which takes memory for each event.
    """

    #: A session of ours is about to start, so `OTHERS` does not report it.
    starting: ClassVar[bool] = False
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
    ) -> None:
        self._threads = threads
        self._first = first
        self._everywhere = everywhere
        self._tracer = tracer
        self._tensors = tensors and not everywhere  # needs memory events
        self._details = tracer is None or tracer.measures
        self._watchdog = Watchdog(lambda: self.step_aside(LIMIT_SAID)) if watchdog else None
        self._running = False
        self._in_region = False
        self.taken_over = False
        self._pid = REAL.getpid()
        self._thread = REAL.current_thread()
        self._undo = Undo()
        self.aside: str | None = None
        #: Python threads were started in the block; ``other_threads``: others existed before.
        self.started_threads = False
        self.other_threads = False
        self._threads_at_work = Threads()
        self._children = Children()
        self._elsewhere: str | None = None
        self._began = 0
        #: Anomaly detection was on before the region.
        self._anomaly = False
        #: The region's time, once it has ended.
        self._spent_ns: int | None = None
        #: A small trace as torch has written it, after `stop`; a large one is only in its file.
        self.text: bytes | None = None
        self.packages = Packages()

    def start(self) -> None:
        """Begin the measured region.

        Raises:
            CaptureError: another profiler session is active.
        """
        if Capture.current is not None:
            Capture.current.abandon()  # left over from a capture that could not be ended
        if profiler_active():
            raise CaptureError("another profiler session is active while the test runs")
        synchronize()
        look_for_graphs()  # the collector will not see them later
        with Undo() as undo:
            self._set_threads(undo)
            self._set_collector(undo)
            self._watch_threads(undo)
            self._children.watch(_replace, undo)
            self.packages.watch(_replace, undo)
            self._profiler = _profiler(
                everywhere=self._everywhere, details=self._details, tensors=self._tensors
            )
            Capture.starting = True
            try:
                with nullcontext() if _SILENT == [True] else muted(2, flush=False):
                    self._profiler.start()
            except BaseException:
                _disable()
                raise
            finally:
                Capture.starting = False
            self._running = True
            Capture.current = self
            self._undo = undo.pop_all()
        self._anomaly = real_torch().detects_anomalies()
        if self._watchdog is not None:
            self._watchdog.start()
            self._undo.callback(self._watchdog.stop)
            self.started_threads = False  # that one was ours
        self._children.begin()
        self._threads_at_work.begin(self._watchdog.native_ids if self._watchdog else ())
        self._region = real_torch().region(REGION)
        self._region.__enter__()
        self._in_region = True
        self._began = REAL.clock()
        if self._tracer is not None:
            self._tracer.start()

    # ---------------------------------------------------------------- what a block runs under

    def _set_threads(self, undo: Undo) -> None:
        """Set the requested intra-op threads; a test that sets others keeps its own."""
        t, wanted = real_torch(), self._threads
        needless = wanted is None or wanted == t.get_threads()
        give_back = lend_threads(wanted, undo)
        if needless or not self._first:
            return

        def asked(original: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any) -> Any:
                give_back()
                self.aside = self.aside or (
                    "the test reads torch's number of threads, so its first run cannot be the "
                    "profiled one: give the test a warm-up run"
                )
                return original(*args)

            return answer

        import torch

        for name in ("get_num_threads", "set_num_threads"):
            _replace(torch, name, asked, undo)

    def _set_collector(self, undo: Undo) -> None:
        """No collection within the block, and nothing from before it to be collected."""
        # Freezing hides older garbage from the collector instantly; a full collection would take 50
        # to 100 ms to find it. Either way nothing from before is freed inside the region. Checking
        # whether other code has frozen objects takes time proportional to their number.
        if not (self._first or Tidy.at_work) and gc.get_freeze_count() == 0:
            gc.freeze()
            undo.callback(gc.unfreeze)
        else:
            REAL.collect()
        undo.enter_context(no_collection())

    def _watch_threads(self, undo: Undo) -> None:
        """Record threads that start; `threading.Thread` itself looks unchanged to the test."""

        def recording(original: Callable[..., Any]) -> Callable[..., Any]:
            def start(*args: Any, **kwargs: Any) -> Any:
                self.started_threads = True
                return original(*args, **kwargs)

            return start

        for room, name in (
            (threading, "_start_new_thread"),
            (threading, "_start_joinable_thread"),
            (_thread, "start_new_thread"),
        ):
            if hasattr(room, name):
                _replace(room, name, recording, undo)

    # ---------------------------------------------------------------- the end

    def end_region(self) -> None:
        """End the measured region; the session continues, to see what a collection frees."""
        if REAL.getpid() != self._pid:
            return
        self._end_lines()
        if self._in_region and self._running:
            self._spent_ns = REAL.clock() - self._began
            self._region.__exit__(None, None, None)
            started, self.other_threads = self._threads_at_work.end(woken=self._children.ended)
            self.started_threads |= started
            self._elsewhere = self._children.end()
            if self._elsewhere is None and (self.other_threads or self.started_threads):
                if not sees_threads():
                    self._elsewhere = OTHER_THREADS
                elif self._first and (self.started_threads or self._threads_at_work.pool_worked):
                    self._elsewhere = FIRST_OF_POOL
        self._in_region = False

    def _end_lines(self) -> None:
        if self._tracer is not None:
            self._tracer.stop()

    def step_aside(self, reason: str = OWN_PROFILER) -> None:
        """Stop at once, so that the test's own profiler session works."""
        if not self._running or REAL.getpid() != self._pid:
            return
        self.aside = reason
        if REAL.current_thread() == self._thread:
            self._halt()
        else:
            self.taken_over = True  # a session ends only in the thread that began it

    @property
    def is_small(self) -> bool:
        """Whether so little can have been recorded that an in-memory file is enough."""
        spent = self._spent_ns
        return spent is not None and spent < _SHORT_NS and accelerator() is None

    def stop(self, place: Path, facts: Mapping[str, Any]) -> tuple[Trace, Path]:
        """The trace of the region, and the file that holds it: ``place``, or one in this folder.

        ``facts`` go into the trace's metadata, so that the file is complete, together with the work
        of other processes, if there was any.

        Raises:
            CaptureError: other code took over or ended the session, or it is empty.
            StorageError: there is no space for the file.
        """
        import msgspec

        if REAL.getpid() != self._pid:
            raise CaptureError("the test forked, and this is the child")
        self.end_region()
        if self.aside is not None:
            self._halt()
            _empty(self._profiler)
            raise CaptureError(self.aside)
        facts = {**facts, **self._own_facts()}
        REAL.collect()
        synchronize()
        if not self._everywhere and not profiler_active():
            self._halt()
            raise CaptureError("other code ended the profiler session of the test")
        try:
            self._profiler.add_metadata_json(FACTS_KEY, msgspec.json.encode(facts).decode())
        finally:
            self._halt()
        profiler = self._profiler
        del self._profiler, self._region
        # Torch crashes when it writes a session that another one has ended.
        if self._everywhere and not profiler.profiler.kineto_results.events():
            raise CaptureError("other code ended the profiler session of the test")
        path = place
        if not place.name.endswith(".json"):
            path = place / f"{self._pid}-{next(_FILE_NUMBERS)}.pt.trace.json"
        try:
            reserve(path)
            profiler.export_chrome_trace(str(path))
            results = profiler.profiler.kineto_results if self._tensors else None
            _empty(profiler)
            with REAL.open(path, "rb", buffering=0) as file:  # it is read at once
                text = file.read()
            trace = parse(text, source=str(path))
            if results is not None:
                trace = replace(trace, tensors=StorageNumbers(results, _base_ns(trace)))
            self.text = text if len(text) <= SMALL_BYTES else None
        except FileNotFoundError:  # torch does not report a full disk
            raise no_room(path, "torch wrote no file, as happens when the disk is full") from None
        except (OSError, TraceError) as error:
            raise no_room(path, error) from error
        if trace.cut or (facts and not trace.facts):
            raise no_room(path, "part of it is missing")
        if trace.region is None:
            REAL.unlink(path)
            raise CaptureError("the profiler recorded nothing, not even the measured region")
        return trace, path

    def _own_facts(self) -> dict[str, Any]:
        """What the capture knows beyond its events."""
        found: dict[str, Any] = {"anomaly_before": True} if self._anomaly else {}
        return found if self._elsewhere is None else {**found, "elsewhere": self._elsewhere}

    def abandon(self) -> None:
        """End the session and discard it; safe at any time, and in a forked child."""
        if self._running and REAL.getpid() == self._pid:
            self.end_region()
            self._halt()
            _empty(self._profiler)

    def _halt(self) -> None:
        if not self._running:
            return
        self._running = False
        try:
            self._end_lines()
            if self._in_region:
                self._region.__exit__(None, None, None)
                self._in_region = False
            if self.taken_over:
                _begin_elsewhere()
            # Torch may warn at the end if other code interfered with the session.
            sound = self.aside is None and not self.taken_over and profiler_active()
            mute = nullcontext() if sound and _SILENT == [True] else muted(2, flush=False)
            with mute, suppress(RuntimeError):  # older torch: already ended
                self._profiler.stop()
        finally:
            _disable()
            Capture.current = None
            self._undo.close()


def _base_ns(trace: Trace) -> int:
    base = trace.metadata.get("baseTimeNanoseconds")  # missing before torch 2.4
    return base if isinstance(base, int) else 0


def _disable() -> None:
    """End a session that torch's own function failed to end: it must not outlive the test."""
    if profiler_active():
        with suppress(RuntimeError):  # it had not begun yet
            real_torch().disable()


def _empty(profiler: Any) -> None:
    """Release all events now: torch's profile is a cycle, and collections are rare here."""
    vars(profiler).clear()


def _begin_elsewhere() -> None:
    """Begin a session in a separate thread, for ours to end.

    If a test's thread has run a session, the backend has ended ours with it, and torch crashes when
    it stops what the backend does not run.
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
        # Torch complains about the thread's leftovers until the system has ended it too.
        for _ in range(100):
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110 - quick
                break
            REAL.sleep(0.001)
