"""`torchprof ranks`: each rank of a job, who waits for whom, and imbalance."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import device_time_note
from pytest_torchprof.commands.parts import ask, at_steps, part_of
from pytest_torchprof.commands.printing import (
    OK,
    TableRow,
    columns_of,
    show,
    sorted_rows,
    with_rank,
)
from pytest_torchprof.render.rank_texts import compared, imbalances, missing, sources, stragglers
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import fields_of
from pytest_torchprof.trace.ranks import rank_of, rank_source_of
from pytest_torchprof.verdict.rank_rows import RankRow, RankTable, rank_part, rank_table_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Body, Parts
    from pytest_torchprof.trace.ranks import RankSource


def run_ranks(options: Namespace) -> int:
    """Each rank of a job."""
    parts = ask(options, "commands.ranks:ranks_part")
    table = rank_table_of(parts.each("rank"), one_job=not parts.apart)
    fields = [field for field in fields_of(RankRow) if field != "rank"]
    rows = [row for one in table.rows for row in _rows(parts, one)]
    fields = columns_of(parts, fields) if parts.are_for_machines else [parts.column, *fields]
    rows = sorted_rows(rows, options.sort, fields)
    show(options, parts, rows, fields, None, [*_notes(parts, table)], extra=_extra(parts, table))
    return parts.status(OK)


def ranks_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    info = trace.events.metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return part_of(
        trace,
        [device_time_note(trace)],
        rank=rank_part(trace.events),
        own_rank=rank_of(trace.events.metadata),
        world_size=size if type(size) is int else 0,
    )


def _rows(parts: Parts, row: RankRow) -> list[TableRow]:
    """The row with its rank, even where there is no other."""
    own = dataclasses.asdict(row)
    rank = int(own.pop("rank"))
    if parts.are_for_machines:
        return with_rank(parts, rank, [own])
    return [{parts.column: parts.value(rank), **own}]


def _notes(parts: Parts, table: RankTable) -> Iterator[str]:
    if not parts.apart:
        yield sources(_sources(parts))
        if absent := missing([*parts], _world_size(parts)):
            yield absent
    yield from stragglers(table)
    if table.found is not None:
        yield from compared(table.found)
    elif len(parts) == 1:
        yield "wait is unknown: it takes the traces of several ranks"
    yield from imbalances(table)
    for rank, reason in table.unknown.items():
        yield f"{parts.label(rank)}: times are not measured: {in_words(reason)}"
    yield from parts.notes
    if table.on_host:
        who = (
            ""
            if len(table.on_host) == len(parts)
            else f" of rank {', '.join(map(str, table.on_host))}"
        )
        yield f"times{who} are of the host, as there are no device events"


def _sources(parts: Parts) -> dict[int, RankSource]:
    """What tells each rank."""
    own = parts.each("own_rank")
    return {
        rank: rank_source_of(own[rank], Path(part.path.partition("::")[0]))
        for rank, part in parts.items()
    }


def _world_size(parts: Parts) -> int:
    """The number of ranks of the job, 0 if no trace tells."""
    return max(map(int, parts.each("world_size").values()))


def _extra(parts: Parts, table: RankTable) -> TableRow:
    """What JSON has beside the rows."""
    found = table.found
    extra: TableRow = {
        "waits": [{**vars(row)} for row in table.waits],  # up to a million of a thousand ranks
        "imbalance": [dataclasses.asdict(row) for row in table.imbalance],
        "collectives_compared": None if found is None else found.collectives,
    }
    if parts.apart:
        return extra
    return {
        **extra,
        "rank_from": {str(rank): source for rank, source in _sources(parts).items()},
        "missing_ranks": sorted({*range(_world_size(parts))} - {*parts}),
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
