"""What git knows: of the commit that is measured, and of the order of commits."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.history.series import RunInfo

# ---- What git knows: of the commit that is measured, and of the order of commits.
#
# Git is asked with a time limit, and writes nothing, but for `torchprof ab`'s worktree.

#: For a command, in seconds; listing a million commits takes about ten.
_LIMIT_S = 30.0
#: Variables that make git work on another repository than that of the folder.
_ABOUT_ANOTHER = {
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "PREFIX", "COMMON_DIR", "OBJECT_DIRECTORY",
                 "NAMESPACE")
}  # fmt: skip
_QUIETLY = (
    *("-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false"),
)
#: An address of a remote: ``https://user@host/path.git``, or ``user@host:path``.
_ADDRESS = re.compile(r"(?:[a-z+]+://)?(?:[^/@]*@)?([^/:]+)(?::\d+(?=/))?[:/](.+)", re.IGNORECASE)
#: Variables in which CI says the branch that it checked out, and the one that it is to go into.
_BRANCH = (
    "GITHUB_HEAD_REF",
    "GITHUB_REF_NAME",
    "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
    "CI_COMMIT_REF_NAME",
)
_TARGET = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
#: Names of main branches, where neither CI nor the remote tells.
_MAIN = ("main", "master", "trunk", "develop")
_HASH = re.compile(r"[0-9a-f]{40,64}")


class GitError(HistoryError):
    """Git is not there, does not know the folder, or does not answer in time."""


def git(
    folder: Path, *words: str, given: str = "", limit_s: float | None = None, **variables: str
) -> str:
    """Git's output in a folder; names in it may hold any bytes. ``given``: to its input.

    No hook runs, and nothing is fetched of submodules.

    Raises:
        GitError: with git's own text.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _ABOUT_ANOTHER}
    kept |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603 - git, with words of ours and revisions
            ["git", *_QUIETLY, *words],  # noqa: S607 - the git that the user has
            cwd=folder,
            env=kept | variables,
            input=os.fsencode(given),
            capture_output=True,
            check=False,
            timeout=limit_s,
        )
    except FileNotFoundError:
        raise GitError("git was not found") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {words[0]} took more than {limit_s:.0f} s") from None
    except OSError as error:
        raise GitError("git cannot be started", error.strerror or str(error)) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        lines = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        raise GitError(f"git {words[0]}", lines[0] if lines else f"exit {done.returncode}")
    return os.fsdecode(done.stdout)


