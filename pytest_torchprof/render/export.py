"""Augment a trace with FLOPs, bytes and achieved rates on each kernel, and with counters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.errors import not_onto_itself, not_replaced, not_written
from pytest_torchprof.core.files import is_other_file, replacing, same_file, system_message
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.read import is_trace, parse_trace
from pytest_torchprof.trace.text_layout import Layout, Placed, device_events, lay_out

if TYPE_CHECKING:
    from gzip import GzipFile

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_TFLOPS, _GBS = _RATES = "achieved TFLOP/s", "achieved GB/s"
#: Times at least this large are in nanoseconds; the reader assumes the same.
_NANOSECONDS = 2**53
_Out: TypeAlias = "IO[bytes] | GzipFile"
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class WorkColumns(Protocol):
    """The work of device events, one entry each; -1 and NaN stand for unknown."""

    @property
    def event(self) -> Ints:
        """Indices into the trace."""

    @property
    def flops(self) -> Ints:
        """Floating-point operations."""

    @property
    def done(self) -> Ints:
        """FLOPs that a causal mask keeps; rates count only these."""

    @property
    def bytes(self) -> Ints:
        """Bytes that had to be read and written."""

    @property
    def compute_pct(self) -> npt.NDArray[np.float64]:
        """Achieved share of the peak in FLOP/s, in percent."""

    @property
    def bandwidth_pct(self) -> npt.NDArray[np.float64]:
        """Achieved share of the peak in B/s, in percent."""


@dataclass(frozen=True)
class Augmented:
    """The number of events with new arguments, of counter samples, and warnings."""

    events: int
    counters: int
    warnings: tuple[str, ...] = ()


def write_augmented(source: Path, target: Path, work: Callable[[Events], WorkColumns]) -> Augmented:
    """Write the trace in ``source`` with the work of its kernels, copies and memsets added.

    Each gets ``flops``, ``bytes``, ``achieved TFLOP/s``, ``achieved GB/s``, ``compute_pct`` and
    ``bandwidth_pct``, as far as known and not present yet. Causal attention also gets the FLOPs
    that its mask leaves, which its rate is based on; each device gets a counter track for each
    rate. All else is the source's text, byte for byte, up to the last whole event if truncated.
    The target is compressed if its name ends in ``.gz``.

    Raises:
        TraceError: the source is not a trace, the target cannot be written or is a file of another
            kind, or both are one file.
    """
    if same_file(source, target):
        raise not_onto_itself(target)
    if is_other_file(target, is_trace):
        raise not_replaced(target, "a trace")
    layout = lay_out(source)
    places = device_events(layout)
    trace = parse_trace(layout.text, source=str(source))
    rows = _known(work(trace))
    placed = _paired(trace, places)
    rows = [row for row in rows if row.event in placed]
    additions = [(placed[row.event], text) for row in rows if (text := _text(trace, row, placed))]
    insertions = [(place.at + place.args.rindex(b"}"), text) for place, text in additions]
    # An augmented trace has its counters already.
    again = not additions and any(f'"name": "{name}"'.encode() in layout.text for name in _RATES)
    samples = [] if again else list(_counters(trace, rows, placed))
    if samples:
        last = layout.text.rindex(b"}", layout.start, layout.end) + 1
        insertions.append((last, "".join(f",\n  {sample}" for sample in samples).encode()))
    try:
        with replacing(target) as file, _packed(file, target) as out:
            _splice(layout, sorted(insertions), out)
    except OSError as error:
        raise not_written(target, system_message(error)) from error
    return Augmented(len(additions), len(samples), layout.warnings)


@contextmanager
def _packed(file: IO[bytes], target: Path) -> Iterator[_Out]:
    if target.suffix != ".gz":
        yield file
        return
    # A fast level: at any level, a trace shrinks to a tenth.
    import gzip

    with gzip.GzipFile("", "wb", 4, file, mtime=0) as packed:
        yield packed


def _splice(layout: Layout, insertions: Sequence[tuple[int, bytes]], out: _Out) -> None:
    text, at = memoryview(layout.text), 0
    parts, size = list[Any](), 0
    for until, more in insertions:
        parts += [text[at:until], more]
        size += until - at
        at = until
        if size > 2**20:
            out.write(b"".join(parts))
            parts, size = [], 0
    out.write(b"".join(parts))
    out.write(text[at:])


# -------------------------------------------------------------------- which event is which


class _Row(NamedTuple):
    event: int
    flops: int
    done: int
    bytes: int
    compute_pct: float
    bandwidth_pct: float


def _known(work: WorkColumns) -> list[_Row]:
    columns = (
        *(work.event, work.flops, work.done, work.bytes),
        *(work.compute_pct, work.bandwidth_pct),
    )
    known = (np.asarray(work.flops) >= 0) | (np.asarray(work.bytes) >= 0)
    rows = zip(*(np.asarray(column)[known].tolist() for column in columns), strict=True)
    return [_Row(*row) for row in rows]


def _paired(trace: Events, places: Sequence[Placed]) -> dict[int, Placed]:
    """Locate each device event of the trace in the file.

    Events of equal name and arguments, as in a replayed graph, have the same order in both.
    """
    in_file: defaultdict[tuple[str, bytes], list[Placed]] = defaultdict(list)
    for place in sorted(places, key=lambda p: (p.ts, -p.dur)):
        in_file[_name(place.name), place.args].append(place)
    in_trace: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    named = zip(trace.name[rows].tolist(), trace.args[rows].tolist(), strict=True)
    for event, (name, args) in zip(rows.tolist(), named, strict=True):
        in_trace[_name(trace.names[name]), bytes(args or b"")].append(event)
    return {
        event: place
        for key, events in in_trace.items()
        if len(events) == len(in_file[key])
        for event, place in zip(events, in_file[key], strict=True)
    }


def _name(name: str) -> str:
    """The name without a copy's direction, which the trace may know better than the file."""
    return name.partition(" ")[0] if name.startswith("Memcpy ") else name


