"""In a worker: import this side's code, and tell whether any other was. Standard library only.

The folders of the side's code go before installed packages on ``sys.path``, and into ``PYTHONPATH``
for processes that tests start. They are those through which the environment finds the other side's
code: entries of ``sys.path`` (from ``PYTHONPATH``, and the ``.pth`` files of editable installs).
Finders of editable installs that lead elsewhere, or rebuild code (meson-python, scikit-build-core),
are left alone; then `proven` raises.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_torchprof.core.errors import AbError

#: Folders of installed packages. In a tree they belong to an environment inside it, such as
#: ``.venv``, and are not code under test.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Both sides are measured by the same tool, even if it is the code under test.
_TOOL = "pytest_torchprof"
StrPath = str | os.PathLike[str]
_PROJECT = re.compile(r"""^\s*name\s*=\s*["']([\w.-]+)""", re.MULTILINE)


class Trees:
    """This side's tree and those whose code it must not import, by their tops."""

    def __init__(self, root: StrPath, others: Sequence[StrPath]) -> None:
        self.root = os.path.realpath(root)
        self.others = [other for other in map(os.path.realpath, others) if other != self.root]
        prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
        self._prefixes = [os.path.realpath(path) for path in prefixes]

    def owner(self, path: str) -> str | None:
        """The top of the deepest tree that contains a file or folder; None if there is none.

        Links are followed: a link from one tree into another leads to the other's code.
        """
        real = _real(path)
        holders = [tree for tree in (self.root, *self.others) if _within(real, tree)]
        if not holders:
            return None
        tree = max(holders, key=len)
        inside = (prefix for prefix in self._prefixes if prefix != tree and _within(prefix, tree))
        installed = not _INSTALLED.isdisjoint(real[len(tree) :].split(os.sep))
        return None if installed or any(_within(real, prefix) for prefix in inside) else tree

    def here(self, path: str) -> str | None:
        """The same path in this side's tree, None if missing; outside all trees: unchanged."""
        owner = self.owner(path)
        if owner is None or owner == self.root:
            return path
        place = os.path.normpath(os.path.join(self.root, os.path.relpath(_real(path), owner)))
        return place if os.path.exists(place) else None


def _real(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    place = os.path.join(_real_folder(folder), name)
    return os.path.realpath(place) if os.path.islink(place) else place


@cache
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)


def prefer_own(root: StrPath, others: Sequence[StrPath]) -> None:
    """Make imports find the code below ``root``, in this process and in those it starts.

    Call it with the working folder set, before tests are collected. Whatever on ``sys.path`` is in
    one of ``others`` becomes the same folder below ``root``, or goes if there is none. ``root``,
    its ``src`` and the working folder come last, as where nothing is installed; or before installed
    packages where a copy of the code is one of them. Nothing comes before the standard library.
    """
    trees = Trees(root, others)
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    last = [os.path.join(trees.root, "src"), trees.root, os.path.abspath(os.curdir)]
    first: list[str] = []
    if trees.others:
        copied = [file for _, file in _copies(trees) if file.endswith(".py")]
        first = [here for entry in sys.path if entry and (here := _own(trees, entry))]
        for top in last[:2]:
            if any(os.path.exists(os.path.join(top, file)) for file in copied):
                first.append(top)
    path = [here for entry in sys.path if entry and (here := trees.here(entry))]
    places = (at for at, entry in enumerate(path) if not _INSTALLED.isdisjoint(Path(entry).parts))
    at = next(places, len(path))
    path[at:at] = first
    sys.path[:] = dict.fromkeys([*path, *filter(os.path.isdir, last)])
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    if trees.others:  # PYTHONPATH comes before the standard library
        own = (*first, *filter(os.path.isdir, last[:2]))
        told = [entry for entry in own if not _shadows(entry) and os.pathsep not in entry]
        told += [here for here in map(trees.here, given) if here]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(told))


