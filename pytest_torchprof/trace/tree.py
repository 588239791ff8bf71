"""The tree of operators: what encloses them, their order, and the backward of a forward."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import AutogradArgs, decode, decode_part, decode_texts
from pytest_torchprof.trace.names import (
    ANNOTATION,
    OPERATOR,
    STEP,
    Kind,
    Names,
    are_named,
    are_operators,
    count,
    events_named,
    marks_named,
    named,
    numbers_of,
    once_per_trace,
    operators_between,
    operators_marked,
    operators_named,
)
from pytest_torchprof.trace.nesting import among, distinct

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.names import Name
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What small traces of the same calls share: runs of one test mostly make the same ones.

_Shared = TypeVar("_Shared")
_Options = ParamSpec("_Options")
#: So many nestings of the same events are kept.
_MOST_NESTED: Final = 2


def once_nested(trace: Events, compute: Callable[..., _Shared], *options: Any) -> _Shared:
    """``compute(trace, *options)``, once for all small traces of the same names, kinds and nesting.

    What it computes depends on nothing else, and nobody changes it.
    """
    known = trace.whole.once(_nested)
    key = (compute, *options) if options else compute
    found: _Shared = known.get(key, known)
    if found is known:
        found = known[key] = compute(trace, *options)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
    return found


def _once(
    compute: Callable[Concatenate[Events, _Options], _Shared],
) -> Callable[Concatenate[Events, _Options], _Shared]:
    """Make a function compute its result once, as from `once_nested`."""

    @wraps(compute)
    def shared(trace: Events, /, *options: _Options.args, **_: _Options.kwargs) -> _Shared:
        return once_nested(trace, compute, *options)

    return shared


def once_selected(trace: Events, compute: Callable[..., _Shared], *options: Any) -> _Shared:
    """The same for what also depends on the selected events."""
    found: _Shared = (
        once_nested(trace, _for_selection, trace.selection.tobytes(), compute, *options)
        if trace.by_name.is_small
        else trace.once(compute, *options)
    )
    return found


def _for_selection(
    trace: Events, _: bytes, compute: Callable[..., _Shared], *options: Any
) -> _Shared:
    return compute(trace, *options)


def _nested(trace: Events) -> dict[Any, Any]:
    index = trace.by_name
    if not index.is_small:
        return {}
    if len(index.nested) > _MOST_NESTED:
        index.nested.clear()
    return index.nested.setdefault(trace.parent.tobytes(), {})


# ---- What encloses operators, and their order, for several rules.

#: Annotations around an optimizer's work, including ``zero_grad``.
_OPTIMIZER = Names(r"Optimizer\.")


def within(trace: Events, rows: Ints, is_root: Callable[[Ints], Bools]) -> Bools:
    """Which of these events are nested in a root, at any depth."""
    found = np.zeros(len(rows), bool)
    parent = trace.parent
    at = parent[rows]
    todo = np.flatnonzero(at >= 0)
    while len(todo):
        above = at[todo]
        hit = is_root(above)
        found[todo[hit]] = True
        todo = todo[~hit]
        at[todo] = parent[at[todo]]
        todo = todo[at[todo] >= 0]
    return found


def within_named(trace: Events, rows: Ints, *names: Names) -> Bools:
    """Which of these events are nested in an event with such a name."""
    roots = events_named(trace, *names)
    if not (len(roots) and len(rows)):
        return np.zeros(len(rows), bool)
    return nesting.below(marked(trace, roots), trace.parent, rows)


def operators_around(trace: Events, events: Ints) -> Ints:
    """The innermost operator around each of these events, itself included; -1 for none."""
    return nesting.nearest(trace.kind == OPERATOR, trace.parent, events)


def parents(trace: Events, events: Ints) -> Ints:
    """The event that encloses each of these; -1 if there is none, and for -1."""
    return np.where(events >= 0, trace.parent[events], -1)


def paths_of(
    trace: Events, labels: Sequence[str | None], joint: str
) -> tuple[Ints, Callable[[int], str | None]]:
    """The path of Python functions around each event, as a number, -1 for none; and its text.

    ``labels`` are of the trace's names; functions without one are no part of a path.
    """
    number = np.array([-1 if label is None else i for i, label in enumerate(labels)], np.int64)
    label = np.where(trace.is_kind(Kind.PYTHON), number[trace.name], -1)
    path, known = nesting.paths(*trace.frames, label)

    def text(number: int) -> str | None:
        parts = []
        while number >= 0:
            number, last = known[number]
            parts.append(str(labels[last]))
        return joint.join(reversed(parts)) or None

    return path, text


def marked(trace: Events, rows: Ints) -> Bools:
    """For each event whether it is among these; the extra last entry, index -1, is false."""
    mark = np.zeros(len(trace) + 1, bool)
    mark[rows] = True
    return mark


@_once
def outermost(trace: Events) -> Ints:
    """All operators that no other operator encloses, in time order; annotations may."""
    found: Ints = _on_top(trace).nonzero()[0]
    return found


def are_outermost(trace: Events, rows: Ints) -> Bools:
    """Which of these events are `outermost`."""
    return _on_top(trace)[rows]


@_once
def outermost_named(trace: Events, *names: Name) -> Ints:
    """All operators of these names that are `outermost`, in time order."""
    rows = operators_named(trace, *names)
    return rows[_on_top(trace)[rows]]


def are_free(trace: Events, rows: Ints) -> Bools:
    """Which of these events are operators that no other encloses, nor an optimizer of torch."""
    found = are_outermost(trace, rows)
    optimizers = _optimizers(trace)
    if optimizers is not None:
        found[found] = ~nesting.below(optimizers, trace.parent, rows[found])
    return found


@_once
def _optimizers(trace: Events) -> Bools | None:
    """Annotations of optimizers, as from `marked`; None if there are none."""
    marks = events_named(trace, _OPTIMIZER)
    return marked(trace, marks) if len(marks) else None


@_once
def free_named(trace: Events, *names: Name) -> Ints:
    """All such operators of these names, in time order."""
    rows: Ints = outermost_named(trace, *names)
    optimizers = _optimizers(trace)
    if optimizers is None or not len(rows):
        return rows
    rows = rows[~optimizers[trace.parent[rows]]]  # mostly the parent is one already
    if len(rows):
        rows = rows[~nesting.below(optimizers, trace.parent, rows)]
    return rows


@_once
def _on_top(trace: Events) -> Bools:
    """For each event whether it is `outermost`; the extra last entry, index -1, is false."""
    operators, parent = are_operators(trace), trace.parent
    found = operators.copy()
    found[:-1] &= ~operators[parent]
    rows = found.nonzero()[0]  # mostly the parent is one already
    found[rows[nesting.below(operators, parent, rows)]] = False
    return found


def has_frames(trace: Events) -> bool:
    """Whether the trace has Python functions."""
    return trace.has(Kind.PYTHON)


# ---- The operators that the user's code called directly, thread by thread.

#: A step of the autograd engine, with the node that it runs; before torch 1.9 only the node.
BACKWARD = r"autograd::engine::evaluate_function: |torch::autograd::\w+$|\w+Backward\d*$"
_ENGINE = Names(BACKWARD)
#: torch's annotation around a fetch of a DataLoader, with workers or without.
FETCH = "enumerate(DataLoader)#"
#: torch.compile at work: it runs operators on fake tensors.
COMPILING = Names(r"dynamo$|entire_(frame|backward)_compile|.*\(dynamo_timed\)")
#: How ``torch.autograd.gradcheck`` takes a difference, after it has restored an element.
_DIFFERENCE = [f"aten::{name}" for name in ("clone", "copy_", "sub", "div", "detach", "reshape")]


@once_per_trace
def calls(trace: Events) -> Ints:
    """Operators that the user's code called, thread by thread, each in time order.

    Annotations may enclose them. Without what runs while torch compiles; the autograd engine's
    steps are included.
    """
    rows = outermost(trace)
    rows = rows[~compiled(trace, rows)]
    return rows[np.argsort(trace.thread[rows], kind="stable")]


def compiled(trace: Events, rows: Ints) -> Bools:
    """Which of these events happened while torch compiled something."""

    def compiles(events: Ints) -> Bools:
        annotation: Bools = trace.kind[events] == ANNOTATION
        return annotation & are_named(trace, events, COMPILING)

    if not compiles(events_named(trace, COMPILING)).any():
        return np.zeros(len(rows), bool)
    return within(trace, rows, compiles)


def engine_steps(trace: Events) -> Ints:
    """The autograd engine's steps, in time order."""
    return trace.once(operators_named, _ENGINE)


