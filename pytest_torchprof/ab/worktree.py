"""A git revision as a folder: checked out, built, and removed; and why git cannot."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_torchprof.ab import cleanup_process
from pytest_torchprof.core.errors import AbError, near
from pytest_torchprof.core.unknown import Reason, Why, because

if TYPE_CHECKING:
    from pytest_torchprof.ab.imports import Trees


# ---- Check out a git revision into a folder, and explain when git cannot.
#
# Nothing is fetched, no hook runs, and no other worktree is touched. `Cleanup` removes what is
# created here.

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


# ---- Fill the submodules of a worktree from local data, since git leaves their folders empty.

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


# ---- Tell whether an installed package is a copy of one in a tree or only shares its name.

_NAME = re.compile(r"""^\s*["']?name["']?\s*=\s*["']?([\w.-]+)""", re.MULTILINE)
_PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_PLACES = ("", "*/", "*/*/")


def copied(trees: Trees) -> Iterator[set[str]]:
    """Names of packages that pip installed from folders in the trees, except editable ones."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")  # PEP 610: only without an index
        record = json.loads(text) if text else {}
        url = urlsplit(record.get("url", ""))
        if url.scheme != "file" or trees.owner(url2pathname(url.path)) is None:
            continue
        files = [file.parts for file in distribution.files or ()]
        if record.get("dir_info", {}).get("editable"):  # single files are what finds the code
            files = [parts for parts in files if len(parts) > 1]
        yield {parts[0].partition(".")[0] for parts in files}


def is_strangers(root: str, name: str) -> bool:
    """Whether an installed package belongs to a project that is not in the tree.

    Decided by the installed distribution's name, if the tree names its projects: a checkout's
    ``datasets/`` is not PyPI's ``datasets``. False if unknown.
    """
    owners = {_normal(owner) for owner in _owners().get(name.partition(".")[0], ())}
    names = _projects(root)
    return bool(owners and names) and owners.isdisjoint(names)


@cache
def _owners() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@cache
def _projects(root: str) -> frozenset[str]:
    patterns = (place + name for place in _PLACES for name in _PROJECT_FILES)
    files = (file for pattern in patterns for file in Path(root).glob(pattern))
    texts = (file.read_text("utf-8", "replace") for file in files if file.is_file())
    return frozenset(_normal(name) for text in texts for name in _NAME.findall(text))


def _normal(name: str) -> str:
    """The normalized name of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- Files that a build wrote into the checkout and that no revision contains.

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


# ---- The controller's end of the process that cleans up after `torchprof ab`.

_CLEANING_S = 60.0


class Cleanup:
    """A small process in its own session that makes our temporary folder, and removes it.

    It waits for the end of a pipe that the controller holds. Then it ends the processes that it was
    told to `watch`, and removes the folder with its contents and git's records of worktrees in it.
    That works if the controller ends normally, by an exception, or by any signal; a Ctrl-C of the
    terminal does not reach the process. So every end cleans up in the same way.
    """

    def __init__(self) -> None:
        """Start it. Raises `AbError` if there is no room for a temporary folder."""
        try:
            parent = Path(tempfile.gettempdir()).resolve()
        except OSError as error:
            raise AbError("no temporary folder", str(error), "set TMPDIR") from None
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", cleanup_process.__file__, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=parent.anchor,  # it must not block the removal of a folder
            start_new_session=True,
            creationflags=flags,
        )
        self._pipe = cast("IO[bytes]", self._process.stdin)
        self._watched: dict[int, str | None] = {}
        self._repositories: list[str] = []
        with cast("IO[bytes]", self._process.stdout) as answers:
            answer = json.loads(answers.readline() or "{}")
        if "folder" not in answer:
            self._pipe.close()
            self._process.wait()
            raise AbError(
                f"{parent}: cannot create a temporary folder here",
                answer.get("error", "the cleanup process did not start"),
                "set TMPDIR to a folder with free space",
            )
        #: An empty folder for worktrees and other files; removed when the controller ends.
        self.folder = Path(answer["folder"])

    def watch(self, pid: int) -> None:
        """End this process, and the process group that it leads, if the controller cannot.

        Call it right after the process is started. It may become the leader of its group later.
        """
        self._watched[pid] = cleanup_process.started(pid)
        self._tell(f"watch {pid}")

    def forget(self, pid: int) -> None:
        """This process has ended normally, and has been waited for."""
        self._watched.pop(pid, None)
        self._tell(f"forget {pid}")

    def worktrees_of(self, repository: Path) -> None:
        """Remove records of worktrees in `folder` from this git repository (its common folder)."""
        self._repositories.append(str(repository))
        self._tell(f"repository {json.dumps(str(repository))}")

    @property
    def held(self) -> tuple[int, ...]:
        """File descriptors for ``pass_fds`` of a process that fills `folder`.

        If the controller is killed, the process waits for such a process: otherwise files could
        appear after the cleanup.
        """
        return () if sys.platform == "win32" else (self._pipe.fileno(),)

    def close(self) -> None:
        """Clean up, and wait until that is done. Further calls do nothing."""
        if self._pipe.closed:
            return
        self._tell("clean")
        with suppress(OSError):
            self._pipe.close()
        try:
            code = self._process.wait(_CLEANING_S)
        except subprocess.TimeoutExpired:
            return  # it continues alone
        if code:  # it was killed, or a file could not be removed
            cleanup_process.end(self._watched)
            cleanup_process.clear(str(self.folder), self._repositories)

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # it was killed: `close` cleans up itself
            self._pipe.write(f"{line}\n".encode())
            self._pipe.flush()