def _own(trees: Trees, entry: str) -> str | None:
    here = trees.here(entry)
    return here if here and os.path.isdir(here) and trees.owner(here) == trees.root else None


def _shadows(folder: str) -> bool:
    """Whether the folder, in front on ``sys.path``, would hide a standard library module."""
    names = (name.partition(".") for name in os.listdir(folder))
    return any(
        name in sys.stdlib_module_names
        and (rest == "py" or os.path.exists(os.path.join(folder, name, "__init__.py")))
        for name, _, rest in names
    )


def _copies(trees: Trees) -> Iterator[tuple[str, str]]:
    """Files of packages that were installed from a tree, or have this project's name; relative too.

    An editable install has some if it holds what was compiled.
    """
    about = Path(trees.root, "pyproject.toml")
    named = _PROJECT.search(about.read_text("utf-8", "replace")) if about.is_file() else None
    for distribution in importlib.metadata.distributions():
        if trees.owner(str(distribution.locate_file(""))) is not None:
            continue  # an egg-info that a build left beside the code
        text = distribution.read_text("direct_url.json")  # PEP 610: only without an index
        record = json.loads(text) if text else {}
        url = urlsplit(record.get("url", ""))
        is_here = url.scheme == "file" and trees.owner(url2pathname(url.path)) is not None
        if not is_here and not (named and _normal(distribution.name or "") == _normal(named[1])):
            continue
        editable = record.get("dir_info", {}).get("editable")
        for file in distribution.files or ():
            if len(file.parts) > 1 or not editable:  # else it is what finds the code
                yield str(distribution.locate_file(file)), str(file)


def _normal(name: str) -> str:
    """The normalized name of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def origins(root: StrPath, others: Sequence[StrPath]) -> dict[str, Any]:
    """Where modules were loaded from that are not this side's code, by name.

    ``foreign``: a file in another tree, or a folder there in which a package searches.
    ``installed``: a file of an installed copy of this project. ``root`` and ``others`` are the
    trees. Call it after collection, and again at the end for late imports by tests.
    """
    trees = Trees(root, others)
    copies = {_real(file) for file, _ in _copies(trees)} if trees.others else set()
    foreign: dict[str, str] = {}
    installed: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _TOOL:
            continue
        for place in _places(module):
            if trees.owner(place) in trees.others:
                foreign.setdefault(name, place)
            elif _real(place) in copies:
                installed.setdefault(name, place)
    return {"root": trees.root, "others": trees.others, "foreign": foreign, "installed": installed}


def _places(module: object) -> Iterator[str]:
    """The file of a module, and the folders that it searches for its submodules."""
    names = getattr(module, "__dict__", None)  # without triggering lazy loading
    if not isinstance(names, dict):
        return
    try:
        places = [names.get("__file__"), *(names.get("__path__") or ())]
    except Exception:  # noqa: BLE001 - somebody's own object
        return
    yield from (place for place in places if isinstance(place, str) and os.path.isabs(place))


def proven(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Raise `AbError` unless each side's code, according to `origins`, is its own.

    A side that had nothing to run, and so reports nothing, has run nobody else's.
    """
    for name, side, their, other in (("A", a, "B", b), ("B", b, "A", a)):
        for module, file in side.get("foreign", {}).items():
            is_theirs = other and Trees(other["root"], ()).owner(file)
            whose = f"the tree of {their}" if is_theirs else "your checkout"
            raise AbError(
                f"side {name} ran code from outside its tree",
                f"{module} is imported from {file}, in {whose}, not from {side['root']}",
                "install each side into its own environment and pass them with"
                " --python-a and --python-b",
            )
        for module, file in side.get("installed", {}).items():
            raise AbError(
                f"side {name} ran an installed copy of its code, the same on both sides",
                f"{module} is imported from {file}, not from {side['root']}",
                "install it with `pip install -e .`, or set PYTHONPATH to the folder it is in",
            )
