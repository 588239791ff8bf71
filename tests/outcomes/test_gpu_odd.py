"""On a real GPU: unusual tests end as without the plugin, and their numbers are right."""

from __future__ import annotations

import pytest
from support.gpu_sources import HEAD, counts, values
from support.outcomes import same, session
from support.seen import show

pytestmark = [pytest.mark.gpu, pytest.mark.thorough]

ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
BOTH = pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["reruns", "only-run"])


# -------------------------------------------------------------------- streams and graphs


STREAMS = f"""{HEAD}
    S = torch.cuda.Stream()

    def test_a_side_stream():
        with torch.cuda.stream(S): launch(3, torch.ones(64, device="cuda"))
        torch.cuda.current_stream().wait_stream(S)

    @pytest.fixture
    def on_side():
        S.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(S): yield
        torch.cuda.current_stream().wait_stream(S)
    def test_in_a_side_stream(on_side): launch(3)

    def test_leaves_another_stream_current():
        torch.cuda.set_stream(torch.cuda.Stream())
        launch(3)
    def test_gives_it_back():
        launch(3)
        torch.cuda.set_stream(torch.cuda.default_stream())

    def test_leaves_work_running():
        torch.cuda._sleep(50_000_000)
        launch(3)
    def test_events():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch(3)
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) > 0
    def test_a_slow_one_is_waited_for():
        torch.cuda._sleep(200_000_000)

    @pytest.fixture(scope="module")
    def graph():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph): launch(5)
        return graph
    def test_replays(graph):
        for _ in range(3): graph.replay()
    def test_captures_and_replays():
        x = torch.ones(64, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): launch(5, x)
        graph.replay()
        graph.replay()
    def test_captures_without_replaying():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph): launch(5)
    def test_graphed_callables():
        layer = torch.nn.Linear(8, 8).cuda()
        x = torch.ones(4, 8, device="cuda")
        graphed = torch.cuda.make_graphed_callables(layer, (x,))
        graphed(x).sum().backward()
    def test_a_region_within_a_capture(torchprof):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            with torchprof: launch(5)
        graph.replay()
    def test_a_capture_that_fails():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError):
            with torch.cuda.graph(graph): X.sum().item()
"""


