"""A test that forks is warned of threads as without us."""

from __future__ import annotations

import os
import sys
import threading
import warnings

import pytest

from pytest_torchprof.capture import threads as forking

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Python warns of forks beside threads from 3.12 on"
)


def warned() -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    return [os.path.basename(one.filename) for one in found]  # noqa: PTH119 - as in the warning


def test_only_threads_other_than_the_profilers_cause_a_warning() -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in "12"]
    try:
        before = forking.threads_now()
        threads[0].start()
        forking.expect_threads(forking.threads_now() - before)
        rest = forking.threads_now() - forking._PROFILERS
        assert warned() == (["test_forking.py"] if len(rest) > 1 else [])
        threads[1].start()
        assert ["test_forking.py"] == warned()
    finally:
        end.set()
        for thread in threads:
            thread.join()
