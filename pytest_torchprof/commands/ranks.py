"""`torchprof ranks`: each rank of a job, who waits for whom, and imbalance."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import device_time_note, load_steps, notes_of
from pytest_torchprof.commands.printing import OK, TableRow, show, sorted_rows
from pytest_torchprof.render.rank_texts import compared, imbalances, missing, sources, stragglers
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import fields_of
from pytest_torchprof.trace.ranks import rank_source
from pytest_torchprof.verdict.rank_rows import RankRow, RankTable, rank_table

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from pytest_torchprof.commands.inputs import Ranks


def run_ranks(options: Namespace) -> int:
    """Each rank of a job."""
    ranks = load_steps(options, options.traces)
    traces = {rank: trace.events for rank, trace in ranks.items()}
    table = rank_table(traces, one_job=not ranks.apart)
    fields = [ranks.column if field == "rank" else field for field in fields_of(RankRow)]
    rows: list[TableRow] = [
        {ranks.column: ranks.value(int(row.rank)), **_without_rank(row)} for row in table.rows
    ]
    rows = sorted_rows(rows, options.sort, fields)
    show(options, ranks, rows, fields, None, [*_notes(ranks, table)], extra=_extra(ranks, table))
    return OK


def _without_rank(row: RankRow) -> dict[str, Any]:
    return {field: value for field, value in dataclasses.asdict(row).items() if field != "rank"}


def _notes(ranks: Ranks, table: RankTable) -> Iterator[str]:
    if not ranks.apart:
        yield sources({rank: rank_source(trace.events) for rank, trace in ranks.items()})
        if absent := missing([*ranks], _world_size(ranks)):
            yield absent
    yield from stragglers(table)
    if table.found is not None:
        yield from compared(table.found)
    elif len(ranks) == 1:
        yield "wait is unknown: it takes the traces of several ranks"
    yield from imbalances(table)
    for rank, reason in table.unknown.items():
        yield f"{ranks.label(rank)}: times are not measured: {in_words(reason)}"
    yield from notes_of(ranks, device_time_note)
    if table.on_host:
        who = (
            ""
            if len(table.on_host) == len(ranks)
            else f" of rank {', '.join(map(str, table.on_host))}"
        )
        yield f"times{who} are of the host, as there are no device events"


def _world_size(ranks: Ranks) -> int:
    """The number of ranks of the job, 0 if no trace tells."""
    sizes = [0]
    for trace in ranks.values():
        info = trace.events.metadata.get("distributedInfo")
        size = info.get("world_size") if isinstance(info, dict) else None
        sizes.append(size if type(size) is int else 0)
    return max(sizes)


def _extra(ranks: Ranks, table: RankTable) -> TableRow:
    """What JSON has beside the rows."""
    found = table.found
    parts: TableRow = {
        "waits": [dataclasses.asdict(row) for row in table.waits],
        "imbalance": [dataclasses.asdict(row) for row in table.imbalance],
        "collectives_compared": None if found is None else found.collectives,
    }
    if ranks.apart:
        return parts
    return {
        **parts,
        "rank_from": {str(rank): rank_source(trace.events) for rank, trace in ranks.items()},
        "missing_ranks": sorted({*range(_world_size(ranks))} - {*ranks}),
        "waited_for_ms": {str(rank): ms for rank, ms in table.waited_for_ms.items()}
        if found is not None and found.collectives
        else None,
        "clock_shift_ms": {
            str(rank): int(ns) / 1e6
            for rank, ns in zip(found.ranks, found.shift_ns.tolist(), strict=True)
        }
        if found is not None and found.collectives
        else None,
    }
