"""What a test does to the process, and what it sees of it, is as without us."""

from __future__ import annotations

import shutil
import sys

import pytest
from support.outcomes import NO_THREADS, same, session

from pytest_torchprof.capture.sessions import sees_threads

ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
OWN = "the test runs torch.profiler itself, and profiler sessions cannot be nested"
BOTH = pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="reruns"),
        pytest.param(ONLY_RUN, id="only-run", marks=pytest.mark.thorough),
    ],
)


@BOTH
def test_tests_that_profile_themselves_see_all_their_events(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    source = """
        import threading
        import pytest
        import torch
        from torch.autograd import profiler as old
        from torch.autograd import profiler_legacy as oldest
        from torch.profiler import ProfilerActivity, profile, record_function, schedule

        def work():
            for _ in range(2): torch.ones(4, 4) @ torch.ones(4, 4)

        def check(events):
            assert 2 == sum(event.name == "aten::mm" for event in events)

        def test_profile():
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p: work()
            check(p.events())

        def test_twice():
            test_profile()
            test_profile()

        def test_schedule():
            seen = []
            ready = lambda p: seen.append(len(p.events()))
            with profile(activities=[ProfilerActivity.CPU], on_trace_ready=ready,
                         schedule=schedule(wait=1, warmup=1, active=1)) as p:
                for _ in range(3):
                    work()
                    p.step()
            assert 1 == len(seen) and seen[0]

        def test_autograd_profile():
            with old.profile() as p: work()
            check(p.function_events)

        def test_legacy_profile():
            with oldest.profile() as p: work()

        def test_emit_itt():
            with old.emit_itt(): work()

        def test_emit_nvtx():
            with pytest.raises(AssertionError), old.emit_nvtx(): work()

        def test_in_a_thread():
            failed = []
            def run():
                try: test_profile()
                except BaseException as error: failed.append(error)
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            assert not failed
            work()

        def test_after_work():
            work()
            test_profile()
            work()

        @pytest.fixture
        def around():
            with profile(activities=[ProfilerActivity.CPU]) as p: yield p
            check(p.events())

        def test_within_a_fixture(around): work()

        def test_in_a_backward_pass():
            x = torch.ones(2, requires_grad=True)
            y = 2 * x
            y.register_hook(lambda grad: test_profile())
            y.sum().backward()
            test_profile()

        def test_annotates():
            with record_function("mine"): work()

        def test_asks():
            assert not torch.autograd._profiler_enabled() or True

        def test_is_measured(): work()
    """
    seen = same(pytester, source, *args)
    own = ["test_profile", "test_twice", "test_schedule", "test_autograd_profile", "test_emit_itt"]
    own += ["test_legacy_profile", "test_in_a_thread", "test_after_work", "test_in_a_backward_pass"]
    for name in own:
        assert OWN == seen.statuses[name], name
    active = "another profiler session is active while the test runs"
    assert active == seen.statuses["test_within_a_fixture"]
    assert "new" == seen.statuses["test_is_measured"] == seen.statuses["test_annotates"]
    assert 22 == seen.metric("test_is_measured", "dispatches")
    assert 6 == seen.metric("test_is_measured", "ops")


@pytest.mark.thorough
def test_standard_streams_that_a_test_closes(pytester: pytest.Pytester) -> None:
    source = """
        import os
        import torch

        def test_closes():
            try: os.close(0)
            except OSError: pass

        def test_fails():
            torch.ones(3)
            assert 0, "shown"
    """
    seen = same(pytester, source, subprocess=True)
    assert "shown" in str(seen.reports)


@pytest.mark.thorough
def test_a_mode_left_on_that_refuses_operators_on_real_tensors(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        def test_enters():
            FakeTensorMode().__enter__()
            torch.ones(2) + 1

        def test_within(): torch.ones(2) + 1
    """
    seen = same(pytester, source, subprocess=True)
    assert {"test_enters": "new", "test_within": "new"} == seen.statuses


def test_a_profiler_left_running_goes_on(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        import torch

        @pytest.fixture(scope="session", autouse=True)
        def profiled():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
                yield
            print("events", any(event.name == "aten::mm" for event in p.events()))

        def test_one(): torch.ones(2, 2) @ torch.ones(2, 2)
        def test_two(): torch.ones(2, 2) @ torch.ones(2, 2)
    """
    seen = same(pytester, source, "-s", ordered=False)
    active = "another profiler session is active while the test runs"
    assert {"test_one": active, "test_two": active} == seen.statuses


@BOTH
def test_tests_of_traces_and_hooks_of_python(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    source = """
        import cProfile
        import sys
        import threading
        import pytest
        import torch

        def inner(): torch.ones(2)

        @pytest.mark.parametrize("set_, get", [
            (sys.setprofile, sys.getprofile), (sys.settrace, sys.gettrace)])
        def test_hook(set_, get):
            assert get() is None
            seen = []
            def hook(frame, event, arg): seen.append(frame.f_code.co_name)
            set_(hook)
            try: inner()
            finally: set_(None)
            assert "inner" in seen

        def test_by_name():
            seen = []
            sys.setprofile(lambda frame, event, arg: seen.append(event))
            inner()
            sys.setprofile(None)
            assert seen

        def test_cprofile():
            with cProfile.Profile() as p: inner()
            p.create_stats()
            assert any(key[2] == "inner" for key in p.stats)

        @pytest.fixture
        def hooked():
            seen = []
            def hook(frame, event, arg): seen.append(frame.f_code.co_name)
            sys.setprofile(hook)
            yield
            assert sys.getprofile() is hook
            sys.setprofile(None)
            assert "inner" in seen

        def test_under_a_hook(hooked): inner()

        @pytest.mark.max_ops(9, module="Linear")
        def test_under_a_hook_with_stacks(hooked):
            inner()
            torch.nn.Linear(2, 2)(torch.ones(2))
    """
    seen = same(pytester, source, *args)
    statuses = seen.statuses
    own = "the test uses sys.setprofile itself, which times and stacks disturb"
    stacks = "a sys.setprofile hook is active, and recording stacks would end it"
    assert statuses.pop("test_under_a_hook") == own
    assert statuses.pop("test_under_a_hook_with_stacks") in {own, stacks}
    assert {"new"} == set(statuses.values())


@pytest.mark.thorough
@BOTH
def test_the_garbage_collector(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    source = """
        import gc
        import weakref
        import pytest

        class Knot:
            def __init__(self): self.me = self

        def test_is_on(): assert gc.isenabled()
        def test_off_and_on():
            gc.disable()
            assert not gc.isenabled()
            gc.enable()
        def test_left_off(): gc.disable()
        def test_is_off():
            assert not gc.isenabled()
            gc.enable()
        def test_cycle():
            knot = weakref.ref(Knot())
            gc.collect()
            assert knot() is None
        def test_own_threshold():
            gc.set_threshold(123, 4, 5)
        def test_own_threshold_is_there():
            assert (123, 4, 5) == gc.get_threshold() or not gc.get_threshold()[0]
            print(gc.get_threshold()[1:])
            gc.set_threshold(700, 10, 10)
        def test_frozen():
            gc.freeze()
            assert gc.get_freeze_count()
            gc.unfreeze()
        def test_callbacks():
            seen = []
            gc.callbacks.append(lambda phase, info: seen.append(phase))
            gc.collect()
            gc.callbacks.pop()
            assert ["start", "stop"] == seen
        def test_no_ghosts():
            assert not [o for o in gc.get_objects() if isinstance(o, Knot)]
    """
    seen = same(pytester, source, "-rA", *args)
    assert "new" == seen.statuses["test_is_on"] == seen.statuses["test_cycle"]


@BOTH
def test_settings_of_torch(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    source = """
        import pytest
        import torch

        @pytest.fixture(autouse=True, scope="module")
        def three():
            old = torch.get_num_threads()
            torch.set_num_threads(3)
            yield
            torch.set_num_threads(old)

        def test_has_three(): assert 3 == torch.get_num_threads()
        def test_sets_two():
            torch.set_num_threads(2)
            assert 2 == torch.get_num_threads()
        def test_has_two():
            assert 2 == torch.get_num_threads()
            torch.set_num_threads(3)
        def test_neither(): torch.ones(2)
        def test_has_three_again(): assert 3 == torch.get_num_threads()

        def test_sets_others():
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.use_deterministic_algorithms(True)
            torch.set_flush_denormal(False)
        def test_has_others():
            assert torch.float64 == torch.ones(1).dtype
            assert not torch.is_grad_enabled()
            assert torch.are_deterministic_algorithms_enabled()
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            torch.use_deterministic_algorithms(False)
        def test_inference():
            with torch.inference_mode(): torch.ones(2).neg()
        def test_default_device():
            with torch.device("meta"): assert torch.ones(2).is_meta

        @pytest.fixture
        def pretended(monkeypatch):
            monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: 1 / 0)
            monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
            monkeypatch.setattr(torch.profiler, "profile", None)
            monkeypatch.setattr(torch.profiler, "record_function", None)
        def test_pretends_that_there_is_a_device(pretended): torch.ones(2)
    """
    seen = same(pytester, source, *args)
    assert "new" == seen.statuses["test_pretends_that_there_is_a_device"]
    assert "new" == seen.statuses["test_neither"]
    assert "new" == seen.statuses["test_sets_two"]
    if args == ONLY_RUN:
        assert "new" == seen.statuses["test_has_three"]


@pytest.mark.thorough
@BOTH
def test_the_plugin_does_not_call_what_a_test_replaced(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    source = """
        import builtins
        import gc
        import io
        import os
        import pathlib
        import sys
        import tempfile
        import threading
        import time
        import unittest.mock
        import pytest
        import torch

        NAMES = [
            (time, "time"), (time, "perf_counter"), (time, "perf_counter_ns"), (time, "monotonic"),
            (time, "process_time_ns"), (builtins, "open"), (tempfile, "mkstemp"),
            (tempfile, "mkdtemp"), (os, "close"), (os, "open"), (os, "dup"),
            (os, "unlink"), (os, "getpid"), (os, "getcwd"), (gc, "collect"),
            (pathlib.Path, "open"), (pathlib.Path, "read_bytes"), (pathlib.Path, "unlink"),
            (threading.Thread, "start"),
        ]
        if pytest.version_tuple >= (9,):  # an older one flushes while the test has its patch
            NAMES.append((sys.stdout, "flush"))

        @pytest.fixture(params=range(len(NAMES)), ids=lambda i: NAMES[i][1])
        def mocked(request):
            place, name = NAMES[request.param]
            with unittest.mock.patch.object(place, name) as mock:
                yield mock
            assert 1 == mock.call_count, mock.mock_calls
            mock()

        def test_it(mocked):
            torch.ones(2)
            mocked()

        @pytest.fixture
        def no_environment():
            with unittest.mock.patch.dict(os.environ, clear=True): yield
        def test_no_environment(no_environment): assert "PATH" not in os.environ

        @pytest.fixture
        def no_output(monkeypatch):
            for name in ("stdout", "stderr"):
                stream = io.StringIO()
                monkeypatch.setattr(sys, name, stream)
                stream.close()
        def test_no_output(no_output): torch.ones(2)
    """
    seen = same(pytester, source, *args)
    assert {"new"} == set(seen.statuses.values())


@BOTH
def test_folders(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    source = """
        import os
        import shutil
        import pytest

        HOME = os.getcwd()

        def test_home(): assert HOME == os.getcwd()
        def test_leaves(tmp_path):
            os.chdir(tmp_path)
            print(os.getcwd())
        def test_is_elsewhere():
            assert "test_leaves0" == os.path.basename(os.getcwd())
            os.chdir(HOME)
        def test_with_monkeypatch(monkeypatch, tmp_path): monkeypatch.chdir(tmp_path)
        def test_back_home(): assert HOME == os.getcwd()
        def test_loses_its_folder(tmp_path):
            os.chdir(tmp_path)
            shutil.rmtree(tmp_path)
        def test_is_nowhere():
            with pytest.raises(FileNotFoundError): os.getcwd()
            os.chdir(HOME)
        def test_home_again(): assert HOME == os.getcwd()
    """
    seen = same(pytester, source, "-rA", *args)
    assert "new" == seen.statuses["test_leaves"]


@pytest.mark.thorough
def test_children(pytester: pytest.Pytester) -> None:
    source = """
        import os
        import subprocess
        import sys
        import pytest
        import torch
        from torch.utils.data import DataLoader

        def test_fork():
            child = os.fork()
            if not child:
                torch.ones(2).neg()
                os._exit(3)
            assert 3 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            torch.ones(2).neg()

        def test_subprocess(capfd):
            subprocess.run([sys.executable, "-c", "print(1)"], check=True)
            assert "1\\n" == capfd.readouterr().out

        def test_loader():
            loader = DataLoader(list(range(4)), num_workers=1, multiprocessing_context="fork")
            assert 4 == len(list(loader))

        def test_abandoned_loader():
            next(iter(DataLoader(list(range(4)), num_workers=1, multiprocessing_context="fork")))
    """
    reruns = same(pytester, source, subprocess=True)
    only_run = session(pytester, *ONLY_RUN, subprocess=True)
    for seen in (reruns, only_run):
        assert 0 == seen.ret
        assert "new" == seen.statuses["test_fork"]
        assert 0 == seen.metric("test_subprocess", "ops")
    assert 2 * 2 == reruns.metric("test_fork", "ops")  # the child has worked too: fill_ and neg
    assert 2 * 4 == reruns.metric("test_fork", "dispatches")
    assert only_run.metric("test_fork", "ops") is None  # … and nobody knew that it would
    assert not sees_threads() or reruns.metric("test_loader", "ops")  # a queue has one


@pytest.mark.thorough
def test_work_in_threads_counts(pytester: pytest.Pytester) -> None:
    source = """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import pytest
        import torch

        def mm(n=1):
            a = torch.ones(4, 4)
            for _ in range(n): a = a @ a

        def in_a_thread(function):
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()

        def test_in_the_main_thread(): mm(3)
        def test_in_a_thread(): in_a_thread(lambda: mm(3))
        def test_in_both():
            mm(1)
            in_a_thread(lambda: mm(2))
        def test_a_thread_without_work():
            mm(3)
            in_a_thread(lambda: None)

        def test_a_block(torchprof):
            with torchprof: in_a_thread(lambda: mm(3))
            assert 3 * 4 ** 3 * 2 == torchprof.stats.flops

        def test_a_callable(torchprof):
            torchprof(lambda: in_a_thread(lambda: mm(3)))
            assert 3 * 4 ** 3 * 2 == torchprof.stats.flops

        def test_a_wrong_number(torchprof):
            with torchprof: in_a_thread(lambda: mm(3))
            assert 0 == torchprof.stats.flops

        @pytest.fixture(scope="module")
        def pool():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(mm).result()
                yield pool

        def test_in_a_pool(pool): pool.submit(mm, 3).result()
        def test_beside_a_pool(pool): mm(3)
    """
    pytester.makepyfile(test_it=source)
    seen = session(pytester)
    flops = 3 * 4**3 * 2
    statuses = seen.statuses
    failed = "an assertion failed once the test's numbers were measured"
    assert (failed if sees_threads() else NO_THREADS) == statuses.pop("test_a_wrong_number")
    for name, status in statuses.items():
        if not sees_threads() and (status == NO_THREADS or seen.metric(name, "flops") is None):
            assert name not in {"test_in_the_main_thread", "test_beside_a_pool"}
            continue
        assert ("new", flops) == (status, seen.metric(name, "flops")), name
        peak = seen.records[name]["metrics"]["peak_cpu_bytes"]
        alone = name in {"test_in_the_main_thread", "test_a_thread_without_work"}
        alone = alone or name == "test_beside_a_pool"
        assert alone == (peak["value"] is not None), name
    # With one run there is no other to look at: said, and never undercounted.
    seen = session(pytester, *ONLY_RUN)
    assert seen.statuses["test_in_a_thread"].startswith("the test starts threads, and only another")


@pytest.mark.thorough
def test_generators_and_frames(pytester: pytest.Pytester) -> None:
    source = """
        import contextlib
        import sys
        import pytest
        import torch

        @contextlib.contextmanager
        def twice():
            yield
            yield
        def test_a_bad_generator():
            with twice(): pass
        def test_suspended():
            def numbers():
                with contextlib.suppress(GeneratorExit): yield torch.ones(1)
            next(numbers())
        def test_depth():
            def depth(n): return n if n == 0 else depth(n - 1)
            depth(sys.getrecursionlimit() - 150)
        @pytest.fixture
        def yields_twice():
            yield 1
            yield 2
        def test_yields_twice(yields_twice): pass
        @pytest.fixture
        def yields_never():
            if False: yield
        def test_yields_never(yields_never): pass
    """
    same(pytester, source, *(["-k", "not depth"] if sys.version_info >= (3, 12) else []))


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_grows_as_it_does_under_the_bare_profiler(pytester: pytest.Pytester) -> None:
    payload = """
        import torch
        def work():
            x = torch.ones(8, 8, requires_grad=True)
            for _ in range(20): x = (x @ x).relu()
            x.sum().backward()
        def resident():
            import os
            with open("/proc/self/statm") as file: pages = int(file.read().split()[1])
            return pages * os.sysconf("SC_PAGESIZE") / 2**20
    """
    pytester.makepyfile(
        payload=payload,
        bare="""
        import torch
        from payload import resident, work
        for i in range(150):
            with torch.profiler.profile(record_shapes=True, profile_memory=True) as p: work()
            p.export_chrome_trace("trace.json")
            if i == 24: before = resident()
        print("grown", resident() - before)
        """,
        test_it="""
        import pytest
        from payload import resident, work
        at = []
        @pytest.mark.parametrize("i", range(150))
        def test_it(i):
            if i == 25 and not at or i == 149: at.append(resident())
            work()
        def test_last(): print("grown", at[-1] - at[0])
        """,
    )
    bare = pytester.runpython(pytester.path / "bare.py").stdout.str()
    ours = pytester.runpytest_subprocess(
        "--torchprof", "--torchprof-rounds=0", "-s", "-q"
    ).stdout.str()
    grown = [float(text.split("grown ")[1].split()[0]) for text in (bare, ours)]
    assert grown[1] < 3 * grown[0] + 20, grown


COMPILING = """
import types
import pytest
import torch

torch.set_num_threads(3)
compiler = types.ModuleType("torch._inductor.some_part")
exec("import torch\\ndef threads(): return torch.get_num_threads()", vars(compiler))

@pytest.mark.torchprof(warmup=0, rounds=0)
def test_a_compiler_asks():
    real = torch._C.get_num_threads()
    assert 3 == compiler.threads()
    torch.ones(2)
    assert real == torch._C.get_num_threads()

@pytest.mark.torchprof(warmup=0, rounds=0)
def test_a_compiler_asks_after_the_test():
    torch.set_num_threads(2)
    assert 2 == compiler.threads()
    torch.set_num_threads(3)
"""


@pytest.mark.thorough
def test_the_compiler_sees_the_tests_threads_and_none_are_changed_under_it(
    pytester: pytest.Pytester,
) -> None:
    seen = same(pytester, COMPILING)
    assert {"new"} == set(seen.statuses.values())


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_compiles_in_the_only_run_with_several_threads(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch logs less where an earlier session has left the compiled graph on the disk.
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    source = """
        import pytest
        import torch

        torch.set_num_threads(2)

        @pytest.mark.torchprof(warmup=0, rounds=0)
        @pytest.mark.filterwarnings("ignore::DeprecationWarning")
        def test_it():
            product = torch.nn.Linear(16, 16).requires_grad_(False)
            torch.compile(product)(torch.ones(2, 16))
        """
    assert {"new"} == set(same(pytester, source, subprocess=True).statuses.values())
