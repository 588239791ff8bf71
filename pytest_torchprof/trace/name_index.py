"""Look up events by name: each name is matched once per process, each column once per trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.cached import cached
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


#: As plain numbers, which numpy compares four times as fast.
OPERATOR: Final = int(Kind.OP)
ANNOTATION: Final = int(Kind.ANNOTATION)
_MARKS: Final = frozenset({OPERATOR, ANNOTATION})


class Names:
    """All names that begin with a match of an expression; rules define them as constants."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.match: Final = re.compile(pattern).match
        _ALL.append(self)
        _KNOWN.clear()
        _joined.cache_clear()
        _kept_vocabulary.cache_clear()
        _kept_index.cache_clear()


#: What can be looked up: an exact name, or all names that begin with a match.
Name: TypeAlias = Names | str

_ALL: Final[list[Names]] = []
#: For each name seen so far, the expressions that match it.
_KNOWN: Final[dict[str, tuple[Names, ...]]] = {}
_MOST_KNOWN: Final = 100_000
#: For fewer names, a joined expression costs more to compile (6 ms) than it saves.
_MANY: Final = 500
_NONE: Final = np.zeros(0, np.int64)
#: Above this fraction of all events, rows are not collected name by name.
_DENSE: Final = 4
#: Nor below this number of events: checking each one is faster.
_FEW: Final = 2_000
#: Names of traces with more of them are not kept for the next trace.
_MOST_KEPT: Final = 2_000
#: Names of which an expression is not asked again.
_MOST_FOUND: Final = 5_000
#: What cannot be part of a joined expression: it refers to a group by number, or has flags.
_ALONE: Final = re.compile(r"\\\d|\(\?(P|\(|[aiLmsux]+\))")


@lru_cache(maxsize=1)
def _joined() -> tuple[Callable[[str], object], list[Names]]:
    """One matcher for all expressions that can be joined, and the other expressions."""
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
    """The same object for all rules that have the same expression."""
    return Names(pattern)


def learn(names: Iterable[str]) -> list[tuple[Names, ...]]:
    """The expressions that match each name; names new to the process are matched now."""
    if len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.clear()
    try:
        return [_KNOWN[name] for name in names]
    except KeyError:
        new = [name for name in names if name not in _KNOWN]
        _KNOWN.update(zip(new, map(_all_of, new), strict=True))
        return [_KNOWN[name] for name in names]


