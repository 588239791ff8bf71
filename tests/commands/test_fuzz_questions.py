"""Odd and damaged traces: whatever was read can be compared, folded, augmented, asked for peaks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damaged import DOCUMENTS, EXAMPLES, JUNK, TEXTS, VALUES, places, refused
from support.numbered import by_index

from pytest_torchprof import cli
from pytest_torchprof.analysis.diff import diff_rows, growth, replacements
from pytest_torchprof.analysis.kernels import kernel_rows, kernel_work
from pytest_torchprof.analysis.memory import (
    Category,
    DeviceMemory,
    MemoryPoint,
    device_memory,
    memory_leaks,
    memory_peaks,
    memory_timeline,
)
from pytest_torchprof.analysis.operators import (
    GROUPINGS,
    NO_OPERATOR,
    TREES,
    op_stats,
    self_cpu_ns,
    tree_rows,
)
from pytest_torchprof.commands.arguments import make_parser
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.values import ALL_STEPS
from pytest_torchprof.render.export import fold, write_augmented
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps, steps_of
from pytest_torchprof.verdict.metrics import measure_all
from pytest_torchprof.verdict.parts import step_table

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

pytestmark = pytest.mark.thorough
PARTS = [f"{category.name.lower()}_bytes" for category in Category]
OTHER = parse_trace(TEXTS[0])
KERNELS_BY = ("name", "op", "op,kernel,shape", "op,shape", "kernel,shape", "op,kernel")
often = settings(max_examples=max(EXAMPLES * 2 // 3, 30))  # of which each is asked a lot


@pytest.fixture(scope="module", autouse=True)
def _a_command_starts_at_once() -> Iterator[None]:
    """What a process does but once is done but once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "make_parser", cache(make_parser))
        patch.setattr(metadata, "entry_points", cache(metadata.entry_points))
        yield


def ask(trace: Events) -> None:
    for by in ("op", "kernel"):
        for a, b in ((trace, OTHER), (OTHER, trace)):
            found = diff_rows(a, b, by=by)
            assert all(row.calls_a or row.calls_b or row.name == NO_OPERATOR for row in found)
            growth(a, b, by=by, limit_percent=5)
            replacements(a, b, by=by)
    for row in [row for by in KERNELS_BY for row in kernel_rows(trace, by=by)]:
        assert row.calls > 0
    kernel_work(trace)
    for by_what in GROUPINGS:
        op_stats(trace, by_what)
    for tree in TREES:
        own = sum(row.self_cpu_ms for row in tree_rows(trace, tree))
        assert own == pytest.approx(self_cpu_ns(trace) / 1e6)
    step_table(trace)
    if len(steps_of(trace)):
        assert step_table(at_steps(trace, ALL_STEPS)).rows == step_table(trace.whole).rows
    for peak in memory_peaks(trace):
        assert sum(row.bytes for row in peak.rows) == peak.peak_bytes
    points: list[MemoryPoint | DeviceMemory] = [*memory_timeline(trace), *device_memory(trace)]
    for point in points + list(memory_timeline(trace, 3)):
        assert point.live_bytes == sum(getattr(point, name) for name in PARTS)
    for leak in memory_leaks(trace) or ():
        assert leak.bytes > 0
    for metric in ("self_cpu_ms", "self_cuda_ms"):
        for line in fold(trace, metric):
            frames, us = line.split(" ")
            assert frames
            assert int(us) > 0


def survive(data: bytes) -> None:
    """Ask everything of what is read, and augment it: a trace that holds the same, or an error."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "damaged.json"), Path(folder, "out.json")
        source.write_bytes(data)
        fine = "kernels --by op,kernel,shape"
        for command in ("summary", "ops", "kernels", fine, "memory", "lint"):
            message = io.StringIO()
            with redirect_stderr(message), redirect_stdout(io.StringIO()):
                status = cli.main([*command.split(), str(source)])
            assert status in {0, 2}
            assert "internal error" not in message.getvalue()
        trace: Events | None = None
        with suppress(TraceError):
            trace = read_trace(source)
        if trace is not None:
            ask(trace)
            ask(trace.within(module="Linear"))
        try:
            write_augmented(source, target, by_index)
        except TraceError as error:
            refused(error, "damaged.json")
            return
        json.loads(target.read_bytes())
        assert trace is not None
        again = read_trace(target)
        assert again.ts.tolist() == trace.ts.tolist()
        assert measure_all(again) == measure_all(replace(trace, cut=False))


@often
@given(st.data())
def test_bytes_that_are_cut_off_changed_or_inserted(data: st.DataObject) -> None:
    text = bytearray(data.draw(st.sampled_from(TEXTS)))
    at = data.draw(st.integers(0, len(text) - 1))
    how = data.draw(st.sampled_from(["cut", "cut", "flip", "insert"]))
    if how == "cut":
        del text[at:]
    elif how == "flip":
        text[at] = data.draw(st.integers(0, 255))
    else:
        text[at:at] = data.draw(st.sampled_from(JUNK))
    survive(bytes(text))


@often
@given(st.data())
def test_values_of_any_type_in_any_place(data: st.DataObject) -> None:
    document = json.loads(json.dumps(data.draw(st.sampled_from(DOCUMENTS))))
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(document["traceEvents"]))
        container, key = data.draw(st.sampled_from(places(event) or [({}, "")]))
        container[key] = data.draw(VALUES)
    survive(json.dumps(document).encode(errors="surrogatepass"))