def engine_steps_between(trace: Events, start: int, stop: int) -> Ints:
    """Those of the autograd engine's steps from one event up to another one, in time order."""
    return operators_between(trace, start, stop, _ENGINE)


def are_engine_steps(trace: Events, operators: Ints) -> Bools:
    """Which of these operators are steps of the autograd engine."""
    return are_named(trace, operators, _ENGINE)


def are_gradchecked(trace: Events, rows: Ints) -> Bools:
    """Which of these calls are on elements of a type that ``torch.autograd.gradcheck`` checks here.

    It calls the checked function repeatedly, changes elements one by one in between, and fills its
    tables row by row: this is torch's own code, and intended.
    """
    checked = _gradchecked(trace)
    if not checked or not len(rows):
        return np.zeros(len(rows), bool)
    return np.array([one in checked for one in _elements(trace, rows)])


@once_per_trace
def _gradchecked(trace: Events) -> set[str]:
    """The types of elements that gradcheck takes differences of."""
    if not all(count(trace, name) for name in _DIFFERENCE):
        return set()
    rows = calls(trace)
    found = np.ones(max(len(rows) - len(_DIFFERENCE) + 1, 0), bool)
    for away, name in enumerate(_DIFFERENCE):
        found &= are_named(trace, rows[away : away + len(found)], name)
    return set(_elements(trace, rows[np.flatnonzero(found) + _DIFFERENCE.index("aten::sub")]))


