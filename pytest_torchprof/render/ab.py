"""The table, page and report of `torchprof ab`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.units import (
    UNKNOWN,
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    plural,
)
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import (
    NOISY,
    MetricStatus,
    MissingValue,
    Record,
    TestStatus,
    Verdict,
)
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten
from pytest_torchprof.render.findings import wrapped
from pytest_torchprof.render.report import noise_of, test_of
from pytest_torchprof.render.table import Table, strong
from pytest_torchprof.render.unknown import in_words
from pytest_torchprof.verdict.compare import status_of
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.paired import CONFIDENCE

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Sample
    from pytest_torchprof.verdict.paired import Decision, Difference, PairedRow, RowVerdict


# ---- Rows of `torchprof ab` as fields, table cells, and notes.

#: What needs attention first.
ORDER: tuple[RowVerdict, ...] = (
    "slower",
    "failed",
    "error",
    "unclear",
    "faster",
    "new",
    "gone",
    "same",
    "skipped",
)

#: Fields of a row in JSON and CSV; ``change``, ``low`` and ``high`` are fractions of A.
FIELDS = (
    *("name", "verdict", "reason", "wall_ms_a", "wall_ms_b", "spread_a", "spread_b"),
    *("ratio", "change", "low", "high", "confidence", "p_value", "pairs", "calls_a", "calls_b"),
    *("cpu_ms_a", "cpu_ms_b", "differences", "unprofiled", "measured_s", "spent_s"),
)
#: Columns of the table for people.
AB_COLUMNS = ("test", "a", "b", "change", "verdict")

#: In a narrower terminal, the interval is a separate column, which may be dropped.
_WIDE = 100

Cells = dict[str, Any]

#: A test's name, or nothing, and a note on it; the printer escapes both.
_Line = tuple[str, str]


def by_urgency(rows: Sequence[PairedRow]) -> list[PairedRow]:
    """Sort by need for attention, then by largest change."""
    return sorted(rows, key=lambda row: (ORDER.index(row.verdict), -abs(_change(row) or 0)))


def _change(row: PairedRow) -> float | None:
    return None if row.decision is None else row.decision.ratio - 1


def row_cells(row: PairedRow) -> Cells:
    """A row for JSON and CSV, with null for missing values."""
    decision = row.decision
    decided: Cells = dict.fromkeys(("ratio", "change", "low", "high"))
    decided |= dict.fromkeys(("confidence", "p_value", "pairs"))
    if decision is not None:
        decided = {
            "ratio": decision.ratio,
            "change": decision.ratio - 1,
            "low": decision.low - 1,
            "high": decision.high - 1,
            "confidence": decision.confidence,
            "p_value": decision.p_value,
            "pairs": decision.pairs,
        }
    fields = {
        "name": row.nodeid,
        "verdict": row.verdict,
        "reason": _reason_words(row_note(row)),
        "wall_ms_a": row.a_ms and row.a_ms.median,
        "wall_ms_b": row.b_ms and row.b_ms.median,
        "spread_a": row.a_ms and row.a_ms.spread,
        "spread_b": row.b_ms and row.b_ms.spread,
        "calls_a": row.a_ms and row.a_ms.n,
        "calls_b": row.b_ms and row.b_ms.n,
        "cpu_ms_a": row.cpu_a_ms and row.cpu_a_ms.median,
        "cpu_ms_b": row.cpu_b_ms and row.cpu_b_ms.median,
        "differences": [{"metric": d.metric, "a": d.a, "b": d.b} for d in row.differences],
        "unprofiled": _reason_words(row.unprofiled),
        "measured_s": row.measured_s,
        "spent_s": row.spent_s,
        **decided,
    }
    return {name: fields[name] for name in FIELDS}


def _reason_words(reason: Reason | None) -> str | None:
    return None if reason is None else in_words(reason)


def cells_of(rows: Sequence[PairedRow], width: int | None) -> tuple[list[Cells], tuple[str, ...]]:
    """The rows as text, and their columns, for a terminal of this width (None: any)."""
    wide = width is None or width >= _WIDE
    columns = AB_COLUMNS if wide else (*AB_COLUMNS[:-1], "interval", AB_COLUMNS[-1])
    return [_cells(row, joined=wide) for row in rows], columns


def _cells(row: PairedRow, *, joined: bool) -> Cells:
    change, interval = changes(row.decision) if row.decision else (None, None)
    return {
        "test": row.nodeid,
        "a": timed(row.a_ms),
        "b": timed(row.b_ms),
        "change": f"{change} ({interval})" if joined and change and interval else change,
        "interval": interval,
        "verdict": row.verdict,
    }


def changes(decision: Decision) -> tuple[str, str]:
    """The change and its interval: ``+10.2 %`` and ``+9.1 … +11.4 %``."""
    change, low, high = (
        format_change(1.0, ratio) for ratio in (decision.ratio, decision.low, decision.high)
    )
    if low.endswith(" %") and high.endswith(" %"):
        low = low.removesuffix(" %")
    return change, f"{low} … {high}"


def timed(sample: Sample | None) -> str | None:
    """``3.21 ms ±4 %``: the median, and half the distance between the quartiles."""
    if sample is None:
        return None
    time = format_quantity(sample.median, "ms")
    return " ".join(filter(None, (time, format_spread(sample.spread))))


# -------------------------------------------------------------------- in words


def reasons(rows: Sequence[PairedRow]) -> list[_Line]:
    """A line for each row that needs explanation beyond its verdict."""
    lines: list[_Line] = []
    for row in rows:
        if (reason := row_note(row)) and row.verdict not in ("new", "gone"):
            prefix = "" if row.verdict in ("failed", "error") else f"{row.verdict}: "
            lines.append((row.nodeid, f"{prefix}{_line(reason)}"))
    return lines


def _line(reason: Reason) -> str:
    return " ".join(in_words(reason).split())


def noisy(rows: Sequence[PairedRow]) -> list[_Line]:
    """A line for each test whose calls took very different times."""
    lines: list[_Line] = []
    for row in rows:
        sides = {"A": row.a_ms, "B": row.b_ms}
        wide = [
            f"{format_spread(s.spread)} on {side}" for side, s in sides.items() if s and s.noisy
        ]
        if wide:
            lines.append((row.nodeid, " and ".join(wide)))
    return lines


def difference_lines(rows: Sequence[PairedRow]) -> list[_Line]:
    """``test_x: flops 1.2 GFLOP → 1.4 GFLOP (+16.7 %)``, a line for each exact metric."""
    return [(row.nodeid, difference(d)) for row in rows for d in row.differences]


def unprofiled(rows: Sequence[PairedRow]) -> list[_Line]:
    """A line for each test without exact metrics on a side, with the reason."""
    return [(row.nodeid, _line(row.unprofiled)) for row in rows if row.unprofiled]


def difference(found: Difference) -> str:
    """An exact metric that differs between the sides."""
    metric = METRICS.get(found.metric)
    a, b = format_pair(found.a, found.b, metric.unit if metric else "1")
    change = format_change(found.a, found.b)
    return f"{found.metric} {a} → {b}" + (f" ({change})" if change != UNKNOWN else "")


def compared_tests(rows: Sequence[PairedRow]) -> int:
    """The number of tests whose times were compared."""
    return sum(row.decision is not None for row in rows)


def row_note(row: PairedRow) -> Reason | None:
    """Why there is no answer, or a note on it."""
    return row.reason or (row.decision.reason if row.decision else None)


def verdict_counts(rows: Sequence[PairedRow]) -> str:
    """``2 slower, 15 same``."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[v]} {v}" for v in ORDER if counts[v]) or "no tests"


