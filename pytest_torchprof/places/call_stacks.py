"""The Python functions and modules that identify places, nested with operators."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.places.libraries import Owner, frame_of, owner_of
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import MODULE

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_owner_of = lru_cache(maxsize=100_000)(owner_of)
#: torch calls these for every operator on a subclass of Tensor.
_HANDLERS = frozenset({"__torch_function__", "__torch_dispatch__"})


class Stacks(Frozen, frozen=True):
    """What encloses some events of a trace.

    ``parent`` and ``depth`` are like those of `Events.frames`, for these events, the operators
    around them, and the functions and modules that identify a place: without torch's own functions,
    which are most. ``owner`` tells whose function an event is, ``module`` is the number of the
    class of its ``nn.Module``; -1 for none.
    """

    parent: Ints
    depth: Ints
    owner: Ints
    module: Ints

    @property
    def telling(self) -> Bools:
        """Functions and modules, not operators."""
        return (self.owner >= 0) | (self.module >= 0)

    def meets(self, events: Ints, outer: Ints) -> Bools:
        """Whether a function or module lies between each event and its outer one."""
        found, telling, at = np.zeros(len(events), bool), self.telling, events.copy()
        todo = np.flatnonzero(at != outer)
        while len(todo):
            at[todo] = self.parent[at[todo]]
            todo = todo[(at[todo] >= 0) & (at[todo] != outer[todo])]
            found[todo] = telling[at[todo]]
            todo = todo[~found[todo]]
        return found


def stacks_of(trace: Events, events: Ints) -> Stacks:
    """What encloses these events."""
    owner, module = trace.once(_owners)
    wanted = nesting.above(events, trace.parent) | (owner >= 0) | (module >= 0)
    wanted[events] = True
    rows = np.flatnonzero(wanted)
    above, level = nesting.nest(trace.ts[rows], trace.dur[rows], trace.thread[rows])
    parent, depth = np.full(len(trace), -1, np.int64), np.full(len(trace), -1, np.int64)
    parent[rows] = np.where(above >= 0, rows[above], -1)
    depth[rows] = level
    return Stacks(parent, depth, owner, module)


def _owners(trace: Events) -> tuple[Ints, Ints]:
    """Whose function each event is, and the number of its module's class; -1 for none."""
    python = trace.is_kind(Kind.PYTHON)
    owner, module = (np.full(len(trace), -1, np.int64) for _ in range(2))
    distinct, at = np.unique(trace.name[python], return_inverse=True)
    classes: dict[str, int] = {}
    owners = [_owner_and_class(trace.names[number], classes) for number in distinct.tolist()]
    owner[python], module[python] = np.array(owners, np.int64).reshape(-1, 2).T[:, at]
    return owner, module


def _owner_and_class(name: str, classes: dict[str, int]) -> tuple[int, int]:
    """Whose function it is, and the number of the module's class; else -1."""
    if module := MODULE.match(name):
        return -1, classes.setdefault(module[1], len(classes))
    frame = frame_of(name)
    if frame is None or frame.function in _HANDLERS:
        return -1, -1
    owner = _owner_of(frame.file)
    return (-1 if owner is Owner.MACHINERY else int(owner)), -1
