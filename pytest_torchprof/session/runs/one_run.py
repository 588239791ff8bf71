"""One run of a test: what each kind of run starts, stops and passes to the gatherer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pytest_torchprof.capture.compile_events import CompileCount
from pytest_torchprof.capture.cuda_graphs import CUDA_GRAPHS
from pytest_torchprof.capture.exports import hold, passing_file
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import captures_graph
from pytest_torchprof.capture.modules import ModuleTracer
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.profiler import OWN_PROFILER, Capture
from pytest_torchprof.capture.stopwatch import Stopwatch
from pytest_torchprof.capture.watchdog import Growth
from pytest_torchprof.core.errors import CaptureError
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.session.faults import reason_for
from pytest_torchprof.session.runs.run_result import Captured, NoModules, Timed
from pytest_torchprof.trace.facts import Facts

if TYPE_CHECKING:
    from pytest_torchprof.capture.children.parent import Handover
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.session.runs.gather import Gatherer

#: A shorter one cannot record enough to fill the machine's memory.
WATCHED_CALL_NS = 100_000_000

#: Why the trace of all threads has no memory events.
_NO_MEMORY = because(Why.MEMORY_OF_THREADS)


class Run:
    """One run of the item, or one call of a measured callable."""

    def __init__(self, kind: RunKind, gatherer: Gatherer, *, first: bool) -> None:
        self.kind = kind
        self.first = first
        self.gatherer = gatherer
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self._tracer: LineTracer | None = None
        self._growth: Growth | None = None
        self._compiled = CompileCount()
        #: How many CUDA graphs were captured before it; None if nobody counts.
        self._graphs: int | None = None

    def begin(self) -> None:
        """Start what this kind of run measures."""
        begun = False
        with PATCH_GUARD:
            try:
                self._begin()
                begun = True
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.gatherer.give_up(error)
            finally:
                if not begun:  # also after a timeout or an interrupt
                    self._forget()

    def end(self, *last: Callable[[], None]) -> None:
        """Stop, pass the result to the gatherer, then call ``last``."""
        try:
            if self._watch is not None:
                self._watch.stop()
            with PATCH_GUARD:
                try:
                    self._end()
                finally:
                    self._forget(*last)
                    last = ()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.gatherer.give_up(error)
        finally:
            if last or self._watch is not None or self._capture is not None:
                self.cancel(*last)

    def cancel(self, *last: Callable[[], None]) -> None:
        """Stop without a result: the block raised, or measures a region of its own."""
        with PATCH_GUARD:
            self._forget(*last)

    @property
    def captures(self) -> bool:
        """Whether the profiler runs now."""
        return self._capture is not None

    @property
    def is_bound(self) -> bool:
        """Whether the test captures a CUDA graph, which the end of our session would break."""
        if self._capture is None or not captures_graph():
            return False
        self.gatherer.refuse(because(Why.GRAPH_CAPTURE))
        return True

    @property
    def _like(self) -> RunKind:
        """The kind of run that this one captures like: with another seed, as the one before it."""
        return self.gatherer.captured_kind if self.kind == "reseeded" else self.kind

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """A context that marks or times a lap of a named region; None if it would go unseen."""
        if self._watch is not None:
            return self._watch.lap(name)
        return self._capture.mark(name) if self._capture is not None else None

    def _begin(self) -> None:
        self._graphs = CUDA_GRAPHS.captured
        if self.kind == "numbers":
            return
        if self.kind in ("profile", "modules", "threads", "tensors", "reseeded", "lines"):
            if self.kind == "lines":
                self._tracer = LineTracer(self.gatherer.own_files, self.gatherer.plain_lines)
            elif self.kind == "modules":
                self._tracer = ModuleTracer()
            self._capture = Capture(
                threads=self.gatherer.plan.threads,
                first=self.first,
                everywhere=self._like == "threads",
                watchdog=self._is_long or self.first,
                needs=self.gatherer.rounds.needs,
                tracer=self._tracer,
                idle_kernels=self.gatherer.idle_kernels,
                frozen=self.gatherer.frozen,
                handover=self._handover if self._tells_children else None,
                # A test that may read its numbers at once, or runs only once, gets them all now.
                tensors=self._like == "tensors" or self.first or self.gatherer.asked.own_region,
            )
            self._compiled = CompileCount.now()
            self._capture.start()
        elif self.kind != "pairs":  # in which the test's own comparisons are timed
            if self.first:
                self.gatherer.rounds.watch()  # it may be the only one that is timed
            self._watch = Stopwatch(first=self.first, threads=self.gatherer.rounds.gated_threads)
            self._growth = Growth(is_long=self._is_long and not self.gatherer.rounds.needs.is_all)
            self._watch.__enter__()

    @property
    def _is_long(self) -> bool:
        return self.gatherer.longest_ns > WATCHED_CALL_NS

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.__exit__()
            result, self._watch = self._watch.result, None
            assert result is not None  # noqa: S101 - the stopwatch was just stopped
            self._end_growth()
            recorded = CUDA_GRAPHS.captured_since(self._graphs)
            self.gatherer.take(Timed(self.kind, result, first=self.first, recorded=recorded))
        elif self._capture is not None:
            self.gatherer.take(self._captured(self._capture))

    def _end_growth(self) -> None:
        growth, self._growth = self._growth, None
        if growth is not None:
            self.gatherer.rounds.needed(growth.end())

    def _captured(self, capture: Capture) -> Captured | NoModules:
        capture.end_region()
        may_compile = self.kind in ("profile", "reseeded")
        compiled = may_compile and CompileCount.now().compiled_since(self._compiled)
        facts = self.gatherer.facts()
        no_memory = _NO_MEMORY if self._like == "threads" else None
        facts |= Facts(packages=capture.packages.calls, no_memory=no_memory)
        try:
            with passing_file(self.gatherer.folder, small=capture.is_small) as place:
                trace, path = capture.stop(place, facts)
                file = hold(path, capture.text)
        except CaptureError as error:
            if self.kind != "modules":
                raise
            return NoModules(reason_for(error))
        tracer = self._tracer
        return Captured(
            self.kind,
            trace,
            file,
            first=self.first,
            compiled=compiled,
            recorded=may_compile and not compiled and CUDA_GRAPHS.captured_since(self._graphs),
            started_threads=capture.started_threads,
            other_threads=capture.other_threads,
            marks=(tracer.lines, tracer.modules) if tracer is not None and tracer.usable else None,
            doubted=tracer.doubted if tracer is not None else frozenset(),
            gap=tracer.gap if tracer is not None else None,
            unseen=tracer.unseen if tracer is not None else frozenset(),
            children=capture.take_children(),
        )

    @property
    def _tells_children(self) -> bool:
        """Whether processes that the test starts capture themselves; never in the first run."""
        return not self.first and self.kind in ("profile", "threads", "tensors", "lines")

    def _handover(self) -> Handover:
        from pytest_torchprof.capture.children.parent import Handover

        return Handover(lambda: self.gatherer.job(locates=self.kind == "lines"))

    def _forget(self, *last: Callable[[], None]) -> None:
        """Close everything that is open, even if closing one fails."""
        watch, self._watch = self._watch, None
        capture, self._capture = self._capture, None
        closing: list[Callable[[], None]] = [watch.__exit__] if watch is not None else []
        closing += [capture.abandon] if capture is not None else []
        closing += [self._end_growth] if self._growth is not None else []
        for close in (*closing, *last):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.gatherer.give_up(error)

    def saw_profiler(self) -> None:
        """End our profiler session, because the test is about to start one."""
        self.gatherer.refuse(OWN_PROFILER)
        if self._capture is not None:
            with PATCH_GUARD:
                self._capture.step_aside()
