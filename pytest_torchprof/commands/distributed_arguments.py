"""The commands about jobs of several ranks."""

from __future__ import annotations

from pytest_torchprof.commands.parsing import Add, Command


def distributed_commands(*shared: Add, merge: Add) -> tuple[Command, ...]:
    """The commands, with the arguments that they share with others; ``merge``: that of rows."""
    return (
        Command(
            "collectives",
            "commands.collectives:run_collectives",
            "TRACE… [--merge]",
            "calls that communicate: bytes, time, bandwidth, and the wait for the last rank",
            (*shared, merge),
        ),
        Command(
            "ranks",
            "commands.ranks:run_ranks",
            "FOLDER",
            "each rank of a job: computing, communicating, idle; who waits for whom, imbalance",
            shared,
        ),
    )
