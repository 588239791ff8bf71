"""Work of other processes, threads and finalizers is counted or not measured, and never 0."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.outcomes import NO_THREADS
from support.sessions import run

from pytest_torchprof.capture import processes
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.profiler import Capture
from pytest_torchprof.capture.sessions import sees_threads
from pytest_torchprof.capture.threads import PROCESS_TASKS, Threads
from pytest_torchprof.core.unknown import Why, because

FORKED = "a process that the test forked did work too, which is not recorded"
FINALIZED = (
    "finalizers (__del__) of garbage collected after the measured run called operators, "
    "and when that happens is not reproducible"
)
WORKERS = (
    "operators in a DataLoader's workers are not counted, nor what receives their batches: the "
    "workers are separate processes, and how far ahead they are is chance"
)
FIRST_OF_POOL = (
    "other threads did work too, which only another run can count: give the test a warm-up run"
)
OTHER_THREADS = "other threads did work too, and this torch cannot profile them"
THREAD_LEFT = because(*Why.THREAD_LEFT).text
STARTED = "another process did work for the test, and torch in it is not recorded: {}"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of other processes")

HEAD = """
    import ctypes, multiprocessing, os, subprocess, sys, _thread, threading, gc
    import pytest, torch

    torch.set_num_threads(1)  # a fork must not wait for a team of threads that it has not
    X = torch.ones(64, 64)
    FLOPS = 2 * 64**3

    def work():
        for _ in range(20): X @ X
"""
#: In the only run of a test, processes are left alone; see `test_processes` for other runs.
WORKING = f"""{HEAD}
    pytestmark = pytest.mark.torchprof(warmup=0, rounds=0)

    @pytest.fixture(scope="module")
    def pool():
        with multiprocessing.get_context("fork").Pool(1) as pool: yield pool

    @pytest.mark.max_flops(1)
    def test_fork():
        if (pid := os.fork()) == 0:
            work()
            os._exit(0)
        os.waitpid(pid, 0)

    def test_multiprocessing():
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()

    def test_pool_from_before(pool): pool.apply(work)

    def test_python():
        code = "import time, torch; torch.ones(2, 2) @ torch.ones(2, 2)"
        subprocess.run([sys.executable, "-c", code])

    def test_finalizer():
        class Cycle:
            def __init__(self): self.me = self
            def __del__(self): work()
        Cycle()
"""
THREADS = f"""{HEAD}
    def test_low_level():
        done = threading.Event()
        def run():
            work()
            done.set()
        _thread.start_new_thread(run, ())
        done.wait()

    def test_not_of_python():
        def run(_):
            work()
            return 0
        libc, handle = ctypes.CDLL(None), ctypes.c_void_p()
        begin = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(run)
        assert libc.pthread_create(ctypes.byref(handle), None, begin, None) == 0
        assert libc.pthread_join(handle, None) == 0

    START = _thread.start_new_thread

    def test_low_level_by_another_name():
        done = threading.Event()
        def run():
            work()
            done.set()
        START(run, ())
        done.wait()
"""
#: Threads that the test starts and does not join, and that have not done all their work.
LEFT = f"""{HEAD}
    import concurrent.futures, time

    def start(function): threading.Thread(target=function, daemon=True).start()

    @pytest.mark.max_ops(6)
    def test_that_then_waits():
        ev = threading.Event()
        def f():
            for _ in range(50): X @ X
            ev.wait(0.2)
        start(f)
        X @ X

    def test_that_works_on():
        begun, enough = threading.Event(), time.monotonic() + 0.2
        def f():
            while time.monotonic() < enough:
                X @ X
                begun.set()
        start(f)
        begun.wait()

    def test_that_has_not_begun():
        enough = time.monotonic() + 0.2
        def f():
            while time.monotonic() < enough: pass
            X @ X
        start(f)
        X @ X

    def test_a_pool_at_work():
        pool, begun = concurrent.futures.ThreadPoolExecutor(1), threading.Event()
        def f():
            X @ X
            begun.set()
            time.sleep(0.2)
        pool.submit(f)
        begun.wait()
        pool.shutdown(wait=False)
