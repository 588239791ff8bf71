"""What a measured test's process and the processes that it starts tell each other by files.

In a private folder of the measured run: ``job.json`` from the test's process, and from each other
process ``NUMBER-PID.seen`` (a Python that would capture itself, if it imports torch),
``NUMBER-PID.begun`` (its capture has begun), ``NUMBER-PID.execs`` (it becomes another program),
``NUMBER-PID.ending`` (it is ending) and ``NUMBER-PID.done`` (it has ended, with its trace in
``NUMBER-PID.pt.trace.json``, or the reason why there is none). Numbers count the processes that the
test's process starts, from 1, so that they are the same in each run; of a process that is started
by another one, both numbers, as in ``1.2``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_torchprof.core.reasons import Reason  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Sendable
from pytest_torchprof.trace.facts import Facts  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from pathlib import Path

JOB = "job.json"
#: The environment variable that a started program finds the folder by.
VARIABLE = "TORCHPROF_CHILD"


class Job(Sendable, frozen=True):
    """What a process needs to know to capture itself.

    ``threads``: intra-op threads, as in the test's process. ``parent_rank``: the variable ``RANK``
    that the test's own process has, which then says nothing of the processes that it starts.
    ``own_files``: lines are located, and these files are the user's; None if they are not.
    """

    threads: int | None
    facts: Facts
    parent_rank: str | None = None
    own_files: tuple[str, ...] | None = None


class Done(Sendable, frozen=True, omit_defaults=True):
    """How a process ended: a trace beside this file, or the ``reason`` why there is none.

    ``rank`` is that of torch.distributed's default group, or the environment's, None without.
    ``aside``: it runs nothing of the test by itself, such as a worker of a DataLoader.
    ``cpu_ns``: the CPU time that it used. ``lines`` and ``modules`` are those of the markers in the
    trace, by number, if lines were located.
    """

    rank: int | None = None
    ranks: int | None = None
    reason: Reason | None = None
    aside: bool = False
    cpu_ns: int = 0
    lines: tuple[str | None, ...] = ()
    modules: tuple[str, ...] = ()


def write(path: Path, content: Sendable) -> None:
    """Write a file that a reader finds whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(msgspec.json.encode(content))
    draft.replace(path)
