"""Expected values inside the test's source, which expecttest rewrites in place."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.baseline.store import alone, replace_file
from pytest_torchprof.core.errors import BaselineError, SettingsError, UnitError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.process import late
from pytest_torchprof.core.units import alike, format_exact, format_quantity, parse_quantity, says
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.verdict.metrics import METRICS, tolerant

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Tolerance
    from pytest_torchprof.verdict.metrics import Metric


# ---- Test files as Python compiled them, and the literal that a call in them received.

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
