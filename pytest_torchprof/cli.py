"""The `torchprof` command: inspect stored traces, and compare two revisions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

from pytest_torchprof.commands import arguments as to
from pytest_torchprof.commands.arguments import (
    FLEET,
    FORMAT,
    LIMIT,
    LINT_FORMAT,
    MERGE,
    OUTPUT,
    PEAKS,
    RANK,
    SORT,
    STEP,
    STEP_NAME,
    TABLE_FORMAT,
    TRACES,
    Command,
    ab_command,
    argument,
    bound_command,
    distributed_commands,
    history_command,
    make_parser,
    parsed,
)
from pytest_torchprof.core.errors import BAD_USAGE, TorchprofError, error_line
from pytest_torchprof.render import escape

OK, INTERRUPTED = 0, 130

#: If set to anything, internal errors show their traceback.
DEBUG = "TORCHPROF_DEBUG"

COMMANDS = (
    Command(
        "summary",
        "commands.summary:run_summary",
        "TRACE…",
        "where the time goes, and every metric of a trace",
        (TRACES, STEP, STEP_NAME, TABLE_FORMAT, RANK, MERGE, *FLEET),
    ),
    Command(
        "steps",
        "commands.timeline:run_steps",
        "TRACE… [--step A:B]",
        "each step of a trace: time, device work, memory; outliers and drift",
        (TRACES, STEP, STEP_NAME, SORT, LIMIT, TABLE_FORMAT, RANK, *FLEET),
    ),
    Command(
        "idle",
        "commands.timeline:run_idle",
        "TRACE… [--by place|cause]",
        "what the host did while the device was idle",
        (
            TRACES,
            argument("--by", choices=("place", "cause"), default="place"),
            STEP,
            STEP_NAME,
            SORT,
            LIMIT,
            TABLE_FORMAT,
            RANK,
            MERGE,
            *FLEET,
        ),
    ),
    Command(
        "ops",
        "commands.ops:run_ops",
        "TRACE… [--by name|shape|stack|module]",
        "key averages of operators: calls, time, memory, FLOPs, share",
        (
            TRACES,
            argument("--by", choices=("name", "shape", "stack", "module"), default="name"),
            argument(
                "--depth",
                type=to.some,
                metavar="N",
                help="with --by module or stack: at most N levels of the tree",
            ),
            STEP,
            STEP_NAME,
            SORT,
            LIMIT,
            TABLE_FORMAT,
            RANK,
            MERGE,
            *FLEET,
        ),
    ),
    Command(
        "kernels",
        "commands.ops:run_kernels",
        "TRACE… [--by name|op|op,kernel,shape]",
        "kernels and copies: time, FLOP/s and GB/s against the chip's peak",
        (
            TRACES,
            argument(
                "--by",
                type=to.grouping,
                metavar="PART,…",
                default="name",
                help="name or op, or several of op, kernel (the same as name) and shape; several "
                "add the roofline, what to gain, and the launches (default: name)",
            ),
            STEP,
            STEP_NAME,
            SORT,
            LIMIT,
            PEAKS,
            TABLE_FORMAT,
            RANK,
            MERGE,
            *FLEET,
        ),
    ),
    Command(
        "lint",
        "commands.lint:run_lint",
        "TRACE… [--fail] [--format github|gitlab|sarif]",
        "anti-patterns, with place, count, cost and fix",
        (
            TRACES,
            argument(
                "--fail",
                action="store_true",
                help="exit with 1 if anything is found, or if nothing could be checked",
            ),
            argument("--ignore", metavar="RULE,…", default="", help="rules to skip"),
            argument(
                "--thresholds",
                metavar="RULE.NAME=VALUE,…",
                default="",
                help="thresholds of rules, with units: pageable-copy.bytes=2 MiB",
            ),
            argument(
                "--min-gain",
                metavar="PCT",
                type=to.percent,
                default=0.1,
                help="hide what would gain less than this share of the time (default: 0.1)",
            ),
            STEP,
            STEP_NAME,
            LIMIT,
            LINT_FORMAT,
            RANK,
            MERGE,
            *FLEET,
        ),
    ),
    Command(
        "rules",
        "commands.lint:run_rules",
        "[RULE]",
        "list the anti-pattern rules, or explain one",
        (
            argument("code", nargs="?", metavar="RULE", help="explain this rule, with examples"),
            FORMAT,
        ),
    ),
    Command(
        "diff",
        "commands.diff:run_diff",
        "A B [--by op|kernel] [--per-step] [--fail-over PCT] [--html FILE]",
        "what appeared, disappeared, or changed between two traces",
        (
            argument("a", type=to.name, metavar="A", help="the trace before, or a folder"),
            argument("b", type=to.name, metavar="B", help="the trace now"),
            argument("--by", choices=("op", "kernel"), default="op"),
            argument(
                "--fail-over",
                type=to.percent,
                metavar="PCT",
                help="exit with 1 if the time grew by more than this many percent",
            ),
            argument(
                "--html",
                type=to.beside,
                metavar="FILE",
                help="also write a page of HTML: metrics, operators and kernels by change",
            ),
            STEP,
            STEP_NAME,
            argument(
                "--per-step",
                action=argparse.BooleanOptionalAction,
                help="compare the steps alone, and divide by their number (default: if the numbers "
                "differ)",
            ),
            SORT,
            LIMIT,
            FORMAT,
            RANK,
        ),
    ),
    Command(
        "augment",
        "commands.ops:run_augment",
        "IN OUT",
        "write the trace with FLOPs, bytes and achieved % on each kernel, for Perfetto",
        (
            argument("trace", type=to.name, metavar="IN", help="the trace, or a folder"),
            argument("target", type=to.beside, metavar="OUT",
                      help="the file to write; .gz compresses it"),
            PEAKS,
            FORMAT,
            RANK,
        ),
    ),
    Command(
        "stacks",
        "commands.ops:run_stacks",
        "TRACE OUT [--metric M]",
        "folded stacks for flame graphs (flamegraph.pl, speedscope, inferno)",
        (
            argument("trace", type=to.name, metavar="TRACE", help="the trace, or a folder"),
            argument("target", type=to.beside, metavar="OUT", help="the file to write"),
            argument("--metric", choices=("self_cpu_ms", "self_cuda_ms"), default="self_cpu_ms"),
            STEP,
            STEP_NAME,
            FORMAT,
            RANK,
        ),
    ),
    Command(
        "open",
        "commands.pages:run_open",
        "TRACE",
        "show a trace in the Perfetto UI, to which the browser hands it",
        (argument("trace", type=to.name, metavar="TRACE", help="the trace, or a folder"), RANK),
    ),
    Command(
        "memory",
        "commands.timeline:run_memory",
        "TRACE… [--timeline]",
        "peak memory, what was live at the peak by operator and category, and leaks between steps",
        (
            TRACES,
            argument(
                "--timeline",
                action="store_true",
                help="the live memory over time, by category; --limit N gives N moments per device",
            ),
            STEP,
            STEP_NAME,
            LIMIT,
            TABLE_FORMAT,
            RANK,
            MERGE,
            *FLEET,
        ),
    ),
    *distributed_commands(
        TRACES, STEP, STEP_NAME, SORT, LIMIT, TABLE_FORMAT, RANK, *FLEET, merge=MERGE
    ),
    Command(
        "report",
        "commands.pages:run_report",
        "REPORT|TRACE… -o FILE [--assets DIR]",
        "reports of --torchprof-json, or traces, as a page of HTML: one file that opens anywhere",
        (
            argument("files", nargs="+", type=to.name, metavar="REPORT|TRACE",
                      help="files of --torchprof-json, traces, or folders of traces"),
            OUTPUT,
            argument("--assets", type=to.name, metavar="DIR", help="put styles and scripts into "
                      "this folder, for servers that allow them only as files (default: they are "
                      "in the page)"),
            PEAKS,
        ),
    ),
    Command(
        "export",
        "commands.pages:run_export",
        "REPORT --format bmf|gha-benchmark|openmetrics|csv",
        "a report of --torchprof-json for Bencher, github-action-benchmark, Prometheus, or a table",
        (
            argument("report", type=to.name, metavar="REPORT", help="a file of --torchprof-json"),
            argument(
                "--format",
                choices=("bmf", "gha-benchmark", "openmetrics", "csv"),
                required=True,
                help="Bencher Metric Format, github-action-benchmark's customSmallerIsBetter, "
                "OpenMetrics text, or CSV",
            ),
        ),
    ),
    Command(
        "merge",
        "commands.pages:run_merge",
        "REPORT… -o FILE",
        "one report of several, such as those of the shards of a test suite",
        (
            argument("reports", nargs="+", type=to.name, metavar="REPORT",
                      help="files of --torchprof-json"),
            OUTPUT,
        ),
    ),
    bound_command(PEAKS, STEP, STEP_NAME, SORT, LIMIT, FORMAT, RANK),
    history_command(LIMIT, FORMAT),
    ab_command(LIMIT, FORMAT),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (the process's own by default); return its status."""
    parser = make_parser(COMMANDS)
    options = parsed(parser, sys.argv[1:] if argv is None else list(argv), COMMANDS)
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
        fault = error_line(error)
        return _complain(f"internal error, please report it: {fault}; {DEBUG}=1 shows where")


def _complain(message: str) -> int:
    escape.say(message)
    return BAD_USAGE
