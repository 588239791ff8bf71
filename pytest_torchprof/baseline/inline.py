"""Expected values inside the test's source, which expecttest rewrites in place."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.baseline.replace_file import alone, replace_file
from pytest_torchprof.baseline.source_files import (
    CallSite,
    ChangedError,
    Site,
    SourceFile,
    Sources,
    contents,
)
from pytest_torchprof.core.errors import BaselineError, SettingsError, UnitError
from pytest_torchprof.core.results import MissingValue, Value
from pytest_torchprof.core.units import (
    alike,
    format_exact,
    format_quantity,
    parse_quantity,
    says,
)
from pytest_torchprof.verdict.metric import tolerant
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Tolerance
    from pytest_torchprof.verdict.metric import Metric

#: The metrics for an empty expectation: they identify the work done, on any machine.
DEFAULT_METRICS = ("flops", "ops")

_MEND = "make it writable and accept again"
_DIFFERENT = (
    "was measured with different values. A parametrized test needs one assert_expected_inline for "
    "each distinct output."
)
_DIFFERENT_BY_NAME = (
    "was measured with different values under several names of one file ({names}). Run it under "
    "one of them, or make each a file of its own."
)


class Edit(NamedTuple):
    """A literal at a line of a file, to be changed from ``old`` to ``text``.

    ``site`` identifies it; ``problem`` says why that is impossible.
    """

    file: str
    line: int
    text: str
    old: str = ""
    site: Site | None = None
    problem: str = ""


class Problem(NamedTuple):
    """An edit that failed, and why, as the end of a sentence."""

    edit: Edit
    what: str


def expected_metrics(expected: str) -> Sequence[str]:
    """The metrics that an expectation names, one per line; the default ones if it is empty.

    Raises:
        SettingsError: it is not a string, or names a time.
    """
    __tracebackhide__ = True
    if not isinstance(expected, str):
        raise SettingsError(
            "an inline expectation must be a string",
            f"this one is of type {type(expected).__name__}",
            'write assert_expected_inline("""""") and let --accept fill it in',
        )
    names = [line.split()[0] for line in expected.splitlines() if line.strip()]
    known = [name for name in names if name in METRICS]
    for name in known:
        if METRICS[name].klass == "time":
            raise SettingsError(
                f"{name} cannot be part of an inline expectation",
                "times differ from run to run",
                f"write @pytest.mark.max_{name}(…), or assert torchprof.stats.{name} <= …",
            )
    return known or DEFAULT_METRICS


def render_inline(
    metrics: Mapping[str, Value],
    names: Sequence[str],
    expected: str = "",
    tolerances: Sequence[Tolerance] = (),
) -> str:
    """``name   value`` lines for the source; lines that still hold keep their text.

    Lines of metrics that were not measured hold, unless a lower bound exceeds them; without text
    they are left out.
    """
    width = max((len(name) for name in names), default=0) + 3
    before = dict(_rows(expected))
    lines = []
    for name in names:
        value, stated = metrics[name], before.get(name, "")
        metric = tolerant(METRICS[name], tolerances)
        text = stated if _holds(stated, value, metric) else _written(stated, value, metric)
        if text:
            lines.append(f"{name:<{width}}{text}\n")
    return "".join(lines)


def holds(
    expected: str, metrics: Mapping[str, Value], tolerances: Sequence[Tolerance] = ()
) -> bool:
    """Whether every line of an expectation matches the measurement, whatever its alignment."""
    rows = _rows(expected)
    return bool(rows) and all(
        name in METRICS and _holds(stated, metrics[name], tolerant(METRICS[name], tolerances))
        for name, stated in rows
    )


def _rows(expected: str) -> list[tuple[str, str]]:
    rows = (line.split() for line in expected.splitlines() if line.strip())
    return [(name, " ".join(words)) for name, *words in rows]


def _written(stated: str, value: Value, metric: Metric) -> str:
    """A new value in the usual format, or with all digits if the existing text has them."""
    if isinstance(value, MissingValue):
        return f"at least {format_quantity(value.at_hand, metric.unit)}" if stated else ""
    with suppress(UnitError):
        before = parse_quantity(stated, metric.unit)
        if stated.replace(",", "") == format_exact(before, metric.unit).replace(",", "") and (
            stated != format_quantity(before, metric.unit)
        ):
            return format_exact(value, metric.unit)
    return format_quantity(value, metric.unit)


def _holds(stated: str, value: Value, metric: Metric) -> bool:
    if isinstance(value, MissingValue):
        return bool(stated) and not _exceeded(stated, value, metric)
    if stated == format_quantity(value, metric.unit) or says(stated, value, metric.unit):
        return True
    with suppress(UnitError):
        before = parse_quantity(stated, metric.unit)
        return alike(before, value, metric.tolerance, metric.margin)
    return False


def _exceeded(stated: str, value: MissingValue, metric: Metric) -> bool:
    """Whether a lower bound is more than the text says."""
    if not value.at_least or value.at_hand is None or _holds(stated, value.at_hand, metric):
        return False
    with suppress(UnitError):
        return value.at_hand > parse_quantity(stated, metric.unit)
    return False


def unknown_now(expected: str, metrics: Mapping[str, Value]) -> list[str]:
    """Metrics whose lines cannot be rewritten: only a lower bound above them is known."""
    return [
        name
        for name, stated in _rows(expected)
        if name in METRICS
        and isinstance(value := metrics[name], MissingValue)
        and _exceeded(stated, value, METRICS[name])
    ]


def located(frame: FrameType, text: str, expected: str, sources: Sources) -> Edit:
    """The edit of the literal that the frame's call received, in the file as compiled."""
    edit = Edit(frame.f_code.co_filename, frame.f_lineno, text, expected)
    try:
        return edit._replace(site=sources.of(edit.file).locate(CallSite.of(frame), expected))
    except BaselineError as error:
        return edit._replace(problem=str(error))


