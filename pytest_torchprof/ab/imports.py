"""In a worker, make imports find this side's code, and prove it. Standard library only."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_torchprof.ab.worktree import copied, is_strangers
from pytest_torchprof.core.errors import AbError

# ---- Which tree a path belongs to: this side's, another, or none. Standard library only.

#: Folders of installed packages. In a tree they belong to an environment inside it, such as
#: ``.venv``, and are not code under test.
INSTALLED = frozenset({"site-packages", "dist-packages"})

#: Names in a checkout that hold no code under test, or that only pytest imports.
_BESIDE = frozenset(
    {
        "benchmark",
        "benchmarks",
        "build",
        "conftest",
        "dist",
        "doc",
        "docs",
        "dodo",
        "example",
        "examples",
        "fabfile",
        "node_modules",
        "noxfile",
        "script",
        "scripts",
        "setup",
        "tasks",
        "test",
        "testing",
        "tests",
        "tool",
        "tools",
        "versioneer",
    }
)
_ENTRIES = 2000  # read from one folder: larger ones hold data
_DEPTH = 3


class Trees:
    """This side's tree and those whose code it must not import, by their tops."""

    def __init__(self, root: str, others: Sequence[str]) -> None:
        self.root = os.path.realpath(root)
        self.others = [other for other in map(os.path.realpath, others) if other != self.root]
        self._places = {tree: _parts(tree) for tree in (self.root, *self.others)}
        self._prefixes = [_parts(os.path.realpath(path)) for path in _prefixes()]

    def owner(self, path: str) -> str | None:
        """The top of the deepest tree that contains a file or folder; None if there is none.

        Links are resolved first: a link from one tree into another leads to the other's code.
        """
        folder, name = os.path.split(os.path.abspath(path))
        for place in (os.path.join(_real(folder), name), os.path.join(folder, name)):
            parts = _parts(os.path.realpath(place) if os.path.islink(place) else place)
            holders = [tree for tree, top in self._places.items() if parts[: len(top)] == top]
            if holders:
                tree = max(holders, key=lambda holder: len(self._places[holder]))
                return None if self._is_installed(parts, self._places[tree]) else tree
        return None

    def is_own(self, path: str) -> bool:
        """Whether it is in this side's tree."""
        return self.owner(path) == self.root

    def here(self, path: str) -> str | None:
        """The same path in this side's tree, None if missing; outside all trees: unchanged."""
        owner = self.owner(path)
        if owner is None or owner == self.root:
            return path
        real = os.path.realpath(path)
        if _parts(real)[: len(_parts(owner))] != _parts(owner):
            real = os.path.abspath(path)
        place = os.path.normpath(os.path.join(self.root, os.path.relpath(real, owner)))
        return place if os.path.exists(place) else None

    def _is_installed(self, parts: tuple[str, ...], top: tuple[str, ...]) -> bool:
        inside = [prefix for prefix in self._prefixes if _is_below(prefix, top)]
        return not INSTALLED.isdisjoint(parts[len(top) :]) or any(
            parts[: len(prefix)] == prefix for prefix in inside
        )


def _prefixes() -> set[str]:
    return {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}


@cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _parts(path: str) -> tuple[str, ...]:
    return Path(os.path.normcase(path)).parts


def _is_below(path: tuple[str, ...], top: tuple[str, ...]) -> bool:
    return len(path) > len(top) and path[: len(top)] == top


def importable(folder: str) -> list[str]:
    """Dotted names of the packages and modules that an import finds in a folder of ``sys.path``.

    Packages without ``__init__.py`` are searched and listed with their contents. Left out are names
    of tests, tools and the like, and those of the standard library.

    Packages without ``__init__.py`` are entered, and named with what they hold. Left out are names
    of tests, tools and the like, and those of the standard library: nobody's code is found by them.

    >>> importable(str(Path(__file__).parents[2]))
    ['pytest_torchprof']
    """
    return sorted(
        name
        for name in _importable(folder, "", _DEPTH)
        if name.partition(".")[0] not in sys.stdlib_module_names
    )


def shadows(folder: str) -> bool:
    """Whether the folder, in front on ``sys.path``, would hide a standard library module."""
    return any(name in sys.stdlib_module_names for name in _importable(folder, "", 1))


