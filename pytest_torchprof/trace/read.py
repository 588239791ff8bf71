"""Read Chrome traces as Kineto writes them into `Events`, piece by piece, even damaged ones."""

from __future__ import annotations

import gc
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.errors import OtherJsonError, TraceError
from pytest_torchprof.core.files import opened, system_message
from pytest_torchprof.core.process import late
from pytest_torchprof.core.units import plural
from pytest_torchprof.trace.arguments import Arguments, CopyArgs, decode, starts
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    KINDS,
    MODULE_MARK,
    OF_THE_PROFILER,
    OTHER_DEVICES,
    REGION_MARK,
    TORCH_MARK,
    Kind,
    base_names,
)
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Ints


# ---- The text of a stored trace, plain or gzip, in chunks of bounded size.

#: Bytes that are read, unpacked and decoded at a time: the result fits into a cache.
CHUNK = 2**19

#: Up to this many chunks fit anywhere: checking the free memory takes longer.
_SMALL = 32

#: Called with the number of bytes read so far and the total.
ReadProgress = Callable[[int, int], None]

_GZIP = b"\x1f\x8b"
#: The first bytes of files that are mistaken for traces.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ": "xz-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\x80": "a pickle",
    b"SQLite format 3": "a SQLite database",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"<": "HTML or XML",
}
_COPY = "copy it again from the source, or profile again"
_SMALLER = "read it on a machine with more memory, or profile fewer steps"
#: What to give instead of a path that leads to nothing.
WANTED = "give a .json or .json.gz trace of torch.profiler, or a folder of them"
_EXPECTED_TEXT = (
    "expected the JSON that torch.profiler's export_chrome_trace writes, or the same gzipped"
)


class Stream:
    """The chunks of one file's text.

    Attributes:
        source: the file's name, for messages.
        size: bytes of text so far.
        cut: whether compressed data broke off before its end.
    """

    def __init__(self, path: Path | str, progress: ReadProgress | None = None) -> None:
        self.source = str(path)
        self.size = 0
        self.cut = False
        self._path, self._progress = path, progress
        self._room: list[int | None] = []

    def __iter__(self) -> Iterator[bytes]:
        """Chunks of about `CHUNK` bytes, none of them empty.

        Raises:
            TraceError: unreadable, damaged, empty, clearly not JSON, or larger than memory.
        """
        try:
            for chunk in self._text():
                if not self.size:
                    self._check(chunk)
                self.size += len(chunk)
                self.check_room(self.size)
                yield chunk
        except MemoryError as error:
            raise self.beyond_memory() from error
        except (OSError, ValueError) as error:
            raise TraceError(
                f"{self.source}: cannot be read", system_message(error), WANTED
            ) from error
        if self.cut and not self.size:
            found = "its gzip data is truncated, before the first byte of text"
            raise TraceError(f"{self.source}: not a whole trace", found, _COPY)
        if not self.size:
            raise TraceError(
                f"{self.source}: not a Chrome trace", "the file is empty", _EXPECTED_TEXT
            )

    def _free(self) -> int | None:
        return free_bytes()

    def _text(self) -> Iterator[bytes]:
        with opened(Path(self._path)) as file:
            raw = self._raw(file)
            first = next(raw, b"")
            if first[:2] == _GZIP:
                yield from self._unpacked(first, raw)
                return
            total = os.fstat(file.fileno()).st_size
            self.check_room(total)
            if first:
                yield first.removeprefix(b"\xef\xbb\xbf")  # the byte order mark of Windows
            yield from raw

    def _raw(self, file: IO[bytes]) -> Iterator[bytes]:
        total, done = os.fstat(file.fileno()).st_size, 0
        # Allocating a whole chunk takes as long as reading a small file.
        while chunk := file.read(wanted := min(CHUNK, max(total - done + 1, 2**16))):
            done += len(chunk)
            if self._progress is not None:
                self._progress(done, max(total, done))
            yield chunk
            if len(chunk) < wanted:
                return

    def _unpacked(self, packed: bytes, raw: Iterator[bytes]) -> Iterator[bytes]:
        """Data after a complete member that is not a member itself is padding, and is skipped."""
        inflate = zlib.decompressobj(wbits=31)
        while packed:
            try:
                text = inflate.decompress(packed, CHUNK)
            except zlib.error as error:
                found = f"damaged gzip data, after {self.size:,} bytes of text: {error}"
                raise TraceError(f"{self.source}: cannot be read", found, _COPY) from error
            if text:
                yield text
            if not inflate.eof:
                packed = inflate.unconsumed_tail or next(raw, b"")
                continue
            packed = inflate.unused_data or next(raw, b"")
            if packed[:2] != _GZIP:
                return
            inflate = zlib.decompressobj(wbits=31)
        if text := inflate.flush():
            yield text
        self.cut = True

    def _check(self, start: bytes) -> None:
        start = start.lstrip()
        if start[:1] in b"{[":
            return
        for magic, what in _FOREIGN.items():
            if start.startswith(magic):
                raise TraceError(f"{self.source}: not a Chrome trace", what, _EXPECTED_TEXT)
        raise TraceError(f"{self.source}: not a Chrome trace", _beginning(start), _EXPECTED_TEXT)

    def beyond_memory(self) -> TraceError:
        """The error for running out of memory."""
        found = f"not enough memory after {self.size:,} bytes of text"
        return TraceError(f"{self.source}: cannot be read", found, _SMALLER)

    def check_room(self, needed: int) -> None:
        """Check against the memory that was free at the start: a small file may unpack to any size.

        Raises:
            TraceError: it needs more bytes than that.
        """
        if needed <= _SMALL * CHUNK:
            return
        if not self._room:
            self._room.append(self._free())
        room = self._room[0]
        if room is not None and needed > room:
            raise TraceError(
                f"{self.source}: too large for this machine",
                f"it needs more than {needed:,} bytes of memory, and {room:,} were free",
                _SMALLER,
            )


