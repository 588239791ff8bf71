"""Spawned processes of this machine that each ask a question of one trace after the other.

A worker that ends unexpectedly takes nothing with it but its trace, which is tried once more, with
nothing beside it: the likely reason is that memory ran out.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.errors import TorchprofError, TraceError, error_line
from pytest_torchprof.fleet.mapping import Answer, Question, answer
from pytest_torchprof.fleet.memory import Budget, peak_bytes, text_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from pytest_torchprof.fleet.sources import Source

#: Of a trace whose worker ended.
_TRIES = 2
_READY = "ready"
#: How long a worker may take to end by itself.
_END_S = 5.0


class _Sent(NamedTuple):
    """What a worker sends back."""

    answer: Answer
    peak_bytes: int


def work(connection: Connection, question: Question) -> None:
    """Answer until the other side closes: the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        connection.send(_READY)
        while True:
            source = connection.recv()
            connection.send(_Sent(_any_answer(question, source), peak_bytes()))


def _end_with_parent() -> None:
    """A parent that was killed cannot end us, and what we read may never come."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _any_answer(question: Question, source: Source) -> Answer:
    try:
        return answer(question, source)
    except Exception as error:  # noqa: BLE001 - one bad file does not end the others
        return fault(source, error)


def fault(source: Source, error: Exception) -> Answer:
    """The answer for a trace at which our own code failed."""
    what = f"{source.shown}: internal error, please report it"
    return Answer(None, None, TraceError(what, error_line(error)))


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    task: int | None = None
    started: bool = False


class Workers:
    """At most ``jobs`` processes, and as many as the memory allows."""

    def __init__(self, question: Question, sources: Sequence[Source], jobs: int) -> None:
        self._question, self._sources, self._jobs = question, sources, jobs
        self._budget = Budget()
        self._texts = [text_bytes(source) for source in sources]
        # The largest first: they decide when all are done.
        self._waiting = sorted(range(len(sources)), key=lambda at: -self._texts[at])
        self._alone: list[int] = []
        self._tries = [0] * len(sources)
        self._workers: list[_Worker] = []

    def answers(self) -> Iterator[tuple[int, Answer]]:
        """The place of each source and its answer, as they come.

        Raises:
            TorchprofError: workers end before they begin.
        """
        try:
            self._start()
            while any(worker.task is not None for worker in self._workers):
                connections = [worker.connection for worker in self._workers]
                for ready in multiprocessing.connection.wait(connections):
                    worker = next(w for w in self._workers if w.connection is ready)
                    yield from self._heard(worker)
                self._start()
        finally:
            self._end()

    def _heard(self, worker: _Worker) -> Iterator[tuple[int, Answer]]:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            yield from self._ended(worker)
            return
        if message == _READY:
            worker.started = True
            return
        task, worker.task = worker.task, None
        assert task is not None  # noqa: S101 - a worker only answers
        self._budget.give_back(task, self._texts[task], message.peak_bytes)
        yield task, message.answer

    def _ended(self, worker: _Worker) -> Iterator[tuple[int, Answer]]:
        worker.process.join(_END_S)
        self._workers.remove(worker)
        worker.connection.close()
        how = _how_it_ended(worker.process.exitcode)
        if not worker.started:
            raise TorchprofError(
                "the workers of --jobs cannot start", how, "run it without --jobs to see why"
            )
        if (task := worker.task) is None:
            return
        self._budget.give_back(task)
        self._tries[task] += 1
        if self._tries[task] < _TRIES:
            self._alone.append(task)
            return
        what = f"{self._sources[task].shown}: its worker ended {self._tries[task]} times"
        yield task, Answer(None, None, TraceError(what, how, "it may need more memory"))

    def _start(self) -> None:
        """Give tasks to idle workers, and start workers that are lacking."""
        while (task := self._next()) is not None:
            idle = next((w for w in self._workers if w.task is None), None)
            worker = self._started() if idle is None else idle
            worker.task = task
            self._budget.take(task, self._texts[task])
            with contextlib.suppress(OSError):  # it has ended: reading from it will tell
                worker.connection.send(self._sources[task])

    def _next(self) -> int | None:
        busy = sum(worker.task is not None for worker in self._workers)
        if busy >= self._jobs:
            return None
        if self._waiting and self._budget.allows(self._texts[self._waiting[0]]):
            return self._waiting.pop(0)
        return self._alone.pop(0) if self._alone and not busy else None

    def _started(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._question), daemon=True)
        with _hidden_main():
            process.start()
        theirs.close()  # so that the end of the process ends the connection
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _end(self) -> None:
        for worker in self._workers:
            worker.connection.close()
            if worker.task is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_END_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """A process that is spawned meanwhile does not import the main module.

    It needs nothing of it: a worker does not hold the parsers of the command, and a user's script
    needs no guard against being run again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _how_it_ended(code: int | None) -> str:
    """An exit status in words.

    >>> _how_it_ended(-9), _how_it_ended(1)
    ('killed by SIGKILL', 'with status 1')
    """
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"with status {code}"
