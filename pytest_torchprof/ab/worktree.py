"""Check out a git revision into a folder, and explain when git cannot.

Nothing is fetched, no hook runs, and no other worktree is touched. `Cleanup` removes what is
created here.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.core.errors import AbError, near

if TYPE_CHECKING:
    from pytest_torchprof.ab.cleanup import Cleanup

# In a hook, git sets these to the repository it works on, which may not be the one we ask about.
# Its configuration variables stay: CI sets safe.directory in them.
_ABOUT_ANOTHER = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_QUARANTINE_PATH",
    "GIT_INTERNAL_SUPER_PREFIX",
)
_QUIETLY = (
    "-c",
    f"core.hooksPath={os.devnull}",
    "-c",
    "core.fsmonitor=false",  # a daemon that would outlive us
    "-c",
    "submodule.recurse=false",
    "-c",
    "gc.auto=0",
)


class GitError(AbError):
    """Git failed; the text is git's own."""


@dataclass(frozen=True)
class Repository:
    """A working tree and its repository: their tops, as real paths."""

    top: Path
    common: Path
    shallow: bool


@dataclass(frozen=True)
class Commit:
    """A revision: the user's name for it, and the commit."""

    sha: str
    label: str


def environment(**more: str) -> dict[str, str]:
    """An environment in which git works only on the given folder."""
    kept = {name: value for name, value in os.environ.items() if name not in _ABOUT_ANOTHER}
    return kept | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"} | more


def git(
    folder: Path, *words: str, cleanup: Cleanup | None = None, env: dict[str, str] | None = None
) -> str:
    """Git's output in a folder; names in it may hold any bytes. Raises `GitError`.

    Pass ``cleanup`` to a git that writes files into its folder.
    """
    try:
        done = subprocess.run(  # noqa: S603 - git, with the user's revision as one word
            ["git", *_QUIETLY, *words],  # noqa: S607 - the git that the user has
            cwd=folder,
            env=env or environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            pass_fds=cleanup.held if cleanup else (),
        )
    except FileNotFoundError:
        raise GitError(
            "git was not found", next_step="install it, or pass folders with --a and --b"
        ) from None
    if done.returncode:
        output = done.stderr.decode("utf-8", "replace").strip().splitlines()
        fatal = [line for line in output if line.startswith(("fatal:", "error:"))] or output
        raise GitError(
            f"git {words[0]} failed", fatal[0] if fatal else f"exit code {done.returncode}"
        )
    return os.fsdecode(done.stdout)


def repository(folder: Path) -> Repository:
    """The repository that a folder is in. Raises `AbError` if it is in none, or in a bare one."""
    folders = "pass the two folders with --a and --b"
    try:
        answers = git(
            folder,
            "rev-parse",
            "--is-inside-work-tree",
            "--is-bare-repository",
            "--is-shallow-repository",
        ).split()
    except GitError as error:
        if "not a git repository" in error.found:
            raise AbError(
                f"{folder}: not in a git repository", next_step=f"change into one, or {folders}"
            ) from None
        raise
    if answers[0] != "true":
        what = "is in a bare repository" if answers[1] == "true" else "is inside .git"
        raise AbError(
            f"{folder}: {what}",
            "there is no working tree to compare with",
            f"use one, or {folders}",
        )
    top = Path(git(folder, "rev-parse", "--show-toplevel").removesuffix("\n"))
    common = git(folder, "rev-parse", "--git-common-dir").removesuffix("\n")
    return Repository(top.resolve(), (folder / common).resolve(), answers[2] == "true")


def resolve(repo: Repository, ref: str) -> Commit:
    """The commit that a revision names. Raises `AbError` with the likely intended one."""
    try:
        if not ref or ref.startswith("-"):
            raise GitError("not a revision")  # noqa: TRY301 - reported like any other unknown one
        sha = git(repo.top, "rev-parse", "--quiet", "--verify", f"{ref}^{{commit}}").strip()
    except GitError:
        raise _unknown(repo, ref) from None
    short = git(repo.top, "rev-parse", "--short", sha).strip()
    return Commit(sha, short if sha.startswith(ref) else f"{ref} ({short})")


def _unknown(repo: Repository, ref: str) -> AbError:
    what = f"{ref!r}: no such revision in {repo.top}"
    try:
        git(repo.top, "rev-parse", "--quiet", "--verify", "HEAD")
    except GitError:
        return AbError(what, "there is no commit yet", "commit first")
    if ref and Path(ref.partition("::")[0]).exists():
        return AbError(what, "it is a path", f"arguments for pytest go after --: REF -- {ref}")
    if repo.shallow:
        return AbError(
            what,
            "the clone is shallow and holds only the latest commits",
            "fetch it (`git fetch --unshallow`; in GitHub Actions `fetch-depth: 0`)",
        )
    names = git(
        repo.top,
        "for-each-ref",
        "--format=%(refname:short)",
        "--sort=-creatordate",
        "--count=1000",
        "refs/heads",
        "refs/tags",
        "refs/remotes",
    ).split()
    return AbError(what, near(ref, names, listed=True), "git fetch may bring it")


def check_out(repo: Repository, commit: Commit, cleanup: Cleanup) -> Path:
    """Check a commit out as a worktree in the folder of ``cleanup``; return its top.

    It has the name of the user's own top folder, because that may itself be a package.
    """
    cleanup.worktrees_of(repo.common)
    place = cleanup.folder / (repo.top.name or "tree")
    git(repo.top, "worktree", "add", "--detach", "--", str(place), commit.sha, cleanup=cleanup)
    return place


def state(repo: Repository) -> tuple[str, tuple[str, ...]]:
    """The working tree's label, and notes on its submodules."""
    text = git(repo.top, "status", "--porcelain=v2", "-z", "--untracked-files=normal")
    changes = [entry for entry in text.split("\0") if entry[:2] in {"1 ", "2 ", "u ", "? "}]
    notes = []
    for entry in changes:
        fields = entry.split(" ", 8)
        if entry[0] != "1" or not fields[2].startswith("S"):
            continue
        commit, modified, untracked = (letter != "." for letter in fields[2][1:])
        if modified or untracked:
            notes.append(f"submodule {fields[8]} has uncommitted changes; they are part of B")
        elif commit:
            notes.append(f"submodule {fields[8]} is not at the recorded commit; B has it as it is")
    label = "working tree, uncommitted changes" if changes else "working tree"
    return label, tuple(notes)
