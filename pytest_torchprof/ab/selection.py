"""Select the tests that the user asked for, in a tree that may lack some of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


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
