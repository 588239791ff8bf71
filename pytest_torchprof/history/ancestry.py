"""The order of runs, by the ancestry of their commits: which one came before which.

Clocks decide only among runs of one commit, and where ancestry is unknown, which is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.history.index import IndexedRun

#: Lines that are followed from a merge; more than two are rare.
_LINES = 4


class Commits(Frozen, frozen=True):
    """Commits with runs, each after those before it that have any; all that git says of them.

    ``before`` maps each to the nearest ones, the line of first parents first. ``open_ended`` are
    those with nothing before them although they have parents: the parents are unknown here.
    """

    before: dict[str, tuple[str, ...]]
    open_ended: tuple[str, ...] = ()


class Documented(NamedTuple):
    """What a document knows of its commit's ancestors; None where it does not."""

    parents: tuple[str, ...] | None
    merge_base: str | None

    @property
    def ancestors(self) -> tuple[str, ...]:
        """All of them, the parents first."""
        return tuple(dict.fromkeys([*(self.parents or ()), *filter(None, [self.merge_base])]))


_NOTHING = Documented(None, None)


class Order(NamedTuple):
    """Runs in order; ``before`` has for each the positions of the nearest ones before it.

    ``by_clock`` counts runs whose place is that of their clock, as ancestry is unknown;
    ``without_commit`` those that have none.
    """

    runs: list[IndexedRun]
    before: list[tuple[int, ...]]
    by_clock: int
    without_commit: int


def commits_between(
    wanted: Iterable[str],
    graph: Sequence[tuple[str, Sequence[str]]],
    documented: Mapping[str, Documented],
    boundary: Iterable[str] = (),
) -> Commits:
    """Reduce the graph of commits to those that are wanted.

    ``graph`` has commits after their parents, with their parents. ``documented`` is what documents
    know of theirs, used where the graph lacks the commit or its parents (``boundary``).
    """
    keep, cut = set(wanted), set(boundary)
    full = {commit: tuple(parents) for commit, parents in graph if commit not in cut}
    unknown = [
        *(commit for commit, _ in graph if commit in cut),
        *sorted(keep - dict(graph).keys()),
    ]
    loose = {commit: documented.get(commit, _NOTHING) for commit in unknown}
    roots = {commit for commit, parents in full.items() if not parents}
    roots |= {commit for commit, known in loose.items() if known.parents == ()}
    lines = list(full.items())
    if loose:
        lines = _sorted([*((c, known.ancestors) for c, known in loose.items()), *lines])
    near: dict[str, tuple[str, ...]] = {}
    ended: dict[str, bool] = {}
    before: dict[str, tuple[str, ...]] = {}
    open_ended = []
    for commit, parents in lines:
        found: dict[str, None] = {}
        missing = not parents and commit not in roots
        for parent in parents:
            if found and commit in loose and parent == loose[commit].merge_base:
                continue  # older than what the parents lead to
            if parent in near:
                found |= dict.fromkeys(near[parent])
                missing = missing or (not near[parent] and ended[parent])
            else:
                missing = True
        nearest = tuple(found)[:_LINES]
        ended[commit] = missing
        near[commit] = (commit,) if commit in keep else nearest
        if commit in keep:
            before[commit] = nearest
            if missing and not nearest:
                open_ended.append(commit)
    return Commits(before, tuple(open_ended))


def _sorted(lines: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Each commit after its parents, otherwise as given; a circle is broken."""
    parents_of = dict(lines)
    done: dict[str, tuple[str, ...]] = {}
    begun: set[str] = set()
    for first, _ in lines:
        stack = [first]
        while stack:
            commit = stack[-1]
            parents = parents_of[commit]
            todo = [p for p in parents if p in parents_of and p not in done and p not in begun]
            if commit in done or (commit in begun and not todo):
                done.setdefault(commit, parents)
                stack.pop()
            else:
                begun.add(commit)
                stack += reversed(todo)
    return list(done.items())


def order_of(runs: Sequence[IndexedRun], commits: Commits) -> Order:
    """The runs in order.

    A run of a changed working tree comes after its commit, and before none of another commit. If
    all runs are of changed trees, they count as those of their commits.
    """
    dirty = any(not run.dirty for run in runs)
    by_commit: dict[str | None, list[IndexedRun]] = {}
    for run in sorted(runs, key=lambda run: (dirty and run.dirty, run.started, run.name)):
        by_commit.setdefault(run.commit, []).append(run)
    ordered: list[IndexedRun] = []
    before: list[tuple[int, ...]] = []
    last: dict[str, int] = {}  # of each commit, the last clean run
    on_branch: dict[str | None, list[tuple[str, int]]] = {}
    open_ended, by_clock = set(commits.open_ended), 0
    for commit in _spread(commits, by_commit):
        earlier = _places(commit, commits.before, last)
        if not earlier and commit in open_ended and ordered:
            first = by_commit[commit][0]
            candidates = [p for p in on_branch.get(first.branch, ()) if p[0] < first.started]
            earlier = (max(candidates)[1],) if candidates else ()
            by_clock += 1
        for run in by_commit[commit]:
            ordered.append(run)
            before.append(earlier)
            place = len(ordered) - 1
            earlier = (place,)
            if not (dirty and run.dirty):
                last[commit] = place
                on_branch.setdefault(run.branch, []).append((run.started, place))
    alone = by_commit.get(None, [])
    for number, run in enumerate(alone):
        ordered.append(run)
        before.append((len(ordered) - 2,) if number else ())
    return Order(ordered, before, by_clock, len(alone))


def _spread(commits: Commits, by_commit: Mapping[str | None, Sequence[IndexedRun]]) -> list[str]:
    """The commits in order; those without a known past where their clock puts them."""
    open_ended = set(commits.open_ended)
    if len(open_ended) < 2:
        return [commit for commit in commits.before if commit in by_commit]
    parts: dict[str, list[str]] = {}
    part_of: dict[str, str] = {}
    for commit, earlier in commits.before.items():
        if commit in by_commit:
            part = part_of[commit] = part_of[earlier[0]] if earlier else commit
            parts.setdefault(part, []).append(commit)
    clocks = {part: by_commit[part][0].started for part in parts}
    return [c for part in sorted(parts, key=lambda part: clocks[part]) for c in parts[part]]


def _places(
    commit: str, before: Mapping[str, tuple[str, ...]], last: Mapping[str, int]
) -> tuple[int, ...]:
    """The last clean runs nearest before a commit."""
    found: dict[int, None] = {}
    todo, seen = list(before[commit]), set[str]()
    while todo and len(found) < _LINES:
        one = todo.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one in last:
            found[last[one]] = None
        else:
            todo += before.get(one, ())
    return tuple(found)


def main_line(order: Order) -> list[int]:
    """The positions along one line: from the last clean run back, by first parents.

    The line ends in the last run on the branch with the most runs. Without any before it, all runs
    are the line.
    """
    any_clean = any(not run.dirty for run in order.runs)
    usable = [at for at, run in enumerate(order.runs) if not (any_clean and run.dirty)]
    counts: dict[str | None, int] = {}
    for at in usable:
        branch = order.runs[at].branch
        counts[branch] = counts.get(branch, 0) + 1
    if not counts:
        return []
    main = max(counts, key=lambda branch: counts[branch])
    place: int | None = max(at for at in usable if order.runs[at].branch == main)
    line = []
    while place is not None:
        line.append(place)
        place = next(iter(order.before[place]), None)
    return line[::-1]
