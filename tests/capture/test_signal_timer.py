"""Time limits of blocks within blocks: the one that is due first rings, and no other is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_torchprof.capture import limits
from pytest_torchprof.capture.limits import Limited, SignalTimer

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX has timers")


class Outer(BaseException):
    pass


class Inner(BaseException):
    pass


@pytest.fixture(params=["own", "alarm"], autouse=True)
def _timers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With a timer of our own, and where there is none."""
    if request.param == "alarm":
        monkeypatch.setattr(limits, "_TIMERS", None)
    elif limits._TIMERS is None:
        pytest.skip("this system has no timers of a process's own")
    yield
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_REAL)


def test_a_block_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(Inner), Limited(0.05, Inner):
        time.sleep(10)
    assert time.monotonic() - began < 5


def test_an_inner_limit_does_not_end_the_outer_one() -> None:
    def block() -> None:
        with pytest.raises(Inner), Limited(0.05, Inner):
            time.sleep(10)
        time.sleep(10)

    with pytest.raises(Outer), Limited(0.3, Outer):
        block()


def test_time_within_an_inner_block_counts_for_the_outer_one() -> None:
    def block() -> None:
        with Limited(0.39, Inner):
            time.sleep(0.3)
        time.sleep(10)

    began = time.monotonic()
    with pytest.raises(Outer), Limited(0.4, Outer):
        block()
    assert time.monotonic() - began < 5


def test_an_outer_limit_that_is_due_first_ends_the_inner_block_too() -> None:
    began = time.monotonic()
    with pytest.raises(Outer), Limited(0.05, Outer), Limited(5, Inner):
        time.sleep(10)
    assert time.monotonic() - began < 4


def test_an_outer_timer_that_was_due_goes_on_ringing() -> None:
    rung: list[float] = []
    with SignalTimer(0.05, 0.05, lambda: rung.append(time.monotonic())):
        with Limited(0.01, Inner):
            pass
        until = time.monotonic() + 2
        while len(rung) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(rung) >= 3


def test_after_the_block_nothing_rings() -> None:
    with Limited(0.05, Inner):
        pass
    time.sleep(0.1)


def test_another_thread_has_no_limit() -> None:
    done = []

    def work() -> None:
        with Limited(0.01, Inner):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
