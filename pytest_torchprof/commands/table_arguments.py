"""The arguments that several commands share."""

from __future__ import annotations

from pytest_torchprof.commands import option_types as to
from pytest_torchprof.commands.parsing import argument

_FORMATS = ("table", "json", "csv", "markdown")
_PATHS = (
    "a .json or .json.gz trace of torch.profiler, several, a folder (ranks of one job), a glob, or "
    "a URL"
)


TRACES = argument("traces", nargs="+", type=to.name, metavar="TRACE", help=_PATHS)
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
RANK = argument("--rank", type=to.count, metavar="N", help="with several ranks, read only this one")
LIMIT = argument(
    "--limit",
    type=to.count,
    metavar="N",
    help="print at most N rows, 0 for all (default for tables: 30)",
)
SORT = argument("--sort", metavar="FIELD", help="sort by this field, largest first")
PEAKS = argument(
    "--device-peaks",
    type=to.name,
    metavar="FILE",
    help="JSON file with a chip's peak rates",
)

OUTPUT = argument(
    *("-o", "--output"), type=to.output, metavar="FILE", required=True, help="file; - is stdout"
)

STEP = argument(
    "--step",
    type=to.steps,
    metavar="N|A:B",
    help="only step N, or the steps from A to before B (B is not included; either may be missing), "
    "by their own numbers",
)
STEP_NAME = argument(
    "--step-name",
    type=to.name,
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
        type=to.count,
        metavar="N",
        help="read traces in up to N processes, fewer if memory is short; 0 for one a processor",
    ),
    argument(
        "--dask",
        type=to.name,
        metavar="ADDRESS",
        help="read them on the workers of this Dask scheduler, such as tcp://host:8786",
    ),
    argument(
        "--no-cache",
        action="store_true",
        help="with --jobs, --dask, a glob, or a URL: do not use or keep what was found in a trace",
    ),
    argument(
        *("-o", "--output"),
        type=to.output,
        metavar="FILE",
        help="the file of --format parquet; - is stdout",
    ),
)
