"""``python -m benchmarks [NAME…]``: the plugin's cost, as ratios from one run on one machine.

Both sides of a ratio run in turn, so no number depends on how fast the machine is. Goals are
printed and never enforced: the exit status is 0 unless a benchmark breaks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from benchmarks.long_sessions import empty, rss
from benchmarks.off import off
from benchmarks.profiled import post, profile, rules
from benchmarks.regions import regions
from benchmarks.start import start
from benchmarks.stored import stored
from benchmarks.suite import suite

if TYPE_CHECKING:
    from benchmarks.pairs import Row

#: In this order; those that import torch into this process come last.
THEMES: dict[str, Callable[..., Iterator[Row]]] = {
    "off": off,
    "start": start,
    "suite": suite,
    "empty": empty,
    "rss": rss,
    "regions": regions,
    "stored": stored,
    "profile": profile,
    "rules": rules,
    "post": post,
}
HEADERS = ("name", "ours", "peer", "figure", "95 % of median", "min–max", "pairs", "goal", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested benchmarks, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"which: {', '.join(THEMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a first look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if unknown := set(options.name) - THEMES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(THEMES)}")
    rows: list[Row] = []
    started = time.monotonic()
    for name, theme in THEMES.items():
        if not options.name or name in options.name:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows += theme(quick=options.quick)
    print(tabulate([cells(row) for row in rows], HEADERS, disable_numparse=True))
    print()
    for note, names in _notes(rows).items():
        print(f"{', '.join(names)}: {note}")
    where = _machine()
    print(f"\n{', '.join(f'{k} {v}' for k, v in where.items())}; ", end="")
    print(f"{time.monotonic() - started:.0f} s")
    if options.json is not None:
        result = {**where, "rows": [{**asdict(row), "verdict": row.verdict} for row in rows]}
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    places = 3 if row.figure_unit == "×" else 2 if row.figure_unit else 0

    def shown(*values: float) -> str:
        return "–".join(f"{value:.{places}f}" for value in values)

    def of(value: float) -> str:
        return f"{value:.4g} {row.unit}".rstrip() if value < 1000 else f"{value:,.0f} {row.unit}"

    return (
        row.name,
        of(row.ours),
        of(row.peer),
        f"{shown(row.figure)} {row.figure_unit}".rstrip(),
        shown(*row.interval) if row.pairs > 5 else "",
        shown(row.low, row.high) if row.pairs > 1 else "",
        str(row.pairs),
        "–" if row.goal is None else f"≤ {row.goal:g} {row.figure_unit}".rstrip(),
        row.verdict,
    )


def _notes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Each note once, with its rows."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            notes.setdefault(row.note, []).append(row.name)
    return notes


def _machine() -> dict[str, str | int]:
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "pytest": version("pytest"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
    }


if __name__ == "__main__":
    sys.exit(main())
