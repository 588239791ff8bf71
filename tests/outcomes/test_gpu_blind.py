"""On a real GPU: what the profiler did not record is never 0, and no budget passes on it.

The launches of a test are known. Its kernels are either that many, or not measured with a reason.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from support.cupti import CUPTI, needs_cupti
from support.outcomes import Session, same, session
from support.seen import show

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]

HEAD = """
    import contextlib
    import os
    import sys
    import threading
    import time
    import pytest
    import torch

    X = torch.ones(64, device="cuda")

    def launch(count):
        for _ in range(count): X.mul_(1.0)
"""
ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
NEVER = {"not_measured"}
UNPROFILED = {"not_profiled", "failed", "skipped"}


def honest(ran: Session, test: str, kernels: int) -> Any:
    """The reason why the kernels are not known, None if they are; they are never another number."""
    record = ran.records[test]
    if record["status"] in UNPROFILED:
        assert record["reason"], record
        return record["reason"]
    metric = record["metrics"]["kernels"]
    if metric["value"] is None:
        assert metric["reason"], record
        return metric["reason"]
    assert kernels == metric["value"], record
    return None


def kernels_of(ran: Session, counts: dict[str, int]) -> dict[str, Any]:
    """By test: why its kernels are not known, None where they are, as they should be."""
    return {test: honest(ran, test, count) for test, count in counts.items()}


# -------------------------------------------------------------------- another CUPTI client


@needs_cupti
@pytest.mark.parametrize(
    ("switched_off", "early", "said"),
    [
        ("KERNELS", 0, "5 of 5 launches have no kernel record"),
        ("KERNELS", 3, "of 8 launches have no kernel record"),
        ("EVERYTHING", 0, "recorded nothing on this device"),
        ("EVERYTHING", 3, "records of the device end before the test does"),
    ],
)
def test_another_client_switches_records_off(
    pytester: pytest.Pytester, switched_off: str, early: int, said: str
) -> None:
    pytester.makepyfile(cupti=CUPTI)
    source = f"""{HEAD}
    import cupti

    @pytest.mark.max_kernels(2)
    @pytest.mark.max_self_cuda_ms(10)
    def test_it():
        launch({early})
        torch.cuda.synchronize()
        cupti.disable(cupti.{switched_off})
        launch(5)

    def test_afterwards(): launch(4)
    """
    # What is seen of the first launches is over the budget for certain.
    ran = _profiled(pytester, source) if early else same(pytester, source)
    metrics = ran.records["test_it"]["metrics"]
    if early:
        assert ("over_budget", early) == (metrics["kernels"]["status"], metrics["kernels"]["value"])
        assert "measured at least 3" in str(ran.reports)
    else:
        assert said in honest(ran, "test_it", 5)
    assert "not_measured" == metrics["self_cuda_ms"]["status"]
    assert said in metrics["self_cuda_ms"]["reason"]
    assert honest(ran, "test_afterwards", 4) is None
    strict = session(pytester, "--torchprof-strict")
    assert 1 == strict.ret
    assert any("could not be checked" in report["text"] for report in strict.reports)


def _profiled(pytester: pytest.Pytester, source: str, *args: str, **given: Any) -> Session:
    pytester.makepyfile(test_it=textwrap.dedent(source))
    return session(pytester, *args, **given)


@needs_cupti
@pytest.mark.parametrize("call", ["finalize", "subscribe"])
def test_another_client_takes_cupti_over(pytester: pytest.Pytester, call: str) -> None:
    pytester.makepyfile(cupti=CUPTI)
    source = f"""{HEAD}
    import cupti

    def test_before(): launch(3)
    def test_it():
        cupti.{call}()
        launch(5)
    def test_afterwards(): launch(4)
    def test_later(): launch(6)
    """
    ran = same(pytester, source, subprocess=True)
    counts = {"test_before": 3, "test_it": 5, "test_afterwards": 4, "test_later": 6}
    show(kernels_of(ran, counts))


@needs_cupti
def test_a_client_from_before_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(cupti=CUPTI)
    conftest = """
    import torch
    import cupti
    cupti.subscribe()
    """
    source = f"""{HEAD}
    def test_it(): launch(5)
    def test_again(): launch(4)
    """
    ran = same(pytester, source, conftest=conftest, subprocess=True)
    show(kernels_of(ran, {"test_it": 5, "test_again": 4}))


# -------------------------------------------------------------------- other profiler sessions


def test_a_session_around_all_tests(pytester: pytest.Pytester) -> None:
    conftest = """
    import pytest
    import torch

    @pytest.fixture(autouse=True, scope="session")
    def profiled():
        with torch.profiler.profile() as profiler:
            yield
        found = [event for event in profiler.events() if "elementwise" in event.name]
        assert found
    """
    source = f"""{HEAD}
    @pytest.mark.max_kernels(2)
    def test_it(): launch(5)
    def test_again(): launch(4)
    """
    ran = same(pytester, source, conftest=conftest, subprocess=True)
    for test, count in {"test_it": 5, "test_again": 4}.items():
        assert "another profiler session" in honest(ran, test, count)
    assert session(pytester, "--torchprof-strict", subprocess=True).ret == 1


def test_a_session_of_another_thread(pytester: pytest.Pytester) -> None:
    source = f"""{HEAD}
    @pytest.fixture(scope="class")
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

    class TestWhileItRuns:
        def test_it(self, profiled): launch(5)
        def test_again(self, profiled): launch(4)
    def test_afterwards(): launch(3)
    """
    # Not `same`: where its session is the first one, Kineto complains of its thread.
    ran = _profiled(pytester, source, subprocess=True)
    assert {"passed"} == {report["outcome"] for report in ran.reports}
    assert not [line for line in ran.terminal if "internal error" in line]
    for test, count in {"test_it": 5, "test_again": 4}.items():
        name = f"TestWhileItRuns::{test}"
        assert "another profiler session is active" in honest(ran, name, count)
    assert honest(ran, "test_afterwards", 3) is None


OWN = f"""{HEAD}
    from torch.profiler import ProfilerActivity, profile, schedule

    BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]

    def kernels(profiler):
        types = [event.device_type for event in profiler.events()]
        return types.count(torch.autograd.DeviceType.CUDA)

    def test_profiles():
        launch(2)
        with profile(activities=BOTH) as profiler: launch(3)
        assert kernels(profiler) >= 3
        launch(2)

    def test_profiles_the_device_only():
        with profile(activities=[ProfilerActivity.CUDA]) as profiler: launch(3)
        assert profiler.key_averages()

    def test_profiles_by_schedule():
        seen = []
        plan = schedule(wait=1, warmup=1, active=2, repeat=2)
        ready = lambda profiler: seen.append(kernels(profiler))
        with profile(activities=BOTH, schedule=plan, on_trace_ready=ready) as profiler:
            for _ in range(9):
                launch(3)
                profiler.step()
        assert len(seen) == 2 and min(seen) >= 6

    def test_the_older_interface():
        with torch.autograd.profiler.profile(use_device="cuda") as profiler: launch(3)
        assert profiler.key_averages()

    @pytest.fixture
    def profiler():
        with profile(activities=BOTH) as profiler: yield profiler
        assert kernels(profiler) >= 3
    def test_in_a_fixture(profiler): launch(3)

    def test_marks_for_nvtx():
        with torch.autograd.profiler.emit_nvtx(): launch(3)
    def test_ranges():
        with torch.cuda.nvtx.range("mine"): launch(3)
    def test_the_device_profiler():
        torch.cuda.profiler.start()
        launch(3)
        torch.cuda.profiler.stop()

    def test_afterwards(): launch(4)
