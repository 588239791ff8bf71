"""The reference kernel: the same work wherever it runs, which leaves no mark."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.sessions import run

from pytest_torchprof.capture.load import VERSION, conditions, run_reference


def test_a_lap_has_wall_and_cpu_time_and_is_short() -> None:
    laps = run_reference(20)
    assert 20 == len(laps)
    assert all(lap.wall_ns > 0 and lap.cpu_ns > 0 for lap in laps)
    # Well below 1 ms; the margin is for the slowest of machines.
    assert statistics.median(lap.cpu_ns for lap in laps) < 10_000_000


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "block",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: default_device("meta"),
    ],
)
def test_it_runs_under_whatever_a_test_has_switched_on(block: type) -> None:
    with block():
        assert 2 == len(run_reference(2))


def test_it_leaves_threads_random_numbers_and_collector_as_they_were() -> None:
    def world() -> list[object]:
        seeds = torch.get_rng_state().tolist()
        return [torch.get_num_threads(), seeds, gc.get_threshold(), gc.isenabled()]

    before = world()
    run_reference(3)
    assert before == world()


def test_its_conditions_name_its_version_and_the_threads_of_a_test() -> None:
    threads = torch.get_num_threads()
    assert f"reference {VERSION}, {threads} torch threads" == conditions()
    torch.set_num_threads(threads + 1)
    try:
        assert f"reference {VERSION}, {threads + 1} torch threads" == conditions()
    finally:
        torch.set_num_threads(threads)


def test_a_test_that_patches_torch_does_not_break_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import time, torch
        def test_add(monkeypatch, torchprof):
            monkeypatch.setattr(torch, "mm", None)
            monkeypatch.setattr(torch, "set_num_threads", None)
            monkeypatch.setattr(time, "perf_counter_ns", None)
            torchprof(lambda: 1 + 1, rounds=3)
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, 3) == (ran.outcomes, ran.metric("wall_ms")["n"])
