"""The arguments of `torchprof bound`."""

from __future__ import annotations

from pytest_torchprof.commands import option_types as to
from pytest_torchprof.commands.parsing import Add, Command, argument


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
                type=to.name,
                metavar="TRACE|REPORT",
                help="traces, folders of traces, or files of --torchprof-json whose tests have "
                "traces",
            ),
            argument(
                "--device",
                action="append",
                type=to.name,
                metavar="CHIP",
                help="a chip of docs/devices.md, such as 'H100 SXM'; several compare (default: the "
                "chip of --torchprof-device, or the trace's own)",
            ),
            *shared,
        ),
    )
