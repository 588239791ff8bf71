"""A session that ends in a backward pass, or in another thread, changes nothing for later tests."""

from __future__ import annotations

import pytest
from support.sessions import run

from pytest_torchprof.core.unknown import because

pytestmark = pytest.mark.thorough

#: Where a hook of a gradient runs in a thread of the autograd engine's own.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
#: By what ends in the hook of a gradient: the rest of a test.
WEIRD = {
    "a block": """
        torchprof.__enter__()
        backward(lambda: torchprof.__exit__(None, None, None))
    """,
    "a block in it": """
        def work():
            with torchprof: torch.ones(3)
        backward(work)
    """,
    "a block begun in it": """
        backward(lambda: torchprof.__enter__())
        torchprof.__exit__(None, None, None)
    """,
    "a callable": "backward(lambda: torchprof(lambda: torch.ones(3)))",
    "the test's own profiler": """
        own = torch.profiler.profile()
        own.start()
        backward(own.stop)
    """,
    "a block in a thread": """
        def work():
            with torchprof: torch.ones(3)
        in_a_thread(work)
    """,
    "a block begun in a thread": """
        in_a_thread(torchprof.__enter__)
        torchprof.__exit__(None, None, None)
    """,
    "a block ended in a thread": """
        torchprof.__enter__()
        in_a_thread(lambda: torchprof.__exit__(None, None, None))
    """,
    "a block begun in one thread, ended in another": """
        in_a_thread(torchprof.__enter__)
        in_a_thread(lambda: torchprof.__exit__(None, None, None))
    """,
    "the test's own profiler begun in it": """
        own = torch.profiler.profile()
        backward(own.start)
        try: own.stop()
        except RuntimeError: pass
    """,
    "the test's own profiler begun in it and left": """
        own = torch.profiler.profile()
        backward(own.start)
    """,
    "the test's own profiler begun in a thread": """
        own = torch.profiler.profile()
        in_a_thread(own.start)
        try: own.stop()
        except RuntimeError: pass
    """,
    "the test's own profiler begun in a thread and left": """
        own = torch.profiler.profile()
        in_a_thread(own.start)
    """,
    "the test's own profiler begun in a thread of torch's": """
        own = torch.profiler.profile()
        in_a_thread_of_torch(own.start)
        try: own.stop()
        except RuntimeError: pass
    """,
    "the test's own profiler begun in a thread of torch's and left": """
        own = torch.profiler.profile()
        in_a_thread_of_torch(own.start)
    """,
    "the test's own profiler ended in a thread of torch's": """
        own = torch.profiler.profile()
        own.start()
        in_a_thread_of_torch(own.stop)
    """,
    "the test's own profiler of all threads": """
        try: config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except TypeError: config = None  # an older torch
        with torch.profiler.profile(experimental_config=config): torch.ones(3)
        own = torch.profiler.profile(experimental_config=config)
        if config: in_a_thread(own.start), own.stop()
    """,
    "an emitter begun in a thread and left": """
        in_a_thread(torch.autograd.profiler.emit_itt().__enter__)
    """,
    "a legacy profiler begun in a thread and left": """
        from torch.autograd.profiler_legacy import profile
        in_a_thread(profile().__enter__)
    """,
    "a block ended in a thread of torch's": """
        torchprof.__enter__()
        in_a_thread_of_torch(lambda: torchprof.__exit__(None, None, None))
    """,
}
#: Ends our session and begins one within an operator, if ours runs: torch then writes the end of
#: that operator to memory that it has freed, which may crash, without us as well.
HAZARDS = {
    "the test's own profiler begun in it",
    "the test's own profiler begun in it and left",
    "the test's own profiler begun in a thread of torch's",
    "the test's own profiler begun in a thread of torch's and left",
}
#: Would do so, and are refused.
REFUSED = {"a block in it", "a block begun in it", "a callable"}
SOURCE = """
import threading
import torch

def backward(work):
    x = torch.ones(3, requires_grad=True, device="{device}")
    x.register_hook(lambda grad: [work()] and None)
    (2 * x).sum().backward()

def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

TODO = []

@torch.jit.ignore
def call(x: torch.Tensor) -> torch.Tensor:
    TODO.pop()()
    return x

@torch.jit.script
def task(x: torch.Tensor) -> torch.Tensor:
    return call(x)

@torch.jit.script
def outer(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(task, x))

def in_a_thread_of_torch(work):
    # It takes over the state of this thread, as a device does for a backward pass.
    TODO.append(work)
    outer(torch.ones(3))

def test_before(): torch.ones(3) + 1

def test_weird(torchprof):
{body}

def test_after(): torch.ones(3) + 1
"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["usual", "only-run"])
@pytest.mark.parametrize("what", WEIRD)
def test_later_tests_are_measured_as_before(
    what: str, args: tuple[str, ...], device: str, pytester: pytest.Pytester
) -> None:
    if args == ONLY_RUN and what in HAZARDS:
        pytest.skip("the profiled run is the first one, and torch cannot end it safely there")
    lines = [line.removeprefix(" " * 4) for line in WEIRD[what].strip("\n").split("\n")]
    body = lines if len(lines) > 1 else ["    " + lines[0]]
    pytester.makepyfile(test_it=SOURCE.format(body="\n".join(body), device=device))
    ran = run(pytester, "--torchprof", *args, subprocess=True)
    assert {"passed"} == {test["outcome"] for test in ran.tests.values()}, ran.out
    before, after = (ran.tests[f"test_{name}"] for name in ("before", "after"))
    for test in (before, after):
        assert ("new", None) == (test["status"], test["reason"])
    if args == ONLY_RUN and what in REFUSED:
        assert (
            because(
                "within_backward",
                (
                    "the measured block begins in a backward pass of the first run, which was "
                    "profiled until then (a warm-up, --torchprof-warmup=1, avoids that)"
                ),
            ).text
            == ran.tests["test_weird"]["reason"]
        )
    names = ("ops", "allocated_cpu_bytes", "peak_cpu_bytes")
    assert [before["metrics"][n] for n in names] == [after["metrics"][n] for n in names]


OUTLIVES = """
import threading
import torch

