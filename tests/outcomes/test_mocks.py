"""Whatever a test replaces: outcome, numbers and later tests are as without us.

What is replaced is found by machine: all that our path calls, directly or through a library, and
that pytest itself does not need.
"""

from __future__ import annotations

import json
import os

import pytest
from support import called
from support.outcomes import same
from support.sessions import NO_OTHER_PLUGINS

#: The paths that are looked at: a test that passes, one with numbers of its own, one over budget.
LOOKED_AT = """
import pytest
import torch

def work(): torch.ones(4, 4) @ torch.ones(4, 4)

def test_plain(): work()

def test_has_numbers(torchprof):
    with torchprof: work()
    assert torchprof.stats.ops > 1
    print(torchprof.table())
    torchprof.assert_expected_inline("flops   128 FLOP\\nops     11\\n")

@pytest.mark.xfail
@pytest.mark.max_flops(1)
def test_over_budget(): work()
"""

REPLACING = """
import importlib
import json
import operator
import pathlib
import pytest
import torch

TARGETS = json.loads((pathlib.Path(__file__).parent / "targets.json").read_text())

for module in {target.partition(":")[0] for target in TARGETS}: importlib.import_module(module)

def boom(*args, **kwargs): raise RuntimeError("replaced by the test")

def replace(target, monkeypatch):
    module, _, name = target.partition(":")
    *owners, name = name.split(".")
    owner = importlib.import_module(module)
    for one in owners: owner = getattr(owner, one)
    monkeypatch.setattr(owner, name, boom)

def work(): torch.ones(4, 4) @ torch.ones(4, 4)

@pytest.fixture(params=TARGETS)
def replaced(request, monkeypatch): replace(request.param, monkeypatch)

def test_by_a_fixture(replaced): work()

@pytest.mark.parametrize("target", TARGETS)
def test_by_itself(target, monkeypatch):
    work()
    replace(target, monkeypatch)

def test_afterwards(): work()
"""

COMPARED = """
import torch

def work(): torch.ones(4, 4) @ torch.ones(4, 4)

def test_plain(): work()

def test_compares(torchprof):
    torchprof.ab(work, work, setup=tuple, min_time=1).assert_not_slower(by="900 %")
"""

COMPARING = (
    REPLACING.partition("@pytest.fixture")[0]
    + """
def test_compares(torchprof, monkeypatch):
    lost = []
    for target in TARGETS:
        with monkeypatch.context() as patch:
            replace(target, patch)
            try: result = torchprof.ab(work, work, setup=tuple, min_time=0.1)
            except RuntimeError: lost.append(target)
    assert not lost
    if isinstance(result.ratio, float): pathlib.Path("compared").touch()
"""
)

#: Set, it has private names replaced too, and each also by the test itself: a minute more.
EVERYTHING = "TORCHPROF_REPLACE_EVERYTHING"


#: A session without us. A test that fails has pytest call more, and those that replace pass.
PLAIN = (*NO_OTHER_PLUGINS, "-ktest_plain")
OURS = (*NO_OTHER_PLUGINS, "--torchprof")


def targets(pytester: pytest.Pytester) -> list[str]:
    """What our path calls and pytest's own does not, as ``module:name``."""
    pytester.makepyfile(test_it=LOOKED_AT)
    own = called.names_after(pytester, PLAIN, OURS)[-1]
    assert {"os:getcwd", "io:StringIO", "signal:setitimer"} <= set(own)
    return own


@pytest.mark.thorough
def test_what_a_test_replaces_changes_no_outcome(pytester: pytest.Pytester) -> None:
    names, select = targets(pytester), "test_"
    if not os.environ.get(EVERYTHING):
        names = [name for name in names if "._" not in name and ":_" not in name]
        select = "fixture or afterwards"
    (pytester.path / "targets.json").write_text(json.dumps(names), "utf-8")
    # What fails here belongs into `NAMES` of capture/originals.py.
    seen = same(pytester, REPLACING, "-k", select, subprocess=True)
    assert len(seen.records) > len(names) > 100
    assert {"new"} == set(seen.statuses.values()), seen.statuses
    ops = {name: record["metrics"]["ops"] for name, record in seen.records.items()}
    assert {} == {name: row["reason"] for name, row in ops.items() if row["value"] != 11}


@pytest.mark.thorough
def test_what_a_test_replaces_disturbs_no_comparison_of_callables(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=COMPARED)
    sessions = [PLAIN, (*OURS, "-ktest_plain"), (*OURS, "-ktest_compares")]
    _, known, all_names = called.names_after(pytester, *sessions)
    own = sorted(set(all_names) - set(known))  # those known are replaced above
    assert {"statistics:median", "os:sched_setaffinity"} <= set(own)
    (pytester.path / "targets.json").write_text(json.dumps(own), "utf-8")
    seen = same(pytester, COMPARING, subprocess=True)
    # On a busy machine the time does not always suffice for an answer.
    said = {said for said in seen.statuses.values() if "give it a larger min_time" not in said}
    assert {"new"} >= said, seen.statuses
    assert (pytester.path / "compared").exists()
