"""Rules about gradients: how they are reset, and graphs that nobody takes them of."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.arguments import AutogradArgs, decode
from pytest_torchprof.events import STEP, Kind
from pytest_torchprof.rules.levels import (
    BACKWARD,
    FETCH,
    are_engine_steps,
    are_gradchecked,
    calls,
    frames_around,
)
from pytest_torchprof.rules.names import Names, are_named, marks_named, operators_named
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import are_outermost, has_frames, outermost, rows_of

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

_ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
_ZERO_GRAD_FRAME: Final = re.compile(
    r"torch[/\\](nn[/\\]modules[/\\]module|optim[/\\]optimizer)\.py\(\d+\): zero_grad$"
)
_OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
_ACCUMULATE: Final = Names("torch::autograd::AccumulateGrad$")
_GRADIENT: Final = Names(r".*::AccumulateGrad$")
#: A node of the graph that an operator has made.
_RAN: Final = Names(r"autograd::engine::evaluate_function: (?!.*::AccumulateGrad$)")
_DETACH: Final = Names(r"(aten::)?detach_$")


#: What to do where torch's version is not known, and before 2.0, when zeros were the default.
_SINCE_2: Final = (
    "call zero_grad(set_to_none=True), the default since torch 2.0: gradients then become None"
)
_BY_DEFAULT: Final = "call zero_grad() without set_to_none=False: gradients then become None"


@rule(
    "grad-not-none",
    fix=_SINCE_2,
    triggers=r"aten::(_foreach_)?zero_$",
)
def grad_not_none(trace: Trace) -> Matches:
    """Gradients are filled with zeros, where they could just be dropped.

    What it does
        Counts the calls of ``zero_grad`` that filled gradients with zeros: an optimizer's, by
        torch's annotation; a module's, by the ``zero_`` calls one after the other, whose shapes
        are those of the gradients of a backward pass in the same trace, two or more. Before torch
        2.0 ``zero_grad()`` itself did so.

    Why it is slow
        Each gradient is written once to be zero, and read and added to once more in the next
        backward pass, which would else just store it. Until then its memory stays taken.

    Example
        .. code:: python

            optimizer.zero_grad(set_to_none=False)

    Use instead
        .. code:: python

            optimizer.zero_grad()  # before torch 2.0: zero_grad(set_to_none=True)
    """
    fills = rows_of(trace, "aten::zero_", "aten::_foreach_zero_")
    if not len(fills):
        return NO_MATCHES
    above = trace.parent[fills]
    optimizer = are_named(trace, above, _ZERO_GRAD)
    event = [above[optimizer]]
    cost, ends = [trace.dur[fills[optimizer]]], trace.ts + trace.dur
    done = [ends[fills[optimizer]]]
    rest = fills[~optimizer]
    rest = rest[are_outermost(trace, rest)]
    if not len(event[0]) and not len(rest):
        return NO_MATCHES
    if has_frames(trace):
        frame = frames_around(trace, _ZERO_GRAD_FRAME, rest)
        _, first, which = np.unique(frame, return_index=True, return_inverse=True)
        event.append(rest[first][which][frame >= 0])
        cost.append(trace.dur[rest[frame >= 0]])
        done.append(ends[rest[frame >= 0]])
        rest = rest[frame < 0]
    first = _like_gradients(trace, rest)
    event.append(first[first >= 0])
    cost.append(trace.dur[rest[first >= 0]])
    done.append(ends[rest[first >= 0]])
    rows, at = np.unique(np.concatenate(event), return_inverse=True)
    ns = np.bincount(at, np.concatenate(cost), len(rows)).astype(np.int64)
    last = trace.ts[rows] + trace.dur[rows]
    np.maximum.at(last, at, np.concatenate(done))
    return Matches(
        rows,
        "zero_grad fills the gradients with zeros",
        cost_ns=ns,
        fix=[_fix(trace)] * len(rows),
        span_ns=(trace.ts[rows], last),
    )


def _fix(trace: Trace) -> str:
    """What to do, by the version of torch that a live capture notes."""
    major = str(trace.facts.get("torch", "")).partition(".")[0]
    return _BY_DEFAULT if major.isdigit() and int(major) >= 2 else _SINCE_2


def _like_gradients(trace: Trace, fills: Ints) -> Ints:
    """For calls of ``zero_`` one after the other that are as many and of the same shapes as the
    gradients of a backward pass, the first of them; -1 for others.
    """
    first = np.full(len(fills), -1, np.int64)
    runs = _runs(trace, fills)
    gradients = operators_named(trace, _ACCUMULATE)
    if not runs or len(gradients) < 2 or not trace.records_shapes:
        return first
    wanted = _passes(trace, gradients)
    shapes = _shapes(trace, fills)
    for run in runs:
        for passed in wanted:
            size = passed.total()
            parts = [run[i : i + size] for i in range(0, len(run), size)]
            if all(Counter(shapes[i] for i in part.tolist()) == passed for part in parts):
                for part in parts:
                    first[part] = fills[part[0]]
                break
    return first


def _runs(trace: Trace, fills: Ints) -> list[Ints]:
    """Positions of calls that follow one upon the other, two or more."""
    called = calls(trace)
    called = called[~are_named(trace, called, _DETACH)]
    position = np.full(len(trace), -1, np.int64)
    position[called] = np.arange(len(called))
    order = np.argsort(position[fills], kind="stable")
    apart = np.diff(position[fills[order]]) != 1
    apart |= np.diff(trace.thread[fills[order]]) != 0
    return [run for run in np.split(order, np.flatnonzero(apart) + 1) if len(run) > 1]


def _shapes(trace: Trace, rows: Ints) -> list[bytes]:
    return [bytes(args.dims) for args in trace.operands(rows)]


def _passes(trace: Trace, gradients: Ints) -> list[Counter[bytes]]:
    """Shapes of the gradients of each backward pass, and of all that there are, if two or more.

    Between two passes, the user calls something.
    """
    other = outermost(trace)
    other = other[~are_engine_steps(trace, other)]
    starts = np.flatnonzero(np.diff(np.searchsorted(other, gradients))) + 1
    shapes = _shapes(trace, gradients)
    bounds = [0, *starts.tolist(), len(shapes)]
    passes = [Counter(shapes[a:b]) for a, b in pairwise(bounds)]
    passes = [Counter(dict(kind)) for kind in {frozenset(one.items()) for one in passes}]
    every = Counter[bytes]()
    for one in passes:
        every |= one
    return [one for one in (*passes, every) if one.total() > 1 and b"" not in one]


# ------------------------------------------------------------------------- graphs that nobody uses

#: Operators of a module's own: products, convolutions, normalisations, look-ups, attention.
LAYER: Final = Names(
    r"aten::(linear|bilinear|einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv"
    r"|_?conv\w*|(_native_)?batch_norm|layer_norm|group_norm|instance_norm|rms_norm"
    r"|embedding(_bag)?|lstm(_cell)?|gru(_cell)?|rnn_(tanh|relu)(_cell)?"
    r"|scaled_dot_product_attention)$"
    r"|(CompiledFunction|CheckpointFunction|forward)$"  # the last: TorchScript
)
#: What ends a forward pass, whatever follows.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
#: Recording a node of the graph: allocating it, and keeping what its backward needs.
_NODE_NS: Final = 1000


@rule(
    "missing-no-grad",
    fix="wrap it in torch.inference_mode(), or under autocast in torch.no_grad(), which leaves it "
    "its cache of weights",
    triggers=LAYER.pattern,
    layers=Threshold(2, "1", "an unused head or a metric within a training step is no forward"),
)
def missing_no_grad(trace: Trace, *, layers: float) -> Matches:
    """A forward pass records a graph for a backward pass that never comes.

    What it does
        Counts stretches of layers (products, convolutions, normalisations, embeddings, attention,
        compiled code) that autograd recorded and of which no backward pass in the trace ran
        anything. A backward pass, an optimizer, a fetch of a DataLoader and a profiler step end a
        stretch; forward passes with none of these between them count as one. Where other layers
        between the same two ends are used by a backward pass, a stretch of unused ones counts from
        ``layers`` (2) on. A test that measures just the forward pass of training matches: allow it.
        What ``torch.autograd.gradcheck`` repeats does not count.

    Why it is slow
        Every operator makes a node of the graph, and the activations are kept until the result is
        dropped: more memory, often several times as much, and some time for each operator.

    Example
        .. code:: python

            model.eval()
            for batch in loader:
                predictions.append(model(batch).argmax(1))

    Use instead
        .. code:: python

            model.eval()
            with torch.inference_mode():
                for batch in loader:
                    predictions.append(model(batch).argmax(1))
    """
    if _is_all_used(trace):
        return NO_MATCHES
    forward, first, after = _recorded(trace)
    mine = ~are_gradchecked(trace, forward)
    forward, first, after = forward[mine], first[mine], after[mine]
    if not len(forward):
        return NO_MATCHES
    ran = nesting.distinct(_numbers(trace, _steps(trace)))
    if ran[-1:].max(initial=-1) < 0 and len(marks_named(trace, _OPTIMIZER_STEP)):
        return NO_MATCHES  # before a step there was a backward pass, on a thread not recorded
    used = np.searchsorted(ran, first) < np.searchsorted(ran, after)
    boundaries = marks_named(trace, _BOUNDARY)
    place = np.searchsorted(boundaries, forward)
    part = _numbered(place, trace.thread[forward].astype(np.int64))
    # Parts of which nothing was used match whole, of others the stretches that are long enough.
    any_used = np.bincount(part, used, part[-1] + 1) > 0
    stretch = _numbered(part, used)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    long = np.bincount(stretch) >= layers
    match = ~used[starts] & (long | ~any_used[part[starts]])
    if trace.region is None and used.any():
        match &= np.bincount(stretch, _is_last(trace, forward), len(starts)) == 0
    match &= trace.selection[forward[starts]]
    nodes = np.bincount(stretch, after - first, len(starts)).astype(np.int64)[match]
    size = np.bincount(stretch)[match].tolist()
    words = [f"{n} layer{'s' * (n > 1)} recorded a graph that no backward used" for n in size]
    rows, last = forward[starts[match]], forward[np.append(starts[1:], len(forward))[match] - 1]
    return Matches(
        rows,
        words,
        cost_ns=nodes * _NODE_NS,
        span_ns=(trace.ts[rows], trace.ts[last] + trace.dur[last]),
    )


def _is_all_used(trace: Trace) -> bool:
    """A quick look, which mostly settles it in training: whether the number of each operator that
    may be a layer is that of a node that ran. False settles nothing.
    """
    nodes = operators_named(trace, _RAN)
    if not len(nodes):
        return False
    both = np.concatenate([nodes, operators_named(trace, LAYER)])
    numbers = [args.sequence for args in decode(AutogradArgs, trace.args[both])]
    return {-1, *numbers[: len(nodes)]}.issuperset(numbers[len(nodes) :])


def _recorded(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Layers that recorded nodes of a graph, and the numbers of their first and of the next node.

    Source: an operator's sequence number is that which the next node of its thread will have, torch
    writes it where grad mode is on, whether or not a node is made.
    """
    nothing = np.zeros(0, np.int64)
    some = operators_named(trace, LAYER)
    if not (_numbers(trace, some[:: 1 + len(some) // _SAMPLE]) >= 0).any():
        return nothing, nothing, nothing
    rows = calls(trace)
    rows = rows[~are_engine_steps(trace, rows)]
    at = np.flatnonzero(are_named(trace, rows, LAYER))
    number = _numbers(trace, rows[at])
    at, number = at[number >= 0], number[number >= 0]
    after = _numbers_after(trace, rows, at)
    made = after > number
    return rows[at[made]], number[made], after[made]


def _numbers_after(trace: Trace, rows: Ints, at: Ints) -> Ints:
    """The number of the next call on the thread that has one, or else the last within this one."""
    found = np.full(len(at), -1, np.int64)
    thread = np.append(trace.thread[rows], -1)
    todo = np.arange(len(at))
    for away in range(1, _FAR):
        next_call = np.minimum(at[todo] + away, len(rows))
        todo = todo[thread[next_call] == thread[at[todo]]]
        if not len(todo):
            break
        found[todo] = _numbers(trace, rows[at[todo] + away])
        todo = todo[found[todo] < 0]
    for late in np.flatnonzero(found < 0).tolist():
        found[late] = _last_number(trace, int(rows[at[late]]))
    return found


def _steps(trace: Trace) -> Ints:
    """The autograd engine's steps that ran a node which an operator has made."""
    rows = calls(trace)
    return rows[are_engine_steps(trace, rows) & ~are_named(trace, rows, _GRADIENT)]


#: Calls that are looked at for the number of the next node.
_FAR: Final = 100
#: Layers that are looked at to tell whether anything is recorded.
_SAMPLE: Final = 500


def _numbers(trace: Trace, rows: Ints) -> Ints:
    """Sequence numbers, -1 for none."""
    found = decode(AutogradArgs, trace.args[rows])
    return np.fromiter((args.sequence for args in found), np.int64, len(found))


def _last_number(trace: Trace, row: int) -> int:
    """The largest sequence number within a call: those of the nodes before it are taken."""
    stop = int(np.searchsorted(trace.ts, trace.ts[row] + trace.dur[row]))
    later = np.arange(row, stop)
    inside = later[trace.is_kind(Kind.OP)[later] & (trace.thread[later] == trace.thread[row])]
    return int(_numbers(trace, inside).max(initial=-1))


def _numbered(*columns: Ints | Bools) -> Ints:
    """Numbers from 0 on, one more wherever one of the columns changes."""
    change = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        change |= column[1:] != column[:-1]
    return np.concatenate([[0], np.cumsum(change)]).astype(np.int64)


def _is_last(trace: Trace, rows: Ints) -> Bools:
    """Calls after which the trace has no other: the recording may have ended before their use."""
    last = calls(trace)
    latest: Bools = rows == last[np.argmax(trace.ts[last])]
    return latest