def refusal(frame: FrameType, expected: str) -> str | None:
    """Why a later accept could not rewrite the literal; None if nothing prevents it."""
    try:
        SourceFile(contents(Path(frame.f_code.co_filename))).locate(CallSite.of(frame), expected)
    except ChangedError:
        return None  # a new process will do that
    except BaselineError as error:
        return str(error)
    return None


def apply(edits: Iterable[Edit]) -> tuple[list[Edit], list[Problem]]:
    """Rewrite the literals; return the edits made, and those that failed with the reason.

    A site or a file that cannot be rewritten is left unchanged; the others are rewritten. A file of
    several names is one file, and equal edits by several names are one edit.
    """
    by_file: dict[object, dict[object, list[Edit]]] = {}
    for edit in edits:
        sites = by_file.setdefault(_identity(edit.file), {}).setdefault(edit.site or edit.line, [])
        if not any(edit == one._replace(file=edit.file) for one in sites):
            sites.append(edit)
    done: list[Edit] = []
    problems: list[Problem] = []
    for sites_of_file in by_file.values():
        edits_of_file = list(sites_of_file.values())
        made, refused = _apply_to_file(Path(edits_of_file[0][0].file), edits_of_file)
        done += made
        problems += refused
    return done, problems


def _identity(file: str) -> object:
    """Equal for all names of one file: links of either kind."""
    try:
        found = os.stat(file)  # noqa: PTH116 - no Path is needed
    except (OSError, ValueError):
        return file
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(file)


def _different(edits: Sequence[Edit]) -> str:
    """Why edits of one literal exclude each other."""
    files = sorted({edit.file for edit in edits})
    if len(files) < len(edits):
        return _DIFFERENT
    names = [Path(file).name for file in files]
    shown = names if len(set(names)) == len(names) else files
    return _DIFFERENT_BY_NAME.format(names=" and ".join(shown))


def _apply_to_file(file: Path, sites: Iterable[Sequence[Edit]]) -> tuple[list[Edit], list[Problem]]:
    problems: list[Problem] = []
    wanted: list[Edit] = []
    for edit, *others in sites:
        if edit.problem:
            problems.append(Problem(edit, edit.problem))
        elif others:
            problems.append(Problem(edit, _different([edit, *others])))
        else:
            wanted.append(edit)
    if not wanted:
        return [], problems
    done: list[Edit] = []
    try:
        with alone(file):
            source = SourceFile(contents(file))
            changes: list[tuple[int, int, str]] = []
            for edit in wanted:
                try:
                    changes.append(_change(source, edit))
                    done.append(edit)
                except BaselineError as error:
                    problems.append(Problem(edit, str(error)))
            _write(file, source, changes)
    except BaselineError as error:
        failed = {problem.edit for problem in problems}
        return [], problems + [Problem(e, str(error)) for e in wanted if e not in failed]
    return done, problems


def _write(file: Path, source: SourceFile, changes: list[tuple[int, int, str]]) -> None:
    text = source.text
    for start, end, new in sorted(changes, reverse=True):  # so that the others stay in place
        text = text[:start] + new + text[end:]
    if not changes:
        return
    try:
        replace_file(file, text, encoding=source.encoding, what="", next_step=_MEND)
    except BaselineError as error:
        raise BaselineError(f"cannot be rewritten: {error.found}; {error.next_step}") from error


def _change(source: SourceFile, edit: Edit) -> tuple[int, int, str]:
    """Begin and end of the literal in the source, and its new text."""
    assert edit.site is not None  # noqa: S101 - the caller has looked
    start, literal = source.find(edit.site), edit.site.literal
    new = _literal(literal, edit.text).replace("\n", source.line_end_at(start))
    return start, start + len(literal), new


def _literal(old: str, text: str) -> str:
    """A literal with this value and the same quotes, and the same prefix if possible."""
    import expecttest

    prefix = old[: re.match("[a-zA-Z]*", old).end()]  # type: ignore[union-attr]
    raw = "r" if prefix in ("r", "R") else ""
    quotes = old[len(prefix) :][:3]
    try:
        new, _ = expecttest.replace_string_literal(f"{raw}{quotes}{quotes}", 1, 1, text)
        if ast.literal_eval(new) != text:
            raise BaselineError("cannot be rewritten: the new text does not fit in its quotes")
    except (AssertionError, SyntaxError, ValueError) as error:
        raise BaselineError(f"cannot be rewritten: {error}") from error
    if raw:
        return prefix + new[1:] if new.startswith("r") else new
    return prefix + new
