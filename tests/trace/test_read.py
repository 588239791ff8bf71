"""The reader: every way in which traces are written, and files that are none."""

from __future__ import annotations

import gc
import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_traces import build
from support.trace_builder import EPOCH_NS, TraceBuilder
from support.trace_styles import without

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.analysis.operators import op_rows
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace import read
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION, Kind
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import METRICS, ON_REQUEST, measure_all

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

COLUMNS = ("ts", "dur", "kind", "name", "thread")


def same(a: Events, b: Events, *columns: str) -> bool:
    """Whether these columns are equal, names and threads as what they stand for."""

    def values(trace: Events, column: str) -> list[Any]:
        raw = getattr(trace, column).tolist()
        table = {"name": trace.names, "thread": [(str(p), str(t)) for p, t in trace.threads]}
        return [table[column][i] for i in raw] if column in table else raw

    return all(values(a, column) == values(b, column) for column in columns or COLUMNS)


def exact(trace: Events) -> dict[str, Any]:
    """Every metric that does not depend on times."""
    values = measure_all(trace)
    return {k: v for k, v in values.items() if not k.endswith("_ms") and not k.startswith("wall")}


PLAIN = parse_trace(build().to_bytes())


# --------------------------------------------------------------------------------------- styles


def test_plain() -> None:
    assert np.bincount(PLAIN.kind).tolist() == [0, 3, 1, 5, 3, 2, 0, 3, 1, 1, 1]
    assert PLAIN.names[PLAIN.name[0]] == "aten::before"
    assert PLAIN.ts[0] == EPOCH_NS
    assert 'void gemm<float, "\\quoted\\">' in PLAIN.names
    assert (np.diff(PLAIN.ts) >= 0).all()
    assert exact(PLAIN)["flops"].at_hand == 240  # and what the graph launched
    assert exact(PLAIN)["h2d_bytes"] == 4096


@pytest.mark.parametrize(
    "style",
    [
        "string_numbers",
        "string_ids",
        "ts_string",
        "no_device_name",
        "no_properties",
        "stray",
        "compact",
        "bare_list",
        ["ts_string", "string_numbers", "string_ids", "no_properties", "stray", "bare_list"],
    ],
)
def test_styles_that_change_nothing(style: Any) -> None:
    trace = parse_trace(build().to_bytes(style))
    assert same(trace, PLAIN)
    values, known = exact(trace), exact(PLAIN)
    if "no_properties" in style or "bare_list" in style:
        assert values["peak_cpu_bytes"] == known["peak_cpu_bytes"]  # by its events
    assert values == known
    assert op_rows(trace) == op_rows(PLAIN)


def test_whole_microseconds_keep_all_but_the_times() -> None:
    trace = parse_trace(build().to_bytes("ts_int"))
    assert same(trace, PLAIN, "kind", "name", "thread")
    assert exact(trace) == exact(PLAIN)
    assert np.abs(trace.ts - PLAIN.ts).max() < 1000


def test_nanoseconds_are_exact() -> None:
    """Times above 2**53 are whole nanoseconds, and no float holds them."""
    b = build()
    base = b.document()["baseTimeNanoseconds"]
    trace = parse_trace(b.to_bytes("ts_ns"))
    assert trace.ts.min() > 2**53
    assert (trace.ts - base).tolist() == PLAIN.ts.tolist()
    assert same(trace, PLAIN, "dur", "kind", "name", "thread")
    assert exact(trace) == exact(PLAIN)


@given(st.integers(0, 90 * 24 * 3600 * 10**9), st.integers(0, 10**12))
def test_microseconds_with_three_decimals_are_exact(ts: int, dur: int) -> None:
    """Kineto's times are relative to a base at most 90 days ago."""
    event = f'{{"ph":"X","cat":"cpu_op","ts":{ts // 1000}.{ts % 1000:03d},'
    event += f'"dur":{dur // 1000}.{dur % 1000:03d}}}'
    for count in (1, 100):
        trace = parse_trace(f"[{','.join([event] * count)}]".encode())
        assert (trace.ts.tolist(), trace.dur.tolist()) == ([ts] * count, [dur] * count)