def _importable(folder: str, prefix: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as scan:
            entries = list(islice(scan, _ENTRIES))
    except OSError:
        return
    for entry in entries:
        name, _, rest = entry.name.partition(".")
        if not name.isidentifier() or name.startswith("test_") or name in _BESIDE:
            continue
        if rest == "py" or rest.endswith(("so", "pyd")):
            yield prefix + name
        elif not rest and entry.is_dir():
            if os.path.exists(os.path.join(entry.path, "__init__.py")):
                yield prefix + name
            elif depth > 1:
                yield from _importable(entry.path, f"{prefix}{name}.", depth - 1)


# ---- In a worker, make imports find this side's code, and prove it. Standard library only.
#
# Redirected are entries of ``sys.path`` in another tree (from ``PYTHONPATH``, and the ``.pth``
# files of editable installs: hatch, flit, pdm, poetry, setuptools), and setuptools' editable
# finders. Impossible to redirect are editable installs whose own loader rebuilds code
# (meson-python, scikit-build-core), and compiled modules that are already loaded. If these are
# code under test, `proven` raises.

#: Both sides are measured by the same tool, even if it is the code under test.
_TOOL = "pytest_torchprof"


def redirect(root: str, others: Sequence[str]) -> None:
    """Make imports find this side's code, in this process and in those it starts.

    Call it with the working folder set, before pytest. Entries of ``sys.path`` in one of ``others``
    are replaced with the same folder below ``root``, or removed if there is none. A package of
    ``root`` or ``root/src`` that would still come from elsewhere gets its folder inserted before
    that entry, not at the front, so nothing of the standard library is hidden. Both folders, and
    the working folder, are appended anyway, as ``python -m pytest`` would have them in front.
    Nothing else changes; without another tree, nothing is redirected.
    """
    trees = Trees(root, others)
    moved = [trees.here(entry) for entry in sys.path if entry]  # "" is the working folder
    sys.path[:] = dict.fromkeys(entry for entry in moved if entry is not None)
    _redirect_finders(trees)
    _forget(trees)
    _refresh()
    if trees.others:
        _let_own_win(trees)
    ends = [os.path.join(trees.root, "src"), trees.root, os.path.abspath(os.curdir)]
    for folder in ends:
        if folder not in sys.path and (folder != ends[0] or importable(folder)):
            sys.path.append(folder)
    _refresh()
    if trees.others:
        _tell_children(trees)


def _refresh() -> None:
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def _redirect_finders(trees: Trees) -> None:
    """Point setuptools' editable finders (modules with two tables) to this side's tree."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("__editable__"):
            continue
        tables: tuple[Any, ...] = (vars(module).get("MAPPING"), vars(module).get("NAMESPACES"))
        for table in tables:
            for package, place in list(table.items()) if isinstance(table, dict) else ():
                listed = [place] if isinstance(place, str) else place
                here = [there for there in map(_in_tree(trees), listed) if there]
                if not here:
                    del table[package]
                else:
                    table[package] = here[0] if isinstance(place, str) else here


def _in_tree(trees: Trees) -> Any:
    def here(place: str) -> str | None:
        """Like `Trees.here`; a module of a single file is given without its suffix."""
        found = trees.here(place)
        file = trees.here(f"{place}.py") if found is None else None
        return found or (file and file.removesuffix(".py"))

    return here


def _forget(trees: Trees) -> None:
    """Unload modules of other trees that a ``.pth`` or ``sitecustomize`` imported."""
    for name, module in list(sys.modules.items()):
        if _is_tool(name):
            continue
        path = _namespace(module).get("__path__")
        if isinstance(path, list):
            path[:] = [here for here in map(trees.here, path) if here is not None]
        file = _file(module)
        # A compiled module cannot be loaded twice: it stays, and `proven` raises.
        if file and file.endswith((".py", ".pyc")) and trees.owner(file) in trees.others:
            del sys.modules[name]


def _let_own_win(trees: Trees) -> None:
    for folder in _folders(trees):
        for name in importable(folder):
            place = _find(name)
            if _is_tool(name) or place is None or trees.is_own(place):
                continue
            if is_strangers(trees.root, name):
                continue
            entry = str(Path(place).parents[name.count(".")])
            if folder in sys.path:
                sys.path.remove(folder)
            position = sys.path.index(entry) if entry in sys.path else len(sys.path)
            sys.path.insert(position, folder)
            _refresh()


def _folders(trees: Trees) -> list[str]:
    """Folders of this side's packages: those on the path already, then src/, then the top."""
    own = [entry for entry in sys.path if os.path.isdir(entry) and trees.is_own(entry)]
    return list(dict.fromkeys([*own, os.path.join(trees.root, "src"), trees.root]))


def _find(name: str) -> str | None:
    """The file or folder that an import of a dotted name would load, without importing it."""
    top, *rest = name.split(".")
    spec = None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(top, None)
        except Exception:  # noqa: BLE001, S112 - a finder of somebody's, which is not to break ours
            continue
        if spec is not None:
            break
    full = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full = f"{full}.{part}"
        inside = list(spec.submodule_search_locations)
        spec = importlib.machinery.PathFinder.find_spec(full, inside)
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), None) or spec.origin


