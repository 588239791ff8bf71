"""Sentences about the ranks of a job, for the notes of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import plural
from pytest_torchprof.render.row_formats import cell, heading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_torchprof.analysis.rank_waits import Mismatch, RankWaits, Signature
    from pytest_torchprof.trace.ranks import RankSource
    from pytest_torchprof.verdict.rank_rows import RankTable

#: How many ranks, or pairs of ranks, a note names.
_SHOWN: Final = 8
#: Less is no imbalance worth a line.
_LEAST: Final = 0.005


def compared(found: RankWaits) -> Iterator[str]:
    """What was compared between ranks, on which clocks, and what was not."""
    if found.collectives:
        shift = int(abs(found.shift_ns).max())
        apart = 0 if found.apart_ns is None else found.apart_ns
        clocks = "one clock" if not shift else f"clocks shifted by up to {_ns(shift)}"
        yield (
            f"wait: {plural(found.collectives, 'collective')} of several ranks compared, on "
            f"{clocks}; their ends are within {_ns(apart)}, in the median"
        )
    else:
        yield "no wait: no collective of several ranks with known times to compare"
    for one in found.mismatches[:_SHOWN]:
        yield _mismatch(one)
    if (more := len(found.mismatches) - _SHOWN) > 0:
        yield f"… and {plural(more, 'more rank')} whose collectives do not match"


def stragglers(table: RankTable) -> Iterator[str]:
    """For whom the others wait, and who waits for whom, the longest first."""
    found = table.found
    if found is None or not found.collectives:
        return
    column = {rank: i for i, rank in enumerate(found.ranks)}
    late = [rank for rank, ms in table.waited_for_ms.items() if ms > 0]
    late.sort(key=lambda rank: -table.waited_for_ms[rank])
    for rank in late[:_SHOWN]:
        at = column[rank]
        yield (
            f"the others wait {cell('_ms', table.waited_for_ms[rank])} for rank {rank}, the last at"
            f" {found.last[at]} of {plural(int(found.met[at]), 'collective')}"
        )
    for row in table.waits[:_SHOWN] if len(found.ranks) > 2 else ():
        yield f"rank {row.rank} waits {cell('_ms', row.wait_ms)} for rank {row.for_rank}"
    if (more := len(table.waits) - _SHOWN) > 0 and len(found.ranks) > 2:
        yield f"… and {plural(more, 'more pair')}, in --format json"


def imbalances(table: RankTable) -> Iterator[str]:
    """What one rank has more of than the mean."""
    for row in table.imbalance:
        name = heading(row.field)
        if row.over_mean < _LEAST:
            yield f"{name}: the same on all ranks, within 0.5 %"
        else:
            over = cell("share", row.over_mean)
            yield (
                f"{name}: rank {row.rank} has the most, {cell(row.field, row.largest)}, {over} "
                "above the mean"
            )


def sources(of_rank: Mapping[int, RankSource]) -> str:
    """What the ranks are from."""
    by_source: dict[str, list[int]] = {}
    for rank, source in of_rank.items():
        by_source.setdefault(source, []).append(rank)
    words = {"order": "the order of the files", "metadata": "the metadata"}
    words |= {"file name": "the names of the files", "folder name": "the names of the folders"}
    parts = [
        words[source] + (f" (of {_listed(ranks)})" if len(by_source) > 1 else "")
        for source, ranks in by_source.items()
    ]
    return f"ranks are from {', '.join(parts)}"


def missing(ranks: Sequence[int], world_size: int) -> str:
    """Which ranks of the job have no trace; empty if all have one."""
    left = sorted({*range(world_size)} - {*ranks})
    if not left:
        return ""
    return f"no trace of {len(left)} of {world_size} ranks: {_listed(left)}"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = len(ranks) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _mismatch(one: Mismatch) -> str:
    group = f" of the group {one.group}" if one.group else ""
    own, others = _call(one.own), _call(one.others)
    return (
        f"rank {one.rank} is not compared with the others{group}: its collective {one.number} is "
        f"{own}, theirs is {others}"
    )


def _call(signature: Signature | None) -> str:
    if signature is None:
        return "missing"
    operation, dtype, size = signature
    parts = [operation]
    if size is not None:
        parts.append("of unknown size" if size < 0 else f"of {cell('bytes', size)}")
    if dtype:
        parts.append(f"({dtype})")
    return " ".join(parts)


def _ns(ns: int) -> str:
    return cell("_ms", ns / 1e6)