def _elements(trace: Events, rows: Ints) -> list[str]:
    """The first operand's element type, for a complex one that of its parts; empty if unknown."""
    types = [decode_part(args.types) for args in trace.operands(rows)]
    return [re.sub(r"c10::complex<(\w+)>", r"\1", str(one[0])) if one else "" for one in types]


def frames_around(trace: Events, frame: re.Pattern[str], rows: Ints) -> Ints:
    """The innermost Python function with such a name around each of these events, or -1."""
    if len(rows) and has_frames(trace):
        marked = trace.is_kind(Kind.PYTHON) & trace.names_where(frame.search)
        if marked.any():
            above = trace.frames[0]
            return nesting.nearest(marked, above, above[rows])
    return np.full(len(rows), -1, np.int64)


# ---- Map operators of the backward pass to their forward operators.

#: The engine's annotation around a node of the graph, and the nodes themselves in older traces.
ENGINE = "autograd::engine::evaluate_function: "
_NODE = late(rf"{ENGINE}|\w*Backward\d*$")


def forward_of(trace: Events, events: Ints) -> Ints:
    """For events of a backward pass, the forward operator that made their node of the graph.

    -1 for other events, for the accumulation of gradients, and if the trace does not tell. Both
    have the same ``Sequence number``. Operators before the one that makes a node have the number of
    that node too, so it is the last one with its number before the backward pass. If a reentrant
    checkpoint runs forward and backward again, both are within its own node.
    """
    out = np.full(len(events), -1, np.int64)
    node = node_around(trace, events)
    back = np.flatnonzero(node >= 0)
    if not len(back):
        return out
    nodes, at = np.unique(node[back], return_inverse=True)
    wanted = _sequence(trace, nodes)[0]
    inner = np.flatnonzero(wanted < 0)  # only the engine's annotation may have its number
    outer = node_around(trace, trace.parent[nodes[inner]])
    inner, outer = inner[outer >= 0], outer[outer >= 0]
    wanted[inner] = _sequence(trace, outer)[0]
    again = _recomputed(trace, nodes, wanted)
    rows, sequence = _forward_numbers(trace)
    if not len(rows):
        return out
    # Sorted by number, then by time: the last one that does not start after the node.
    key = np.searchsorted(sequence, wanted, side="left")
    end = np.searchsorted(sequence, wanted, side="right")
    found = np.full(len(nodes), -1, np.int64)
    for i in np.flatnonzero((wanted >= 0) & (end > key)).tolist():
        before = int(np.searchsorted(rows[key[i] : end[i]], nodes[i]))
        found[i] = rows[key[i] + before - 1] if before else -1
    out[back] = np.where(again >= 0, again, found)[at]
    return out