class Text(Stream):
    """The chunks of a text that is already in memory."""

    def __init__(self, data: bytes | bytearray, source: str) -> None:
        super().__init__(source)
        self._data = data

    def _free(self) -> None:
        """No limit: the text is already in memory."""

    def _text(self) -> Iterator[bytes]:
        if len(self._data) <= CHUNK:
            yield bytes(self._data)
            return
        for at in range(0, len(self._data), CHUNK):
            yield bytes(memoryview(self._data)[at : at + CHUNK])


def _beginning(start: bytes) -> str:
    r"""What a text that is not a trace begins with.

    >>> _beginning(b"null\n"), _beginning(b"\x01\x02")
    ('it begins with "null", not with a JSON object or list', 'binary data')
    """
    text = start[:24].decode(errors="replace").splitlines()[0]
    # The cut may be within the last character.
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text[:-1]:
        return "binary data"
    return f'it begins with "{text[:20].rstrip()}", not with a JSON object or list'


def free_bytes() -> int | None:
    """Memory that this process may still allocate; None if the system does not tell."""
    found = []
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line[:12] == "MemAvailable"]
    except (OSError, ValueError):
        pass
    try:
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii"))
            for name in ("max", "current")
        )
        found.append(max(limit - used, 0))
    except (OSError, ValueError):  # no such group, or "max": without a limit
        pass
    return min(found, default=None)


# ---- Repair invalid JSON from Kineto and other writers, and salvage truncated files.
#
# It only works on the text around the failure; this is the slow path.

#: A line with a name that may contain quotes, as Kineto prints it since 2021. It did not escape
#: those of compiled code and of docstrings (pytorch/kineto#1459).
_NAME = late(
    rb'^( *(?:"ph": "[^"\n]*", "cat": "[^"\n]*", )?"name": ")([^\n]*?)'
    rb'(", "pid": [^,\n]*, "tid": [^,\n]*,|",)$',
    re.MULTILINE,
)
_QUOTE = late(rb'(\\.)|"')
#: What begins or ends a string; in one, a backslash, of an escape or of a Windows path
#: (pytorch/kineto#617), and control characters; elsewhere, an invalid number: a bandwidth over no
#: time (pytorch/kineto#105); or a trailing comma. No part is tried twice, whatever the text is.
_FAULT = late(
    rb'"|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?|[\x00-\x1f]'
    rb"|[-+]?\b(?i:nan|inf(?:inity)?)\b|,(?=\s*[\]}])",
)
_TOKEN = late(rb'"|\\.|{|}|\[|\]', re.DOTALL)


def repaired(text: bytes) -> tuple[bytes, int]:
    """The text with writers' known faults fixed, so that it is valid JSON, and their number."""
    count, inside = 0, False

    def escaped(match: re.Match[bytes]) -> bytes:
        nonlocal count
        count += match[1] is None
        return match[1] or b"\\" + match[0]

    def name(match: re.Match[bytes]) -> bytes:
        return match[1] + _QUOTE.sub(escaped, match[2]) + match[3]

    def token(match: re.Match[bytes]) -> bytes:
        nonlocal count, inside
        word = match[0]
        first = word[:1]
        if first == b'"':
            inside = not inside
        elif first < b" ":
            count += inside
            return b" " if inside else word
        elif first == b"\\":
            count += inside and len(word) == 1
            return b"\\\\" if inside and len(word) == 1 else word
        elif not inside:
            count += 1
            return b"" if word == b"," else b"null"
        return word

    text = _NAME.sub(name, text)
    text = _FAULT.sub(token, text)
    try:
        text.decode()
    except UnicodeDecodeError:
        proper = text.decode(errors="replace")
        count += proper.count("\N{REPLACEMENT CHARACTER}")
        text = proper.encode()
    return text, count


