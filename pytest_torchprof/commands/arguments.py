"""The arguments of the commands."""

from __future__ import annotations

import argparse
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from pytest_torchprof.core.errors import BAD_USAGE
from pytest_torchprof.core.values import StepRange
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape

# ---- What options of the command accept: from the text that a user typed to a value, or an
# error.

R = TypeVar("R", int, float)


def _refused(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not {wanted}")


def _number(kind: type[R], text: str, suffix: str = "") -> R | None:
    """The finite number in a text; None for anything else."""
    try:
        value = kind(text.strip().removesuffix(suffix))
    except ValueError:
        return None
    return value if -float("inf") < value < float("inf") else None


def percent(text: str) -> float:
    """A percentage of 0 or more, with or without its sign."""
    value = _number(float, text, "%")
    if value is None or value < 0:
        raise _refused(text, "a percentage of 0 or more")
    return value


def count(text: str) -> int:
    """A whole number of 0 or more."""
    value = _number(int, text)
    if value is None or value < 0:
        raise _refused(text, "a whole number of 0 or more")
    return value


def some(text: str) -> int:
    """A whole number of 1 or more."""
    value = _number(int, text)
    if value is None or value < 1:
        raise _refused(text, "a whole number of 1 or more")
    return value


def grouping(text: str) -> str:
    """Parts of a grouping of kernels, see `parse_grouping`."""
    from pytest_torchprof.analysis.kernels import parse_grouping

    try:
        parse_grouping(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def seconds(text: str) -> float:
    """Seconds above 0, with or without the unit."""
    value = _number(float, text, "s")
    if value is None or value <= 0:
        raise _refused(text, "a number of seconds above 0")
    return value


def steps(text: str) -> StepRange:
    """Steps of a trace: ``N`` or ``A:B``."""
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


# ---- The arguments that several commands share.

_FORMATS = ("table", "json", "csv", "markdown")
_PATHS = (
    "a .json or .json.gz trace of torch.profiler, several, a folder (ranks of one job), a glob, or "
    "a URL"
)


TRACES = argument("traces", nargs="+", type=name, metavar="TRACE", help=_PATHS)
FORMAT = argument(
    "--format", choices=_FORMATS, default="table", help="output format (default: table)"
)
TABLE_FORMAT = argument(
    "--format",
    choices=(*_FORMATS, "parquet"),
    default="table",
    help="output format; parquet needs -o and pyarrow (default: table)",
)
LINT_FORMAT = argument(
    "--format",
    choices=(*_FORMATS, "parquet", "github", "gitlab", "sarif"),
    default="table",
    help="output format: also annotations of GitHub Actions, GitLab's Code Quality report, or "
    "SARIF 2.1.0 (default: table)",
)
RANK = argument("--rank", type=count, metavar="N", help="with several ranks, read only this one")
LIMIT = argument(
    "--limit",
    type=count,
    metavar="N",
    help="print at most N rows, 0 for all (default for tables: 30)",
)
SORT = argument("--sort", metavar="FIELD", help="sort by this field, largest first")
PEAKS = argument(
    "--device-peaks",
    type=name,
    metavar="FILE",
    help="JSON file with a chip's peak rates",
)

OUTPUT = argument(
    *("-o", "--output"), type=output, metavar="FILE", required=True, help="file; - is stdout"
)

STEP = argument(
    "--step",
    type=steps,
    metavar="N|A:B",
    help="only step N, or the steps from A to before B (B is not included; either may be missing), "
    "by their own numbers",
)
STEP_NAME = argument(
    "--step-name",
    type=name,
    metavar="NAME",
    help="the annotations that are the steps, by name or glob (default: ProfilerStep#N, else what "
    "repeats over most of the time)",
)

MERGE = argument(
    "--merge",
    action="store_true",
    help="add the traces up: a row for each name over all traces, with its least and most in one",
)
#: Of commands that print a table of many traces.
FLEET = (
    argument(
        "--jobs",
        type=count,
        metavar="N",
        help="read traces in up to N processes, fewer if memory is short; 0 for one a processor",
    ),
    argument(
        "--dask",
        type=name,
        metavar="ADDRESS",
        help="read them on the workers of this Dask scheduler, such as tcp://host:8786",
    ),
    argument("--no-cache", action="store_true", help="does nothing: no answers are kept"),
    argument(
        *("-o", "--output"),
        type=output,
        metavar="FILE",
        help="the file of --format parquet; - is stdout",
    ),
)


# ---- The arguments of `torchprof bound`.


def bound_command(*shared: Add) -> Command:
    """The command, with the arguments that it shares with others."""
    return Command(
        "bound",
        "commands.bound:run_bound",
        "TRACE|REPORT… [--device CHIP]…",
        "what a chip would at least have to do for each operator, and what fusing would save",
        (
            argument(
                "files",
                nargs="+",
                type=name,
                metavar="TRACE|REPORT",
                help="traces, folders of traces, or files of --torchprof-json whose tests have "
                "traces",
            ),
            argument(
                "--device",
                action="append",
                type=name,
                metavar="CHIP",
                help="a chip of docs/devices.md, such as 'H100 SXM'; several compare (default: the "
                "chip of --torchprof-device, or the trace's own)",
            ),
            *shared,
        ),
    )


# ---- The arguments of `torchprof ab`.


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
                "--a", type=name, metavar="PATH", help="a source tree for side A, instead of REF"
            ),
            argument(
                "--b",
                type=name,
                metavar="PATH",
                help="a source tree for side B (default: the working tree)",
            ),
            argument(
                "--python-a",
                type=name,
                metavar="PY",
                help="Python of side A (default: this one)",
            ),
            argument(
                "--python-b",
                type=name,
                metavar="PY",
                help="Python of side B (default: this one)",
            ),
            argument(
                "--min-time",
                type=seconds,
                default=1.0,
                metavar="S",
                help="seconds of measured calls per test and side, at most (default: 1)",
            ),
            argument(
                "--rounds",
                type=some,
                metavar="N",
                help="run exactly this many pairs of turns per test",
            ),
            argument(
                "--threshold",
                type=percent,
                default=2.0,
                metavar="PCT",
                help="ignore changes smaller than this many percent (default: 2)",
            ),
            argument(
                "--html",
                type=beside,
                metavar="FILE",
                help="also write the report as a page of HTML",
            ),
            *shared,
        ),
        rest="PYTEST ARGS",
    )


