"""Look up events by name: each name is matched once per process, each column once per trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from pytest_torchprof.core.kept import kept
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
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
        _kept_vocabulary.cache_clear()


#: What is asked for: a name as it is, or all that begin with a match.
Name: TypeAlias = Names | str

_ALL: Final[list[Names]] = []
#: Of each name that was met, what it belongs to.
_KNOWN: Final[dict[str, tuple[Names, ...]]] = {}
_MOST_KNOWN: Final = 100_000
#: For fewer, one look for all would cost more to compile (6 ms) than it saves.
_MANY: Final = 500
_NONE: Final = np.zeros(0, np.int64)
#: Of so large a part of all events, they are not put together name by name.
_DENSE: Final = 4
#: Nor of so few: to look at each is quicker.
_FEW: Final = 2_000
#: Names of traces with more are not kept for the next trace.
_MOST_KEPT: Final = 2_000
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


class _Vocabulary:
    """What is known of the names of a trace by themselves; a test that runs again has the same."""

    def __init__(self, names: Sequence[str]) -> None:
        belong = learn(names)
        self.present: Final[AbstractSet[Names]] = frozenset(chain.from_iterable(belong))
        #: The number of each name, and those of the names that belong to each expression.
        self._numbers: Final[dict[Name, list[int]]] = {n: [i] for i, n in enumerate(names)}
        for number, every in enumerate(belong):
            for one in every:
                self._numbers.setdefault(one, []).append(number)
        self._count: Final = len(names)
        self._known: Final[dict[tuple[Name, ...], tuple[Sequence[int], Bools]]] = {}

    def numbers(self, names: tuple[Name, ...]) -> Sequence[int]:
        """Of the names that belong to any of these."""
        return self.look_up(names)[0]

    def look_up(self, names: tuple[Name, ...]) -> tuple[Sequence[int], Bools]:
        """The numbers of the names that belong to any of these, and whether each name does."""
        found = self._known.get(names)
        if found is None:
            numbers = sorted({*chain.from_iterable([self._numbers.get(one, ()) for one in names])})
            marked = np.zeros(self._count, bool)
            marked[numbers] = True
            found = self._known[names] = numbers, marked
        return found


@lru_cache(maxsize=20)
def _kept_vocabulary(names: tuple[str, ...]) -> _Vocabulary:
    return _Vocabulary(names)


def present(trace: Trace) -> AbstractSet[Names]:
    """All of which the trace has a name."""
    return _index(trace).vocabulary.present


def count(trace: Trace, *names: Name) -> int:
    """How many events of any kind have such names."""
    index = _index(trace)
    return sum([index.counts[i] for i in index.vocabulary.numbers(names)])


def _index(trace: Trace) -> _Index:
    # More expressions may have come since it was last asked for.
    return trace.once(_Index, len(_ALL))


class _Index:
    """The events of a trace name by name."""

    def __init__(self, trace: Trace, _: int) -> None:
        names = trace.names
        self.vocabulary: Final = (
            _kept_vocabulary(tuple(names)) if len(names) <= _MOST_KEPT else _Vocabulary(names)
        )
        #: How many events have each name.
        self.counts: Final[list[int]] = np.bincount(trace.name, minlength=len(names)).tolist()
        self._name: Final = trace.name
        self.is_operator: Final = trace.kind == OPERATOR

    @kept
    def _ordered(self) -> tuple[Ints, list[int]]:
        """Events name by name, and where each name's end."""
        # Numbers of 16 bits are sorted in linear time.
        name = self._name.astype(np.uint16) if len(self.counts) <= 1 << 16 else self._name
        return np.argsort(name, kind="stable"), list(accumulate(self.counts))

    def events(self, names: tuple[Name, ...]) -> Ints:
        """Events of these names, in time order."""
        numbers, marked = self.vocabulary.look_up(names)
        if not numbers:
            return _NONE
        total = len(self._name)
        if total < _FEW or _DENSE * sum([self.counts[i] for i in numbers]) > total:
            return marked[self._name].nonzero()[0]
        order, ends = self._ordered
        parts = [order[ends[i] - self.counts[i] : ends[i]] for i in numbers]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts), kind="stable")


def events_named(trace: Trace, *names: Name) -> Ints:
    """Events of any kind, in time order."""
    return _index(trace).events(names)


def operators_named(trace: Trace, *names: Name) -> Ints:
    """Operators, in time order."""
    index = _index(trace)
    rows = index.events(names)
    return rows[index.is_operator[rows]] if len(rows) else rows


def rows_of(trace: Trace, *names: Name) -> Ints:
    """Selected operators, in time order."""
    rows = operators_named(trace, *names)
    return rows[trace.selection[rows]] if len(rows) else rows


def marks_named(trace: Trace, *names: Name) -> Ints:
    """Annotations, in time order; some versions write them as operators."""
    rows = events_named(trace, *names)
    return rows[_IS_MARK[trace.kind[rows]]] if len(rows) else rows


def named(trace: Trace, *names: Name) -> Bools:
    """Of each event, whether it has a name among any of these."""
    found: Bools = _index(trace).vocabulary.look_up(names)[1][trace.name]
    return found


def are_named(trace: Trace, rows: Ints, *names: Name) -> Bools:
    """Which of these events have a name among any of these; -1 has none."""
    if not len(rows):
        return np.zeros(0, bool)
    found: Bools = _index(trace).vocabulary.look_up(names)[1][trace.name[rows]] & (rows >= 0)
    return found
