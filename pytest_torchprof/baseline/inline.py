"""Expected values inside the test's source, rewritten in place through expecttest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_torchprof.baseline.files import replace_file
from pytest_torchprof.errors import BaselineError, SettingsError
from pytest_torchprof.files import why
from pytest_torchprof.metrics import METRICS
from pytest_torchprof.stats import NotMeasured, Value
from pytest_torchprof.units import format_quantity

#: What an empty expectation is filled with: what identifies the work done, wherever it runs.
DEFAULT_METRICS = ("flops", "ops")

_DIFFERENT = (
    "was measured with different values. A parametrized test needs one assert_expected_inline for "
    "each distinct output."
)


@dataclass(frozen=True)
class Edit:
    """A literal at a line of a file that shall read ``text``."""

    file: str
    line: int
    text: str
    old: str = ""


class Problem(NamedTuple):
    """An edit that could not be made, and the end of a sentence that says why."""

    edit: Edit
    what: str


def expected_metrics(expected: str) -> Sequence[str]:
    """The metrics that an expectation names, one a line; the default ones for an empty one.

    Raises:
        SettingsError: it names a time.
    """
    names = [line.split()[0] for line in expected.splitlines() if line.strip()]
    known = [name for name in names if name in METRICS]
    for name in known:
        if METRICS[name].klass == "time":
            raise SettingsError(
                f"{name} cannot stand in an inline expectation",
                "a time is never the same twice",
                f"write @pytest.mark.max_{name}(…), or assert torchprof.stats.{name} <= …",
            )
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


def apply(edits: Iterable[Edit]) -> tuple[list[Edit], list[Problem]]:
    """Rewrite the literals; returns the edits that were made, and those that were not and why.

    A site or a file that cannot be rewritten stays as it is, and the others are rewritten.
    """
    by_file: dict[str, dict[int, list[Edit]]] = {}
    for edit in edits:
        sites = by_file.setdefault(edit.file, {}).setdefault(edit.line, [])
        if edit not in sites:
            sites.append(edit)
    done: list[Edit] = []
    problems: list[Problem] = []
    for file, lines in by_file.items():
        made, refused = _apply_to_file(Path(file), lines)
        done += made
        problems += refused
    return done, problems


def refusal(edit: Edit) -> str | None:
    """Why the literal could not be rewritten, before anybody tries; None if it can."""
    try:
        _rewrite(Path(edit.file).read_bytes().decode("utf-8"), edit)
    except (BaselineError, OSError, UnicodeDecodeError) as error:
        return str(error)
    return None


def _apply_to_file(
    file: Path, lines: Mapping[int, Sequence[Edit]]
) -> tuple[list[Edit], list[Problem]]:
    done: list[Edit] = []
    problems: list[Problem] = []
    sites = [sites[0] for sites in lines.values()]
    try:
        before = source = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = "cannot be rewritten: the file " + (
            f"cannot be read: {why(error)}" if isinstance(error, OSError) else "is not UTF-8"
        )
        return [], [Problem(site, what) for site in sites]
    for line in sorted(lines, reverse=True):  # the last first, so that the others stay in place
        edit, *others = lines[line]
        if others:
            problems.append(Problem(edit, _DIFFERENT))
            continue
        try:
            source = _rewrite(source, edit)
        except BaselineError as error:
            problems.append(Problem(edit, str(error)))
        else:
            done.append(edit)
    if source != before:
        try:
            replace_file(file, source, what="", next_step="make it writable and accept again")
        except BaselineError as error:
            what = f"cannot be rewritten: {error.found}; {error.next_step}"
            return [], problems + [Problem(edit, what) for edit in done]
    return done, problems


def _rewrite(source: str, edit: Edit) -> str:
    import expecttest

    try:
        first, last = _statement(source, edit.line)
        new, _ = expecttest.replace_string_literal(source, first, last, edit.text)
    except (AssertionError, SyntaxError) as error:
        raise BaselineError(f"cannot be rewritten: {error}") from error
    if new == source:
        raise BaselineError(
            "has no triple-quoted string to rewrite. "
            'Write torchprof.assert_expected_inline("""""").'
        )
    # Expecttest ends lines in its own way; in the statement they are to end as its first one does.
    rows = source.split("\n")
    if not rows[first - 1].endswith("\r"):
        return new
    head = len("\n".join(["", *rows[: first - 1]]))
    tail = len(new) - len("\n".join(rows[last:]))
    return new[:head] + re.sub(r"\r?\n", "\r\n", new[head:tail]) + new[tail:]


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost simple statement around the line."""
    best = (line, line)
    for node in ast.walk(ast.parse(source.removeprefix("\ufeff"))):
        if not isinstance(node, ast.Expr | ast.Assign) or node.end_lineno is None:
            continue
        if node.lineno <= line <= node.end_lineno:
            best = (node.lineno, node.end_lineno)
    return best
