"""Work without counted FLOPs: why a sum of FLOPs is only a lower bound.

An operator without a number is reported if it has a formula but the trace lacks what that needs, if
it is known to compute products and has no formula, or if it is unknown and no operators nested in
it do the work. A kernel is reported where no operator covers it: an unknown one launched it, or
none, or a graph did; unless its name says that it computes no products. Nothing inside an operator
that has a number is reported, and of nested operators only the outermost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.attribution import is_replayed
from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.uncounted_compiled import (
    REGION,
    SCRIPT,
    in_loops,
    in_script,
    nothing_ran,
    of_no_graph,
    packages,
)
from pytest_torchprof.analysis.uncounted_parts import UncountedPart, by_name, reason_of
from pytest_torchprof.core.reasons import Reason, Why
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.parts import holds_whole_operators
from pytest_torchprof.trace.tree import operators_around, parents
from pytest_torchprof.work.counting import (
    counts_flops,
    only_shapes,
    op_flops,
    unknown_flops,
    work_parent,
)
from pytest_torchprof.work.flops import missing_input
from pytest_torchprof.work.foreign import kernel_may_multiply
from pytest_torchprof.work.operators import OperatorWork, work_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


class Uncounted(Frozen, frozen=True):
    """The parts, the longest first, and the sum of what is counted."""

    parts: tuple[UncountedPart, ...]
    at_least: int

    @property
    def reason(self) -> Reason:
        """What is counted and what is not."""
        return reason_of(self.parts, self.at_least, "FLOP")


def uncounted_flops(trace: Events) -> Uncounted | None:
    """What is missing from the FLOPs of the selection; None if nothing is."""
    return trace.once(_uncounted)


def _uncounted(trace: Events) -> Uncounted | None:
    if nothing_ran(trace) or (
        holds_whole_operators(trace) and uncounted_flops(trace.whole) is None
    ):
        return None
    found = [part for source in SOURCES for part in source(trace)]
    if not found:
        return None
    at_least = int(op_flops(trace)[trace.selection].sum())
    return Uncounted(tuple(sorted(found, key=lambda p: (-p.share, p.name))), at_least)


# -------------------------------------------------------------------- operators


def _without_arguments(trace: Events) -> Iterable[UncountedPart]:
    """Operators with a formula, but without the arguments it needs."""
    return by_name(trace, np.flatnonzero(unknown_flops(trace)), lambda at: _lacking(trace, at))


def _lacking(trace: Events, event: int) -> Why:
    (args,) = trace.operands(np.array([event]))
    parts = map(decode_part, map(bytes, (args.dims, args.types, args.concrete, args.strides)))
    return missing_input(trace.names[trace.name[event]], *parts)


def _without_formula(trace: Events) -> Iterable[UncountedPart]:
    """Operators that compute products and have no formula."""
    return by_name(trace, trace.once(_computing), lambda _: Why.NO_FORMULA)


def _without_parts(trace: Events) -> Iterable[UncountedPart]:
    """Unknown or composite operators in which nothing nested shows what they did."""
    return by_name(trace, trace.once(_opaque), lambda at: _opaque_why(trace, at))


def _opaque_why(trace: Events, event: int) -> Why:
    return Why.NO_PARTS if work_of(trace.names[trace.name[event]]) == "parts" else Why.NO_FORMULA


def _opaque(trace: Events) -> Ints:
    asked = trace.names_where(lambda name: work_of(name) in _ASKED)
    ops = trace.selection & trace.is_kind(Kind.OP)
    rows = (ops & asked).nonzero()[0]
    if not len(rows) or not len(rows := rows[~only_shapes(trace)[rows]]):
        return rows
    working = ops & trace.names_where(lambda name: work_of(name) in _WORKING)
    shown = nesting.above(np.flatnonzero(working), trace.parent)[rows]
    rows = rows[~shown & (launched_ns(trace)[rows] <= 0)]
    unanswered = trace.once(_unanswered)[1]
    if not (len(rows) or len(unanswered)):
        return rows
    silent = np.zeros(len(trace), bool)
    silent[rows[~_empty(trace, rows)]] = True
    silent[unanswered] = True
    return _outermost(trace, silent)


def _empty(trace: Events, calls: Ints) -> Bools:
    """Calls on empty operands: they do nothing, so nothing is nested in them.

    A composite operator stops where one operand has no elements. Any other operator may have an
    empty workspace or an absent mask, and computes with the rest.
    """
    works = (work_of(trace.names[number]) for number in trace.name[calls].tolist())
    found = [
        _on_nothing(decode_part(bytes(args.dims)), decode_part(bytes(args.types)), work)
        for args, work in zip(trace.operands(calls), works, strict=True)
    ]
    return np.array(found, bool)


def _on_nothing(dims: Any, types: Any, work: OperatorWork) -> bool:
    kinds = types if isinstance(types, list) else []
    shapes = [
        shape
        for shape, kind in zip_longest(dims if isinstance(dims, list) else [], kinds)
        if isinstance(shape, list) and (shape or kind not in _NO_TENSOR)
    ]
    return bool(shapes) and (any if work == "parts" else all)(0 in shape for shape in shapes)


#: The types in a trace of arguments that are numbers, lists of numbers, text or absent.
_NO_TENSOR: Final = frozenset({"", "Scalar", "ScalarList"})
_ASKED: Final = frozenset({"parts", "unknown"})
_WORKING: Final = frozenset({"counted", "none", "computes"})


def _computing(trace: Events) -> Ints:
    computing = [work_of(name) == "computes" for name in trace.names]
    if True not in computing:
        return np.zeros(0, np.int64)
    ops = trace.selection & trace.is_kind(Kind.OP) & ~only_shapes(trace)
    return _outermost(trace, ops & np.array(computing)[trace.name])


def _outermost(trace: Events, marked: Bools) -> Ints:
    """Of these operators, those that are not nested in one another or in a counted one."""
    counts = counts_flops(trace)
    rows = np.flatnonzero(marked & ~counts)
    return rows[~nesting.below(marked | counts, work_parent(trace), rows)] if len(rows) else rows


# -------------------------------------------------------------------- kernels


def _unanswered(trace: Events) -> tuple[Ints, Ints, Ints]:
    """Kernels that may compute products and that no operator covers.

    Those launched by no operator; the unknown or composite operators that launched some; those that
    a graph replayed.
    """
    if not trace.has(Kind.KERNEL):
        return (np.zeros(0, np.int64),) * 3
    kernels = trace.selection & trace.is_kind(Kind.KERNEL)
    event = np.flatnonzero(kernels & trace.names_where(kernel_may_multiply))
    call = _calls(trace, event)
    replays = is_replayed(trace, trace.launch[event])
    kinds = _kinds(trace, call)
    known = call >= 0
    within = np.zeros(len(call), bool)
    within[known] = nesting.below(counts_flops(trace), work_parent(trace), call[known])
    left = ~within & ~replays
    alone = left & (kinds == "around")
    by_operator = left & nesting.among(kinds, list(_ASKED))
    return event[alone], nesting.distinct(call[by_operator]), event[replays]


def _calls(trace: Events, kernels: Ints) -> Ints:
    """The innermost operator around each kernel's launch, or -1."""
    return operators_around(trace, parents(trace, trace.launch[kernels]))


