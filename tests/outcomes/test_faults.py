"""A fault within one test, of ours or of what we call, is of that test alone."""

from __future__ import annotations

import pytest
from support.outcomes import same

ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")
BOTH = pytest.mark.parametrize("args", [(), ONLY_RUN], ids=["reruns", "only-run"])

#: Each breaks something that we or what we call may need; by a fixture, or in the test.
BROKEN = """
import builtins
import gc
import os
import re
import sys
import threading
import unittest.mock
import pytest
import torch


def boom(*args, **kwargs):
    raise RuntimeError("broken by the test")


def work():
    torch.ones(4, 4) @ torch.ones(4, 4)


def no_numpy(m): m.setitem(sys.modules, "numpy", None)
def no_finders(m): m.setattr(sys, "meta_path", [])
def no_importing(m):
    real = builtins.__import__
    def only_what_is_there(name, *args, **kwargs):
        if name not in sys.modules: raise ImportError(name)
        return real(name, *args, **kwargs)
    m.setattr(builtins, "__import__", only_what_is_there)
def no_imports(m): m.setattr(builtins, "__import__", boom)
def no_substitution(m): m.setattr(re, "sub", boom)
def no_list_of_threads(m): m.setattr(threading, "enumerate", boom)
def no_collection(m): m.setattr(gc, "collect", boom)
def no_torch(m): m.setitem(sys.modules, "torch", None)
def no_torch_at_all(m):
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch"]:
        m.delitem(sys.modules, name)
def fake_torch(m): m.setitem(sys.modules, "torch", unittest.mock.MagicMock())
def other_torch(m): m.setitem(sys.modules, "torch", type(sys)("torch"))
def fake_profiler(m): m.setitem(sys.modules, "torch.autograd.profiler", unittest.mock.MagicMock())
def no_environment(m): m.setattr(os, "environ", {})
def nothing_ends(m): m.setattr(torch.profiler.profile, "stop", boom)
def nothing_begins(m): m.setattr(torch.profiler.profile, "start", boom)
def no_region(m): m.setattr(torch.profiler.record_function, "__exit__", boom)


ALL = [value for name, value in list(globals().items())
       if name.startswith(("no_", "fake_", "other_", "nothing_"))]
LATE = [one for one in ALL if one is not no_torch_at_all]


@pytest.fixture(params=ALL, ids=lambda f: f.__name__)
def broken(request, monkeypatch): request.param(monkeypatch)

def test_by_a_fixture(broken): work()

@pytest.mark.parametrize("how", LATE, ids=lambda f: f.__name__)
def test_by_itself(how, monkeypatch):
    work()
    how(monkeypatch)

def test_little_depth():
    depth, frame = 0, sys._getframe()
    while frame is not None: depth, frame = depth + 1, frame.f_back
    work()
    sys.setrecursionlimit(depth + 90)

def test_depth_is_back():
    sys.setrecursionlimit(1000)

def test_finders_are_gone():
    global kept
    kept = sys.meta_path[:]
    sys.meta_path.clear()

def test_finders_are_back(): sys.meta_path[:] = kept

def test_afterwards(): work()
"""


@pytest.mark.thorough
@pytest.mark.one_in(2)
@BOTH
def test_what_a_test_breaks_does_not_break_the_plugin(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    seen = same(pytester, BROKEN, *args)
    profiled = {name for name, status in seen.statuses.items() if status == "new"}
    assert "test_afterwards" in profiled
    assert len(profiled) > len(seen.statuses) // 2, seen.statuses
    working = [name for name in profiled if "[" in name or "afterwards" in name]
    assert {3} == {seen.metric(name, "ops") for name in working}  # two fills and a product
    assert {11} == {seen.metric(name, "dispatches") for name in working}
