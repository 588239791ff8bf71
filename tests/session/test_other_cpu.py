"""Baselines that were accepted on a CPU with another instruction set, as oneDNN would use it."""

from __future__ import annotations

import platform

import pytest
import torch
from support.sessions import Ran, baseline_file, read_baseline, run

#: The backward pass of these channels copies more where blocks have 4 or 8 of them, not 16.
CONVOLVES = """
import torch

MODEL = torch.nn.Sequential(
    torch.nn.Conv2d(3, 24, 3), torch.nn.ReLU(), torch.nn.Conv2d(24, 40, 3)
).to(memory_format=torch.channels_last)

def test_convolutions():
    MODEL(torch.ones(2, 3, 32, 32)).sum().backward()

def test_products():
    torch.ones(4, 4) @ torch.ones(4, 4)
"""
KEY = f"cpu, torch {'.'.join(torch.__version__.split('.')[:2])}"
WORDS = "the baseline is of a CPU with other instructions"

here = torch.backends.cpu.get_cpu_capability()
pytestmark = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"} or here not in {"AVX2", "AVX512"},
    reason="needs an x86 CPU with AVX2, to compare with what oneDNN does without",
)


@pytest.fixture(autouse=True)
def _file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_it=CONVOLVES)


def accepted(pytester: pytest.Pytester) -> dict[str, dict[str, dict[str, object]]]:
    """Test → environment → entry."""
    tests: dict[str, dict[str, dict[str, object]]] = read_baseline(pytester)["tests"]
    return tests


def session(pytester: pytest.Pytester, *args: str) -> Ran:
    """In a process of its own: oneDNN reads its variable once."""
    return run(pytester, *args, subprocess=True)


def statuses(ran: Ran, *names: str) -> list[str]:
    return [ran.metric(name, "test_convolutions")["status"] for name in names]


@pytest.mark.thorough
def test_what_the_cpu_decides_advises_and_fails_under_strict_mode_until_it_is_accepted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(pytester, "--accept")
    assert [here, None] == [
        accepted(pytester)[name][KEY].get("cpu_capability")
        for name in ("test_convolutions", "test_products")
    ]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    ran = session(pytester, "--torchprof")
    assert {"passed": 2} == ran.outcomes
    counted = "dispatches", "allocated_cpu_bytes", "flops", "ops"
    assert ["advisory", "advisory", "ok", "ok"] == statuses(ran, *counted)
    assert f"({here}, here SSE41)" in ran.out
    strict = session(pytester, "--torchprof", "--torchprof-strict")
    assert {"passed": 1, "failed": 1} == strict.outcomes
    assert f"strict: peak_cpu_bytes differs from the baseline: {WORDS}" in strict.out

    session(pytester, "--accept")
    assert {KEY, f"{KEY}, SSE41"} == set(accepted(pytester)["test_convolutions"])
    assert {KEY} == set(accepted(pytester)["test_products"])
    for name in ("SSE41", "ALL"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", name)
        ran = session(pytester, "--torchprof", "--torchprof-strict")
        assert {"passed": 2} == ran.outcomes
        assert ["ok", "ok", "ok", "ok"] == statuses(ran, *counted)
        assert WORDS not in ran.out


@pytest.mark.thorough
def test_a_regression_on_the_cpu_of_the_baseline_fails_and_its_acceptance_ends_the_others(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(pytester, "--accept")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    session(pytester, "--accept")

    pytester.makepyfile(test_it=CONVOLVES.replace(".sum()", ".sum().abs()"))
    ran = session(pytester, "--torchprof")
    assert {"passed": 1, "failed": 1} == ran.outcomes
    assert ["regressed"] == statuses(ran, "ops")
    session(pytester, "--accept")
    entries = accepted(pytester)["test_convolutions"]
    assert {KEY: "SSE41"} == {key: entry["cpu_capability"] for key, entry in entries.items()}
    assert {"passed": 2} == session(pytester, "--torchprof", "--torchprof-strict").outcomes


@pytest.mark.thorough
def test_more_than_the_cpu_decides_still_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(pytester, "--accept")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    pytester.makepyfile(
        test_it=CONVOLVES.replace("3, 32, 32", "3, 48, 48").replace("ones(4, 4)", "ones(4, 4) + 1")
    )
    ran = session(pytester, "--torchprof")
    assert {"failed": 2} == ran.outcomes
    assert ["regressed"] == statuses(ran, "flops")

    pytester.makepyfile(test_it=CONVOLVES.replace(".sum()", ".abs().sum()"))
    ran = session(pytester, "--torchprof")
    assert {"failed": 1, "passed": 1} == ran.outcomes
    assert ["regressed", "ok"] == statuses(ran, "ops", "flops")
    assert "test_it.py:8 (test_convolutions): abs is new" in ran.out


@pytest.mark.thorough
def test_where_the_numbers_are_the_same_one_entry_is_for_both(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, where the variable no longer changes what oneDNN does."""
    run(pytester, "--accept")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert [here] == cpus_of_entries(pytester)
    run(pytester, "--accept")
    assert [f"{here}, SSE41"] == cpus_of_entries(pytester)
    pytester.makepyfile(test_it=CONVOLVES.replace(".sum()", ".clone().sum()"))
    for name in ("SSE41", "ALL"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", name)
        assert ["regressed"] == statuses(run(pytester, "--torchprof"), "ops")
    run(pytester, "--accept")
    assert [here] == cpus_of_entries(pytester)


def cpus_of_entries(pytester: pytest.Pytester) -> list[object]:
    return [e.get("cpu_capability") for e in accepted(pytester)["test_convolutions"].values()]


@pytest.mark.thorough
def test_an_entry_of_before_gets_the_cpu_when_it_is_accepted_again(
    pytester: pytest.Pytester,
) -> None:
    run(pytester, "--accept", "--torchprof-time=off")
    file = baseline_file(pytester)
    text = file.read_text("utf-8")
    file.write_text(text.replace(f'        "cpu_capability": "{here}",\n', ""), "utf-8")
    assert "cpu_capability" not in file.read_text("utf-8")
    assert {"passed": 2} == run(pytester, "--torchprof").outcomes
    run(pytester, "--accept", "--torchprof-time=off")
    assert text == file.read_text("utf-8")