"""
#: Threads that have done all their work, or do none.
IDLE = f"""{HEAD}
    import concurrent.futures, multiprocessing.pool, queue, asyncio, time

    KEPT = []

    def keep(thing):
        KEPT.append(thing)
        return thing

    def start(function, *args):
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        return thread

    def test_joined(): start(work).join()

    def test_ends_by_itself():
        done = threading.Event()
        def f():
            work()
            done.set()
        start(f)
        done.wait()

    def test_executor():
        keep(concurrent.futures.ThreadPoolExecutor(2)).submit(work).result()

    def test_pool_of_multiprocessing():
        keep(multiprocessing.pool.ThreadPool(2)).apply(work)

    def test_own_worker():
        tasks = queue.Queue()
        def worker():
            while True:
                tasks.get()()
                tasks.task_done()
        start(worker)
        tasks.put(work)
        tasks.join()

    def test_executor_of_a_loop():
        loop = keep(asyncio.new_event_loop())
        loop.run_until_complete(loop.run_in_executor(None, work))

    def test_loop_in_a_thread():
        loop = keep(asyncio.new_event_loop())
        async def task(): work()
        start(loop.run_forever)
        asyncio.run_coroutine_threadsafe(task(), loop).result()

    def test_timer():
        keep(threading.Timer(0.5, print)).start()
        start(work).join()
        KEPT[-1].cancel()

    def test_monitor():
        stop = threading.Event()
        def poll():
            while not stop.wait(0.01): time.monotonic()
        start(poll)
        work()
        threading.Timer(0.3, stop.set).start()
"""


@pytest.mark.thorough
@linux
@pytest.mark.skipif(not sees_threads(), reason="this torch cannot profile threads")
def test_work_of_a_thread_that_the_test_leaves_is_not_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LEFT)
    # Threads that poll would work within later tests of this process.
    ran = run(pytester, "--torchprof", subprocess=True)
    reasons = {name: test["metrics"]["ops"].get("reason") for name, test in ran.tests.items()}
    assert dict.fromkeys(ran.tests, THREAD_LEFT) == reasons, ran.out
    assert "budget max_ops not checked: " + THREAD_LEFT in ran.out
    assert 4 == len(reasons)


@pytest.mark.thorough
@linux
@pytest.mark.skipif(not sees_threads(), reason="this torch cannot profile threads")
def test_threads_that_wait_for_work_or_do_none_change_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=IDLE)
    # Threads that poll would work within later tests of this process.
    ran = run(pytester, "--torchprof", subprocess=True)
    values = {name: test["metrics"]["flops"]["value"] for name, test in ran.tests.items()}
    assert dict.fromkeys(ran.tests, 40 * 64**3) == values, ran.out
    assert 9 == len(values)


@pytest.mark.thorough
@linux
def test_work_of_other_processes_and_of_finalizers_is_not_measured(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=WORKING)
    ran = run(pytester, "--torchprof")
    reasons = {name: test["metrics"]["flops"].get("reason") for name, test in ran.tests.items()}
    python = reasons.pop("test_python")
    assert python.startswith(STARTED.format("python")), python
    pooled = reasons.pop("test_pool_from_before")
    assert pooled.startswith(STARTED.format("")), pooled
    assert {"test_fork": FORKED, "test_multiprocessing": FORKED, "test_finalizer": FINALIZED} == (
        reasons
    )
    for name in ("ops", "peak_cpu_bytes", "self_cpu_ms", "findings"):
        row = ran.metric(name, "test_fork")
        assert (None, "not_measured", FORKED) == (row["value"], row["status"], row["reason"])
    assert "budget max_flops not checked: " + FORKED in ran.out


@pytest.mark.thorough
@linux
def test_the_only_run_of_a_test_does_not_pass_over_a_pool_that_was_there_before(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    from concurrent.futures import ThreadPoolExecutor

    POOL = ThreadPoolExecutor(1)
    POOL.submit(work).result()

    @pytest.mark.max_flops("1 kFLOP")
    @pytest.mark.torchprof(warmup=0, rounds=0)
    def test_it():
        POOL.submit(work).result()
        """
    )
    ran = run(pytester, "--torchprof")
    row = ran.metric("flops", "test_it")
    reason = FIRST_OF_POOL if sees_threads() else OTHER_THREADS
    assert (None, "not_measured", reason) == (row["value"], row["status"], row["reason"])
    assert "budget max_flops not checked: " + reason in ran.out


