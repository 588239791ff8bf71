"""Kernels that a device would start at least for the operators of a trace, whatever ran them.

A count is taken at the outermost operator at which devices part, see `work.launch_counts`; these
operators are the *units* of an estimate. Left out is what is on the host by design: a DataLoader's
work, and the counters of steps that optimizers keep there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.attribution import is_replayed
from pytest_torchprof.analysis.device_forms import forms, host_only, ran_on_host
from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.meta_tensors import meta_calls
from pytest_torchprof.analysis.uncounted_compiled import COMPILED, in_script, packages
from pytest_torchprof.analysis.uncounted_parts import UncountedPart, by_name, named, whole_time
from pytest_torchprof.core.reasons import Why
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import OpArgs, alike, decode_part, int64_column
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.name_index import Names, events_named, operators_named
from pytest_torchprof.trace.tree import marked
from pytest_torchprof.work.compiled_graphs import key_of
from pytest_torchprof.work.counting import only_shapes
from pytest_torchprof.work.launch_counts import (
    Launches,
    count_launches,
    is_part,
    launches_of,
)
from pytest_torchprof.work.list_launches import count_long_list, is_long_list
from pytest_torchprof.work.movers import may_move
from pytest_torchprof.work.operands import Operands

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_FETCH: Final = Names(r"enumerate\(DataLoader\)#")
#: The step of one of torch's optimizers; LBFGS reads its losses.
_STEP: Final = Names(r"Optimizer\.step#(?!LBFGS)")
#: What compiled code leaves in a trace: a region, and calls of its graphs.
_REGION: Final = "Torch-Compiled Region"


class Units(Frozen, frozen=True):
    """Operators that count, in time order, and the kernels that each would start.

    ``launches`` has those of operators nested in one, too, where they add to its own.
    ``covers`` marks all events within which nothing else counts, by the chain of ``parent``.
    ``loose`` are those of them within which the CPU may move more bytes than a device. ``unknown``
    are operators of which nobody knows what they start: at least one kernel, if they compute.
    """

    event: Ints
    launches: Ints
    covers: Bools
    parent: Ints
    loose: Bools
    unknown: Ints


def estimated_launches(trace: Events) -> int:
    """Kernels that a device would start at least for the selected operators, as far as known."""
    units = units_of(trace)
    return int(units.launches[trace.selection[units.event]].sum())


def units_of(trace: Events) -> Units:
    """The units of the whole trace, whatever is selected."""
    return trace.whole.once(_units)


def has_operands(trace: Events) -> bool:
    """Whether calls that start kernels carry their operands; true if there are none."""
    return trace.whole.once(_has_operands)


def _has_operands(trace: Events) -> bool:
    event = units_of(trace).event
    _, firsts, _ = alike(trace.name[event], trace.args[event])
    found = (bytes(args.dims) for args in trace.operands(event[firsts]))
    return not len(event) or any(dims not in {b"", b"[]", b"null"} for dims in found)


def unknown_parts(trace: Events) -> list[UncountedPart]:
    """What is selected and starts an unknown number of kernels, the longest first."""
    return trace.once(_unknown_parts)


def _unknown_parts(trace: Events) -> list[UncountedPart]:
    unknown = units_of(trace).unknown
    parts = [
        *by_name(trace, _selected(trace, unknown), lambda _: Why.NO_LAUNCHES),
        *by_name(trace, _selected(trace, meta_calls(trace).unclear), lambda _: Why.MAYBE_META),
        *compiled_parts(trace),
        *in_script(trace),
        *packages(trace),
        *_replayed(trace),
    ]
    parts.sort(key=lambda part: (-part.share, part.name))
    return parts


def _selected(trace: Events, events: Ints) -> Ints:
    found: Ints = events[trace.selection[events]]
    return found


def compiled_parts(trace: Events) -> Iterable[UncountedPart]:
    """What torch.compile made, which runs as other kernels on another device.

    On a device, its share is of what is launched there beside the units, which count.
    """
    calls = trace.selection & trace.names_where(
        lambda name: bool(key_of(name)) or name.startswith(_REGION)
    )
    rows = np.flatnonzero(calls)
    rows = rows[~nesting.below(calls, trace.parent, rows)]
    if not (len(rows) and trace.has(*DEVICE_KINDS)):
        yield from named(trace, rows, (COMPILED,), Why.COMPILED_FOR_HOST)
        return
    known = calls.copy()
    known[units_of(trace).event] = True
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    around = nesting.nearest(known, trace.parent, trace.launch[device])
    lost = device[(around >= 0) & calls[around]]
    if len(lost) or not launched_ns(trace)[rows].all():
        share = int(trace.dur[lost].sum()) / max(whole_time(trace), 1)
        yield UncountedPart(COMPILED, Why.LOOPS, len(rows), share)


def _replayed(trace: Events) -> Iterable[UncountedPart]:
    """Kernels that a graph launched: their operators ran when it was captured."""
    if not trace.has(Kind.KERNEL):
        return []
    kernels = trace.selection & trace.is_kind(Kind.KERNEL)
    rows = kernels.nonzero()[0]
    return by_name(trace, rows[is_replayed(trace, trace.launch[rows])], lambda _: Why.REPLAYED)


def is_compiled(trace: Events) -> Bools:
    """All that runs in compiled code."""
    roots = trace.names_where(lambda name: key_of(name) or name.startswith(_REGION))
    return nesting.with_nested(roots, trace.parent, trace.depth) if roots.any() else roots


# -------------------------------------------------------------------- which operators count


def _units(trace: Events) -> Units:
    ops = trace.is_kind(Kind.OP) & ~only_shapes(trace) & ~on_host(trace)
    rows = {name: launches_of(name) for name in trace.names}
    table = ops & trace.names_where(lambda name: _covers(name, rows[name]))
    adds = ops & trace.names_where(lambda name: (row := rows[name]) is not None and row.nested)
    unknown = ops & trace.names_where(lambda name: rows[name] is None and not is_part(name))
    foreign = unknown & ~trace.names_where(_is_torchs)
    whole, parent = forms(trace), _parents(trace)
    loose = (unknown & ~foreign) | (whole.whole & ops)
    if ran_on_host(trace):  # how another library works on the CPU says nothing of a device
        loose |= foreign
    loose[whole.steps] = True
    covers = table | loose
    every = (covers | adds).nonzero()[0]
    counted = every[~nesting.below(covers, parent, every)]
    # A composite of nothing else is one itself: torch names some after what they call.
    own = ops & trace.names_where(lambda name: is_part(name) and "::" in name and may_move(name))
    own &= ~covers & ~nesting.above(counted[_moves(trace, counted)], trace.parent)
    leaves = own.nonzero()[0]
    leaves = leaves[~nesting.below(covers, parent, leaves)]
    leaves = leaves[~nesting.above(leaves, trace.parent)[leaves]]
    found = nesting.distinct(np.append(counted, leaves))
    launches = np.zeros(len(trace), np.int64)
    launches[found] = _counts(trace, found)
    # Another library's operator may compute nothing, unless operators of torch do so within it.
    launches[foreign & ~nesting.above(table.nonzero()[0], trace.parent)] = 0
    launches[foreign & ~loose] = 0
    launches[whole.steps] = 0
    launches[whole.counted] = whole.launches
    silent = unknown.nonzero()[0]
    silent = silent[~nesting.below(covers, parent, silent)]
    return Units(found, launches[found], covers, parent, loose, silent)


def _is_torchs(name: str) -> bool:
    return name.startswith("aten::")


def _parents(trace: Events) -> Ints:
    """The parents of all events, without those of checks that devices make, too, within a whole."""
    checks = operators_named(trace, "aten::_linalg_check_errors")
    if not len(checks):
        return trace.parent
    parent = trace.parent.copy()
    parent[checks] = -1
    return parent


def _covers(name: str, row: Launches | None) -> bool:
    """Whether nothing that is nested in it counts."""
    if row is None or row.nested:
        return False
    return row.count != 0 and not is_part(name)


def _moves(trace: Events, events: Ints) -> Bools:
    found: Bools = trace.names_where(may_move)[events]
    return found


def on_host(trace: Events) -> Bools:
    """What is no work of a device: loading data, optimizers' counters of steps, checks that only
    the CPU makes, and operators on tensors without values.
    """
    return trace.whole.once(_on_host)


def _on_host(trace: Events) -> Bools:
    roots = marked(trace, events_named(trace, _FETCH))[:-1]
    roots[host_only(trace)] = True
    meta = meta_calls(trace)
    roots[meta.idle] = roots[meta.unclear] = True
    steps = events_named(trace, _STEP)
    if len(steps):
        adds = (trace.is_kind(Kind.OP) & trace.named("aten::add_")).nonzero()[0]
        adds = adds[nesting.below(marked(trace, steps)[:-1], trace.parent, adds)]
        alone = [bytes(a.dims).startswith(b"[[],") for a in trace.operands(adds)]
        roots[adds[np.array(alone, bool)]] = True
    if not roots.any():
        return roots
    return nesting.with_nested(roots, trace.parent, trace.depth)


# -------------------------------------------------------------------- numbers


def _counts(trace: Events, events: Ints) -> Ints:
    """The kernels of each of these calls."""
    if not len(events):
        return events
    kinds, firsts, _ = alike(trace.name[events], trace.args[events])
    first = events[firsts]
    args = trace.operands(first)
    names = [trace.names[name] for name in trace.name[first].tolist()]
    found = [_count(name, one) for name, one in zip(names, args, strict=True)]
    counts = int64_column(found)[kinds]
    # Of longer lists than torch records, the CPU shows the tensors one by one.
    long = [is_long_list(name, operands_of(one)) for name, one in zip(names, args, strict=True)]
    if any(long):
        rows = np.array(long, bool)[kinds].nonzero()[0]
        counts[rows] = [
            _of_parts(trace, int(event), operands_of(args[kind]))
            for event, kind in zip(events[rows].tolist(), kinds[rows].tolist(), strict=True)
        ]
    return counts


def _of_parts(trace: Events, event: int, call: Operands) -> int:
    """Kernels of a call on a long list, from the tensors of the calls that it is made of."""
    inside = (trace.parent[event + 1 :] == event).nonzero()[0] + event + 1
    inside = inside[trace.kind[inside] == Kind.OP]
    names, count = np.unique(trace.name[inside], return_counts=True)
    if not len(names):
        return 1
    parts = inside[trace.name[inside] == names[count.argmax()]]
    shapes = [operands_of(args).dims for args in trace.operands(parts)]
    firsts = [dims[0] if isinstance(dims, list) and dims else [] for dims in shapes]
    return count_long_list(trace.names[trace.name[event]], call, firsts)


def _count(name: str, args: OpArgs) -> int:
    row = launches_of(name)
    if row is None:
        return 1
    return count_launches(row, operands_of(args))


def operands_of(args: OpArgs) -> Operands:
    """The operands of a call, decoded."""
    parts: list[Any] = [
        decode_part(bytes(part)) for part in (args.dims, args.types, args.concrete, args.strides)
    ]
    return Operands(*parts)