def test_without_args() -> None:
    """Counts stay; what args say is not measured, and never 0."""
    values = exact(parse_trace(build(outside=False).to_bytes("no_args")))
    assert values["ops"] == 2
    assert values["h2d_copies"] == 1
    for name in ("flops", "h2d_bytes", "peak_cpu_bytes", "peak_cuda_bytes"):
        assert isinstance(values[name], MissingValue), name


def test_without_durations() -> None:
    values = measure_all(parse_trace(build(outside=False).to_bytes("no_dur")))
    assert values["ops"] == 2
    assert values["kernels"] == 3
    assert isinstance(values["self_cpu_ms"], MissingValue)
    assert isinstance(values["self_cuda_ms"], MissingValue)


def test_without_categories() -> None:
    trace = parse_trace(build().to_bytes("no_cat"))
    assert {trace.names[i] for i in trace.name} == {"[memory]"}


@pytest.mark.parametrize(
    "keys", [("dur",), ("args",), ("cat",), ("pid", "tid"), ("name",), ("ts",)]
)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_some_events_lack_a_part(keys: tuple[str, ...], every: int) -> None:
    trace = parse_trace(build().to_bytes(without(*keys, every=every)))
    assert METRICS.keys() - {*ON_REQUEST} == measure_all(trace).keys()
    counted = trace.selection & trace.is_kind(Kind.OP, Kind.ANNOTATION)
    assert int(counted.sum()) == sum(row.calls for row in op_rows(trace).values())


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "Optimizer.step#SGD.step",
        "## Call CompiledFxGraph f2p2cq ##",
        "Optimizer.zero_grad#SGD.zero_grad",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ],
)
def test_annotations_of_torch_that_were_recorded_as_operators(name: str) -> None:
    b = TraceBuilder()
    with b.op(name):
        b.op("aten::mul", [[2], [2]])
    trace = parse_trace(b.to_bytes())
    assert [Kind.ANNOTATION, Kind.OP] == trace.kind.tolist()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_schema_of_2021(vendor: str) -> None:
    b = build(vendor, outside=False)
    values, known = exact(parse_trace(b.to_bytes("schema_2021"))), exact(parse_trace(b.to_bytes()))
    assert values["dispatches"] == known["dispatches"] + 1  # annotations were operators
    same_names = set(known) - {"dispatches", "peak_cpu_bytes", "leaked_cpu_bytes"} - {"syncs"}
    same_names -= {"max_cuda_bytes", "max_reserved_cuda_bytes"}  # events had no totals
    assert {k: values[k] for k in same_names} == {k: known[k] for k in same_names}
    assert values["syncs"] == known["syncs"]


def test_memory_without_addresses_is_a_running_sum() -> None:
    b = TraceBuilder("GPU")
    with b.op("a"):
        first = b.memory(100)
        second = b.memory(50)
        b.free(first)
        b.memory(70)
        b.free(second)
        b.memory(1, device="cpu")
    trace = parse_trace(b.to_bytes("schema_2021"))
    assert trace.memory.addr is None
    used = usage(trace, on_device=True)
    assert (used.allocated_bytes, used.peak_bytes, used.leaked_bytes) == (220, 150, 70)
    assert sum(used.peak_by.values()) == 150
    assert usage(trace, on_device=False).peak_bytes == 1


