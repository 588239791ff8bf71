"""The two sides: each a tree, an interpreter, and the user's arguments adapted to it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_torchprof.ab.worktree import (
    Cleanup,
    Repository,
    bring,
    check_out,
    fill,
    repository,
    resolve,
    state,
)
from pytest_torchprof.core.errors import AbError
from pytest_torchprof.core.version import __version__

# ---- Select the tests that the user asked for, in a tree that may lack some of them.


@dataclass(frozen=True)
class Tree:
    """One side's folders, for its arguments: its top, and the user's folder in it."""

    root: Path
    cwd: Path  # may not exist


@dataclass(frozen=True)
class Fitted:
    """Arguments of one side.

    ``args`` are for pytest, with files in place of tests inside them (see `matches`). ``wanted``
    are the positional ones as given, absolute, () for all. ``empty`` is true if there were some,
    but none of them is in this tree.
    """

    args: tuple[str, ...]
    wanted: tuple[str, ...]
    empty: bool


def fitted(args: Sequence[str], here: Tree, other: Tree) -> Fitted:
    """The user's pytest arguments for one side.

    Arguments that are only in the other tree are dropped; those in neither stay, and pytest reports
    them. Absolute paths in the other tree become this one's, if they exist there. Other words stay.
    """
    words: list[str] = []
    wanted: list[str] = []
    dropped = False
    for word, positional in _told_apart(args, (here, other)):
        if not positional:
            words.append(_moved(word, here, other))
            continue
        path, colons, name = word.partition("::")
        place = _place(path, here, other)
        if not place.exists() and _place(path, other, here).exists():
            dropped = True
            continue
        wanted.append(f"{place}{colons}{name}")
        inside = Path(path).is_absolute() or not here.cwd.is_dir()
        if (file := str(place) if inside else path) not in words:
            words.append(file)
    lost = not here.cwd.is_dir() and not wanted  # everything is below a folder that does not exist
    return Fitted(tuple(words), tuple(wanted), empty=lost or (dropped and not wanted))


def matches(nodeid: str, wanted: Sequence[str], rootdir: Path) -> bool:
    """Whether a collected test is one that the user asked for; always true if ``wanted`` is empty.

    >>> matches("t/test_a.py::test_x[1]", ["/r/t/test_a.py::test_x"], Path("/r"))
    True
    >>> matches("t/test_a.py::test_xy", ["/r/t/test_a.py::test_x"], Path("/r"))
    False
    """
    path, _, name = nodeid.partition("::")
    file = Path(os.path.normpath(rootdir / path))
    for word in wanted:
        place, _, asked = word.partition("::")
        if file != Path(place) and Path(place) not in file.parents:
            continue
        if not asked or name == asked or name.startswith((f"{asked}::", f"{asked}[")):
            return True
    return not wanted


def _place(path: str, tree: Tree, other: Tree) -> Path:
    """The location of a user's path in a tree; paths outside both trees stay as they are."""
    given = Path(path)
    if not given.is_absolute():
        return Path(os.path.normpath(tree.cwd / given))
    if given.is_relative_to(other.root) and not given.is_relative_to(tree.root):
        return tree.root / given.relative_to(other.root)
    return given


def _moved(word: str, here: Tree, other: Tree) -> str:
    """An option or its value; a path in the other tree becomes this one's, if it exists there."""
    option, sign, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if not Path(value).is_absolute():
        return word
    place = _place(value, here, other)
    return f"{option}{sign}{place}" if place.exists() else word


def _told_apart(args: Sequence[str], trees: tuple[Tree, Tree]) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it names tests rather than an option or an option's value."""
    takes: dict[str, bool] | None = None
    before = ""
    for position, word in enumerate(args):
        if word.startswith("-") or before == "--":
            yield word, False
        elif not any(_place(word.partition("::")[0], t, t).exists() for t in trees):
            yield word, False  # in neither tree: it stays
        elif not before.startswith("-") or "=" in before:
            yield word, True
        else:
            takes = options(args[:position]) if takes is None else takes
            yield word, not takes.get(before, not _looks_like_tests(word, trees))
        before = word


