"""A capture that outgrows the machine is ended, and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.sessions import run

from pytest_torchprof.capture import limits
from pytest_torchprof.capture.limits import Watchdog, growth_of
from pytest_torchprof.core.process import Heap, heap_of_process
from pytest_torchprof.core.unknown import because

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
    monkeypatch.setattr(limits, "LIMIT_BYTES", -(2**40))
    monkeypatch.setattr("pytest_torchprof.session.runs.WATCHED_CALL_NS", 0)
    pytester.makepyfile(LOOP)
    ran = run(pytester, "--torchprof")
    record = ran.tests["test_many"]
    assert (record["outcome"], record["status"]) == ("passed", "not_profiled")
    assert (
        record["reason"]
        == because(
            "limit_of_events",
            (
                "it records more than about a million events, which torch's profiler "
                "cannot hold, or needs so much memory that this cannot be told"
            ),
        ).text
    )


BACKWARD = """
    import time
    import torch

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            work()
            return 2 * g

    def work():
        for _ in range(30):
            time.sleep(0.01)

    def test_before():
        torch.ones(4) + 1

    def test_large():
        x = torch.ones(4, requires_grad=True, device="{device}")
        Doubled.apply(x).sum().backward()
        assert x.grad[0] == 2
        work()

    def test_next():
        torch.ones(4) + 1
"""


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_capture_that_a_backward_pass_makes_too_large_leaves_no_session_to_the_next_test(
    device: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not limits._STATM.exists():
        pytest.skip("this system has no /proc, so nothing is watched")
    monkeypatch.setattr(limits, "LIMIT_BYTES", -(2**40))
    monkeypatch.setattr("pytest_torchprof.session.runs.WATCHED_CALL_NS", 200_000_000)
    pytester.makepyfile(BACKWARD.format(device=device))
    ran = run(pytester, "--torchprof")
    others = dict.fromkeys(("test_before", "test_next"), "new")
    assert ran.statuses == {**others, "test_large": "not_profiled"}
    assert ran.metric("ops", "test_before") == ran.metric("ops", "test_next")
    assert ran.tests["test_large"]["outcome"] == "passed"
    assert (
        ran.tests["test_large"]["reason"]
        == because(
            "limit_of_events",
            (
                "it records more than about a million events, which torch's profiler "
                "cannot hold, or needs so much memory that this cannot be told"
            ),
        ).text
    )


@pytest.mark.parametrize(
    ("peak", "available", "grows"),
    [
        (100, 12_000, 256),
        (600, 12_000, 756),
        (9_000, 12_000, 1_000),  # a capture before was large
        (9_000, 100, 256),
    ],
)
def test_a_large_capture_before_lets_no_other_one_grow(
    peak: int, available: int, grows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how many MiB a process of 100 MiB may grow, given its peak and the machine, in MiB."""
    for name, size in {"_resident": 100, "_peak": peak, "_available": available}.items():
        monkeypatch.setattr(limits, f"{name}_bytes", lambda size=size: size * 2**20)
    dog = Watchdog(lambda: None)
    dog._start = 100 * 2**20
    assert grows == dog._limit() // 2**20


def in_bytes(heap: Heap | None) -> Heap | None:
    if heap is None:
        return None
    used, free, mapped, blocks = heap
    return Heap(used * 2**20, free * 2**20, mapped * 2**20, blocks)


@pytest.mark.parametrize(
    ("resident", "before", "now", "growth"),
    [
        (900, None, None, 900),
        (900, Heap(500, 0), None, 900),
        (900, Heap(500, 0), Heap(1_400, 0), 900),
        (900, Heap(500, 100), Heap(700, 800), 200),  # the rest is free, between what is in use
        (900, Heap(500, 3_000), Heap(1_500, 2_000), 1_000),  # much was given back before
        (900, Heap(5, 1), Heap(6, 1), 899),  # another allocator took it
        (900, Heap(500, 0, 100, 1), Heap(1_400, 0, 900, 3), 102),  # two large tensors
        (900, Heap(500, 0, 100, 1), Heap(1_400, 0, 900, 801), 900),  # many small ones, or events
        (900, Heap(500, 0, 300, 9), Heap(1_400, 0, 100, 8), 900),
    ],
)
def test_neither_what_is_free_between_pieces_in_use_nor_large_tensors_are_growth(
    resident: int, before: Heap | None, now: Heap | None, growth: int
) -> None:
    """In MiB."""
    old, new = map(in_bytes, (before, now))
    assert growth * 2**20 == growth_of(resident * 2**20, old, new)


def test_the_heap_tells_what_it_handed_out() -> None:
    before = heap_of_process()
    if before is None:
        pytest.skip("this C library does not tell what it handed out")
    pieces = [bytearray(2**16) for _ in range(2**10)]
    during = heap_of_process()
    del pieces[::2]
    after = heap_of_process()
    assert during is not None
    assert after is not None
    assert during.used_bytes - before.used_bytes > 2**25
    assert 2**24 < during.used_bytes - after.used_bytes < 2**26
    assert after.free_bytes - during.free_bytes > 2**24


PIECES = """
    import time
    import torch

    KEPT = []

    def pieces(mib):
        return [torch.ones(2**14) for _ in range(16 * mib)]  # of 64 KiB, which the C library keeps

    def test_before():
        KEPT.extend(pieces(400)[::50])

    def test_large():
        made = pieces(380)
        time.sleep(0.3)
        assert len(made) == 16 * 380
"""


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [2, 0])
def test_a_test_that_fills_what_another_one_freed_is_profiled(
    rounds: int, pytester: pytest.Pytester
) -> None:
    """Its plain runs grow the process by little, its capture, before which memory is given back,
    by all of it.
    """
    pytester.makepyfile(PIECES)
    ran = run(pytester, "--torchprof", f"--torchprof-rounds={rounds}")
    assert ["new", "new"] == [record["status"] for record in ran.tests.values()]


def test_watching_imports_nothing() -> None:
    """A process that is forked meanwhile would wait for a module that nobody imports any more."""
    code = (
        "import resource, sys, time\n"
        "from pytest_torchprof.capture.limits import Watchdog\n"
        "dog, before = Watchdog(lambda: None), set(sys.modules)\n"
        "dog.start()\n"
        "time.sleep(0.1)\n"
        "dog.stop()\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
