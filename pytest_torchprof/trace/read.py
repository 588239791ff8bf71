"""Kineto's Chrome trace format to a `Trace`."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.errors import TraceError
from pytest_torchprof.events import KINDS, Kind, Trace

if TYPE_CHECKING:
    from pytest_torchprof.nesting import Bools, Ints

_GZIP_MAGIC = b"\x1f\x8b"
#: Bytes of JSON that are decoded at a time: the objects made of them fit into a processor's cache.
_PIECE = 2**20
#: Between two events as Kineto prints them.
_BETWEEN = b"\n  },\n  {"
_EVENTS = b'"traceEvents"'
#: A year's number above 2200 if it counts microseconds, so it counts nanoseconds.
_NANOSECONDS = 2**53
_LARGEST_NS = 2**61
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str | None = None
    cat: str | None = None
    ts: int | float = 0.0
    dur: int | float | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
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
        data = _bytes_of(path)
        if data[:2] == _GZIP_MAGIC:
            data = bytearray(gzip.decompress(data))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TraceError(f"{path}: cannot be read", str(error)) from error
    return parse(data, source=str(path))


def _bytes_of(path: Path) -> bytearray:
    data = bytearray(path.stat().st_size)
    with path.open("rb") as file:
        del data[file.readinto(data) :]
        data += file.read()  # of what has no size or is growing
    return data


def parse(data: bytes | bytearray, *, source: str = "trace") -> Trace:
    """The trace in these bytes of JSON: an object with ``traceEvents``, or a bare list of events.

    A bytearray becomes the trace's own.

    Raises:
        TraceError: not JSON, or JSON that is no Chrome trace.
    """
    with _without_gc():
        try:
            data = bytearray(data) if isinstance(data, bytes) else data
            trace = _in_pieces(data)
            return _whole(data) if trace is None else trace
        except (*_FAULTS, KeyError, ValueError, OverflowError) as error:
            raise TraceError(
                f"{source}: not a Chrome trace",
                str(error),
                "expected the JSON that torch.profiler's export_chrome_trace writes",
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


def _whole(data: bytearray) -> Trace:
    columns = _Columns()
    if data[:64].lstrip()[:1] == b"[":
        columns.add(_BARE.decode(data))
        return columns.trace({})
    columns.add(_FILE.decode(data).events)
    return columns.trace(_metadata(data))


def _in_pieces(data: bytearray) -> Trace | None:
    """The same, piece by piece, of a large file that is laid out as Kineto does; None of others.

    Each piece is made a list of its own in place: a comma ends it, a line break begins the next.
    Where the layout misleads, a piece does not decode, or what is around the events does not.
    """
    start, end = data.find(b"[", data.find(_EVENTS)), data.rfind(b"]")
    if end - start < _PIECE or start < 0:
        return None
    columns, view, cuts = _Columns(), memoryview(data), list[int]()
    try:
        metadata = _metadata(data[: start + 1] + data[end:])
        while (at := data.find(_BETWEEN, min(start + _PIECE, end), end)) >= 0:
            cuts.append(at + 4)
            data[at + 4 : at + 6] = b"]["
            columns.add(_BARE.decode(view[start : at + 5]))
            start = at + 5
        columns.add(_BARE.decode(view[start : end + 1]))
    except _FAULTS:
        for at in cuts:
            data[at : at + 2] = b",\n"
        return None
    return columns.trace(metadata)


def _metadata(data: bytearray) -> dict[str, Any]:
    header = _HEADER.decode(data)
    del header["traceEvents"]
    return {key: msgspec.json.decode(raw) for key, raw in header.items()}


class _Labels(dict[tuple[Any, ...], int]):
    """What events have in common, numbered: (name, category, phase, process, thread)."""

    of = staticmethod(attrgetter("name", "cat", "ph", "pid", "tid"))

    def __missing__(self, label: tuple[Any, ...]) -> int:
        self[label] = number = len(self)
        return number


class _Columns:
    """Events as columns, added a piece at a time."""

    def __init__(self) -> None:
        self._labels = _Labels()
        self._label, self._ts, self._dur = [list[npt.NDArray[Any]]() for _ in range(3)]
        self._args: list[msgspec.Raw | None] = []

    def add(self, events: list[_Event]) -> None:
        labels = map(self._labels.__getitem__, map(_Labels.of, events))
        self._label.append(np.fromiter(labels, np.int64, len(events)))
        ts, dur = [e.ts for e in events], [e.dur or 0 for e in events]
        in_ns = np.fromiter(ts, np.float64, len(ts)) >= _NANOSECONDS
        self._ts.append(_nanoseconds(ts, in_ns))
        self._dur.append(np.maximum(_nanoseconds(dur, in_ns), 0))
        self._args += [e.args or None for e in events]

    def trace(self, metadata: dict[str, Any]) -> Trace:
        """All that is an event of a `Kind`, in time order."""
        names: dict[str, int] = {}
        threads: dict[tuple[Any, Any], int] = {}
        of_label = np.array(
            [
                (
                    _kind(cat, ph, name),
                    names.setdefault(name or "", len(names)),
                    threads.setdefault((pid, tid), len(threads)),
                )
                for name, cat, ph, pid, tid in self._labels
            ],
            np.int32,
        ).reshape(-1, 3)
        none = np.zeros(0, np.int64)
        kind, name, thread = of_label[np.concatenate([none, *self._label])].T
        ts, dur = np.concatenate([none, *self._ts]), np.concatenate([none, *self._dur])
        # The outer of two events with the same times is likelier of the earlier kind.
        order = np.lexsort((_RANK[kind], -dur, ts))
        order = order[kind[order] != Kind.OTHER]
        return Trace(
            ts=ts[order],
            dur=dur[order],
            kind=kind[order].astype(np.int8),
            name=name[order],
            thread=thread[order],
            names=list(names),
            args=np.fromiter(self._args, object, len(self._args))[order],
            threads=list(threads),
            metadata=metadata,
        )


_RANK = np.full(len(Kind), 4, np.int8)
_RANK[[Kind.PYTHON, Kind.ANNOTATION, Kind.OP, Kind.RUNTIME]] = range(4)


def _kind(category: str | None, phase: str, name: str | None) -> Kind:
    if phase not in ("X", "i"):
        return Kind.OTHER
    # In 2021, these had no category.
    otherwise = Kind.MEMORY if name == "[memory]" else Kind.OTHER
    return KINDS.get((category or "").lower(), otherwise)


def _nanoseconds(times: list[int | float], in_ns: Bools) -> Ints:
    """Whole nanoseconds of microseconds with three decimals, or of what is nanoseconds already.

    Decimals are exact up to 100 days; Kineto counts from a base at most 90 days ago. Before 2024
    it counted from 1970, in whole microseconds: those are too many nanoseconds for a float.

    Raises:
        ValueError: not a number, or out of all bounds.
    """
    given = np.fromiter(times, np.float64, len(times))
    if not (np.abs(given) < np.where(in_ns, _LARGEST_NS, _LARGEST_NS / 1000)).all():
        raise ValueError("an event's time is not a number, or out of all bounds")
    whole = np.floor(given)
    out = whole.astype(np.int64) * 1000 + np.rint((given - whole) * 1000).astype(np.int64)
    if in_ns.any():
        out[in_ns] = [int(times[i]) for i in np.flatnonzero(in_ns)]
    return out
