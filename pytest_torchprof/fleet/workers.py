"""Processes that each ask a question of one trace after the other, here or elsewhere."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import secrets
import signal
import sys
import threading
import time
import types
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_torchprof.core.errors import SettingsError, TorchprofError, TraceError, error_line
from pytest_torchprof.core.files import opened
from pytest_torchprof.fleet.mapping import Answer, Question, answer, code_digest, default_folder
from pytest_torchprof.trace.read import free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from pytest_torchprof.fleet.sources import Source


# ---- How much memory a trace needs, and how much there is.

#: A worker's memory without a trace: Python, numpy, and our modules.
BASE_BYTES = 64 * 2**20
#: Memory per byte of text until a worker has told its own, as ``python -m benchmarks fleet``
#: measures it: all columns, and what a question derives from them.
PER_BYTE = 2.0
#: Of the free memory, so much is used.
_SHARE = 0.9
#: Text per byte of gzip where the size of the text is unknown; traces have 12 to 20.
_GZIP_RATIO = 20
_GZIP = b"\x1f\x8b"


def text_bytes(source: Source) -> int:
    """The size of a trace's text: of gzip, what its last four bytes say if they can.

    They hold the size modulo 4 GiB, see RFC 1952, and that of the last member only.
    """
    if source.remote:
        return source.size * (_GZIP_RATIO if source.address.partition("::")[0][-3:] == ".gz" else 1)
    path = Path(source.address)
    try:
        if not path.is_file():
            return source.size
        with opened(path) as file:
            if file.read(2) != _GZIP:
                return source.size
            file.seek(-4, 2)
            said = int.from_bytes(file.read(4), "little")
    except (OSError, ValueError):
        return source.size
    sure = source.size < said and source.size * _GZIP_RATIO < 2**32
    return said if sure else source.size * _GZIP_RATIO


def peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not tell."""
    with (
        suppress(OSError, ValueError, StopIteration),
        Path("/proc/self/status").open(encoding="ascii") as file,
    ):
        # What `resource` says includes the parent's at the time of the fork.
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Budget:
    """Memory for the traces that are read at a time.

    ``needs`` is what a trace will need: the base, and its text times the largest factor that a
    worker has had until now.
    """

    def __init__(self, free: int | None = None) -> None:
        free = free_bytes() if free is None else free
        self._room = None if free is None else int(free * _SHARE)
        self._used: dict[int, int] = {}
        self._factor = PER_BYTE

    def needs(self, text: int) -> int:
        """Bytes that a worker needs for a trace with a text of this size."""
        return BASE_BYTES + int(text * self._factor)

    def allows(self, text: int) -> bool:
        """Whether a trace fits beside those that are being read; the only one always may try."""
        if not self._used or self._room is None:
            return True
        return sum(self._used.values()) + self.needs(text) <= self._room

    def take(self, task: int, text: int) -> None:
        """This task reads a trace of this size."""
        self._used[task] = self.needs(text)

    def give_back(self, task: int, text: int = 0, peak: int = 0) -> None:
        """The task has ended; its worker has had ``peak`` bytes at most."""
        self._used.pop(task, None)
        if text > BASE_BYTES:  # of small traces, the base is all there is to see
            self._factor = max(self._factor, (peak - BASE_BYTES) / text)


# ---- Spawned processes of this machine that each ask a question of one trace after the other.
#
# A worker that ends unexpectedly takes nothing with it but its trace, which is tried once more,
# with nothing beside it: the likely reason is that memory ran out.

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


# ---- The workers of a Dask cluster, which each ask a question of one trace after the other.

T = TypeVar("T")

#: For the scheduler to answer.
_TIMEOUT_S = 15
#: For all workers to import this package, from a network file system perhaps.
_IMPORT_S = 60.0
#: Of a trace whose worker ended.
_RETRIES = 2
#: How long without an answer until we look whether there are workers.
_LOOK_S = 5.0


