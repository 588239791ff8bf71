"""A further run that blocks or ends the process: what is left says which test and which run."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import get_args

import pytest
from support.outcomes import Session, same
from support.sessions import NO_OTHER_PLUGINS

from pytest_torchprof.capture import limits
from pytest_torchprof.render.notes import HOW_TO_LEAVE_OUT
from pytest_torchprof.session import runs
from pytest_torchprof.session.plan import RunKind

BLOCKS = """
import threading
import pytest
import torch

lock = threading.Lock()
runs = []

def test_takes_the_lock_for_good(): lock.acquire()

port = threading.Lock()

@pytest.fixture
def served(): port.acquire()
def test_blocks_in_its_setup(served): pass

@pytest.fixture
def stopped():
    yield
    runs.append(1)
    if len(runs) > 1: lock.acquire()
def test_blocks_in_its_teardown(stopped): pass

errors = []
def test_does_not_hear():
    errors.append(None)
    while len(errors) > 2:
        try: lock.acquire()
        except BaseException as error: errors.append(error)
        if len(errors) > 5: raise errors[-1]

def test_afterwards(): torch.ones(2)
"""

LOOKS = """
import signal
import time

def test_uses_its_own_alarm():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while not rung: time.sleep(0.001)
    signal.signal(signal.SIGALRM, before)
def test_blocks_all_signals():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
"""

LEAVES = """
import multiprocessing
from pathlib import Path
import torch

FORK = multiprocessing.get_context("fork")
runs = []

def spins():
    while True: pass

def children():
    lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return {pid for pids in lists for pid in pids}

BEFORE = children()  # of other tests in this process

def at_work():
    stats = [Path("/proc", pid, "stat").read_text() for pid in children() - BEFORE]
    return [stat for stat in stats if stat.rpartition(")")[2].split()[0] != "Z"]

def test_waits_for_a_process():
    runs.append(1)
    if len(runs) > 1:
        process = FORK.Process(target=spins)
        process.start()
        process.join()

def test_is_alone_afterwards(): assert not at_work()

def test_fails_before_it_ends_a_process():
    runs.append(2)
    process = FORK.Process(target=spins)
    process.start()
    if runs.count(2) > 1: raise ValueError
    process.kill()
    process.join()

def test_is_alone_afterwards_too():
    assert not at_work()
    torch.ones(2)
"""

#: Seconds for each further run, of which only those that block take as long.
LIMIT_S = 2.0


def has_blocked(seen: Session, test: str, what: str) -> None:
    why = seen.statuses[test]
    message = rf"cannot be run twice: its {what} did not finish within [\d.]+ s; "
    assert re.fullmatch(message + re.escape(HOW_TO_LEAVE_OUT), why), why


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few seconds for a test whose further runs block, and as many as ever for others."""
    init = runs.Deadline.__init__

    def shortened(limit: runs.Deadline, item: pytest.Item, first_s: float) -> None:
        init(limit, item, first_s)
        if "afterwards" not in item.name:
            limit.limit_s = LIMIT_S

    monkeypatch.setattr(runs.Deadline, "__init__", shortened)
    monkeypatch.setattr(limits, "_AGAIN_S", 0.05)


@pytest.mark.thorough
@pytest.mark.usefixtures("short")
def test_a_further_run_that_blocks_is_ended(pytester: pytest.Pytester) -> None:
    seen = same(pytester, BLOCKS)
    has_blocked(seen, "test_takes_the_lock_for_good", "timed run")
    has_blocked(seen, "test_blocks_in_its_setup", "timed run")
    has_blocked(seen, "test_blocks_in_its_teardown", "teardown of an extra run")
    has_blocked(seen, "test_does_not_hear", "profiled run")
    assert "new" == seen.statuses["test_afterwards"]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc")
@pytest.mark.usefixtures("short")
def test_a_further_run_that_is_given_up_leaves_no_process(pytester: pytest.Pytester) -> None:
    """Else it would work during later tests, and the session would wait for it at its end."""
    seen = same(pytester, LEAVES)
    has_blocked(seen, "test_waits_for_a_process", "timed run")
    reason = seen.statuses["test_fails_before_it_ends_a_process"]
    assert reason.startswith("cannot be run twice: ValueError"), reason
    assert "new" == seen.statuses["test_is_alone_afterwards_too"]


def test_a_test_may_use_the_alarm_and_block_signals(pytester: pytest.Pytester) -> None:
    seen = same(pytester, LOOKS)
    assert {"new"} == set(seen.statuses.values()), seen.statuses


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["signal", "thread"])
def test_the_time_limit_of_a_test_is_that_of_its_further_runs(
    pytester: pytest.Pytester, method: str
) -> None:
    source = f"""
        import threading
        import pytest

        lock = threading.Lock()

        @pytest.mark.timeout({LIMIT_S})
        def test_takes_the_lock_for_good(): lock.acquire()
        def test_afterwards(): pass
    """
    args = (f"--timeout-method={method}", "--timeout=60")
    seen = same(pytester, source, *args, needs=["timeout"])
    has_blocked(seen, "test_takes_the_lock_for_good", "timed run")
    assert "new" == seen.statuses["test_afterwards"]


def test_the_limit_grows_with_the_first_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "timeout_settings", lambda _: None)
    assert runs.LEAST_S == runs.Deadline(request.node, 0.0).limit_s == 60
    assert 260 == runs.Deadline(request.node, 10.0).limit_s
    monkeypatch.setattr(runs, "timeout_settings", lambda _: SimpleNamespace(timeout=5.0))
    assert 5 == runs.Deadline(request.node, 0.1).limit_s
    assert 20 == runs.Deadline(request.node, 2.0).limit_s


def test_every_kind_of_run_has_a_name() -> None:
    assert {*get_args(RunKind), ""} == set(runs._RUN_NAMES)


@pytest.mark.thorough
def test_a_run_that_ends_the_process_leaves_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import os
        runs = []

        def test_aborts_later():
            runs.append(1)
            if len(runs) > 1: os.abort()
    """
    )
    result = pytester.runpytest_subprocess(*NO_OTHER_PLUGINS, "--torchprof", timeout=60)
    assert result.ret not in (0, 1)
    message = "an extra run of test_it.py::test_aborts_later; " + HOW_TO_LEAVE_OUT
    assert message in result.stderr.str()
