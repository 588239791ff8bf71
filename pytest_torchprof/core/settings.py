"""The user's settings, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

#: Seconds of rounds for a time gate, unless the number of rounds is given.
#: `python -m benchmarks.gate` measures what that achieves.
GATE_TIME_S = 1.0


@dataclass(frozen=True)
class Tolerance:
    """By which ``share``, or which ``amount`` in this ``unit``, metrics of a glob may differ."""

    glob: str
    unit: str = "%"
    share: float | None = None
    amount: float | None = None

    def is_for(self, metric: str, unit: str) -> bool:
        """Whether the metric of this unit may differ so."""
        return fnmatchcase(metric, self.glob) and self.unit in ("%", unit)


@dataclass(frozen=True)
class Settings:
    """Options after applying command line, marker, ini file and default.

    ``threads`` are the intra-op CPU threads of the profiled run, None for the user's own number.
    ``seed`` is that of a test's runs after its first, None for none. ``json``, ``html``,
    ``markdown`` and ``traces`` are absolute. ``thresholds``: rule → name → value, if not default.
    ``min_time`` is in seconds. ``started_ns``: when pytest began (`time.time_ns`). ``given`` are
    the names of options that were set. ``history`` is a URL or an absolute path.
    ``checks_stable``: profile each test once more, with another seed.
    ``seed_imports``: files are imported, and wider fixtures set up, with that seed, too: True for
    all generators, None for NumPy's and torch's where nobody has seeded them.
    ``device`` is the chip for which a device's work is estimated. ``tolerances`` are in order.
    """

    enabled: bool
    select: Literal["all", "marked"]
    accept: bool
    strict: bool
    warmup: int
    rounds: int
    min_time: float
    time: Literal["advisory", "gate", "off"]
    baselines: str
    json: Path | None
    html: Path | None
    markdown: Path | None
    traces: Path | None
    traces_of: Literal["failed", "all"]
    columns: tuple[str, ...]
    sort: str | None
    top: int
    ignore: frozenset[str]
    threads: int | None
    seed: int | None
    ci: Literal["auto", "github", "gitlab", "off"]
    junit: bool = False
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    started_ns: int = 0
    history: str | None = None
    checks_stable: bool = False
    seed_imports: bool | None = None
    device: str | None = None
    tolerances: tuple[Tolerance, ...] = ()

    @property
    def gate_time_s(self) -> float:
        """Seconds of rounds by default; 0 if their number was given or does not matter."""
        free = self.time == "gate" and not self.given & {"rounds", "min_time"}
        return GATE_TIME_S if free else 0.0
