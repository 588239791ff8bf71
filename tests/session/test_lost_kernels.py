"""A profiled run that lost kernels is repeated once, and begins with others that may be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from support.sessions import run
from support.trace_builder import TraceBuilder

from pytest_torchprof.capture import sessions
from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.session.measurement import Captures
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.session.measurement import Captured
    from pytest_torchprof.trace.events import Events


def with_lost(lost: int) -> Events:
    b = TraceBuilder("GPU")
    with b.annotation(REGION), b.op("aten::add"):
        for number in range(5):
            b.launch("kernel", record_kernel=number >= lost)
    return parse_trace(b.to_bytes())


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels each profiled run is to lose."""
    counts: list[int] = []
    take = Captures.take

    def taking(self: Captures, brought: Captured) -> object:
        if brought.kind == "profile":
            brought = replace(brought, trace=with_lost(counts.pop(0)))
        return take(self, brought)

    monkeypatch.setattr(Captures, "take", taking)
    return counts


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many idle kernels each session launches."""
    seen: list[int] = []
    monkeypatch.setattr(sessions, "uses_accelerator", lambda: True)
    monkeypatch.setattr(real_torch(), "spin", seen.append)
    return seen


def test_a_run_that_lost_kernels_is_repeated(
    pytester: pytest.Pytester, lost: list[int], launched: list[int]
) -> None:
    lost += [2, 0]
    pytester.makepyfile(test_it="def test_it(): print('run')")
    kernels = run(pytester, "--torchprof").metric("kernels", "test_it")
    assert 5 == kernels["value"]
    assert not lost
    assert [1] * 18 == launched


def test_it_is_repeated_only_once(
    pytester: pytest.Pytester, lost: list[int], launched: list[int]
) -> None:
    lost += [2, 1]
    pytester.makepyfile(test_it="def test_it(): pass")
    kernels = run(pytester, "--torchprof").metric("kernels", "test_it")
    assert (None, "not_measured") == (kernels["value"], kernels["status"])
    assert "1 of 5 launches have no kernel record" in kernels["reason"]
    assert not lost
    assert launched


def test_a_run_that_lost_none_is_not(
    pytester: pytest.Pytester, lost: list[int], launched: list[int]
) -> None:
    lost += [0]
    pytester.makepyfile(test_it="def test_it(): pass")
    assert 5 == run(pytester, "--torchprof").metric("kernels", "test_it")["value"]
    assert not launched
