"""Damaged and odd traces, made up and real: read or refused with a `TraceError`, and nothing else.

A few hundred cases run by default; ``TORCHPROF_FUZZ=5000`` runs as many of each kind.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_read import build

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.analysis.ops import kernels, ops
from pytest_torchprof.errors import TraceError
from pytest_torchprof.metrics import measure_all
from pytest_torchprof.trace import stream
from pytest_torchprof.trace.ranks import read_ranks
from pytest_torchprof.trace.read import parse, read

EXAMPLES = int(os.environ.get("TORCHPROF_FUZZ") or 150)
CORPUS = Path(
    os.environ.get("TORCHPROF_TRACE_CORPUS")
    or Path(__file__).resolve().parents[2] / "shared" / "traces"
)
often = settings(max_examples=EXAMPLES)


def slices() -> list[dict[str, Any]]:
    """Of a dozen real traces the metadata and a few events of each category, in order."""
    found = []
    paths = sorted(p for p in CORPUS.glob("*.json.gz") if p.stat().st_size < 2_000_000)
    for path in paths[:: max(len(paths) // 12, 1)]:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if not isinstance(document, dict) or "traceEvents" not in document:
            continue
        seen: dict[Any, int] = {}
        kept = []
        for event in document["traceEvents"]:
            kind = event.get("cat"), event["ph"]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= 6:
                kept.append(event)
        found.append(document | {"traceEvents": kept})
    return found


DOCUMENTS = [build().document(), build("amd").document(), *slices()]
TEXTS = [build().to_bytes(style) for style in ((), "compact", "schema_2021", "bare_list")]
TEXTS += [json.dumps(document).encode() for document in DOCUMENTS[2:]]
JUNK = [b"null", b"-", b'"', b"1e999", b"[", b"}", b"\\u0000", b"\xff", b"{}", b"9" * 30, b"true"]
JUNK += [b"NaN", b"\\", b"},{", b'"traceEvents": [', b"\n  },\n  {", b"]}", b"inf", b"\0" * 9]
NUMBERS = st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 10**400, -(2**62), 1e308, 0.5, 1e-300])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()  # not a number, and infinity, which JSON does not have
    | NUMBERS
    | st.text(max_size=5)
    | st.sampled_from(["7", "0.5", "1e400", "nan", "null", "true", "\ud800", "[1]", "[]", "x" * 99])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def refused(error: TraceError, name: str) -> None:
    """Many are, and many are not."""
    assert name in str(error)
    assert "\n" not in str(error)


def survive(data: bytes) -> None:
    """Read it, and ask everything of what was read."""
    try:
        trace = parse(data, source="damaged.json")
    except TraceError as error:
        refused(error, "damaged.json")
        return
    assert (trace.ts[1:] >= trace.ts[:-1]).all()
    for part in (trace, trace.within(op="aten::mm"), trace.within(module="Linear")):
        measure_all(part)
        ops(part)
        kernels(part)
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
    size, stream.CHUNK = stream.CHUNK, data.draw(st.sampled_from([97, 1000, 2**20]))
    try:
        survive(bytes(text))
    finally:
        stream.CHUNK = size


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) of a document."""
    found, todo = [], [value]
    while todo:
        inside = todo.pop()
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        found += [(inside, key) for key in keys]
        todo += [inside[key] for key in keys if isinstance(inside[key], dict | list)]
    return found


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
            measure_all(read(path))
            read_ranks([path])
        except TraceError as error:
            refused(error, "packed.json.gz")


def test_real_traces_are_among_them() -> None:
    if not CORPUS.is_dir():
        pytest.skip("no real traces: neither TORCHPROF_TRACE_CORPUS nor ../shared/traces has any")
    assert len(DOCUMENTS) > 2
