"""``python -m benchmarks.procedures``: tell a slower test from a noisy machine.

Records processes of the same code (``--record FILE``), judges recordings (``--from FILE``), or does
both without either option. A slowdown is simulated: the second side's durations are multiplied.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tabulate import tabulate

from benchmarks.times import interleaved, stored
from benchmarks.times.recording import ALL, FEW, conditions, record
from benchmarks.times.series import Recording, Series, read, write

#: The factors by which B is made slower: the columns of the table.
FACTORS = (1.0, 1.05, 1.1, 1.2)
#: Seconds for which each side of a pair is measured.
_EACH_S = 2.0
HEADERS = ("procedure", "cases", "false alarms at +0 %", "detects +5 %", "+10 %", "+20 %")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, judge, or both; print a table for each recording."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.procedures", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="only record, into this file")
    parser.add_argument(
        "--from", type=Path, metavar="FILE", nargs="+", dest="files", help="only judge these"
    )
    parser.add_argument("--seconds", type=float, help="how long to record (default: 900)")
    parser.add_argument("--hog", action="store_true", help="beside a process that never rests")
    parser.add_argument("--quick", action="store_true", help="in a minute, for a first look")
    options = parser.parse_args(arguments)
    if options.files:
        for file in options.files:
            show(read(file))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = options.record or Path(folder, "series.gz")
        seconds = options.seconds or (40 if options.quick else 900)
        series = record(
            FEW if options.quick else ALL,
            seconds=seconds,
            each_s=1.0 if options.quick else _EACH_S,
            hog=options.hog,
        )
        write(file, conditions(hog=options.hog, quick=options.quick), _watched(series, seconds))
        if options.record is None:
            show(read(file))
    return 0


def _watched(series: Iterator[Series], seconds: float) -> Iterator[Series]:
    """The same, with its progress on a terminal."""
    started = time.monotonic()
    for one in series:
        if sys.stderr.isatty():
            passed = time.monotonic() - started
            print(f"\r{passed:.0f} of {seconds:.0f} s: {one.work:20}", end="", file=sys.stderr)
        yield one
    if sys.stderr.isatty():
        print(file=sys.stderr)


def show(recording: Recording) -> None:
    """Print the conditions and the table of one recording."""
    where = recording.conditions
    beside = "beside a competing process" if where.hog else "no competing process of ours"
    print(
        f"\n{where.started}, {where.machine}, {where.cores} cores, torch {where.torch}; {beside}; "
        f"{len(recording.series)} series of {len({one.work for one in recording.series})} works\n"
    )
    rows = [*_stored(recording), *_interleaved(recording)]
    print(tabulate(rows, HEADERS, tablefmt="github", disable_numparse=True))
    if not stored.rival():
        print(f"\n{stored.HOW}")
    print(f"\ntorchprof ab: {_cost(recording)}")


def _stored(recording: Recording) -> Iterator[list[str]]:
    sessions = recording.sessions
    for name, procedure in stored.procedures().items():
        yield _row(name, [stored.alarms(procedure, sessions, factor) for factor in FACTORS])
    yield _row(
        "stored, minimum over the largest of 5 sessions, three tries",
        [stored.three_tries(sessions, factor) for factor in FACTORS],
    )


def _interleaved(recording: Recording) -> Iterator[list[str]]:
    for seconds in (1.0, 2.0):
        series = [part for pairs in recording.pairs for part in pairs.parts(seconds)]
        for name, procedure in interleaved.PROCEDURES.items():
            found = [interleaved.alarms(procedure, series, factor) for factor in FACTORS]
            yield _row(f"{name}, {seconds:g} s", found)


def _row(name: str, alarms: Sequence[Sequence[bool]]) -> list[str]:
    """Shares of alarms, with the number of false ones."""
    cases = len(alarms[0])
    if not cases:
        return [name, "0", *["–"] * len(alarms)]
    shares = [f"{sum(found) / cases:.1%}".replace("%", " %") for found in alarms]
    return [name, str(cases), f"{shares[0]} ({sum(alarms[0])})", *shares[1:]]


def _cost(recording: Recording) -> str:
    """How much of a second it took to decide."""
    series = [part for pairs in recording.pairs for part in pairs.parts(1.0)]
    if not series:
        return "no pairs were recorded"
    parts = []
    for factor in FACTORS:
        shares = [interleaved.compared(pairs, factor).pairs / len(pairs.a) for pairs in series]
        verdicts = [interleaved.compared(pairs, factor).verdict for pairs in series]
        most = max(set(verdicts), key=verdicts.count)
        parts.append(
            f"+{factor - 1:.0%} clear after {median(shares):.0%} of a second "
            f"(mostly {most}: {verdicts.count(most) / len(verdicts):.0%})"
        )
    return "; ".join(parts).replace("%", " %")


if __name__ == "__main__":
    sys.exit(main())
