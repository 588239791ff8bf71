"""Whatever a test replaces: its outcome, and those of later tests, are as without us."""

from __future__ import annotations

import json

import pytest
from support.outcomes import same

#: What tests of real libraries replace, as ``module:name``; pytest itself runs without them.
NAMES = """
builtins:open time:time
time:perf_counter time:perf_counter_ns time:process_time_ns time:monotonic time:sleep gc:collect
gc:isenabled os:getcwd os:getpid os:open os:close os:dup os:unlink os:stat os:cpu_count os:fork
os.path:exists io:StringIO io:BytesIO re:compile re:sub json:dumps json:loads random:random
random:getstate random:seed copy:deepcopy shutil:rmtree tempfile:gettempdir tempfile:mkdtemp
pathlib:Path.exists pathlib:Path.read_text subprocess:Popen threading:Thread.start
threading:current_thread signal:signal signal:setitimer warnings:catch_warnings
importlib:import_module contextlib:suppress uuid:uuid4
numpy:zeros numpy:array numpy.random:get_state torch:ones torch:get_num_threads
torch:set_num_threads torch:is_grad_enabled torch.cuda:is_available torch.cuda:device_count
torch.profiler:profile torch.autograd.profiler:profile msgspec.json:decode
"""
TARGETS = NAMES.split()

REPLACING = """
import importlib
import json
import pathlib
import pytest
import torch

TARGETS = json.loads((pathlib.Path(__file__).parent / "targets.json").read_text())
for target in TARGETS: importlib.import_module(target.partition(":")[0])
ones = torch.ones

def boom(*args, **kwargs): raise RuntimeError("replaced by the test")

def replace(target, monkeypatch):
    module, _, name = target.partition(":")
    *owners, name = name.split(".")
    owner = importlib.import_module(module)
    for one in owners: owner = getattr(owner, one)
    monkeypatch.setattr(owner, name, boom)

def work(): ones(4, 4) @ ones(4, 4)

@pytest.fixture(params=TARGETS)
def replaced(request, monkeypatch): replace(request.param, monkeypatch)

def test_by_a_fixture(replaced): work()

@pytest.mark.parametrize("target", TARGETS)
def test_by_itself(target, monkeypatch):
    work()
    replace(target, monkeypatch)

def test_afterwards(): work()
"""


@pytest.mark.thorough
def test_what_a_test_replaces_changes_no_outcome(pytester: pytest.Pytester) -> None:
    """Nearly all are profiled, too: what starts and stops a capture is bound before the tests."""
    (pytester.path / "targets.json").write_text(json.dumps(TARGETS), "utf-8")
    seen = same(pytester, REPLACING, subprocess=True)
    lost = {name: said for name, said in seen.statuses.items() if said != "new"}
    assert len(seen.records) == 2 * len(TARGETS) + 1
    assert "test_afterwards" not in lost
    assert len(lost) <= len(TARGETS) // 10, lost
    kept = {name: seen.records[name]["metrics"] for name in seen.statuses if name not in lost}
    expected = {"ops": 3, "dispatches": 11}  # two fills and a product; with what only calls them
    found = {name: {one: row[one]["value"] for one in expected} for name, row in kept.items()}
    assert {} == {name: values for name, values in found.items() if values != expected}
