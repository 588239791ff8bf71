"""`torchprof augment`: the same trace with FLOPs, bytes and achieved % on its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof import api
from pytest_torchprof.commands.inputs import extra_chips, load_traces, only, warn
from pytest_torchprof.commands.printing import print_table

if TYPE_CHECKING:
    from argparse import Namespace


def run_augment(options: Namespace) -> int:
    """Write the trace with FLOPs, bytes and achieved % on its kernels."""
    chips, path = extra_chips(options), Path(options.trace)
    if path.is_dir():
        path = only(load_traces([options.trace], options.rank)).path
    done = api.augment(path, options.target, chips)
    for warning in done.warnings:
        warn(f"{options.trace}: {warning}")
    row = {"file": options.target, "events": done.events, "counters": done.counters}
    return print_table(options, [row], list(row), schema="augment")
