"""Answer questions to a history: choose its runs, order them, and find what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from pytest_torchprof.analysis.steps import LEAST_RUNS, ChangePoint, change_points
from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import alike, plural
from pytest_torchprof.history.git import (
    Commits,
    Documented,
    Git,
    GitError,
    Order,
    commits_between,
    main_line,
    order_of,
)
from pytest_torchprof.history.index import Index, IndexedRun, Series, asked
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own import NEAR_TOLERANCE

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Number
    from pytest_torchprof.history.stores import Store


# ---- What changed in a series: steps of exact metrics, and drifts of times. Pure.

Kind = Literal["step", "drift"]
Find = Callable[[Sequence[float]], list[ChangePoint]]


class Change(NamedTuple):
    """A value that differs from the one before it; ``at`` and ``since`` are positions of runs.

    Of a drift, both are medians, of the runs from ``at`` on and of those before it.
    """

    at: int
    since: int
    before: Number
    value: Number
    kind: Kind


def changes_in(
    series: Series,
    values: Mapping[int, Number],
    before: Sequence[tuple[int, ...]],
    line: Sequence[int],
    find: Find = change_points,
) -> list[Change]:
    """What changed, in order; ``find`` finds change points.

    ``values`` are by position of the run, and ``before`` has the positions before each; see
    `history.git.Order`. ``line`` is the line of runs on which drifts are looked for.
    """
    if series.klass == "time":
        return drifts(values, line, find)
    if series.klass == "never":  # compared with nothing
        return []
    if series.low == series.high:
        return []
    return steps(values, before, tolerance_of(series))


def tolerance_of(series: Series) -> tuple[float, float]:
    """How far a value may be from the one before: relative to it, and in its unit.

    These are the defaults: a history has no ini file of each of its runs.
    """
    name = series.metric.partition("[")[0]
    if name in METRICS:
        return METRICS[name].tolerance, METRICS[name].margin
    return (NEAR_TOLERANCE if series.klass == "near" else 0.0), 0.0


def steps(
    values: Mapping[int, Number],
    before: Sequence[tuple[int, ...]],
    tolerance: tuple[float, float] = (0.0, 0.0),
) -> list[Change]:
    """Values that differ from those of all nearest runs before.

    At a merge, the value of one side is no step: it was one where that side got it.

    >>> steps({0: 5, 1: 5, 2: 7}, [(), (0,), (1,)])
    [Change(at=2, since=1, before=5, value=7, kind='step')]
    """
    found = []
    whole = len(values) == len(before)
    nearest: dict[int, tuple[int, ...]] = {}
    for at, earlier in enumerate(before):
        places = earlier
        if not whole:
            places = ()
            for place in earlier:
                places += (place,) if place in values else nearest[place]
            if at not in values:
                nearest[at] = tuple(dict.fromkeys(places))
                continue
        value = values[at]
        if not places or value == values[places[0]]:
            continue
        if not any(alike(values[place], value, *tolerance) for place in places):
            found.append(Change(at, places[0], values[places[0]], value, "step"))
    return found


def drifts(
    values: Mapping[int, Number], line: Sequence[int], find: Find = change_points
) -> list[Change]:
    """Change points along a line of runs."""
    places = [place for place in line if place in values]
    points = find([values[place] for place in places])
    return [Change(places[p.at], places[p.at - 1], p.before, p.after, "drift") for p in points]


# ---- Change points of series, which are found only once for the same values.

#: Of another number, answers are found anew.
_VERSION = 1


class Finder:
    """Finds change points, or remembers them: they take longer than all else of a question."""

    def __init__(self, index: Index) -> None:
        self._index, self._known = index, index.drifts()
        self._new: dict[int, tuple[str, str]] = {}

    def of(self, series: int) -> Callable[[Sequence[float]], list[ChangePoint]]:
        """The function that finds those of this series."""

        def find(values: Sequence[float]) -> list[ChangePoint]:
            content = np.asarray(values, float).tobytes()
            key = f"{_VERSION} {hashlib.sha256(content).hexdigest()}"
            known, points = self._known.get(series, ("", ""))
            if known == key:
                return msgspec.json.decode(points, type=list[ChangePoint])
            found = change_points(values)
            self._new[series] = key, msgspec.json.encode(found).decode()
            return found

        return find

    def keep(self) -> None:
        """Remember what was found."""
        if self._new:
            self._index.keep_drifts(self._new)


# ---- Drifts of many tests at once: the machine may have changed, not the code. Pure.

#: Drifts this many runs apart may have one cause.
_CLOSE = 10
#: So many tests, and at least half of those that have times there.
_LEAST = 3


def shared_drifts(series: Sequence[SeriesAnswer], order: Order) -> list[str]:
    """A line for each machine and moment at which most tests drift in one direction."""
    by_machine: dict[str, list[SeriesAnswer]] = {}
    for one in series:
        if one.series.klass == "time":
            by_machine.setdefault(one.series.machine, []).append(one)
    lines = []
    for machine, answers in sorted(by_machine.items()):
        tests = {one.series.test for one in answers}
        for slower, what in ((True, "more"), (False, "less")):
            found = sorted(
                (change.at, one.series.test)
                for one in answers
                for change in one.changes
                if (change.value > change.before) == slower
            )
            for group in _close(found):
                drifting = {test for _, test in group}
                if len(drifting) >= max(_LEAST, len(tests) / 2):
                    run = order.runs[group[0][0]]
                    at = run.commit[:10] if run.commit else run.started[:10]
                    lines.append(
                        f"{len(drifting)} of {len(tests)} tests drift to {what} at about {at} on "
                        f"{machine}: the machine may have changed, not the code"
                    )
    return lines


def _close(found: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Neighbors by position."""
    groups: list[list[tuple[int, str]]] = []
    for one in found:
        if groups and one[0] - groups[-1][-1][0] <= _CLOSE:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


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