class Whole(NamedTuple):
    """The complete part of a truncated list of events.

    ``end`` is the position after the last whole event, 0 if there is none; ``closed`` is whether
    the list itself is complete, so that only what follows it is lost.
    """

    end: int
    closed: bool


def whole_events(text: bytes) -> Whole:
    """The complete part of a list of objects, which begins with its bracket."""
    depth, end, inside = 0, 0, False
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word == b'"':
            inside = not inside
        elif inside or word[:1] == b"\\":
            continue
        elif word in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 1 and word == b"}":
                end = match.end()
            elif depth <= 0:
                return Whole(end, closed=True)
    return Whole(end, closed=False)


# ---- Convert Kineto's events to the columns of `Events`, one piece of the file at a time.

#: If it counted microseconds, this would be after the year 2200, so it counts nanoseconds.
_NANOSECONDS = 2**53
_LARGEST_NS = 2**61
_LARGEST_US = _LARGEST_NS / 1000
#: Among more events, some start together.
_FEW = 10_000
#: A name is cut there. Those of kernels have some thousand characters; patterns on longer ones take
#: seconds.
_LONGEST_NAME = 8_192


class Event(msgspec.Struct, gc=False):
    """The parts of an event that become columns."""

    ph: str | None = ""
    name: str | None = None
    cat: str | None = None
    ts: int | float | None = 0.0
    dur: int | float | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Labels(dict[tuple[Any, ...], int]):
    """Numbers for what events have in common: (name, category, phase, process, thread)."""

    of = staticmethod(attrgetter("name", "cat", "ph", "pid", "tid"))

    def __init__(self) -> None:
        super().__init__()
        self.kinds = bytearray()

    def __missing__(self, label: tuple[Any, ...]) -> int:
        self[label] = number = len(self)
        name, category, phase, process, _ = label
        self.kinds.append(_kind(category, phase, name, process))
        return number


class Columns:
    """Events as columns, added in pieces; those without a `Kind` are only counted.

    Attributes:
        seen: events so far.
        kept: those with a `Kind`.
    """

    def __init__(self) -> None:
        self.seen = self.kept = 0
        self._labels = _Labels()
        self._label: list[npt.NDArray[Any]] = []
        self._ts: list[npt.NDArray[Any]] = []
        self._dur: list[npt.NDArray[Any]] = []
        self._untimed: list[int] = []
        self._length: list[npt.NDArray[Any]] = []
        # It grows in place, and gives its text away without a copy.
        self._text = BytesIO()

    def add(self, events: list[Event]) -> None:
        """Add these events; only their columns are kept.

        Raises:
            ValueError: a time is not a number, or out of range; then none is added.
        """
        numbers = list(map(self._labels.__getitem__, map(_Labels.of, events)))
        known = bytes(map(self._labels.kinds.__getitem__, numbers))
        if Kind.OTHER in known:
            numbers, events = list(compress(numbers, known)), list(compress(events, known))
        times = [e.ts or 0 for e in events]
        times += [e.dur or 0 for e in events]
        begin, lasting = _nanoseconds(times)
        self._untimed += [
            self.kept + i
            for i in np.flatnonzero(lasting <= 0).tolist()
            if events[i].ph == "X" and (events[i].dur is None or lasting[i] < 0)
        ]
        args = [e.args for e in events]
        self.seen += len(known)
        self.kept += len(events)
        self._label.append(np.array(numbers, np.int32))
        self._ts.append(begin)
        self._dur.append(np.maximum(lasting, 0, out=lasting))  # a copy would keep both rows alive
        self._length.append(np.fromiter(map(len, args), np.int32, len(args)))
        self._text.writelines(args)

    @property
    def size(self) -> int:
        """An upper estimate of the bytes of memory that these events take as a trace."""
        return self.kept * 100 + len(self._labels) * 500 + self._text.tell()

    @property
    def categories(self) -> list[str]:
        """Categories of all events seen, as written."""
        return sorted({str(label[1]) for label in self._labels if label[1]})

    @property
    def _unread(self) -> tuple[str, ...]:
        """Unknown categories of events with a duration; empty text for a missing one.

        An NPU's events have none, but the arrows to them do.
        """
        kinds = zip(self._labels, self._labels.kinds, strict=True)
        found = {
            str(category or "")
            for (_, category, phase, _, _), kind in kinds
            if kind == Kind.OTHER and (phase == "X" or (category or "").lower() in OTHER_DEVICES)
        }
        return tuple(sorted(one for one in found if one.lower() not in OF_THE_PROFILER))

    def trace(
        self, metadata: dict[str, Any], warnings: Sequence[str] = (), *, cut: bool = False
    ) -> Events:
        """All events with a `Kind`, in time order. The columns are empty afterwards."""
        numbers, ts, dur, length = map(_joined, (self._label, self._ts, self._dur, self._length))
        kind = np.frombuffer(bytes(self._labels.kinds), np.int8)[numbers]
        order = _in_time_order(ts, dur, kind)
        names: dict[str, int] = {}
        threads: dict[tuple[Any, Any], int] = {}
        written = [(label[0] or "")[:_LONGEST_NAME] for label in self._labels]
        shown = base_names(written, [kind == Kind.OP for kind in self._labels.kinds])
        name = [names.setdefault(one, len(names)) for one in shown]
        thread = [threads.setdefault(label[3:], len(threads)) for label in self._labels]
        # One column after the other: both of all would be the most that reading needs.
        ts = ts[order]
        dur = dur[order]
        start = starts(length)[order]
        length = length[order]
        numbers = numbers[order]
        untimed = np.flatnonzero(among(order, self._untimed)) if self._untimed else order[:0]
        text = self._text.getvalue()
        self._text = BytesIO()
        return Events(
            ts=ts,
            dur=dur,
            kind=kind[order],
            name=np.array(name, np.int32)[numbers],
            thread=np.array(thread, np.int32)[numbers],
            names=list(names),
            args=Arguments(text, start, length),
            threads=list(threads),
            metadata=metadata,
            warnings=tuple(warnings),
            cut=cut,
            unread=self._unread,
            untimed=tuple(untimed.tolist()),
        )