class _Vocabulary(dict[tuple[Name, ...], tuple[Sequence[int], "Bools"]]):
    """What is known about a trace's names alone; repeated runs of a test share it.

    For names to look up: the numbers of the names that belong to any of them, in order, and for
    each name whether it does; the extra last entry is false.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names: Final = names
        self._learn()

    def _learn(self) -> None:
        names, belong = self._names, learn(self._names)
        self._looks = len(_ALL)
        #: All expressions that match a name.
        self.present: AbstractSet[Names] = frozenset(chain.from_iterable(belong))
        #: The number of each name, and the numbers of the names that match each expression.
        self._numbers: dict[Name, list[int]] = {name: [i] for i, name in enumerate(names)}
        for number, every in enumerate(belong):
            for one in every:
                self._numbers.setdefault(one, []).append(number)

    def refresh(self) -> None:
        """Ask the expressions again if there are more of them."""
        if self._looks != len(_ALL):
            self._learn()

    def __missing__(self, names: tuple[Name, ...]) -> tuple[Sequence[int], Bools]:
        self.refresh()
        numbers = sorted({*chain.from_iterable([self._numbers.get(one, ()) for one in names])})
        marked = np.zeros(len(self._names) + 1, bool)
        marked[numbers] = True
        found = self[names] = numbers, marked
        return found


@lru_cache(maxsize=20)
def _kept_vocabulary(names: tuple[str, ...]) -> _Vocabulary:
    return _Vocabulary(names)


class NameIndex:
    """The events of a trace by name, for the functions of this module.

    Small traces with the same columns share it, and what follows from it: runs of one test, and of
    one with other parameters, mostly call the same operators.
    """

    def __init__(self, names: Sequence[str], name: Ints, kind: npt.NDArray[np.int8]) -> None:
        self.vocabulary: Final = (
            _kept_vocabulary(tuple(names)) if len(names) <= _MOST_KEPT else _Vocabulary(names)
        )
        #: How many events have each name.
        self.counts: Final[list[int]] = np.bincount(name, minlength=len(names)).tolist()
        self.is_small: Final = len(name) < _FEW
        #: For each event whether it is an operator; the extra last entry, index -1, is false.
        self.is_operator: Final = np.zeros(len(name) + 1, bool)
        np.equal(kind, OPERATOR, out=self.is_operator[:-1])
        self._unnamed: Final = len(names)
        self._name: Final = name
        #: Of a small trace, what was looked up: events and operators by names.
        self.events: Final[dict[tuple[Name, ...], Ints]] = {}
        self.operators: Final[dict[tuple[Name, ...], Ints]] = {}
        #: What follows from these numbers, with so many expressions.
        self.looks = len(_ALL)
        self.by_counts: dict[Any, Any] = {}
        #: What follows from names, kinds and nesting, by the nesting.
        self.nested: Final[dict[bytes, dict[Any, Any]]] = {}

    @cached
    def name(self) -> Ints:
        """The number of each event's name; for index -1, that of none."""
        padded = np.empty(len(self._name) + 1, self._name.dtype)
        padded[:-1] = self._name
        padded[-1] = self._unnamed
        return padded

    @cached
    def operator_name(self) -> Ints:
        """The number of each operator's name; for other events and index -1, that of none."""
        return np.where(self.is_operator, self.name, self._unnamed)

    @cached
    def _ordered(self) -> tuple[npt.NDArray[np.int32], list[int]]:
        """Events sorted by name, and where each name's events end."""
        # Numbers of 16 bits are sorted in linear time.
        name = self._name.astype(np.uint16) if len(self.counts) <= 1 << 16 else self._name
        order = np.argsort(name, kind="stable").astype(np.int32)
        return order, list(accumulate(self.counts))

    def kept(
        self, known: dict[tuple[Name, ...], Ints], names: tuple[Name, ...], rows: Ints
    ) -> Ints:
        """These rows, kept for such names if the trace is small."""
        if self.is_small:
            rows.flags.writeable = False
            known[names] = rows
        return rows

    def sparse(self, numbers: Sequence[int]) -> Ints | None:
        """Events with names of these numbers, in time order; None where it is faster to look at
        each event, as in each trace that `is_small`.
        """
        counts = self.counts
        if _DENSE * sum([counts[i] for i in numbers]) > len(self._name):
            return None
        order, ends = self._ordered
        parts = [order[ends[i] - counts[i] : ends[i]] for i in numbers]
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts), kind="stable")
        return rows.astype(np.int64)


def index_of(names: Sequence[str], name: Ints, kind: npt.NDArray[np.int8]) -> NameIndex:
    """The index of events with these names, numbers of names, and kinds."""
    if len(name) >= _FEW or len(names) > _MOST_KEPT:
        return NameIndex(names, name, kind)
    return _kept_index(tuple(names), name.dtype.str, name.tobytes(), kind.tobytes())


@lru_cache(maxsize=20)
def _kept_index(names: tuple[str, ...], dtype: str, name: bytes, kind: bytes) -> NameIndex:
    return NameIndex(names, np.frombuffer(name, dtype), np.frombuffer(kind, np.int8))


def present(trace: Events) -> AbstractSet[Names]:
    """All expressions that match a name of the trace."""
    trace.by_name.vocabulary.refresh()
    return trace.by_name.vocabulary.present


def kept_by_names(trace: Events) -> dict[Any, Any]:
    """A place to keep what follows from how many events of each kind have each name."""
    index = trace.by_name
    index.vocabulary.refresh()
    if index.looks != len(_ALL):
        index.looks, index.by_counts = len(_ALL), {}
    return index.by_counts


