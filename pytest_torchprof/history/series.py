"""A history in memory: its runs, and the series of numbers that its documents have.

A series is one metric of one test or region in one environment, of one source; of times, on one
machine.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.history.runs import UNREADABLE, OwnKind, decode
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_torchprof.core.values import Number
    from pytest_torchprof.history.runs import Run, RunCause, RunTest
    from pytest_torchprof.history.stores import Store


class RunInfo(NamedTuple):
    """A run without its numbers; ``parents`` is None if they are not known."""

    number: int
    name: str
    repository: str | None
    commit: str | None
    parents: tuple[str, ...] | None
    merge_base: str | None
    branch: str | None
    dirty: bool
    started: str

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Those of its commit that the document has, the parents first."""
        base = [] if self.merge_base in (None, self.commit) else [self.merge_base]
        return tuple(dict.fromkeys([*(self.parents or ()), *base]))

    def is_of(self, repositories: Collection[str]) -> bool:
        """Whether it is of a repository that has these names."""
        return (self.repository or "").partition("//")[0] in repositories


class Series(Frozen, frozen=True):
    """One series; ``machine`` is empty unless it is of times, ``region`` is None for the test."""

    repository: str
    test: str
    region: str | None
    metric: str
    environment: str
    source: str
    machine: str
    unit: str
    klass: str
    better: str


class _Rows:
    """The numbers of a part of a test, over all runs in which it has the same metrics.

    ``series`` has the columns that are asked for.
    """

    def __init__(self, series: Mapping[int, Series], width: int) -> None:
        self.series = series
        self.runs: list[int] = []
        self.values: list[Sequence[Number]] = []
        self._is_whole = len(series) == width

    def add(self, run: int, values: Sequence[Number]) -> None:
        """Those of the next run."""
        self.runs.append(run)
        self.values.append(values if self._is_whole else [values[at] for at in self.series])


class Question(Frozen, frozen=True):
    """What to look at: tests and metrics by name or glob, and a branch; all by default."""

    test: str | None = None
    metric: str | None = None
    branch: str | None = None

    @property
    def narrow(self) -> bool:
        """Whether it asks about some series only."""
        return self.test is not None or self.metric is not None


class History:
    """All runs of a store by name, the series that are asked for, and how many files were skipped.

    Raises:
        HistoryError: the store cannot be read.
    """

    def __init__(self, store: Store, question: Question) -> None:
        self.runs: list[RunInfo] = []
        self.skipped: dict[str, int] = {}
        #: By the number of the run and the node id.
        self.causes: dict[tuple[int, str], list[RunCause]] = {}
        #: Of each series its columns: numbers of runs, and its value in each of them.
        self._columns: dict[Series, list[tuple[list[int], Sequence[Number]]]] = {}
        self._question = question
        collects = gc.isenabled()
        gc.disable()  # none of what is read is garbage
        try:
            self._read(store)
        finally:
            if collects:
                gc.enable()

    def _read(self, store: Store) -> None:
        wanted = cache(lambda nodeid: _is_asked(self._question.test, nodeid))
        skipped: list[str] = []
        parts: dict[tuple[object, ...], _Rows] = {}
        for name, content in store.read():
            run = UNREADABLE if content is None else decode(content)
            if isinstance(run, str):
                skipped.append(run)
                continue
            number = len(self.runs)
            self.runs.append(_info(number, name, run))
            key, chip = run.environment.get("key"), run.environment.get("chip")
            where = (run.repository, key, chip, run.machine)
            for test in run.tests:
                if not wanted(test.nodeid):
                    continue
                if test.causes:
                    self.causes[number, test.nodeid] = test.causes
                regions = [(name, region.metrics) for name, region in test.regions.items()]
                for region, metrics in ((None, test.metrics), *regions):
                    names = tuple(metrics)
                    key = (where, test.nodeid, test.source, region, names)
                    if (rows := parts.get(key)) is None:
                        rows = parts[key] = _Rows(
                            self._series(run, test, region, names), len(names)
                        )
                    rows.add(number, tuple(metrics.values()))
        for rows in parts.values():
            columns = zip(*rows.values, strict=True)
            for one, column in zip(rows.series.values(), columns, strict=True):
                self._columns[one].append((rows.runs, column))
        self.skipped = {kind: skipped.count(kind) for kind in sorted({*skipped})}

    def _series(
        self, run: Run, test: RunTest, region: str | None, names: Sequence[str]
    ) -> dict[int, Series]:
        """The series of these metrics, by column: of those that are asked for."""
        environment, chip = str(run.environment.get("key") or ""), run.environment.get("chip")
        found = {}
        for at, label in enumerate(names):
            if not _is_asked(self._question.metric, label):
                continue
            name = label.partition("[")[0]
            known = METRICS.get(name)
            kind = test.own.get(name) or known or OwnKind("1", "exact")
            # Bounds are of the chip that the run estimated for: those of two do not compare.
            of_chip = chip is not None and known is not None and known.of_chip
            found[at] = Series(
                repository=run.repository or "",
                test=test.nodeid,
                region=region,
                metric=label,
                environment=f"{environment}, {chip}" if of_chip else environment,
                source=test.source or "",
                machine=(run.machine or "unknown") if kind.klass == "time" else "",
                unit=kind.unit,
                klass=kind.klass,
                better=kind.better,
            )
        # A table has times last.
        for one in sorted(
            found.values(), key=lambda one: (one.environment == environment, one.klass == "time")
        ):
            self._columns.setdefault(one, [])
        return found

    def series(self, repositories: Collection[str]) -> list[Series]:
        """The series of these repositories, in the order in which they began."""
        return [one for one in self._columns if one.repository in repositories]

    def is_constant(self, series: Series) -> bool:
        """Whether it has the same value in all runs."""
        columns = [column for _, column in self._columns[series]]
        return all(column.count(columns[0][0]) == len(column) for column in columns)

    def values(self, series: Series, places: Mapping[int, int]) -> dict[int, Number]:
        """Its values by position of the run; ``places`` has those of the runs that count."""
        return {
            places[run]: value
            for runs, column in self._columns[series]
            for run, value in zip(runs, column, strict=True)
            if run in places
        }


def _is_asked(pattern: str | None, name: str) -> bool:
    return pattern is None or is_of_name(pattern, name)


def _info(number: int, name: str, run: Run) -> RunInfo:
    parents = None if run.parents is None else tuple(run.parents)
    return RunInfo(
        number,
        name,
        run.repository,
        run.commit,
        parents,
        run.merge_base,
        run.branch,
        bool(run.dirty),
        run.started,
    )