def _recomputed(trace: Events, nodes: Ints, wanted: Ints) -> Ints:
    """The operators that made these nodes, if another node contains both; -1 for none."""
    found = np.full(len(nodes), -1, np.int64)
    mark = trace.parent[nodes]
    own = (mark >= 0) & _is_mark(trace)[mark]
    around = node_around(trace, trace.parent[np.where(own, mark, nodes)])
    for holder in distinct(around[around >= 0]).tolist():
        end = np.searchsorted(trace.ts, trace.ts[holder] + trace.dur[holder])
        rows = np.arange(holder + 1, end)
        rows = rows[trace.kind[rows] == Kind.OP]
        rows = rows[node_around(trace, rows) == holder]
        number, backward = _sequence(trace, rows)
        for i in np.flatnonzero(around == holder).tolist():
            before = rows[(number == wanted[i]) & ~backward & (rows < nodes[i])]
            if wanted[i] >= 0 and len(before):
                found[i] = before[-1]
    return found


@once_per_trace
def _is_mark(trace: Events) -> Bools:
    return trace.names_where(re.compile(re.escape(ENGINE)).match)


@once_per_trace
def _is_node(trace: Events) -> Bools:
    return trace.is_kind(Kind.OP) & trace.names_where(_NODE.match)


def node_around(trace: Events, events: Ints) -> Ints:
    """The innermost node of the graph around each event, or the event itself; -1 for none."""
    return nesting.nearest(_is_node(trace), trace.parent, events)


def _sequence(trace: Events, rows: Ints) -> tuple[Ints, Bools]:
    """Sequence numbers of operators, -1 for none, and which of them belong to a backward pass."""
    args = decode(AutogradArgs, trace.args[rows])
    number = np.fromiter((a.sequence for a in args), np.int64, len(args))
    return number, np.fromiter((a.forward_thread > 0 for a in args), bool, len(args))


