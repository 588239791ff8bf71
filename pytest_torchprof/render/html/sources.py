"""Lines of the user's files, to be shown beside what was found there."""

from __future__ import annotations

import ast
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_torchprof.render.source_lines import source_line
from pytest_torchprof.render.text_width import shorten

#: Lines before and after the one that is named.
_AROUND = 2
#: The longest line shown, in columns; the most lines of a test; the largest file that is read.
_WIDEST, _MOST_LINES, _LARGEST_BYTES = 200, 16, 2_000_000


class CodeLine(NamedTuple):
    """A line of a file; ``named``: it is the one that is meant."""

    number: int
    text: str
    named: bool


class Excerpt(NamedTuple):
    """Some lines of a file; ``cut``: how many more the test has."""

    path: str
    line: int
    lines: list[CodeLine]
    cut: int = 0


class Sources:
    """Reads Python files below ``root``, and no others: a report may name any file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, tuple[str, ...]] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def around(self, location: str | None, operators: str | None) -> Excerpt | None:
        """The lines around a finding's ``location``; None if they are not at hand."""
        place = source_line(location, operators, self._root)
        if place is None:
            return None
        lines = self._lines(place.path)
        if not 1 <= place.line <= len(lines):
            return None
        first = max(1, place.line - _AROUND)
        shown = lines[first - 1 : place.line + _AROUND]
        return Excerpt(place.path, place.line, _numbered(shown, first, place.line))

    def of_test(self, nodeid: str) -> Excerpt | None:
        """The first lines of a test's function; None if it is not found."""
        file, _, name = nodeid.partition("::")
        place = source_line(f"{file}:1", None, self._root)
        found = None if place is None else self._function(place.path, name.partition("[")[0])
        if place is None or found is None:
            return None
        first, last = found
        lines = self._lines(place.path)[first - 1 : last]
        shown = _numbered(lines[:_MOST_LINES], first, 0)
        return Excerpt(place.path, first, shown, len(lines) - len(shown))

    def _function(self, path: str, name: str) -> tuple[int, int] | None:
        """The first and the last line of the function, from 1."""
        if path not in self._trees:
            self._trees[path] = _parsed("\n".join(self._lines(path)))
        scope: ast.AST | None = self._trees[path]
        for part in name.split("::"):
            scope = _defined(part, scope)
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        first = min([scope.lineno, *(mark.lineno for mark in scope.decorator_list)])
        return first, scope.end_lineno or first

    def _lines(self, path: str) -> tuple[str, ...]:
        if path not in self._files:
            self._files[path] = _read(self._root, path)
        return self._files[path]


def _parsed(code: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's code, which pytest has told
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _defined(name: str, scope: ast.AST | None) -> ast.AST | None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    parts = getattr(scope, "body", [])
    found = [part for part in parts if isinstance(part, kinds) and part.name == name]
    return found[-1] if found else None  # the last one is the one that counts


def _numbered(lines: Sequence[str], first: int, named: int) -> list[CodeLine]:
    return [
        CodeLine(number, shorten(text.expandtabs(4), _WIDEST), number == named)
        for number, text in enumerate(lines, first)
    ]


def _read(root: Path, path: str) -> tuple[str, ...]:
    """The lines of a Python file below the root; none if it is not there."""
    try:
        file = (root / path).resolve()
        if file.suffix != ".py" or not file.is_relative_to(root.resolve()):
            return ()
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return ()
        # As Python counts lines, which form feeds and others do not end.
        return tuple(file.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n").split("\n"))
    except (OSError, ValueError, RuntimeError):
        return ()
