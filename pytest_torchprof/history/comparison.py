"""Compare a branch with the point where it left another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.analysis.change_points import LEAST_RUNS
from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.units import alike
from pytest_torchprof.history.changes import Change, drifts, tolerance_of
from pytest_torchprof.history.git import Git
from pytest_torchprof.history.index import Index, Series, asked
from pytest_torchprof.history.question import Asking, Question, SeriesAnswer

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number
    from pytest_torchprof.history.ancestry import Order
    from pytest_torchprof.history.stores import Store


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
