"""Convert Kineto's events to the columns of a `Trace`, one piece of the file at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace.arguments import Arguments, starts
from pytest_torchprof.trace.event_names import MODULE_MARK
from pytest_torchprof.trace.events import Trace
from pytest_torchprof.trace.kinds import KINDS, OF_THE_PROFILER, OTHER_DEVICES, Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Bools, Ints

#: If it counted microseconds, this would be after the year 2200, so it counts nanoseconds.
_NANOSECONDS = 2**53
_LARGEST_NS = 2**61


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
        self._length: list[npt.NDArray[Any]] = []
        self._texts: list[bytes] = []
        self._text_bytes = 0

    def add(self, events: list[Event]) -> None:
        """Add these events; only their columns are kept.

        Raises:
            ValueError: a time is not a number, or out of range; then none is added.
        """
        numbers = map(self._labels.__getitem__, map(_Labels.of, events))
        label = np.fromiter(numbers, np.int32, len(events))
        known = np.frombuffer(bytes(self._labels.kinds), np.int8)[label] != int(Kind.OTHER)
        kept = list(compress(events, known.tolist()))
        ts, dur = [e.ts or 0 for e in kept], [e.dur or 0 for e in kept]
        given = np.array(ts, np.float64)
        in_ns = given >= _NANOSECONDS
        begin = _nanoseconds(ts, given, in_ns)
        lasting = np.maximum(_nanoseconds(dur, np.array(dur, np.float64), in_ns), 0)
        args = [e.args for e in kept]
        self.seen += len(events)
        self.kept += len(kept)
        self._label.append(label[known])
        self._ts.append(begin)
        self._dur.append(lasting)
        self._length.append(np.fromiter(map(len, args), np.int32, len(args)))
        self._texts.append(text := b"".join(args))
        self._text_bytes += len(text)

    @property
    def size(self) -> int:
        """An upper estimate of the bytes of memory that these events take as a trace."""
        return self.kept * 100 + len(self._labels) * 500 + self._text_bytes

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
    ) -> Trace:
        """All events with a `Kind`, in time order. The columns are empty afterwards."""
        label, ts, dur, length = map(_joined, (self._label, self._ts, self._dur, self._length))
        kind = np.frombuffer(bytes(self._labels.kinds), np.int8)[label]
        # Of two events with the same times, the outer one more likely has the earlier kind.
        order = np.lexsort((_RANK[kind], -dur, ts)).astype(np.int32)
        names: dict[str, int] = {}
        threads: dict[tuple[Any, Any], int] = {}
        of_label = np.array(
            [
                (
                    names.setdefault(name or "", len(names)),
                    threads.setdefault((pid, tid), len(threads)),
                )
                for name, _, _, pid, tid in self._labels
            ],
            np.int64,
        ).reshape(-1, 2)
        label = label[order]
        text = b"".join(self._texts)
        self._texts.clear()
        return Trace(
            ts=ts[order],
            dur=dur[order],
            kind=kind[order],
            name=of_label[label, 0],
            thread=of_label[label, 1].astype(np.int32),
            names=list(names),
            args=Arguments(text, starts(length)[order], length[order]),
            threads=list(threads),
            metadata=metadata,
            warnings=tuple(warnings),
            cut=cut,
            unread=self._unread,
        )


_RANK = np.full(len(Kind), 4, np.int8)
_RANK[[Kind.PYTHON, Kind.ANNOTATION, Kind.OP, Kind.RUNTIME]] = range(4)


def _joined(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One array; the pieces are released."""
    whole = np.concatenate([np.zeros(0, np.int32), *pieces])
    pieces.clear()
    return whole


def _kind(category: str | None, phase: str | None, name: str | None, process: object) -> Kind:
    if phase not in {"X", "i", "I"}:
        return Kind.OTHER
    if name is not None and name.startswith(MODULE_MARK):  # torch records it as an operator
        return Kind.ANNOTATION
    otherwise = Kind.OTHER
    if name == "[memory]":  # in 2021, these had no category
        otherwise = Kind.MEMORY
    elif not category and process == "CPU functions":  # torch.autograd.profiler without Kineto
        otherwise = Kind.OP
    return KINDS.get((category or "").lower(), otherwise)


def _nanoseconds(
    times: list[int | float], given: npt.NDArray[np.float64], in_ns: Bools
) -> Ints:  # fmt: skip
    """Whole nanoseconds from microseconds with three decimals, or from nanoseconds.

    Decimals are exact up to 100 days; Kineto counts from a base at most 90 days ago. Before 2024
    it counted from 1970, in whole microseconds: as nanoseconds, those exceed a float's precision.

    Raises:
        ValueError: not a number, or out of range.
    """
    some = in_ns.any()
    largest = np.where(in_ns, _LARGEST_NS, _LARGEST_NS / 1000) if some else _LARGEST_NS / 1000
    if not (np.abs(given) < largest).all():
        raise ValueError("an event's time is not a number, or is out of range")
    whole = np.floor(given)
    out = whole.astype(np.int64) * 1000 + np.rint((given - whole) * 1000).astype(np.int64)
    if some:
        out[in_ns] = [int(times[i]) for i in np.flatnonzero(in_ns)]
    return out
