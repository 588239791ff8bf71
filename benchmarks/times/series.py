"""Series of durations, and the files that keep them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

#: Durations of the calls of one turn, in ns.
Turn = list[int]


class Conditions(msgspec.Struct, frozen=True):
    """The conditions of a recording; ``hog`` is whether a competing process ran all the time."""

    machine: str
    cores: int
    torch: str
    started: str
    hog: bool
    quick: bool


class Pairs(msgspec.Struct, frozen=True, tag="pairs"):
    """Two processes of the same code, measured turn by turn: turn i of ``a`` next to turn i of
    ``b``.

    ``processes`` is a number for the two of them: another number means new processes. ``at_s``
    counts from the start of the recording.
    """

    processes: int
    at_s: float
    work: str
    a: list[Turn]
    b: list[Turn]
    #: For each pair; missing in recordings of earlier versions.
    a_first: list[bool] = []

    def parts(self, seconds: float) -> Iterator[Pairs]:
        """The series cut into parts in which the longer side has this many seconds."""
        start = 0
        spent = [0.0, 0.0]
        for i, (a, b) in enumerate(zip(self.a, self.b, strict=True), 1):
            spent[0] += sum(a) / 1e9
            spent[1] += sum(b) / 1e9
            if max(spent) >= seconds:
                part = slice(start, i)
                yield msgspec.structs.replace(
                    self, a=self.a[part], b=self.b[part], a_first=self.a_first[part]
                )
                start, spent = i, [0.0, 0.0]


class Session(msgspec.Struct, frozen=True, tag="session"):
    """One process alone, measured like a stored baseline; the reference follows each turn."""

    processes: int
    at_s: float
    work: str
    turns: list[Turn]
    reference: list[Turn]

    @property
    def calls(self) -> Turn:
        """All of them, in order."""
        return [duration for turn in self.turns for duration in turn]


Series = Pairs | Session


class Recording(msgspec.Struct, frozen=True):
    """What was measured, and under which conditions."""

    conditions: Conditions
    series: Sequence[Series]

    @property
    def pairs(self) -> list[Pairs]:
        """The interleaved ones."""
        return [one for one in self.series if isinstance(one, Pairs)]

    @property
    def sessions(self) -> dict[str, list[Session]]:
        """The separate ones, by what was timed."""
        found: dict[str, list[Session]] = {}
        for one in self.series:
            if isinstance(one, Session):
                found.setdefault(one.work, []).append(one)
        return found


def write(file: Path, conditions: Conditions, series: Iterable[Series]) -> None:
    """Write line by line as results come, so that they are kept after a crash."""
    with gzip.open(file, "wb", 6) as out:
        out.write(msgspec.json.encode(conditions) + b"\n")
        for one in series:
            out.write(msgspec.json.encode(one) + b"\n")
            out.flush()


def read(file: Path) -> Recording:
    """Everything in the file; for a truncated file, everything before its end.

    Raises:
        SystemExit: it is not a recording.
    """
    try:
        first, *rest = _lines(file)
        conditions = msgspec.json.decode(first, type=Conditions)
        return Recording(conditions, [msgspec.json.decode(line, type=Series) for line in rest])
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise SystemExit(f"{file} is not a recording of series: {error}") from error


def _lines(file: Path) -> list[bytes]:
    found: list[bytes] = []
    # A file that is still being written, or was never finished, is truncated.
    with gzip.open(file, "rb") as lines, suppress(EOFError):
        found.extend(lines)
    return found
