"""A capture that outgrows the machine is ended, and says so."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from support.sessions import run

from pytest_torchprof.capture import watchdog
from pytest_torchprof.capture.watchdog import Growth, Watchdog
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.render.reason_texts import in_words

LOOP = """
    import torch
    def test_many():
        x = torch.ones(8)
        for _ in range(60_000):
            x = x + 1
        assert x[0] == 60_001
"""


@pytest.mark.thorough
def test_a_test_of_too_many_events_passes_and_is_not_profiled(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below nothing: earlier tests have freed memory, which the process would take first.
    monkeypatch.setattr(watchdog, "LIMIT_BYTES", -(2**40))
    monkeypatch.setattr("pytest_torchprof.session.runs.one_run.WATCHED_CALL_NS", 0)
    pytester.makepyfile(LOOP)
    ran = run(pytester, "--torchprof")
    record = ran.tests["test_many"]
    assert (record["outcome"], record["status"]) == ("passed", "not_profiled")
    assert record["reason"] == in_words(because(Why.LIMIT_OF_EVENTS))


def test_memory_that_is_there_already_does_not_count() -> None:
    calls: list[None] = []
    dog = Watchdog(lambda: calls.append(None))
    dog.start()
    time.sleep(0.1)
    dog.stop()
    assert calls == []


def test_growth_calls_once_in_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    if not watchdog._STATM.exists():
        pytest.skip("this system has no /proc, so nothing is watched")
    monkeypatch.setattr(watchdog, "LIMIT_BYTES", -(2**40))
    calls: list[None] = []
    dog = Watchdog(lambda: calls.append(None))
    dog.start()
    deadline = time.monotonic() + 60
    while not calls and time.monotonic() < deadline:
        time.sleep(0.01)
    dog.stop()
    assert calls == [None]


def limit_after(peak: int, available: int, own: int | None, monkeypatch: Any) -> int:
    """By how many MiB a process of 100 MiB may grow, given its peak and the machine, in MiB."""
    for name, size in {"_resident": 100, "_peak": peak, "_available": available}.items():
        monkeypatch.setattr(watchdog, f"{name}_bytes", lambda size=size: size * 2**20)
    dog = Watchdog(lambda: None, own_bytes=None if own is None else own * 2**20)
    return dog._limit() // 2**20 - 100


@pytest.mark.parametrize(
    ("peak", "available", "own", "grows"),
    [
        (100, 10_000, 0, 256),
        (100, 10_000, 5_000, 5_256),
        (9_000, 10_000, 0, 256),  # a capture before was large
        (9_000, 10_000, 5_000, 5_256),
        (100, 12_000, None, 256),
        (600, 12_000, None, 756),
        (9_000, 12_000, None, 1_000),
        (9_000, 100, None, 256),
    ],
)
def test_a_large_capture_before_lets_no_other_one_grow(
    peak: int, available: int, own: int | None, grows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grows == limit_after(peak, available, own, monkeypatch)


def test_what_a_block_needs_is_seen_below_an_earlier_peak() -> None:
    if not watchdog._STATM.exists():
        pytest.skip("this system has no /proc, so nothing is watched")
    before = bytearray(2**27)  # the peak
    before[:: 2**12] = b"x" * len(before[:: 2**12])
    del before
    sampled, unknown = Growth(sampled=True), Growth(sampled=False)
    block = bytearray(2**25)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    deadline = time.monotonic() + 60
    while sampled._most - sampled._start < 2**24 and time.monotonic() < deadline:
        time.sleep(0.01)
    del block
    assert unknown.end() is None
    grown = sampled.end()
    assert grown is not None
    assert 2**24 <= grown < 2**27


def test_a_higher_peak_tells_what_a_block_needs() -> None:
    if not watchdog._STATM.exists():
        pytest.skip("this system has no /proc, so nothing is watched")
    growth = Growth(sampled=False)
    size = watchdog._peak_bytes() - watchdog._resident_bytes() + 2**26
    block = bytearray(size)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    del block
    grown = growth.end()
    assert grown is not None
    assert grown > size // 2


def test_watching_imports_nothing() -> None:
    """A process that is forked meanwhile would wait for a module that nobody imports any more."""
    code = (
        "import resource, sys, time\n"
        "from pytest_torchprof.capture.watchdog import Watchdog\n"
        "dog, before = Watchdog(lambda: None), set(sys.modules)\n"
        "dog.start()\n"
        "time.sleep(0.1)\n"
        "dog.stop()\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
