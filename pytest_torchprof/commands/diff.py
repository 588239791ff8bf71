"""`torchprof diff`: what changed between two traces, or two folders of ranks."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof import api
from pytest_torchprof.analysis.diff import Growth, growth, replacements
from pytest_torchprof.commands.inputs import (
    cpu_time_note,
    device_time_note,
    notes_of,
    ranks_in_words,
)
from pytest_torchprof.commands.tables import (
    FAILED,
    OK,
    TEXTS,
    Sides,
    load,
    notes_on_steps,
    page_target,
    show,
    side_by_side,
    steps_by_rank,
)
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import format_change, format_pair, plural
from pytest_torchprof.places.place import CallSites, Roots, by_frames
from pytest_torchprof.render.escape import shorten
from pytest_torchprof.render.findings import called_from
from pytest_torchprof.render.kernel_names import readable_kernel

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.commands.inputs import Parts
    from pytest_torchprof.render.table import Row

#: How many replacements to print, and the maximum width of a name in them.
_REPLACEMENTS, _NAME = 12, 48


def run_diff(options: Namespace) -> int:
    """What changed between two traces, or two folders of ranks."""
    target = page_target(options, (options.a, options.b))
    before, now = (load([side], options.rank, options) for side in (options.a, options.b))
    _check_ranks(options, before, now)
    pairs = zip(before.traces.values(), now.traces.values(), strict=True)
    sides = {rank: side_by_side(a, b, options) for rank, (a, b) in zip(now, pairs, strict=True)}
    made = {
        rank: api.diff(side.a, side.b, options.by, per_step=side.steps is not None)
        for rank, side in sides.items()
    }
    notes, extra = _growth(options, sides)
    notes += notes_on_steps(now, sides)
    extra["per_step"] = steps_by_rank(now, sides)
    for letter, ranks in (("a", before), ("b", now)):
        notes += [f"{letter}: {note}" for note in notes_of(ranks, cpu_time_note, device_time_note)]
    if options.fail_over is not None and (unread := [*before.unread, *now.unread]):
        notes += unread
        extra["failed"] = True
    for rank, side in sides.items():
        a, b = side.for_order
        found = replacements(a.events, b.events, by=options.by)
        mark = f"rank {rank}: " if len(sides) > 1 else ""
        where = CallSites(side.b.events, by_frames, Roots(Path.cwd()), str)
        new = [row.name for row in made[rank] if row.change == "appeared" and options.by == "op"]
        at = {name: called_from(where(name)) for name in new[:_REPLACEMENTS]}
        for line in filter(None, dict.fromkeys(at.values())):
            names = ", ".join(_short(name) for name in at if at[name] == line)
            notes.append(f"{mark}new at {line}: {names}")
        mark += "" if side.steps is None else "in the last step: "
        notes += [f"{mark}{one.text(_short)}" for one in found.rows[:_REPLACEMENTS]]
        if not found.complete:
            notes.append("operators run in another order: only what comes before and after was "
                         "searched for replacements")  # fmt: skip
    if target is not None:
        from pytest_torchprof.commands.pages import write_page

        write_page(target, now, sides, extra["growth"], notes)
    tables = {rank: rows.table() for rank, rows in made.items()}
    if options.format in TEXTS:
        same = sum(row.change == "same" for rows in made.values() for row in rows)
        notes += [f"{plural(same, 'more row')} unchanged"] if same else []
        for table in tables.values():
            table.columns = _in_order(table.fields, options.by)
            table.rows = [row for row in table.rows if row["change"] != "same"]
            for row in table.rows if options.by == "kernel" else ():
                row["name"] = readable_kernel(row["name"])
    head = f"a: {before.heading}\nb: {now.heading}"
    extra["traces"] = {
        side: [part.path for part in ranks.values()] for side, ranks in (("a", before), ("b", now))
    }
    show(options, now, tables, notes=notes, extra=extra, head=head)
    return FAILED if extra.get("failed") else OK


def _check_ranks(options: Namespace, before: Parts, now: Parts) -> None:
    """Reject what has no counterpart.

    Raises:
        SettingsError: several jobs, or the two sides do not have the same ranks.
    """
    for side, ranks in ((options.a, before), (options.b, now)):
        if ranks.apart:
            what = f"{side}: not the ranks of one job"
            raise SettingsError(what, ranks.apart, "compare one trace with another")
    if before.keys() != now.keys() and not len(before) == len(now) == 1:
        raise SettingsError(
            "the two sides do not have the same ranks",
            f"{ranks_in_words(before)} before, {ranks_in_words(now)} now",
            "compare one rank with --rank N",
        )


def _in_order(fields: Sequence[str], by: str) -> list[str]:
    """Columns of a table: exclusive times, by which it is sorted, before inclusive ones.

    A kernel encloses nothing, so both are the same.
    """
    own = [field for field in fields if field.startswith("self_")]
    others = [field for field in fields if field not in own]
    if by == "kernel":
        return others
    at = others.index("cpu_ms_a")
    return [*others[:at], *own, *others[at:]]


def _short(name: str) -> str:
    return shorten(readable_kernel(name), _NAME)


def _growth(options: Namespace, sides: Mapping[int, Sides]) -> tuple[list[str], Row]:
    """Notes on total times, and whether one grew beyond the limit, if there is one."""
    limit = options.fail_over
    lines, growths, failed = [], [], False
    for rank, side in sides.items():
        limit_percent = inf if limit is None else limit
        mark = {"rank": rank} if len(sides) > 1 else {}
        checks = growth(
            side.a.events,
            side.b.events,
            by=options.by,
            limit_percent=limit_percent,
            per_step=side.steps or (1, 1),
        )
        for check in checks:
            # What cannot be checked does not pass.
            failed |= check.exceeded is not False
            line = _sentence(check, limit)
            lines.append(f"rank {rank}: {line}" if mark else line)
            numbers = {"before": check.before, "now": check.now, "percent": check.percent}
            growths.append({**mark, "metric": check.metric, **numbers})
    return lines, {"growth": growths, **({} if limit is None else {"failed": failed})}


def _sentence(check: Growth, limit: float | None) -> str:
    before, now = format_pair(check.before, check.now, "ms")
    line = f"{check.metric} {before} → {now} ({format_change(check.before, check.now)})"
    if limit is None:
        return line
    verdict = {True: "over", False: "within", None: "could not be checked against"}[check.exceeded]
    return f"{line}: {verdict} --fail-over {limit:g}"
