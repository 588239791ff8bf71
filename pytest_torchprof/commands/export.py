"""`torchprof export`: a report in the format of a service that follows numbers over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.commands.inputs import warn
from pytest_torchprof.commands.printing import write
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.stored_report import read_report
from pytest_torchprof.render.trackers import EXPORTS

if TYPE_CHECKING:
    from argparse import Namespace


def run_export(options: Namespace) -> int:
    """Print the report in the other format."""
    report = read_report(Path(options.report))
    if report.interrupted:
        warn(f"{options.report}: the session was interrupted; tests may be missing")
    exported = EXPORTS[options.format](report)
    if exported.left_out:
        what = plural(exported.left_out, "number")
        warn(f"left out: {what} of which a higher value is better, which {options.format} lacks")
    return write(exported.text)
