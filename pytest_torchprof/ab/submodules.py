"""Fill the submodules of a worktree from local data, since git leaves their folders empty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.ab.worktree import GitError, Repository, environment, git

if TYPE_CHECKING:
    from pytest_torchprof.ab.cleanup import Cleanup

_LINK = "160000"  # git's mode of a submodule


@dataclass(frozen=True)
class _Submodule:
    path: str
    commit: str


def fill(repo: Repository, sha: str, tree: Path, cleanup: Cleanup) -> tuple[str, ...]:
    """Check out a commit's submodules into its worktree; return notes on those not available.

    They come from the user's own checkouts and from ``.git/modules``, never from the network.
    """
    return tuple(_fill(repo.top, repo.common, sha, tree, cleanup))


def _fill(top: Path, store: Path, sha: str, tree: Path, cleanup: Cleanup) -> Iterator[str]:
    """Submodules may be checked out below ``top``; ``store`` is the git folder of their parent."""
    for module in _submodules(store, sha):
        place = tree / module.path
        inner = _repository(top, store, module)
        if inner is None:
            yield (
                f"submodule {module.path} is empty in A: its commit {module.commit[:9]} is not"
                " here (`git submodule update --init`, or `git fetch` in it)"
            )
            continue
        _write(inner, module.commit, place, cleanup)
        notes = _fill(top / module.path, inner, module.commit, place, cleanup)
        yield from (note.replace("submodule ", f"submodule {module.path}/", 1) for note in notes)


def _submodules(store: Path, sha: str) -> list[_Submodule]:
    text = git(store, f"--git-dir={store}", "ls-tree", "-r", "-z", "--full-tree", sha)
    found = []
    for entry in text.split("\0"):
        mode, _, rest = entry.partition(" ")
        if mode == _LINK:
            about, _, path = rest.partition("\t")
            found.append(_Submodule(path, about.split(" ")[1]))
    return found


def _repository(top: Path, store: Path, module: _Submodule) -> Path | None:
    """The git folder with the submodule's commit: its checkout's, or one that git keeps."""
    kept = store / "modules"
    places = [top / module.path / ".git", kept / module.path]
    if kept.is_dir():  # a moved module keeps its original name
        for folder, folders, files in os.walk(kept):
            if "HEAD" in files:
                places.append(Path(folder))
                folders[:] = [name for name in folders if name == "modules"]
    for place in dict.fromkeys(places):
        try:
            found = place
            if place.is_file():  # "gitdir: …"
                git_dir = git(place.parent, "rev-parse", "--absolute-git-dir").removesuffix("\n")
                found = Path(git_dir)
            if found.is_dir():
                wanted = f"{module.commit}^{{commit}}"
                git(found, f"--git-dir={found}", "cat-file", "-e", wanted)
                return found
        except GitError:
            continue
    return None


def _write(store: Path, commit: str, place: Path, cleanup: Cleanup) -> None:
    """Write the commit's files like a checkout, but without a worktree of the submodule."""
    place.mkdir(parents=True, exist_ok=True)
    index = cleanup.folder / f"index-{commit}"
    env = environment(GIT_INDEX_FILE=str(index))
    there = (f"--git-dir={store}", f"--work-tree={place}")
    git(place, *there, "read-tree", commit, cleanup=cleanup, env=env)
    git(place, *there, "checkout-index", "--all", "--force", cleanup=cleanup, env=env)
    index.unlink()
