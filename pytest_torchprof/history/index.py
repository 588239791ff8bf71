"""An index of a history's documents in the user's cache folder; it can always be rebuilt.

Only documents that are new or were overwritten are read. A series is one metric of one test or
region in one environment, of one source; of times, on one machine. Its values are rows of three
numbers, stored in the order in which they are asked for.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pytest_torchprof.core.cache_folder import cache_folder
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.history.document import UNREADABLE
from pytest_torchprof.history.intake import Intake

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number
    from pytest_torchprof.history.stores import Store

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
