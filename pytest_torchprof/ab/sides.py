"""The two sides: each a tree, an interpreter, and the user's arguments adapted to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_torchprof.ab.cleanup import Cleanup
from pytest_torchprof.ab.generated_files import bring
from pytest_torchprof.ab.interpreters import Interpreter, interpreter, ours
from pytest_torchprof.ab.selection import Fitted, Tree, fitted
from pytest_torchprof.ab.submodules import fill
from pytest_torchprof.ab.worktree import Repository, check_out, repository, resolve, state
from pytest_torchprof.core.errors import AbError

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