# ---- The arguments of `torchprof history`.


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
                type=name,
                metavar="DIR",
                help="the folder or URL of the history (default: torchprof_history of pytest's "
                "configuration); compare BRANCH: what changed since the merge base with it; gc: "
                "list the runs whose commits nothing leads to",
            ),
            argument("--test", type=name, metavar="GLOB", help="only tests of this name or glob"),
            argument("--metric", type=name, metavar="M", help="only metrics of this name or glob"),
            argument(
                "--branch",
                type=name,
                metavar="B",
                help="only runs of this branch and of the commits that it is built on; with "
                "compare, the branch that is compared (default: what is checked out)",
            ),
            argument(
                "--html",
                type=beside,
                metavar="FILE",
                help="also write a page of HTML with the changes and the curves of their series",
            ),
            argument("--yes", action="store_true", help="with gc: remove what it lists"),
            *shared,
        ),
    )


# ---- The commands about jobs of several ranks.


def distributed_commands(*shared: Add, merge: Add) -> tuple[Command, ...]:
    """The commands, with the arguments that they share with others; ``merge``: that of rows."""
    return (
        Command(
            "collectives",
            "commands.distributed:run_collectives",
            "TRACE… [--merge]",
            "calls that communicate: bytes, time, bandwidth, and the wait for the last rank",
            (*shared, merge),
        ),
        Command(
            "ranks",
            "commands.distributed:run_ranks",
            "FOLDER",
            "each rank of a job: computing, communicating, idle; who waits for whom, imbalance",
            shared,
        ),
    )
