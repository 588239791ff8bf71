"""Which tree a path belongs to: this side's, another, or none. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

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
