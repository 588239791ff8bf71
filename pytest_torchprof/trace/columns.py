"""Convert Kineto's events to the columns of `Events`, one piece of the file at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace.arguments import Arguments, starts
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.kinds import KINDS, OF_THE_PROFILER, OTHER_DEVICES, Kind
from pytest_torchprof.trace.known_names import MODULE_MARK, REGION_MARK, TORCH_MARK, base_names
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Ints

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
