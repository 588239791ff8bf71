"""Traces of the ranks of one job, small and with known answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.one_product import builder_of

if TYPE_CHECKING:
    from pathlib import Path


def save_ranks(folder: Path, count: int) -> list[Path]:
    """``rank0.json.gz`` and so on: rank ``n`` takes ``n + 1`` times as long for its product."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(count):
        builder = builder_of(1 + rank)
        builder.metadata("distributedInfo", {"rank": rank, "world_size": count})
        paths.append(builder.save(folder / f"rank{rank}.json.gz"))
    return paths
