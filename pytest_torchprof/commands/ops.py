"""`torchprof ops`: key averages of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.call_tree import TREES
from pytest_torchprof.commands.inputs import (
    calls_of,
    cpu_time_note,
    device_time_note,
    load_steps,
    no_flops,
    notes_of,
    ungrouped,
)
from pytest_torchprof.commands.printing import ranks_table
from pytest_torchprof.commands.tree import show_tree, tree_note, trees_of
from pytest_torchprof.core.errors import SettingsError

if TYPE_CHECKING:
    from argparse import Namespace


def run_ops(options: Namespace) -> int:
    """Key averages of operators; by module or stack, a tree."""
    is_tree = options.by in TREES
    if options.depth is not None and not is_tree:
        what = f"--depth {options.depth}: --by {options.by} is no tree"
        raise SettingsError(what, "", "use it with --by module or --by stack")
    ranks = load_steps(options, options.traces)
    notes = [
        *notes_of(ranks, cpu_time_note, device_time_note),
        *notes_of(ranks, lambda trace: ungrouped(trace, options.by), no_flops),
        calls_of(ranks),
    ]
    extra = None
    if is_tree:
        notes += notes_of(ranks, lambda trace: tree_note(trace, options.by))
        if options.format in ("table", "markdown") or (options.format == "csv" and options.depth):
            return show_tree(options, ranks, [note for note in notes if note])
        extra = {"tree": trees_of(options, ranks)}
    return ranks_table(
        options,
        ranks,
        lambda trace: trace.ops(options.by),
        order="share",
        notes=notes,
        extra=extra,
    )
