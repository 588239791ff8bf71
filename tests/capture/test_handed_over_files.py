"""The files of started processes are closed, also where a run fails before anybody takes them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from pytest_torchprof.capture.processes import Children
from pytest_torchprof.capture.profiler import Capture
from pytest_torchprof.capture.started import ChildTrace, Collected
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.read import parse_trace

_TRACE = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]}'


class _Handed:
    """What one process has handed over."""

    def __init__(self) -> None:
        self.file = BytesIO()

    def collect(self) -> Collected:
        one = ChildTrace("rank 0", parse_trace(_TRACE, source="rank0.json"), self.file)
        return Collected((one,), None, frozenset(), 0, 0)

    def close(self) -> None:
        pass


def _begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Capture, BytesIO]:
    capture, handed = Capture(threads=1), _Handed()
    capture.start()
    end = Children.end

    def end_with_it(children: Children) -> object:
        children._handover = handed  # type: ignore[assignment]
        return end(children)

    monkeypatch.setattr(Children, "end", end_with_it)
    return capture, handed.file


def test_a_run_that_is_abandoned_closes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, file = _begun(monkeypatch)
    capture.end_region()
    assert not file.closed
    capture.abandon()
    assert file.closed


def test_so_does_one_whose_trace_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    capture, file = _begun(monkeypatch)
    with pytest.raises(TorchprofError):
        capture.stop(tmp_path / "no" / "such" / "folder" / "it.json", Facts())
    assert not file.closed
    capture.abandon()
    assert file.closed


def test_what_was_taken_is_left_to_the_taker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    capture, file = _begun(monkeypatch)
    capture.stop(tmp_path, Facts())
    (one,) = capture.take_children()
    capture.abandon()
    assert one.file is file
    assert not file.closed
