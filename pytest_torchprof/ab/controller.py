"""Drive the two workers test by test and turn by turn; one idles while the other runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_torchprof.ab.imports import proven
from pytest_torchprof.ab.messages import Collection
from pytest_torchprof.ab.one_test import Options, PairedRun
from pytest_torchprof.ab.process import Worker, WorkerDied
from pytest_torchprof.core.errors import AbError, AbStoppedError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.verdict.paired_row import PairedRow

if TYPE_CHECKING:
    from pytest_torchprof.ab.cleanup import Cleanup
    from pytest_torchprof.ab.sides import Side

_NO_TESTS = 5
_MOST_DEATHS = 3

__all__ = ["Options", "run"]

TestProgress = Callable[[str, int, int], None]


def run(
    a: Side,
    b: Side,
    cleanup: Cleanup,
    options: Options,
    progress: TestProgress,
    rows: list[PairedRow],
) -> list[str]:
    """Compare all tests of two sides; return notes on the run for the reader.

    ``rows`` gets a row for each test as soon as it is done, in B's collection order, so they are
    kept even if an error or Ctrl-C ends the run. Before a test runs, ``progress`` gets its id, its
    number from 1, and the number of tests.

    Raises:
        AbError: there is nothing to compare, one side would run the other's code, or several tests
            in a row ended their worker.
    """
    with _pair(a, b, cleanup) as pair:
        for row in _Run(pair, options, progress).rows():
            rows.append(row)  # noqa: PERF402 - each at once, whatever comes next
    return pair.notes


@dataclass
class _Pair:
    """Both workers, and what they have collected."""

    a: Worker
    b: Worker
    cleanup: Cleanup
    found: tuple[Collection, Collection] = field(init=False)
    number: int = 1
    #: Sides of which a process died before it reported its imports.
    _unproven: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Worker]:
        return iter((self.a, self.b))

    def start(self) -> None:
        """Both collect at the same time."""
        for worker in self:
            if not worker.side.empty:
                worker.start()
        found_a, why_a = _collect(self.a)
        found_b, why_b = _collect(self.b)
        if why_b is not None:
            raise AbError(
                f"B ({self.b.side.label}) cannot be tested",
                in_words(why_b),
                f"see what pytest says in {self.b.side.cwd}",
            )
        if why_a is not None:
            # Every test gets a row with the reason.
            found_a = Collection([], {"": why_a}, found_b.origins)
        else:
            proven(found_a.origins, found_b.origins)
        self.found = found_a, found_b

    def renew(self, worker: Worker) -> None:
        """Start another process in place of one that died.

        Raises:
            AbError: it does not start, or would run the other's code.
        """
        worker.kill()
        self._lost(worker)
        self.number += 1
        new = Worker(worker.side, self.cleanup, self.number)
        if worker is self.a:
            self.a = new
        else:
            self.b = new
        new.start()
        again, why = _collect(new)
        if why is not None:
            raise AbStoppedError(
                f"the worker of {new.side.name} cannot be restarted", in_words(why)
            )
        a, b = self.found
        self.found = (again, b) if new is self.a else (a, again)
        proven(self.found[0].origins, self.found[1].origins)

    def finish(self) -> None:
        """End both, and check once more where their code came from."""
        ends = []
        for worker, found in zip(self, self.found, strict=True):
            if not worker.side.empty:
                worker.close()
            if worker.ended is not None:
                ends.append(worker.ended.origins)
            else:
                ends.append(found.origins)
                self._lost(worker)
        proven(ends[0], ends[1])

    def _lost(self, worker: Worker) -> None:
        """A process died before it reported its imports."""
        if not worker.side.empty and worker.side.name not in self._unproven:
            self._unproven.append(worker.side.name)

    @property
    def notes(self) -> list[str]:
        """For the reader."""
        return [
            f"it is not known where {name} imported modules from while tests ran: its worker died"
            for name in self._unproven
        ]


@contextmanager
def _pair(a: Side, b: Side, cleanup: Cleanup) -> Iterator[_Pair]:
    pair = _Pair(Worker(a, cleanup), Worker(b, cleanup), cleanup)
    try:
        pair.start()
        yield pair
        pair.finish()
    finally:
        for worker in pair:
            worker.kill()


def _collect(worker: Worker) -> tuple[Collection, Reason | None]:
    """What it collected, or why it could not collect anything."""
    if worker.side.empty:
        return Collection([], {}, {}), None
    try:
        return worker.collect(), None
    except WorkerDied as death:
        end = worker.ended
        if end is not None and end.code == _NO_TESTS and end.error is None:
            return Collection([], {}, end.origins), None
        why = worker.complaint() if end is None or end.error is None else None
        return Collection([], {}, {}), why or death.reason


class _Run:
    """One comparison of all tests."""

    def __init__(self, pair: _Pair, options: Options, progress: TestProgress) -> None:
        self._pair = pair
        self._options = options
        self._progress = progress
        self._deaths = 0

    def rows(self) -> Iterator[PairedRow]:
        found_a, found_b = self._pair.found
        in_a, in_b = set(found_a.tests), set(found_b.tests)
        common = [nodeid for nodeid in found_b.tests if nodeid in in_a]
        if not found_a.tests and not found_b.tests and not found_a.errors and not found_b.errors:
            raise AbError(
                "no tests were collected on either side", "", "check the arguments after --"
            )
        for nodeid, why in found_b.errors.items():
            reason = because(Why.NOT_COLLECTED_ON, side="B", why=why)
            yield PairedRow(nodeid or self._pair.b.side.label, "failed", reason, broken="B")
        number = 0
        for nodeid in found_b.tests:
            if nodeid not in in_a:
                yield _only_in_b(nodeid, found_a.errors)
                continue
            number += 1
            self._progress(nodeid, number, len(common))
            following = common[number] if number < len(common) else None
            yield self._test(nodeid, following, len(common))
        for nodeid in found_a.tests:
            if nodeid in in_b:
                continue
            if not _error_of(nodeid, found_b.errors):  # those have a row already
                yield PairedRow(nodeid, "gone", because(Why.ONLY_ON, side="A"))

    def _test(self, nodeid: str, following: str | None, tests: int) -> PairedRow:
        """Run one test, even if a worker dies during it."""
        begun = time.perf_counter()
        compared = PairedRun(nodeid, (self._pair.a, self._pair.b), self._options, tests)
        try:
            row = compared.row(following)
            self._deaths = 0
        except WorkerDied as death:
            row = self._died(compared, death)
        return replace(row, spent_s=time.perf_counter() - begun)

    def _died(self, compared: PairedRun, death: WorkerDied) -> PairedRow:
        """The row of a test that ended its worker; a new worker is started.

        Raises:
            AbError: too many tests in a row ended their worker.
        """
        dead = [compared.at]
        name = compared.at.side.name
        reason = because(Why.ON_SIDE, side=name, why=death.reason)
        row = compared.known("error", reason, name)
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            raise AbStoppedError(
                f"{_MOST_DEATHS} tests in a row ended their worker",
                f"the last one was {row.nodeid}: {in_words(reason)}",
                "exclude them with --deselect after --",
            ) from None
        compared.open = [worker for worker in compared.open if worker not in dead]
        try:
            compared.close()
        except WorkerDied:
            dead.append(compared.at)
        for worker in dead:
            self._pair.renew(worker)
        return row


def _only_in_b(nodeid: str, errors: Mapping[str, Reason]) -> PairedRow:
    if why := _error_of(nodeid, errors):
        reason = because(Why.NOT_COLLECTED_ON, side="A", why=why)
        return PairedRow(nodeid, "failed", reason, broken="A")
    return PairedRow(nodeid, "new", because(Why.ONLY_ON, side="B"))


def _error_of(nodeid: str, errors: Mapping[str, Reason]) -> Reason | None:
    """Why the file or folder that contains a test could not be collected."""
    for place, why in errors.items():
        if not place or nodeid == place or nodeid.startswith((f"{place}::", f"{place}/")):
            return why
    return None
