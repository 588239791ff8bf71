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
    ONE_TABLE,
    OUTPUT,
    PEAKS,
    RANK,
    SORT,
    STEP,
    STEP_NAME,
    TABLE_FORMAT,
    TRACES,
    Command,
    argument,
    choice,
    make_parser,
    parsed,
    switch,
)
from pytest_torchprof.core.errors import BAD_USAGE, TorchprofError, error_line
from pytest_torchprof.render import escape

OK, INTERRUPTED = 0, 130

#: If set to anything, internal errors show their traceback.
DEBUG = "TORCHPROF_DEBUG"

_TRACE = "the trace, or a folder"

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
        (TRACES, *ONE_TABLE, *FLEET),
    ),
    Command(
        "idle",
        "commands.timeline:run_idle",
        "TRACE… [--by place|cause]",
        "what the host did while the device was idle",
        (TRACES, choice("--by", ("place", "cause")), *ONE_TABLE, MERGE, *FLEET),
    ),
    Command(
        "ops",
        "commands.ops:run_ops",
        "TRACE… [--by name|shape|stack|module]",
        "key averages of operators: calls, time, memory, FLOPs, share",
        (
            TRACES,
            choice("--by", ("name", "shape", "stack", "module")),
            argument(
                "--depth", "N", "with --by module or stack: at most N levels of the tree", to.some
            ),
            *ONE_TABLE,
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
                "PART,…",
                "name or op, or several of op, kernel (the same as name) and shape; several add "
                "the roofline, what to gain, and the launches (default: name)",
                to.grouping,
                default="name",
            ),
            *(STEP, STEP_NAME, SORT, LIMIT, PEAKS, TABLE_FORMAT, RANK, MERGE, *FLEET),
        ),
    ),
    Command(
        "lint",
        "commands.lint:run_lint",
        "TRACE… [--fail] [--format github|gitlab|sarif]",
        "anti-patterns, with place, count, cost and fix",
        (
            TRACES,
            switch("--fail", "exit with 1 if anything is found, or if nothing could be checked"),
            argument("--ignore", "RULE,…", "rules to skip", str, default=""),
            argument(
                "--thresholds",
                "RULE.NAME=VALUE,…",
                "thresholds of rules, with units: pageable-copy.bytes=2 MiB",
                str,
                default="",
            ),
            argument(
                "--min-gain",
                "PCT",
                "hide what would gain less than this share of the time (default: 0.1)",
                to.percent,
                default=0.1,
            ),
            *(STEP, STEP_NAME, LIMIT, LINT_FORMAT, RANK, MERGE, *FLEET),
        ),
    ),
    Command(
        "rules",
        "commands.lint:run_rules",
        "[RULE]",
        "list the anti-pattern rules, or explain one",
        (argument("code", "RULE", "explain this rule, with examples", str, nargs="?"), FORMAT),
    ),
    Command(
        "diff",
        "commands.diff:run_diff",
        "A B [--by op|kernel] [--per-step] [--fail-over PCT] [--html FILE]",
        "what appeared, disappeared, or changed between two traces",
        (
            argument("a", "A", "the trace before, or a folder"),
            argument("b", "B", "the trace now"),
            choice("--by", ("op", "kernel")),
            argument(
                "--fail-over",
                "PCT",
                "exit with 1 if the time grew by more than this many percent",
                to.percent,
            ),
            argument(
                "--html",
                "FILE",
                "also write a page of HTML: metrics, operators and kernels by change",
                to.beside,
            ),
            STEP,
            STEP_NAME,
            switch(
                "--per-step",
                "compare the steps alone, and divide by their number (default: if the numbers "
                "differ)",
                argparse.BooleanOptionalAction,
            ),
            *(SORT, LIMIT, FORMAT, RANK),
        ),
    ),
    Command(
        "augment",
        "commands.ops:run_augment",
        "IN OUT",
        "write the trace with FLOPs, bytes and achieved % on each kernel, for Perfetto",
        (
            argument("trace", "IN", _TRACE),
            argument("target", "OUT", "the file to write; .gz compresses it", to.beside),
            *(PEAKS, FORMAT, RANK),
        ),
    ),
    Command(
        "stacks",
        "commands.ops:run_stacks",
        "TRACE OUT [--metric M]",
        "folded stacks for flame graphs (flamegraph.pl, speedscope, inferno)",
        (
            argument("trace", "TRACE", _TRACE),
            argument("target", "OUT", "the file to write", to.beside),
            choice("--metric", ("self_cpu_ms", "self_cuda_ms")),
            *(STEP, STEP_NAME, FORMAT, RANK),
        ),
    ),
    Command(
        "open",
        "commands.pages:run_open",
        "TRACE",
        "show a trace in the Perfetto UI, to which the browser hands it",
        (argument("trace", "TRACE", _TRACE), RANK),
    ),
    Command(
        "memory",
        "commands.timeline:run_memory",
        "TRACE… [--timeline]",
        "peak memory, what was live at the peak by operator and category, and leaks between steps",
        (
            TRACES,
            switch(
                "--timeline",
                "the live memory over time, by category; --limit N gives N moments per device",
            ),
            *(STEP, STEP_NAME, LIMIT, TABLE_FORMAT, RANK, MERGE, *FLEET),
        ),
    ),
    Command(
        "collectives",
        "commands.distributed:run_collectives",
        "TRACE… [--merge]",
        "calls that communicate: bytes, time, bandwidth, and the wait for the last rank",
        (TRACES, *ONE_TABLE, *FLEET, MERGE),
    ),
    Command(
        "ranks",
        "commands.distributed:run_ranks",
        "FOLDER",
        "each rank of a job: computing, communicating, idle; who waits for whom, imbalance",
        (TRACES, *ONE_TABLE, *FLEET),
    ),
    Command(
        "report",
        "commands.pages:run_report",
        "REPORT|TRACE… -o FILE [--assets DIR]",
        "reports of --torchprof-json, or traces, as a page of HTML: one file that opens anywhere",
        (
            argument(
                "files",
                "REPORT|TRACE",
                "files of --torchprof-json, traces, or folders of traces",
                nargs="+",
            ),
            OUTPUT,
            argument(
                "--assets",
                "DIR",
                "put styles and scripts into this folder, for servers that allow them only as "
                "files (default: they are in the page)",
            ),
            PEAKS,
        ),
    ),
    Command(
        "export",
        "commands.pages:run_export",
        "REPORT --format bmf|gha-benchmark|openmetrics|csv",
        "a report of --torchprof-json for Bencher, github-action-benchmark, Prometheus, or a table",
        (
            argument("report", "REPORT", "a file of --torchprof-json"),
            choice(
                "--format",
                ("bmf", "gha-benchmark", "openmetrics", "csv"),
                "Bencher Metric Format, github-action-benchmark's customSmallerIsBetter, "
                "OpenMetrics text, or CSV",
                required=True,
            ),
        ),
    ),
    Command(
        "merge",
        "commands.pages:run_merge",
        "REPORT… -o FILE",
        "one report of several, such as those of the shards of a test suite",
        (argument("reports", "REPORT", "files of --torchprof-json", nargs="+"), OUTPUT),
    ),
    Command(
        "bound",
        "commands.ops:run_bound",
        "TRACE|REPORT… [--device CHIP]…",
        "what a chip would at least have to do for each operator",
        (
            argument(
                "files",
                "TRACE|REPORT",
                "traces, folders of traces, or files of --torchprof-json whose tests have traces",
                nargs="+",
            ),
            argument(
                "--device",
                "CHIP",
                "a chip of docs/devices.md, such as 'H100 SXM'; several compare (default: the "
                "chip of --torchprof-device, or the trace's own)",
                action="append",
            ),
            *(PEAKS, STEP, STEP_NAME, SORT, LIMIT, FORMAT, RANK),
        ),
    ),
    Command(
        "history",
        "commands.history:run_history",
        "[DIR] [--html FILE] | compare BRANCH [DIR] | gc [DIR]",
        "what changed over the runs of --torchprof-history: steps and drifts with their commits",
        (
            argument(
                "words",
                "DIR",
                "the folder or URL of the history (default: torchprof_history of pytest's "
                "configuration); compare BRANCH: what changed since the merge base with it; gc: "
                "list the runs whose commits nothing leads to",
                nargs="*",
            ),
            argument("--test", "GLOB", "only tests of this name or glob"),
            argument("--metric", "M", "only metrics of this name or glob"),
            argument(
                "--branch",
                "B",
                "only runs of this branch and of the commits that it is built on; with compare, "
                "the branch that is compared (default: what is checked out)",
            ),
            argument(
                "--html",
                "FILE",
                "also write a page of HTML with the changes and the curves of their series",
                to.beside,
            ),
            switch("--yes", "with gc: remove what it lists"),
            *(LIMIT, FORMAT),
        ),
    ),
    Command(
        "ab",
        "commands.ab:run_ab",
        "[REF] [--min-time S] [--threshold PCT] -- PYTEST ARGS",
        "find tests that are slower than in another revision, run alternately",
        (
            argument(
                "ref",
                "REF",
                "git revision for side A; B is the working tree, with its uncommitted changes",
                str,
                nargs="?",
            ),
            argument("--a", "PATH", "a source tree for side A, instead of REF"),
            argument("--b", "PATH", "a source tree for side B (default: the working tree)"),
            argument("--python-a", "PY", "Python of side A (default: this one)"),
            argument("--python-b", "PY", "Python of side B (default: this one)"),
            argument(
                "--min-time",
                "S",
                "seconds of measured calls per test and side, at most (default: 1)",
                to.seconds,
                default=1.0,
            ),
            argument("--rounds", "N", "run exactly this many pairs of turns per test", to.some),
            argument(
                "--threshold",
                "PCT",
                "ignore changes smaller than this many percent (default: 2)",
                to.percent,
                default=2.0,
            ),
            argument("--html", "FILE", "also write the report as a page of HTML", to.beside),
            *(LIMIT, FORMAT),
        ),
        rest="PYTEST ARGS",
    ),
)


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
