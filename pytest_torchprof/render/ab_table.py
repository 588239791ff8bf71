"""Rows of `torchprof ab` as fields, table cells, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.units import (
    UNKNOWN,
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    plural,
)
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.paired_decision import CONFIDENCE

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.verdict.paired_decision import Decision
    from pytest_torchprof.verdict.paired_row import Difference, PairedRow, RowVerdict

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
