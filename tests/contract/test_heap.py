"""The profiler's small records between tensors do not make the process grow by each tensor."""

from __future__ import annotations

import sys

import pytest

#: 13 tensors of 2.5 MB an iteration: 1.6 GB in all, of which 40 MB are there at once.
FRAGMENTS = """
import resource
import torch

def test_kernels():
    centers = torch.arange(64.0)
    for _ in range(50):
        x = torch.rand(10_000)
        d = (centers[:, None] - x[None]).abs() * 0.5
        a = d * (-1.8 * d - 0.1) + 1.0
        b = d * (1.8 * d - 3.7) + 1.9
        torch.where(d < 0.5, a, torch.where(d <= 1.0, b, torch.tensor(0.0))).sum()

def test_peak():
    print("MiB:", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of glibc")
def test_tensors_that_come_and_go_leave_no_holes_in_the_heap(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FRAGMENTS)
    peaks = []
    for args in ([], ["--torchprof"]):
        ran = pytester.runpytest_subprocess("-s", *args, "-pno:randomly", "-pno:xdist", timeout=300)
        ran.assert_outcomes(passed=2)
        peaks.append(int(ran.stdout.str().split("MiB: ")[1].split()[0]))
    assert peaks[1] - peaks[0] < 600, peaks


#: Says in each run whether a block of 4 MiB has been reserved apart, by the second bit before it.
APART = """
import ctypes
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_it(n):
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    size = ctypes.c_size_t.from_address(malloc(2**22) - ctypes.sizeof(ctypes.c_size_t))
    with open(f"apart-{n}", "a") as file: print(size.value >> 1 & 1, file=file)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of glibc")
@pytest.mark.parametrize(
    ("tunables", "apart"), [("", {"0", "1"}), ("glibc.malloc.trim_threshold=1000000", {"1"})]
)
def test_all_tests_run_under_the_same_limits_and_those_of_the_user_stay(
    tunables: str, apart: set[str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone in a capture, blocks are placed otherwise."""
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    pytester.makepyfile(APART)
    args = ("--torchprof", "-pno:randomly", "-pno:xdist")
    pytester.runpytest_subprocess(*args, timeout=300).assert_outcomes(passed=2)
    runs = [(pytester.path / f"apart-{n}").read_text().split() for n in (1, 2)]
    assert runs[0] == runs[1]
    assert apart == {*runs[0]}