def _looks_like_tests(word: str, trees: tuple[Tree, Tree]) -> bool:
    path, colons, _ = word.partition("::")
    return bool(colons) or path.endswith(".py") or any((tree.cwd / path).is_dir() for tree in trees)


def options(args: Sequence[str]) -> dict[str, bool]:
    """Options of pytest and of installed plugins → whether the next word is their value.

    Options of a ``conftest.py`` are not included: that would need importing it.
    """
    from _pytest.config import get_config

    config = get_config(list(args))
    try:
        manager = config.pluginmanager
        if not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
            manager.load_setuptools_entrypoints("pytest11")
        manager.consider_preparse(list(args), exclude_only=False)
        parser = config._parser  # noqa: SLF001 - long-stable, and nothing public tells
        known = getattr(parser, "optparser", None)  # from pytest 9 on
        known = known or getattr(parser, "_getparser")()  # noqa: B009
        return {
            name: action.nargs != 0
            for action in known._actions  # noqa: SLF001 - as above, of argparse
            for name in action.option_strings
        }
    except Exception:  # noqa: BLE001 - a plugin that does not load is the worker's to report
        return {}
    finally:
        config._ensure_unconfigure()  # noqa: SLF001 - as above


# ---- Find the Python of a side, and check that a worker can run in it.

