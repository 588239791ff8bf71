"""The two sides: each a tree, from git or a folder, and a Python; and processes started alike."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_torchprof.core.errors import AbError, near
from pytest_torchprof.core.version import __version__
from pytest_torchprof.history.git import GitError, git

# ---- A git revision as a folder. Nothing is fetched, no hook runs.

#: The temporary folder of a run; a killed run leaves it, and a later one removes it after a day.
_PREFIX, _LEFT_S = "torchprof-ab-", 86_400.0
_SUBMODULE = "160000"  # the mode of its entry in git's trees
_BROUGHT_BYTES, _NAMED = 2**20, 3


@dataclass(frozen=True)
class Tree:
    """A side's code before it is a side."""

    label: str  # "main (3f2a91c)", "working tree, uncommitted changes", a path
    root: Path  # its top
    notes: tuple[str, ...] = ()


def _repository(folder: Path) -> Path:
    """The top of the working tree that a folder is in. Raises `AbError` if there is none."""
    folders = "pass the two folders with --a and --b"
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel").removesuffix("\n")).resolve()
    except GitError as error:
        if "not a git repository" in error.found:
            raise AbError(
                f"{folder}: not in a git repository", next_step=f"change into one, or {folders}"
            ) from None
        if "work tree" in error.found:  # a bare repository, or its .git
            raise AbError(
                f"{folder}: there is no working tree to compare with",
                next_step=f"use one, or {folders}",
            ) from None
        raise AbError(error.what, error.found, f"mend it, or {folders}") from None


def _resolved(top: Path, ref: str) -> tuple[str, str]:
    """The commit that a revision names, and its label. Raises `AbError` with the likely one."""
    try:
        if not ref or ref.startswith("-"):
            raise GitError("not a revision")  # noqa: TRY301 - reported like any other unknown one
        sha = git(top, "rev-parse", "--quiet", "--verify", f"{ref}^{{commit}}").strip()
    except GitError:
        raise _unknown(top, ref) from None
    short = git(top, "rev-parse", "--short", sha).strip()
    return sha, short if sha.startswith(ref) else f"{ref} ({short})"


def _unknown(top: Path, ref: str) -> AbError:
    what = f"{ref!r}: no such revision in {top}"
    try:
        git(top, "rev-parse", "--quiet", "--verify", "HEAD")
    except GitError:
        return AbError(what, "there is no commit yet", "commit first")
    if ref and Path(ref.partition("::")[0]).exists():
        return AbError(what, "it is a path", f"arguments for pytest go after --: REF -- {ref}")
    if "true" in git(top, "rev-parse", "--is-shallow-repository"):
        return AbError(
            what,
            "the clone is shallow and holds only the latest commits",
            "fetch it (`git fetch --unshallow`; in GitHub Actions `fetch-depth: 0`)",
        )
    places = ("refs/heads", "refs/tags", "refs/remotes")
    names = git(top, "for-each-ref", "--format=%(refname:short)", *places).split()
    return AbError(what, near(ref, names, listed=True), "git fetch may bring it")


def _checked_out(top: Path, ref: str, folder: Path, around: ExitStack) -> Tree:
    """A revision as a worktree below ``folder``; git forgets it when ``around`` ends.

    It has the name of the user's own top folder, because that may itself be a package.
    """
    sha, label = _resolved(top, ref)
    _forget_old(top)
    place = folder / (top.name or "tree")
    around.callback(_forget, top, place)
    git(top, "worktree", "add", "--detach", "--", str(place), sha)
    return Tree(label, place, (*_filled(top, place, sha), *_brought(top, place)))


def _forget(top: Path, place: Path) -> None:
    _remove(place.parent)
    with suppress(GitError):
        git(top, "worktree", "remove", "--force", "--force", str(place))


def _forget_old(top: Path) -> None:
    """Remove what runs left that were killed."""
    for line in git(top, "worktree", "list", "--porcelain").splitlines():
        place = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and place.parent.name.startswith(_PREFIX):
            is_there = place.parent.exists()
            if not is_there or time.time() - place.parent.stat().st_mtime > _LEFT_S:
                _forget(top, place)


