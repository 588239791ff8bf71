"""What the user asked for, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """Options after command line, marker, ini and default have been weighed.

    ``threads`` are the intra-op CPU threads of the profiled run, None for the user's own number.
    ``json`` and ``traces`` are absolute. ``thresholds``: rule → name → value, where not default.
    """

    enabled: bool
    select: Literal["all", "marked"]
    accept: bool
    strict: bool
    warmup: int
    rounds: int
    time: Literal["advisory", "gate", "off"]
    baselines: str
    json: Path | None
    traces: Path | None
    traces_of: Literal["failed", "all"]
    columns: tuple[str, ...]
    sort: str | None
    top: int
    ignore: frozenset[str]
    threads: int | None
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
