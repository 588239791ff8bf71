"""Run torch.profiler around a block and return its `Events`."""

from __future__ import annotations

import _thread
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_torchprof.capture.collecting import collect
from pytest_torchprof.capture.compiled_calls import CompiledCalls
from pytest_torchprof.capture.exports import SMALL_BYTES, no_room, reserve
from pytest_torchprof.capture.inductor import Packages, look_for_graphs
from pytest_torchprof.capture.left_threads import LeftThreads, StartedThreads
from pytest_torchprof.capture.machine import (
    accelerator,
    lend_threads,
    real_torch,
    synchronize,
)
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.process_groups import add_facts, described_groups
from pytest_torchprof.capture.processes import Children
from pytest_torchprof.capture.recompiles import called_by_compiler
from pytest_torchprof.capture.replacing import replace as replace_function
from pytest_torchprof.capture.storage_numbers import StorageNumbers
from pytest_torchprof.capture.tasks import Threads
from pytest_torchprof.capture.torch_sessions import (
    begin,
    disable,
    empty,
    end,
    end_restored,
    give_way,
    new_session,
    profiler_active,
    require_free,
    sees_threads,
)
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.capture.unpatched import REAL, no_collection
from pytest_torchprof.capture.watchdog import LIMIT_OF_EVENTS, NEED_UNKNOWN, Need, Watchdog
from pytest_torchprof.core.errors import NotCapturedError, TraceError
from pytest_torchprof.core.heap import blocks_apart
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.uncollected import others_froze
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.known_names import REGION, region_mark
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.capture.children.parent import ChildTrace, Handover
    from pytest_torchprof.capture.lines import LineTracer
    from pytest_torchprof.trace.events import Events

OWN_PROFILER = because(Why.OWN_PROFILER)
_FILE_NUMBERS = itertools.count()
#: A shorter region records a few megabytes on the CPU at most.
_SHORT_NS = 10_000_000
#: torch's records stay between the tensors of a block: holes of larger ones would never be filled.
_APART_BYTES = 2**17