def _remove(folder: Path) -> None:
    """Remove a folder, also where tests have made folders in it read-only."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(inner := os.path.join(parent, name)):  # noqa: PTH114, PTH118
                os.chmod(inner, 0o700)  # noqa: PTH101 - as above, thousands of strings
    shutil.rmtree(folder, ignore_errors=True)


def _filled(top: Path, place: Path, sha: str) -> Iterator[str]:
    """Write a commit's submodules from the user's checkouts, as git leaves their folders empty.

    Nothing comes from the network: a note on each that is not here.
    """
    for entry in git(top, "ls-tree", "-r", "-z", "--full-tree", sha).split("\0"):
        about, _, path = entry.partition("\t")
        if not about.startswith(_SUBMODULE):
            continue
        commit, module = about.split()[2], top / path
        try:
            words = (f"--work-tree={place / path}", "checkout", "--force", commit, "--", ".")
            git(module, *words, GIT_INDEX_FILE=str(place.parent / f"index-{commit}"))
        except GitError:
            yield (
                f"submodule {path} is empty in A: its commit {commit[:9]} is not"
                " here (`git submodule update --init`, or `git fetch` in it)"
            )
        else:
            notes = _filled(module, place / path, commit)
            yield from (note.replace("submodule ", f"submodule {path}/", 1) for note in notes)


def _brought(top: Path, place: Path) -> Iterator[str]:
    """Copy Python files that git ignores, next to tracked ones, into a worktree; a note on them.

    One example is the ``_version.py`` that a build writes, without which a package does not import.
    Compiled modules are not copied: they are code under test, of one revision. Neither are folders
    that git ignores as a whole, such as environments and builds.
    """
    ignored = ("--others", "--ignored", "--exclude-standard", "--directory")
    brought = []
    for name in sorted(git(top, "ls-files", "-z", *ignored).split("\0")):
        source, copy = top / name, place / name
        if not name.endswith(".py") or source.is_symlink() or not source.is_file():
            continue
        if copy.parent.is_dir() and not copy.exists() and source.stat().st_size <= _BROUGHT_BYTES:
            shutil.copy2(source, copy)
            brought.append(name)
    if brought:
        more = f" and {len(brought) - _NAMED} more" if len(brought) > _NAMED else ""
        names = ", ".join(brought[:_NAMED])
        yield f"A uses {names}{more} from the working tree, because git ignores these files"


def _working_tree(top: Path | None, cwd: Path) -> Tree:
    """The working tree as it is."""
    if top is None:
        return Tree("working tree", cwd.resolve())
    changes = git(top, "status", "--porcelain", "--untracked-files=normal")
    return Tree("working tree, uncommitted changes" if changes else "working tree", top)


# ---- Find the Python of a side, and check that a worker can run in it.

_ASKING_S = 60.0
_QUESTION = """
import json, sys
sys.path[:] = filter(None, sys.path)
answer = {"python": "%d.%d.%d" % sys.version_info[:3]}
import importlib.metadata as m
for name in ("pytest", "torch"):
    try:
        answer[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
try:
    import pytest_torchprof as t
    answer["pytest-torchprof"], answer["file"] = t.__version__, t.__file__
except (ImportError, AttributeError):
    pass
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python, its display name, and the folder that contains its ``pytest_torchprof``."""

    path: str
    label: str
    tool: Path


def _interpreter(given: str | None, option: str, cwd: Path) -> Interpreter:
    """The interpreter that a user named: a file, a virtual environment's folder, or a command.

    Raises `AbError` if it does not run, or lacks what a worker needs.
    """
    if given is None:  # this process's own, which needs no check
        return Interpreter(sys.executable, "", Path(__file__).parents[2])
    path, what = _path(given, option, cwd), f"{option} {given}"
    output = [b"no answer"]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [path, "-c", _QUESTION],
            cwd=Path(path).anchor,  # outside of the trees, whose code it would find first
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ASKING_S,
        )
        output = done.stderr.splitlines() or output
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbError(f"{what}: does not run as Python", str(error)) from None
    except (IndexError, ValueError):
        why = output[-1].decode("utf-8", "replace")
        raise AbError(f"{what}: does not run as Python", why) from None
    install = f"install pytest-torchprof {__version__} there, with {path} -m pip"
    lacks = [name for name in ("pytest", "torch", "pytest-torchprof") if name not in answer]
    if lacks:
        raise AbError(f"{what}: lacks {' and '.join(lacks)}", next_step=install)
    if (found := answer["pytest-torchprof"]) != __version__:
        raise AbError(
            f"{what}: has pytest-torchprof {found}",
            f"both sides need {__version__}, the version running this command",
            install,
        )
    label = f"Python {answer['python']}, torch {answer['torch']}"
    return Interpreter(path, label, Path(answer["file"]).parents[1])


def _path(given: str, option: str, cwd: Path) -> str:
    """An absolute path; links are kept, because the link's location identifies an environment."""
    place = Path(os.path.abspath(cwd / Path(given).expanduser()))  # noqa: PTH100 - resolve follows links
    if place.is_dir():
        for inside in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
            if (place / inside).exists():
                return str(place / inside)
        raise AbError(
            f"{option} {given}: is not a virtual environment", "the folder has no bin/python"
        )
    if place.exists():
        return str(place)
    command = shutil.which(given) if Path(given).name == given else None
    if command is None:
        raise AbError(f"{option} {given}: no such interpreter or environment")
    return os.path.abspath(command)  # noqa: PTH100 - as above


# ---- The two sides.


@dataclass(frozen=True)
class Request:
    """What the user asked for; paths may be relative to ``cwd``."""

    ref: str | None
    a: Path | None
    b: Path | None
    python_a: str | None
    python_b: str | None
    cwd: Path
    args: tuple[str, ...]


@dataclass(frozen=True)
class Side:
    """One of the two, ready for a worker; paths are real paths.

    A worker starts in ``cwd``, imports our package from ``tool`` (and only from there: ``cwd`` may
    hold another version of it), then calls `imports.prefer_own`, then runs pytest.
    """

    name: Literal["A", "B"]
    label: str  # of its tree and its Python
    root: Path  # the top of the tree with its code
    folder: Path  # the user's folder, in this tree; it may not exist
    cwd: Path  # that, or the closest one above it
    there: Path  # the user's folder, in the other tree
    python: str  # of the worker
    args: tuple[str, ...]  # for pytest
    others: tuple[Path, ...]  # trees whose code it must not import
    notes: tuple[str, ...]  # for readers of the results, one sentence each
    tool: Path  # this interpreter's folder with `pytest_torchprof`


@contextmanager
def sides(request: Request) -> Iterator[tuple[Side, Side, Path]]:
    """Make A and B, with the worktree, and a temporary folder; undo everything on exit.

    Raises `AbError` if there is nothing to compare, or something asked for does not exist.
    """
    given = (request.ref, request.a, request.b, request.python_a, request.python_b)
    if request.ref is not None and request.a is not None:
        raise AbError(
            "side A is given twice", f"revision {request.ref!r} and --a {request.a}", "give one"
        )
    if all(one is None for one in given):
        raise AbError("nothing to compare with", next_step="give a git revision, --a or --python-a")
    pythons = [
        _interpreter(python, option, request.cwd)
        for python, option in ((request.python_a, "--python-a"), (request.python_b, "--python-b"))
    ]
    try:
        top = _repository(request.cwd)
    except AbError:
        if request.ref is not None:
            raise
        top = None
    with ExitStack() as around:
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        except OSError as error:
            raise AbError("no temporary folder", str(error), "set TMPDIR to one") from None
        around.callback(_remove, folder)
        b = _given(request.b, "--b", request) or _working_tree(top, request.cwd)
        if request.ref is not None and top is not None:
            a = _checked_out(top, request.ref, folder, around)
        else:
            a = _given(request.a, "--a", request) or _working_tree(top, request.cwd)
        yield (
            _side("A", request, (a, b), top, pythons[0]),
            _side("B", request, (b, a), top, pythons[1]),
            folder,
        )


def _given(path: Path | None, option: str, request: Request) -> Tree | None:
    if path is None:
        return None
    place = (request.cwd / path.expanduser()).resolve()
    if not place.is_dir():
        raise AbError(f"{option} {path}: no such folder")
    return Tree(str(path), place)


def _side(
    name: Literal["A", "B"],
    request: Request,
    trees: tuple[Tree, Tree],
    checkout: Path | None,
    python: Interpreter,
) -> Side:
    """``checkout``: the top of the user's own working tree."""
    own, other = (tree.root for tree in trees)
    cwd = request.cwd.resolve()
    holding = [top for top in (own, other, checkout) if top and cwd.is_relative_to(top)]
    below = cwd.relative_to(max(holding, key=lambda top: len(top.parts))) if holding else Path()
    if not any((root / below).is_dir() for root in (own, other)):
        below = Path()
    others = {} if other == own else {other: None}
    if checkout and not (own.is_relative_to(checkout) or checkout.is_relative_to(own)):
        others[checkout] = None
    folder = own / below
    notes = trees[0].notes
    if name == "B" and (own / "pytest_torchprof" / "__init__.py").exists():
        notes += ("one pytest_torchprof measures both sides: changes to it are not compared",)
    return Side(
        name=name,
        label=", ".join(filter(None, (trees[0].label, python.label))),
        root=own,
        folder=folder,
        cwd=next(place for place in (folder, *folder.parents) if place.is_dir()),
        there=other / below,
        python=python.path,
        args=tuple(_moved(word, own, other) for word in request.args),
        others=tuple(others),
        notes=notes,
        tool=python.tool,
    )


def _moved(word: str, own: Path, other: Path) -> str:
    """A word for pytest: an absolute path in the other tree becomes this one's, if it is there."""
    option, sign, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path, colons, name = value.partition("::")
    place = Path(path)
    if place.is_absolute() and place.is_relative_to(other) and not place.is_relative_to(own):
        place = own / place.relative_to(other)
        if place.exists():
            return f"{option}{sign}{place}{colons}{name}"
    return word


# ---- Start the processes of both sides alike, and keep one's threads out of the other's turns.
#
# Two processes of the same code can differ for their whole lives, see `capture.clock`. So
# both start with the same addresses (`same_addresses`), and the waiting side must leave the
# processors to the other: its thread pool must not spin (`same_environment`).

#: From <sys/personality.h>.
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF

#: How long a thread of an OpenMP pool spins after its work before it sleeps: libgomp counts
#: iterations (about 20 ns each; 300,000 by default), libomp milliseconds (200 by default). A pool
#: of the waiting side that spins takes processors from the other: with two threads on two
#: processors, intervals of ±50 % become ±2 %. Within a test, the next work comes before they sleep.
#: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html,
#: https://openmp.llvm.org/design/Runtimes.html (KMP_BLOCKTIME)
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
#: Also gives sets of strings the same order on both sides.
ENVIRONMENT = {"PYTHONHASHSEED": "0", **_WAITING}


@contextmanager
def same_addresses() -> Iterator[None]:
    """Start processes without address space randomization, where the system supports and allows it.

    Linux only. Some containers forbid it, which is ignored: `shaken` alone does most of the work.
    """
    before = _personality(_ASK)
    if before is None:
        yield
        return
    _personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        _personality(before)


def same_environment() -> dict[str, str]:
    """The environment of such processes: with the variables of `ENVIRONMENT` that are not set."""
    policy = "OMP_WAIT_POLICY" in os.environ
    ours = {n: value for n, value in ENVIRONMENT.items() if not (policy and n in _WAITING)}
    return {**ours, **os.environ}


def _personality(wanted: int) -> int | None:
    """Set it and return the previous one; None where it is unsupported or forbidden."""
    try:
        found = ctypes.CDLL(None).personality(ctypes.c_ulong(wanted))
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    return None if found == -1 else int(found)
