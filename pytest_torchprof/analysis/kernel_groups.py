"""Rows of the table of kernels: which events belong to a row, and sums over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from pytest_torchprof.analysis.attribution import AttributedWork
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_Floats = npt.NDArray[np.float64]

#: What rows can be grouped by.
_WORDS: Final = ("op", "kernel", "shape")
#: Among owners, it stands for events without a runtime call.
NO_CALL: Final = -2


def parse_grouping(text: str) -> frozenset[str]:
    """The words of a grouping, such as ``"op,kernel,shape"``; ``name`` is the same as ``kernel``.

    Raises:
        ValueError: an unknown or repeated word, or ``shape`` alone.

    >>> sorted(parse_grouping("name, shape"))
    ['kernel', 'shape']
    """
    words = ["kernel" if (word := part.strip()) == "name" else word for part in text.split(",")]
    if unknown := [word for word in words if word not in _WORDS]:
        known = "must be one of name, op, or several of op, kernel, shape, as in op,kernel,shape"
        raise ValueError(f"{known}, not {unknown[0]!r}")
    if len(set(words)) < len(words):
        raise ValueError(f"must not have a part twice (name is the same as kernel): {text!r}")
    if words == ["shape"]:
        raise ValueError("must have op or kernel beside shape, as in op,kernel,shape")
    return frozenset(words)


class Grouped:
    """The device events of some work, in rows.

    ``group`` is the number of each event's row; ``owner`` the number of its operator, see
    `AttributedWork`, or `NO_CALL`; ``shape`` that of its operands, an index into ``dims``, -1 for
    none. ``whole`` numbers what a rate covers as a whole: a kernel if rows are by kernel, else an
    operator's call.
    """

    def __init__(self, trace: Events, work: AttributedWork, by: frozenset[str]) -> None:
        event = work.event
        name, copied = trace.name[event], trace.kind[event] != Kind.KERNEL
        linked = (trace.launch[event] >= 0) | (work.owner >= 0)
        self.owner: Ints = np.where(linked, work.owner, NO_CALL)
        self.shape, self.dims = np.full(len(event), -1, np.int64), list[bytes]()
        if "shape" in by:
            self.shape, self.dims = _shapes(trace, work.call)
        # An operator's copies are not in one row with its kernels.
        parts = [trace.device[event], name if "kernel" in by else np.where(copied, name, -1)]
        parts += [self.owner] if "op" in by else []
        parts += [self.shape] if "shape" in by else []
        group = np.zeros(len(event), np.int64)
        for part in parts:
            _, group = np.unique(pairs(group, part), return_inverse=True)
        self.group: Ints = group
        alone = np.arange(len(event))
        whole = alone if "kernel" in by else _calls(work.call, group)
        self.whole: Ints = np.where(copied, whole.max() + 1 + alone, whole)


def _shapes(trace: Events, calls: Ints) -> tuple[Ints, list[bytes]]:
    """For each call (-1 for none) the number of its operands' shapes, and their raw JSON."""
    distinct, at = np.unique(calls, return_inverse=True)
    number = np.full(len(distinct), -1, np.int64)
    known: dict[bytes, int] = {}
    real = np.flatnonzero(distinct >= 0)
    raws = [bytes(args.dims) for args in trace.operands(distinct[real])]
    number[real] = [known.setdefault(raw, len(known)) if raw else -1 for raw in raws]
    return number[at], list(known)


def _calls(call: Ints, group: Ints) -> Ints:
    """Numbers of operator calls within their row; an event without one is its own."""
    alone = np.where(call >= 0, call, -1 - np.arange(len(call)))
    _, number = np.unique(pairs(group, alone), return_inverse=True)
    found: Ints = number
    return found


def pairs(a: Ints, b: Ints) -> Ints:
    """One number for each pair, in the order of pairs."""
    low = b.min()
    both: Ints = a * (b.max() - low + 1) + (b - low)
    return both


class Sums:
    """Sums over groups of device events, which are numbered from 0."""

    def __init__(self, group: Ints, dur: Ints) -> None:
        self.group, self.dur = group, dur
        self.count = int(group.max()) + 1
        self.calls = np.bincount(group, minlength=self.count)
        self.ns = self._sum(dur)
        self.first = np.full(self.count, len(group), np.int64)
        np.minimum.at(self.first, group, np.arange(len(group)))

    def _sum(self, values: Ints) -> Ints:
        total = np.zeros(self.count, np.int64)
        np.add.at(total, self.group, values)
        return total

    def by_time(self) -> Ints:
        """Groups, the longest first, then in order of appearance."""
        return np.lexsort((self.first, -self.ns))

    def known(self, values: _Floats | Ints, known: Bools, whole: Ints) -> tuple[_Floats, _Floats]:
        """Sums of the known values, and ns of all events of each `whole` with a known value."""
        counted = np.zeros(int(whole.max()) + 1, bool)
        counted[whole[known]] = True
        time = np.where(counted[whole], self.dur, 0)
        return self.total(np.where(known, values, 0)), self.total(time)

    def complete(self, known: Bools, whole: Ints) -> Bools:
        """Groups in which each `whole` has a known value."""
        counted = np.zeros(int(whole.max()) + 1, bool)
        counted[whole[known]] = True
        found: Bools = np.bincount(self.group, ~counted[whole], self.count) == 0
        return found

    def total(self, values: _Floats | Ints) -> _Floats:
        """The sum of a value of each event."""
        return np.asarray(np.bincount(self.group, values, self.count), np.float64)

    def exact(self, values: Ints) -> list[int | None]:
        """Sums of the values that are not negative; None where there are none."""
        known = values >= 0
        some = np.bincount(self.group, known, self.count) > 0
        totals = self._sum(np.where(known, values, 0)).tolist()
        return [total if any_ else None for total, any_ in zip(totals, some.tolist(), strict=True)]

    def same(self, values: _Floats | Ints) -> Bools:
        """Groups in which all events have an equal value; NaN equals none."""
        first = values[self.first][self.group]
        found: Bools = np.bincount(self.group, values != first, self.count) == 0
        return found

    def parts(self, label: Ints) -> list[list[tuple[int, int]]]:
        """For each group its labels with their calls, the label with most of its time first."""
        _, first, at = np.unique(pairs(self.group, label), return_index=True, return_inverse=True)
        calls, ns = np.bincount(at), np.bincount(at, self.dur)
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for i in np.lexsort((first, -ns)).tolist():
            found[int(self.group[first[i]])].append((int(label[first[i]]), int(calls[i])))
        return found
