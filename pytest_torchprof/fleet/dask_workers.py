"""The workers of a Dask cluster, which each ask a question of one trace after the other."""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_torchprof.core.errors import SettingsError, TraceError
from pytest_torchprof.fleet.cache import code_digest, default_folder
from pytest_torchprof.fleet.mapping import Answer, Question, answer
from pytest_torchprof.fleet.workers import fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_torchprof.fleet.sources import Source

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
