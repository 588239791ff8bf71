"""A capture that outgrows the machine is ended, and says so."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from support.sessions import run

from pytest_torchprof.capture import watchdog
from pytest_torchprof.capture.watchdog import Watchdog
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
