"""Where the host would wait for values, if the tensors of a trace were on a device.

Left out is what is on the host by design: what a DataLoader and its sampler do, seeds that were
just drawn, and the counters of steps that optimizers keep there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.estimated_launches import on_host, operands_of, units_of
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.name_index import Names, events_named, operators_named
from pytest_torchprof.trace.tree import marked
from pytest_torchprof.work.host_reads import READS, TO_PYTHON, count_reads

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: The step of one of torch's optimizers; LBFGS reads its losses.
_STEP: Final = Names(r"Optimizer\.step#(?!LBFGS)")

#: How torch's optimizers count a step: each parameter's counter, or all at once.
_COUNTS: Final = ("aten::add_", "aten::_foreach_add_")
#: With one argument it calls `nonzero`, and with three it reads nothing.
_POSITIONS: Final = "aten::where"
_REDUCES: Final = late(
    r"aten::(linalg_(vector_)?norm|norm|sum|mean|max|min|amax|amin|dot|prod|any|all|std|var)$"
)


class HostReads(Frozen, frozen=True):
    """The operators that read, in time order, and how often each does."""

    event: Ints
    count: Ints

    @property
    def total(self) -> int:
        """All reads."""
        return int(self.count.sum())


def host_reads(trace: Events) -> HostReads:
    """The reads of the selected operators."""
    return trace.once(_selected)


def _selected(trace: Events) -> HostReads:
    found = trace.whole.once(_all)
    mine = trace.selection[found.event]
    return HostReads(found.event[mine], found.count[mine])


def _all(trace: Events) -> HostReads:
    units = units_of(trace)
    covers = units.covers & ~trace.names_where(lambda name: name in READS or name == _POSITIONS)
    host = on_host(trace)
    rows = operators_named(trace, *READS)
    rows = rows[~host[rows] & ~nesting.below(covers, units.parent, rows)]
    rows = rows[~nesting.below(marked(trace, rows)[:-1], trace.parent, rows)]
    rows = rows[~_is_counter(trace, rows) & ~_is_seed(trace, rows) & ~_is_filler(trace, rows)]
    lists = _to_python(trace)
    lists = lists[~host[lists]]
    counts = [
        count_reads(trace.names[name], operands_of(args))
        for name, args in zip(trace.name[rows].tolist(), trace.operands(rows), strict=True)
    ]
    event = np.concatenate([rows, lists])
    count = np.concatenate([np.array(counts, np.int64), np.ones(len(lists), np.int64)])
    order = np.argsort(event, kind="stable")
    kept = order[count[order] > 0]
    return HostReads(event[kept], count[kept])


def _is_counter(trace: Events, rows: Ints) -> Bools:
    """An optimizer's own counters, which are on the host unless it is told otherwise.

    It reads them once it has counted. What a closure reads comes before that, and what is read of
    parameters or gradients was reduced to one number just before.
    """
    found = np.zeros(len(rows), bool)
    steps = events_named(trace, _STEP)
    if not (len(steps) and len(rows)):
        return found
    is_step = marked(trace, steps)[:-1]
    scalars = trace.named("aten::_local_scalar_dense")[rows]
    mine = np.flatnonzero(scalars & nesting.below(is_step, trace.parent, rows))
    counts = operators_named(trace, *_COUNTS)
    single = np.array([bytes(a.dims).startswith(b"[[],") for a in trace.operands(counts)], bool)
    counts = counts[single | trace.named("aten::_foreach_add_")[counts]]
    counts = counts[nesting.below(is_step, trace.parent, counts)]
    if not (len(mine) and len(counts)):
        return found
    begun = np.full(len(trace), np.iinfo(np.int64).max)
    of = nesting.nearest(is_step, trace.parent, counts)
    np.minimum.at(begun, of, trace.ts[counts])
    read = rows[mine]
    later = trace.ts[read] > begun[nesting.nearest(is_step, trace.parent, read)]
    before = _operator_before(trace, _outermost_operators(trace, read))
    reduced = trace.names_where(_REDUCES.match)[before] & (before >= 0)
    found[mine[later & ~reduced]] = True
    return found


def _is_filler(trace: Events, rows: Ints) -> Bools:
    """A number that a mask writes: only one on the host is read for that."""
    scalars = trace.named("aten::_local_scalar_dense")[rows]
    return scalars & nesting.below(trace.named("aten::_index_put_impl_"), trace.parent, rows)


def _is_seed(trace: Events, rows: Ints) -> Bools:
    """A number that was drawn just before, as samplers and loaders draw their seeds."""
    out = np.zeros(len(rows), bool)
    drawn = operators_named(trace, "aten::random_")
    if not len(drawn):
        return out
    single = np.array([bytes(a.dims).startswith(b"[[],") for a in trace.operands(drawn)], bool)
    seeds = marked(trace, drawn[single])
    before = _operator_before(trace, _outermost_operators(trace, rows))
    out[:] = seeds[before]
    return out


def _outermost_operators(trace: Events, rows: Ints) -> Ints:
    """The outermost operator around each of these."""
    ops = trace.is_kind(Kind.OP)
    at = rows.copy()
    while True:
        above = trace.parent[at]
        up = (above >= 0) & ops[above]
        if not up.any():
            return at
        at = np.where(up, above, at)


def _operator_before(trace: Events, rows: Ints) -> Ints:
    """The operator of the same thread and parent that begins before each of these; -1 for none."""
    ops = trace.is_kind(Kind.OP).nonzero()[0]
    key = np.lexsort((ops, trace.parent[ops], trace.thread[ops]))
    order = ops[key]
    place = np.full(len(trace), -1, np.int64)
    place[order] = np.arange(len(order))
    at = place[rows] - 1
    before = order[np.maximum(at, 0)]
    same = (at >= 0) & (trace.parent[before] == trace.parent[rows])
    same &= trace.thread[before] == trace.thread[rows]
    return np.where(same, before, -1)


def _to_python(trace: Events) -> Ints:
    """The ends of `tolist` and `numpy`, outside of operators."""
    first, second = TO_PYTHON
    rows = operators_named(trace, second)
    if not len(rows):
        return rows
    ops = trace.is_kind(Kind.OP)
    above = trace.parent[rows]
    rows = rows[(above < 0) | ~ops[above]]
    before = _operator_before(trace, rows)
    return rows[trace.named(first)[before] & (before >= 0)]