def test_metadata_after_the_events_is_distinguished_from_them() -> None:
    event = (
        b'{"ph": "X", "cat": "cpu_op", "name": "a\\n  ],b", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    )
    for after in (
        b'"traceName": "x"',
        b'"more": [\n  1\n  ],"traceName": "x"',
        b'"traceEvents": [\n  ],"traceName": "x"',
        b'"traceName": "x",\n"more": [\n  {"ts": 1}\n  ],"last": {"a": [\n  ],"b": 2}',
    ):
        text = b'{"first": 1,\n  "traceEvents": [\n  ' + event + b"\n  ]," + after + b"}"
        trace = parse_trace(text)
        expected = json.loads(text)
        assert trace.names == [e["name"] for e in expected.pop("traceEvents")]
        assert dict(trace.metadata) == expected


def test_metadata() -> None:
    b = build()
    facts = {"accelerator": "Some GPU", "odd": '"traceEvents": ["]'}
    b.metadata(FACTS_KEY, facts)
    b.metadata("distributedInfo", {"rank": 1, "list": [1, [2]]})
    for style in ((), "compact"):
        trace = parse_trace(b.to_bytes(style))
        assert trace.metadata[FACTS_KEY] == facts
        assert trace.is_live
        assert trace.facts.accelerator == "Some GPU"
        assert trace.metadata["distributedInfo"] == {"rank": 1, "list": [1, [2]]}
        assert trace.metadata["traceName"] == "trace.json"
        assert "traceEvents" not in trace.metadata
    assert parse_trace(b.to_bytes("bare_list")).metadata == {}


# -------------------------------------------------------------------------------- files, pieces


def test_gzip_by_content(tmp_path: Path) -> None:
    b = build()
    packed_by_name = b.save(tmp_path / "a.json.gz")
    plain_by_name, packed, plain = tmp_path / "b.json", tmp_path / "c.json", tmp_path / "d.gz"
    plain_by_name.write_bytes(b.to_bytes())
    packed.write_bytes(gzip.compress(b.to_bytes()))
    plain.write_bytes(b.to_bytes())
    for path in (packed_by_name, plain_by_name, packed, plain):
        assert same(read_trace(path), PLAIN)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("style", ["plain", "compact", "bare_list", "schema_2021", "string_ids"])
@pytest.mark.parametrize("size", [1, 200, 1000, 5000, 10**6])
def test_pieces_make_no_difference(style: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    b = build()
    b.metadata("odd", {"traceEvents": [{"name": "\n  },\n  {"}], "list": [[], {}]})
    data = b.to_bytes(() if style == "plain" else style)
    whole = parse_trace(data)
    monkeypatch.setattr(read, "CHUNK", size)
    pieces = parse_trace(data)
    assert same(pieces, whole)
    assert pieces.names == whole.names
    assert pieces.metadata == whole.metadata
    assert [bytes(a) if a else a for a in pieces.args] == [bytes(a) if a else a for a in whole.args]


@pytest.mark.thorough
def test_a_file_of_several_pieces(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        for _ in range(3000):
            b.op("aten::add", [[4], [4]])
            b.free(b.memory(64, device="cpu"))
    path = b.save(tmp_path / "large.json")
    assert path.stat().st_size > 2 * read.CHUNK
    values = measure_all(read_trace(path))
    assert (values["ops"], values["allocated_cpu_bytes"]) == (3000, 192_000)
    again = b.save(tmp_path / "compact.json", style="compact")
    assert same(read_trace(path), read_trace(again))
    # One fault far behind, and nothing is read.
    path.write_bytes(path.read_bytes().replace(b'"Bytes"', b'"Bytes', 1))
    with pytest.raises(TraceError, match=r"large\.json"):
        read_trace(path)


def test_a_file_of_two_gzip_members_and_one_with_something_behind_it(tmp_path: Path) -> None:
    data, path = build().to_bytes(), tmp_path / "a.gz"
    first, second = gzip.compress(data[:5000]), gzip.compress(data[5000:])
    for content in (first + second, first + second + b"\0" * 99, first + second + b"junk"):
        path.write_bytes(content)
        assert same(read_trace(path), PLAIN)
        assert read_trace(path).warnings == ()


@pytest.mark.parametrize("packed", [False, True])
def test_progress_is_reported_up_to_the_end(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK", 1000)
    path = build().save(tmp_path / ("a.json.gz" if packed else "a.json"))
    reported: list[tuple[int, int]] = []
    read_trace(path, progress=lambda done, total: reported.append((done, total)))
    size = path.stat().st_size
    assert reported == [(min(1000 * n, size), size) for n in range(1, -(-size // 1000) + 1)]


# ----------------------------------------------------------------------- broken off, badly written


def kept(trace: Events) -> int:
    """How many events the warning says were kept."""
    (warning,) = trace.warnings
    return int(re.findall(r"the ([\d,]+) events", warning)[0].replace(",", ""))


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize("style", ["plain", "compact", "bare_list", "schema_2021"])
@pytest.mark.parametrize("size", [1500, 2**20])
def test_a_file_cut_anywhere_keeps_its_whole_events(
    style: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK", size)
    data = build().to_bytes(() if style == "plain" else style)
    whole, before = parse_trace(data), 0
    for end in (*range(2500, len(data), 41), len(data.rstrip()) - 1):
        trace = parse_trace(data[:end])
        assert f"ends at byte {end:,}" in trace.warnings[0]
        assert before <= kept(trace)
        before = kept(trace)
        if style in {"plain", "schema_2021"}:  # whose metadata precede the events
            assert trace.metadata["deviceProperties"] == whole.metadata["deviceProperties"]
    assert before == data.count(b'"ph"')
    assert same(trace, whole)


def test_a_gzip_file_cut_anywhere_keeps_its_whole_events(tmp_path: Path) -> None:
    data, path, before = gzip.compress(build().to_bytes()), tmp_path / "a.json.gz", 0
    for end in range(len(data) // 2, len(data) - 40, 13):
        path.write_bytes(data[:end])
        assert kept(read_trace(path)) >= before
        before = kept(read_trace(path))
    assert before > 30


def test_null_bytes_that_a_crash_leaves_are_skipped() -> None:
    data = build().to_bytes()
    assert same(parse_trace(data + b"\0" * 4096), PLAIN)
    assert kept(parse_trace(data[:7000] + b"\0" * 4096)) == kept(parse_trace(data[:7000]))


@pytest.mark.parametrize("size", [700, 2**20])
@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (b"aten::mm", rb"C:\Users\me.py(3): f", r"C:\Users\me.py(3): f"),
        (b"aten::mm", rb"C:\Temp\New\Best\Runs\F", r"C:\Temp\New\Best\Runs\F"),
        (b"aten::mm", b'{"device": "cpu", "n": 1}(12): run', '{"device": "cpu", "n": 1}(12): run'),
        (b"aten::mm", b"two\nlines\tx", "two lines x"),
        (b"aten::mm", b"caf\xe9", "caf\N{REPLACEMENT CHARACTER}"),
        (
            b'"cbid": ',
            b'"bandwidth": inf, "x": -nan, "y": NaN, "z": -Infinity, "cbid": ',
            "aten::mm",
        ),
    ],
)
def test_what_kineto_wrote_wrongly_is_repaired(
    old: bytes, new: bytes, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build().to_bytes()
    if name == "two lines x":  # in a string of one line, which is no place for a new line
        data = build().to_bytes("compact")
    monkeypatch.setattr(read, "CHUNK", size)
    trace = parse_trace(data.replace(old, new))
    assert "repaired" in trace.warnings[0]
    assert name in trace.names
    assert same(trace, PLAIN, "ts", "dur", "kind", "thread")
    measure_all(trace)
    op_rows(trace)


@pytest.mark.parametrize("style", ["plain", "compact", "bare_list"])
def test_a_comma_after_the_last_event_is_left_out(style: str) -> None:
    data = build().to_bytes(() if style == "plain" else style)
    last = data.rindex(
        b"}", 0, data.index(b'"traceName"') if style == "plain" else data.index(b"}]") + 1
    )
    end = data.index(b"]", last)
    assert same(parse_trace(data[:end] + b"," + data[end:]), PLAIN)


@pytest.mark.parametrize("size", [700, 2**20])
def test_metadata_are_repaired_too(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "CHUNK", size)
    b = build()
    b.metadata("path", "PATH")
    trace = parse_trace(b.to_bytes().replace(b"PATH", rb"C:\Users\me"))
    assert trace.metadata["path"] == r"C:\Users\me"
    assert same(trace, PLAIN)


def test_what_is_written_well_is_not_changed() -> None:
    """Also beside something that is repaired."""
    data = build().to_bytes()
    names = set(parse_trace(data).names)
    assert names == set(parse_trace(data.replace(b'"cbid": ', b'"a": inf, "cbid": ')).names)
    assert "\\quoted\\" in "".join(names)


def test_a_utf_8_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "windows.json"
    path.write_bytes(b"\xef\xbb\xbf" + build().to_bytes())
    assert same(read_trace(path), PLAIN)


def test_a_session_in_which_nothing_ran_is_a_trace() -> None:
    nothing = TraceBuilder().document()
    trace = parse_trace(json.dumps(nothing).encode())
    assert len(trace) == 0
    assert trace.warnings == ()


def test_the_exporter_without_kineto_names_no_categories() -> None:
    events = [
        {"name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions"},
        {"name": "aten::mm", "ph": "s", "ts": 1.5, "tid": 1, "pid": "CPU functions", "id": 0},
    ]
    assert measure_all(parse_trace(json.dumps(events).encode()))["ops"] == 1


# ------------------------------------------------------------------------------------ the collector


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    parse_trace(build().to_bytes())
    assert gc.isenabled()
    with pytest.raises(TraceError):
        parse_trace(b"{")
    assert gc.isenabled()
    gc.disable()
    try:
        parse_trace(build().to_bytes())
        assert not gc.isenabled()
    finally:
        gc.enable()


# --------------------------------------------------------------------------------------- errors

NONE = [
    b"   ",
    b"nothing",
    b"[",
    b"[1]",
    b'"traceEvents"',
    b"\x80\x04\x95 a pickle",
    b"version https://git-lfs.github.com/spec/v1",
    gzip.compress(b""),
    b'{"schema": "1.1.1", "nodes": [{"name": "aten::mm"}, {"name": "aten::add"}]}',
    b'{"traceEvents": [{"ph": "X", "cat": "devtools.timeline", "ts": 1, "dur": 2}]}',
    b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": ["a"], "ts": 1}]}',
    b'{"traceEvents": 1}',
    b'{"traceEvents": [1]}',
    b'{"traceEvents": [], "a": tru}',
    b'{"traceEvents": [{"ts": "noon"}]}',
    b'{"traceEvents": [{"ph": "X", "ts": "nan"}]}',
    b'{"traceEvents": [{"ph": "X", "ts": "inf"}]}',
    b'{"traceEvents": [{"ph": "X", "ts": 1e300}]}',
    b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1e19}]}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'[{"args": ' + b"[" * 100_000,
    build().to_bytes().decode().encode("utf-16"),
    b"\x1f\x8b",
    gzip.compress(b"not json"),
    gzip.compress(build().to_bytes())[:40] + b"damage" + gzip.compress(build().to_bytes())[46:],
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("data", NONE, ids=range(len(NONE)))
def test_a_file_that_is_not_a_trace_is_an_error_that_names_it(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (gzip.compress(build().to_bytes(), mtime=0)[:20], "its gzip data is truncated"),
        (b"<html>", "HTML"),
        (b"PK\x03\x04", "a zip archive"),
        (b"{}", "`traceEvents`"),
        (b"# notes", 'it begins with "# notes", not with a JSON object or list'),
        (b"null\n", 'it begins with "null", not with a JSON object or list'),
        (b"\xff\x00\x01abc", ": binary data;"),
        ("試".encode() * 30, 'it begins with "試試試'),
        (b'[{"ph": "X", "cat": "blink"}, {"cat": "v8"}]', "2 events, of the categories: blink, v8"),
        (build().to_bytes()[:300], "ends at byte 300, before its first whole event"),
        (b'[{"ts": 1}, {"ts": 2}, {"ts" 3}]', r"byte 29\)"),
        (b'{"a": 1, "traceEvents": [{"ts": 1}, {"ts" 3}]}', r"byte 42\)"),
        (b'[{"cat": "kernel"}, {"cat": 5}]', r"\$\[1\]\.cat"),
        (b"\x1f\x8bnot compressed", "damaged gzip data"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words):
        read_trace(path)


@pytest.mark.parametrize("size", [300, 2**20])
def test_a_fault_is_placed_in_the_whole_file(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = build().to_bytes()
    at = data.rindex(b'"ts"') + 4
    monkeypatch.setattr(read, "CHUNK", size)
    with pytest.raises(TraceError) as caught:
        parse_trace(data[: at - 1] + data[at:])
    (place,) = re.findall(r"byte ([\d,]+)", str(caught.value))
    assert at - 1 <= int(place.replace(",", "")) <= at + 60


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_larger_than_memory_is_refused(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "free_bytes", lambda: 10_000)
    monkeypatch.setattr(read, "CHUNK", 1000)
    path, bomb = tmp_path / "large.json", b"[" + b" " * 2_000_000
    path.write_bytes(gzip.compress(bomb) if packed else bomb)
    with pytest.raises(TraceError, match="too large for this machine"):
        read_trace(path)


def test_many_small_events_are_larger_than_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "free_bytes", lambda: 1_500_000)
    monkeypatch.setattr(read, "CHUNK", 10_000)
    path = tmp_path / "small.json"
    path.write_bytes(b"[" + b",".join([b'{"ph":"X","cat":"kernel","ts":1}'] * 20_000) + b"]")
    with pytest.raises(TraceError, match="too large for this machine"):
        read_trace(path)


@pytest.mark.parametrize("what", ["missing", "folder", "nul"])
def test_what_cannot_be_opened(what: str, tmp_path: Path) -> None:
    path = {"missing": tmp_path / "a.json", "folder": tmp_path, "nul": Path("a\0b")}[what]
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


def test_an_empty_list_is_an_empty_trace() -> None:
    for data in (b"[]", b'{"traceEvents": []}'):
        trace = parse_trace(data)
        assert len(trace) == 0
        values = measure_all(trace)
        assert all(isinstance(value, MissingValue) for value in values.values())
        for name in ("ops", "flops", "self_cpu_ms"):
            assert values[name].reason == because(*Why.NO_OPERATORS), name  # type: ignore[union-attr]
        assert op_rows(trace) == {}


@pytest.mark.parametrize("others", [0, 20_000], ids=["few", "many"])
def test_events_that_start_together_are_in_the_order_of_nesting(others: int) -> None:
    """The longer first; of the same times the annotation, the operator, the runtime call."""
    together = [
        ("runtime", "cuda_runtime", 5),
        ("operator", "cpu_op", 5),
        ("long", "cpu_op", 9),
        ("annotation", "user_annotation", 5),
    ]
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": 100, "dur": dur}
        for name, cat, dur in together
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "other", "pid": 1, "tid": 1, "ts": ts, "dur": 1}
        for ts in range(200 + others, 200, -1)
    ]
    trace = parse_trace(json.dumps({"traceEvents": events}).encode())
    names = [trace.names[number] for number in trace.name.tolist()]
    assert names == ["long", "annotation", "operator", "runtime", *["other"] * others]
    assert trace.ts.tolist() == sorted(trace.ts.tolist())
