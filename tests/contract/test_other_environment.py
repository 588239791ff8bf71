"""A baseline of another torch or another chip is said, once, and what differs from it is advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sessions import session

RUNS = """
    import torch

    def test_a():
        torch.ones(8) * 2

    def test_b():
        for _ in range({runs}):
            torch.ones(8) + 1
"""


@pytest.mark.parametrize(
    ("there", "is_said"),
    [
        ("cpu, torch 2.2", True),
        ("NVIDIA L4, torch {}", False),  # a CPU is no chip
        ("cpu, torch 2.2 × 2 ranks", False),
    ],
)
def test_a_baseline_of_another_environment_is_said_once_with_what_differs(
    pytester: pytest.Pytester, there: str, is_said: bool
) -> None:
    """All tests stay new, nothing fails but in strict mode, and accepting ends it."""
    before, now = RUNS.format(runs=2), RUNS.format(runs=3)
    session(pytester, before, "--accept")
    (file,) = Path("__torchprof__").glob("*.json")
    document = json.loads(file.read_text())
    for entries in document["tests"].values():
        ((key, entry),) = list(entries.items())
        entries.clear()
        entries |= {there.format(key.rpartition(" ")[2]): entry, "odd": {}, "cpu, torch 2.1": {}}
        if not is_said:
            del entries["cpu, torch 2.1"]
    file.write_text(json.dumps(document))
    found, tests = session(pytester, now, "--torchprof", "--torchprof-markdown=r.md")
    assert (0, ["new"] * 2) == (found.ret, [test["status"] for test in tests])
    lines = [line for line in found.outlines if line.startswith("no baseline of cpu, torch")]
    assert len(lines) == is_said
    if is_said:
        assert "only of cpu, torch 2.2, so what differs is advice (pytest --accept" in lines[0]
        assert " (2 tests: test_it.py::test_b ops " in lines[0]
        assert "ops " in tests[1]["reason"]
        assert ": nothing" in tests[0]["reason"]
        assert "ops " in Path("r.md").read_text()
    assert session(pytester, now, "--torchprof", "--torchprof-strict")[0].ret == 1
    session(pytester, now, "--accept")
    assert session(pytester, now, "--torchprof", "--torchprof-strict")[0].ret == 0
