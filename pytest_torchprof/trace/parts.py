"""Which events a part of a trace holds, see `Events.within`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.step_range import StepRange
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import MODULE, MODULE_MARK, REGION, REGION_MARK
from pytest_torchprof.trace.regions import laps_of, within_laps

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: How a part is selected, by what name or glob, and which of several: of a region, one lap or all
#: (None); of steps, their numbers.
Scope: TypeAlias = tuple[str, str, int | StepRange | None]


def selected_by(trace: Events, how: str, what: str, which: int | StepRange | None) -> Bools:
    """The events of the measured region that such a `Scope` selects."""
    if how == "kernel":
        return _on_device(trace, what) & trace.in_region
    if isinstance(which, StepRange):
        from pytest_torchprof.trace.steps import within_steps

        return within_steps(trace, what, which)
    if how == "region":
        laps = laps_of(trace.whole, what)
        return within_laps(trace, laps if which is None else laps[which : which + 1])
    below = nesting.with_nested(*_roots(trace, how, what))
    device = trace.device_rows
    launch = trace.launch[device]
    below[device] = (launch >= 0) & below[launch]
    return below & trace.in_region


def selects_by_time(trace: Events) -> bool:
    """Whether all that ran at some time is selected, on the host; not what some events enclose."""
    return trace.scope is None or trace.scope[0] in {"region", "step"}


def holds_whole_operators(part: Events) -> bool:
    """Whether it is a part of a trace that holds each operator with all that is nested, or nothing.

    What counts in the whole then counts in the part. False for a whole.
    """
    return part.scope is not None and part.once(_holds_whole_operators)


def _holds_whole_operators(part: Events) -> bool:
    inside, parent = part.selection, part.parent
    cut = (parent >= 0) & (inside != inside[parent])
    at = nesting.distinct(parent[cut])
    if not len(at):
        return True
    ours = part.names_where(lambda name: name == REGION or name.startswith(REGION_MARK))
    while len(at):
        if not ours[at].all():
            return False
        at = nesting.distinct(parent[at])
        at = at[at >= 0]
    return True


def _on_device(trace: Events, what: str) -> Bools:
    """Kernels, copies and memsets of this name or glob."""
    found = np.zeros(len(trace), bool)
    found[trace.device_rows] = True
    return found & trace.names_where(partial(is_of_name, what))


def _roots(trace: Events, how: str, what: str) -> tuple[Bools, Ints, Ints]:
    """The events whose nested events a scope selects, and the (parent, depth) of nesting."""
    if how == "op":
        named = trace.names_where(partial(is_of_name, what))
        return named & trace.is_kind(Kind.OP, Kind.ANNOTATION), trace.parent, trace.depth
    roots = trace.is_kind(Kind.PYTHON) & trace.names_where(
        lambda name: (found := MODULE.match(name)) and is_of_name(what, found[1])
    )
    marks = trace.names_where(
        lambda name: (
            name.startswith(MODULE_MARK) and is_of_name(what, name.removeprefix(MODULE_MARK))
        )
    )
    return roots | marks, *trace.frames
