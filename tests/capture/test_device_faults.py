"""A device that reports an error, cannot be waited for, or is one of several, on stand-ins."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from support.sessions import run

from pytest_torchprof.capture import machine, state
from pytest_torchprof.capture.clock import Stopwatch
from pytest_torchprof.capture.machine import (
    real_torch,
    synchronize,
    unseen_allocator,
)
from pytest_torchprof.core.errors import NotCapturedError
from pytest_torchprof.session import runs

Waits = list[tuple[int, ...]]


def broken(*_: int) -> None:
    raise RuntimeError("CUDA error: device-side assert triggered\nmore")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """A device that notes each wait for it."""
    made: Waits = []
    monkeypatch.setattr(machine, "uses_accelerator", lambda: True)
    for name, stand_in in {
        "synchronize": lambda *device: made.append(device),
        "capturing": lambda: False,
        "devices": lambda: 1,
        "in_use": lambda _: True,
    }.items():
        monkeypatch.setattr(real_torch(), name, stand_in)
    return made


def test_one_device_is_waited_for(waits: Waits) -> None:
    assert synchronize()
    assert [()] == waits


def test_of_several_devices_those_in_use_are_waited_for(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_torch(), "devices", lambda: 4)
    monkeypatch.setattr(real_torch(), "in_use", lambda number: number in (1, 3))
    assert synchronize()
    assert [(1,), (3,)] == waits


def test_nothing_waits_while_a_graph_is_captured(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_torch(), "capturing", lambda: True)
    assert not synchronize()
    assert not waits


@pytest.mark.usefixtures("waits")
def test_an_error_of_the_device_is_a_reason_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_torch(), "synchronize", broken)
    with pytest.raises(NotCapturedError) as caught:
        synchronize()
    assert "device-side assert" in caught.value.reason.text
    assert "more" not in caught.value.reason.text


@pytest.mark.usefixtures("waits")
def test_a_stopwatch_that_cannot_stop_gives_the_collector_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_threshold()
    watch = Stopwatch()
    watch.__enter__()
    assert before != gc.get_threshold()
    monkeypatch.setattr(real_torch(), "synchronize", broken)
    with pytest.raises(NotCapturedError):
        watch.__exit__()
    assert before == gc.get_threshold()


@pytest.mark.usefixtures("waits")
def test_a_test_that_leaves_an_error_on_the_device_passes_and_is_not_profiled(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_torch(), "synchronize", broken)
    pytester.makepyfile(test_it="def test_it(): pass")
    ran = run(pytester, "--torchprof")
    record = ran.tests["test_it"]
    assert (0, "passed", "not_profiled") == (ran.ret, record["outcome"], record["status"])
    assert "the device reports an error: CUDA error: device-side assert" in record["reason"]


def test_generators_of_a_broken_device_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        get_rng_state_all: Callable[[], None] = staticmethod(broken)

    monkeypatch.setattr(state, "accelerators", lambda: iter([Broken]))
    before = torch.default_generator.get_state()
    kept = state.RandomState()
    torch.rand(1)
    kept.restore()
    assert before.equal(torch.default_generator.get_state())


@pytest.mark.parametrize(
    ("backend", "variable", "expected"),
    [
        ("native", "", None),
        ("cudaMallocAsync", "", "cudaMallocAsync"),
        ("pluggable", "", "pluggable"),
        ("native", "1", "cudaMalloc"),
    ],
)
def test_only_the_caching_allocator_is_seen(
    backend: str, variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "accelerator", lambda: "cuda")
    torch_c = torch._C
    monkeypatch.setattr(torch_c, "_cuda_getAllocatorBackend", lambda: backend, raising=False)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", variable)
    found = unseen_allocator()
    assert (found and found.text) == (
        expected and f"torch's profiler does not see the allocator {expected}"
    )


@pytest.mark.thorough
def test_a_graph_that_is_captured_is_not_broken_by_a_block_within(
    waits: Waits, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    """The end of a session of ours would be an error within the capture."""
    monkeypatch.setattr(runs, "captures_graph", lambda: real_torch().capturing())
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch
        from pytest_torchprof.capture.machine import real_torch

        @pytest.mark.parametrize("form", ["block", "callable"])
        def test_it(form, torchprof, monkeypatch):
            with monkeypatch.context() as patched:
                patched.setattr(real_torch(), "capturing", lambda: True)
                active = real_torch().active()
                if form == "block":
                    with torchprof: torch.ones(2).neg()
                else:
                    assert 3 == torchprof(lambda: 3)
                assert active == real_torch().active()
        """
    )
    for args in ([], ["--torchprof-warmup=0", "--torchprof-rounds=0"]):
        ran = run(pytester, "--torchprof", *args)
        for record in ran.tests.values():
            assert ("passed", "not_profiled") == (record["outcome"], record["status"])
            assert "while a CUDA graph is captured" in record["reason"]


def test_a_session_of_another_thread_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import threading
        import pytest
        import torch

        @pytest.fixture(scope="module")
        def profiled():
            begun, over = threading.Event(), threading.Event()
            def profile():
                with torch.profiler.profile():
                    begun.set()
                    over.wait()
            thread = threading.Thread(target=profile)
            thread.start()
            begun.wait()
            yield
            over.set()
            thread.join()

        def test_it(profiled): torch.ones(2).neg()
        """,
        test_later="""
        import torch

        def test_afterwards(): torch.ones(2).neg()
        """,
    )
    ran = run(pytester, "--torchprof")
    record = ran.tests["test_it"]
    assert ("passed", "not_profiled") == (record["outcome"], record["status"])
    assert "another profiler session is active" in record["reason"]
    assert "internal error" not in ran.out
    assert "new" == ran.tests["test_afterwards"]["status"]


def test_no_session_begins_while_a_graph_is_captured(
    waits: Waits, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    monkeypatch.setattr(real_torch(), "capturing", lambda: True)
    pytester.makepyfile(test_it="def test_it(): pass")
    record = run(pytester, "--torchprof").tests["test_it"]
    assert ("passed", "not_profiled") == (record["outcome"], record["status"])
    assert "while a CUDA graph is captured" in record["reason"]
    assert not waits
