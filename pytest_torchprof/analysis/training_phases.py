"""Where in a training step a moment is: forward, backward, optimizer's step, ``zero_grad``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import AutogradArgs, decode, int64_column
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import MODULE, MODULE_MARK
from pytest_torchprof.trace.levels import engine_steps
from pytest_torchprof.trace.name_index import Names, events_named, operators_named
from pytest_torchprof.trace.tree import marked, outermost

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: torch's annotations around an optimizer's work.
OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
#: The operator that stores the gradient of a leaf.
ACCUMULATES: Final = "torch::autograd::AccumulateGrad"

#: The end of what does not end in the trace.
NEVER: Final = np.iinfo(np.int64).max


class Moments(Frozen, frozen=True):
    """What encloses some events that are points in time; event indices, -1 for none.

    ``root`` is the outermost operator, ``node`` a step of the autograd engine, ``step`` and
    ``zeroing`` are annotations of an optimizer.
    """

    root: Ints
    node: Ints
    step: Ints
    zeroing: Ints


def moments_of(trace: Events, events: Ints) -> Moments:
    """What encloses these events."""
    around = trace.enclosing(events)
    kinds = (
        outermost(trace),
        engine_steps(trace),
        events_named(trace, OPTIMIZER_STEP),
        events_named(trace, ZERO_GRAD),
    )
    return Moments(*[nesting.nearest(marked(trace, rows), trace.parent, around) for rows in kinds])


class BackwardPasses(Frozen, frozen=True):
    """The backward passes of a trace, numbered by what comes before them.

    A pass ends with the next operator or optimizer's annotation that the main thread runs outside
    the autograd engine. ``cuts`` are these moments, in ns; pass ``i`` ends at ``cuts[i]``.
    """

    cuts: Ints

    def of(self, ts: Ints) -> Ints:
        """The number of the pass that contains each of these moments within the engine."""
        return self.cuts.searchsorted(ts, side="right")

    def end(self, number: Ints) -> Ints:
        """When each of these passes ends, in ns; NEVER for the last one, if nothing follows."""
        return np.append(self.cuts, NEVER)[number]


def backward_passes(trace: Events) -> BackwardPasses:
    """The backward passes of a trace."""
    return trace.once(_backward_passes)


def _backward_passes(trace: Events) -> BackwardPasses:
    engine = marked(trace, engine_steps(trace))
    other = outermost(trace)
    other = other[~engine[other]]
    marks = events_named(trace, OPTIMIZER_STEP, ZERO_GRAD)
    rows = np.concatenate([other, marks])
    if not len(rows):
        return BackwardPasses(rows)
    main = np.bincount(trace.thread[rows]).argmax()  # loaders and engines have fewer
    return BackwardPasses(np.sort(trace.ts[rows[trace.thread[rows] == main]]))


def accumulations(trace: Events) -> Ints:
    """The operators that store a leaf's gradient, in time order."""
    return operators_named(trace, ACCUMULATES)


def are_differentiated(trace: Events, roots: Ints) -> Bools:
    """Which of these outermost operators made a node that a backward pass of the trace has run.

    An operator has the ``Sequence number`` of the next node when it begins, so its nodes have the
    numbers from there to that of the next outermost operator of its thread. Threads count on their
    own, so that several threads with a forward pass may be taken for each other.
    """
    if not len(roots) or not len(engine_steps(trace)):
        return np.zeros(len(roots), bool)
    return trace.once(_differentiated)[roots]


def _differentiated(trace: Events) -> Bools:
    found = np.zeros(len(trace) + 1, bool)  # the last entry is that of -1
    nodes = engine_steps(trace)
    rows = outermost(trace)
    rows = rows[~marked(trace, nodes)[rows]]
    ran = np.sort(_sequence(trace, nodes))
    first = _sequence(trace, rows)
    rows, first = rows[first >= 0], first[first >= 0]
    for mine in nesting.by_thread(trace.thread[rows]):
        begin = first[mine]
        end = np.append(begin[1:], NEVER)
        end = np.where(end < begin, NEVER, end)
        some = ran.searchsorted(end) > ran.searchsorted(begin)
        found[rows[mine]] = some
    return found


def _sequence(trace: Events, rows: Ints) -> Ints:
    """Sequence numbers of operators, -1 for none."""
    args = decode(AutogradArgs, trace.args[rows])
    return int64_column([a.sequence for a in args])


def are_in_modules(trace: Events, events: Ints) -> Bools:
    """Which of these events happened while an ``nn.Module`` was called, on their thread.

    All false in a trace without Python functions.
    """
    calls = trace.is_kind(Kind.PYTHON) & trace.names_where(MODULE.match)
    calls |= trace.names_where(lambda name: name.startswith(MODULE_MARK))
    rows = calls.nonzero()[0]
    found = np.zeros(len(events), bool)
    if not (len(rows) and len(events)):
        return found
    for mine in nesting.by_thread(trace.thread[events]):
        here = rows[trace.thread[rows] == trace.thread[events[mine[0]]]]
        if len(here):
            latest = np.maximum.accumulate(trace.ts[here] + trace.dur[here])
            when = trace.ts[events[mine]]
            at = trace.ts[here].searchsorted(when, side="right") - 1
            found[mine] = (at >= 0) & (latest[at] >= when)
    return found
