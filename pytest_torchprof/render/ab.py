"""The table, page and report of `torchprof ab`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from pytest_torchprof.verdict.compare import status_of
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.paired import CONFIDENCE, PairedRow

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Sample
    from pytest_torchprof.verdict.paired import Decision, Difference, RowVerdict


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

#: Columns of the table for people.
AB_COLUMNS = ("test", "a", "b", "change", "verdict")

#: In a narrower terminal, the interval is a separate column, which may be dropped.
_WIDE = 100

Cells = dict[str, Any]

#: A test's name, or nothing, and a note on it; the printer escapes both.
_Line = tuple[str, str]


def by_urgency(rows: Sequence[PairedRow]) -> list[PairedRow]:
    """Sort by need for attention, then by largest change."""

    def change(row: PairedRow) -> float:
        return abs(row.decision.ratio - 1) if row.decision else 0.0

    return sorted(rows, key=lambda row: (ORDER.index(row.verdict), -change(row)))


def row_cells(row: PairedRow) -> Cells:
    """A row for JSON and CSV; ``change``, ``low`` and ``high`` are fractions of A."""
    a, b, decision = row.a_ms, row.b_ms, row.decision
    return {
        "name": row.nodeid,
        "verdict": row.verdict,
        "reason": _reason_words(row_note(row)),
        "wall_ms_a": a and a.median,
        "wall_ms_b": b and b.median,
        "spread_a": a and a.spread,
        "spread_b": b and b.spread,
        "ratio": decision and decision.ratio,
        "change": decision and decision.ratio - 1,
        "low": decision and decision.low - 1,
        "high": decision and decision.high - 1,
        "confidence": decision and decision.confidence,
        "p_value": decision and decision.p_value,
        "pairs": decision and decision.pairs,
        "calls_a": a and a.n,
        "calls_b": b and b.n,
        "cpu_ms_a": row.cpu_a_ms and row.cpu_a_ms.median,
        "cpu_ms_b": row.cpu_b_ms and row.cpu_b_ms.median,
        "differences": [{"metric": d.metric, "a": d.a, "b": d.b} for d in row.differences],
        "unprofiled": _reason_words(row.unprofiled),
        "measured_s": row.measured_s,
        "spent_s": row.spent_s,
    }


def _reason_words(reason: Reason | None) -> str | None:
    return None if reason is None else reason.text


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
    ratios = (decision.ratio, decision.low, decision.high)
    change, low, high = (format_change(1.0, ratio) for ratio in ratios)
    if high.endswith(" %"):
        low = low.removesuffix(" %")
    return change, f"{low} … {high}"


def timed(sample: Sample | None) -> str | None:
    """``3.21 ms ±4 %``: the median, and half the distance between the quartiles."""
    if sample is None:
        return None
    time = format_quantity(sample.median, "ms")
    return " ".join(filter(None, (time, format_spread(sample.spread))))


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


#: Fields of a row in JSON and CSV.
FIELDS = tuple(row_cells(PairedRow("", "same")))


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
    return "; ".join([*parts, _duration(seconds)])


def _duration(seconds: float) -> str:
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
    wide = width >= _WIDE
    columns = AB_COLUMNS if wide else (*AB_COLUMNS[:-1], "interval", AB_COLUMNS[-1])
    cells = [_cells(row, joined=wide) for row in page.rows]
    left = "".join(f"{line}\n" for line in _left(page))
    blocks = [wrapped(page.heading, width), Table(cells, columns).text(width) + left]
    for head, lines in _below(page):
        joined = [
            f"{shorten(escape.line(name), _NAME)}: {note}" if name else note for name, note in lines
        ]
        indented = [f"  {line}" for line in joined] if head else joined
        blocks.append(wrapped([head, *indented] if head else indented, width))
    # Not shortened, so that a search finds it.
    blocks.append("".join(f"{escape.line(line)}\n" for line in page.end))
    return "\n".join(blocks)


def page_markdown(page: Page) -> str:
    """For a comment on a pull request."""
    words = escape.escape_markdown
    cells = [_cells(row, joined=True) for row in page.rows]
    for cell in cells:
        if cell["verdict"] in _BAD:
            cell["verdict"] = strong(cell["verdict"])
    blocks = [_listed(map(words, page.heading)), Table(cells, AB_COLUMNS).markdown()]
    blocks += map(words, _left(page))
    for head, lines in _below(page):
        blocks += [f"{words(head)}\n"] if head else []
        named = (
            f"{escape.code(name)}: {words(note)}" if name else words(note) for name, note in lines
        )
        blocks.append(_listed(named))
    return "\n".join([*blocks, *(f"{words(line)}\n" for line in page.end)])


def _left(page: Page) -> list[str]:
    return [f"… and {plural(page.left, 'more row')}: --limit 0 shows all"] if page.left else []


def _below(page: Page) -> list[tuple[str, list[_Line]]]:
    """Blocks of notes below the table, each with its heading."""
    blocks = (
        ("", [(row.nodeid, why) for row in page.rows if (why := _why(row))]),
        (
            "exact metrics that differ:",
            [(row.nodeid, difference(d)) for row in page.rows for d in row.differences],
        ),
        ("why B needs more, by operator (pytest --torchprof names lines):", _causes(page.rows)),
        (
            "exact metrics were not compared:",
            [(row.nodeid, _line(row.unprofiled)) for row in page.rows if row.unprofiled],
        ),
        (_NOISY, [(row.nodeid, spread) for row in page.rows if (spread := _spread(row))]),
        ("", [("", note) for note in page.notes]),
    )
    return [(head, _some(lines, every=page.every)) for head, lines in blocks if lines]


def _causes(rows: Sequence[PairedRow]) -> list[_Line]:
    """Each cause once, with the first test that has it and how many others do."""
    tests: dict[str, list[str]] = {}
    for row in rows:
        for cause in row.causes:
            tests.setdefault(cause.headline, []).append(row.nodeid)
    counts = {text: f" (and {plural(len(of) - 1, 'other test')})" for text, of in tests.items()}
    return [(of[0], text + counts[text] * bool(of[1:])) for text, of in tests.items()]


def _why(row: PairedRow) -> str:
    """The explanation that a row needs beyond its verdict."""
    if (reason := row_note(row)) is None or row.verdict in ("new", "gone"):
        return ""
    return ("" if row.verdict in ("failed", "error") else f"{row.verdict}: ") + _line(reason)


def _line(reason: Reason) -> str:
    return " ".join(reason.text.split())


def _spread(row: PairedRow) -> str:
    """How different the times of a test's calls were, where that is much."""
    sides = {"A": row.a_ms, "B": row.b_ms}
    return " and ".join(
        f"{format_spread(s.spread)} on {side}" for side, s in sides.items() if s and s.noisy
    )


