"""Look up events by name: each name is matched once per process, each column once per trace."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Bools, Ints


#: As plain numbers, which numpy compares four times as fast.
OPERATOR: Final = int(Kind.OP)
ANNOTATION: Final = int(Kind.ANNOTATION)
_IS_MARK: Final = np.isin(np.arange(len(Kind)), (OPERATOR, ANNOTATION))


class Names:
    """All names that begin with a match of an expression; rules have them as constants."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.match: Final = re.compile(pattern).match
        _ALL.append(self)
        _KNOWN.clear()
        _joined.cache_clear()
        _grouped.cache_clear()


_ALL: Final[list[Names]] = []
#: Of each name that was met, what it belongs to.
_KNOWN: Final[dict[str, tuple[Names, ...]]] = {}
_MOST_KNOWN: Final = 100_000
#: For fewer, one look for all would cost more to compile (6 ms) than it saves.
_MANY: Final = 500
_NONE: Final = np.zeros(0, np.int64)
#: Of so large a part of all events, they are not put together name by name.
_DENSE: Final = 4
#: What cannot be part of a longer expression: it means a group by its number, or has flags.
_ALONE: Final = re.compile(r"\\\d|\(\?(P|\(|[aiLmsux]+\))")


@lru_cache(maxsize=1)
def _joined() -> tuple[Callable[[str], object], list[Names]]:
    """One look for all that can be joined, and the others."""
    alone = [one for one in _ALL if _ALONE.search(one.pattern)]
    rest = [f"(?:{one.pattern})" for one in _ALL if one not in alone]
    return re.compile("|".join(rest) or "(?!)").match, alone


def _all_of(name: str) -> tuple[Names, ...]:
    looks = _ALL
    if len(_KNOWN) > _MANY:
        together, alone = _joined()
        looks = _ALL if together(name) else alone
    return tuple([one for one in looks if one.match(name)])


@lru_cache(maxsize=1000)
def names_of(pattern: str) -> Names:
    """The same for all rules that have the same expression."""
    return Names(pattern)


def learn(names: Iterable[str]) -> list[tuple[Names, ...]]:
    """What each name belongs to; it is looked at if it is new to the process."""
    if len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.clear()
    try:
        return [_KNOWN[name] for name in names]
    except KeyError:
        new = [name for name in names if name not in _KNOWN]
        _KNOWN.update(zip(new, map(_all_of, new), strict=True))
        return [_KNOWN[name] for name in names]


@lru_cache(maxsize=20)
def _grouped(names: tuple[str, ...]) -> Mapping[Names, Sequence[int]]:
    """The numbers of the names that belong to each; a test that runs again has the same names."""
    found = defaultdict[Names, list[int]](list)
    for number, every in enumerate(learn(names)):
        for one in every:
            found[one].append(number)
    return dict(found)


def present(trace: Trace) -> AbstractSet[Names]:
    """All of which the trace has a name."""
    return _index(trace).named.keys()


def count(trace: Trace, *names: Names) -> int:
    """How many events of any kind have such names."""
    index = _index(trace)
    return sum([index.counts[i] for i in index.numbers(names)])


def _index(trace: Trace) -> _Index:
    # More expressions may have come since it was last asked for.
    return trace.once(_Index, len(_ALL))