"""


@pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["reruns", "only-run"])
def test_tests_that_profile_themselves(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    ran = same(pytester, OWN, *args, subprocess=True)
    assert 0 == ran.ret
    own = ("test_profiles", "test_profiles_the_device_only", "test_profiles_by_schedule")
    for test in (*own, "test_the_older_interface", "test_in_a_fixture"):
        assert "not_profiled" == ran.records[test]["status"], ran.records[test]
    assert honest(ran, "test_afterwards", 4) is None
    counts = dict.fromkeys(("test_marks_for_nvtx", "test_ranges", "test_the_device_profiler"), 3)
    found = kernels_of(ran, counts)
    assert "runs torch.profiler itself" in found.pop("test_marks_for_nvtx")
    assert {None} == {*found.values()}


# -------------------------------------------------------------------- what begins before it


GRAPH = f"""{HEAD}
    GRAPH = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(GRAPH): launch(5)

    def test_replays():
        for _ in range(3): GRAPH.replay()
    def test_replays_again(): GRAPH.replay()
    def test_other_work(): launch(4)
"""


def test_graphs_from_before_the_first_session(pytester: pytest.Pytester) -> None:
    ran = same(pytester, GRAPH, subprocess=True)
    found = kernels_of(ran, {"test_replays": 15, "test_replays_again": 5, "test_other_work": 4})
    assert {None} == {*found.values()}


@pytest.mark.parametrize(
    "variables",
    [
        {"TEARDOWN_CUPTI": "1"},
        {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {"CUDA_MODULE_LOADING": "EAGER"},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ],
    ids=lambda variables: "-".join(f"{name}={value}" for name, value in variables.items()),
)
def test_variables_of_the_environment(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ran = same(pytester, GRAPH, subprocess=True)
    found = kernels_of(ran, {"test_replays": 15, "test_replays_again": 5, "test_other_work": 4})
    assert {None} == {*found.values()}


def test_no_device_is_visible(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = """
    import pytest
    import torch

    @pytest.mark.max_kernels(3)
    def test_it():
        assert not torch.cuda.is_available()
        torch.ones(2).neg()
    """
    ran = same(pytester, source, subprocess=True)
    kernels = ran.records["test_it"]["metrics"]["kernels"]
    assert (None, "no accelerator in this capture") == (kernels["value"], kernels["reason"])
    assert 1 == session(pytester, "--torchprof-strict", subprocess=True).ret


def test_many_sessions_lose_no_kernels(pytester: pytest.Pytester) -> None:
    source = f"""{HEAD}
    @pytest.mark.parametrize("number", range(60))
    def test_it(number): launch(1 + number % 5)
    """
    ran = _profiled(pytester, source, "--torchprof-rounds=0", subprocess=True)
    counts = {f"test_it[{number}]": 1 + number % 5 for number in range(60)}
    assert {None} == {*kernels_of(ran, counts).values()}


def test_sessions_after_the_device_has_idled(pytester: pytest.Pytester) -> None:
    source = f"""{HEAD}
    slept = set()

    @pytest.mark.parametrize("number", range(6))
    def test_it(number, request):
        if number not in slept: time.sleep(2.5)
        slept.add(number)
        launch(10)
    """
    ran = _profiled(pytester, source, "--torchprof-rounds=0", subprocess=True)
    found = kernels_of(ran, {f"test_it[{number}]": 10 for number in range(6)})
    show(found)
    assert {None} == {*found.values()}


def test_more_records_than_the_profiler_has_room_for(pytester: pytest.Pytester) -> None:
    source = f"""{HEAD}
    @pytest.fixture(scope="module")
    def graph():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph): launch(5000)
        return graph

    def test_it(graph):
        for _ in range(120): graph.replay()
    def test_afterwards(): launch(4)
    """
    ran = _profiled(pytester, source, "--torchprof-rounds=0", subprocess=True)
    show(honest(ran, "test_it", 600_000))
    assert honest(ran, "test_afterwards", 4) is None


# -------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
    ],
)
def test_memory_of_other_allocators(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    source = f"""{HEAD}
    kept = []

    @pytest.mark.max_peak_cuda_bytes("1 kB")
    def test_it(): torch.ones(1 << 20, device="cuda")
    def test_leaks(): kept.append(torch.ones(1 << 20, device="cuda"))
    """
    ran = _profiled(pytester, source, subprocess=True)
    peak = ran.records["test_it"]["metrics"]["peak_cuda_bytes"]
    leaked = ran.records["test_leaks"]["metrics"]["leaked_cuda_bytes"]
    show(peak, leaked)
    if "expandable" in value:
        assert [1 << 22] * 2 == [peak["value"], leaked["value"]]
        assert 1 == ran.ret
    for metric in (peak, leaked):
        assert metric["value"] == 1 << 22 or (metric["value"] is None and metric["reason"])
    assert 1 == session(pytester, "--torchprof-strict", subprocess=True).ret
