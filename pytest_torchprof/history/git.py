"""What git knows: of the commit that is measured, and of the order of commits."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.history.index import IndexedRun, asked

if TYPE_CHECKING:
    from pytest_torchprof.history.stores import Store


# ---- What git knows: of the commit that is measured, and of the order of commits.
#
# Git is asked with a time limit, and writes nothing.

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
    """The commit of a working tree; see `history.runs.Run`."""

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


# ---- The order of runs, by the ancestry of their commits: which one came before which.
#
# Clocks decide only among runs of one commit, and where ancestry is unknown, which is said.

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


# ---- Documents of commits that no branch, tag or working tree leads to any more.


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