@BOTH
def test_streams_and_graphs(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    ran = same(pytester, STREAMS, *args, subprocess=True)
    assert 0 == ran.ret
    show(ran.statuses)
    three = ("test_in_a_side_stream", "test_leaves_another_stream_current", "test_gives_it_back")
    counts(ran, "kernels", **dict.fromkeys((*three, "test_events"), 3))
    four = ("test_a_side_stream", "test_leaves_work_running")  # a fill, a sleep
    counts(ran, "kernels", **dict.fromkeys(four, 4))
    # A capture itself fills the generator's seed and offset.
    counts(ran, "kernels", test_replays=15, test_captures_without_replaying=2)
    counts(ran, "kernels", test_captures_and_replays=1 + 2 + 2 * 5)
    counts(ran, "kernels", test_a_capture_that_fails=2)
    reason = ran.records["test_a_region_within_a_capture"]["reason"]
    assert "while a CUDA graph is captured" in reason
    waited = ran.metric("test_a_slow_one_is_waited_for", "self_cuda_ms")
    assert waited > 50
    if not args:
        assert ran.metric("test_a_slow_one_is_waited_for", "wall_ms") > waited / 2
    show(values(ran, "kernels", *ran.records))


# -------------------------------------------------------------------- memory and errors


MEMORY = f"""{HEAD}
    MB = 1 << 20
    kept = []

    def out_of_memory(): return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    def test_raises(): out_of_memory()
    def test_catches():
        with pytest.raises(torch.cuda.OutOfMemoryError): out_of_memory()
        launch(3)
    def test_catches_at_the_fraction():
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        finally: torch.cuda.set_per_process_memory_fraction(1.0)
        launch(3)
    def test_resets_the_peak():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        x = torch.ones(MB, device="cuda")
        assert before + 4 * MB == torch.cuda.max_memory_allocated()
        del x
        torch.cuda.reset_peak_memory_stats()
    def test_empties_the_cache():
        x = torch.ones(MB, device="cuda")
        del x
        torch.cuda.empty_cache()
        y = torch.ones(MB, device="cuda")
    def test_needs_what_it_had():
        before = torch.cuda.memory_allocated()
        x = torch.ones(MB, device="cuda")
        del x
        assert before == torch.cuda.memory_allocated()
    def test_records_its_history():
        torch.cuda.memory._record_memory_history(max_entries=100)
        x = torch.ones(MB, device="cuda")
        assert torch.cuda.memory._snapshot()["segments"]
        torch.cuda.memory._record_memory_history(enabled=None)
    def test_leaks():
        kept.append(torch.ones(MB, device="cuda"))
    def test_frees_what_leaked(): kept.clear()
    def test_a_pool():
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool): x = torch.ones(MB, device="cuda")
        del x
    def test_without_a_cache():
        torch.cuda.memory.caching_allocator_enable(False)
        try: x = torch.ones(MB, device="cuda")
        finally: torch.cuda.memory.caching_allocator_enable(True)
        del x
"""


@BOTH
def test_memory(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    ran = same(pytester, MEMORY, *args, subprocess=True)
    called = [report["outcome"] for report in ran.reports if report["when"] == "call"]
    assert ["failed", *["passed"] * 10] == called
    show(ran.statuses)
    assert "not_profiled" == ran.records["test_raises"]["status"]
    counts(ran, "kernels", test_catches=3, test_catches_at_the_fraction=3)
    peaks = [
        *("test_resets_the_peak", "test_empties_the_cache", "test_needs_what_it_had"),
        *("test_records_its_history", "test_leaks", "test_a_pool"),
    ]
    counts(ran, "peak_cuda_bytes", **dict.fromkeys(peaks, 4 << 20))
    counts(ran, "leaked_cuda_bytes", **{**dict.fromkeys(peaks, 0), "test_leaks": 4 << 20})
    unseen = values(ran, "peak_cuda_bytes", "test_without_a_cache")["test_without_a_cache"]
    assert "does not see the allocator cudaMalloc" in unseen


FATAL = f"""{HEAD}
    def test_before(): launch(3)
    def test_asserts():
        X[torch.tensor([1000], device="cuda")]
        {{wait}}
    def test_afterwards(): launch(3)
    def test_on_the_host(): torch.ones(2).neg()
"""


# It fails some time after the launch: without a wait, or some time, later tests may pass or fail.
@pytest.mark.parametrize("wait", ["torch.cuda.synchronize()", "time.sleep(0.5)"])
def test_an_assertion_on_the_device(pytester: pytest.Pytester, wait: str) -> None:
    pytester.makepyfile(test_it=FATAL.format(wait=wait))
    plain = session(pytester, subprocess=True, profiled=False)
    ours = session(pytester, subprocess=True)
    ends = [[(r["test"], r["when"], r["outcome"]) for r in ran.reports] for ran in (plain, ours)]
    assert ends[0] == ends[1]
    assert plain.ret == ours.ret
    assert not [line for line in ours.terminal if "internal error" in line]
    counts(ours, "kernels", test_before=3)
    show(ours.statuses, values(ours, "kernels", *ours.records))


# -------------------------------------------------------------------- settings


SETTINGS = f"""{HEAD}
    A = torch.ones(256, 256, device="cuda")
    torch.mm(A, A)

    def test_forbids_syncs():
        torch.cuda.set_sync_debug_mode("error")
        try: launch(3)
        finally: torch.cuda.set_sync_debug_mode("default")
    @pytest.fixture
    def no_syncs():
        torch.cuda.set_sync_debug_mode("error")
        yield
        torch.cuda.set_sync_debug_mode("default")
    def test_under_a_fixture_that_forbids_syncs(no_syncs): launch(3)
    def test_syncs_where_that_is_forbidden(no_syncs):
        with pytest.raises(RuntimeError): X.sum().item()
    def test_leaves_syncs_forbidden():
        torch.cuda.set_sync_debug_mode("error")
        launch(3)
    def test_finds_them_forbidden():
        assert torch.cuda.get_sync_debug_mode() == 2
        launch(3)
        torch.cuda.set_sync_debug_mode("default")
    def test_warns_of_syncs():
        torch.cuda.set_sync_debug_mode("warn")
        X.sum().item()
        torch.cuda.set_sync_debug_mode("default")
    def test_deterministic():
        torch.use_deterministic_algorithms(True, warn_only=True)
        launch(3)
        torch.use_deterministic_algorithms(False)
    def test_autocast():
        with torch.autocast("cuda", torch.bfloat16): torch.mm(A, A)
    def test_random_numbers():
        torch.cuda.manual_seed(0)
        print(torch.rand(3, device="cuda").tolist())
    def test_random_numbers_go_on(): print(torch.rand(3, device="cuda").tolist())
    def test_a_generator():
        made = torch.Generator("cuda").manual_seed(3)
        print(torch.rand(3, device="cuda", generator=made).tolist())
    def test_a_default_device():
        torch.set_default_device("cuda")
        assert torch.ones(2).is_cuda
    def test_the_default_device_stays():
        assert torch.ones(2).is_cuda
        torch.set_default_device(None)
    def test_benchmarks_convolutions():
        torch.backends.cudnn.benchmark = True
        conv, x = torch.nn.Conv2d(3, 8, 3).cuda(), torch.ones(2, 3, 32, 32, device="cuda")
        conv(x).sum().backward()
        torch.backends.cudnn.benchmark = False
    def test_in_a_thread():
        thread = threading.Thread(target=launch, args=(3,))
        thread.start()
        thread.join()
    def test_in_a_thread_and_stream():
        def work():
            with torch.cuda.stream(torch.cuda.Stream()):
                launch(3)
                torch.cuda.current_stream().synchronize()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    def test_backward():
        x = torch.ones(8, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
    def test_copies():
        x = torch.ones(1 << 20).pin_memory()
        y = x.to("cuda", non_blocking=True)
        x.copy_(y, non_blocking=True)
        torch.cuda.synchronize()
    def test_names_the_device():
        assert torch.cuda.is_available() and torch.cuda.current_device() == 0
        assert torch.cuda.get_device_name()
    def test_a_module_on_the_device():
        torch.nn.Linear(8, 8, device="cuda")(torch.ones(2, 8, device="cuda")).sum().backward()
"""


@BOTH
def test_settings(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    ran = same(pytester, SETTINGS, "-rA", *args, subprocess=True)
    assert 0 == ran.ret
    show(ran.statuses)
    three = ["test_forbids_syncs", "test_under_a_fixture_that_forbids_syncs", "test_deterministic"]
    counts(ran, "kernels", **dict.fromkeys([*three, "test_leaves_syncs_forbidden"], 3))
    found = values(ran, "kernels", "test_finds_them_forbidden", "test_the_default_device_stays")
    if args:
        assert [3, 1] == [*found.values()]
    else:  # in a rerun the mode and the device of an earlier test are gone
        assert all("cannot be run twice" in reason for reason in found.values())
    counts(ran, "flops", test_autocast=2 * 256**3)
    counts(ran, "h2d_bytes", test_copies=4 << 20)
    counts(ran, "d2h_bytes", test_copies=4 << 20)
    found = values(ran, "kernels", "test_in_a_thread", "test_in_a_thread_and_stream")
    show(found)
    assert all(value == 3 or isinstance(value, str) for value in found.values())
    if not args:
        assert {3} == {*found.values()}