def count(trace: Events, *names: Name) -> int:
    """How many events of any kind have such names."""
    index = trace.by_name
    numbers = index.vocabulary[names][0]
    return sum([index.counts[i] for i in numbers]) if numbers else 0


def numbers_of(trace: Events, *names: Name) -> Sequence[int]:
    """The numbers of such names, in order."""
    return trace.by_name.vocabulary[names][0]


def events_named(trace: Events, *names: Name) -> Ints:
    """Events of any kind, in time order."""
    index = trace.by_name
    if (known := index.events.get(names)) is not None:
        return known
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = None if index.is_small else index.sparse(numbers)
    if rows is None:
        rows = marked[trace.name].nonzero()[0]
    return index.kept(index.events, names, rows)


def operators_between(trace: Events, start: int, stop: int, *names: Name) -> Ints:
    """Operators from one event up to another one, in time order."""
    index = trace.by_name
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = marked[index.operator_name[start:stop]].nonzero()[0]
    rows += start
    return rows


def operators_named(trace: Events, *names: Name) -> Ints:
    """Operators, in time order."""
    index = trace.by_name
    if (known := index.operators.get(names)) is not None:
        return known
    numbers, marked = index.vocabulary[names]
    if not numbers:
        return _NONE
    rows = None if index.is_small else index.sparse(numbers)
    if rows is None:
        rows = marked[index.operator_name].nonzero()[0]
    else:
        rows = rows[index.is_operator[rows]]
    return index.kept(index.operators, names, rows)


def selected_operators(trace: Events, *names: Name) -> Ints:
    """Selected operators, in time order."""
    rows = operators_named(trace, *names)
    return rows[trace.selection[rows]] if len(rows) else rows


def marks_named(trace: Events, *names: Name) -> Ints:
    """Annotations, in time order; some versions write them as operators."""
    rows = events_named(trace, *names)
    kind = trace.kind[rows]
    if _MARKS.issuperset(kind.tolist()):  # mostly
        return rows
    found: Ints = rows[(kind == OPERATOR) | (kind == ANNOTATION)]
    return found


def are_operators(trace: Events) -> Bools:
    """For each event whether it is an operator; the extra last entry, index -1, is false.

    It is shared, and not to be written to.
    """
    return trace.by_name.is_operator


def operators_marked(trace: Events, *names: Name) -> Bools:
    """For each event, whether it is an operator of such a name; for index -1, false."""
    index = trace.by_name
    found: Bools = index.vocabulary[names][1][index.operator_name]
    return found


def named(trace: Events, *names: Name) -> Bools:
    """For each event, whether its name belongs to any of these."""
    found: Bools = trace.by_name.vocabulary[names][1][trace.name]
    return found


def are_named(trace: Events, rows: Ints, *names: Name) -> Bools:
    """Which of these events have a name among these; -1 has none."""
    index = trace.by_name
    found: Bools = index.vocabulary[names][1][index.name[rows]]
    return found


def verdicts_on(names: Sequence[str], predicate: Callable[[str], object]) -> list[bool]:
    """What a predicate says of each name.

    A method of an expression is called once per name and process: long names of kernels recur.
    """
    if not isinstance(getattr(predicate, "__self__", None), re.Pattern):
        return [bool(found) for found in map(predicate, names)]
    known = _found_by(predicate)
    if len(known) > _MOST_FOUND:
        known.clear()
    try:
        return [known[name] for name in names]
    except KeyError:
        known.update({name: bool(predicate(name)) for name in names if name not in known})
        return [known[name] for name in names]


@lru_cache(maxsize=500)
def _found_by(_: Callable[[str], object]) -> dict[str, bool]:
    """What a method of an expression said of names, a table for each: it takes least memory."""
    return {}


def communicates(trace: Events) -> bool:
    """Whether any event of the whole trace has a name of communication between ranks."""
    return trace.whole.once(_communicates)


def _communicates(trace: Events) -> bool:
    return any(map(_is_communication, trace.names))


@lru_cache(maxsize=10_000)
def _is_communication(name: str) -> bool:
    return COMMUNICATION.search(name) is not None