def ab_totals(rows: Sequence[PairedRow], threshold: float, seconds: float) -> str:
    """``2 slower, 15 same; 99 % confidence over 17 tests together, changes below …; 41 s``."""
    parts = [verdict_counts(rows)]
    if number := compared_tests(rows):
        over = f" over {plural(number, 'test')} together" if number > 1 else ""
        parts.append(
            f"{100 * CONFIDENCE:g} % confidence{over}, "
            f"changes below {100 * threshold:g} % are ignored"
        )
    return "; ".join([*parts, duration(seconds)])


def duration(seconds: float) -> str:
    """The duration of a run.

    >>> duration(0.4), duration(41.3), duration(200)
    ('0.4 s', '41 s', '3 min 20 s')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes > 1 else f"{round(seconds)} s"


# ---- The output of `torchprof ab` for people: heading, table, notes, and totals.

#: The most lines of each kind below the table, and the width of a test's name in them.
_MOST_LINES, _NAME = 12, 64
_NOISY = (
    f"calls took very different times (over ±{100 * NOISY:.0f} %); an idle machine, "
    "or OMP_NUM_THREADS=1 for small operators, helps:"
)
_BAD = ("slower", "failed", "error")


@dataclass(frozen=True)
class Page:
    """Everything to print; ``left`` counts hidden rows, ``every`` shows all notes."""

    heading: Sequence[str]
    rows: Sequence[PairedRow]
    left: int
    notes: Sequence[str]
    end: Sequence[str]
    every: bool = False


def text(page: Page, width: int) -> str:
    """For a terminal of this width."""
    cells, columns = cells_of(page.rows, width)
    blocks = [wrapped(page.heading, width)]
    left = "".join(f"{line}\n" for line in _left(page))
    blocks.append(Table(cells, columns).text(width) + left)
    for head, lines in _below(page):
        joined = [_joined(line, _short, str) for line in lines]
        indented = [f"  {line}" for line in joined] if head else joined
        blocks.append(wrapped([head, *indented] if head else indented, width))
    # Not shortened, so that a search finds it.
    blocks.append("".join(f"{escape.line(line)}\n" for line in page.end))
    return "\n".join(blocks)


def page_markdown(page: Page) -> str:
    """For a comment on a pull request."""
    cells, columns = cells_of(page.rows, None)
    for cell in cells:
        if cell["verdict"] in _BAD:
            cell["verdict"] = strong(cell["verdict"])
    blocks = [
        _listed(map(escape.escape_markdown, page.heading)),
        Table(cells, columns).markdown(),
    ]
    blocks += [escape.escape_markdown(line) for line in _left(page)]
    for head, lines in _below(page):
        blocks += [f"{escape.escape_markdown(head)}\n"] if head else []
        blocks.append(_listed(_joined(line, escape.code, escape.escape_markdown) for line in lines))
    blocks += [f"{escape.escape_markdown(line)}\n" for line in page.end]
    return "\n".join(blocks)


def _left(page: Page) -> list[str]:
    return [f"… and {plural(page.left, 'more row')}: --limit 0 shows all"] if page.left else []


def _below(page: Page) -> list[tuple[str, list[_Line]]]:
    """Blocks of notes below the table, each with its heading."""
    blocks = (
        ("", reasons(page.rows)),
        ("exact metrics that differ:", difference_lines(page.rows)),
        ("exact metrics were not compared:", unprofiled(page.rows)),
        (_NOISY, noisy(page.rows)),
        ("", [("", note) for note in page.notes]),
    )
    return [(head, _some(lines, every=page.every)) for head, lines in blocks if lines]


def _some(lines: list[_Line], *, every: bool) -> list[_Line]:
    """At most this many lines, and the number left out."""
    if every or len(lines) <= _MOST_LINES + 1:  # saying that one is left takes a line too
        return lines
    left = f"… and {len(lines) - _MOST_LINES} more: --limit 0 shows all"
    return [*lines[:_MOST_LINES], ("", left)]


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _joined(line: _Line, name: Callable[[str], str], text: Callable[[str], str]) -> str:
    """A note with the name of its test, if any, both escaped for the output."""
    return f"{name(line[0])}: {text(line[1])}" if line[0] else text(line[1])


def _short(name: str) -> str:
    return shorten(escape.line(name), _NAME)


# ---- The report of `torchprof ab`, like that of a test session on B with A as the baseline.

#: Decision → status of a time in a report.
_STATUSES: dict[RowVerdict, MetricStatus] = {
    "slower": "regressed",
    "faster": "improved",
    "same": "ok",
    "unclear": "advisory",
}
#: Fields of ``ab`` in a test's record.
_FIELDS = ("verdict", "ratio", "low", "high", "confidence", "pairs", "p_value")


def test_of_row(row: PairedRow) -> dict[str, Any]:
    """A test's part of the report."""
    status: TestStatus = "not_profiled"
    if row.verdict == "new":
        status = "new"
    verdicts = _verdicts(row)
    if row.decision is not None:
        status = status_of(verdicts, has_baseline=True)
    metrics = {verdict.label: verdict for verdict in verdicts}
    made = test_of(Record(row.nodeid, status, row_note(row), metrics, outcome=_outcome(row)))
    fields = row_cells(row)
    # As ratios here, not as changes.
    low, high = (row.decision.low, row.decision.high) if row.decision else (None, None)
    made["ab"] = {name: fields[name] for name in _FIELDS} | {"low": low, "high": high}
    made["ab"] |= {"a": _sample(row.a_ms), "b": _sample(row.b_ms)}
    return made