@once_per_trace
def _forward_numbers(trace: Events) -> tuple[Ints, Ints]:
    """Forward operators that have a sequence number, by number and then by time."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & ~_is_node(trace))
    ops = ops[~nesting.below(_is_node(trace), trace.parent, ops)]
    number, backward = _sequence(trace, ops)
    known = (number >= 0) & ~backward
    ops, number = ops[known], number[known]
    order = np.lexsort((ops, number))
    return ops[order], number[order]


# ---- Which operators a user's code called, and in which step.

#: Annotations around torch's own code: loading a batch, and the optimizers.
_LIBRARY = Names(r"enumerate\(DataLoader\)|Optimizer\.")
_STEP_ENDS = Names(r"Optimizer\.step#")
_STEP_BEGINS = Names(rf"{STEP.pattern}|enumerate\(DataLoader\)#")
_BACKWARD = Names(r"(?s:.*)Backward\d+$")
_CLOSED = Names(r"(?s:.*)(::|Backward\d+$)")
_AUTOGRAD = Names(r"autograd::")
_CALLED = Names(r"(?!autograd::|torch::)(?s:.*)::")


def called(trace: Events) -> Bools:
    """Operators called by code outside torch: not nested in an operator, nor in a backward.

    Operators in a `torch.autograd.Function`, a compiled region or an annotation count as called
    from outside; those in a DataLoader's fetch or an optimizer's step do not.
    """
    return once_nested(trace, _called)


def _called(trace: Events) -> Bools:
    found = np.zeros(len(trace), bool)
    rows = operators_named(trace, _CALLED)
    found[rows] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows)
    return found


def are_called(trace: Events, rows: Ints) -> Bools:
    """Which of these events `called` marks."""
    found = are_named(trace, rows, _CALLED)
    found &= trace.kind[rows] == OPERATOR
    found[found] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows[found])
    return found


def _closed(trace: Events) -> Bools:
    """For each event, whether nothing nested in it was called by code outside torch; the extra last
    entry, index -1, is false.
    """
    closed = operators_marked(trace, _CLOSED)
    closed[:-1] |= named(trace, _LIBRARY)
    return closed


def are_closed(trace: Events, rows: Ints) -> Bools:
    """Which of these events contain nothing called by code outside torch."""
    return once_nested(trace, _closed)[rows]


def in_backward(trace: Events, rows: Ints) -> Bools:
    """Which of these events belong to an autograd node, an optimizer, or a DataLoader."""

    def is_own(events: Ints) -> Bools:
        node = are_named(trace, events, _AUTOGRAD, _BACKWARD)
        node &= trace.kind[events] == OPERATOR
        return node | are_named(trace, events, _LIBRARY)

    return within(trace, rows, is_own)


def passes(trace: Events) -> Ints:
    """When nodes of backward passes began, in order."""
    return np.sort(trace.ts[marks_named(trace, _AUTOGRAD)])


def step_of(trace: Events, rows: Ints) -> Ints:
    """The number of the step in which each event begins.

    A step begins with torch's annotation of one, or with a fetch of a DataLoader, and ends with an
    optimizer's step; without any of these everything is one step.
    """
    return np.searchsorted(trace.once(step_bounds), trace.ts[rows], side="right")


def step_bounds(trace: Events) -> Ints:
    """When these steps begin or end, in order; empty if everything is one step."""
    begins, ends = marks_named(trace, _STEP_BEGINS), marks_named(trace, _STEP_ENDS)
    return np.sort(np.concatenate([trace.ts[begins], trace.ts[ends] + trace.dur[ends]]))


# ---- Nodes of autograd graphs: which operators record them, and which ones a backward pass runs.
#
# An operator's sequence number is the one that its thread's next node will have. torch records it
# whenever grad mode is on, whether or not the operator makes a node, so an operator has made
# nodes if the next operator's number is larger.

#: A function compiled by torch.compile, recorded as an operator around what it calls.
_REGION: Final = Names(r"Torch-Compiled Region")
#: A step of the engine; each, except for accumulating gradients, runs an operator's node.
_RUNS: Final = Names(r"autograd::engine::evaluate_function: ")
_GRADIENT: Final = Names(r".*::AccumulateGrad$")


class Recorded(NamedTuple):
    """Calls that recorded nodes, with the numbers of their first node and of the next one."""

    rows: Ints
    first: Ints
    after: Ints

    def where(self, chosen: Bools | Ints) -> Recorded:
        """Select some of them."""
        return Recorded(self.rows[chosen], self.first[chosen], self.after[chosen])


def has_regions(trace: Events) -> bool:
    """Whether compiled code ran, whose operators are nested in others but count as called."""
    return bool(len(operators_named(trace, _REGION)))


@once_per_trace
def forward_calls(trace: Events) -> Ints:
    """Like `calls`, without the engine's steps, but with what compiled regions call."""
    rows = calls(trace)
    rows = rows[~are_engine_steps(trace, rows)]
    regions = operators_named(trace, _REGION)
    if not len(regions):
        return rows
    opened = np.zeros(len(trace), bool)
    opened[regions] = True
    operators = np.flatnonzero((trace.kind == OPERATOR) & ~opened)
    inside = operators[within(trace, operators, lambda at: opened[at])]
    inside = inside[~within(trace, inside, lambda at: (trace.kind[at] == OPERATOR) & ~opened[at])]
    inside = inside[~compiled(trace, inside)]
    rows = np.sort(np.concatenate([rows[~opened[rows]], inside]))
    return rows[np.argsort(trace.thread[rows], kind="stable")]


@once_per_trace
def recorded(trace: Events) -> Recorded:
    """All calls that recorded nodes of a graph, in time order."""
    rows = forward_calls(trace)
    first = numbers(trace, rows)
    rows, first = rows[first >= 0], first[first >= 0]
    last = np.diff(trace.thread[rows], append=-1) != 0
    after = np.append(first[1:], -1)
    for at in np.flatnonzero(last).tolist():  # the numbers of nodes before it are used up
        end = trace.ts[rows[at]] + trace.dur[rows[at]]
        inside = np.arange(rows[at], np.searchsorted(trace.ts, end))
        inside = inside[trace.thread[inside] == trace.thread[rows[at]]]
        after[at] = numbers(trace, inside[trace.kind[inside] == OPERATOR]).max(initial=-1)
    made = after > first
    # Nothing tells if the last call made one node: assume what calls of its name did before.
    name = trace.name[rows]
    alike = ~made & last & among(name, name[made])
    after[alike] = first[alike] + 1
    order = np.argsort(rows)
    return Recorded(rows, first, after).where(order[(made | alike)[order]])


