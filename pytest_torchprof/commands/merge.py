"""`torchprof merge`: one report of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.commands.printing import OK
from pytest_torchprof.core.errors import ReportError, SettingsError
from pytest_torchprof.core.files import same_file, system_message
from pytest_torchprof.render.json_report import check_target, write_document
from pytest_torchprof.render.merged_report import merged
from pytest_torchprof.render.stored_report import read_report

if TYPE_CHECKING:
    from argparse import Namespace


def run_merge(options: Namespace) -> int:
    """Write the merged report."""
    target = Path(options.output)
    if any(same_file(target, Path(name)) for name in options.reports):
        raise SettingsError(
            f"{target}: this is one of the reports",
            "they are never overwritten",
            "give another name for the output",
        )
    document = merged({name: read_report(Path(name)) for name in options.reports})
    check_target(target)
    try:
        write_document(target, document)
    except (OSError, ValueError) as error:
        found = system_message(error)
        raise ReportError(f"{target}: cannot be written", found, "name another file") from None
    return OK
