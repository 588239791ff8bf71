"""Show the tests of the retold project in the documents."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "tests" / "retold" / "project"


def tests_of(file: Path) -> str:
    """The tests of a file, without its models and helpers, as a block of code."""
    text = file.read_text("utf-8")
    lines = text.splitlines()
    tests = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            tests.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "```python\n" + "\n\n\n".join(tests) + "\n```"


MAKERS: dict[str, Callable[[], str]] = {
    f"retold_{file.stem.removeprefix('test_')}": partial(tests_of, file)
    for file in sorted(PROJECT.glob("test_*.py"))
}