# -------------------------------------------------------------------- what is added


def _text(trace: Events, row: _Row, placed: dict[int, Placed]) -> bytes:
    """More members for the event's ``args``; nothing if these are not an object."""
    try:
        there = _KEYS.decode(placed[row.event].args)
    except msgspec.DecodeError:
        return b""
    ns = int(trace.dur[row.event])
    values: dict[str, float | None] = {
        "flops": _or_none(row.flops),
        "flops left by the mask": _or_none(row.done) if row.done != row.flops else None,
        "bytes": _or_none(row.bytes),
        _TFLOPS: _rate(row.done, ns * 1000),
        _GBS: _rate(row.bytes, ns),
        "compute_pct": _short(row.compute_pct),
        "bandwidth_pct": _short(row.bandwidth_pct),
    }
    if trace.kind[row.event] != Kind.KERNEL:  # a copy's rate is what the trace says, or unknown
        del values["bytes"]
    more = [
        f'"{key}": {value}'
        for key, value in values.items()
        if value is not None and key not in there
    ]
    return ((", " if there else "") + ", ".join(more)).encode() if more else b""


def _or_none(amount: int) -> int | None:
    return amount if amount >= 0 else None


def _rate(amount: int, time: int) -> float | None:
    return _short(amount / time) if amount >= 0 and time > 0 else None


def _short(value: float) -> float | None:
    """Four significant digits."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _counters(trace: Events, rows: list[_Row], placed: dict[int, Placed]) -> Iterator[str]:
    """Samples of both rates for each device: at each time, the sum over what is running."""
    devices: defaultdict[bytes, list[_Row]] = defaultdict(list)
    for row in rows:
        devices[msgspec.json.encode(placed[row.event].pid)].append(row)
    for pid, mine in devices.items():
        events = np.array([row.event for row in mine])
        in_ns = placed[mine[0].event].ts >= _NANOSECONDS
        for name, amounts in (
            (_TFLOPS, [row.done / 1000 for row in mine]),
            (_GBS, [row.bytes for row in mine]),
        ):
            for ns, value in _levels(trace.ts[events], trace.dur[events], np.array(amounts, float)):
                at = str(ns) if in_ns else _us(ns)
                yield (
                    f'{{"ph": "C", "name": "{name}", "pid": {pid.decode()}, "tid": 0, '
                    f'"ts": {at}, "args": {{"{name[9:]}": {value}}}}}'
                )


def _levels(ts: Ints, dur: Ints, amount: npt.NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    """(time, sum of the rates of what runs from then on), wherever the sum changes."""
    known = (amount >= 0) & (dur > 0)
    if not amount[known].any():
        return
    rate = amount[known] / dur[known]
    times = np.concatenate([ts[known], ts[known] + dur[known]])
    at, which = np.unique(times, return_inverse=True)
    step = np.zeros(len(at))
    np.add.at(step, which, np.concatenate([rate, -rate]))
    level = np.round(np.maximum(np.cumsum(step), 0), 6)
    changes = np.diff(level, prepend=0) != 0
    yield from zip(at[changes].tolist(), level[changes].tolist(), strict=True)


def _us(ns: int) -> str:
    """Microseconds with three decimals, exactly.

    >>> _us(1_234_567), _us(-1500)
    ('1234.567', '-1.500')
    """
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
