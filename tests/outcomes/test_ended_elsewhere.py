"""A session that ends in a backward pass, or in another thread, changes nothing for later tests."""

from __future__ import annotations

import pytest
from support.sessions import run

pytestmark = pytest.mark.thorough

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
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """,
}
SOURCE = """
import threading
import torch

def backward(work):
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: [work()] and None)
    (2 * x).sum().backward()

def test_before(): torch.ones(3) + 1

def test_weird(torchprof):
{body}

def test_after(): torch.ones(3) + 1
"""


@pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["usual", "only-run"])
@pytest.mark.parametrize("what", WEIRD)
def test_later_tests_are_measured_as_before(
    what: str, args: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    lines = [line.removeprefix(" " * 4) for line in WEIRD[what].strip("\n").split("\n")]
    body = lines if len(lines) > 1 else ["    " + lines[0]]
    pytester.makepyfile(test_it=SOURCE.format(body="\n".join(body)))
    ran = run(pytester, "--torchprof", *args, subprocess=True)
    assert {"passed"} == {test["outcome"] for test in ran.tests.values()}, ran.out
    before, after = (ran.tests[f"test_{name}"] for name in ("before", "after"))
    assert (
        ("new", None)
        == (after["status"], after["reason"])
        == (
            before["status"],
            before["reason"],
        )
    )
    names = ("ops", "allocated_cpu_bytes", "peak_cpu_bytes")
    assert [before["metrics"][n] for n in names] == [after["metrics"][n] for n in names]