_RANK = np.full(len(Kind), 4, np.int8)
_RANK[[Kind.PYTHON, Kind.ANNOTATION, Kind.OP, Kind.RUNTIME]] = range(4)


def _in_time_order(
    ts: Ints, dur: Ints, kind: npt.NDArray[np.int8]
) -> npt.NDArray[np.signedinteger[Any]]:
    """Their order: longer events first where they start together, then the earlier kind."""
    if len(ts) < _FEW:  # of which mostly none start together
        order = ts.argsort(kind="stable")
        ordered = ts[order]
        if (ordered[1:] > ordered[:-1]).all():
            return order
    # Of two events with the same times, the outer one more likely has the earlier kind.
    np.negative(dur, out=dur)
    order = np.lexsort((_RANK[kind], dur, ts)).astype(np.int32)
    np.negative(dur, out=dur)
    return order


def _joined(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One array; the pieces are released."""
    whole = np.concatenate([np.zeros(0, np.int32), *pieces])
    pieces.clear()
    return whole


@lru_cache(maxsize=10_000)
def _kind(category: str | None, phase: str | None, name: str | None, process: object) -> Kind:
    if phase not in {"X", "i", "I"}:
        return Kind.OTHER
    # torch records our marks as operators
    if name is not None and name.startswith((MODULE_MARK, REGION_MARK)):
        return Kind.ANNOTATION
    otherwise = Kind.OTHER
    if name == "[memory]":  # in 2021, these had no category
        otherwise = Kind.MEMORY
    elif not category and process == "CPU functions":  # torch.autograd.profiler without Kineto
        otherwise = Kind.OP
    kind = KINDS.get((category or "").lower(), otherwise)
    return Kind.ANNOTATION if kind == Kind.OP and TORCH_MARK.match(name or "") else kind


def _nanoseconds(times: list[int | float]) -> npt.NDArray[np.int64]:
    """Two rows, starts and durations, in whole nanoseconds; ``times`` has one after the other.

    ``times`` are microseconds with three decimals, or nanoseconds, as an event's start shows.
    Decimals are exact up to 100 days; Kineto counts from a base at most 90 days ago. Before 2024
    it counted from 1970, in whole microseconds: as nanoseconds, those exceed a float's precision.

    Raises:
        ValueError: not a number, or out of range.
    """
    given = np.array(times, np.float64).reshape(2, -1)
    in_ns = given[0] >= _NANOSECONDS
    some = in_ns.any()
    largest = np.where(in_ns, _LARGEST_NS, _LARGEST_US) if some else _LARGEST_US
    if not (np.abs(given) < largest).all():
        raise ValueError("an event's time is not a number, or is out of range")
    whole = np.floor(given)
    out = whole.astype(np.int64)
    out *= 1000
    given -= whole
    given *= 1000
    out += np.rint(given, out=given).astype(np.int64)
    if some:
        rows = np.flatnonzero(in_ns).tolist()
        for row, start in enumerate((0, given.shape[1])):
            out[row, rows] = [int(times[start + i]) for i in rows]
    return out


# ---- Fix copies between pinned memory and an AMD device, which ROCm records as copies on the
# device.
#
# The call that made the copy tells the direction: ``hipMemcpyKind`` is among its arguments.

_WITHIN: Final = late(r"DtoD|DeviceToDevice")
_CALL: Final = "hipMemcpy"
#: Names as ROCm writes them for known directions, by ``hipMemcpyKind``.
#: Source: HIP's hip/driver_types.h: 1 is hipMemcpyHostToDevice, 2 is hipMemcpyDeviceToHost.
_NAMES: Final[Mapping[str, str]] = {
    "1": "Memcpy HtoD (Host -> Device)",
    "2": "Memcpy DtoH (Device -> Host)",
    "hipMemcpyHostToDevice": "Memcpy HtoD (Host -> Device)",
    "hipMemcpyDeviceToHost": "Memcpy DtoH (Device -> Host)",
}


def with_directions(trace: Events) -> Events:
    """The trace with such copies named by their direction; any other trace unchanged."""
    if not any(name.startswith(_CALL) for name in trace.names):
        return trace
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.names_where(_WITHIN.search))
    copies = copies[trace.launch[copies] >= 0]
    calls = trace.launch[copies]
    made = trace.names_where(lambda name: name.startswith(_CALL))[calls]
    copies, calls = copies[made], calls[made]
    names = {name: number for number, name in enumerate(trace.names)}
    column = trace.name.copy()
    for copy, args in zip(copies.tolist(), decode(CopyArgs, trace.args[calls]), strict=True):
        if (name := _NAMES.get(str(args.kind))) is not None:
            column[copy] = names.setdefault(name, len(names))
    return replace(trace, name=column, names=list(names))


# ---- Read Chrome traces as Kineto writes them into `Events`, piece by piece, even damaged ones.
#
# A file is never in memory as a whole: each piece of its text is decoded as soon as it is read,
# and only columns and the events' arguments remain. If no end of a piece can be found, the rest
# is decoded at once.

#: Between two events as Kineto prints them; it occurs nowhere else in Kineto's files.
_BETWEEN = b"\n  },\n  {"
#: After the last event, as Kineto prints it: finds the metadata that follows without searching the
#: events again.
_END = b"\n  ],"
_ANY_BETWEEN = late(rb'\}\s*,\s*\{\s*"\w+"')
_EVENTS = late(rb'"traceEvents"\s*:\s*\[')
_IS_LIST = late(rb"\s*\[")
_IS_LIST_OF_EVENTS = late(rb"\[\s*[{\]]")
#: No trace has longer text before its events or in a single event.
_LONGEST = 2**28
#: Repairs and searches for the last whole event go through Python's regular expressions, which take
#: a second for a few times as much; between two ends of events, no trace has more.
_MENDED = 2**22
#: Top-level keys that Kineto writes; a trace with one of them may have no events.
_KINETO = {"schemaVersion", "deviceProperties", "baseTimeNanoseconds", "distributedInfo"}
_BYTE = late(r"\(byte (\d+)\)")
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_REFUSED = (*_FAULTS, ValueError, OverflowError)
_EXPECTED = "expected the JSON that torch.profiler's export_chrome_trace writes"


class _File(msgspec.Struct, gc=False):
    events: list[Event] = msgspec.field(name="traceEvents")


# Numbers come as strings from some versions, hence not strict.
_FILE = msgspec.json.Decoder(_File, strict=False)
_LIST = msgspec.json.Decoder(list[Event], strict=False)
_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_trace(path: Path, *, progress: ReadProgress | None = None) -> Events:
    """The trace in a ``.json`` or gzip-compressed file (by content, not by name).

    A truncated file is read up to its last whole event, and JSON that Kineto writes wrongly is
    repaired; the trace's ``warnings`` say so. ``progress`` is called with the bytes read so far and
    the size of the file. Needs about as much memory as the file's (uncompressed) size, and raises
    if that is more than is free.

    Raises:
        TraceError: unreadable, damaged, too large, not JSON, or not a PyTorch trace.
    """
    return replace(_trace(Stream(path, progress)), source=str(path))


def parse_trace(data: bytes | bytearray, *, source: str = "trace") -> Events:
    """The trace in these bytes of JSON: an object with ``traceEvents``, or a bare list of events.

    Raises:
        TraceError: see `read_trace`.
    """
    return _trace(Text(data, source))


def peek(path: Path) -> dict[str, Any]:
    """The metadata before the events, where Kineto writes most of it; nothing else is read.

    Raises:
        TraceError: unreadable, or clearly not JSON.
    """
    return _Reader(Stream(path)).header()


def is_trace(path: Path) -> bool:
    """Whether the file begins like a Chrome trace; its events are not read."""
    try:
        return _Reader(Stream(path)).begins()
    except TraceError:
        return False


def _trace(stream: Stream) -> Events:
    reader = _Reader(stream)
    enabled = gc.isenabled()
    gc.disable()  # the collector would visit each of a million new objects several times, in vain
    try:
        return reader.trace()
    except MemoryError as error:
        raise stream.beyond_memory() from error
    finally:
        if enabled:
            gc.enable()


class _Reader:
    """Reads one stream.

    ``_text`` is the part of the stream that is not decoded yet, beginning at ``_at``. From the
    first event on, its first byte is the list's bracket, which replaces the comma before its first
    event.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self._chunks = stream, iter(stream)
        self._columns = Columns()
        self._text: bytes | bytearray = b""
        self._at = 0
        self._head = b""
        self._between = _BETWEEN
        self._repairs = 0
        self._warnings: list[str] = []
        self._cut = False

    def trace(self) -> Events:
        """All events and all metadata."""
        self._find_events()
        if self._head:
            self._add_pieces()
        for chunk in self._chunks:
            self._append(chunk)
            self._stream.check_room(3 * len(self._text))  # as text, and decoded at once
        metadata = self._add_rest()
        if self._repairs:
            self._warnings.append(
                f"invalid JSON was repaired in {self._repairs:,} places (bare quotes, backslashes "
                "or control characters in names, infinite numbers, stray commas, foreign bytes)"
            )
        self._check_kinds(metadata)
        return with_directions(self._columns.trace(metadata, self._warnings, cut=self._cut))

    def header(self) -> dict[str, Any]:
        """Metadata that precedes the events."""
        self._find_events()
        return _metadata(self._head + b"]}") if len(self._head) > 1 else {}

    def begins(self) -> bool:
        """Whether there is a list of events."""
        self._find_events()
        return self._head != b"" and _IS_LIST_OF_EVENTS.match(self._text) is not None

    # ---------------------------------------------------------------- pieces

    def _find_events(self) -> None:
        """Store in ``_head`` what precedes the list of events, or nothing if none is found."""
        searched = tried = 0
        for chunk in self._chunks:
            self._append(chunk)
            if not searched and _IS_LIST.match(self._text):
                self._behead(self._text.index(b"["))
                self._head = b"["
                return
            for match in _EVENTS.finditer(self._text, searched):
                if tried > _MENDED:  # the key is in metadata again and again
                    break
                tried += match.end()
                if head := _head(bytes(self._text[: match.end()])):
                    self._head = head
                    self._behead(match.end() - 1)
                    return
                searched = match.end()
            searched = max(searched, len(self._text) - 64)
            self._limit("no events start")

    def _append(self, chunk: bytes) -> None:
        """The first chunk without a copy: usually it is the only one, and copying takes time."""
        if self._text and isinstance(self._text, bytes):
            self._text = bytearray(self._text)
        self._text += chunk

    def _behead(self, count: int) -> None:
        self._text = bytearray(memoryview(self._text)[count:])
        self._at += count

    def _limit(self, what: str) -> None:
        if len(self._text) > _LONGEST:
            found = f"{what} within {_LONGEST:,} bytes of byte {self._at:,}"
            raise TraceError(f"{self._stream.source}: not a Chrome trace", found, _EXPECTED)

    def _add_pieces(self) -> None:
        """Decode all but the last piece, as long as that succeeds."""
        while True:
            at = self._boundary() if len(self._text) >= CHUNK else None
            if at is not None and not self._add_piece(at):
                return
            chunk = next(self._chunks, b"")
            if not chunk:
                return
            self._text += chunk
            self._limit("no event ends")

    def _boundary(self) -> int | None:
        """Where the comma after the last whole event is."""
        recent = max(len(self._text) - 2 * CHUNK, 0)  # the rest was searched before
        at = self._text.rfind(self._between, recent)
        if at < 0:
            found = list(_ANY_BETWEEN.finditer(self._text, recent))
            if not found:
                return None
            at, self._between = found[-1].start(), found[-1][0]
        return at + self._between.index(b",")

    def _add_piece(self, at: int) -> bool:
        """Whether the text up to this comma is a list of events; then it is in the columns."""
        text = cast("bytearray", self._text)  # always, from the first event on
        text[at : at + 1] = b"]"
        try:
            self._add(memoryview(text)[: at + 1])
        except _REFUSED:
            text[at : at + 1] = b","
            return False
        self._behead(at)
        text = cast("bytearray", self._text)
        text[:1] = b"["
        return True

    def _add(self, piece: memoryview) -> None:
        try:
            events = _LIST.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if isinstance(error, msgspec.ValidationError):
                raise
            text, count = _mended(bytes(piece))
            if not count:
                raise
            events = _LIST.decode(text)
            self._repairs += count
        self._columns.add(events)
        self._stream.check_room(self._columns.size)

    # ---------------------------------------------------------------- the rest

    def _add_rest(self) -> dict[str, Any]:
        """Decode the last events and what follows them; return the metadata."""
        text = self._text
        self._text = b""
        if text.endswith(b"\0"):  # left behind by a crash
            text = text.rstrip(b"\0")
        try:
            return self._add_document(text)
        except _REFUSED as error:
            fault: Exception = error
        text = bytes(text)
        if not isinstance(fault, msgspec.ValidationError):
            mended, count = (text, 0) if "truncated" in str(fault) else _mended(text)
            try:
                if count:
                    metadata = self._add_document(mended)
                    self._repairs += count
                    return metadata
            except _REFUSED as error:
                fault = error
            if _breaks_off(fault, len(self._head) - 1 + len(mended)):
                return self._salvage(mended, count, fault, self._at + len(text))
        raise self._refusal(fault)

    def _add_document(self, text: bytes | bytearray) -> dict[str, Any]:
        """Add the events of this end of the stream, all or none."""
        if self._head == b"[":
            self._columns.add(_LIST.decode(text))
            return {}
        at = text.rfind(_END)
        if at > 0 and b'"traceEvents"' not in text[at:]:
            try:
                events = _LIST.decode(memoryview(text)[: at + len(_END) - 1])
                metadata = _metadata(self._head + b"]}") | _metadata(b"{" + text[at + len(_END) :])
            except _REFUSED:
                pass  # the list is elsewhere, or there is an error, which is reported below
            else:
                self._columns.add(events)
                return metadata
        document = self._head[:-1] + text
        events = _FILE.decode(document).events
        metadata = _metadata(document)
        self._columns.add(events)
        return metadata

    def _salvage(self, text: bytes, repairs: int, fault: Exception, size: int) -> dict[str, Any]:
        """Add the whole events of a truncated text."""
        text = text.rstrip()
        short = len(text) <= _MENDED
        end, closed = whole_events(text) if self._head and short else (0, False)
        try:
            if end:
                self._columns.add(_LIST.decode(text[:end] + b"]"))
        except _REFUSED:
            raise self._refusal(fault) from None
        if not (self._columns.seen or short):
            raise self._refusal(fault)
        if not self._columns.seen:
            raise TraceError(
                f"{self._stream.source}: not a whole trace",
                f"it ends at byte {size:,}, before its first whole event",
                "profile again, and let the export finish",
            )
        self._repairs += repairs
        self._cut = not closed
        where = "after its events" if closed else "in the middle of an event"
        text_of = " of the text" if self._stream.cut else ""
        self._warnings.append(
            f"the file ends at byte {size:,}{text_of}, {where}; "
            f"the {self._columns.seen:,} events before that were kept"
        )
        return _metadata(self._head + b"]}") if len(self._head) > 1 else {}

    def _refusal(self, fault: BaseException) -> TraceError:
        """The error, with its position in the text."""
        other = isinstance(fault, msgspec.ValidationError) and not self._columns.seen
        kind = OtherJsonError if other and self._head in (b"", b"[") else TraceError
        head = max(len(self._head) - 1, 0)
        found = _BYTE.sub(
            lambda m: f"(byte {max(int(m[1]) - head, 0) + self._at:,})",
            str(fault).splitlines()[0][:300] if str(fault) else type(fault).__name__,
        )
        if "missing required field" in found:
            found = "a JSON object without `traceEvents`"
        elif "`$" in found and self._columns.seen:
            found += f", counted from event {self._columns.seen:,} on"
        elif "byte" not in found and self._at:
            found += f", after byte {self._at:,}"
        return kind(f"{self._stream.source}: not a Chrome trace", found, _EXPECTED)

    def _check_kinds(self, metadata: dict[str, Any]) -> None:
        """Reject a trace that has events, but none of PyTorch's."""
        columns = self._columns
        if columns.kept or not columns.seen or _KINETO & metadata.keys():
            return
        found = columns.categories
        if "Events" in found:  # around a session in which nothing ran
            return
        shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "") if found else "none"
        category = "category" if len(found) == 1 else "categories"
        what = f"{plural(columns.seen, 'event')}, of the {category}: {shown}"
        raise OtherJsonError(
            f"{self._stream.source}: not a trace of PyTorch",
            "; ".join([what, *self._warnings]),
            _EXPECTED,
        )


