"""A collection waits for gloo's threads, which may wait for the lock that a collection holds."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest

from pytest_torchprof.capture import clock
from pytest_torchprof.capture.patches import REAL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are told by /proc")


def test_it_waits_until_gloos_threads_are_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of this name works, and then waits, as gloo's does."""
    monkeypatch.setattr(clock, "_MOST_S", 60.0)  # a busy machine lets it run late
    named, work, over = threading.Event(), threading.Event(), threading.Event()
    ended: list[float] = []

    def run() -> None:
        ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)
        named.set()
        work.wait()
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        ended.append(time.monotonic())
        over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert named.wait(10)
        work.set()
        clock.collect(0)
        assert ended
    finally:
        over.set()
        thread.join()


def test_it_does_not_wait_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REAL, "sleep", pytest.fail)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        clock.collect(0)
        assert str(thread.native_id) in clock._OTHERS
    finally:
        done.set()
        thread.join()


def test_a_thread_that_never_rests_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_MOST_S", 0.005)
    monkeypatch.setattr(clock, "_sleeps", lambda _: False)
    monkeypatch.setattr(clock, "_gloo_tasks", lambda: ["1"])
    began = time.monotonic()
    clock.collect(0)
    assert time.monotonic() - began >= 0.005
