"""Damaged and odd traces, made up and real: read or refused with a `TraceError`, and nothing else.

A few hundred cases run by default; ``TORCHPROF_FUZZ=5000`` runs as many of each kind.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damaged import (
    DOCUMENTS,
    EXAMPLES,
    JUNK,
    TEXTS,
    VALUES,
    places,
    refused,
)
from support.real_traces import CORPUS

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.analysis.operators import kernel_totals, op_rows
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.trace import read
from pytest_torchprof.trace.ranks import read_ranks
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import measure_all

pytestmark = pytest.mark.thorough
often = settings(max_examples=EXAMPLES)


def survive(data: bytes) -> None:
    """Read it, and ask everything of what was read."""
    try:
        trace = parse_trace(data, source="damaged.json")
    except TraceError as error:
        refused(error, "damaged.json")
        return
    assert (trace.ts[1:] >= trace.ts[:-1]).all()
    for part in (trace, trace.within(op="aten::mm"), trace.within(module="Linear")):
        measure_all(part)
        op_rows(part)
        kernel_totals(part)
        for on_device in (False, True):
            usage(part, on_device=on_device)


@often
@given(st.data())
def test_bytes_that_are_changed_cut_out_or_doubled(data: st.DataObject) -> None:
    text = bytearray(data.draw(st.sampled_from(TEXTS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        how = data.draw(st.sampled_from(["cut", "flip", "drop", "double", "insert"]))
        length = data.draw(st.integers(1, 400))
        if how == "cut":
            del text[at:]
        elif how == "flip":
            text[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
        elif how == "drop":
            del text[at : at + length]
        elif how == "double":
            text[at:at] = text[at : at + length]
        else:
            text[at:at] = data.draw(st.sampled_from(JUNK))
    size, read.CHUNK = read.CHUNK, data.draw(st.sampled_from([97, 1000, 2**20]))
    try:
        survive(bytes(text))
    finally:
        read.CHUNK = size


@often
@given(st.data())
def test_values_of_any_type_in_any_place(data: st.DataObject) -> None:
    """Valid JSON, but for the numbers that are none."""
    document = json.loads(json.dumps(data.draw(st.sampled_from(DOCUMENTS))))
    for _ in range(data.draw(st.integers(1, 6))):
        events = document.get("traceEvents")
        # Most of the time within an event: there are the values that are looked at.
        inner = isinstance(events, list) and bool(events) and data.draw(st.integers(0, 9)) > 1
        root = data.draw(st.sampled_from(events)) if inner else document
        if isinstance(root, dict) and root.get("args") and data.draw(st.booleans()):
            root = root["args"]
        options = places(root) if isinstance(root, dict | list) else []
        if not options:
            continue
        container, key = data.draw(st.sampled_from(options))
        how = data.draw(st.sampled_from(["value", "value", "text", "remove", "wrap"]))
        if how == "remove":
            del container[key]
        elif how == "text" and not isinstance(container[key], dict | list):
            container[key] = str(container[key])
        elif how == "wrap":
            container[key] = [container[key]]
        else:
            container[key] = data.draw(VALUES)
    survive(json.dumps(document).encode())


@settings(often, max_examples=max(EXAMPLES // 3, 30))
@given(st.data())
def test_compressed_files_that_are_damaged(data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(data.draw(st.sampled_from(TEXTS)), mtime=0))
    at = data.draw(st.integers(0, len(packed) - 1))
    if data.draw(st.booleans()):
        del packed[at:]
    else:
        packed[at] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder:
        path = Path(folder, "packed.json.gz")
        path.write_bytes(packed)
        try:
            measure_all(read_trace(path))
            read_ranks([path])
        except TraceError as error:
            refused(error, "packed.json.gz")


def test_real_traces_are_among_them() -> None:
    if not CORPUS.is_dir():
        pytest.skip("no real traces: neither TORCHPROF_TRACE_CORPUS nor ../shared/traces has any")
    assert len(DOCUMENTS) > 2
