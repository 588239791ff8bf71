"""A session as a comment on a pull request, or as the summary of a job: what failed first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.files import is_other_file
from pytest_torchprof.core.units import (
    UNKNOWN,
    format_change,
    format_pair,
    format_quantity,
    plural,
)
from pytest_torchprof.render import escape
from pytest_torchprof.render.text_width import shorten, shorten_text
from pytest_torchprof.render.trackers import Series, series_of

if TYPE_CHECKING:
    from pytest_torchprof.render.stored_report import StoredReport

#: The first line, which nobody sees: a job finds its comment by it, and we our file.
MARK = "<!-- torchprof -->"
#: GitHub's limits: 65,536 characters for a comment, 1 MiB for the summary of a step.
COMMENT_BYTES, SUMMARY_BYTES = 64_000, 1_000_000

#: The longest name or sentence in a cell.
_NAME, _TEXT = 120, 300
#: Room for the line that says what was cut.
_LAST_LINE = 200


class _Table(NamedTuple):
    heading: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def comment(report: StoredReport, totals: str, most_bytes: int) -> str:
    """The Markdown, in at most so many bytes of UTF-8; what does not fit is counted.

    ``totals``: the line with the number of tests, by status.
    """
    lines = [MARK, f"### {escape.escape_markdown(totals)}", ""]
    if key := report.environment.get("key"):
        lines += [escape.escape_markdown(shorten_text(escape.line(str(key)), _TEXT)), ""]
    if report.interrupted:
        lines += ["The session was interrupted: tests are missing.", ""]
    room = most_bytes - _LAST_LINE - _size(lines)
    cut = 0
    for table in _tables(report):
        head = [
            f"**{table.heading}**",
            "",
            _row(table.columns),
            _row("---" for _ in table.columns),
        ]
        shown: list[str] = []
        room -= _size(head) + 1
        for cells in table.rows:
            line = _row(cells)
            room -= _size([line])
            if room < 0:
                break
            shown.append(line)
        lines += [*head, *shown, ""] if shown else []
        cut += len(table.rows) - len(shown)
    if cut:
        lines.append(f"… and {plural(cut, 'more row')} than fit here; the report has all")
    return "\n".join(lines).rstrip("\n") + "\n"


def check_comment(path: Path) -> None:
    """Reject a name for the comment that is the name of another kind of file.

    Raises:
        SettingsError: such a file exists.
    """
    if is_other_file(path, lambda path: path.read_bytes().startswith(MARK.encode())):
        raise SettingsError(
            f"{path} is not replaced",
            "it exists and is not a comment of torchprof",
            "name another file, or remove this one first",
        )


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str | None, longest: int = _NAME) -> str:
    return escape.table_cell(escape.code(shorten(escape.line(text or ""), longest)))


def _words(text: str | None) -> str:
    return escape.table_cell(escape.escape_markdown(shorten_text(escape.line(text or ""), _TEXT)))


# -------------------------------------------------------------------- what is shown


def _tables(report: StoredReport) -> Iterator[_Table]:
    """The most important first; empty ones are left out."""
    series = list(series_of(report))
    failed = [one for one in series if one.metric.status in ("regressed", "over_budget")]
    improved = [one for one in series if one.metric.status == "improved"]
    told = [one for one in series if one.metric.status == "advisory" and one.metric.reason]
    unchecked = [
        one
        for one in series
        if one.metric.status == "not_measured" and _limit(one) + _number(one, "baseline")
    ]
    others = [test for test in report.tests if test.status == "not_profiled"]
    new = [test for test in report.tests if test.status == "new"]
    compared = ("test", "metric", "status", "baseline", "now", "change", "limit")
    tables = (
        _Table("Regressed, or over a limit", compared, [_compared(one) for one in failed]),
        _Table(
            "Findings", ("rule", "test", "where", "count", "to gain", "what"), _findings(report)
        ),
        _Table("Improved", compared, [_compared(one) for one in improved]),
        _Table(
            "Differs, and only advises",
            (*compared[:-1], "why"),
            [[*_compared(one)[:-1], _words(one.metric.reason)] for one in told],
        ),
        _Table(
            "Not measured",
            ("test", "metric", "why"),
            [
                [_code(one.benchmark), _code(one.label), _words(one.metric.reason)]
                for one in unchecked
            ],
        ),
        _Table(
            "Not profiled",
            ("test", "outcome", "why"),
            [[_code(t.nodeid), _words(t.outcome), _words(t.reason)] for t in others],
        ),
        _Table(
            "New, without a baseline",
            ("test", "why"),
            [[_code(t.nodeid), _words(t.reason)] for t in new],
        ),
    )
    return (table for table in tables if table.rows)


def _compared(one: Series) -> list[str]:
    metric = one.metric
    before, now = format_pair(metric.baseline, one.value, metric.unit)
    if one.value is None and metric.at_least is not None:
        now = f"at least {format_quantity(metric.at_least, metric.unit)}"
    known = metric.baseline is not None and one.value is not None
    change = format_change(metric.baseline, one.value) if known else ""
    return [
        _code(one.benchmark),
        _code(one.label),
        f"**{_words(metric.status.replace('_', ' '))}**",
        _words(before if metric.baseline is not None else ""),
        _words(now),
        _words(change),
        _words(_limit(one)),
    ]


def _limit(one: Series) -> str:
    limits = {"at least": one.metric.least, "at most": one.metric.limit}
    return ", ".join(
        f"{word} {format_quantity(value, one.metric.unit)}"
        for word, value in limits.items()
        if value is not None
    )


def _number(one: Series, field: str) -> str:
    value = getattr(one.metric, field)
    return "" if value is None else format_quantity(value, one.metric.unit)


def _findings(report: StoredReport) -> list[list[str]]:
    """Those that are not accepted, the costliest first, those of unknown cost last."""
    found = [
        (test.nodeid, finding)
        for test in report.tests
        for finding in test.findings
        if not finding.accepted
    ]
    found.sort(key=lambda pair: 1 if pair[1].cost_ms is None else -pair[1].cost_ms)
    return [
        [
            _code(finding.rule),
            _code(nodeid),
            _code(finding.location),
            f"{finding.count:,}",
            UNKNOWN if finding.cost_ms is None else format_quantity(finding.cost_ms, "ms"),
            _words(finding.message if finding.gated else f"advice: {finding.message}"),
        ]
        for nodeid, finding in found
    ]


def sentences(failed: Sequence[Series]) -> str:
    """What failed, in a line: ``ops 3 → 5 (+66.7 %); kernels 9, limit: at most 4``."""
    parts = []
    for one in failed:
        label = one.label if one.region is None else f"{one.label} of {one.region}"
        before, now = format_pair(one.metric.baseline, one.value, one.metric.unit)
        if one.metric.status == "over_budget":
            if one.value is None and one.metric.at_least is not None:
                now = f"at least {format_quantity(one.metric.at_least, one.metric.unit)}"
            parts.append(f"{label} {now}, limit: {_limit(one)}")
        else:
            change = format_change(one.metric.baseline, one.value)
            parts.append(f"{label} {before} → {now} ({change})")
    return "; ".join(parts)