def node_steps(trace: Events) -> Ints:
    """The autograd engine's steps that ran a node made by an operator."""
    rows = calls(trace)
    return rows[are_engine_steps(trace, rows) & ~are_named(trace, rows, _GRADIENT)]


def numbers(trace: Events, rows: Ints) -> Ints:
    """Sequence numbers, -1 for none."""
    # Operators that are called without a graph have none: to look for the word is quicker.
    there = np.array(trace.args[rows].containing(b"Sequence number"), bool)
    found = np.full(len(rows), -1, np.int64)
    texts = trace.args[rows[there]].tolist()
    found[there] = [args.sequence for args in decode_texts(AutogradArgs, texts)]
    return found


def all_used(trace: Events, names: Names) -> bool:
    """Whether each outermost operator with such a name has the number of a node that ran.

    A quick check that usually settles the matter in training. False settles nothing.
    """
    ran = trace.once(_ran)
    if len(ran) < 2 or has_regions(trace):
        return False
    layers = trace.args[outermost_named(trace, names)]
    return ran.issuperset([args.sequence for args in decode(AutogradArgs, layers)])


def _ran(trace: Events) -> set[int]:
    rows, args = engine_nodes(trace)
    ends = frozenset(numbers_of(trace, _GRADIENT))
    names = trace.name[rows].tolist()
    return {-1, *[one.sequence for one, name in zip(args, names, strict=True) if name not in ends]}


@once_per_trace
def engine_nodes(trace: Events) -> tuple[Ints, list[AutogradArgs]]:
    """The autograd engine's steps that run nodes, and the node that each one runs."""
    rows = operators_named(trace, _RUNS)
    return rows, decode(AutogradArgs, trace.args[rows])


def backward_of(trace: Events, calls: Ints) -> Ints:
    """The first step of the engine that ran a node of each of these calls; -1 for none.

    The other way is `forward_of`. The engine runs the nodes of a call last to first.
    """
    made = recorded(trace)
    steps, args = engine_nodes(trace)
    number = np.fromiter((one.sequence for one in args), np.int64, len(args))
    steps, number = steps[number >= 0], number[number >= 0]
    order = np.lexsort((steps, -number))  # of a call's nodes, the last one made runs first
    steps, number = steps[order], -number[order]
    mine = np.minimum(made.rows.searchsorted(calls), len(made.rows) - 1)
    found = np.full(len(calls), -1, np.int64)
    if not (len(made.rows) and len(steps)):
        return found
    ran = np.minimum(number.searchsorted(1 - made.after[mine]), len(number) - 1)
    inside = (-number[ran] >= made.first[mine]) & (-number[ran] < made.after[mine])
    known = (made.rows[mine] == calls) & inside
    found[known] = steps[ran[known]]
    return found


def are_last(trace: Events, rows: Ints) -> Bools:
    """Calls after which the trace has no other: the recording may have ended before their use."""
    last = calls(trace)
    latest: Bools = rows == last[np.argmax(trace.ts[last])]
    return latest


# ---- Backward passes: which of the autograd engine's steps belong together, and what began them.

#: ``backward`` begins with this, on the user's line: the gradient of the loss itself.
_BEGINS = Names(r"aten::ones_like$")


def pass_of(trace: Events, steps: Ints) -> Ints:
    """The number of the backward pass of each of these steps, which are in time order.

    Between two passes, the user's code calls something.
    """
    if not len(steps):
        return np.zeros(0, np.int64)
    place = np.searchsorted(np.sort(trace.ts[_others(trace)]), trace.ts[steps])
    return np.cumsum(np.diff(place, prepend=place[0]) != 0)


def begun_by(trace: Events, first: Ints) -> Ints:
    """The call with which each pass began, by its first step; that step if unknown.

    A step is placed where its node was recorded, this call where ``backward`` was called.
    """
    others = np.sort(_others(trace))
    at = np.searchsorted(others, first) - 1
    before = others[np.maximum(at, 0)]
    known = (at >= 0) & are_named(trace, before, _BEGINS)
    return np.where(known, before, first)


def _others(trace: Events) -> Ints:
    return trace.once(_calls)


def _calls(trace: Events) -> Ints:
    rows = outermost(trace)
    return rows[~are_engine_steps(trace, rows) & ~compiled(trace, rows)]
