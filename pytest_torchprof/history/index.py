"""An index of a history's documents in the user's cache folder; it can always be rebuilt."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.files import cache_folder
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.history.runs import UNREADABLE, NotARunError, Run, RunTest, decode
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Number
    from pytest_torchprof.history.stores import Store


# ---- Take documents into the index: a row per number, in the order in which the table has them.

#: Documents whose values are sorted and stored together.
_BATCH = 200
#: From here on, a float is not every whole number.
_EXACT = 2**53
#: The largest integer that SQLite stores.
_LARGEST = 2**63 - 1

#: Repository, environment, test, source, machine, region.
_Key = tuple[str, str, str, str, str, str | None]


class Intake:
    """Takes in documents: their values, in the order in which the table has them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._groups: dict[_Key, dict[str, int]] = {}
        self._last = 0
        for row in db.execute(
            "SELECT id, repository, environment, nodeid, source, machine, region, metric"
            " FROM series"
        ):
            self._groups.setdefault(tuple(row[1:7]), {})[row[7]] = row[0]
            self._last = max(self._last, row[0])
        self._new: list[tuple[object, ...]] = []
        self._ids: list[int] = []
        self._runs: list[int] = []
        self._values: list[Number] = []

    def take(self, contents: Iterable[tuple[str, bytes]], stamps: dict[str, str]) -> int:
        """Store all of them; what is no document is noted as skipped. Returns how many came."""
        count = came = 0
        for name, content in contents:
            came += 1
            try:
                run = decode(content)
            except NotARunError as error:
                self._db.execute(
                    "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)",
                    (name, stamps.get(name, ""), error.kind),
                )
                continue
            self._add(name, stamps.get(name, ""), run)
            count += 1
            if not count % _BATCH:
                self._store()
        self._store()
        return came

    def _add(self, name: str, stamp: str, run: Run) -> None:
        parents = None if run.parents is None else " ".join(run.parents)
        number = self._db.execute(
            "INSERT INTO run (name, stamp, repository, commit_id, parents, merge_base, branch,"
            " dirty, started) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (name, stamp, run.repository, run.commit, parents, run.merge_base, run.branch,
             bool(run.dirty), run.started),
        ).lastrowid  # fmt: skip
        before = len(self._ids)
        environment = str(run.environment.get("key") or "")
        for test in run.tests:
            self._add_part(run, test, None, environment, test.metrics)
            for region, part in test.regions.items():
                self._add_part(run, test, region, environment, part.metrics)
        self._runs.extend([number or 0] * (len(self._ids) - before))

    def _add_part(
        self,
        run: Run,
        test: RunTest,
        region: str | None,
        environment: str,
        metrics: dict[str, Number],
    ) -> None:
        chip = run.environment.get("chip")
        if chip is not None and (apart := {m: v for m, v in metrics.items() if _of_chip(m)}):
            metrics = {m: v for m, v in metrics.items() if m not in apart}
            self._add_rows(run, test, region, f"{environment}, {chip}", apart)
        self._add_rows(run, test, region, environment, metrics)

    def _add_rows(
        self,
        run: Run,
        test: RunTest,
        region: str | None,
        environment: str,
        metrics: dict[str, Number],
    ) -> None:
        repository, source = run.repository or "", test.source or ""
        for timed, machine in ((False, ""), (True, run.machine or "unknown")):
            key: _Key = (repository, environment, test.nodeid, source, machine, region)
            if (known := self._groups.get(key)) is None:
                known = self._groups[key] = {}
            for metric, value in metrics.items():
                if (number := known.get(metric)) is None:
                    number = known[metric] = self._number(key, test, metric, timed=timed)
                if number:
                    self._ids.append(number)
                    self._values.append(value)

    def _number(self, key: _Key, test: RunTest, metric: str, *, timed: bool) -> int:
        """The number of a new series; 0 for times among other metrics, and the other way round."""
        name = metric.partition("[")[0]
        own, known = test.own.get(name), METRICS.get(name)
        unit, klass, better = "1", "exact", "lower"
        if own is not None:
            unit, klass, better = own.unit, own.klass, own.better
        elif known is not None:
            unit, klass, better = known.unit, known.klass, known.better
        if (klass == "time") != timed:
            return 0
        self._last += 1
        repository, environment, nodeid, source, machine, region = key
        self._new.append((self._last, repository, nodeid, region, metric, environment, source,
                          machine, unit, klass, better))  # fmt: skip
        return self._last

    def _store(self) -> None:
        """Store what was added, sorted: neighbors in the table are written together."""
        self._db.executemany(
            "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 9e999, -9e999)", self._new
        )
        self._new.clear()
        if not self._ids:
            return
        ids, runs = np.array(self._ids), np.array(self._runs)
        order = np.lexsort((runs, ids))
        ids, runs = ids[order], runs[order]
        kept = [self._values[at] for at in order.tolist()]
        if any(isinstance(value, int) and abs(value) > _LARGEST for value in kept):
            kept = [float(value) if abs(value) > _LARGEST else value for value in kept]
        self._db.executemany(
            "INSERT OR IGNORE INTO value VALUES (?, ?, ?)",
            zip(ids.tolist(), runs.tolist(), kept, strict=True),
        )
        self._note_ranges(ids, np.array(kept, float))
        for column in (self._ids, self._runs, self._values):
            column.clear()

    def _note_ranges(self, ids: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
        """Widen the range of each series, so that a series that never changed is not read."""
        large = np.abs(values) >= _EXACT
        starts = np.flatnonzero(np.r_[True, np.diff(ids) != 0])
        low = np.minimum.reduceat(np.where(large, -np.inf, values), starts)
        high = np.maximum.reduceat(np.where(large, np.inf, values), starts)
        self._db.executemany(
            "UPDATE series SET low = min(low, ?), high = max(high, ?) WHERE id = ?",
            zip(low.tolist(), high.tolist(), ids[starts].tolist(), strict=True),
        )


def _of_chip(label: str) -> bool:
    """Whether a metric is of the chip that the run estimated for: those of two do not compare."""
    known = METRICS.get(label.partition("[")[0])
    return known is not None and known.of_chip


# ---- An index of a history's documents in the user's cache folder; it can always be rebuilt.
#
# Only documents that are new or were overwritten are read. A series is one metric of one test or
# region in one environment, of one source; of times, on one machine. Its values are rows of three
# numbers, stored in the order in which they are asked for.

T = TypeVar("T")

#: Another number, and the index is rebuilt.
_VERSION = 2
#: How long to wait for another process that updates the index, in seconds.
_LOCK_S = 60.0

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given again
    name TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL,
    repository TEXT, commit_id TEXT, parents TEXT, merge_base TEXT, branch TEXT,
    dirty INTEGER NOT NULL, started TEXT NOT NULL
);
CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    repository TEXT NOT NULL, nodeid TEXT NOT NULL, region TEXT, metric TEXT NOT NULL,
    environment TEXT NOT NULL, source TEXT NOT NULL, machine TEXT NOT NULL,
    unit TEXT NOT NULL, class TEXT NOT NULL, better TEXT NOT NULL,
    low REAL NOT NULL, high REAL NOT NULL
);
CREATE TABLE value (
    series INTEGER NOT NULL, run INTEGER NOT NULL, value NOT NULL,
    PRIMARY KEY (series, run)
) WITHOUT ROWID;
CREATE TABLE skipped (name TEXT PRIMARY KEY, stamp TEXT NOT NULL, kind TEXT NOT NULL);
CREATE TABLE ordered (key TEXT PRIMARY KEY, commits TEXT NOT NULL);
CREATE TABLE drift (series INTEGER PRIMARY KEY, key TEXT NOT NULL, points TEXT NOT NULL);
CREATE INDEX series_of_metric ON series (metric, nodeid);
"""


class IndexedRun(NamedTuple):
    """A run, without its numbers; ``parents`` is None if they are not known."""

    id: int
    name: str
    repository: str | None
    commit: str | None
    parents: tuple[str, ...] | None
    merge_base: str | None
    branch: str | None
    dirty: bool
    started: str


class Series(Frozen, frozen=True):
    """One series; ``machine`` is empty unless it is of times, ``region`` is None for the test."""

    id: int
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
    low: float
    high: float


def asked(store: Store, question: Callable[[Index], T]) -> T:
    """The answer of the store's index, which is first brought up to date.

    A damaged index is removed and rebuilt. Where none can be stored (a full disk, no home), it is
    built in memory.

    Raises:
        HistoryError: the store cannot be read.
    """
    for path in (*[_path_of(store)] * 2, None):
        try:
            with closing(Index(path)) as index:
                index.update(store)
                return question(index)
        except (sqlite3.Error, OSError) as error:
            if path is None:
                raise
            if not isinstance(error, sqlite3.OperationalError | OSError) or _is_damage(error):
                _remove(path)
    raise AssertionError  # the last one returns or raises


def _path_of(store: Store) -> Path | None:
    name = hashlib.sha256(store.address.encode(errors="surrogateescape")).hexdigest()[:24]
    try:
        return cache_folder() / f"history-{name}.sqlite"
    except RuntimeError:  # no home
        return None


def _is_damage(error: Exception) -> bool:
    """Whether an error that can have other causes is one of the file's content."""
    return "no such" in str(error) or "has no column" in str(error)


