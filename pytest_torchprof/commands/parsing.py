"""How the arguments of the `torchprof` command are declared, and parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pytest_torchprof.core.errors import BAD_USAGE
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line on stderr."""

    def error(self, message: str) -> NoReturn:
        """Print the error and where to find help, and exit with 2."""
        self.exit(BAD_USAGE, f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Escape what the user typed before printing it."""
        super().exit(status, message and f"{escape.line(message.rstrip())}\n")


Add = Callable[[argparse.ArgumentParser], object]


@dataclass(frozen=True)
class Command:
    """One subcommand: what it is for, its arguments, and the function that does it.

    ``run`` is ``module:function`` below the package, so that `torchprof --help` loads none of them.
    ``rest`` describes the arguments after ``--``, which are passed on unchanged.
    """

    name: str
    run: str
    synopsis: str
    help: str
    arguments: tuple[Add, ...]
    rest: str = ""


def argument(*names: str, **options: object) -> Add:
    """One argument, as `argparse` takes it."""
    return lambda parser: parser.add_argument(*names, **options)  # type: ignore[arg-type]


def make_parser(commands: Sequence[Command]) -> Parser:
    """The parser of the whole command."""
    parser = Parser(
        prog="torchprof",
        description="Metrics, tables and checks for PyTorch profiler traces.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in commands:
        sub = subparsers.add_parser(
            command.name, help=command.help.replace("%", "%%"), description=command.help
        )
        for add in command.arguments:
            add(sub)
        if command.rest:
            sub.usage = f"{sub.format_usage().removeprefix('usage: ').rstrip()} -- {command.rest}"
    return parser


def parsed(parser: Parser, words: list[str], commands: Sequence[Command]) -> argparse.Namespace:
    """Parse the words before ``--``, and keep those after it for a command that passes them on."""
    command = next((c for c in commands if words[:1] == [c.name] and c.rest), None)
    if command is None:
        return _in_any_order(parser, words)
    end = words.index("--") if "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:end])
    if unknown:
        first = words.index(unknown[0])
        ours, others = " ".join(words[1:first]) or "REF", " ".join(words[first:end])
        what = f"arguments for pytest go after --: torchprof {command.name} {ours} -- {others}"
        parser.exit(BAD_USAGE, f"torchprof {command.name}: {what}\n")
    options.rest = tuple(words[end + 1 :])
    return options


def _in_any_order(parser: Parser, words: list[str]) -> argparse.Namespace:
    """Parse them; names may also follow options, which argparse does not allow for any number."""
    options, late = parser.parse_known_args(words)
    if late and hasattr(options, "words") and not any(word.startswith("-") for word in late):
        options.words += late
        return options
    return parser.parse_args(words)