class _Index:
    """The events of a trace name by name; what is asked of the names is kept."""

    def __init__(self, trace: Trace, _: int) -> None:
        #: The numbers of the names that belong to each.
        self.named: Final = _grouped(tuple(trace.names))
        #: How many events have each name.
        self.counts: Final = _counts(trace.name, len(trace.names))
        self._name: Final = trace.name
        # Numbers of 16 bits are sorted in linear time.
        name = trace.name.astype(np.uint16) if len(self.counts) <= 1 << 16 else trace.name
        self._order: Final = np.argsort(name, kind="stable")
        self._ends: Final = list(accumulate(self.counts))
        operators = _counts(trace.name[trace.kind == OPERATOR], len(self.counts))
        self._others: Final = {i for i, n in enumerate(operators) if n != self.counts[i]}
        self._having: Final[dict[tuple[Names, ...], Bools]] = {}

    def numbers(self, names: tuple[Names, ...]) -> Sequence[int]:
        """Of the names that belong to any of these."""
        if len(names) == 1:
            return self.named.get(names[0], ())
        return sorted({*chain.from_iterable([self.named.get(one, ()) for one in names])})

    def have(self, names: tuple[Names, ...]) -> Bools:
        """Of each name, whether it belongs to any of these."""
        found = self._having.get(names)
        if found is None:
            found = self._having[names] = self._marked(self.numbers(names))
        return found

    def _marked(self, numbers: Sequence[int]) -> Bools:
        marked = np.zeros(len(self.counts), bool)
        marked[list(numbers)] = True
        return marked

    def events(self, numbers: Sequence[int]) -> Ints:
        """Events of these names, in time order."""
        if _DENSE * sum([self.counts[i] for i in numbers]) > len(self._name):
            return self._marked(numbers)[self._name].nonzero()[0]
        parts = [self._order[self._ends[i] - self.counts[i] : self._ends[i]] for i in numbers]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate(parts), kind="stable") if parts else _NONE

    def operators(self, numbers: Sequence[int], kind: npt.NDArray[np.int8]) -> Ints:
        """Of these, the operators."""
        rows = self.events(numbers)
        return rows if self._others.isdisjoint(numbers) else rows[kind[rows] == OPERATOR]


def _counts(numbers: npt.NDArray[np.int32], many: int) -> list[int]:
    counts: list[int] = np.bincount(numbers, minlength=many).tolist()
    return counts


def events_named(trace: Trace, *names: Names) -> Ints:
    """Events of any kind, in time order."""
    index = _index(trace)
    numbers = index.numbers(names)
    return index.events(numbers) if numbers else _NONE


def operators_named(trace: Trace, *names: Names) -> Ints:
    """Operators, in time order."""
    index = _index(trace)
    numbers = index.numbers(names)
    return index.operators(numbers, trace.kind) if numbers else _NONE


def marks_named(trace: Trace, *names: Names) -> Ints:
    """Annotations, in time order; some versions write them as operators."""
    rows = events_named(trace, *names)
    marks: Ints = rows[_IS_MARK[trace.kind[rows]]]
    return marks


def named(trace: Trace, *names: Names) -> Bools:
    """Of each event, whether it has a name among any of these."""
    found: Bools = _index(trace).have(names)[trace.name]
    return found


def are_named(trace: Trace, rows: Ints, *names: Names) -> Bools:
    """Which of these events have a name among any of these; -1 has none."""
    if not len(rows):
        return np.zeros(0, bool)
    found: Bools = _index(trace).have(names)[trace.name[rows]] & (rows >= 0)
    return found


def numbers_of(trace: Trace, names: Iterable[str]) -> list[int]:
    """Those of exact names that the trace has."""
    known = trace.once(_numbers)
    return [number for name in names if (number := known.get(name)) is not None]


def _numbers(trace: Trace) -> dict[str, int]:
    return dict(zip(trace.names, range(len(trace.names)), strict=True))


def are_any(trace: Trace, rows: Ints, names: Iterable[str]) -> Bools:
    """Which of these events have one of these very names; -1 has none."""
    marked = np.zeros(len(trace.names) + 1, bool)
    marked[numbers_of(trace, names)] = True
    return marked[np.where(rows >= 0, trace.name[rows], -1)]


def operators_of(trace: Trace, *names: str) -> Ints:
    """Operators of any of these very names, in time order."""
    numbers = numbers_of(trace, names)
    return _index(trace).operators(numbers, trace.kind) if numbers else _NONE


def rows_of(trace: Trace, *names: str) -> Ints:
    """Selected operators of any of these very names, in time order."""
    rows = operators_of(trace, *names)
    return rows[trace.selection[rows]] if len(rows) else rows
