"""The ini option ``torchprof_junit``: what was measured, as properties in a JUnit report."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from support.sessions import run

if TYPE_CHECKING:
    from pathlib import Path

TEST = """
import pytest, torch

def test_it(torchprof):
    with torchprof("decode"):
        torch.ones(4, 4) @ torch.ones(4, 4)
    torch.ones(3).add(1)

def test_plain():
    pass

@pytest.mark.skip
def test_skipped():
    pass
"""


def properties(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Names and values by test, in order."""
    return {
        str(case.get("name")): [
            (str(p.get("name")), str(p.get("value"))) for p in case.iter("property")
        ]
        for case in ET.parse(path).iter("testcase")
    }


def with_junit(pytester: pytest.Pytester, *arguments: str, junit: str = "true") -> None:
    pytester.makeini(f"[pytest]\ntorchprof_junit = {junit}\n")
    pytester.makepyfile(test_it=TEST)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n1",), marks=pytest.mark.thorough)])
def test_what_the_report_says_is_in_the_junit_file(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    if workers:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    with_junit(pytester)
    needs = ("xdist",) if workers else ()
    ran = run(pytester, "--torchprof", "--junit-xml=junit.xml", *workers, needs=needs)
    found = properties(pytester.path / "junit.xml")
    assert {"test_it", "test_plain", "test_skipped"} == found.keys()
    for name, test in ran.tests.items():
        mine = dict(found[name])
        assert len(mine) == len(found[name])
        if test["status"] == "not_profiled":
            assert {"torchprof.status": "not_profiled"} == mine
            continue
        wanted = {f"torchprof.{k}": v["value"] for k, v in test["metrics"].items()}
        for region, part in test.get("regions", {}).items():
            values = {f"torchprof.{region}.{k}": v["value"] for k, v in part["metrics"].items()}
            wanted |= values
        measured = {k: str(v) for k, v in wanted.items() if v is not None}
        assert {"torchprof.status": test["status"], **measured} == mine
    assert "128" == dict(found["test_it"])["torchprof.decode.flops"]
    assert "torchprof.peak_cuda_bytes" not in dict(found["test_it"])  # not measured, so not 0


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [("--torchprof",), ()])
def test_without_it_or_without_profiling_there_are_none(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    with_junit(pytester, junit="false" if arguments else "true")
    run(pytester, *arguments, "--junit-xml=junit.xml")
    found = properties(pytester.path / "junit.xml")
    assert {"test_it": [], "test_plain": [], "test_skipped": []} == found


def test_properties_of_the_test_itself_stay_and_come_first(pytester: pytest.Pytester) -> None:
    with_junit(pytester)
    pytester.makepyfile(
        test_it="""
        import torch

        def test_it(record_property):
            record_property("mine", 1)
            torch.ones(3).add(1)
        """
    )
    run(pytester, "--torchprof", "--junit-xml=junit.xml")
    (found,) = properties(pytester.path / "junit.xml").values()
    assert ("mine", "1") == found[0]
    assert 1 == [name for name, _ in found].count("mine")
    assert "torchprof.ops" in dict(found)


def test_the_causes_of_a_red_test_are_properties(pytester: pytest.Pytester) -> None:
    body = "import torch\n\ndef test_it():\n    x = torch.ones(3)\n    x.add(1){}\n"
    pytester.makepyfile(test_it=body.format(""))
    run(pytester, "--accept")
    with_junit(pytester)
    pytester.makepyfile(test_it=body.format(".clone()"))
    run(pytester, "--torchprof", "--junit-xml=junit.xml")
    (found,) = properties(pytester.path / "junit.xml").values()
    assert "test_it.py:5 (test_it): clone is new" == dict(found)["torchprof.cause.1"]


def test_an_error_in_teardown_does_not_repeat_them(pytester: pytest.Pytester) -> None:
    with_junit(pytester)
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.fixture
        def broken():
            yield
            raise ValueError("late")

        def test_it(broken):
            torch.ones(3).add(1)
        """
    )
    run(pytester, "--torchprof", "--junit-xml=junit.xml")
    names = [
        name
        for case in ET.parse(pytester.path / "junit.xml").iter("testcase")
        for name in {p.get("name") for p in case.iter("property")}
    ]
    assert "torchprof.status" in names
    for each in ET.parse(pytester.path / "junit.xml").iter("properties"):
        found = [p.get("name") for p in each.iter("property")]
        assert len(found) == len(set(found))


def test_a_value_that_is_no_switch_is_one_line(pytester: pytest.Pytester) -> None:
    with_junit(pytester, junit="maybe")
    ran = run(pytester, "--torchprof")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert "torchprof_junit" in ran.err
