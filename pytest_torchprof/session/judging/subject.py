"""The test that is judged: its names, its baseline file, and commands to run for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest import StashKey  # noqa: PT013 - the name alone is needed

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.render import escape
from pytest_torchprof.session.options import OPTIONS

if TYPE_CHECKING:
    import pytest


class Subject(Frozen, frozen=True):
    """The test that is judged: its id, its name within its file, and its baseline file.

    ``accept_command`` makes the command that accepts its values, and ``ab_command`` the one that
    compares its time with that of another revision.
    """

    nodeid: str
    name: str
    baseline: Path
    accept_command: Callable[[], str]
    ab_command: Callable[[], str]


def name_of(item: pytest.Item) -> str:
    """A test's name within its file: node id after the file, parameters included."""
    return item.nodeid.partition("::")[2] or item.nodeid


#: What a session is started through, if it is a rank of a job.
LAUNCHER: StashKey[tuple[str, ...]] = StashKey()

#: Options that change which file or which numbers an accept writes.
_REPEATED = frozenset({"warmup", "rounds", "min_time", "time", "baselines", "threads", "seed"})


def command_for(config: pytest.Config, nodeid: str) -> str:
    """The command that accepts this test's values, to paste into the user's shell."""
    # If another plugin owns --accept, it does not switch on profiling.
    ours = hasattr(config.option, "torchprof_accept")
    words = [*config.stash.get(LAUNCHER, ()), "pytest"]
    words += ["--accept"] if ours else ["--torchprof", "--accept"]
    given = {
        option.flag: config.getoption(option.dest) for option in OPTIONS if option.name in _REPEATED
    }
    given["-c"] = config.getoption("inifilename", None)
    given["--rootdir"] = config.getoption("rootdir", None)
    for flag, value in given.items():
        if value is not None:
            words += [flag, str(value)] if flag == "-c" else [f"{flag}={value}"]
    for pair in config.getoption("override_ini", None) or ():
        words += ["-o", pair]
    return escape.command([*words, _typed(config, nodeid)])


def ab_command_for(config: pytest.Config, nodeid: str) -> str:
    """The command that compares this test's time with that of a revision, REF."""
    return escape.command(["torchprof", "ab", "REF", "--", _typed(config, nodeid)])


def _typed(config: pytest.Config, nodeid: str) -> str:
    """The node id as typed in the folder where pytest was started."""
    file, *names = nodeid.split("::")
    here = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
    return "::".join([Path(here).as_posix(), *names])
