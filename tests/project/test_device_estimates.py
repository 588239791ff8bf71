"""The script that compares estimates with real traces says when it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.trace_builder import TraceBuilder

from benchmarks.device_estimates import main


@pytest.mark.parametrize("part", [[], ["--unseen"]])
def test_without_a_usable_trace_it_says_so(
    part: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder()
    with b.op("aten::relu", [[4]], ["float"]):
        pass
    assert 2 == main([*part, str(b.save(tmp_path / "cpu.pt.trace.json"))])
    said = capsys.readouterr()
    assert ("", True) == (said.out, said.err.startswith("no trace of a GPU with shapes"))
