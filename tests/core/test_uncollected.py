"""Imports without garbage collections."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_torchprof.core.uncollected import uncollected


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.enable()
    yield
    gc.enable() if enabled else gc.disable()


def _is_old(one: object) -> bool:
    return any(known is one for known in gc.get_objects(generation=2))


def test_the_garbage_collector_is_off_inside_and_on_again_afterwards() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_objects_made_within_are_old_at_once() -> None:
    """So the next quick collection does not walk through a million objects."""
    with uncollected():
        made: list[object] = [[]]
    assert _is_old(made)
    assert gc.get_freeze_count() == 0


@pytest.mark.thorough
def test_it_can_still_be_collected() -> None:
    class Cycle:
        ended = False

        def __del__(self) -> None:
            Cycle.ended = True

    with uncollected():
        cycle = Cycle()
        cycle.own = cycle  # type: ignore[attr-defined]
        del cycle
    assert not Cycle.ended
    gc.collect()
    assert Cycle.ended


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with uncollected():
        made: list[object] = [[]]
    assert not gc.isenabled()
    assert not _is_old(made)


def test_objects_that_other_code_froze_stay_frozen() -> None:
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_what_an_interpreter_freezes_when_it_starts_is_not_other_codes() -> None:
    """Python 3.12 starts with frozen objects, and has ten times as many that are not."""
    asks = "from pytest_torchprof.core.uncollected import others_froze; print(others_froze())"
    froze = f"import gc; gc.freeze(); {asks}"
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for code in (asks, froze)
    ]
    assert [one.stdout.split() for one in said] == [["False"], ["True"]]
