"""Read Chrome traces as Kineto writes them into `Events`, piece by piece, even damaged ones.

A file is never in memory as a whole: each piece of its text is decoded as soon as it is read, and
only columns and the events' arguments remain. If no end of a piece can be found, the rest is
decoded at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pytest_torchprof.core.errors import OtherJsonError, TraceError
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.units import plural
from pytest_torchprof.trace import stream as streams
from pytest_torchprof.trace.columns import Columns, Event
from pytest_torchprof.trace.hip import with_directions
from pytest_torchprof.trace.repair import repaired, whole_events
from pytest_torchprof.trace.stream import ReadProgress, Stream, Text

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

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
    with _without_gc():
        try:
            return reader.trace()
        except MemoryError as error:
            raise stream.beyond_memory() from error


@contextmanager
def _without_gc() -> Iterator[None]:
    """The collector would visit each of a million new objects several times, in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
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
            at = self._boundary() if len(self._text) >= streams.CHUNK else None
            if at is not None and not self._add_piece(at):
                return
            chunk = next(self._chunks, b"")
            if not chunk:
                return
            self._text += chunk
            self._limit("no event ends")

    def _boundary(self) -> int | None:
        """Where the comma after the last whole event is."""
        recent = max(len(self._text) - 2 * streams.CHUNK, 0)  # the rest was searched before
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