def _remove(path: Path) -> None:
    # The journal first: it would be played back into the next file of this name.
    for name in (f"{path}-journal", str(path)):
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - two names of one base


class Index:
    """The index in a file, or in memory for None.

    Raises:
        sqlite3.Error: it cannot be opened, or is damaged.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        #: Files that could not be read this time.
        self._unread = 0
        name = ":memory:" if path is None else str(path)
        self._db = sqlite3.connect(name, timeout=_LOCK_S, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        # A crash of the machine may damage the file, which is then rebuilt; a killed process
        # cannot: the journal takes its part back.
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA cache_size = -200000")  # KiB
        if self._version() != _VERSION:
            with self._alone():
                if self._version() == _VERSION:  # another process was faster
                    return
                for kind, name in self._db.execute(
                    "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
                ).fetchall():
                    if kind == "table":
                        self._db.execute(f'DROP TABLE "{name}"')
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One transaction, in which no other process writes."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    # ---------------------------------------------------------------- new documents

    def update(self, store: Store) -> None:
        """Take in documents that are new or changed, and leave out those that are gone."""
        entries = {entry.name: entry.stamp for entry in store.entries()}
        if self._seen() == entries:
            return
        with self._alone():
            seen = self._seen()
            self._forget(name for name, stamp in seen.items() if entries.get(name) != stamp)
            new = sorted(name for name, stamp in entries.items() if seen.get(name) != stamp)
            self._unread = len(new) - Intake(self._db).take(store.read(new), entries)

    def _seen(self) -> dict[str, str]:
        """The stamps of all files that were read, by name."""
        both = "SELECT name, stamp FROM run UNION SELECT name, stamp FROM skipped"
        return dict(self._db.execute(both).fetchall())

    def _forget(self, names: Iterable[str]) -> None:
        gone = [(name,) for name in names]
        if not gone:
            return
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS gone (name TEXT PRIMARY KEY)")
        self._db.execute("DELETE FROM gone")
        self._db.executemany("INSERT INTO gone VALUES (?)", gone)
        self._db.execute(
            "DELETE FROM value WHERE run IN"
            " (SELECT id FROM run WHERE name IN (SELECT name FROM gone))"
        )
        self._db.execute("DELETE FROM run WHERE name IN (SELECT name FROM gone)")
        self._db.execute("DELETE FROM skipped WHERE name IN (SELECT name FROM gone)")

    # ---------------------------------------------------------------- questions

    def skipped(self) -> dict[str, int]:
        """How many files are no documents, by kind."""
        found = self._db.execute("SELECT kind, count(*) FROM skipped GROUP BY kind ORDER BY kind")
        return {**dict(found.fetchall()), **({UNREADABLE: self._unread} if self._unread else {})}

    def runs(self) -> list[IndexedRun]:
        """All runs, in no particular order."""
        rows = self._db.execute(
            "SELECT id, name, repository, commit_id, parents, merge_base, branch, dirty, started"
            " FROM run"
        )
        return [
            IndexedRun(
                id=row[0],
                name=row[1],
                repository=row[2],
                commit=row[3],
                parents=None if row[4] is None else tuple(row[4].split()),
                merge_base=row[5],
                branch=row[6],
                dirty=bool(row[7]),
                started=row[8],
            )
            for row in rows
        ]

    def series(self, test: str | None = None, metric: str | None = None) -> list[Series]:
        """The series of tests and metrics with these names or globs; all by default."""
        exact = None if metric is None or set("*?[") & set(metric) else metric
        rows = self._db.execute(
            "SELECT id, repository, nodeid, region, metric, environment, source, machine, unit,"
            " class, better, low, high FROM series WHERE :metric IS NULL OR metric = :metric",
            {"metric": exact},
        )
        matching: dict[tuple[str, str], bool] = {}
        found = []
        for row in rows:
            key = row[2], row[4]
            if (wanted := matching.get(key)) is None:
                wanted = (test is None or is_of_name(test, row[2])) and (
                    metric is None or is_of_name(metric, row[4])
                )
                matching[key] = wanted
            if wanted:
                found.append(Series(*row))
        return found

    def values(self, series: int) -> list[tuple[int, Number]]:
        """The runs of a series, and its value in each."""
        rows = self._db.execute("SELECT run, value FROM value WHERE series = ?", (series,))
        return rows.fetchall()

    def drifts(self) -> dict[int, tuple[str, str]]:
        """What was found in series of times: of each, the key of its values, and the answer."""
        rows = self._db.execute("SELECT series, key, points FROM drift")
        return {series: (key, points) for series, key, points in rows}

    def keep_drifts(self, found: dict[int, tuple[str, str]]) -> None:
        """Keep these answers, until others are found in their series."""
        rows = [(series, *answer) for series, answer in found.items()]
        with suppress(sqlite3.Error), self._alone():  # they can be found again
            self._db.executemany("INSERT OR REPLACE INTO drift VALUES (?, ?, ?)", rows)

    def ordered(self, key: str, make: Callable[[], str]) -> str:
        """A text that depends on this key alone, kept until another key is asked for."""
        row = self._db.execute("SELECT commits FROM ordered WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return str(row[0])
        made = make()
        with suppress(sqlite3.Error), self._alone():  # another answer is as good
            self._db.execute(
                "DELETE FROM ordered WHERE key NOT IN (SELECT key FROM ordered LIMIT 7)"
            )
            self._db.execute("INSERT OR REPLACE INTO ordered VALUES (?, ?)", (key, made))
        return made
