"""The arguments of `torchprof ab`."""

from __future__ import annotations

from pytest_torchprof.commands import option_types as to
from pytest_torchprof.commands.parsing import Add, Command, argument


def ab_command(*shared: Add) -> Command:
    """The command, with the arguments that it shares with others."""
    return Command(
        "ab",
        "commands.ab:run_ab",
        "[REF] [--min-time S] [--threshold PCT] -- PYTEST ARGS",
        "find tests that are slower than in another revision, run alternately",
        (
            argument(
                "ref",
                nargs="?",
                metavar="REF",
                help="git revision for side A; B is the working tree, with its uncommitted changes",
            ),
            argument(
                "--a", type=to.name, metavar="PATH", help="a source tree for side A, instead of REF"
            ),
            argument(
                "--b",
                type=to.name,
                metavar="PATH",
                help="a source tree for side B (default: the working tree)",
            ),
            argument(
                "--python-a",
                type=to.name,
                metavar="PY",
                help="Python of side A (default: this one)",
            ),
            argument(
                "--python-b",
                type=to.name,
                metavar="PY",
                help="Python of side B (default: this one)",
            ),
            argument(
                "--min-time",
                type=to.seconds,
                default=1.0,
                metavar="S",
                help="seconds of measured calls per test and side, at most (default: 1)",
            ),
            argument(
                "--rounds",
                type=to.some,
                metavar="N",
                help="run exactly this many pairs of turns per test",
            ),
            argument(
                "--threshold",
                type=to.percent,
                default=2.0,
                metavar="PCT",
                help="ignore changes smaller than this many percent (default: 2)",
            ),
            argument(
                "--html",
                type=to.beside,
                metavar="FILE",
                help="also write the report as a page of HTML",
            ),
            *shared,
        ),
        rest="PYTEST ARGS",
    )
