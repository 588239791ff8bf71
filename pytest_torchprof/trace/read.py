"""Kineto's Chrome trace format to a `Trace`."""

from __future__ import annotations

import gc
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_torchprof.errors import TraceError
from pytest_torchprof.events import KINDS, Kind, Trace

_GZIP_MAGIC = b"\x1f\x8b"


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str | None = None
    ts: float = 0.0
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _File(msgspec.Struct, gc=False):
    events: list[_Event] = msgspec.field(name="traceEvents")


# Numbers come as strings from some versions, hence not strict.
_FILE = msgspec.json.Decoder(_File, strict=False)
_BARE = msgspec.json.Decoder(list[_Event], strict=False)
_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read(path: Path) -> Trace:
    """The trace in a ``.json`` or gzip-compressed file (by content, not by name).

    Raises:
        TraceError: unreadable, not JSON, or JSON that is no Chrome trace.
    """
    try:
        data = path.read_bytes()
        if data[:2] == _GZIP_MAGIC:
            data = gzip.decompress(data)
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    return parse(data, source=str(path))


def parse(data: bytes, *, source: str = "trace") -> Trace:
    """The trace in these bytes of JSON: an object with ``traceEvents``, or a bare list of events.

    Raises:
        TraceError: not JSON, or JSON that is no Chrome trace.
    """
    with _without_gc():
        try:
            if data.lstrip()[:1] == b"[":
                return _columns(_BARE.decode(data), {})
            return _columns(_FILE.decode(data).events, _metadata(data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(
                f"{source}: not a Chrome trace: {error}. "
                "Expected the JSON that torch.profiler's export_chrome_trace writes."
            ) from error


@contextmanager
def _without_gc() -> Iterator[None]:
    """The collector would walk each of a million new objects several times, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _metadata(data: bytes) -> dict[str, Any]:
    header = _HEADER.decode(data)
    return {key: msgspec.json.decode(raw) for key, raw in header.items() if key != "traceEvents"}


def _columns(events: list[_Event], metadata: dict[str, Any]) -> Trace:
    kinds = {None: Kind.OTHER}
    rows: list[_Event] = []
    for event in events:
        if event.cat not in kinds:
            kinds[event.cat] = KINDS.get((event.cat or "").lower(), Kind.OTHER)
        if event.ph in ("X", "i") and (kinds[event.cat] or event.name == "[memory]"):
            rows.append(event)
    n = len(rows)
    names: dict[str, int] = {}
    threads: dict[tuple[Any, Any], int] = {}
    kind = np.fromiter(
        (kinds[e.cat] or Kind.MEMORY for e in rows), np.int8, n
    )
    name = np.fromiter((names.setdefault(e.name, len(names)) for e in rows), np.int32, n)
    thread = np.fromiter(
        (threads.setdefault((e.pid, e.tid), len(threads)) for e in rows), np.int32, n
    )
    # Microseconds with three decimals: whole nanoseconds once rounded.
    ts = np.rint(np.fromiter((e.ts for e in rows), np.float64, n) * 1000).astype(np.int64)
    dur = np.rint(np.fromiter((e.dur or 0.0 for e in rows), np.float64, n) * 1000).astype(np.int64)
    order = np.lexsort((-dur, ts))
    return Trace(
        ts=ts[order],
        dur=dur[order],
        kind=kind[order],
        name=name[order],
        thread=thread[order],
        names=list(names),
        args=[rows[i].args or None for i in order],
        metadata=metadata,
    )
