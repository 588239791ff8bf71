"""The arguments of the commands."""

from __future__ import annotations

import argparse
import reprlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pytest_torchprof.core.errors import BAD_USAGE
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape

if TYPE_CHECKING:
    from pytest_torchprof.core.values import StepRange

# ---- What options of the command accept: from the text that a user typed to a value, or an
# error.

R = TypeVar("R", int, float)


def _refused(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not {wanted}")


def _at_least(kind: type[R], least: R, wanted: str, suffix: str = "") -> Callable[[str], R]:
    """What makes a finite number of at least this, with or without its unit, of a text."""

    def number(text: str) -> R:
        try:
            value = kind(text.strip().removesuffix(suffix))
        except ValueError:
            value = kind(-1)
        if not least <= value < float("inf"):
            raise _refused(text, wanted)
        return value

    return number


percent = _at_least(float, 0.0, "a percentage of 0 or more", "%")
count = _at_least(int, 0, "a whole number of 0 or more")
some = _at_least(int, 1, "a whole number of 1 or more")
seconds = _at_least(float, sys.float_info.min, "a number of seconds above 0", "s")


def grouping(text: str) -> str:
    """Parts of a grouping of kernels, see `parse_grouping`."""
    from pytest_torchprof.analysis.kernels import parse_grouping

    try:
        parse_grouping(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def steps(text: str) -> StepRange:
    """Steps of a trace: ``N`` or ``A:B``."""
    from pytest_torchprof.core.values import StepRange  # --help needs no numpy

    try:
        return StepRange.parse(text)
    except ValueError:
        raise _refused(text, "N or A:B, such as 3 or 2:5") from None


def name(text: str) -> str:
    """The name of a file, a folder, or anything else; not an empty one."""
    if not text.strip():  # an unset shell variable, not the current folder
        raise argparse.ArgumentTypeError("the name is empty; give a file or folder")
    return text


def output(text: str) -> str:
    """The name of the only file that a command writes; ``-`` is standard output."""
    return "/dev/stdout" if text == "-" else name(text)


def beside(text: str) -> str:
    """The name of a file that is written beside a table; not ``-``."""
    if text == "-":
        raise argparse.ArgumentTypeError("- is standard output, which has the table; name a file")
    return name(text)


# ---- How the arguments of the `torchprof` command are declared, and parsed.


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


def argument(
    names: str, metavar: str, about: str, kind: Callable[[str], Any] = name, **more: Any
) -> Add:
    """One argument: its names as words, and what its value is called, is for, and may be."""
    return lambda parser: parser.add_argument(
        *names.split(), metavar=metavar, help=about, type=kind, **more
    )


def choice(names: str, choices: Sequence[str], about: str | None = None, **more: Any) -> Add:
    """One of several words, by default the first."""
    more = {"default": choices[0]} | more
    return lambda parser: parser.add_argument(names, choices=choices, help=about, **more)


def switch(names: str, about: str, action: Any = "store_true") -> Add:
    """What is given or not."""
    return lambda parser: parser.add_argument(names, action=action, help=about)


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


# ---- The arguments that several commands share.

_FORMATS = ("table", "json", "csv", "markdown")
_PATHS = (
    "a .json or .json.gz trace of torch.profiler, several, a folder (ranks of one job), a glob, or "
    "a URL"
)


TRACES = argument("traces", "TRACE", _PATHS, nargs="+")
FORMAT = choice("--format", _FORMATS, "output format (default: table)")
TABLE_FORMAT = choice(
    "--format",
    (*_FORMATS, "parquet"),
    "output format; parquet needs -o and pyarrow (default: table)",
)
LINT_FORMAT = choice(
    "--format",
    (*_FORMATS, "parquet", "github", "gitlab", "sarif"),
    "output format: also annotations of GitHub Actions, GitLab's Code Quality report, or "
    "SARIF 2.1.0 (default: table)",
)
RANK = argument("--rank", "N", "with several ranks, read only this one", count)
LIMIT = argument("--limit", "N", "print at most N rows, 0 for all (default for tables: 30)", count)
SORT = argument("--sort", "FIELD", "sort by this field, largest first", str)
PEAKS = argument("--device-peaks", "FILE", "JSON file with a chip's peak rates")
OUTPUT = argument("-o --output", "FILE", "file; - is stdout", output, required=True)
STEP = argument(
    "--step",
    "N|A:B",
    "only step N, or the steps from A to before B (B is not included; either may be missing), "
    "by their own numbers",
    steps,
)
STEP_NAME = argument(
    "--step-name",
    "NAME",
    "the annotations that are the steps, by name or glob (default: ProfilerStep#N, else what "
    "repeats over most of the time)",
)
MERGE = switch(
    "--merge",
    "add the traces up: a row for each name over all traces, with its least and most in one",
)
#: Of commands that print a table of many traces.
FLEET = (
    argument(
        "--jobs",
        "N",
        "read traces in up to N processes, fewer if memory is short; 0 for one a processor",
        count,
    ),
    argument(
        "--dask",
        "ADDRESS",
        "read them on the workers of this Dask scheduler, such as tcp://host:8786",
    ),
    switch("--no-cache", "does nothing: no answers are kept"),
    argument("-o --output", "FILE", "the file of --format parquet; - is stdout", output),
)
#: Of commands that print one table.
ONE_TABLE = (STEP, STEP_NAME, SORT, LIMIT, TABLE_FORMAT, RANK)
