"""Test files as Python compiled them, and the literal that a call in them received."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.lazy_regex import late

_LITERAL = late(r"(?P<prefix>[rRuU]?)(?P<quote>'''|\"\"\")(?:[^\\]|\\.)*?(?P=quote)", re.DOTALL)
#: Line ends as Python's parser sees them.
_LINE_END = late(r"\r\n|\r|\n")

NO_LITERAL = (
    'has no triple-quoted string to rewrite. Write torchprof.assert_expected_inline("""""").'
)
_CHANGED = "cannot be rewritten: the file was changed {}; accept again"


class ChangedError(BaselineError):
    """The file changed since it was compiled, so the call's position is unknown."""


class CallSite(NamedTuple):
    """A frame's call: the line, and the end of the call in it in bytes, if known."""

    line: int
    end: tuple[int, int] | None = None

    @classmethod
    def of(cls, frame: FrameType) -> CallSite:
        """The call that the frame is in; Python 3.10 only knows the line."""
        positions = getattr(frame.f_code, "co_positions", None)
        if positions is not None:
            for index, (_, line, _, column) in enumerate(positions()):
                if index == frame.f_lasti // 2 and line is not None and column is not None:
                    return cls(frame.f_lineno, (line, column))
        return cls(frame.f_lineno)


class Site(NamedTuple):
    """A literal in a file, described so that it can be found after changes elsewhere in the file.

    ``function`` is the outermost function around it, with its classes; ``text`` is that function's
    text, which begins at ``start`` of the file with this ``digest``; ``at`` is the literal's offset
    in ``text``, and ``literal`` its source.
    """

    function: str
    text: str
    start: int
    at: int
    literal: str
    digest: str


class SourceFile:
    """The text of a file, and its syntax tree.

    Raises:
        BaselineError: it is not Python, or its encoding does not round-trip.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self.encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            self.text = data.decode(self.encoding)
            self._tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BaselineError(f"cannot be rewritten: {error}") from error
        if self.text.encode(self.encoding) != data:
            raise BaselineError(f"cannot be rewritten: its encoding is {self.encoding}")
        self.digest = hashlib.sha256(data).hexdigest()
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def locate(self, call: CallSite, expected: str) -> Site:
        """The literal that the call received as its expectation.

        Raises:
            ChangedError: there is no such call, or it has another expectation.
            BaselineError: its expectation is not a triple-quoted literal, or several calls match.
        """
        found = list(self._calls(call))
        known = call.end is not None and bool(found)
        if not known and call.end is not None:
            found = self._of_assert(call.end)
        if not known and len(found) > 1:  # distinguished by their arguments
            found = [node for node in found if _value(node) == expected]
            named = [node for node in found if _is_ours(node)]
            found = named or found
            if len(found) > 1:
                raise BaselineError("cannot be rewritten: several calls on its line look the same")
        if not found:
            raise ChangedError(_CHANGED.format("since it was imported"))
        argument = _argument(found[0])
        literal = "" if argument is None else self._segment(argument)
        whole = _LITERAL.match(literal)
        if argument is None or whole is None or whole.end() != len(literal):
            raise BaselineError(NO_LITERAL)
        if _value(found[0]) != expected:
            raise ChangedError(_CHANGED.format("since it was imported"))
        at = self._offset(argument.lineno, argument.col_offset)
        for name, start, end in self._functions():
            if start <= at < end:
                text = self.text[start:end]
                return Site(name, text, start, at - start, literal, self.digest)
        return Site("", "", 0, at, literal, self.digest)

    def find(self, site: Site) -> int:
        """Find the literal in this text, which may differ from the one it was located in.

        Raises:
            ChangedError: its function is gone, changed, or there twice.
        """
        if site.digest == self.digest:
            return site.start + site.at
        same = [
            start
            for name, start, end in self._functions()
            if name == site.function and self.text[start:end] == site.text
        ]
        if not site.function or len(same) != 1:
            raise ChangedError(_CHANGED.format("while the tests ran"))
        return same[0] + site.at

    def line_of(self, offset: int) -> int:
        """The line, from 1."""
        return bisect_right(self._starts, offset)

    def line_end_at(self, offset: int) -> str:
        """How the line ends; for the last line, how the first one ends."""
        match = _LINE_END.search(self.text, offset) or _LINE_END.search(self.text)
        return match[0] if match else "\n"

    # ---------------------------------------------------------------- the tree

    def _calls(self, call: CallSite) -> Iterator[ast.Call]:
        """Calls that end where this one does; or all around its line, if its end is unknown."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call) or node.end_lineno is None:
                continue
            if call.end is not None:
                if (node.end_lineno, node.end_col_offset) == call.end:
                    yield node
            elif node.lineno <= call.line <= node.end_lineno and _value(node) is not None:
                yield node

    def _of_assert(self, end: tuple[int, int]) -> list[ast.Call]:
        """Calls in the assert that ends there: older pytest gives them the assert's position."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assert) and (node.end_lineno, node.end_col_offset) == end:
                inner = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                return [one for one in inner if _value(one) is not None]
        return []

    def _functions(self) -> Iterator[tuple[str, int, int]]:
        """Outermost functions: qualified name, start including decorators, end."""
        pending: list[tuple[str, ast.AST]] = [("", self._tree)]
        while pending:
            name, parent = pending.pop()
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
                    yield f"{name}{node.name}", self._starts[first - 1], end
                elif isinstance(node, ast.ClassDef):
                    pending.append((f"{name}{node.name}.", node))
                elif not isinstance(node, ast.expr):  # an if, a try, a with
                    pending.append((name, node))

    def _segment(self, node: ast.expr) -> str:
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self.text[self._offset(node.lineno, node.col_offset) : end]

    def _offset(self, line: int, column: int) -> int:
        """The offset in the text for a column, which counts UTF-8 bytes."""
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode(errors="ignore"))


def _argument(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next((word.value for word in call.keywords if word.arg == "expected"), None)


def _value(call: ast.Call) -> str | None:
    argument = _argument(call)
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return None


def _is_ours(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "assert_expected_inline"


class Sources:
    """Files as they were when compiled: read once, and only if unchanged since then."""

    def __init__(self, started_ns: int) -> None:
        self._started_ns = started_ns
        self._known: dict[str, SourceFile | BaselineError] = {}

    def of(self, file: str) -> SourceFile:
        """The file, whose modules were imported since ``started_ns``.

        Raises:
            ChangedError: it was changed since then, so another text may have been compiled.
            BaselineError: it cannot be read.
        """
        if file not in self._known:
            try:
                self._known[file] = self._read(file)
            except BaselineError as error:
                self._known[file] = error
        found = self._known[file]
        if isinstance(found, BaselineError):
            raise found
        return found

    def _read(self, file: str) -> SourceFile:
        data = contents(Path(file))
        stat = os.stat(file)  # noqa: PTH116 - no Path is needed
        if max(stat.st_mtime_ns, stat.st_ctime_ns if os.name == "posix" else 0) > self._started_ns:
            raise ChangedError(_CHANGED.format("since pytest was started"))
        return SourceFile(data)


def contents(file: Path) -> bytes:
    """The file's bytes.

    Raises:
        BaselineError: it cannot be read.
    """
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise BaselineError(
            f"cannot be rewritten: cannot read the file: {system_message(error)}"
        ) from None
