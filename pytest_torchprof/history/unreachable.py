"""Documents of commits that no branch, tag or working tree leads to any more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.history.git import Git
from pytest_torchprof.history.index import IndexedRun, asked

if TYPE_CHECKING:
    from pytest_torchprof.history.stores import Store


class Unreachable(NamedTuple):
    """A run of such a commit; ``known``: the commit itself is still in this clone."""

    run: IndexedRun
    known: bool


class Swept(NamedTuple):
    """What can go, of how many runs; ``others`` are of other repositories and never go."""

    found: list[Unreachable]
    total: int
    others: int


def unreachable(store: Store, here: Path) -> Swept:
    """The runs of this repository whose commits nothing leads to; those without a commit stay.

    Raises:
        HistoryError: there is no repository, or its clone is shallow and lacks commits.
    """
    git = Git(here)
    if git.shallow:
        raise HistoryError(
            "nothing is removed",
            "this clone is shallow, so commits that it lacks may be needed",
            "git fetch --unshallow completes it",
        )
    runs = asked(store, lambda index: index.runs())
    names = set(git.names())
    mine = [run for run in runs if (run.repository or "").partition("//")[0] in names]
    kept = git.reachable()
    gone = [run for run in mine if run.commit is not None and run.commit not in kept]
    known = set(git.known(run.commit for run in gone if run.commit))
    gone.sort(key=lambda run: (run.started, run.name))
    found = [Unreachable(run, run.commit in known) for run in gone]
    return Swept(found, len(runs), len(runs) - len(mine))
