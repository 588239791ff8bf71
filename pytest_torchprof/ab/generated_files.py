"""Files that a build wrote into the checkout and that no revision contains."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.ab.worktree import git
from pytest_torchprof.core.reasons import Reason, Why, because

if TYPE_CHECKING:
    from pytest_torchprof.ab.worktree import Repository

_LIMIT_BYTES = 2**20
_NAMED = 3
_MISSING = re.compile(
    r"No module named '(?P<module>[\w.]+)'"
    r"|cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<of>[\w.]+)'"
)
_LAYOUTS = ("", "src/", "*/", "*/src/", "*/*/")  # where a tree keeps packages


def bring(repo: Repository, tree: Path) -> tuple[str, ...]:
    """Copy Python files that git ignores, next to tracked ones, into a worktree; return a note.

    One example is the ``_version.py`` that a build writes, without which a package does not import.
    Compiled modules are not copied: they are code under test, of one revision. Neither are folders
    that git ignores as a whole, such as environments and builds.
    """
    text = git(
        repo.top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"
    )
    brought = []
    for name in sorted(text.split("\0")):
        source, place = repo.top / name, tree / name
        if not name.endswith(".py") or source.is_symlink() or not source.is_file():
            continue
        if place.parent.is_dir() and not place.exists() and source.stat().st_size <= _LIMIT_BYTES:
            shutil.copy2(source, place)
            brought.append(name)
    if not brought:
        return ()
    more = f" and {len(brought) - _NAMED} more" if len(brought) > _NAMED else ""
    names = ", ".join(brought[:_NAMED])
    return (f"A uses {names}{more} from the working tree, because git ignores these files",)


def unbuilt(text: str, root: Path, others: Sequence[Path]) -> Reason | None:
    """Why an import failed in this side's tree, if only the other tree has built the module.

    ``text`` is Python's error. None if it has another cause.
    """
    for found in _MISSING.finditer(text):
        name = found["module"] or f"{found['of']}.{found['name']}"
        for other in others:
            if any(_compiled(other, name)) and not any(_compiled(root, name)):
                return because(Why.BUILT_ELSEWHERE, module=name, tree=str(other))
    return None


def _compiled(tree: Path, name: str) -> Iterator[Path]:
    path = name.replace(".", "/")
    for layout in _LAYOUTS:
        for suffix in ("so", "pyd"):
            yield from tree.glob(f"{layout}{path}.{suffix}")
            yield from tree.glob(f"{layout}{path}.*.{suffix}")