@linux
def test_threads_that_python_does_not_list_are_counted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=THREADS)
    ran = run(pytester, "--torchprof")
    names = ("test_low_level", "test_not_of_python", "test_low_level_by_another_name")
    if not sees_threads():
        assert dict.fromkeys(names, NO_THREADS) == {n: t["reason"] for n, t in ran.tests.items()}
        return
    values = {name: test["metrics"]["flops"]["value"] for name, test in ran.tests.items()}
    assert dict.fromkeys(names, 40 * 64**3) == values, ran.out


@linux
def test_an_idle_thread_that_the_end_of_a_child_wakes_has_not_worked() -> None:
    begin, worked, end = threading.Event(), threading.Event(), threading.Event()

    def wakes() -> None:
        begin.wait()
        begun = time.thread_time()
        while time.thread_time() < begun + 0.0001:
            pass
        worked.set()
        end.wait()

    idle = threading.Thread(target=wakes)
    idle.start()
    found = Threads()
    found.begin()
    begin.set()
    worked.wait()
    assert (False, True) == found.end()
    assert (False, False) == found.end(woken=True)
    end.set()
    idle.join()


@linux
def test_a_thread_of_the_run_before_that_ends_late_hides_no_work() -> None:
    late, done = threading.Event(), threading.Event()
    before = threading.Thread(target=late.wait)
    before.start()
    found = Threads()
    found.begin()

    def work() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.005:
            pass
        done.set()

    _thread.start_new_thread(work, ())
    done.wait()
    late.set()
    before.join()
    while len(PROCESS_TASKS.clocks()) > len(found._tasks) - 1:
        time.sleep(0.001)
    assert (True, False) == found.end()


@linux
def test_a_thread_that_ends_while_its_name_is_read_has_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worked, end = threading.Event(), threading.Event()

    def work() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.001:
            pass
        worked.set()
        end.wait()

    found = Threads()
    found.begin()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    worked.wait()

    def ended(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(REAL, "open", ended)
    assert (True, False) == found.end()
    end.set()


def test_dataloader_workers_are_reported_and_the_rest_is_counted(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        from torch.utils.data import DataLoader

        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return torch.ones(8, 8) @ torch.ones(8, 8)

        def test_it():
            for x in DataLoader(Rows(), 2, num_workers=1): x[0] @ x[1]
        """
    )
    ran = run(pytester, "--torchprof", "-p", "no:warnings")
    record = ran.tests["test_it"]
    if not sees_threads():
        assert record["reason"] == NO_THREADS
        return
    assert (2 * 2 * 8**3, WORKERS) == (record["metrics"]["flops"]["value"], record["reason"])
    assert WORKERS in ran.out


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="threads' CPU time is told by /proc")
def test_a_thread_that_an_earlier_test_left_at_work_is_not_counted(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import threading, time, torch
        END = threading.Event()

        def work():
            while not END.is_set():
                torch.ones(3) + 1
                time.sleep(0.001)

        def test_starts(): threading.Thread(target=work, daemon=True).start()

        def test_after():
            torch.ones(3)
            time.sleep(0.1)

        def test_ends(): END.set()
        """
    )
    ran = run(pytester, "--torchprof", subprocess=True)
    assert {"passed"} == {test["outcome"] for test in ran.tests.values()}
    for test in ("test_starts", "test_after"):
        ops = ran.tests[test]["metrics"]["ops"]
        assert (None, THREAD_LEFT) == (ops["value"], ops.get("reason")), test


@linux
def test_a_process_from_before_a_capture_is_no_work_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to list those, while a thread may look already."""
    (file := tmp_path / "libtorch").write_bytes(b"0")
    code = "import mmap, sys; m = mmap.mmap(os.open(sys.argv[1], 0), 0, prot=1); print(flush=True)"
    older = [sys.executable, "-c", f"import os; {code}; sys.stdin.read()", str(file)]
    every = processes.descendants

    def slowly() -> dict[int, int]:
        time.sleep(0.2)
        return every()

    with subprocess.Popen(older, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(processes, "descendants", slowly)
        capture = Capture(watchdog=True)
        capture.start()
        capture.end_region()
        capture.abandon()
        process.communicate()
    assert capture._elsewhere is None
