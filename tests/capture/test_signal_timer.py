"""Time limits of blocks within blocks: the one that is due first rings, and no other is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_torchprof.capture.limits import Limited

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX has timers")


class Outer(BaseException):
    pass


class Inner(BaseException):
    pass


@pytest.fixture(autouse=True)
def _no_timer_is_left() -> Iterator[None]:
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
