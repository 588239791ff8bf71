"""Answer questions to a history: choose its runs, order them, and find what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import plural
from pytest_torchprof.history.ancestry import (
    Commits,
    Documented,
    Order,
    commits_between,
    main_line,
    order_of,
)
from pytest_torchprof.history.changes import Change, changes_in
from pytest_torchprof.history.finder import Finder
from pytest_torchprof.history.git import Git, GitError
from pytest_torchprof.history.index import Index, IndexedRun, Series, asked
from pytest_torchprof.history.shared_drifts import shared_drifts

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number
    from pytest_torchprof.history.stores import Store


class Question(Frozen, frozen=True):
    """What to look at: tests and metrics by name or glob, and a branch; all by default."""

    test: str | None = None
    metric: str | None = None
    branch: str | None = None

    @property
    def narrow(self) -> bool:
        """Whether it asks about some series only."""
        return self.test is not None or self.metric is not None


class SeriesAnswer(NamedTuple):
    """One series: its values by position of the run, and what changed in it.

    ``values`` is empty where it was not needed: for metrics that never changed.
    """

    series: Series
    values: dict[int, Number]
    changes: list[Change]


class Answer(NamedTuple):
    """The runs in order, and the series; ``skipped`` counts files that are no documents, by kind.

    ``line`` are the positions of runs along the main line. ``total``: the number of series that
    were asked for. ``notes`` say what is not known.
    """

    order: Order
    line: list[int]
    series: list[SeriesAnswer]
    total: int
    skipped: dict[str, int]
    notes: list[str]


def answer(store: Store, question: Question, here: Path) -> Answer:
    """The answer for the repository that the folder ``here`` is in.

    Raises:
        HistoryError: the history cannot be read, or the branch is unknown.
    """
    git, why = repository_at(here)
    return asked(store, lambda index: Asking(index, git, why).answer(question))


def repository_at(here: Path) -> tuple[Git | None, str]:
    """Git in this folder; or None, and why."""
    try:
        return Git(here), ""
    except GitError as error:
        return None, str(error)


class Asking:
    """One question, to an index that is up to date."""

    def __init__(self, index: Index, git: Git | None, why: str) -> None:
        self._index, self._git = index, git
        self.notes: list[str] = []
        self._why = why

    def answer(self, question: Question) -> Answer:
        """See `answer`."""
        runs = self.chosen(question.branch)
        order = self.ordered(runs)
        line = main_line(order)
        places = {run.id: place for place, run in enumerate(order.runs)}
        series = self.matching(question, runs)
        finder = Finder(self._index)
        found = [
            SeriesAnswer(
                one, values, changes_in(one, values, order.before, line, finder.of(one.id))
            )
            for one, values in self.values(series, places, narrow=question.narrow)
        ]
        finder.keep()
        self.notes += shared_drifts(found, order)
        if changed := _changed_tests(series):
            what = "1 test was" if changed == 1 else f"{changed:,} tests were"
            self.notes.append(f"{what} changed: their series begin anew")
        return Answer(order, line, found, len(series), self._index.skipped(), self.notes)

    def matching(self, question: Question, runs: Sequence[IndexedRun]) -> list[Series]:
        """The series that are asked for, of the repositories of these runs."""
        wanted = {run.repository or "" for run in runs}
        found = self._index.series(question.test, question.metric)
        return [one for one in found if one.repository in wanted]

    def values(
        self, series: Sequence[Series], places: dict[int, int], *, narrow: bool
    ) -> Iterator[tuple[Series, dict[int, Number]]]:
        """The values of series by position of the run, where there are any.

        Without ``narrow``, metrics that never changed are passed over.
        """
        for one in series:
            if narrow or one.klass == "time" or one.low < one.high:
                pairs = self._index.values(one.id)
                mine = {places[run]: number for run, number in pairs if run in places}
                if mine:
                    yield one, mine

    # ---------------------------------------------------------------- which runs

    def chosen(self, branch: str | None) -> list[IndexedRun]:
        """The runs of this repository, or of all if it has none; those of a branch."""
        runs = self._index.runs()
        if self._git is not None:
            names = set(self._git.names())
            mine = [r for r in runs if (r.repository or "").partition("//")[0] in names]
            if not mine and runs:
                self.notes.append(
                    f"no run is of this repository ({', '.join(sorted(names))}): all are shown"
                )
            elif len(mine) < len(runs):
                left = plural(len(runs) - len(mine), "run")
                self.notes.append(f"left out: {left} of other repositories")
            runs = mine or runs
        if branch is None:
            return runs
        commits = self._line_of(branch)
        found = [run for run in runs if run.branch == branch or run.commit in commits]
        if not found and runs:
            known = sorted({run.branch for run in runs if run.branch})
            raise HistoryError(
                f"no run is of branch {branch}",
                f"the history has {', '.join(known)}" if known else "none has a branch",
                "name one of these" if known else "leave out --branch",
            )
        return found

    def _line_of(self, branch: str) -> Collection[str]:
        """The commits along a branch, as far as they are known here."""
        if self._git is None or (tip := self._git.commit_of(branch)) is None:
            return ()
        return self._git.first_parents(tip)

    # ---------------------------------------------------------------- their order

    def ordered(self, runs: Sequence[IndexedRun]) -> Order:
        """The runs in order; notes say where it is not known."""
        commits = sorted({run.commit for run in runs if run.commit})
        order = order_of(runs, self._commits(runs, commits))
        if order.by_clock:
            what = plural(order.by_clock, "commit")
            where = (
                f"git cannot tell ({self._why})"
                if self._git is None
                else "this clone is shallow, and git fetch --unshallow completes it"
                if self._git.shallow
                else "they are not in this repository, and git fetch may bring them"
            )
            self.notes.append(
                f"the order of {what} is by time, since their past is unknown: {where}"
            )
        if order.without_commit:
            what = plural(order.without_commit, "run")
            self.notes.append(f"{what} without a commit: ordered by time")
        return order

    def _commits(self, runs: Sequence[IndexedRun], commits: list[str]) -> Commits:
        documented = {
            run.commit: Documented(
                run.parents, run.merge_base if run.merge_base != run.commit else None
            )
            for run in runs
            if run.commit
        }
        git = self._git
        try:
            known = git.known(commits) if git is not None else []
            boundary = git.boundary() if git is not None and git.shallow else set()
        except GitError as error:
            self._why, git, known, boundary = str(error), None, [], set()

        def made() -> str:
            graph = git.ancestors(known) if git is not None else []
            found = commits_between(commits, graph, documented, boundary)
            return msgspec.json.encode(found).decode()

        text = self._index.ordered(_key(commits, known, sorted(boundary), documented), made)
        return msgspec.json.decode(text, type=Commits)


def _changed_tests(series: Sequence[Series]) -> int:
    """How many tests have had several sources."""
    sources: dict[tuple[str, str], set[str]] = {}
    for one in series:
        sources.setdefault((one.repository, one.test), set()).add(one.source)
    return sum(len(known) > 1 for known in sources.values())


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