_ASKING_S = 60.0
_QUESTION = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"python": "%d.%d.%d" % sys.version_info[:3]}
import importlib.metadata as m
for name in ("pytest", "torch"):
    try:
        answer[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
try:
    import pytest_torchprof as t
    answer["own"], answer["file"] = t.__version__, t.__file__
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


def ours() -> Interpreter:
    """The Python running this process; it needs no check."""
    return Interpreter(sys.executable, "", Path(__file__).parents[2])


def interpreter(given: str, option: str, cwd: Path) -> Interpreter:
    """The interpreter that a user named: a file, a virtual environment's folder, or a command.

    Raises `AbError` if it does not run, or lacks what a worker needs.
    """
    path = _path(given, option, cwd)
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [path, "-c", _QUESTION],
            cwd=Path(path).anchor,  # outside of the trees, whose code it would find first
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ASKING_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbError(f"{option} {given}: does not run as Python", str(error)) from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        output = done.stderr.decode("utf-8", "replace").splitlines() or ["no answer"]
        raise AbError(f"{option} {given}: does not run as Python", output[-1]) from None
    version = __version__
    install = f"install pytest-torchprof {version} there, with {path} -m pip"
    needs = {"pytest": "pytest", "torch": "torch", "own": "pytest-torchprof"}
    lacks = [package for key, package in needs.items() if key not in answer]
    if lacks:
        raise AbError(f"{option} {given}: lacks {' and '.join(lacks)}", next_step=install)
    if answer["own"] != version:
        raise AbError(
            f"{option} {given}: has pytest-torchprof {answer['own']}",
            f"both sides need {version}, the version running this command",
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


__all__ = ["Request", "Side", "sides"]


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
    hold another version of it), then calls `imports.redirect`, then runs pytest.
    """

    name: Literal["A", "B"]
    label: str  # "main (3f2a91c)", "working tree, uncommitted changes", a path; and its Python
    root: Path  # the top of the tree with its code
    cwd: Path  # the user's folder, in this tree
    python: str  # of the worker
    args: tuple[str, ...]  # for pytest
    others: tuple[Path, ...]  # trees whose code it must not import
    notes: tuple[str, ...]  # for readers of the results, one sentence each
    tool: Path  # this interpreter's folder with `pytest_torchprof`
    #: Positional arguments as given. ``args`` has ``test_a.py`` for ``test_a.py::test_x``, so that
    #: a missing test is no usage error on this side; `matches` selects the requested tests.
    wanted: tuple[str, ...]
    #: No requested test is in this tree: start no worker, as its ``args`` would select all tests.
    empty: bool


@dataclass(frozen=True)
class _Tree:
    """A tree before it is a side."""

    label: str
    root: Path
    notes: tuple[str, ...] = ()


@contextmanager
def sides(request: Request) -> Iterator[tuple[Side, Side, Cleanup]]:
    """Make A and B, with the worktree, and their cleanup; undo everything on exit.

    Raises `AbError` if there is nothing to compare, or something asked for does not exist.
    """
    _check(request)
    python_a, python_b = (
        ours() if given is None else interpreter(given, option, request.cwd)
        for given, option in ((request.python_a, "--python-a"), (request.python_b, "--python-b"))
    )
    cleanup = Cleanup()
    try:
        a, b, checkout = _trees(request, cleanup)
        yield (
            _side("A", request, (a, b), checkout, python_a),
            _side("B", request, (b, a), checkout, python_b),
            cleanup,
        )
    finally:
        cleanup.close()


def _check(request: Request) -> None:
    if request.ref is not None and request.a is not None:
        raise AbError(
            "side A is given twice", f"revision {request.ref!r} and --a {request.a}", "give one"
        )
    given = (request.ref, request.a, request.b, request.python_a, request.python_b)
    if all(one is None for one in given):
        raise AbError("nothing to compare with", next_step="give a git revision, --a or --python-a")


def _trees(request: Request, cleanup: Cleanup) -> tuple[_Tree, _Tree, Path | None]:
    """The trees of A and B, and the user's checkout."""
    try:
        repo = repository(request.cwd)
    except AbError:
        if request.ref is not None:
            raise
        repo = None
    b = _given(request.b, "--b", request) or _working_tree(repo, request.cwd)
    if request.ref is not None and repo is not None:
        commit = resolve(repo, request.ref)
        place = check_out(repo, commit, cleanup)
        notes = fill(repo, commit.sha, place, cleanup) + bring(repo, place)
        a = _Tree(commit.label, place, notes)
    else:
        a = _given(request.a, "--a", request) or _working_tree(repo, request.cwd)
    return a, b, repo.top if repo else None


def _given(path: Path | None, option: str, request: Request) -> _Tree | None:
    if path is None:
        return None
    place = (request.cwd / path.expanduser()).resolve()
    if not place.is_dir():
        raise AbError(f"{option} {path}: no such folder")
    return _Tree(str(path), place)


def _working_tree(repo: Repository | None, cwd: Path) -> _Tree:
    if repo is None:
        return _Tree("working tree", cwd.resolve())
    label, notes = state(repo)
    return _Tree(label, repo.top, notes)


def _side(
    name: Literal["A", "B"],
    request: Request,
    trees: tuple[_Tree, _Tree],
    checkout: Path | None,
    python: Interpreter,
) -> Side:
    own, other = trees
    below = _below(request.cwd.resolve(), trees, checkout)
    here, there = (Tree(tree.root, _folder(tree, trees, below)) for tree in trees)
    arguments = fitted(request.args, here, there)
    if own.root == other.root:  # nothing can be missing: as the user gave them
        arguments = Fitted(request.args, (), empty=False)
    return Side(
        name=name,
        label=", ".join(filter(None, (own.label, python.label))),
        root=own.root,
        cwd=next(folder for folder in (here.cwd, *here.cwd.parents) if folder.is_dir()),
        python=python.path,
        args=arguments.args,
        others=_others(own.root, other.root, checkout),
        notes=own.notes + _about_tool(name, own.root),
        tool=python.tool,
        wanted=arguments.wanted,
        empty=arguments.empty,
    )


def _below(cwd: Path, trees: tuple[_Tree, _Tree], checkout: Path | None) -> Path:
    """The user's folder, relative to the deepest tree that contains it, or to the checkout."""
    tops = [tree.root for tree in trees] + ([checkout] if checkout else [])
    holding = [top for top in tops if cwd.is_relative_to(top)]
    return cwd.relative_to(max(holding, key=lambda top: len(top.parts))) if holding else Path()


def _folder(tree: _Tree, trees: tuple[_Tree, _Tree], below: Path) -> Path:
    """The user's folder in a tree; the top if neither tree has it."""
    known = any((one.root / below).is_dir() for one in trees)
    return Path(os.path.normpath(tree.root / below)) if known else tree.root


def _others(root: Path, other: Path, checkout: Path | None) -> tuple[Path, ...]:
    """The other side's tree, and the user's checkout unless this side is in it or around it."""
    found = [] if other == root else [other]
    if checkout and not (root.is_relative_to(checkout) or checkout.is_relative_to(root)):
        found.append(checkout)
    return tuple(dict.fromkeys(found))


def _about_tool(name: str, root: Path) -> tuple[str, ...]:
    if name == "B" and (root / "pytest_torchprof" / "__init__.py").exists():
        return ("one pytest_torchprof measures both sides: changes to it are not compared",)
    return ()


# ---- Options of a user's own pytest runs that must not affect two workers.

#: The value for each such option, if a plugin has it. They select tests by what failed last, stop
#: early, step through tests, distribute or repeat them, or write files that both workers would
#: write.
NEUTRAL: dict[str, Any] = {
    # pytest
    "continue_on_collection_errors": True,
    "maxfail": 0,
    "collectonly": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "cacheclear": False,
    "cacheshow": None,
    "stepwise": False,
    "stepwise_skip": False,
    "usepdb": False,
    "trace": False,
    "setuponly": False,
    "setupplan": False,
    "setupshow": False,
    "xmlpath": None,
    "pastebin": None,
    "log_file": None,
    "log_cli_level": None,
    "color": "no",
    "tbstyle": "short",
    "verbose": 0,
    # ours
    "torchprof": False,
    "torchprof_json": None,
    "torchprof_html": None,
    "torchprof_markdown": None,
    "torchprof_ci": "off",
    "torchprof_traces": None,
    "torchprof_history": None,
    # pytest-xdist
    "numprocesses": None,
    "distload": False,
    "dist": "no",
    "tx": [],
    "looponfail": False,
    # pytest-forked
    "forked": False,
    # pytest-rerunfailures
    "reruns": None,
    # pytest-cov
    "no_cov": True,
    "cov_source": [],
    # pytest-benchmark: each benchmark calls its function once
    "benchmark_disable": True,
    "benchmark_enable": False,
    "benchmark_only": False,
    "benchmark_json": None,
    "benchmark_save": None,
    "benchmark_autosave": None,
    "benchmark_compare": None,
    "benchmark_compare_fail": None,
    "benchmark_histogram": None,
    "benchmark_cprofile": None,
    # pytest-html, pytest-json-report, pytest-reportlog
    "htmlpath": None,
    "json_report": False,
    "json_report_file": None,
    "report_log": None,
    # pytest-randomly, pytest-random-order: both sides see the same
    "randomly_seed": 1,
    "randomly_reorganize": False,
    "random_order_bucket": None,
}


def neutralize(options: Any) -> None:
    """Set these where they differ."""
    for name, value in NEUTRAL.items():
        if hasattr(options, name):
            setattr(options, name, value)


def refuse(args: list[str], *, accepts: bool, has_us: bool) -> None:
    """Reject options that make no sense here.

    Raises:
        AbError: ``--accept``, or our plugin is blocked.
    """
    if accepts or "--accept" in args:
        raise AbError("--accept writes baselines, which `torchprof ab` does not use")
    if not has_us:
        raise AbError(
            "pytest did not load the torchprof plugin",
            "`torchprof ab` needs its markers and its fixture",
            "drop -p no:torchprof and PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        )


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


@contextmanager
def same_environment() -> Iterator[None]:
    """Start processes with the variables of `ENVIRONMENT` that the user has not set."""
    policy = "OMP_WAIT_POLICY" in os.environ
    ours = {
        name: value
        for name, value in ENVIRONMENT.items()
        if name not in os.environ and not (policy and name in _WAITING)
    }
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _personality(wanted: int) -> int | None:
    """Set it and return the previous one; None where it is unsupported or forbidden."""
    try:
        found = ctypes.CDLL(None).personality(ctypes.c_ulong(wanted))
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    return None if found == -1 else int(found)