UP, GO, SEEN = threading.Event(), threading.Event(), []

def work():
    with torch.profiler.profile() as own:
        torch.ones(3) + 1
        UP.set()
        GO.wait(60)
        torch.ones(3) + 1
    SEEN.append(len(own.events()))

THREAD = threading.Thread(target=work)
ENDED = torch.profiler.profile()

def test_before(): torch.ones(3) + 1

def test_ends_its_own():
    ENDED.start()
    ENDED.stop()

def test_begins():
    THREAD.start()
    UP.wait(60)

def test_meanwhile():
    torch.ones(3) + 1
    try: ENDED.stop()  # once too often
    except RuntimeError: pass  # as some versions of torch have it

def test_ends():
    GO.set()
    THREAD.join()
    assert SEEN[0] >= 12

def test_after(): torch.ones(3) + 1
"""


def test_a_thread_s_session_outlives_the_test_in_which_it_begins(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=OUTLIVES)
    ran = run(pytester, "--torchprof", *ONLY_RUN, subprocess=True)
    assert {"passed"} == {test["outcome"] for test in ran.tests.values()}, ran.out
    aside = dict.fromkeys(
        ("test_ends_its_own", "test_begins", "test_meanwhile", "test_ends"), "not_profiled"
    )
    assert ran.statuses == {"test_before": "new", **aside, "test_after": "new"}
    assert ran.metric("ops", "test_before") == ran.metric("ops", "test_after")


POOL = """
import torch
from concurrent.futures import ThreadPoolExecutor

POOL = ThreadPoolExecutor(1)

def work():
    with torch.profiler.profile() as own: torch.ones(3) + 1
    return sum(event.name == "aten::add" for event in own.events())

def test_begins_there_and_ends_here():
    own = torch.profiler.profile()
    POOL.submit(own.start).result(60)
    try: own.stop()
    except RuntimeError: POOL.submit(torch.autograd._disable_profiler).result(60)

def test_meanwhile(): torch.ones(3) + 1

def test_profiles_there(): assert POOL.submit(work).result(60) == 1
"""


@pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["usual", "only-run"])
def test_a_session_of_a_pool_that_is_ended_elsewhere_fails_no_later_one(
    args: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=POOL)
    ran = run(pytester, "--torchprof", *args, subprocess=True)
    assert (0, 3) == (ran.ret, ran.outcomes["passed"]), ran.out


SCHEDULED = """
import pytest
import torch

@pytest.fixture(scope="session")
def own():
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(schedule=schedule) as made: yield made

@pytest.fixture(autouse=True)
def step(own):
    yield
    own.step()

@pytest.mark.parametrize("number", range(7))
def test_it(number): torch.ones(3) + 1
"""


def test_a_session_that_is_only_prepared_is_another_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SCHEDULED)
    ran = run(pytester, "--torchprof", *ONLY_RUN, subprocess=True)
    assert (0, 7) == (ran.ret, ran.outcomes["passed"]), ran.out
