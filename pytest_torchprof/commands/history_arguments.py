"""The arguments of `torchprof history`."""

from __future__ import annotations

from pytest_torchprof.commands import option_types as to
from pytest_torchprof.commands.parsing import Add, Command, argument


def history_command(*shared: Add) -> Command:
    """The command, with the arguments that it shares with others."""
    return Command(
        "history",
        "commands.history:run_history",
        "[DIR] [--html FILE] | compare BRANCH [DIR] | gc [DIR]",
        "what changed over the runs of --torchprof-history: steps and drifts with their commits",
        (
            argument(
                "words",
                nargs="*",
                type=to.name,
                metavar="DIR",
                help="the folder or URL of the history (default: torchprof_history of pytest's "
                "configuration); compare BRANCH: what changed since the merge base with it; gc: "
                "list the runs whose commits nothing leads to",
            ),
            argument(
                "--test", type=to.name, metavar="GLOB", help="only tests of this name or glob"
            ),
            argument(
                "--metric", type=to.name, metavar="M", help="only metrics of this name or glob"
            ),
            argument(
                "--branch",
                type=to.name,
                metavar="B",
                help="only runs of this branch and of the commits that it is built on; with "
                "compare, the branch that is compared (default: what is checked out)",
            ),
            argument(
                "--html",
                type=to.beside,
                metavar="FILE",
                help="also write a page of HTML with the changes and the curves of their series",
            ),
            argument("--yes", action="store_true", help="with gc: remove what it lists"),
            *shared,
        ),
    )
