"""Which work has no known FLOPs, bytes or launches, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.attribution import is_replayed
from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Sentence, Why, because
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Kind,
    once_of_whole,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.steps import holds_whole_operators
from pytest_torchprof.trace.tree import (
    engine_steps,
    forward_of,
    marked,
    operators_around,
    parents,
)
from pytest_torchprof.work.counting import (
    by_call,
    called_graphs,
    counts_flops,
    graph_calls,
    graphs,
    key_of,
    only_shapes,
    op_flops,
    operands_of,
    sums,
    unknown_flops,
    work_parent,
)
from pytest_torchprof.work.flops import kernel_may_multiply, missing_input, work_of
from pytest_torchprof.work.launches import RECURRENT

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.operands import Operands


# ---- Parts of a trace without counted FLOPs: what they are, and their share of the time.

_NAMED, _LONGEST = 3, 60


class UncountedPart(Frozen, frozen=True):
    """An operator or a kernel by name, what is missing, and its share of the total time.

    Without a name, ``missing`` is all that there is to say.

    ``share`` is of the device's time where there is a device, else of the time of all operators.
    """

    name: str
    missing: Sentence
    calls: int
    share: float


def reason_of(parts: Iterable[UncountedPart], at_least: int, unit: str) -> Reason:
    """What is counted, if anything, and for each thing that is missing the parts that lack it."""
    parts = tuple(parts)
    gaps = dict.fromkeys(part.missing for part in parts)
    why = because(*Why.SEVERAL, gaps=tuple(_gap(missing, parts) for missing in gaps))
    return because(*Why.AT_LEAST, value=at_least, unit=unit, why=why) if at_least else why


def _gap(missing: Sentence, parts: Iterable[UncountedPart]) -> Reason:
    mine = [part for part in parts if part.missing == missing]
    if not mine[0].name:
        return because(*missing)
    shown = tuple(_one(part) for part in mine[:_NAMED])
    if len(mine) == 1:
        return because(
            "one_uncounted", "{part} {missing}", part=shown[0], missing=because(*missing)
        )
    left = len(mine) - len(shown)
    return because(
        "many_uncounted",
        "{parts:, }{left:? and # more}: each {missing}",
        parts=shown,
        left=left,
        missing=because(*missing),
    )


def _one(part: UncountedPart) -> Reason:
    name = part.name.removeprefix("void ").partition("<")[0].partition("(")[0] or part.name
    name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    if part.share < 0.005:
        return because("uncounted_part", "{name} ({calls: call})", name=name, calls=part.calls)
    return because(
        "uncounted_share",
        "{name} ({calls: call}, {percent:.0f} % of the time)",
        name=name,
        calls=part.calls,
        percent=100 * part.share,
    )


def named(
    trace: Events, events: Ints, names: tuple[str, ...], missing: Sentence
) -> Iterable[UncountedPart]:
    """A part for each of these names, all of the same calls."""
    if not len(events):
        return
    whole = whole_time(trace)
    share = int(time_of(trace, events).sum()) / whole if whole else 0.0
    for name in dict.fromkeys(names):
        yield UncountedPart(name, missing, len(events), min(share, 1.0))


def by_name(trace: Events, events: Ints, missing: Callable[[int], Sentence]) -> list[UncountedPart]:
    """A part for each name among these events; ``missing`` is asked for the first of each."""
    if not len(events):
        return []
    names, first, at = np.unique(trace.name[events], return_index=True, return_inverse=True)
    spent = np.bincount(at, time_of(trace, events)).tolist()
    calls = np.bincount(at).tolist()
    whole = whole_time(trace)
    return [
        UncountedPart(trace.names[name], missing(int(events[i])), n, ns / whole if whole else 0.0)
        for name, i, n, ns in zip(names.tolist(), first.tolist(), calls, spent, strict=True)
    ]


def time_of(trace: Events, events: Ints) -> Ints:
    """Nanoseconds of each event on the device, or on the host where there is no device."""
    if not (trace.has(*DEVICE_KINDS) and trace.selection[trace.device_rows].any()):
        return trace.dur[events]
    on_device = trace.is_kind(*DEVICE_KINDS)[events]
    return np.where(on_device, trace.dur[events], launched_ns(trace)[events])


def whole_time(trace: Events) -> int:
    """Nanoseconds of all device events, or of all operators where there are none."""
    device = trace.selection & trace.is_kind(*DEVICE_KINDS)
    if device.any():
        return int(trace.dur[device].sum())
    return int(trace.self_ns[trace.selection & trace.is_kind(Kind.OP)].sum())


# ---- Compiled code without counted FLOPs: what inductor, AOTInductor and TorchScript leave out.

COMPILED: Final = "torch.compile's code"
PACKAGE: Final = "an AOTInductor package"
REGION: Final = "Torch-Compiled Region"
#: A function of TorchScript: no operator, which has a namespace, nor autograd's node, nor a mode.
SCRIPT: Final = late(r"(?!Python\w+$|\w+Backward\d*$)[\w.]+$")


@once_of_whole
def runs_compiled_code(trace: Events) -> bool:
    """Whether a name in the whole trace tells of code that torch.compile generated."""
    return any(name.startswith(("## ", REGION)) for name in trace.names)


def nothing_ran(trace: Events) -> bool:
    """Whether a live capture has neither operators nor kernels nor compiled code."""
    return (
        trace.region is not None
        and not trace.has(Kind.OP, Kind.KERNEL)
        and not runs_compiled_code(trace)
        and not trace.facts.packages
    )


def compiled_calls(trace: Events, counts: Bools, parent: Ints) -> Bools:
    """Calls of compiled graphs; those of compiled functions within which nothing counts, if the
    trace does not mark graphs, as of an older torch.
    """
    calls = called_graphs(trace)
    if not (calls.any() or trace.facts.marks_graphs):
        calls = trace.selection & trace.names_where(lambda name: name.startswith(REGION))
        calls[nesting.above(np.flatnonzero(counts), parent)] = False
    return calls


def of_no_graph(trace: Events) -> Iterable[UncountedPart]:
    """Calls of compiled graphs about which nothing is known."""
    if not runs_compiled_code(trace):
        return
    lost = trace.facts.lost_loops
    calls = compiled_calls(trace, counts_flops(trace), work_parent(trace))
    calls &= ~trace.names_where(lambda name: key_of(name) in graphs(trace))
    events = np.flatnonzero(calls)
    if not len(events):
        return
    if lost is not None:
        yield from named(trace, events, lost, Why.LOOPS)
    elif not trace.is_live:
        silent = events[launched_ns(trace)[events] == 0]
        yield from named(trace, silent, (COMPILED,), Why.LOOPS)


def in_script(trace: Events) -> Iterable[UncountedPart]:
    """TorchScript that was optimized for inference: its oneDNN operators leave no events."""
    blocks = trace.operators("aten::to_mkldnn")
    if not len(blocks):
        return
    around = operators_around(trace, parents(trace, blocks))
    scripts = [at for at in around.tolist() if at >= 0 and SCRIPT.match(_name(trace, at))]
    yield from by_name(trace, nesting.distinct(np.array(scripts, np.int64)), lambda _: Why.NO_PARTS)


def _name(trace: Events, event: int) -> str:
    name: str = trace.names[trace.name[event]]
    return name


def packages(trace: Events) -> Iterable[UncountedPart]:
    """AOTInductor's code calls kernels without the dispatcher."""
    calls = trace.facts.packages
    if calls is not None and calls > 0:
        yield UncountedPart(PACKAGE, Why.NO_PARTS, calls, 0.0)


