"""A hash of each test's own source, by which a history knows that the test itself was changed.

It covers the function, not what it calls. Comments, blank lines, marks such as budgets, and inline
expectations, which ``--accept`` rewrites, do not count: they change nothing of what is measured.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Characters of the hash: 64 bits.
_LENGTH = 16
_INLINE = "assert_expected_inline"


def source_hashes(lines: Mapping[str, tuple[str, int]], root: Path) -> dict[str, str]:
    """Node id → hash, of tests whose source is found.

    ``lines`` has each test's file, relative to ``root``, and its line, from 1.
    """
    by_file: dict[str, dict[str, int]] = {}
    for nodeid, (file, line) in lines.items():
        by_file.setdefault(file, {})[nodeid] = line
    found: dict[str, str] = {}
    for file, tests in by_file.items():
        try:
            text = (root / file).read_text("utf-8")
            functions = list(_functions(ast.parse(text)))
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        known: dict[int, str] = {}
        for nodeid, line in tests.items():
            if line not in known and (node := _at(functions, line)) is not None:
                known[line] = source_hash(text, node)
            if line in known:
                found[nodeid] = known[line]
    return found


def _functions(tree: ast.AST) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            yield node


def _begin(node: _Function) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _at(functions: list[_Function], line: int) -> _Function | None:
    """The innermost function with this line."""
    around = [node for node in functions if _begin(node) <= line <= (node.end_lineno or 0)]
    return max(around, key=_begin, default=None)


def source_hash(text: str, node: _Function) -> str:
    """The hash of what the function does."""
    lines = [line.encode() for line in text.split("\n")]
    marks = [one for one in node.decorator_list if _is_mark(one)]
    inline = [arg for call in ast.walk(node) if _is_inline(call) for arg in call.args]  # type: ignore[attr-defined]
    for part in sorted([*marks, *inline], key=lambda part: (-part.lineno, -part.col_offset)):
        _blank(lines, part)
    own = lines[_begin(node) - 1 : node.end_lineno]
    kept = [line.strip() if line.strip() == b"@" else line.rstrip() for line in own]
    kept = [line for line in kept if line.strip() not in {b"", b"@"} and line.strip()[:1] != b"#"]
    indent = min((len(line) - len(line.lstrip()) for line in kept), default=0)
    body = b"\n".join(line[indent:] for line in kept)
    return hashlib.sha256(body).hexdigest()[:_LENGTH]


def _blank(lines: list[bytes], part: ast.expr) -> None:
    """Remove a part; columns count bytes."""
    first, last = part.lineno - 1, (part.end_lineno or part.lineno) - 1
    rest = lines[last][part.end_col_offset :]
    for at in range(first + 1, last + 1):
        lines[at] = b""
    lines[first] = lines[first][: part.col_offset] + rest


def _is_mark(node: ast.expr) -> bool:
    """Whether it is ``pytest.mark.…`` or ``mark.…``."""
    names: list[str] = []
    while isinstance(node, ast.Call):
        node = node.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names += [node.id] if isinstance(node, ast.Name) else []
    return "mark" in names[1:]


def _is_inline(node: ast.AST) -> bool:
    """Whether it is a call of the inline assertion."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return bool(name == _INLINE)
