"""Formats of `torchprof lint` that services of CI read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.commands.inputs import warn
from pytest_torchprof.commands.printing import TableRow, limited, write
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import finding_reports as reports
from pytest_torchprof.render.workflow_commands import (
    MOST_ANNOTATIONS,
    plain_line,
    workflow_commands,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from pytest_torchprof.rules.engine.rule import Rule

CI_FORMATS = ("github", "gitlab", "sarif")


def print_for_ci(
    options: Namespace,
    parts: TableRow,
    worth: list[TableRow],
    rules: Sequence[Rule],
    *,
    log: Sequence[str],
    hidden: Sequence[str],
) -> None:
    """Print findings that gain enough, the costliest first; lines are relative to this folder.

    ``log`` has the lines below annotations. ``hidden``: how many findings gain too little.
    """
    here = Path.cwd()
    if options.format == "github":
        most = min(options.limit or MOST_ANNOTATIONS, MOST_ANNOTATIONS)
        lines = workflow_commands(reports.annotations_of(worth, here), most)
        write("".join(f"{line}\n" for line in (*lines, *map(plain_line, log))))
        return
    shown, left = limited(options, worth)
    if options.format == "gitlab":
        text, placeless = reports.code_quality(shown, here)
        write(text)
        if placeless:
            what = f"{plural(placeless, 'finding')} without a line of a file here"
            warn(f"left out: {what}; --format table shows all")
        if left:
            warn(f"left out: {plural(left, 'finding')}; --limit 0 shows all")
        return
    unchecked = {**parts["unchecked"], **parts["errors"]}
    told = [f"left out: {plural(left, 'finding')}; --limit 0 shows all"] if left else []
    write(
        reports.sarif(
            shown, rules, here, unchecked=unchecked, notes=[*told, *hidden, *parts["notes"]]
        )
    )