def replayed_parts(trace: Events) -> list[UncountedPart]:
    """Kernels that a graph launched: their operators ran when it was captured."""
    rows = (trace.selection & trace.is_kind(Kind.KERNEL)).nonzero()[0]
    return by_name(trace, rows[is_replayed(trace, trace.launch[rows])], lambda _: Why.REPLAYED)


# ---- Work without counted FLOPs: why a sum of FLOPs is only a lower bound.
#
# An operator without a number is reported if it has a formula but the trace lacks what that
# needs, if it is known to compute products and has no formula, or if it is unknown and no
# operators nested in it do the work. A kernel is reported where no operator covers it: an unknown
# one launched it, or none, or a graph did; unless its name says that it computes no products.
# Nothing inside an operator that has a number is reported, and of nested operators only the
# outermost.


class Uncounted(Frozen, frozen=True):
    """The parts, the longest first, and the sum of what is counted."""

    parts: tuple[UncountedPart, ...]
    at_least: int

    @property
    def reason(self) -> Reason:
        """What is counted and what is not."""
        return reason_of(self.parts, self.at_least, "FLOP")


@once_per_trace
def uncounted_flops(trace: Events) -> Uncounted | None:
    """What is missing from the FLOPs of the selection; None if nothing is."""
    if nothing_ran(trace) or (
        holds_whole_operators(trace) and uncounted_flops(trace.whole) is None
    ):
        return None
    found = list(_parts(trace))
    if not found:
        return None
    at_least = int(op_flops(trace)[trace.selection].sum())
    return Uncounted(tuple(sorted(found, key=lambda p: (-p.share, p.name))), at_least)


