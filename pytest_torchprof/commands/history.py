"""`torchprof history`: what changed over the runs of a history, and when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import warn
from pytest_torchprof.commands.tables import (
    OK,
    TABLE_ROWS,
    laid_out,
    page_target,
    print_table,
    terminal_width,
    write,
)
from pytest_torchprof.core.errors import HistoryError, SettingsError, writing
from pytest_torchprof.core.units import format_change, format_pair, format_quantity, plural
from pytest_torchprof.history.git import unreachable
from pytest_torchprof.history.question import Answer, SeriesAnswer, answer, compare
from pytest_torchprof.history.runs import DAMAGED, FOREIGN, NEWER, UNREADABLE
from pytest_torchprof.history.series import History, Question
from pytest_torchprof.history.stores import INI, Store, configured_history, store_of
from pytest_torchprof.render.table import Table, can_show, sparkline, to_json

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from pytest_torchprof.history.question import Change
    from pytest_torchprof.history.series import Series
    from pytest_torchprof.render.table import Row

#: As CSV has them.
FIELDS = (
    *("test", "region", "metric", "environment", "commit", "date"),
    *("value", "before", "change", "kind"),
)
_SERIES_FIELDS = ("test", "region", "metric", "environment", "runs", "last", "values")
_CAUSE_FIELDS = ("commit", "cause", "tests", "metrics")
_GC_FIELDS = ("file", "commit", "branch", "date", "reason")
#: Of a row: its series as bars, for tables.
_BARS = "bars"
#: Of a row: whether commits without a run lie between, each of which may have changed it.
_BETWEEN = "between"
_BETWEEN_NOTE = "A..B: commits between have no run; one of them or B changed it"
#: As people read a commit.
_SHORT = 10
_SKIPPED = {
    NEWER: "of a newer version (update torchprof)",
    DAMAGED: "damaged or cut off",
    FOREIGN: "of another kind",
    UNREADABLE: "that cannot be read",
}


def run_history(options: Namespace) -> int:
    """What changed; or with ``compare``, since the merge base; or with ``gc``, what can go."""
    first, *rest = options.words or [""]
    refused = {"compare": ("html",), "gc": ("html", "test", "metric", "branch")}
    for name in refused.get(first, ()):
        if getattr(options, name):
            raise SettingsError(f"--{name} does not belong to torchprof history {first}")
    if first == "gc":
        return _gc(options, rest)
    question = Question(options.test, options.metric, options.branch)
    if first == "compare":
        if not rest:
            what = "torchprof history compare: no branch is named"
            raise SettingsError(what, "", "torchprof history compare main")
        found = compare(_store(rest[1:]), rest[0], question, Path.cwd())
        _report_skipped(found)
        return _print(options, found, _rows(found))
    if options.yes:
        raise SettingsError("--yes belongs to torchprof history gc")
    store, target = _store(options.words), page_target(options)
    found = answer(store, question, Path.cwd())
    _report_skipped(found)
    runs = len(found.order.runs)
    if not runs:
        step = f"pytest --torchprof --torchprof-history={store.shown} adds one"
        raise HistoryError(f"the history {store.shown} has no runs", next_step=step)
    if not found.total and question.narrow:
        what = " and ".join(filter(None, [options.test, options.metric]))
        raise HistoryError(
            f"nothing in the history {store.shown} is called {what}",
            f"it has {plural(runs, 'run')}",
            "a * stands for any text: --test '*name*'",
        )
    rows = _rows(found)
    if target is not None:
        kept = [one for one in found.series if question.narrow or one.changes]
        _write_page(target, found._replace(series=kept), rows)
    return _print(options, found, rows, narrow=question.narrow)


def _write_page(target: Path, found: Answer, rows: list[Row]) -> None:
    from pytest_torchprof.render.html.history_page import history_page
    from pytest_torchprof.render.html.page import write_text

    with writing(target):
        write_text(target, history_page(found, [_plain(row) for row in rows]))


def _store(words: Sequence[str]) -> Store:
    """The history that is named, or that of the project's configuration.

    Raises:
        SettingsError: none is named, or several.
    """
    if len(words) > 1:
        raise SettingsError(
            f"torchprof history {' '.join(words)}: too many names",
            "",
            "see torchprof history --help",
        )
    address = words[0] if words else configured_history(Path.cwd())
    if address is None:
        raise SettingsError(
            f"no history is named, and no configuration of pytest has {INI}",
            next_step="give its folder or URL, as in torchprof history DIR",
        )
    return store_of(address)


def _report_skipped(found: Answer) -> None:
    """One line about the files that are no documents."""
    if found.skipped:
        total = plural(sum(found.skipped.values()), "file")
        kinds = found.skipped.items()
        each = ", ".join(f"{count} {_SKIPPED.get(kind, kind)}" for kind, count in kinds)
        warn(f"{found.address}: skipped {total}: {each}")


def _rows(found: Answer) -> list[Row]:
    """A row for each change, the newest first, by cause; tables show its series along the line."""
    bars = {one.series: _bars(one, found.line) for one in found.series if one.changes}
    pairs = [(change, one.series) for one in found.series for change in one.changes]
    rows = [(c.at, {**_row(c, of, found), _BARS: bars[of]}) for c, of in pairs]
    rows.sort(key=lambda one: (-one[0], *(one[1][by] or "" for by in ("cause", "test", "region"))))
    return [row for _, row in rows]


def _causes(rows: Sequence[Row]) -> list[Row]:
    """What is known of why numbers changed: a row for each cause at a commit."""
    grouped: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row["cause"]:
            grouped.setdefault((_commits(row), row["cause"]), []).append(row)
    return [
        {"commit": commit, "cause": cause, "tests": len({row["test"] for row in of}),
         "metrics": ", ".join(dict.fromkeys(str(row["metric"]) for row in of))}
        for (commit, cause), of in grouped.items()
    ]  # fmt: skip


def _bars(one: SeriesAnswer, line: Sequence[int]) -> str:
    """Its values along the line, or all of them if it has none there."""
    return sparkline(
        [one.values[at] for at in line if at in one.values]
        or [one.values[at] for at in sorted(one.values)]
    )


def _row(change: Change, series: Series, found: Answer) -> Row:
    run, since = (found.order.runs[at] for at in (change.at, change.since))
    return {
        "test": series.test,
        "region": series.region,
        "metric": series.metric,
        "environment": series.environment,
        "commit": run.commit,
        "date": run.started,
        "value": change.value,
        "before": change.before,
        "change": (change.value - change.before) / abs(change.before) if change.before else None,
        "kind": change.kind,
        "unit": series.unit,
        "machine": series.machine or None,
        "since": since.commit,
        "dirty": run.dirty,
        "branch": run.branch,
        "cause": found.cause_of(change, series),
        _BETWEEN: run.parents is not None and since.commit not in (run.commit, *run.parents),
    }


def _plain(row: Row) -> Row:
    """As JSON has it."""
    return {field: value for field, value in row.items() if field not in (_BARS, _BETWEEN)}


def _series_row(one: SeriesAnswer, found: Answer) -> Row:
    series = one.series
    places = sorted(one.values)
    runs = [found.order.runs[place] for place in places]
    return {
        "test": series.test,
        "region": series.region,
        "metric": series.metric,
        "environment": series.environment,
        "machine": series.machine or None,
        "source": series.source or None,
        "unit": series.unit,
        "runs": len(places),
        "last": one.values[places[-1]],
        "values": [one.values[place] for place in places],
        "commits": [run.commit for run in runs],
        "dates": [run.started for run in runs],
    }


def _head(found: Answer) -> str:
    changed = sum(bool(one.changes) for one in found.series)
    counts = f"{changed:,} of {found.total:,} series changed"
    if found.sides is not None:
        tip, base = found.sides.tip[:_SHORT], found.sides.base[:_SHORT]
        return f"{tip} against {base}, the merge base; {counts}"
    runs = found.order.runs
    commits = len({run.commit for run in runs if run.commit})
    of = f"{plural(len(runs), 'run')} of {plural(commits, 'commit')}"
    return f"{found.address}: {of}; {counts}"


def _print(options: Namespace, found: Answer, rows: list[Row], *, narrow: bool = False) -> int:
    """Print what changed; of a narrow question, also all series."""
    limit = options.limit
    series = [_series_row(one, found) for one in found.series] if narrow else []
    if options.format == "json":
        parts: Row = {"runs": len(found.order.runs), **({"series": series} if narrow else {})}
        if (sides := found.sides) is not None:
            parts = {"commit": sides.tip, "merge_base": sides.base, "compared": found.total}
        document: dict[str, Any] = {
            "schema": "torchprof-history/1",
            "history": found.address,
            **parts,
            "rows": [_plain(row) for row in rows[: limit or None]],
            "notes": found.notes,
        }
        return write(to_json(document))
    if options.format == "csv":
        return print_table(options, Table(rows[: limit or None], FIELDS))
    limit = TABLE_ROWS if limit is None else limit
    shown = rows[: limit or None]
    notes = list(found.notes)
    if any(row[_BETWEEN] and row["since"] for row in shown):
        notes.append(_BETWEEN_NOTE)
    if len(shown) < len(rows):
        notes.append(f"{len(rows) - len(shown)} more changes; --limit 0 shows all")
    text = ""
    if series:
        lines = [_series_in_words(row) for row in series[: limit or None]]
        if len(lines) < len(series):
            notes.append(f"{len(series) - len(lines)} more series; --limit 0 shows all")
        text = _table(options, lines, _SERIES_FIELDS) + "\n"
    if causes := _causes(shown):
        text += _table(options, causes, _CAUSE_FIELDS) + "\n"
    fields = FIELDS if series else (*FIELDS, "values")
    changes = _table(options, [*map(_in_words, shown)], fields) if shown else "no change\n"
    return write(laid_out(options, _head(found), text + changes, notes))


def _table(options: Namespace, rows: list[Row], fields: Sequence[str]) -> str:
    bars = can_show(sys.stdout.encoding)
    table = Table(rows, [field for field in fields if bars or field != "values"])
    return table.markdown() if options.format == "markdown" else table.text(terminal_width())


def _in_words(row: Row) -> Row:
    before, value = format_pair(row["before"], row["value"], row["unit"])
    return {
        **row,
        "commit": _commits(row),
        "date": str(row["date"])[:10],
        "value": value,
        "before": before,
        "change": format_change(row["before"], row["value"]),
        "values": row[_BARS],
    }


def _commit(commit: str | None, *, dirty: bool = False) -> str | None:
    return commit and commit[:_SHORT] + ("+" if dirty else "")


def _commits(row: Row) -> str | None:
    last = _commit(row["commit"], dirty=row["dirty"])
    return f"{_commit(row['since'])}..{last}" if row[_BETWEEN] and row["since"] else last


def _series_in_words(row: Row) -> Row:
    last = format_quantity(row["last"], row["unit"])
    return {**row, "last": last, "values": sparkline(row["values"])}


def _gc(options: Namespace, words: Sequence[str]) -> int:
    store = _store(words)
    swept = unreachable(History(store, Question(test="")).runs, Path.cwd())
    rows: list[Row] = [
        {
            "file": run.name,
            "commit": run.commit,
            "branch": run.branch,
            "date": run.started,
            "reason": "nothing leads to it" if is_known else "not in this clone",
        }
        for run, is_known in swept.found
    ]
    if options.yes:
        for row in rows:
            store.delete(str(row["file"]))
    done = "removed" if options.yes else "to remove"
    if options.format == "json":
        document = {"schema": "torchprof-history-gc/1", "removed": options.yes, "rows": rows}
        return write(to_json(document))
    if options.format == "csv":
        return print_table(options, Table(rows, _GC_FIELDS))
    head = f"{store.shown}: {done}: {len(rows)} of {plural(swept.total, 'run')}"
    notes = []
    if rows and not options.yes:
        notes.append("--yes removes them; fetch all branches first")
    if swept.others:
        notes.append(f"{plural(swept.others, 'run')} of other repositories stay")
    shown = [{**row, "commit": _commit(row["commit"])} for row in rows]
    body = _table(options, shown, _GC_FIELDS) if rows else "nothing\n"
    write(laid_out(options, head, body, notes))
    return OK