def _breaks_off(fault: BaseException, size: int) -> bool:
    """Whether the only fault is that the text ends too early, perhaps in the middle of a number."""
    at = _BYTE.search(str(fault))
    return "truncated" in str(fault) or (at is not None and int(at[1]) >= size - 1)


def _head(text: bytes) -> bytes | None:
    """Text up to a list of events as valid JSON; None if this key is not at the top level."""
    for mend in (bytes, lambda text: _mended(text)[0]):
        head = mend(text)
        try:
            # If the key is not at the top level, the text leaves more open than the object.
            if "traceEvents" in _HEADER.decode(head + b"]}"):
                return head
        except _FAULTS:
            continue
    return None


def _mended(text: bytes) -> tuple[bytes, int]:
    return (text, 0) if len(text) > _MENDED else repaired(text)


def _metadata(document: bytes) -> dict[str, Any]:
    """The other keys; one whose value is not UTF-8 text is left out."""
    found = {}
    for key, raw in _HEADER.decode(document).items():
        if key != "traceEvents":
            try:
                found[key] = msgspec.json.decode(raw)
            except _FAULTS:
                continue
    return found


# ---- Find the events in the text of a Chrome trace, for a writer that keeps them unchanged.

_EVENTS_TEXT = "traceEvents"
# Numbers come as strings from some versions, hence not strict.
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Layout:
    """Valid JSON, and where its list of events begins and ends, brackets included.

    ``warnings`` say what was cut off or repaired to make it valid.
    """

    source: str
    text: bytes
    start: int
    end: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A device event as in the file: ``args`` is its raw JSON, which begins ``at`` there."""

    name: str
    ts: float
    dur: float
    pid: int | float | str | None
    args: bytes
    at: int


def lay_out(source: Path) -> Layout:
    """The text of a ``.json`` or gzip-compressed file, repaired and closed if necessary.

    Raises:
        TraceError: unreadable, or neither an object with ``traceEvents`` nor a list of events.
    """
    text = b"".join(Stream(source)).rstrip(b"\0")
    span = _span(text)
    if span is not None:
        return Layout(str(source), text, *span)
    warnings = parse_trace(text, source=str(source)).warnings  # raises if it is not a trace
    text, _ = repaired(text)
    span = _span(text)
    if span is None:
        text = _closed(text)
        span = _span(text)
    if span is None:
        raise _refusal(text, str(source))
    return Layout(str(source), text, *span, warnings)


def _refusal(text: bytes, source: str) -> TraceError:
    """The error, as the reader reports it."""
    try:
        parse_trace(text, source=source)
    except TraceError as error:
        return error
    return TraceError(f"{source}: not a Chrome trace", "it contains no list of events")


def _span(text: bytes) -> tuple[int, int] | None:
    """Start and end of the list of events in valid JSON."""
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look at what it leaves raw
        if text[:64].lstrip()[:1] == b"[":
            _LIST.decode(text)
            return text.index(b"["), text.rindex(b"]") + 1
        events = _TOP.decode(text)[_EVENTS_TEXT]
    except (*_FAULTS, KeyError):
        return None
    start = _address(events) - _address(text)
    return start, start + len(memoryview(events))


def _closed(text: bytes) -> bytes:
    """A truncated text, closed after its last whole event."""
    bare = text[:64].lstrip()[:1] == b"["
    start = text.find(b"[", 0 if bare else max(text.find(f'"{_EVENTS_TEXT}"'.encode()), 0))
    end = start + whole_events(text[start:]).end
    return text[:end] + (b"\n]" if bare else b"\n]}")


def device_events(layout: Layout) -> list[Placed]:
    """Kernels, copies and memsets with ``args``, in the order of the file.

    Raises:
        TraceError: the list is not one of events.
    """
    wanted = {category for category, kind in KINDS.items() if kind in DEVICE_KINDS}
    base = _address(layout.text)
    try:
        events = _LIST.decode(memoryview(layout.text)[layout.start : layout.end])
    except _FAULTS:
        raise _refusal(layout.text, layout.source) from None
    return [
        Placed(e.name or "", e.ts or 0, e.dur or 0, e.pid, bytes(e.args), _address(e.args) - base)
        for e in events
        if e.ph == "X" and (e.cat or "").lower() in wanted and e.args
    ]


def _address(view: Any) -> int:
    """The memory address of a buffer: msgspec's raw parts are views of the text they are in."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
