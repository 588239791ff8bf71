"""`torchprof ops`: key averages of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.call_tree import TREES
from pytest_torchprof.commands.inputs import (
    call_counts,
    calls_in_words,
    cpu_time_note,
    device_time_note,
    no_flops,
    ungrouped,
)
from pytest_torchprof.commands.merged import OPS, show_merged
from pytest_torchprof.commands.parts import ask, at_steps, part_of
from pytest_torchprof.commands.printing import show_tables, table_of
from pytest_torchprof.commands.tree import show_tree, tree_note, trees_of
from pytest_torchprof.core.errors import SettingsError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Body


def run_ops(options: Namespace) -> int:
    """Key averages of operators; by module or stack, a tree."""
    is_tree = options.by in TREES
    if options.depth is not None and not is_tree:
        what = f"--depth {options.depth}: --by {options.by} is no tree"
        raise SettingsError(what, "", "use it with --by module or --by stack")
    parts = ask(options, "commands.ops:ops_part", by=options.by, depth=options.depth)
    calls = calls_in_words(list(parts.each("calls").values()))
    notes = [*parts.some_notes(0, 4), calls, *parts.some_notes(4, None)]
    extra = None
    if is_tree:
        trees = parts.each("tree")
        if not options.merge and (
            options.format in ("table", "markdown") or (options.format == "csv" and options.depth)
        ):
            show_tree(options, parts, trees, [note for note in notes if note])
            return parts.status(0)
        extra = {"tree": trees_of(options, parts, trees)}
    tables = parts.each("table")
    if options.merge:
        return parts.status(
            show_merged(options, parts, OPS, tables, order="self_cpu_ms", notes=notes)
        )
    return parts.status(
        show_tables(options, parts, tables, order="share", notes=notes, extra=extra)
    )


def ops_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace, by = at_steps(trace, settings), settings["by"]
    is_tree = by in TREES
    return part_of(
        trace,
        [
            cpu_time_note(trace),
            device_time_note(trace),
            ungrouped(trace, by),
            no_flops(trace),
            tree_note(trace, by) if is_tree else "",
        ],
        calls=call_counts(trace),
        table=table_of(trace.ops(by)),
        tree=table_of(trace.tree(by, settings["depth"])) if is_tree else None,
    )
