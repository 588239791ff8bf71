"""`torchprof stacks`: folded stacks for flame graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.analysis.gaps import cpu_time_gap, device_time_gap
from pytest_torchprof.commands.inputs import load_steps, only, steps_in_words
from pytest_torchprof.commands.printing import print_table
from pytest_torchprof.render.folded_stacks import write_stacks
from pytest_torchprof.render.reason_texts import in_words

if TYPE_CHECKING:
    from argparse import Namespace


def run_stacks(options: Namespace) -> int:
    """Folded stacks for flame graphs."""
    trace = only(load_steps(options, [options.trace]))
    lines = write_stacks(trace.events, Path(options.target), options.metric)
    row = {"file": options.target, "lines": lines, "metric": options.metric}
    gap = device_time_gap if options.metric == "self_cuda_ms" else cpu_time_gap
    lost = trace.events.once(gap)
    notes = [] if lost is None else [f"stacks of a part: {in_words(lost)}"]
    notes += [steps] if (steps := steps_in_words(trace)) else []
    return print_table(options, [row], list(row), schema="stacks", notes=notes)
