"""Take documents into the index: a row per number, in the order in which the table has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pytest_torchprof.history.document import NotARunError, Run, RunTest, decode
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number

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
