"""The `torchprof` command: inspect stored traces, and compare two revisions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import NoReturn

from pytest_torchprof.commands import option_types as to
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape, streams

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

#: If set to anything, internal errors show their traceback.
DEBUG = "TORCHPROF_DEBUG"

_FORMATS = ("table", "json", "csv", "markdown")
_PATHS = "a .json or .json.gz trace of torch.profiler, several, or a folder (ranks of one job)"


class _Parser(argparse.ArgumentParser):
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


def _argument(*names: str, **options: object) -> Add:
    return lambda parser: parser.add_argument(*names, **options)  # type: ignore[arg-type]


_TRACES = _argument("traces", nargs="+", type=to.name, metavar="TRACE", help=_PATHS)
_FORMAT = _argument(
    "--format", choices=_FORMATS, default="table", help="output format (default: table)"
)
_RANK = _argument(
    "--rank", type=to.count, metavar="N", help="with several ranks, read only this one"
)
_LIMIT = _argument(
    "--limit",
    type=to.count,
    metavar="N",
    help="print at most N rows, 0 for all (default for tables: 30)",
)
_SORT = _argument("--sort", metavar="FIELD", help="sort by this field, largest first")
_PEAKS = _argument(
    "--device-peaks",
    type=to.name,
    metavar="FILE",
    help="JSON file with a chip's peak rates",
)

_STEP = _argument(
    "--step",
    type=to.steps,
    metavar="N|A:B",
    help="only step N, or the steps from A to before B (B is not included; either may be missing), "
    "by their own numbers",
)
_STEP_NAME = _argument(
    "--step-name",
    type=to.name,
    metavar="NAME",
    help="the annotations that are the steps, by name or glob (default: ProfilerStep#N, else what "
    "repeats over most of the time)",
)

COMMANDS = (
    Command(
        "summary",
        "commands.summary:run_summary",
        "TRACE…",
        "where the time goes, and every metric of a trace",
        (_TRACES, _STEP, _STEP_NAME, _FORMAT, _RANK),
    ),
    Command(
        "steps",
        "commands.steps:run_steps",
        "TRACE… [--step A:B]",
        "each step of a trace: time, device work, memory; outliers and drift",
        (_TRACES, _STEP, _STEP_NAME, _SORT, _LIMIT, _FORMAT, _RANK),
    ),
    Command(
        "idle",
        "commands.idle:run_idle",
        "TRACE… [--by place|cause]",
        "what the host did while the device was idle",
        (
            _TRACES,
            _argument("--by", choices=("place", "cause"), default="place"),
            _STEP,
            _STEP_NAME,
            _SORT,
            _LIMIT,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "ops",
        "commands.ops:run_ops",
        "TRACE… [--by name|shape|stack|module]",
        "key averages of operators: calls, time, memory, FLOPs, share",
        (
            _TRACES,
            _argument("--by", choices=("name", "shape", "stack", "module"), default="name"),
            _argument(
                "--depth",
                type=to.some,
                metavar="N",
                help="with --by module or stack: at most N levels of the tree",
            ),
            _STEP,
            _STEP_NAME,
            _SORT,
            _LIMIT,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "kernels",
        "commands.kernels:run_kernels",
        "TRACE… [--by name|op|op,kernel,shape]",
        "kernels and copies: time, FLOP/s and GB/s against the chip's peak",
        (
            _TRACES,
            _argument(
                "--by",
                type=to.grouping,
                metavar="PART,…",
                default="name",
                help="name or op, or several of op, kernel (the same as name) and shape; several "
                "add the roofline, what to gain, and the launches (default: name)",
            ),
            _STEP,
            _STEP_NAME,
            _SORT,
            _LIMIT,
            _PEAKS,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "lint",
        "commands.lint:run_lint",
        "TRACE… [--fail]",
        "anti-patterns, with place, count, cost and fix",
        (
            _TRACES,
            _argument(
                "--fail",
                action="store_true",
                help="exit with 1 if anything is found, or if nothing could be checked",
            ),
            _argument("--ignore", metavar="RULE,…", default="", help="rules to skip"),
            _argument(
                "--thresholds",
                metavar="RULE.NAME=VALUE,…",
                default="",
                help="thresholds of rules, with units: pageable-copy.bytes=2 MiB",
            ),
            _argument(
                "--min-gain",
                metavar="PCT",
                type=to.percent,
                default=0.1,
                help="hide what would gain less than this share of the time (default: 0.1)",
            ),
            _STEP,
            _STEP_NAME,
            _LIMIT,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "rules",
        "commands.rules:run_rules",
        "[RULE]",
        "list the anti-pattern rules, or explain one",
        (
            _argument("code", nargs="?", metavar="RULE", help="explain this rule, with examples"),
            _FORMAT,
        ),
    ),
    Command(
        "diff",
        "commands.diff:run_diff",
        "A B [--by op|kernel] [--per-step] [--fail-over PCT]",
        "what appeared, disappeared, or changed between two traces",
        (
            _argument("a", type=to.name, metavar="A", help="the trace before, or a folder"),
            _argument("b", type=to.name, metavar="B", help="the trace now"),
            _argument("--by", choices=("op", "kernel"), default="op"),
            _argument(
                "--fail-over",
                type=to.percent,
                metavar="PCT",
                help="exit with 1 if the time grew by more than this many percent",
            ),
            _STEP,
            _STEP_NAME,
            _argument(
                "--per-step",
                action=argparse.BooleanOptionalAction,
                help="compare the steps alone, and divide by their number (default: if the numbers "
                "differ)",
            ),
            _SORT,
            _LIMIT,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "augment",
        "commands.augment:run_augment",
        "IN OUT",
        "write the trace with FLOPs, bytes and achieved % on each kernel, for Perfetto",
        (
            _argument("trace", type=to.name, metavar="IN", help="the trace, or a folder"),
            _argument("target", type=to.name, metavar="OUT",
                      help="the file to write; .gz compresses it"),
            _PEAKS,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "stacks",
        "commands.stacks:run_stacks",
        "TRACE OUT [--metric M]",
        "folded stacks for flame graphs (flamegraph.pl, speedscope, inferno)",
        (
            _argument("trace", type=to.name, metavar="TRACE", help="the trace, or a folder"),
            _argument("target", type=to.name, metavar="OUT", help="the file to write"),
            _argument("--metric", choices=("self_cpu_ms", "self_cuda_ms"), default="self_cpu_ms"),
            _STEP,
            _STEP_NAME,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "memory",
        "commands.memory:run_memory",
        "TRACE… [--timeline]",
        "peak memory, what was live at the peak by operator and category, and leaks between steps",
        (
            _TRACES,
            _argument(
                "--timeline",
                action="store_true",
                help="the live memory over time, by category; --limit N gives N moments per device",
            ),
            _STEP,
            _STEP_NAME,
            _LIMIT,
            _FORMAT,
            _RANK,
        ),
    ),
    Command(
        "ab",
        "commands.ab:run_ab",
        "[REF] [--min-time S] [--threshold PCT] -- PYTEST ARGS",
        "find tests that are slower than in another revision, run alternately",
        (
            _argument("ref", nargs="?", metavar="REF", help="git revision for side A; B is the "
                      "working tree, with its uncommitted changes"),
            _argument("--a", type=to.name, metavar="PATH",
                      help="a source tree for side A, instead of REF"),
            _argument("--b", type=to.name, metavar="PATH",
                      help="a source tree for side B (default: the working tree)"),
            _argument("--python-a", type=to.name, metavar="PY",
                      help="Python of side A (default: this one)"),
            _argument("--python-b", type=to.name, metavar="PY",
                      help="Python of side B (default: this one)"),
            _argument("--min-time", type=to.seconds, default=1.0, metavar="S", help="seconds of "
                      "measured calls per test and side, at most (default: 1)"),
            _argument("--rounds", type=to.some, metavar="N",
                      help="run exactly this many pairs of turns per test"),
            _argument("--threshold", type=to.percent, default=2.0, metavar="PCT",
                      help="ignore changes smaller than this many percent (default: 2)"),
            _LIMIT,
            _FORMAT,
        ),
        rest="PYTEST ARGS",
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (the process's own by default); return its status."""
    parser = _parser()
    options = _parsed(parser, sys.argv[1:] if argv is None else list(argv))
    if options.command is None:
        parser.print_help()
        parser.error("no command given")
    if sys.stdout is None:  # `torchprof … >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - to the end of the process
    try:
        status = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `torchprof ops … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parsed(parser: _Parser, words: list[str]) -> argparse.Namespace:
    """Parse the words before ``--``, and keep those after it for a command that passes them on."""
    command = next((c for c in COMMANDS if words[:1] == [c.name] and c.rest), None)
    if command is None:
        return parser.parse_args(words)
    end = words.index("--") if "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:end])
    if unknown:
        first = words.index(unknown[0])
        ours, others = " ".join(words[1:first]) or "REF", " ".join(words[first:end])
        what = f"arguments for pytest go after --: torchprof {command.name} {ours} -- {others}"
        parser.exit(BAD_USAGE, f"torchprof {command.name}: {what}\n")
    options.rest = tuple(words[end + 1 :])
    return options


def _run(options: argparse.Namespace) -> int:
    command = next(command for command in COMMANDS if command.name == options.command)
    try:
        return int(resolve_name(f"pytest_torchprof.{command.run}")(options))
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except TorchprofError as error:
        return _complain(str(error))
    except MemoryError:
        return _complain("not enough memory for this trace")
    except OSError as error:
        return _complain(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        fault = f"{type(error).__name__}: {error}".splitlines()[0]
        return _complain(f"internal error, please report it: {fault}; {DEBUG}=1 shows where")


def _complain(message: str) -> int:
    streams.say(message)
    return BAD_USAGE


def _parser() -> _Parser:
    parser = _Parser(
        prog="torchprof",
        description="Metrics, tables and checks for PyTorch profiler traces.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name, help=command.help.replace("%", "%%"), description=command.help
        )
        for add in command.arguments:
            add(sub)
        if command.rest:
            sub.usage = f"{sub.format_usage().removeprefix('usage: ').rstrip()} -- {command.rest}"
    return parser