# ---- Compare a branch with the point where it left another one.


class Sides(NamedTuple):
    """The commit that is compared, where it left the other branch, and the commits since."""

    tip: str
    base: str
    since: frozenset[str]
    until: frozenset[str]


class Comparison(NamedTuple):
    """What differs between the two sides, as changes.

    ``new`` counts series without a value at the merge base, ``short`` series of times with too few
    runs on a side for an answer.
    """

    sides: Sides
    order: Order
    series: list[SeriesAnswer]
    compared: int
    new: int
    short: int
    skipped: dict[str, int]
    notes: list[str]


def compare(store: Store, branch: str, question: Question, here: Path) -> Comparison:
    """What the branch of the question (what is checked out by default) needs against the merge base
    with ``branch``.

    If it has nothing that ``branch`` lacks, ``branch`` is compared with it: it is the newer one.

    Raises:
        HistoryError: there is no repository, no such branch, or no run on a side.
    """
    git = Git(here)
    sides = _sides(git, branch, question.branch)

    def made(index: Index) -> Comparison:
        asking = Asking(index, git, "")
        mine = sides.since | sides.until
        runs = [run for run in asking.chosen(None) if run.commit in mine]
        order = asking.ordered(runs)
        now = [at for at, run in enumerate(order.runs) if _is_now(run.commit, run.dirty, sides)]
        base = [at for at in range(len(order.runs)) if at not in set(now)]
        _require(sides, now, base, branch)
        series = asking.matching(question, runs)
        places = {run.id: place for place, run in enumerate(order.runs)}
        answers, compared, new, short = [], 0, 0, 0
        for one, values in asking.values(series, places, narrow=True):
            before = [at for at in base if at in values]
            after = [at for at in now if at in values]
            if not after:
                continue
            if not before:
                new += 1
                continue
            if one.klass == "time" and min(len(before), len(after)) < LEAST_RUNS:
                short += 1
                continue
            compared += 1
            found = _changes(one, values, before, after)
            answers.append(SeriesAnswer(one, values, found))
        skipped = index.skipped()
        return Comparison(sides, order, answers, compared, new, short, skipped, asking.notes)

    return asked(store, made)


def _is_now(commit: str | None, dirty: bool, sides: Sides) -> bool:
    """Whether a run is of the newer side: of a commit since, or of the changed working tree."""
    return commit in sides.since or (dirty and commit == sides.tip)


def _require(sides: Sides, now: Sequence[int], base: Sequence[int], branch: str) -> None:
    for places, what in ((base, "at or before the merge base"), (now, "since the merge base")):
        if not places:
            raise HistoryError(
                f"nothing to compare with {branch}",
                f"no run {what}, {sides.base[:12]}",
                "run pytest --torchprof --torchprof-history there",
            )


def _sides(git: Git, branch: str, now: str | None) -> Sides:
    tips = []
    for name in (now or "HEAD", branch):
        tip = git.commit_of(name)
        if tip is None:
            raise HistoryError(
                f"no branch {name}", "git does not know it", "git fetch may bring it"
            )
        tips.append(tip)
    tip, other = tips
    base = git.merge_base_of(tip, other)
    if base is None:
        shallow = "this clone is shallow" if git.shallow else "they have no commit in common"
        step = "git fetch --unshallow completes it" if git.shallow else "name another branch"
        raise HistoryError(f"no merge base with {branch}", shallow, step)
    if base == tip != other:
        tip = other
    until = frozenset(commit for commit, _ in git.ancestors([base]))
    since = frozenset(commit for commit, _ in git.ancestors([tip])) - until
    return Sides(tip, base, since, until)


def _changes(
    series: Series, values: dict[int, Number], before: Sequence[int], after: Sequence[int]
) -> list[Change]:
    """The whole change of an exact metric; of a time, the change points since the merge base."""
    if series.klass == "never":
        return []
    if series.klass == "time":
        return [change for change in drifts(values, [*before, *after]) if change.at in after]
    last, now = before[-1], after[-1]
    if alike(values[last], values[now], *tolerance_of(series)):
        return []
    return [Change(now, last, values[last], values[now], "step")]
