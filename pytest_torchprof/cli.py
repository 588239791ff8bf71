"""The `torchprof` command: what a stored trace says, without running anything."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from pytest_torchprof import __version__

BAD_USAGE = 2


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line on stderr."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with 2."""
        self.exit(BAD_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (the process's own by default); return its status."""
    parser = _parser()
    parser.parse_args(argv)
    parser.print_help()
    parser.error("no command was given")


def _parser() -> _Parser:
    parser = _Parser(
        prog="torchprof",
        description="Metrics, tables and checks for PyTorch profiler traces.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser
