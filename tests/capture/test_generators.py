"""Random generators are put back as they were, whether their bytes tell or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.random  # which numpy itself imports when it is first used
import pytest
import torch

from pytest_torchprof.capture import state as generators
from pytest_torchprof.capture.state import RandomState


def drawn() -> list[float]:
    return [
        random.gauss(0, 1),
        random.random(),
        np.random.normal(),  # noqa: NPY002 - it is the global generator that tests draw from
        np.random.rand(),  # noqa: NPY002
        torch.rand(1).item(),
    ]


@pytest.fixture(params=["bytes tell", "bytes do not tell", "another generator of numpy"])
def _generators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    room: Any = np.random
    own = room.get_bit_generator()
    if request.param == "bytes do not tell":
        monkeypatch.setattr(generators, "_python_tells", lambda: False)
        monkeypatch.setattr(generators, "_numpy_tells", lambda: False)
    elif request.param == "another generator of numpy":
        room.set_bit_generator(room.MT19937(3))
    yield
    room.set_bit_generator(own)


@pytest.mark.usefixtures("_generators")
@pytest.mark.parametrize("before", range(3))  # normal numbers come in pairs, of which one is kept
def test_a_rerun_draws_the_same_numbers(before: int) -> None:
    for _ in range(before):
        drawn()
    state = RandomState()
    first = drawn()
    state.restore()
    assert RandomState()._numpy is not None
    assert first == drawn()
    later = RandomState()
    np.random.normal()  # noqa: NPY002
    random.gauss(0, 1)
    later.restore()
    second = drawn()
    later.restore()
    assert second == drawn()


def test_state_bytes_show_whether_a_generator_was_used() -> None:
    assert generators._python_tells()
    assert generators._numpy_tells()
    assert not generators._tells(lambda: (1,), [drawn], drawn)
    numbers = iter(range(10))
    assert not generators._tells(lambda: (next(numbers),), [drawn], drawn)
