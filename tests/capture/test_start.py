"""What a session loads before its first test: no more of torch than the tests do themselves."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.sessions import NO_OTHER_PLUGINS

from pytest_torchprof.capture import machine
from pytest_torchprof.capture.machine import lean_profile

LOADED = """
    import sys
    import torch

    LARGE = ("torch._dynamo",)

    def test_first():
        torch.ones(2) + 1
        assert [name for name in sys.modules if name in LARGE] == {first}

    def test_asks_torch_for_it():
        assert hasattr(torch, "_inductor")

    def test_is_profiled_as_before():
        torch.ones(2) + 1
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "first"),
    [
        ((), []),
        pytest.param(("--torchprof-warmup=0",), ["torch._dynamo"], marks=pytest.mark.thorough),
    ],
)
def test_dynamo_is_imported_only_where_a_first_run_is_measured(
    pytester: pytest.Pytester, options: tuple[str, ...], first: list[str]
) -> None:
    pytester.makepyfile(LOADED.format(first=first))
    ran = pytester.runpytest_subprocess("--torchprof", *options, *NO_OTHER_PLUGINS, "-rA")
    ran.assert_outcomes(passed=3)
    ran.stdout.fnmatch_lines(["torchprof: 3 tests profiled in*: 3 new"])


def session_with(monkeypatch: pytest.MonkeyPatch, config: Any) -> Any:
    """A session begun and ended, of which nothing has to be imported."""
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    # With these torch keeps CUPTI, and what it sets must not outlive this test.
    monkeypatch.setenv("TEARDOWN_CUPTI", "1")
    monkeypatch.setenv("DISABLE_CUPTI_LAZY_REINIT", "0")
    profiler = lean_profile()(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.start()
    profiler.stop()
    return profiler


@pytest.mark.parametrize(
    ("config", "in_use"),
    [
        (SimpleNamespace(triton=SimpleNamespace(cudagraphs=True)), True),
        (SimpleNamespace(triton=SimpleNamespace(cudagraphs=False)), False),
        (SimpleNamespace(), False),  # it is being imported
        (None, False),  # it is hidden
    ],
)
def test_torch_knows_of_cuda_graphs_where_inductor_is_loaded(
    monkeypatch: pytest.MonkeyPatch, config: Any, in_use: bool
) -> None:
    assert in_use == session_with(monkeypatch, config).has_cudagraphs


def test_the_profiler_of_torch_itself_stays_as_it_is() -> None:
    prepare = torch.profiler.profile.prepare_trace
    lean_profile()
    assert prepare is torch.profiler.profile.prepare_trace
    assert prepare.__globals__["torch"] is torch


def test_a_profiler_that_is_made_otherwise_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("prepare_trace", "start_trace"):
        monkeypatch.setattr(f"torch.profiler._KinetoProfile.{name}", print)
    assert lean_profile() is torch.profiler.profile
    monkeypatch.delattr("torch.profiler._KinetoProfile")
    assert lean_profile() is torch.profiler.profile


@pytest.mark.thorough
def test_torch_may_warn_of_a_session_where_warnings_are_errors(
    pytester: pytest.Pytester,
) -> None:
    """Torch 2.11 warns whenever the first session of a process starts."""
    pytester.makeconftest("""
        import warnings
        from torch.profiler import profiler

        start = profiler._KinetoProfile.prepare_trace
        warned = []

        def prepare_trace(self):
            start(self)
            if not warned:
                warned.append(True)
                warnings.warn("Profiler clears events at the end of each cycle.")

        profiler._KinetoProfile.prepare_trace = prepare_trace
    """)
    pytester.makepyfile("import torch\ndef test_it(): torch.ones(2) + 1")
    ran = pytester.runpytest_subprocess("--torchprof", "-W", "error", *NO_OTHER_PLUGINS)
    ran.stdout.fnmatch_lines(["torchprof: 1 test profiled in*: 1 new"])
    assert ran.ret == 0


def test_what_torch_warns_of_once_is_left_for_the_users_session() -> None:
    warned: list[str] = []
    room: dict[str, Any] = {"torch": torch, "_warn_once": warned.append}
    exec('def asks(self): hasattr(torch, "_inductor"); _warn_once("events are cleared")', room)
    ours = machine._blind(room["asks"], torch)
    assert ours is not None
    ours(None)
    assert not warned
    room["asks"](None)
    assert warned
