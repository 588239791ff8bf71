"""What git knows: of the commit that is measured, and of the order of commits.

Git is asked with a time limit, and writes nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.structs import Frozen

#: For a command, in seconds; listing a million commits takes about ten.
_LIMIT_S = 30.0
#: Variables that make git work on another repository than that of the folder.
_ABOUT_ANOTHER = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_NAMESPACE",
    }
)
#: An address of a remote: ``https://user@host/path.git``, or ``user@host:path``.
_ADDRESS = re.compile(r"(?:[a-z+]+://)?(?:[^/@]*@)?([^/:]+)(?::\d+(?=/))?[:/](.+)", re.IGNORECASE)
#: Names of main branches, where neither CI nor the remote tells.
_MAIN = ("main", "master", "trunk", "develop")
_HASH = re.compile(r"[0-9a-f]{40,64}")


class GitError(HistoryError):
    """Git is not there, does not know the folder, or does not answer in time."""


class Commit(Frozen, frozen=True):
    """The commit of a working tree; see `history.document.Run`."""

    repository: str | None
    commit: str | None
    parents: list[str] | None
    merge_base: str | None
    branch: str | None
    dirty: bool | None


NO_COMMIT = Commit(None, None, None, None, None, None)


class Git:
    """Git in the repository that a folder is in.

    Raises:
        GitError: there is no git, or no repository.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        top, common, shallow = self._ask(
            "rev-parse", "--show-toplevel", "--git-common-dir", "--is-shallow-repository"
        ).splitlines()
        self.top = Path(top)
        self._common = Path(os.path.abspath(folder / common))  # noqa: PTH100
        #: Whether commits beyond some are missing here.
        self.shallow = shallow == "true"

    def _ask(self, *words: str, given: str | None = None) -> str:
        kept = {name: value for name, value in os.environ.items() if name not in _ABOUT_ANOTHER}
        try:
            done = subprocess.run(  # noqa: S603 - git, with words of ours and revisions
                ["git", *words],  # noqa: S607 - the git that the user has
                cwd=self._folder,
                env=kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
                input=os.fsencode(given) if given is not None else b"",
                capture_output=True,
                check=False,
                timeout=_LIMIT_S,
            )
        except FileNotFoundError:
            raise GitError("git was not found") from None
        except subprocess.TimeoutExpired:
            raise GitError(f"git {words[0]} took more than {_LIMIT_S:.0f} s") from None
        except OSError as error:
            raise GitError("git cannot be started", error.strerror or str(error)) from None
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            if lines and "not a git repository (or any" in lines[0]:
                raise GitError(f"{self._folder}: not in a git repository")
            raise GitError(f"git {words[0]}", lines[0] if lines else f"exit {done.returncode}")
        return os.fsdecode(done.stdout)

    def _try(self, *words: str) -> str | None:
        """The first line of the answer; None if there is none."""
        try:
            return self._ask(*words).partition("\n")[0] or None
        except GitError:
            return None

    # ---------------------------------------------------------------- names

    def names(self) -> list[str]:
        """What documents call this repository: by each remote, ``origin`` first; else its folder.

        With ``/path`` after two slashes for tests in a folder of it.
        """
        remotes = (self._try_all("config", "--get-regexp", r"^remote\..*\.url$") or "").splitlines()
        pairs = [line.partition(" ") for line in remotes]
        pairs.sort(key=lambda pair: pair[0] != "remote.origin.url")
        names = [repository_name(address) for _, _, address in pairs]
        common = self._common
        own = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
        return list(dict.fromkeys([*filter(None, names), *([] if names else [own])]))

    def _try_all(self, *words: str) -> str | None:
        try:
            return self._ask(*words)
        except GitError:
            return None

    def commit_of(self, revision: str) -> str | None:
        """The commit of a revision or branch, here or on a remote; None if there is none."""
        for name in (revision, f"origin/{revision}"):
            if not name.startswith("-"):
                found = self._try(
                    "rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}"
                )
                if found:
                    return found
        return None

    # ---------------------------------------------------------------- the working tree

    def commit(self, root: Path, environ: Mapping[str, str], ours: Sequence[str] = ()) -> Commit:
        """The commit that is checked out; ``root`` is the folder of the tests.

        ``ours`` are folders whose files do not make a tree dirty: baselines, the history itself.
        """
        sha = self._try("rev-parse", "-q", "--verify", "HEAD")
        name = next(iter(self.names()), None)
        try:
            inside = root.resolve().relative_to(self.top.resolve()).as_posix()
        except ValueError:
            inside = "."
        repository = f"{name}//{inside}" if name and inside != "." else name
        if sha is None:  # no commit yet
            return Commit(repository, None, None, None, self._branch(environ), dirty=True)
        return Commit(
            repository,
            sha,
            self._parents(sha),
            self._merge_base(environ),
            self._branch(environ),
            self._dirty(ours),
        )

    def _parents(self, sha: str) -> list[str] | None:
        """Those that the commit has, also where a shallow clone lacks them."""
        try:
            head = self._ask("cat-file", "commit", sha).partition("\n\n")[0]
        except GitError:
            return None
        return [line.removeprefix("parent ") for line in head.splitlines() if line[:7] == "parent "]

    def _merge_base(self, environ: Mapping[str, str]) -> str | None:
        main = self.main_branch(environ)
        return self._try("merge-base", "HEAD", main) if main else None

    def main_branch(self, environ: Mapping[str, str]) -> str | None:
        """The branch that this one is to be merged into, as a commit: of CI, of the remote, or by
        its name.
        """
        asked = environ.get("GITHUB_BASE_REF") or environ.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
        if asked and (found := self.commit_of(asked)):
            return found
        if found := self._try("rev-parse", "-q", "--verify", "refs/remotes/origin/HEAD"):
            return found
        return next(filter(None, map(self.commit_of, _MAIN)), None)

    def _branch(self, environ: Mapping[str, str]) -> str | None:
        """The branch; under CI, which checks out a commit, what its variables say."""
        here = self._try("symbolic-ref", "-q", "--short", "HEAD")
        given = (
            "GITHUB_HEAD_REF",
            "GITHUB_REF_NAME",
            "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
            "CI_COMMIT_REF_NAME",
        )
        return here or next((environ[name] for name in given if environ.get(name)), None)

    def _dirty(self, ours: Sequence[str]) -> bool | None:
        """Whether tracked files differ from the commit."""
        top, left = self.top.resolve(), []
        for folder in map(Path, ours):
            if not folder.is_absolute():
                left.append(f":(exclude,top,glob)**/{folder.as_posix()}/**")
            elif folder.resolve().is_relative_to(top) and folder.resolve() != top:
                below = folder.resolve().relative_to(top).as_posix()
                left.append(f":(exclude,top,literal){below}")
        try:
            return bool(
                self._ask("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *left)
            )
        except GitError:
            return None

    # ---------------------------------------------------------------- the order of commits

    def known(self, commits: Iterable[str]) -> list[str]:
        """Those of these commits that are here."""
        asked = sorted({commit for commit in commits if _HASH.fullmatch(commit)})
        if not asked:
            return []
        answer = self._ask("cat-file", "--batch-check", given="\n".join(asked) + "\n")
        return [line.split()[0] for line in answer.splitlines() if line.split()[1:2] == ["commit"]]

    def ancestors(self, commits: Sequence[str]) -> list[tuple[str, list[str]]]:
        """These commits and all before them, each after its parents, with its parents."""
        if not commits:
            return []
        answer = self._ask(
            "rev-list", "--topo-order", "--reverse", "--parents", "--stdin",
            given="\n".join(commits) + "\n",
        )  # fmt: skip
        return [(line[0], line[1:]) for line in map(str.split, answer.splitlines())]

    def boundary(self) -> set[str]:
        """In a shallow clone, the commits whose parents are missing."""
        try:
            text = (self._common / "shallow").read_text("ascii")
        except (OSError, ValueError):
            return set()
        return set(text.split())

    def first_parents(self, commit: str) -> set[str]:
        """The commit, its first parent, and so on."""
        return set(self._ask("rev-list", "--first-parent", commit).split())

    def merge_base_of(self, one: str, other: str) -> str | None:
        """Where two lines parted; None if they have nothing in common here."""
        return self._try("merge-base", one, other)

    def reachable(self) -> set[str]:
        """All commits that a branch, a tag, a stash, or a working tree leads to."""
        heads = [
            line.partition(" ")[2]
            for line in (self._try_all("worktree", "list", "--porcelain") or "").splitlines()
            if line.startswith("HEAD ")
        ]
        known = self.known(heads)
        answer = self._ask("rev-list", "--all", "--stdin", given="".join(f"{h}\n" for h in known))
        return set(answer.split())


def repository_name(address: str) -> str:
    """A repository by its address, without scheme, user, password, and suffix.

    >>> repository_name("https://token@github.com/Owner/Name.git")
    'github.com/Owner/Name'
    >>> repository_name("git@github.com:Owner/Name.git")
    'github.com/Owner/Name'
    >>> repository_name("/srv/git/name.git")
    'name'
    """
    address = address.strip().rstrip("/").removesuffix(".git")
    if address.startswith(("/", "./", "../", "file:", "~")) or re.match(r"[A-Za-z]:[\\/]", address):
        return re.split(r"[/\\]", address)[-1]
    found = _ADDRESS.fullmatch(address)
    return f"{found[1].lower()}/{found[2].strip('/')}" if found else address