def _parts(trace: Events) -> Iterator[UncountedPart]:
    """Everything that may make a sum of FLOPs too low."""
    # An empty trace, or one of only kernels or Python, does not tell what else ran. Our captures
    # record operators: where there are none, none ran.
    if trace.region is None and not trace.has(Kind.OP):
        yield UncountedPart("", Why.NO_OPERATORS, 0, 0.0)
    alone, _, replayed = trace.once(_unanswered)
    silent = np.flatnonzero(unknown_flops(trace))
    yield from by_name(trace, silent, lambda at: _lacking(trace, at))
    yield from by_name(trace, trace.once(_computing), lambda _: Why.NO_FORMULA)
    yield from by_name(trace, trace.once(_opaque), lambda at: _opaque_why(trace, at))
    yield from by_name(trace, alone, lambda _: Why.LAUNCHED_ALONE)
    yield from by_name(trace, replayed, lambda _: Why.REPLAYED)
    yield from _hidden(trace)
    yield from packages(trace)


def _hidden(trace: Events) -> Iterator[UncountedPart]:
    """What compiled code may hide."""
    for key, events in graph_calls(trace).items():
        graph = graphs(trace)[key]
        counts = counts_flops(trace)
        shown = sums(events, counts, counts.astype(np.int64), work_parent(trace))
        hidden = events[shown < graph.products] if graph.dynamic else events[:0]
        # Products that inductor wrote as loops, where the graph does not tell their size.
        yield from named(trace, hidden, graph.dynamic, Why.DYNAMIC_LOOPS)
        yield from named(trace, events, graph.loops, Why.LOOPS)
    yield from of_no_graph(trace)
    yield from in_script(trace)


# -------------------------------------------------------------------- operators


def _lacking(trace: Events, event: int) -> Sentence:
    (args,) = trace.operands(np.array([event]))
    call = operands_of(args)
    parts = call.dims, call.types, call.concrete, call.strides
    return missing_input(trace.names[trace.name[event]], *parts)


def _opaque_why(trace: Events, event: int) -> Sentence:
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
    silent = np.append(rows[~by_call(trace, rows, _on_nothing, bool)], unanswered)
    return _outermost(trace, marked(trace, silent)[:-1])


def _on_nothing(name: str, call: Operands) -> bool:
    """Whether a call is on empty operands: it does nothing, so nothing is nested in it.

    A composite operator stops where one operand has no elements. Any other operator may have an
    empty workspace or an absent mask, and computes with the rest.
    """
    dims, kinds = (part if isinstance(part, list) else [] for part in (call.dims, call.types))
    shapes = [
        shape
        for shape, kind in zip_longest(dims, kinds)
        if isinstance(shape, list) and (shape or kind not in _NO_TENSOR)
    ]
    return bool(shapes) and (any if work_of(name) == "parts" else all)(0 in s for s in shapes)


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


