"""Processes that each ask a question of one trace after the other, here or of a Dask cluster."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import types
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.core.errors import SettingsError, TraceError, error_line
from pytest_torchprof.core.version import __version__
from pytest_torchprof.fleet.mapping import Answer, Question, answer
from pytest_torchprof.trace.read import free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from pytest_torchprof.fleet.sources import Source


# ---- Processes of this machine.
#
# One that ends unexpectedly takes nothing with it but its trace, which is tried once more, with
# nothing beside it: the likely reason is that memory ran out.

#: What a worker needs without a trace, and a byte of a trace's text, all columns included; at most.
_BASE_BYTES, _PER_BYTE = 64 * 2**20, 2.0
#: Bytes of text in a byte of gzip; traces have 12 to 20.
_GZIP_RATIO = 20


def process_answers(
    question: Question, sources: Sequence[Source], jobs: int
) -> Iterator[tuple[int, Answer]]:
    """The place of each source and its answer, as they come from at most ``jobs`` processes."""
    # The largest first: they decide when all are done.
    waiting = sorted(range(len(sources)), key=lambda at: -_text_bytes(sources[at]))
    jobs = _that_fit(jobs, _text_bytes(sources[waiting[0]]))
    # For copies, which a worker that is killed leaves there.
    copies = any(source.remote for source in sources)
    with tempfile.TemporaryDirectory() if copies else contextlib.nullcontext() as room:
        question = question._replace(room=room)
        while waiting:
            at_work: dict[Future[Answer], int] = {}
            with _pool(jobs) as pool, contextlib.suppress(BrokenProcessPool):
                while waiting or at_work:
                    while waiting and len(at_work) < jobs:
                        with _hidden_main():
                            future = pool.submit(answer, question, sources[waiting[0]])
                        at_work[future] = waiting.pop(0)
                    for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                        yield at_work[future], _answer_of(future, sources[at_work[future]])
                        del at_work[future]
            for at in at_work.values():
                yield at, _alone(question, sources[at])


def _alone(question: Question, source: Source) -> Answer:
    """The answer of a process with nothing beside it."""
    with _pool(1) as pool:
        try:
            with _hidden_main():
                future = pool.submit(answer, question, source)
            return _answer_of(future, source)
        except BrokenProcessPool:
            return _ended(source)


def _ended(source: Source) -> Answer:
    what = f"{source.shown}: its worker ended, also with nothing beside it"
    return Answer(None, None, TraceError(what, "", "it may need more memory"))


def _text_bytes(source: Source) -> int:
    """About the size of a trace's text."""
    return source.size * (_GZIP_RATIO if source.path.suffix == ".gz" else 1)


def _that_fit(jobs: int, largest: int) -> int:
    """How many of these workers the free memory holds, each with the largest text."""
    free = free_bytes()
    fit = jobs if free is None else int(free / (_BASE_BYTES + largest * _PER_BYTE))
    return max(min(jobs, fit), 1)


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end us, and nothing more would ever come."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


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


def _answer_of(future: Any, source: Source) -> Answer:
    """What a worker has answered, also where our own code has failed there."""
    try:
        found: Answer = future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:  # noqa: BLE001 - one bad file does not end the others
        if type(error).__name__ == "KilledWorker":  # Dask's: so often as it was tried again
            return _ended(source)
        what = f"{source.shown}: internal error, please report it"
        return Answer(None, None, TraceError(what, error_line(error)))
    return found


# ---- The workers of a Dask cluster.

#: For the scheduler to answer.
_TIMEOUT_S = 15
#: Of a trace whose worker ended.
_RETRIES = 2


def dask_answers(
    address: str, question: Question, sources: Sequence[Source]
) -> Iterator[tuple[int, Answer]]:
    """The place of each source and its answer, as they come from the cluster's workers.

    The traces of a worker that ends go to the others.

    Raises:
        SettingsError: no Dask, no such cluster or no workers, or workers of other versions.
    """
    try:
        import distributed
    except ImportError as error:
        raise SettingsError(
            "--dask needs dask.distributed", str(error), "pip install 'pytest-torchprof[dask]'"
        ) from None
    logging.disable()  # of a connection that is lost or closed: we say what matters
    try:
        client: Any = distributed.Client(address, timeout=_TIMEOUT_S, set_as_default=False)
    except Exception as error:  # noqa: BLE001 - each protocol raises its own
        logging.disable(logging.NOTSET)
        text = " ".join(str(error).split()) or type(error).__name__
        raise SettingsError(
            f"--dask {address}: no scheduler answers", text, "start one: dask scheduler"
        ) from None
    try:
        _check(client, address)
        asked = [question] * len(sources)
        futures = client.map(answer, asked, sources, pure=False, retries=_RETRIES)
        places = {future: at for at, future in enumerate(futures)}
        for future in distributed.as_completed(futures, loop=client.loop):
            if not future.cancelled():
                at = places.pop(future)
                yield at, _answer_of(future, sources[at])
        if places:  # its connection is lost, and with it all that was to come
            step = "start it and run this again"
            raise SettingsError(f"--dask {address}: the cluster is gone", "", step)
    finally:
        client.close(timeout=_TIMEOUT_S)
        logging.disable(logging.NOTSET)


def _check(client: Any, address: str) -> None:
    """Whether there are workers that give the same answers as this process would."""
    found = client.run(_versions, on_error="return")
    # Of one that has just ended, the others take over.
    versions = {worker: one for worker, one in found.items() if not isinstance(one, OSError)}
    for error in versions.values():
        if isinstance(error, Exception):
            raise SettingsError(
                f"--dask {address}: its workers cannot import pytest_torchprof",
                f"{type(error).__name__}: {' '.join(str(error).split())}",
                "install this version there",
            )
    if not versions:
        step = f"start some: dask worker {address}"
        raise SettingsError(f"--dask {address}: the cluster has no workers", "", step)
    others = sorted(worker for worker, one in versions.items() if one != _versions())
    if others:
        raise SettingsError(
            f"--dask {address}: workers have another version of pytest-torchprof, or of numpy",
            ", ".join(others[:4]),
            "install this version there",
        )


def _versions() -> tuple[str, str]:
    return __version__, np.__version__
