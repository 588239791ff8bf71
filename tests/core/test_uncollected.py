"""Imports without garbage collections."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_torchprof.core.records import uncollected


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.enable()
    yield
    gc.enable() if enabled else gc.disable()


def test_the_garbage_collector_is_off_inside_and_on_again_afterwards() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_objects_that_other_code_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_what_an_interpreter_freezes_when_it_starts_is_not_other_codes() -> None:
    """Python 3.12 starts with frozen objects, and has ten times as many that are not."""
    asks = "from pytest_torchprof.core.records import others_froze; print(others_froze())"
    froze = f"import gc; gc.freeze(); {asks}"
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for code in (asks, froze)
    ]
    assert [one.stdout.split() for one in said] == [["False"], ["True"]]