def _outermost(trace: Events, some: Bools) -> Ints:
    """Of these operators, those that are not nested in one another or in a counted one."""
    counts = counts_flops(trace)
    return np.flatnonzero(nesting.outermost(some | counts, work_parent(trace)) & ~counts)


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
    call = operators_around(trace, parents(trace, trace.launch[event]))
    replays = is_replayed(trace, trace.launch[event])
    kinds = _kinds(trace, call)
    known = call >= 0
    within = np.zeros(len(call), bool)
    within[known] = nesting.below(counts_flops(trace), work_parent(trace), call[known])
    left = ~within & ~replays
    alone = left & (kinds == "around")
    by_operator = left & nesting.among(kinds, list(_ASKED))
    return event[alone], nesting.distinct(call[by_operator]), event[replays]


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


def uncounted_operators(trace: Events) -> Bools:
    """Operators that compute and have no formula."""
    out = np.zeros(len(trace), bool)
    if uncounted_flops(trace) is None:
        return out
    for events in (trace.once(_computing), trace.once(_opaque)):
        if len(events):
            out[events] = True
    return out


@once_per_trace
def uncounted_events(trace: Events) -> Bools:
    """Operators, calls of compiled code, kernels and their launches whose own FLOPs are unknown."""
    out = unknown_flops(trace) | uncounted_operators(trace)
    if uncounted_flops(trace) is None:
        return out
    if trace.region is None and not trace.has(Kind.OP):
        return np.ones(len(trace), bool)
    alone, _, replayed = trace.once(_unanswered)
    kernels = np.concatenate([alone, replayed])
    launch = trace.launch[kernels]
    out[kernels] = out[launch[launch >= 0]] = True
    if any(_hidden(trace)):
        hiding = trace.names_where(lambda name: name.startswith(("## ", REGION)))
        hiding |= trace.is_kind(Kind.OP) & trace.names_where(SCRIPT.match)
        out |= hiding & (op_flops(trace) == 0)
    return out


def flops_gap(trace: Events) -> Reason | None:
    """Why the FLOPs of the selection are unknown, with names; None if they are known."""
    found = uncounted_flops(trace)
    return None if found is None else found.reason


# ---- Operators that a device runs as a whole and the CPU by parts, and what only the CPU does.
#
# What the CPU does for such a whole tells neither the kernels nor the bytes nor the blocks of a
# device; and neither do the steps of the backward pass that belong to its parts.

_MATH: Final = "aten::_scaled_dot_product_attention_math"
#: It frees the weights, which attention in its math form returns, too.
ATTENTION: Final = "aten::scaled_dot_product_attention"
_HEADS: Final = "aten::_native_multi_head_attention"
#: Attention in these types has a fused form on devices. Source: PyTorch's
#: ``transformers/cuda/sdp_utils.cpp``, ``can_use_mem_efficient_attention``.
_FUSED: Final = frozenset({"float", "c10::Half", "c10::BFloat16"})


class _Form(Frozen, frozen=True):
    """The fewest kernels of a whole in its forward pass, None if known elsewhere; and backward."""

    forward: int | None
    backward: int


#: By operator. Sources: ``transformers/cuda/attention.cu`` (``native_multi_head_attention_cuda``: a
#: product, attention, a product), ``attention_backward.cu``, and ``RNN.cpp``.
_FORMS: Final[Mapping[str, _Form]] = {
    **dict.fromkeys((_MATH, ATTENTION), _Form(1, 3)),
    _HEADS: _Form(3, 0),
    "aten::lstm_cell": _Form(None, 1),
    "aten::gru_cell": _Form(None, 1),
    **dict.fromkeys(RECURRENT, _Form(None, 0)),
}