class Capture:
    """One profiled block: `start`, then `stop` for its `Events`, or `abandon`.

    ``first``: the block also decides the test's outcome, so its side effects are kept to a minimum.
    ``everywhere``: all threads are seen, but memory events are not. ``watchdog``: a capture that
    outgrows the machine, and what the block itself ``needs``, is ended, and other processes are
    looked at, see `Watchdog`. ``tracer``:
    marks what runs; with one that does not measure, shapes and memory are not recorded.
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
        needs: Need = NEED_UNKNOWN,
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
        self._watchdog = Watchdog(aside, needs=needs, looks=looks) if watchdog else None
        self._running = self._in_region = False
        self._pid = REAL.getpid()
        self._thread = REAL.current_thread()
        self._undo = Undo()
        self.aside: Reason | None = None
        #: Python threads were started in the block; ``other_threads``: others existed before.
        self.started_threads = False
        self.other_threads = False
        self._threads_at_work = Threads()
        self._started = StartedThreads()
        self._left = LeftThreads()
        self._helpers, self._idle_kernels = helpers, idle_kernels
        self._elsewhere: Reason | None = None
        self._began = 0
        #: Anomaly detection was on before the region.
        self._anomaly = False
        #: The region's time, once it has ended.
        self._spent_ns: int | None = None
        #: A small trace as torch has written it, after `stop`; a large one is only in its file.
        self.text: bytes | None = None
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
        require_free()
        synchronize()
        look_for_graphs()  # the collector will not see them later
        with Undo() as undo:
            undo.enter_context(blocks_apart(_APART_BYTES))
            self._set_threads(undo)
            self._set_collector(undo)
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
        self._began = REAL.clock()
        if self._tracer is not None:
            self._tracer.start()

    # ---------------------------------------------------------------- what a block runs under

    def _set_threads(self, undo: Undo) -> None:
        """Set the requested intra-op threads; a test that sets others keeps its own."""
        t, wanted = real_torch(), self._threads
        own = t.get_threads()
        needless = wanted is None or wanted == own
        give_back = lend_threads(wanted, undo)
        if needless or not self._first:
            return

        def asked(original: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any) -> Any:
                # Within dynamo's trace, which must end with as many threads as it began.
                if not args and t.get_threads() == wanted and called_by_compiler():
                    return own
                give_back()
                self.aside = self.aside or because(Why.READS_THREADS)
                return original(*args)

            return answer

        import torch

        for name in ("get_num_threads", "set_num_threads"):
            replace_function(torch, name, asked, undo)

    def _set_collector(self, undo: Undo) -> None:
        """No collection within the block, and nothing from before it to be collected."""
        # Freezing hides older garbage from the collector instantly; a full collection would take 50
        # to 100 ms to find it. Either way nothing from before is freed inside the region. Checking
        # whether other code has frozen objects takes time proportional to their number.
        if not (self._first or self._frozen or others_froze()):
            gc.freeze()
            undo.callback(gc.unfreeze)
        else:
            collect()
        undo.enter_context(no_collection())

    def _watch_threads(self, undo: Undo) -> None:
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
            self._spent_ns = REAL.clock() - self._began
            if self.started_threads:
                self._started.look()
            self._region.__exit__(None, None, None)
            started, self.other_threads = self._threads_at_work.end(woken=self._children.ended)
            self._elsewhere = self._children.end()
            if self._helpers is not None:
                # There is no other run, native threads are libraries', and its own children are
                # accounted for by the process that it is of.
                self.other_threads = False
                self._elsewhere = because(Why.CHILD_USES_THREADS) if self.started_threads else None
            else:
                self.started_threads |= started
            if self._elsewhere is None and (self.other_threads or self.started_threads):
                if not sees_threads():
                    self._elsewhere = because(Why.THREADS_WORK)
                elif self._first and (self.started_threads or self._threads_at_work.pool_worked):
                    self._elsewhere = because(Why.POOL_WORK)
            if self._elsewhere is None:
                self._left = self._started.end()
                self._elsewhere = because(Why.THREAD_LEFT) if self._left.at_work else None
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
            if self.aside is not None:
                end_restored()
            return
        again, self.aside = self.aside is not None, reason
        if REAL.current_thread() == self._thread:
            self._halt()
        elif not again:
            give_way(self._thread)

    @property
    def is_small(self) -> bool:
        """Whether so little can have been recorded that an in-memory file is enough."""
        spent = self._spent_ns
        return spent is not None and spent < _SHORT_NS and accelerator() is None

    def stop(self, place: Path, facts: Facts) -> tuple[Events, Path]:
        """The trace of the region, and the file that holds it: ``place``, or one in this folder.

        ``facts`` go into the trace's metadata, so that the file is complete, together with the work
        of other processes, if there was any.

        Raises:
            CaptureError: other code took over or ended the session, or it is empty.
            StorageError: there is no space for the file.
        """
        if REAL.getpid() != self._pid:
            raise NotCapturedError(because(Why.FORKED_WHILE_PROFILED))
        self.end_region()
        if self.aside is not None:
            self._discard()
            raise NotCapturedError(self.aside)
        facts |= self._own_facts()
        collect()
        facts |= Facts(awaited=synchronize() or None)
        if not self._everywhere and not profiler_active():
            self._halt()
            raise NotCapturedError(because(Why.PROFILER_ENDED))
        try:
            add_facts(self._profiler, facts, self.groups)
        finally:
            self._halt()
        profiler = self._profiler
        del self._profiler, self._region
        # Torch crashes when it writes a session that another one has ended.
        if self._everywhere and not profiler.profiler.kineto_results.events():
            raise NotCapturedError(because(Why.PROFILER_ENDED))
        path = place
        if not place.name.endswith(".json"):
            path = place / f"{self._pid}-{next(_FILE_NUMBERS)}.pt.trace.json"
        try:
            reserve(path)
            profiler.export_chrome_trace(str(path))
            results = profiler.profiler.kineto_results if self._tensors else None
            empty(profiler)
            with REAL.open(path, "rb", buffering=0) as file:  # it is read at once
                text = file.read()
            trace = parse_trace(text, source=str(path))
            if results is not None:
                trace = replace(trace, tensors=StorageNumbers(results, _base_ns(trace)))
            self.text = text if len(text) <= SMALL_BYTES else None
        except FileNotFoundError:  # torch does not report a full disk
            raise no_room(path, "torch wrote no file, as happens when the disk is full") from None
        except (OSError, TraceError) as error:
            raise no_room(path, error) from error
        if trace.cut or not trace.is_live:
            raise no_room(path, "part of it is missing")
        if trace.region is None:
            REAL.unlink(path)
            raise NotCapturedError(because(Why.NOTHING_RECORDED))
        return trace, path

    def _own_facts(self) -> Facts:
        """What the capture knows beyond its events."""
        return Facts(
            anomaly_before=True if self._anomaly else None,
            compiled_calls=self._compiled_calls.count or None,
            elsewhere=self._elsewhere,
            late_threads=self._left.late or None,
            left_threads=self._left.left or None,
        )

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
        end_restored()
        empty(self._profiler)

    def _halt(self) -> None:
        if not self._running:
            return
        self._running = False
        try:
            self.end_lines()
            if self._in_region:
                self._region.__exit__(None, None, None)
                self._in_region = False
            end(self._profiler, everywhere=self._everywhere, sound=self.aside is None)
        finally:
            disable()
            Capture.current = None
            OTHERS.ours_ended()
            OTHERS.ended_here(began_in=self._thread)
            self._undo.close()


def _base_ns(trace: Events) -> int:
    base = trace.metadata.get("baseTimeNanoseconds")  # missing before torch 2.4
    return base if isinstance(base, int) else 0