def dask_answers(
    address: str, question: Question, sources: Sequence[Source]
) -> Iterator[tuple[int, Answer]]:
    """The place of each source and its answer, as they come from the cluster's workers.

    The traces of a worker that ends go to the others.

    Raises:
        SettingsError: no Dask, no such cluster or no workers, or workers with other code than ours.
    """
    distributed = _imported()
    with _quiet(), _connected(distributed, address) as client:
        _check(client, address)
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        places = {}
        run = secrets.token_hex(8)  # the same trace may be asked again
        for at, source in enumerate(sources):
            key = f"torchprof-{run}-{at}"
            future = client.submit(ask, question, source, key=key, retries=_RETRIES)
            places[future] = at
            future.add_done_callback(done.put)
        while places:
            try:
                future = done.get(timeout=_LOOK_S)
            except queue.Empty:
                _check_alive(client, address)
                continue
            try:
                found = _answer_of(future, sources[places[future]])
            except TimeoutError:  # still on its way, or its worker ended: another one asks again
                _check_alive(client, address)
                done.put(future)
                continue
            yield places.pop(future), found


def _answer_of(future: Any, source: Source) -> Answer:
    try:
        found: Answer = future.result(timeout=_LOOK_S)
    except Exception as error:  # noqa: BLE001 - that of a worker
        kind = type(error).__name__  # asyncio's timeout is of another type until Python 3.11
        if kind == "TimeoutError" and future.status != "error":
            raise TimeoutError from None
        if kind != "KilledWorker":
            return fault(source, error)
        what = f"{source.shown}: its workers ended, one after the other"
        return Answer(None, None, TraceError(what, "", "it may need more memory"))
    return found


def _check_alive(client: Any, address: str) -> None:
    """Whether there is somebody who may still answer.

    Raises:
        SettingsError: the scheduler is gone, or all workers are, and none came for a while.
    """
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            ask_workers = partial(client.scheduler_info, n_workers=-1)
            if client.status == "running" and _within(_TIMEOUT_S, ask_workers)["workers"]:
                return
        time.sleep(0.2)
    step = "what was found is in the cache: start it and run this again"
    raise SettingsError(f"--dask {address}: the cluster is gone, or its workers are", "", step)


def _within(seconds: float, call: Callable[..., T], *arguments: Any) -> T:
    """What a call brings that waits for ever if its other end stops without a word.

    Raises:
        TimeoutError: it has not come in this time.
    """
    answers: queue.SimpleQueue[tuple[T, None] | tuple[None, Exception]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(*arguments), None))
        except Exception as error:  # noqa: BLE001 - raised below
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]


def ask(question: Question, source: Source) -> Answer:
    """Answer on a worker, with the cache of the user that it runs as."""
    if question.cache is not None:
        question = question._replace(cache=default_folder())
    return answer(question._replace(room=None), source)


def _imported() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise SettingsError(
            "--dask needs dask.distributed", str(error), "pip install 'pytest-torchprof[dask]'"
        ) from None
    return distributed


@contextlib.contextmanager
def _connected(distributed: Any, address: str) -> Iterator[Any]:
    connect = partial(distributed.Client, address, timeout=_TIMEOUT_S, set_as_default=False)
    try:
        client = _within(2 * _TIMEOUT_S, connect)
    except Exception as error:  # noqa: BLE001 - each protocol raises its own
        text = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(
            f"--dask {address}: no scheduler answers", text, "start one: dask scheduler"
        ) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            _within(_TIMEOUT_S, client.close, _TIMEOUT_S)


def _check(client: Any, address: str) -> None:
    """Whether there are workers that give the same answers as this process would."""
    try:
        digests = _within(_IMPORT_S, client.run, code_digest)
    except TimeoutError as error:
        step = f"look at them, or start others: dask worker {address}"
        raise SettingsError(f"--dask {address}: its workers are silent", str(error), step) from None
    except Exception as error:  # noqa: BLE001 - that of a worker
        text = " ".join(str(error).split())
        raise SettingsError(
            f"--dask {address}: its workers cannot import pytest_torchprof",
            f"{type(error).__name__}: {text}",
            "install this version there",
        ) from None
    if not digests:
        step = f"start some: dask worker {address}"
        raise SettingsError(f"--dask {address}: the cluster has no workers", "", step)
    others = sorted(worker for worker, digest in digests.items() if digest != code_digest())
    if others:
        raise SettingsError(
            f"--dask {address}: workers have another version of pytest-torchprof, or of numpy",
            ", ".join(others[:4]),
            "install this version there",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines of a connection that is lost or closed: we say what matters."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