def _some(lines: list[_Line], *, every: bool) -> list[_Line]:
    """At most this many lines, and the number left out."""
    if every or len(lines) <= _MOST_LINES + 1:  # saying that one is left takes a line too
        return lines
    left = f"… and {len(lines) - _MOST_LINES} more: --limit 0 shows all"
    return [*lines[:_MOST_LINES], ("", left)]


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


# ---- The report of `torchprof ab`, like that of a test session on B with A as the baseline.

#: Decision → status of a time in a report.
_STATUSES: dict[RowVerdict, MetricStatus] = {
    "slower": "regressed",
    "faster": "improved",
    "same": "ok",
    "unclear": "advisory",
}


def test_of_row(row: PairedRow) -> dict[str, Any]:
    """A test's part of the report."""
    status: TestStatus = "new" if row.verdict == "new" else "not_profiled"
    verdicts, decision = _verdicts(row), row.decision
    if decision is not None:
        status = status_of(verdicts, has_baseline=True)
    metrics = {verdict.label: verdict for verdict in verdicts}
    why, outcome = row_note(row), _outcome(row)
    made = test_of(Record(row.nodeid, status, why, metrics, outcome=outcome, causes=row.causes))
    made["ab"] = {
        "verdict": row.verdict,
        "ratio": decision and decision.ratio,
        "low": decision and decision.low,  # a ratio here, not a change
        "high": decision and decision.high,
        "confidence": decision and decision.confidence,
        "pairs": decision and decision.pairs,
        "p_value": decision and decision.p_value,
        "a": _sample(row.a_ms),
        "b": _sample(row.b_ms),
    }
    return made


def _outcome(row: PairedRow) -> str | None:
    """The outcome on B; None if it did not run there or is unknown."""
    if row.decision is not None:
        return "passed"
    known = row.verdict in ("skipped", "failed", "error") and row.broken != "A"
    return row.verdict if known else None


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
        reason = because(*Why.NOT_MEASURED_ON, side="B")
        return Verdict(metric, MissingValue(reason), "not_measured", a, reason=reason)
    if a is None:
        return Verdict(metric, b, "new", reason=because(*Why.NOT_MEASURED_ON, side="A"))
    return Verdict(metric, b, "regressed" if b > a else "improved", a)