#: Checks of values that only the CPU makes, by the operator around them. Source: PyTorch's
#: ``Sorting.cpp``, ``quantile_checks``; and how the CPU compares all pairs in ``isin``.
_QUANTILE: Final = ("ge", "le", "logical_and_", "all", "new_ones", "equal")
_HOST_ONLY: Final[Mapping[str, frozenset[str]]] = {
    around: frozenset(f"aten::{name}" for name in names)
    for around, names in (
        ("aten::quantile", _QUANTILE),
        ("aten::nanquantile", _QUANTILE),
        ("aten::isin", ("fill_",)),
    )
}


class Forms(Frozen, frozen=True):
    """The wholes of a trace, the steps of their backward passes, and kernels known of either.

    ``steps`` are the outermost events of the autograd engine that belong to parts of a whole;
    ``of`` is the whole of each. ``counted`` start ``launches``.
    """

    whole: Bools
    steps: Ints
    of: Ints
    counted: Ints
    launches: Ints


def ran_on_host(trace: Events) -> bool:
    """Whether the trace shows nothing of a device, so that operators ran on the CPU."""
    return not trace.has(*DEVICE_KINDS)


@once_of_whole
def forms(trace: Events) -> Forms:
    """The wholes of the whole trace, whatever is selected."""
    rows = operators_named(trace, *(_FORMS.keys() - {ATTENTION}))
    if not ran_on_host(trace):
        # What a device ran by parts it ran by parts; but what runs below a library's own is its.
        rows = rows[trace.names_where(RECURRENT.__contains__)[rows]]
    math = trace.named(_MATH)[rows]
    rows = rows[~math | by_call(trace, rows, _can_be_fused, bool)]
    above = trace.parent[rows]
    called = trace.named(_MATH)[rows] & (above >= 0) & trace.named(ATTENTION)[above]
    rows = np.sort(np.where(called, above, rows))
    whole = marked(trace, rows)[:-1]
    rows = nesting.outermost(whole, trace.parent).nonzero()[0]
    steps, of = _backward(trace, whole, rows)
    known = {name: form for name, form in _FORMS.items() if form.forward is not None}
    forward = rows[trace.names_where(known.__contains__)[rows]]
    each = [known[trace.names[n]].forward or 0 for n in trace.name[forward].tolist()]
    wholes, first = np.unique(of, return_index=True)
    back = [_FORMS[trace.names[n]].backward for n in trace.name[wholes].tolist()]
    return Forms(
        whole,
        steps,
        of,
        np.concatenate([forward, steps[first]]),
        np.array([*each, *back], np.int64),
    )


def _can_be_fused(_: str, call: Operands) -> bool:
    """Whether attention in the type of its first operand has a fused form."""
    return isinstance(call.types, list) and bool(call.types) and call.types[0] in _FUSED


def _backward(trace: Events, whole: Bools, rows: Ints) -> tuple[Ints, Ints]:
    """Outermost steps of the autograd engine for parts of wholes, and the whole of each."""
    none = np.zeros(0, np.int64)
    steps = engine_steps(trace)
    if not (len(rows) and len(steps)):
        return none, none
    steps = nesting.outermost(marked(trace, steps)[:-1], trace.parent).nonzero()[0]
    part = forward_of(trace, steps)
    known = part >= 0
    steps, part = steps[known], part[known]
    of = nesting.nearest(whole, trace.parent, trace.parent[part])
    return steps[of >= 0], of[of >= 0]


def host_only(trace: Events) -> Ints:
    """Operators that only the CPU runs within others."""
    around = operators_named(trace, *_HOST_ONLY)
    if not len(around):
        return around
    names = frozenset().union(*_HOST_ONLY.values())
    rows = np.flatnonzero(trace.is_kind(Kind.OP) & trace.names_where(names.__contains__))
    rows = rows[trace.parent[rows] >= 0]
    above = trace.name[trace.parent[rows]]
    fits = [
        trace.names[name] in _HOST_ONLY.get(trace.names[outer], ())
        for name, outer in zip(trace.name[rows].tolist(), above.tolist(), strict=True)
    ]
    found: Ints = rows[np.array(fits, bool)]
    return found
