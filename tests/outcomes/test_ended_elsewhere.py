"""A session that ends in a backward pass, or in another thread, fails no test, and no later one."""

from __future__ import annotations

import pytest
from support.sessions import run

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
    "a block ended in a thread": """
        torchprof.__enter__()
        in_a_thread(lambda: torchprof.__exit__(None, None, None))
    """,
    "the test's own profiler begun in a thread": """
        own = torch.profiler.profile()
        in_a_thread(own.start)
        try: own.stop()
        except RuntimeError: pass
    """,
    "a block ended in a thread of torch's": """
        torchprof.__enter__()
        in_a_thread_of_torch(lambda: torchprof.__exit__(None, None, None))
    """,
}
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
    lines = [line.removeprefix(" " * 4) for line in WEIRD[what].strip("\n").split("\n")]
    body = lines if len(lines) > 1 else ["    " + lines[0]]
    pytester.makepyfile(test_it=SOURCE.format(body="\n".join(body), device=device))
    ran = run(pytester, "--torchprof", *args, subprocess=True)
    assert {"passed"} == {test["outcome"] for test in ran.tests.values()}, ran.out
    before, after = (ran.tests[f"test_{name}"] for name in ("before", "after"))
    assert (0, "new") == (ran.ret, before["status"])
    if after["status"] == "new":
        names = ("ops", "allocated_cpu_bytes", "peak_cpu_bytes")
        assert [before["metrics"][n] for n in names] == [after["metrics"][n] for n in names]
    else:  # something is left that nobody can end
        assert what.startswith("the test's own profiler")
        assert after["reason"] == "another profiler session is active while the test runs"


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

def test_before(): torch.ones(3) + 1

def test_begins():
    THREAD.start()
    UP.wait(60)

def test_meanwhile(): torch.ones(3) + 1

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
    aside = dict.fromkeys(("test_begins", "test_meanwhile", "test_ends"), "not_profiled")
    assert ran.statuses == {"test_before": "new", **aside, "test_after": "new"}
    assert ran.metric("ops", "test_before") == ran.metric("ops", "test_after")


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
