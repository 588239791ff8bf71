"""The runs of one test: what each measures, and hands to the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from pytest_torchprof.capture.compilation import CompileCount
from pytest_torchprof.capture.exports import hold, passing_file
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.modules import ModuleTracer
from pytest_torchprof.capture.profiler import OWN_PROFILER, Capture, sees_threads
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.capture.stopwatch import Stopwatch
from pytest_torchprof.core.errors import CaptureError
from pytest_torchprof.places.located import Located
from pytest_torchprof.session.timed_rounds import LONG_CALL_NS
from pytest_torchprof.trace.kinds import Kind as EventKind

if TYPE_CHECKING:
    from pytest_torchprof.session.gather import Recorder
    from pytest_torchprof.session.plan import Kind
    from pytest_torchprof.trace.events import Trace

#: A shorter one cannot record enough to fill the machine's memory.
WATCHED_CALL_NS = 100_000_000

#: Why the trace of all threads has no memory events.
_NO_MEMORY = "torch records no memory while it profiles all threads, and this test works in several"


class Run:
    """One run of the item, or one call of a measured callable."""

    def __init__(self, kind: Kind, recorder: Recorder, *, first: bool) -> None:
        self.kind = kind
        self.first = first
        self.recorder = recorder
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self._tracer: LineTracer | None = None
        self._compiled = CompileCount()

    def begin(self) -> None:
        """Start what this kind of run measures."""
        begun = False
        with SHELTER:
            try:
                self._begin()
                begun = True
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.recorder.refuse(self.recorder.broke(error))
            finally:
                if not begun:  # or a time limit, an interrupt
                    self._forget()

    def end(self, *last: Callable[[], None]) -> None:
        """Stop, and hand what was measured to the recorder; then call these."""
        try:
            if self._watch is not None:
                self._watch.stop()
            with SHELTER:
                try:
                    self._end()
                finally:
                    self._forget(*last)
                    last = ()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.recorder.refuse(self.recorder.broke(error))
        finally:
            if last or self._watch is not None or self._capture is not None:
                self.cancel(*last)

    def cancel(self, *last: Callable[[], None]) -> None:
        """Stop without a result: the block raised, or measures a region of its own."""
        with SHELTER:
            self._forget(*last)

    def _begin(self) -> None:
        if self.kind in ("profile", "modules", "threads", "tensors", "lines"):
            if self.kind == "lines":
                self._tracer = LineTracer(self.recorder.own_files)
            elif self.kind == "modules":
                self._tracer = ModuleTracer()
            self._capture = Capture(
                threads=self.recorder.plan.threads,
                first=self.first,
                everywhere=self.kind == "threads",
                watchdog=self.recorder.longest_ns > WATCHED_CALL_NS,
                tracer=self._tracer,
                # Of a test that may look at its numbers at once, or has no other run, all is known.
                tensors=self.kind == "tensors" or self.first or self.recorder.asked.own_region,
            )
            self._compiled = CompileCount.now()
            self._capture.start()
        else:
            if self.first:
                self.recorder.rounds.watch()  # it may be the only one that is timed
            self._watch = Stopwatch(first=self.first, threads=self.recorder.rounds.gated_threads)
            self._watch.__enter__()

    def _end(self) -> None:
        recorder = self.recorder
        if self._watch is not None:
            self._watch.__exit__()
            result, self._watch = self._watch.result, None
            assert result is not None  # noqa: S101 - the stopwatch was just stopped
            recorder.longest_ns = max(recorder.longest_ns, result.wall_ns)
            timed = "round" in recorder.plan.kinds
            long = result.wall_ns > LONG_CALL_NS and not recorder.rounds and timed
            if self.kind == "round" or long:
                recorder.rounds.add(result)
            if self.first or recorder.asked.complete:
                recorder.compilation = CompileCount.now().since(recorder.compiled)
        elif self._capture is not None:
            capture = self._capture
            capture.end_region()
            if self.kind == "profile":
                recorder.profiled += 1
                compiled = CompileCount.now().compiled_since(self._compiled)
                recorder.compiled_late = compiled and recorder.profiled == 1
            if self.first:
                recorder.compilation = CompileCount.now().since(recorder.compiled)
            facts = recorder.facts()
            facts["packages"] = capture.packages.calls
            if self.kind == "threads":
                facts["no_memory"] = _NO_MEMORY
            try:
                with passing_file(recorder.folder, small=capture.is_small) as place:
                    trace, path = capture.stop(place, facts)
                    file = hold(path, capture.text)
            except CaptureError as error:
                if self.kind != "modules":
                    raise
                recorder.modules_gap = str(error)  # the test's other numbers are there
                return
            self._hand_over(trace, file, capture)

    def _hand_over(self, trace: Trace, file: IO[bytes], capture: Capture) -> None:
        recorder = self.recorder
        if self.kind == "profile":
            self._keep(trace, file, capture)
        elif self.kind == "threads":
            self._choose(trace, file)
        elif self.kind == "tensors":
            self._exchange(trace, file)
        else:
            file.close()
            assert self._tracer is not None  # noqa: S101 - both kinds have one
            if self.kind == "modules":
                recorder.modules_gap = self._tracer.gap
                recorder.modules = None if self._tracer.gap else trace
            else:
                recorder.lines_gap = self._tracer.gap
                if self._tracer.usable:
                    lines, modules = self._tracer.lines, self._tracer.modules
                    recorder.located = Located(trace, lines, modules)

    def _keep(self, trace: Trace, file: IO[bytes], capture: Capture) -> None:
        """The trace, unless there were other threads: then a run that sees them must confirm it."""
        recorder = self.recorder
        recorder.forget()  # that of a profiled run that had to compile
        again = recorder.compiled_late  # so the threads are the compiler's, and this is not kept
        if again or not (capture.started_threads or capture.other_threads):
            recorder.trace, recorder.file = trace, file
        elif self.first:
            recorder.trace, recorder.file = trace, file
            if capture.started_threads:
                recorder.refuse(
                    "the test starts threads, and only another run can count what they do: "
                    "give it a warm-up run"
                )
        elif sees_threads():
            recorder.one_thread = trace, file
        elif capture.started_threads:
            recorder.file = file
            recorder.refuse("the test starts threads, and this torch cannot profile them")
        else:
            recorder.trace, recorder.file = trace, file

    def _choose(self, trace: Trace, file: IO[bytes]) -> None:
        """The trace of all threads where it holds more than that of one, which has memory."""
        recorder = self.recorder
        assert recorder.one_thread is not None  # noqa: S101 - this run was asked for because of it
        other, other_file = recorder.one_thread
        recorder.one_thread = None
        if _operators(trace) <= _operators(other):
            trace, file, other_file = other, other_file, file
        recorder.trace, recorder.file = trace, file
        other_file.close()

    def _exchange(self, trace: Trace, file: IO[bytes]) -> None:
        """The trace that knows which tensor is which in place of one that does not."""
        recorder = self.recorder
        assert recorder.trace is not None  # noqa: S101 - this run was asked for because of it
        if _operators(trace) != _operators(recorder.trace):
            file.close()  # of a test that does another thing each time
            return
        if recorder.file is not None:
            recorder.file.close()
        recorder.trace, recorder.file = trace, file

    def _forget(self, *last: Callable[[], None]) -> None:
        """Close what is open, each whatever becomes of the other."""
        watch, self._watch = self._watch, None
        capture, self._capture = self._capture, None
        closing: list[Callable[[], None]] = [watch.__exit__] if watch is not None else []
        closing += [capture.abandon] if capture is not None else []
        for close in (*closing, *last):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.recorder.refuse(self.recorder.broke(error))

    def saw_profiler(self) -> None:
        """The test is about to start a profiler session: ours gives way."""
        self.recorder.refuse(OWN_PROFILER)
        if self._capture is not None:
            with SHELTER:
                self._capture.step_aside()


def _operators(trace: Trace) -> int:
    return int((trace.selection & trace.is_kind(EventKind.OP)).sum())
