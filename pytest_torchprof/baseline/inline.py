"""Expected values inside the test's source, rewritten in place through expecttest."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_torchprof.baseline.files import replace_file
from pytest_torchprof.errors import BaselineError
from pytest_torchprof.metrics import METRICS
from pytest_torchprof.stats import NotMeasured, Value
from pytest_torchprof.units import format_quantity

#: What an empty expectation is filled with: what identifies the work done, wherever it runs.
DEFAULT_METRICS = ("flops", "ops")


@dataclass(frozen=True)
class Edit:
    """A literal at a line of a file that shall read ``text``."""

    file: str
    line: int
    text: str


def expected_metrics(expected: str) -> Sequence[str]:
    """The metrics that an expectation names, one a line; the default ones for an empty one."""
    names = [line.split()[0] for line in expected.splitlines() if line.strip()]
    known = [name for name in names if name in METRICS]
    return known or DEFAULT_METRICS


def render_inline(metrics: Mapping[str, Value], names: Sequence[str]) -> str:
    """``name   value`` lines, as they stand in the source."""
    width = max(len(name) for name in names) + 3
    lines = []
    for name in names:
        value = metrics[name]
        text = (
            f"not measured ({value.reason})"
            if isinstance(value, NotMeasured)
            else format_quantity(value, METRICS[name].unit)
        )
        lines.append(f"{name:<{width}}{text}\n")
    return "".join(lines)


def apply(edits: Iterable[Edit]) -> list[Edit]:
    """Rewrite the literals, last line first; returns the edits that were made.

    Raises:
        BaselineError: a literal cannot be found or differs between two runs of one line, or a file
            cannot be written; files before it are done, the others untouched.
    """
    by_file: dict[str, dict[int, Edit]] = {}
    for edit in edits:
        lines = by_file.setdefault(edit.file, {})
        other = lines.setdefault(edit.line, edit)
        if other.text != edit.text:
            raise BaselineError(
                f"{edit.file}:{edit.line} was measured with different values. A parametrized "
                "test needs one assert_expected_inline for each distinct output."
            )
    done = []
    for file, lines in by_file.items():
        if not Path(file).is_file():
            raise BaselineError(f"{file} is no file, so its inline expectation cannot be rewritten")
        source = Path(file).read_bytes().decode("utf-8")
        for line in sorted(lines, reverse=True):
            source = _rewrite(source, lines[line])
            done.append(lines[line])
        replace_file(Path(file), source, what=file, next_step="Make it writable and accept again")
    return done


def _rewrite(source: str, edit: Edit) -> str:
    import expecttest

    first, last = _statement(source, edit.line)
    try:
        new, _ = expecttest.replace_string_literal(source, first, last, edit.text)
    except AssertionError as error:
        raise BaselineError(f"{edit.file}:{edit.line} cannot be rewritten: {error}") from error
    if new == source:
        raise BaselineError(
            f"{edit.file}:{edit.line} has no triple-quoted string to rewrite. "
            'Write torchprof.assert_expected_inline("""""").'
        )
    return new


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost simple statement around the line."""
    best = (line, line)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr | ast.Assign) or node.end_lineno is None:
            continue
        if node.lineno <= line <= node.end_lineno:
            best = (node.lineno, node.end_lineno)
    return best