class Commit(Frozen, frozen=True):
    """The commit of a working tree; see `history.runs.Run`."""

    repository: str | None = None
    commit: str | None = None
    parents: list[str] | None = None
    merge_base: str | None = None
    branch: str | None = None
    dirty: bool | None = None


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
        self._top = Path(top).resolve()
        self._common = Path(os.path.abspath(folder / common))  # noqa: PTH100
        #: Whether commits beyond some are missing here.
        self.is_shallow = shallow == "true"

    def _ask(self, *words: str, given: str = "") -> str:
        try:
            return git(self._folder, *words, given=given, limit_s=_LIMIT_S)
        except GitError as error:
            if "not a git repository (or any" in error.found:
                raise GitError(f"{self._folder}: not in a git repository") from None
            raise

    def _try(self, *words: str) -> str:
        """The answer, empty if there is none."""
        with suppress(GitError):
            return self._ask(*words).strip()
        return ""

    # ---------------------------------------------------------------- names

    def names(self) -> list[str]:
        """What documents call this repository: by each remote, ``origin`` first; else its folder.

        With ``/path`` after two slashes for tests in a folder of it.
        """
        remotes = self._try("config", "--get-regexp", r"^remote\..*\.url$").splitlines()
        pairs = [line.partition(" ") for line in remotes]
        pairs.sort(key=lambda pair: pair[0] != "remote.origin.url")
        common = self._common
        own = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
        names = [repository_name(address) for _, _, address in pairs] or [own]
        return list(dict.fromkeys(filter(None, names)))

    def commit_of(self, revision: str) -> str | None:
        """The commit of a revision or branch, here or on a remote; None if there is none."""
        for name in (revision, f"origin/{revision}"):
            words = ("rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}")
            if not name.startswith("-") and (found := self._try(*words)):
                return found
        return None

    # ---------------------------------------------------------------- the working tree

    def commit(self, root: Path, environ: Mapping[str, str], ours: Sequence[str] = ()) -> Commit:
        """The commit that is checked out; ``root`` is the folder of the tests.

        ``ours`` are folders whose files do not make a tree dirty: baselines, the history itself.
        """
        repository = next(iter(self.names()), None)
        with suppress(ValueError):
            inside = root.resolve().relative_to(self._top).as_posix()
            repository = f"{repository}//{inside}" if repository and inside != "." else repository
        given = next((environ[name] for name in _BRANCH if environ.get(name)), None)
        branch = self._try("symbolic-ref", "-q", "--short", "HEAD") or given
        commit = self._try("rev-parse", "-q", "--verify", "HEAD")
        if not commit:
            return Commit(repository, branch=branch, dirty=True)
        main = self._main_branch(environ)
        base = self._try("merge-base", "HEAD", main) if main else ""
        return Commit(
            repository, commit, self._parents(commit), base or None, branch, self._is_dirty(ours)
        )

    def _parents(self, commit: str) -> list[str] | None:
        """Those that the commit has, also where a shallow clone lacks them."""
        lines = self._try("cat-file", "commit", commit).partition("\n\n")[0].splitlines()
        parents = [line.removeprefix("parent ") for line in lines if line.startswith("parent ")]
        return parents if lines else None

    def _main_branch(self, environ: Mapping[str, str]) -> str | None:
        """The branch that this one is to be merged into, as a commit: of CI, of the remote, or by
        its name.
        """
        target = next((environ[name] for name in _TARGET if environ.get(name)), None)
        if target and (found := self.commit_of(target)):
            return found
        if found := self._try("rev-parse", "-q", "--verify", "refs/remotes/origin/HEAD"):
            return found
        return next(filter(None, map(self.commit_of, _MAIN)), None)

    def _is_dirty(self, ours: Sequence[str]) -> bool | None:
        """Whether tracked files differ from the commit."""
        left = []
        for folder in map(Path, ours):
            if not folder.is_absolute():
                left.append(f":(exclude,top,glob)**/{folder.as_posix()}/**")
            elif self._top in folder.resolve().parents:
                left.append(f":(exclude,top,literal){folder.resolve().relative_to(self._top)}")
        words = ("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *left)
        try:
            return bool(self._ask(*words))
        except GitError:
            return None

    # ---------------------------------------------------------------- the order of commits

    def known(self, commits: Iterable[str]) -> list[str]:
        """Those of these commits that are here."""
        hashes = sorted({commit for commit in commits if _HASH.fullmatch(commit)})
        answer = self._ask("cat-file", "--batch-check", given="\n".join(hashes)) if hashes else ""
        return [line.split()[0] for line in answer.splitlines() if line.split()[1:2] == ["commit"]]

    def ancestors(self, commits: Iterable[str]) -> list[tuple[str, list[str]]]:
        """These commits, where they are here, and all before them, each after its parents, with its
        parents.
        """
        words = ("rev-list", "--topo-order", "--reverse", "--parents", "--stdin")
        known = self.known(commits)
        answer = self._ask(*words, given="\n".join(known)) if known else ""
        return [(line[0], line[1:]) for line in map(str.split, answer.splitlines())]

    def first_parents(self, commit: str) -> set[str]:
        """The commit, its first parent, and so on."""
        return set(self._ask("rev-list", "--first-parent", commit).split())

    def merge_base_of(self, one: str, other: str) -> str | None:
        """Where two lines parted; None if they have nothing in common here."""
        return self._try("merge-base", one, other) or None

    def reachable(self) -> set[str]:
        """All commits that a branch, a tag, a stash, or a working tree leads to."""
        trees = self._try("worktree", "list", "--porcelain").splitlines()
        heads = [line.partition(" ")[2] for line in trees if line.startswith("HEAD ")]
        given = "\n".join(self.known(heads))
        return set(self._ask("rev-list", "--all", "--stdin", given=given).split())


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


# ---- The order of runs, by the ancestry of their commits: which one came before which.
#
# Clocks decide only among runs of one commit, and where ancestry is unknown, which is said.

#: Lines that are followed from a merge; more than two are rare.
_LINES = 4


class Order(NamedTuple):
    """Runs in order; ``before`` has for each the positions of the nearest ones before it.

    ``by_clock`` counts commits whose place is that of their clock, as ancestry is unknown;
    ``without_commit`` runs that have none.
    """

    runs: list[RunInfo]
    before: list[tuple[int, ...]]
    by_clock: int
    without_commit: int


def order_of(
    runs: Sequence[RunInfo],
    graph: Iterable[tuple[str, Sequence[str]]],
    *,
    is_shallow: bool = False,
) -> Order:
    """The runs in order; ``graph`` has commits after their parents, with their parents.

    What documents know of their commits' ancestors is used where the graph lacks the commit, or,
    in a shallow clone, its parents. A run of a changed working tree comes after its commit, and
    before none of another commit; if all runs are of such, they count as those of their commits.
    """
    dirty = {run for run in runs if run.dirty}
    if len(dirty) == len(runs):
        dirty = set()
    of_commit: dict[str | None, list[RunInfo]] = {}
    for run in sorted(runs, key=lambda run: (run in dirty, run.started, run.name)):
        of_commit.setdefault(run.commit, []).append(run)
    alone = of_commit.pop(None, [])
    lines, loose = _with_documents(runs, graph, is_shallow=is_shallow)
    near: dict[str, tuple[RunInfo, ...]] = {}  # of each commit, the last runs until then
    open_ended = set()  # nothing is known before them, although they have parents
    part: dict[str | None, str] = {}  # of each commit with runs, the first one of its line
    placed: list[tuple[str, tuple[RunInfo, ...]]] = []
    for commit, parents in lines.items():
        told, found = loose.get(commit), dict[RunInfo, None]()
        is_open = commit in loose and not parents and (told is None or told.parents != ())
        for parent in parents:
            if found and told and parent == told.merge_base:
                continue  # older than what the parents lead to
            found |= dict.fromkeys(near.get(parent, ()))
            unknown = not near.get(parent) and (parent not in near or parent in open_ended)
            is_open = is_open or unknown
        near[commit] = nearest = tuple(found)[:_LINES]
        if is_open and not nearest:
            open_ended.add(commit)
        if commit in of_commit:
            placed.append((commit, nearest))
            part[commit] = part[nearest[0].commit] if nearest else commit
            clean = [run for run in of_commit[commit] if run not in dirty]
            near[commit] = tuple(clean[-1:]) or nearest
    if len(open_ended & of_commit.keys()) > 1:
        placed.sort(key=lambda one: of_commit[part[one[0]]][0].started)
    at: dict[RunInfo, int] = {}
    before: list[tuple[int, ...]] = []
    by_clock = 0
    for commit, nearest in placed:
        own = of_commit[commit]
        earlier = tuple(at[run] for run in nearest if run in at)
        if at and not earlier and commit in open_ended:
            by_clock += 1
            line = [run for run in at if run.branch == own[0].branch and run not in dirty]
            older = [(run.started, at[run]) for run in line if run.started < own[0].started]
            earlier = (max(older)[1],) if older else ()
        for run in own:
            at[run] = len(before)
            before.append(earlier)
            earlier = (at[run],)
    before += [(len(at) + number - 1,) if number else () for number in range(len(alone))]
    return Order([*at, *alone], before, by_clock, len(alone))


def _with_documents(
    runs: Sequence[RunInfo], graph: Iterable[tuple[str, Sequence[str]]], *, is_shallow: bool
) -> tuple[dict[str, Sequence[str]], dict[str, RunInfo | None]]:
    """The parents of commits, those before others first; and the commits of which only documents
    may know them, with a run of each.
    """
    told = {run.commit: run for run in runs if run.commit}
    lines = dict(graph)
    cut = [commit for commit, parents in lines.items() if is_shallow and not parents]
    loose = {c: told.get(c) for c in (*cut, *sorted(told.keys() - lines.keys()))}
    if loose:
        lines = _sorted(
            {c: run.ancestors if run else () for c, run in loose.items()}
            | {c: parents for c, parents in lines.items() if c not in loose}
        )
    return lines, loose


def _sorted(lines: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Each commit after its parents, otherwise as given; a circle is broken."""
    found: dict[str, Sequence[str]] = {}
    begun = set()
    for first in lines:
        stack = [first]
        while stack:
            begun.add(commit := stack[-1])
            todo = [p for p in lines[commit] if p in lines and p not in begun]
            stack += reversed(todo)
            if not todo:
                found[commit] = lines[stack.pop()]
    return found


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


# ---- Runs of commits that no branch, tag or working tree leads to any more.


class Swept(NamedTuple):
    """What can go, and whether its commit is still in this clone; of how many runs.

    ``others`` are of other repositories and never go.
    """

    found: list[tuple[RunInfo, bool]]
    total: int
    others: int


def unreachable(runs: Sequence[RunInfo], here: Path) -> Swept:
    """The runs of this repository whose commits nothing leads to; those without a commit stay.

    Raises:
        HistoryError: there is no repository, or its clone is shallow and lacks commits.
    """
    git = Git(here)
    if git.is_shallow:
        raise HistoryError(
            "nothing is removed",
            "this clone is shallow, so commits that it lacks may be needed",
            "git fetch --unshallow completes it",
        )
    names, kept = git.names(), git.reachable()
    mine = [run for run in runs if run.is_of(names)]
    gone = [run for run in mine if run.commit is not None and run.commit not in kept]
    known = set(git.known(run.commit for run in gone if run.commit))
    gone.sort(key=lambda run: (run.started, run.name))
    return Swept([(run, run.commit in known) for run in gone], len(runs), len(runs) - len(mine))
