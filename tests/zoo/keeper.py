"""Goes round the zoo: every row, by theme, and the table of what was seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tabulate
from zoo import functions, layers, others
from zoo.exhibit import look, problem

if TYPE_CHECKING:
    from zoo.exhibit import Exhibit

#: To add a theme, add a file with ``ROWS``.
THEMES: dict[str, list[Exhibit]] = {
    "layers": layers.ROWS,
    "functions": functions.ROWS,
    "others": others.ROWS,
}
ROWS: list[Exhibit] = [row for rows in THEMES.values() for row in rows]


def table(rows: list[Exhibit], folder: Path) -> tuple[str, list[str]]:
    """A line for each row: both counts, and why they differ; and what is not as a row says."""
    lines, problems = [], []
    for row in rows:
        try:
            seen = look(row, folder)
        except Exception as error:  # noqa: BLE001 - said, with the row
            problems.append(f"{row.name}: {type(error).__name__}: {error}")
            continue
        if wrong := problem(row, seen):
            problems.append(f"{row.name}: {wrong}")
        ours = f"{'≥ ' * bool(seen.missing)}{seen.ours:,}"
        why = row.why or ("equal" if not wrong else "NOT EXPLAINED")
        theirs = "fails" if seen.theirs is None else f"{seen.theirs:,}"
        lines.append((row.name, theirs, ours, why, " ".join(sorted(seen.missing))))
    headers = ("", "FlopCounterMode", "flops", "because", "not counted")
    return tabulate.tabulate(lines, headers, colalign=("left", "right", "right")), problems
