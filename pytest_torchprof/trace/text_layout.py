"""Find the events in the text of a Chrome trace, for a writer that keeps them unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.trace.columns import Event
from pytest_torchprof.trace.kinds import DEVICE_KINDS, KINDS
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.trace.repair import repaired, whole_events
from pytest_torchprof.trace.stream import Stream

_EVENTS = "traceEvents"
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Numbers come as strings from some versions, hence not strict.
_LIST = msgspec.json.Decoder(list[Event], strict=False)
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
        events = _TOP.decode(text)[_EVENTS]
    except (*_FAULTS, KeyError):
        return None
    start = _address(events) - _address(text)
    return start, start + len(memoryview(events))


def _closed(text: bytes) -> bytes:
    """A truncated text, closed after its last whole event."""
    bare = text[:64].lstrip()[:1] == b"["
    start = text.find(b"[", 0 if bare else max(text.find(f'"{_EVENTS}"'.encode()), 0))
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
