"""Events by their names: each name is looked at once in a process, each column once in a trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.events import Kind
from pytest_torchprof.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints


#: As plain numbers, which numpy compares four times as fast.
OPERATOR: Final = int(Kind.OP)
ANNOTATION: Final = int(Kind.ANNOTATION)
_IS_MARK: Final = np.isin(np.arange(len(Kind)), (OPERATOR, ANNOTATION))


class Names:
    """All names that begin with a match of an expression; rules have them as constants."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.match: Final = re.compile(pattern).match
        #: Its digit in what is kept of each name.
        self.bit: Final = 2 << len(_ALL)
        _ALL.append(self)
        _KNOWN.clear()
        _joined.cache_clear()


_ALL: Final[list[Names]] = []
#: Of each name that was met, the bits of what it belongs to.
_KNOWN: Final[dict[str, int]] = {}
_MOST_KNOWN: Final = 100_000
#: For fewer, one look for all would cost more to compile (6 ms) than it saves.
_MANY: Final = 500
#: Smaller traces are not sorted by name: to look at all of them is as quick.
_SMALL: Final = 2000
#: So many bits fit a number of a column; what there is more of goes to further columns.
_WIDTH: Final = 62
_COLUMN: Final = (1 << _WIDTH) - 1
_NONE: Final = np.zeros(0, np.int64)
#: What cannot be part of a longer expression: it means a group by its number, or has flags.
_ALONE: Final = re.compile(r"\\\d|\(\?(P|\(|[aiLmsux]+\))")


@lru_cache(maxsize=1)
def _joined() -> tuple[Callable[[str], object], list[Names]]:
    """One look for all that can be joined, and the others."""
    alone = [one for one in _ALL if _ALONE.search(one.pattern)]
    rest = [f"(?:{one.pattern})" for one in _ALL if one not in alone]
    return re.compile("|".join(rest) or "(?!)").match, alone


def _bits(name: str) -> int:
    looks = _ALL
    if len(_KNOWN) > _MANY:
        together, alone = _joined()
        looks = _ALL if together(name) else alone
    return sum(one.bit for one in looks if one.match(name))


@lru_cache(maxsize=1000)
def names_of(pattern: str) -> Names:
    """The same for all rules that have the same expression."""
    return Names(pattern)


def learn(names: Iterable[str]) -> list[int]:
    """The bits of each name, which are looked at if they are new to the process."""
    if len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.clear()
    try:
        return [_KNOWN[name] for name in names]
    except KeyError:
        new = [name for name in names if name not in _KNOWN]
        _KNOWN.update(zip(new, map(_bits, new), strict=True))
        return [_KNOWN[name] for name in names]


def present(trace: Trace, patterns: tuple[str | None, ...]) -> list[bool]:
    """Whether one of a trace's names begins with a match of each expression; None is always."""
    bits = _bits_of(patterns)
    found = trace.once(_index).any | 1
    return [bit & found != 0 for bit in bits]


@lru_cache(maxsize=100)
def _bits_of(patterns: tuple[str | None, ...]) -> list[int]:
    return [1 if pattern is None else names_of(pattern).bit for pattern in patterns]


class _Index(Plain, frozen=True):
    """``columns`` of the bits of each name of a trace, and its events name by name: those of name
    ``i`` are ``order[start[i] : start[i + 1]]``, in time order; None of a small trace. ``any``: the
    bits that some name has.
    """

    any: int
    columns: Sequence[Ints]
    order: Ints | None
    start: Sequence[int]

    def have(self, wanted: int) -> Bools:
        """Which names have one of these bits."""
        found: Bools | None = None
        for column in self.columns:
            if part := wanted & _COLUMN:
                has = column & part != 0
                found = has if found is None else found | has
            wanted >>= _WIDTH
        return np.zeros(len(self.columns[0]), bool) if found is None else found

    def of(self, wanted: Bools, name: npt.NDArray[np.int32]) -> Ints:
        """Events of these names, in time order."""
        if self.order is None:
            return wanted[name].nonzero()[0]
        numbers = wanted.nonzero()[0].tolist()
        parts = [self.order[self.start[i] : self.start[i + 1]] for i in numbers]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate(parts), kind="stable") if parts else self.order[:0]


def _index(trace: Trace) -> _Index:
    bits = learn(trace.names)
    some = reduce(or_, bits, 0)
    columns = [
        np.array([one >> away & _COLUMN for one in bits], np.int64)
        for away in range(0, max(some.bit_length(), 1), _WIDTH)
    ]
    if len(trace) < _SMALL:
        return _Index(some, columns, None, ())
    # Numbers of 16 bits are sorted in linear time.
    name = trace.name.astype(np.uint16) if len(bits) <= 1 << 16 else trace.name
    ends = np.bincount(trace.name, minlength=len(bits)).cumsum().tolist()
    return _Index(some, columns, np.argsort(name, kind="stable"), [0, *ends])


def events_named(trace: Trace, *names: Names) -> Ints:
    """Events of any kind, in time order."""
    index, wanted = trace.once(_index), _sum(names)
    return index.of(index.have(wanted), trace.name) if index.any & wanted else _NONE


def operators_named(trace: Trace, *names: Names) -> Ints:
    """Operators, in time order."""
    rows = events_named(trace, *names)
    operators: Ints = rows[trace.kind[rows] == OPERATOR]
    return operators


def marks_named(trace: Trace, *names: Names) -> Ints:
    """Annotations, in time order; some versions write them as operators."""
    rows = events_named(trace, *names)
    marks: Ints = rows[_IS_MARK[trace.kind[rows]]]
    return marks


def are_named(trace: Trace, rows: Ints, *names: Names) -> Bools:
    """Which of these events have a name among any of these; -1 has none."""
    index, wanted = trace.once(_index), _sum(names)
    if not index.any & wanted:
        return np.zeros(len(rows), bool)
    found: Bools = index.have(wanted)[trace.name[rows]] & (rows >= 0)
    return found


def _sum(names: Sequence[Names]) -> int:
    return names[0].bit if len(names) == 1 else sum(one.bit for one in names)


def numbers_of(trace: Trace, names: Iterable[str]) -> list[int]:
    """Those of exact names that the trace has."""
    known = trace.once(_numbers)
    return [number for name in names if (number := known.get(name)) is not None]


def _numbers(trace: Trace) -> dict[str, int]:
    return dict(zip(trace.names, range(len(trace.names)), strict=True))


def _marked(trace: Trace, names: Iterable[str]) -> Bools:
    """Which of the trace's names are among these."""
    marked = np.zeros(len(trace.names) + 1, bool)
    marked[numbers_of(trace, names)] = True
    return marked


def are_any(trace: Trace, rows: Ints, names: Iterable[str]) -> Bools:
    """Which of these events have one of these very names; -1 has none."""
    return _marked(trace, names)[np.where(rows >= 0, trace.name[rows], -1)]


def operators_of(trace: Trace, *names: str) -> Ints:
    """Operators of any of these very names, in time order."""
    if not numbers_of(trace, names):
        return _NONE
    rows = trace.once(_index).of(_marked(trace, names), trace.name)
    operators: Ints = rows[trace.kind[rows] == OPERATOR]
    return operators


def rows_of(trace: Trace, *names: str) -> Ints:
    """Selected operators of any of these very names, in time order."""
    rows = operators_of(trace, *names)
    return rows[trace.selection[rows]]
