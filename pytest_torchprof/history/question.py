"""Answer questions to a history: choose its runs, order them, and find what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_torchprof.analysis.steps import LEAST_RUNS, change_points
from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.units import alike, plural
from pytest_torchprof.history.git import Git, GitError, Order, main_line, order_of
from pytest_torchprof.history.series import History, Question, RunInfo, Series
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own import NEAR_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_torchprof.core.values import Number
    from pytest_torchprof.history.runs import RunCause
    from pytest_torchprof.history.stores import Store


# ---- What changed in a series: steps of exact metrics, and drifts of times. Pure.

Kind = Literal["step", "drift"]


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
) -> list[Change]:
    """What changed, in order.

    ``values`` are by position of the run, and ``before`` has the positions before each; see
    `history.git.Order`. ``line`` is the line of runs on which drifts are looked for.
    """
    if series.klass == "time":
        return drifts(values, line)
    if series.klass == "never":  # compared with nothing
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


def drifts(values: Mapping[int, Number], line: Sequence[int]) -> list[Change]:
    """Change points along a line of runs."""
    places = [place for place in line if place in values]
    points = change_points([values[place] for place in places])
    return [Change(places[p.at], places[p.at - 1], p.before, p.after, "drift") for p in points]


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


# ---- A question and its answer.


class SeriesAnswer(NamedTuple):
    """One series: its values by position of the run, and what changed in it."""

    series: Series
    values: dict[int, Number]
    changes: list[Change]


class Sides(NamedTuple):
    """The commit that is compared, where it left the other branch, and the commits since."""

    tip: str
    base: str
    since: frozenset[str]
    until: frozenset[str]


class Answer(NamedTuple):
    """The runs in order, and the series; ``skipped`` counts files that are no documents, by kind.

    ``line`` are the positions of runs along the main line. ``series`` leaves out metrics that never
    changed, unless the question is narrow; ``total`` is the number of those that were asked for.
    ``notes`` say what is not known. ``sides``: what was compared, if two branches were.
    ``causes``: see `History`.
    """

    address: str
    order: Order
    line: list[int]
    series: list[SeriesAnswer]
    total: int
    skipped: dict[str, int]
    notes: list[str]
    causes: Mapping[tuple[int, str], Sequence[RunCause]]
    sides: Sides | None = None

    def cause_of(self, change: Change, series: Series) -> str | None:
        """Why it changed, in a line, if the run of the change knows."""
        known = self.causes.get((self.order.runs[change.at].number, series.test), ())
        mine = [one for one in known if series.metric in one.metrics] or known
        return mine[0].headline if mine else None


def answer(store: Store, question: Question, here: Path) -> Answer:
    """The answer for the repository that the folder ``here`` is in.

    Raises:
        HistoryError: the history cannot be read, or the branch is unknown.
    """
    try:
        git, why = Git(here), ""
    except GitError as error:
        git, why = None, str(error)
    history, notes = History(store, question), list[str]()
    runs = _runs_of_branch(_runs_here(history, git, notes), question.branch, git)
    order = _ordered(runs, git, why, notes)
    line = main_line(order)
    series = history.series({run.repository or "" for run in runs})
    found = [
        SeriesAnswer(one, values, changes_in(one, values, order.before, line))
        for one, values in _values(history, series, order, is_narrow=question.narrow)
    ]
    notes += shared_drifts(found, order)
    sources: dict[tuple[str, str], set[str]] = {}
    for one in series:
        sources.setdefault((one.repository, one.test), set()).add(one.source)
    if changed := sum(len(known) > 1 for known in sources.values()):
        what = "1 test was" if changed == 1 else f"{changed:,} tests were"
        notes.append(f"{what} changed: their series begin anew")
    shown, skipped, causes = store.shown, history.skipped, history.causes
    return Answer(shown, order, line, found, len(series), skipped, notes, causes)


def _values(
    history: History, series: Sequence[Series], order: Order, *, is_narrow: bool = True
) -> Iterator[tuple[Series, dict[int, Number]]]:
    """Series with values, by position of the run; those that never changed only if asked for."""
    places = {run.number: place for place, run in enumerate(order.runs)}
    for one in series:
        is_told = is_narrow or one.klass == "time" or not history.is_constant(one)
        if is_told and (values := history.values(one, places)):
            yield one, values


def _runs_here(history: History, git: Git | None, notes: list[str]) -> list[RunInfo]:
    """The runs of this repository, or all if it has none."""
    runs = history.runs
    if git is None:
        return runs
    names = git.names()
    mine = [run for run in runs if run.is_of(names)]
    if not mine and runs:
        named = ", ".join(sorted(names))
        notes.append(f"no run is of this repository ({named}): all are shown")
    elif len(mine) < len(runs):
        notes.append(f"left out: {plural(len(runs) - len(mine), 'run')} of other repositories")
    return mine or runs


def _runs_of_branch(runs: list[RunInfo], branch: str | None, git: Git | None) -> list[RunInfo]:
    """The runs that were made on a branch, or of commits along it."""
    if branch is None:
        return runs
    tip = git.commit_of(branch) if git is not None else None
    commits: Collection[str] = git.first_parents(tip) if git is not None and tip else ()
    found = [run for run in runs if run.branch == branch or run.commit in commits]
    if not found and runs:
        known = sorted({run.branch for run in runs if run.branch})
        raise HistoryError(
            f"no run is of branch {branch}",
            f"the history has {', '.join(known)}" if known else "none has a branch",
            "name one of these" if known else "leave out --branch",
        )
    return found


def _ordered(runs: Sequence[RunInfo], git: Git | None, why: str, notes: list[str]) -> Order:
    """The runs in order; notes say where it is not known."""
    graph = []
    try:
        graph = git.ancestors(run.commit for run in runs if run.commit) if git is not None else []
    except GitError as error:
        git, why = None, str(error)
    is_shallow = git is not None and git.is_shallow
    order = order_of(runs, graph, is_shallow=is_shallow)
    if order.by_clock:
        where = (
            f"git cannot tell ({why})"
            if git is None
            else "this clone is shallow, and git fetch --unshallow completes it"
            if is_shallow
            else "they are not in this repository, and git fetch may bring them"
        )
        what = plural(order.by_clock, "commit")
        notes.append(f"the order of {what} is by time, since their past is unknown: {where}")
    if order.without_commit:
        notes.append(f"{plural(order.without_commit, 'run')} without a commit: ordered by time")
    return order


# ---- Compare a branch with the point where it left another one.


def compare(store: Store, branch: str, question: Question, here: Path) -> Answer:
    """What the branch of the question (what is checked out by default) needs against the merge base
    with ``branch``.

    If it has nothing that ``branch`` lacks, ``branch`` is compared with it: it is the newer one.

    Raises:
        HistoryError: there is no repository, no such branch, or no run on a side.
    """
    git = Git(here)
    sides = _sides(git, branch, question.branch)
    history, notes = History(store, question), list[str]()
    both = sides.since | sides.until
    runs = [run for run in _runs_here(history, git, notes) if run.commit in both]
    order = _ordered(runs, git, "", notes)
    # A changed working tree is of the newer side, too.
    now = [
        at
        for at, run in enumerate(order.runs)
        if run.commit in sides.since or (run.dirty and run.commit == sides.tip)
    ]
    base = sorted({*range(len(order.runs))} - {*now})
    for places, what in ((base, "at or before the merge base"), (now, "since the merge base")):
        if not places:
            raise HistoryError(
                f"nothing to compare with {branch}",
                f"no run {what}, {sides.base[:12]}",
                "run pytest --torchprof --torchprof-history there",
            )
    series = history.series({run.repository or "" for run in runs})
    answers, new, short = [], 0, 0
    for one, values in _values(history, series, order):
        before = [at for at in base if at in values]
        after = [at for at in now if at in values]
        if after and not before:
            new += 1
        elif after and one.klass == "time" and min(len(before), len(after)) < LEAST_RUNS:
            short += 1
        elif after:
            answers.append(SeriesAnswer(one, values, _changes(one, values, before, after)))
    notes += [f"{new:,} series are new since the merge base"] if new else []
    notes += [f"{short:,} series of times have too few runs for an answer"] if short else []
    shown, skipped, causes = store.shown, history.skipped, history.causes
    return Answer(shown, order, [], answers, len(answers), skipped, notes, causes, sides)


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
        shallow = "this clone is shallow" if git.is_shallow else "they have no commit in common"
        step = "git fetch --unshallow completes it" if git.is_shallow else "name another branch"
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
