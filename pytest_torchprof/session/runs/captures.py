"""The traces of a test's profiled runs: which one counts, and their files."""

from __future__ import annotations

import gzip
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from pytest_torchprof.capture.lines import MOST_MARKS
from pytest_torchprof.capture.torch_sessions import sees_threads
from pytest_torchprof.core.files import replacing
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.places.located import Located
from pytest_torchprof.places.markers import lines_with_events
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.kinds import Kind as EventKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_torchprof.capture.children.parent import ChildTrace
    from pytest_torchprof.session.plan import Plan, RunKind
    from pytest_torchprof.session.runs.run_result import Captured
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.processes import Process

_STARTS_THREADS = because(Why.STARTS_THREADS)
_UNTOLD = because(Why.NOTHING_TOLD)
_NO_THREADS = because(Why.THREADS_NOT_PROFILED)
#: The profiled runs after which another one may be wanted: one compiles, the next one records.
_MOST_UNSETTLED = 2


class Captures:
    """Takes traces, chooses among them, and closes their files."""

    def __init__(self) -> None:
        #: The trace that counts.
        self.trace: Events | None = None
        self._file: IO[bytes] | None = None
        #: The traces of processes that the run of the trace that counts has started.
        self.children: tuple[ChildTrace, ...] = ()
        self._processes: tuple[tuple[ChildTrace, ...], tuple[Process, ...]] | None = None
        #: A trace of one thread, from a run in which several threads worked.
        self._one_thread: Captured | None = None
        self._profiled = 0
        #: The last call without the profiler captured CUDA graphs.
        self._calls_record = False
        #: The kind of run that it is of.
        self.kind: RunKind = "profile"
        #: A trace of a run with another seed.
        self.reseeded: Events | None = None
        #: How many launches of the profiled run lack their kernels.
        self.lost_kernels = 0
        #: The profiled run compiled, so another run must show what the compiled code does; or its
        #: kernels were lost, which another run may record.
        self.wants_another = False
        #: A trace with modules marked, or why there is none.
        self.modules: Events | None = None
        self.modules_gap: Reason | None = None
        #: Classes of modules that may have run unmarked in it.
        self.unseen_modules: frozenset[str] = frozenset()
        #: The source lines, or why they are missing or incomplete.
        self.located: Located | None = None
        self.lines_gap: Reason | None = None
        #: The same of processes that the test has started, by label.
        self.located_processes: Mapping[str, Located] = {}
        #: Lines in which nothing runs, if only a run that does not mark them locates the others.
        self.plain_lines: frozenset[str] | None = None

    @property
    def has_file(self) -> bool:
        """Whether there is something to `export`."""
        return self._file is not None

    @property
    def wants_threads(self) -> bool:
        """Whether a run that sees all threads must decide which trace counts."""
        return self._one_thread is not None

    def take(self, brought: Captured) -> Reason | None:
        """Take a trace; return why it cannot be used, if so."""
        if brought.kind == "profile":
            return self._take_profile(brought)
        if brought.kind == "threads":
            self._choose(brought)
        elif brought.kind == "tensors":
            self._exchange(brought)
        elif brought.kind == "reseeded":
            _close(brought)
            # One that compiles does what no later run of the same seed does.
            unsettled = brought.compiled or brought.recorded
            self.reseeded = None if unsettled else brought.trace
        else:
            _close(brought)
            if brought.kind == "modules":
                self.no_modules(brought.gap)
                self.modules = None if brought.gap else brought.trace
                self.unseen_modules = brought.unseen
            else:
                self._locate(brought)
        return None

    def note_call(self, *, recorded: bool) -> None:
        """Note whether a call without the profiler captured CUDA graphs."""
        self._calls_record = recorded

    def processes(self, plan: Plan) -> tuple[Process, ...]:
        """The processes of the test beside its own, and what the rules find there, found once."""
        if not self.children:
            return ()
        if self._processes is None or self._processes[0] is not self.children:
            from pytest_torchprof.session.runs.started import processes_of

            self._processes = (
                self.children,
                processes_of(self.children, plan.rules, plan.thresholds),
            )
        return self._processes[1]

    def join(self, others: tuple[ChildTrace, ...]) -> None:
        """Take the traces of the other ranks of a job."""
        self.children = (*self.children, *others)

    def tell_module_calls(self) -> None:
        """Exchange the trace for one that tells calls of modules, by the run that marked them."""
        if self.trace is not None and self.located is not None:
            calls = self.located.module_calls(self.trace)
            self.trace = replace(self.trace, module_calls=calls)

    def note_untold(self) -> None:
        """Note that no run told what rules ask for."""
        if self.trace is not None:
            self.trace = replace(self.trace, untold=_UNTOLD)

    def no_modules(self, gap: Reason | None) -> None:
        """Note why modules are not known."""
        self.modules_gap = gap

    def no_lines(self, gap: Reason | None) -> None:
        """Note why lines are missing or incomplete."""
        self.lines_gap = gap

    def export(self, target: Path) -> None:
        """Write the trace's file, compressed; a test's patches may be in place.

        Raises:
            OSError: it cannot be written.
        """
        assert self._file is not None  # noqa: S101 - the caller has looked
        self._file.seek(0)
        with (
            replacing(target) as file,
            gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
        ):
            shutil.copyfileobj(self._file, packed)

    def forget(self) -> None:
        """Release memory and files."""
        one_thread = self._one_thread
        files = [self._file, *(_files(one_thread) if one_thread is not None else ())]
        files += [one.file for one in self.children]
        self.children, self._processes = (), None
        self.located_processes = {}
        self.trace = self.modules = self._one_thread = self._file = self.located = None
        self.reseeded = None
        for file in files:
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _take_profile(self, brought: Captured) -> Reason | None:
        """Use the trace, unless there were other threads, which only another run can record."""
        self._profiled += 1
        self.lost_kernels = max(self.lost_kernels, _lost_kernels(brought.trace))
        again = brought.compiled or (self.lost_kernels > 0 and not brought.first)
        # What is compiled anew with mode="reduce-overhead" is recorded by the run after that.
        late = brought.recorded and not (brought.first or self._calls_record)
        late = late and self._profiled <= _MOST_UNSETTLED
        self.wants_another = late or (again and self._profiled == 1)
        self.forget()  # the trace of a profiled run that compiled
        threads = brought.started_threads or brought.other_threads
        # After a late compilation, the threads are the compiler's, and the trace is replaced.
        if threads and not self.wants_another and not brought.first:
            if sees_threads():
                self._one_thread = brought
                return None
            if brought.started_threads:
                self._file = brought.file  # it can still be exported
                for one in brought.children:
                    one.file.close()
                return _NO_THREADS
        self._use(brought, "profile")
        alone = brought.first and not self.wants_another
        return _STARTS_THREADS if alone and brought.started_threads else None

    def _choose(self, brought: Captured) -> None:
        """Choose the trace of all threads if it has more operators; the other one has memory.

        If a thread that was left is only seen in one of them, that one.
        """
        other, self._one_thread = self._one_thread, None
        assert other is not None  # noqa: S101 - this run was asked for because of it
        partial = _is_partial(brought.trace), _is_partial(other.trace)
        fewer = _operators(brought.trace) <= _operators(other.trace)
        if partial == (False, True) or (partial[0] == partial[1] and fewer):
            brought, other = other, brought
        self._use(brought)
        if brought.kind == "threads":
            self._keep_estimate(other.trace)
        _close(other)

    def _keep_estimate(self, alone: Events) -> None:
        """Keep the peak of the trace with memory, if other threads only worked on parts of what
        its thread called, as torch's own do.
        """
        if self.trace is None or "estimated_cuda_bytes" not in (self.trace.facts.asked or ()):
            return
        from pytest_torchprof.analysis.estimated_memory import others_only_help
        from pytest_torchprof.verdict.estimates import estimated_cuda_bytes

        peak = estimated_cuda_bytes(alone) if others_only_help(self.trace) else None
        if isinstance(peak, int):
            noted = {**self.trace.metadata[FACTS_KEY], "estimated_cuda_bytes": peak}
            metadata = {**self.trace.metadata, FACTS_KEY: noted}
            self.trace = replace(self.trace, metadata=metadata)

    def _locate(self, brought: Captured) -> None:
        """Locate by the run's markers, or note which lines another run need not mark.

        Events have the right line if none was right within a line that lacked markers; all that
        is around them is known if none was within at any depth.
        """
        if self.located is not None and (brought.gap is not None or brought.marks is None):
            return  # the first of two runs knows more
        self.no_lines(brought.gap)
        if brought.marks is None:
            return
        lines, modules = brought.marks
        doubted = brought.doubted
        calling, around = lines_with_events(brought.trace) if doubted else (doubted, doubted)
        if doubted & around:
            plain = doubted - around
            self.plain_lines = frozenset(line for n in plain if (line := lines[n]) is not None)
        if doubted & calling:
            self.no_lines(because(Why.TOO_MANY_LINES, most=MOST_MARKS))
        else:
            self.located = Located(brought.trace, lines, modules)
        if brought.children:
            from pytest_torchprof.session.runs.started import located_by_label

            self.located_processes = located_by_label(brought.children)

    def _exchange(self, brought: Captured) -> None:
        """Replace the trace by one that identifies tensors."""
        assert self.trace is not None  # noqa: S101 - this run was asked for because of it
        if _operators(brought.trace) != _operators(self.trace) or _is_partial(self.trace):
            _close(brought)  # the test does something different each time
            return
        if self._file is not None:
            self._file.close()
        for one in self.children:
            one.file.close()
        self._use(brought)

    def _use(self, brought: Captured, kind: RunKind | None = None) -> None:
        self.trace, self._file, self.children = brought.trace, brought.file, brought.children
        self.kind = kind or brought.kind


def _files(brought: Captured) -> tuple[IO[bytes], ...]:
    """Its own, and those of the processes that it started."""
    return brought.file, *(one.file for one in brought.children)


def _close(unused: Captured) -> None:
    for file in _files(unused):
        file.close()


def _is_partial(trace: Events) -> bool:
    from pytest_torchprof.analysis.work_elsewhere import work_elsewhere

    return trace.once(work_elsewhere) is not None


def _lost_kernels(trace: Events) -> int:
    from pytest_torchprof.analysis.lost_launches import lost_launches

    return trace.once(lost_launches)[1]


def _operators(trace: Events) -> int:
    return int((trace.selection & trace.is_kind(EventKind.OP)).sum())
