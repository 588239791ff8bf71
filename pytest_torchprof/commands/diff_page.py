"""Gather what the page of `torchprof diff` tells, and write it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof import api
from pytest_torchprof.commands.inputs import Ranks, heading_of
from pytest_torchprof.core.errors import ReportError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.render.html.diff_sections import diff_sections
from pytest_torchprof.render.html.page import page
from pytest_torchprof.render.html.target import write_text
from pytest_torchprof.render.html.trace_facts import DiffFacts
from pytest_torchprof.render.html.trace_sections import with_styles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.commands.per_step import Sides
    from pytest_torchprof.commands.printing import TableRow
    from pytest_torchprof.render.html.section import Section


def write_page(
    target: Path,
    ranks: Ranks,
    sides: Mapping[int, Sides],
    growth: Sequence[TableRow],
    notes: Sequence[str],
) -> None:
    """Write the page of a comparison; ``growth`` and ``notes`` are what the command prints.

    Raises:
        ReportError: the file cannot be written; an old one is unchanged.
    """
    sections: list[Section] = []
    for number, (rank, side) in enumerate(sides.items(), 1):
        several = len(sides) > 1
        mine = [row for row in growth if row.get("rank", rank) == rank]
        label = ranks.label(rank) if several else ""
        facts = facts_of(side, label, mine, notes if number == 1 else ())
        sections += diff_sections(facts, f"rank-{number}-" if several else "")
    first = next(iter(sides.values()))
    title = f"{first.a.path.name} → {first.b.path.name}"
    data = {"growth": list(growth), "notes": list(notes)}
    try:
        write_text(target, page(title, with_styles(sections), data=data))
    except (OSError, ValueError) as error:
        raise ReportError(
            f"{target}: cannot be written", system_message(error), "name another file"
        ) from None


def facts_of(
    side: Sides, label: str, growth: Sequence[TableRow], notes: Sequence[str]
) -> DiffFacts:
    """All that the page tells of two traces."""
    a, b = (Ranks({0: trace}) for trace in (side.a, side.b))
    per_step = side.steps is not None
    rows: dict[str, list[dict[str, Any]]] = {
        by: api.diff(side.a, side.b, by, per_step=per_step).to_dicts() for by in ("op", "kernel")
    }
    note = ""
    if side.steps is not None:
        one, other = side.steps
        note = f"metrics are those of all steps together: {one} of A, {other} of B"
    metrics = zip(side.a.summary().to_dicts(), side.b.summary().to_dicts(), strict=True)
    return DiffFacts(
        label=label,
        headings=(heading_of(a), heading_of(b)),
        metrics=list(metrics),
        growth=growth,
        metric_note=note,
        operators=rows["op"],
        kernels=rows["kernel"],
        notes=list(notes),
    )