def _tell_children(trees: Trees) -> None:
    """Make processes that a test starts find the same code."""
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = [
        entry
        for entry in sys.path
        if os.path.isdir(entry)
        and trees.is_own(entry)
        and importable(entry)
        and not shadows(entry)  # PYTHONPATH comes before the standard library
    ]
    here = [place for place in map(trees.here, given) if place is not None]
    entries = [entry for entry in dict.fromkeys([*own, *here]) if os.pathsep not in entry]
    if entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        os.environ.pop("PYTHONPATH", None)


def origins(root: str, others: Sequence[str]) -> dict[str, Any]:
    """Where the loaded modules come from, as JSON that can be sent through a channel.

    ``own``: module → file, in this side's tree. ``foreign``: in another tree; a folder where a
    package only searches there too. ``installed``: packages of this tree that were nevertheless
    imported from elsewhere. ``root`` and ``others`` are the trees. Call it after collection, and
    again at the end for late imports by tests.
    """
    trees = Trees(root, others)
    own: dict[str, str] = {}
    foreign: dict[str, str] = {}
    away: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if _is_tool(name) or name in {"__main__", "__mp_main__"}:
            continue
        for place in _places(module):
            owner = trees.owner(place)
            if owner == trees.root:
                own.setdefault(name, place)
            elif owner is None:
                away.setdefault(name, place)
            else:
                foreign.setdefault(name, place)
    names = {name for folder in _folders(trees) for name in importable(folder)}
    for of_one in copied(trees) if trees.others else ():
        names |= of_one
    installed = {
        name: place
        for name, place in away.items()
        if name not in own
        for package in _packages(name) & names
        # Others may add modules to a package of ours; a compiled one is ours, of unknown age.
        if package not in own or place.endswith((".so", ".pyd"))
        if not is_strangers(trees.root, package)
    }
    return {
        "root": trees.root,
        "others": trees.others,
        "own": own,
        "foreign": foreign,
        "installed": installed,
    }


def _packages(name: str) -> set[str]:
    """A dotted name and the names of its parent packages."""
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


def _is_tool(name: str) -> bool:
    return name.partition(".")[0] == _TOOL


def _namespace(module: object) -> dict[str, Any]:
    """A module's names, without triggering lazy loading."""
    names = getattr(module, "__dict__", None)
    return names if isinstance(names, dict) else {}


def _file(module: object) -> str | None:
    names = _namespace(module)
    file = names.get("__file__") or getattr(names.get("__spec__"), "origin", None)
    return file if isinstance(file, str) and os.path.isabs(file) else None


def _places(module: object) -> Iterator[str]:
    """The file of a module, and the folders that it searches for its submodules."""
    file = _file(module)
    if file is not None:
        yield file
    try:
        path = list(_namespace(module).get("__path__") or ())
    except Exception:  # noqa: BLE001 - somebody's own object
        return
    yield from (entry for entry in path if isinstance(entry, str) and os.path.isabs(entry))


def proven(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Raise `AbError` unless each side's code, according to `origins`, is its own.

    With one tree for both sides (two interpreters, say) nothing can be confused, nor if a side had
    nothing to run and so reports nothing.
    """
    if not a or not b:
        return
    for name, side, other in (("A", a, "B"), ("B", b, "A")):
        for module, file in side["foreign"].items():
            whose = f"the tree of {other}" if _lies_in(file, (b, a)[side is b]) else "your checkout"
            raise AbError(
                f"side {name} ran code from outside its tree",
                f"{module} is imported from {file}, in {whose}, not from {side['root']}",
                "install each side into its own environment and pass them with"
                " --python-a and --python-b",
            )
        for module, file in side["installed"].items() if a["root"] != b["root"] else ():
            raise AbError(
                f"side {name} ran an installed copy of its code, the same on both sides",
                f"{module} is imported from {file}, not from {side['root']}",
                "install it with `pip install -e .`, or set PYTHONPATH to the folder it is in",
            )


def _lies_in(file: str, side: Mapping[str, Any]) -> bool:
    return Trees(side["root"], ()).is_own(file)
