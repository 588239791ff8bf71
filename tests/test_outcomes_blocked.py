"""A further run that blocks or ends the process: what is left says which test and which run."""

from __future__ import annotations

import pytest
from helpers import NO_OTHER_PLUGINS
from helpers_outcomes import same

from pytest_torchprof import deadline

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


def reasons(word: str, limit: str) -> str:
    return f"cannot be run twice: its {word} did not end within {limit} s; "


def test_a_further_run_that_blocks_is_ended(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "LEAST_S", 0.3)
    monkeypatch.setattr(deadline, "TIMES", 0)
    monkeypatch.setattr(deadline, "_AGAIN_S", 0.05)
    seen = same(pytester, BLOCKS)
    statuses = seen.statuses
    for name in ("test_takes_the_lock_for_good", "test_blocks_in_its_setup"):
        assert statuses[name].startswith(reasons("timed run", "0.3")), statuses[name]
        assert statuses[name].endswith(deadline.HOW_TO_LEAVE_OUT)
    in_teardown = statuses["test_blocks_in_its_teardown"]
    assert in_teardown.startswith(reasons("teardown of a further run", "0.3")), in_teardown
    assert statuses["test_does_not_hear"].startswith(reasons("profiled run", "0.3"))
    assert "new" == statuses["test_afterwards"]


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_the_time_limit_of_a_test_is_that_of_its_further_runs(
    pytester: pytest.Pytester, method: str
) -> None:
    source = """
        import threading
        import pytest

        lock = threading.Lock()

        @pytest.mark.timeout(0.5)
        def test_takes_the_lock_for_good(): lock.acquire()
        def test_afterwards(): pass
    """
    args = (f"--timeout-method={method}", "--timeout=20")
    seen = same(pytester, source, *args, needs=["timeout"])
    why = seen.statuses["test_takes_the_lock_for_good"]
    assert why.startswith(reasons("timed run", "0.5")), why
    assert "new" == seen.statuses["test_afterwards"]


def test_the_limit_grows_with_the_first_run(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_it(): pass", "test_it")
    assert deadline.LEAST_S == deadline.Deadline(item, 0.0).limit_s == 60
    assert 260 == deadline.Deadline(item, 10.0).limit_s


def test_of_a_run_that_ends_the_process_the_name_is_left(pytester: pytest.Pytester) -> None:
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
    said = "timed run of test_it.py::test_aborts_later; " + deadline.HOW_TO_LEAVE_OUT
    assert said in result.stderr.str()