def _kinds(trace: Events, call: Ints) -> npt.NDArray[np.str_]:
    """The kind of work of the operator around each launch; `around` if there is none.

    Inductor's kernels are judged by the name of their event, of which older kernel names are a
    part.
    """
    kinds = np.full(len(call), "around", "<U8")
    distinct, at = np.unique(np.where(call >= 0, trace.name[call], -1), return_inverse=True)
    for number, name in enumerate(distinct.tolist()):
        if name >= 0:
            own = trace.names[name]
            quiet = own.startswith("triton_") and not kernel_may_multiply(own)
            kinds[at == number] = "none" if quiet else work_of(own)
    return kinds


def _unrecorded(trace: Events) -> Iterable[UncountedPart]:
    """An empty trace, or one of only kernels or Python, which does not tell what else ran.

    Our captures record operators: where there are none, none ran.
    """
    if trace.region is None and not trace.has(Kind.OP):
        yield UncountedPart("", Why.NO_OPERATORS, 0, 0.0)


def _alone(trace: Events) -> Iterable[UncountedPart]:
    """Kernels that no operator launched."""
    return by_name(trace, trace.once(_unanswered)[0], lambda _: Why.LAUNCHED_ALONE)


def _replayed(trace: Events) -> Iterable[UncountedPart]:
    """Kernels that a graph launched: their operators ran when it was captured."""
    return by_name(trace, trace.once(_unanswered)[2], lambda _: Why.REPLAYED)


# -------------------------------------------------------------------- the table

#: Everything that may make a sum of FLOPs too low. To add one, add a function from trace to parts.
SOURCES: Final[tuple[Callable[[Events], Iterable[UncountedPart]], ...]] = (
    _without_arguments,
    _without_formula,
    _without_parts,
    _alone,
    _replayed,
    _unrecorded,
    in_loops,
    of_no_graph,
    in_script,
    packages,
)


def uncounted_operators(trace: Events) -> Bools:
    """Operators that compute and have no formula."""
    out = np.zeros(len(trace), bool)
    if uncounted_flops(trace) is None:
        return out
    for events in (trace.once(_computing), trace.once(_opaque)):
        if len(events):
            out[events] = True
    return out


def uncounted_events(trace: Events) -> Bools:
    """Operators, calls of compiled code, kernels and their launches whose own FLOPs are unknown."""
    return trace.once(_uncounted_events)


def _uncounted_events(trace: Events) -> Bools:
    out = unknown_flops(trace) | uncounted_operators(trace)
    if uncounted_flops(trace) is None:
        return out
    if any(_unrecorded(trace)):
        return np.ones(len(trace), bool)
    alone, _, replayed = trace.once(_unanswered)
    kernels = np.concatenate([alone, replayed])
    launch = trace.launch[kernels]
    out[kernels] = out[launch[launch >= 0]] = True
    if any(part for source in (in_loops, of_no_graph, in_script) for part in source(trace)):
        hiding = trace.names_where(lambda name: name.startswith(("## ", REGION)))
        hiding |= trace.is_kind(Kind.OP) & trace.names_where(SCRIPT.match)
        out |= hiding & (op_flops(trace) == 0)
    return out


def flops_gap(trace: Events) -> Reason | None:
    """Why the FLOPs of the selection are unknown, with names; None if they are known."""
    found = uncounted_flops(trace)
    return None if found is None else found.reason
