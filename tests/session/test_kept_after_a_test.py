"""A long session keeps of each test what its end needs, and no more."""

from __future__ import annotations

import json

import pytest

TESTS = """
import pytest, torch

@pytest.mark.parametrize("n", range(6))
@pytest.mark.max_ops(100)
def test_works(n): torch.ones(2) + n

@pytest.mark.skip
def test_skipped(): ...
"""
#: After all hooks of the session's end.
COUNTS = """
import gc, json, os, pathlib, pytest
from pytest_torchprof.session.measurement import Gatherer
from pytest_torchprof.session.verdicts import Subject

REPORTS = []

def pytest_runtest_logreport(report):
    REPORTS.append((report, hasattr(report, "torchprof")))

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    gc.collect()
    alive = [one for one in gc.get_objects() if isinstance(one, (Gatherer, Subject))]
    found = {
        "alive": len(alive),
        "seen": sum(seen for _, seen in REPORTS),
        "kept": sum(hasattr(report, "torchprof") for report, _ in REPORTS),
    }
    who = os.environ.get("PYTEST_XDIST_WORKER", "main")
    pathlib.Path(__file__).with_name(f"{who}.json").write_text(json.dumps(found))
"""


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [(), ("-n1",), ("--accept",)])
def test_neither_what_measured_a_test_nor_what_reports_carry(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(COUNTS)
    result = pytester.runpytest_subprocess("--torchprof", "-q", *options)
    result.assert_outcomes(passed=6, skipped=1)
    for file in pytester.path.glob("*.json"):
        found = json.loads(file.read_text("utf-8"))
        assert found["seen"] >= 6, found  # others can read it
        assert found["kept"] == 0, found
        assert found["alive"] <= 2, found  # those of the last test
    assert [*pytester.path.glob("*.json")]