def _outcome(row: PairedRow) -> str | None:
    """The outcome on B; None if it did not run there or is unknown."""
    if row.decision is not None:
        return "passed"
    if row.verdict in ("skipped", "failed", "error") and row.broken != "A":
        return row.verdict
    return None


def _sample(sample: Sample | None) -> dict[str, Any] | None:
    return None if sample is None else {"unit": "ms", "median": sample.median, **noise_of(sample)}


def _verdicts(row: PairedRow) -> list[Verdict]:
    verdicts = []
    status = _STATUSES.get(row.verdict, "new")
    times: tuple[tuple[str, Sample | None, Sample | None, MetricStatus], ...] = (
        ("wall_ms", row.a_ms, row.b_ms, status),
        # Wall time decides; CPU time is for information.
        ("cpu_ms", row.cpu_a_ms, row.cpu_b_ms, "ok" if status == "ok" else "advisory"),
    )
    for metric, a, b, of in times:
        if b is not None:
            baseline = None if a is None else a.median
            verdicts.append(Verdict(metric, b.median, of if a else "new", baseline, sample=b))
    return verdicts + [_exact(d.metric, d.a, d.b) for d in row.differences if d.metric in METRICS]


def _exact(metric: str, a: float | None, b: float | None) -> Verdict:
    if b is None:
        reason = because(Why.NOT_MEASURED_ON, side="B")
        return Verdict(metric, MissingValue(reason), "not_measured", a, reason=reason)
    if a is None:
        return Verdict(metric, b, "new", reason=because(Why.NOT_MEASURED_ON, side="A"))
    return Verdict(metric, b, "regressed" if b > a else "improved", a)
