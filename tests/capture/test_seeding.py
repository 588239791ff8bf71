"""Seeds: the same on every machine, for all generators that are in use and for no others."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.random
import pytest
import torch

from pytest_torchprof.capture.state import RandomState, accelerators, seed_for, seed_generators


class Backend:
    """Stands for the module of an accelerator."""

    def __init__(self, *, started: bool) -> None:
        self.started = started
        self.states = [torch.tensor([1], dtype=torch.uint8)]

    def is_initialized(self) -> bool:
        return self.started

    def get_rng_state_all(self) -> list[torch.Tensor]:
        assert self.started
        return list(self.states)

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        self.states = list(states)

    def manual_seed_all(self, seed: int) -> None:
        self.states = [torch.tensor([seed % 100], dtype=torch.uint8)]


@pytest.fixture(autouse=True)
def _restored() -> Any:
    state = RandomState()
    yield
    state.restore()


def test_a_seed_is_the_same_everywhere() -> None:
    """Baselines depend on these numbers."""
    assert 2_661_910_650_252_810_351 == seed_for(0, "test_a.py::test_a")
    seeds = {
        seed_for(number, name, other=other)
        for number in range(3)
        for name in ("test_a.py::test_a", "test_a.py::test_b[\udcff]")
        for other in (False, True)
    }
    assert 12 == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("python", "numpy_too"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_generators_draw_by_the_seed(*, python: bool, numpy_too: bool) -> None:
    def drawn(seed: int) -> list[float]:
        seed_generators(seed, python=python, numpy=numpy_too)
        return [random.random(), np.random.rand(), torch.rand(()).item()]  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    first, again, other = drawn(2**62), drawn(2**62), drawn(5)
    same = [a == b for a, b in zip(first, again, strict=True)]
    assert [python, numpy_too, True] == same
    assert not set(first) & set(other)


def test_another_bit_generator_of_numpy_is_left_alone() -> None:
    room: Any = np.random
    own = room.get_bit_generator()
    room.set_bit_generator(room.PCG64(3))
    try:
        seed_generators(1)
    finally:
        room.set_bit_generator(own)


@pytest.mark.parametrize("started", [True, False])
def test_an_accelerator_is_seeded_and_restored_if_it_is_in_use(
    monkeypatch: pytest.MonkeyPatch, *, started: bool
) -> None:
    backend = Backend(started=started)
    monkeypatch.setattr(torch, "xpu", backend)
    assert started == (backend in accelerators())
    before = RandomState()
    seed_generators(42)
    assert (42 if started else 1) == int(backend.states[0])
    assert RandomState().differs(before).torch
    before.restore()
    assert 1 == int(backend.states[0])
    assert not RandomState().differs(before).torch


def test_metal_is_seeded_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    metal = SimpleNamespace(
        get_rng_state=lambda: torch.tensor([len(seen)]),
        set_rng_state=lambda state: seen.append(int(state)),
        manual_seed=seen.append,
    )
    monkeypatch.setattr(torch, "mps", metal)
    monkeypatch.setattr(torch._C, "_has_mps", True)
    state = RandomState()
    seed_generators(42)
    assert RandomState().differs(state).torch
    state.restore()
    assert [42, 0] == seen


def test_a_difference_names_the_generator() -> None:
    state = RandomState()
    assert (False, False, False) == RandomState().differs(state)
    random.random()
    assert (True, False, False) == RandomState().differs(state)
    np.random.rand()  # noqa: NPY002
    torch.rand(1)
    assert (True, True, True) == RandomState().differs(state)
    state.restore(but=RandomState().differs(state)._replace(numpy=False))
    assert (True, False, True) == RandomState().differs(state)
