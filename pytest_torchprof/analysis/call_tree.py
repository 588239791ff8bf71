"""Where each event belongs in a tree of modules, of Python functions, or of annotations.

A node is a path of labels from the outermost in. Labels that differ only in numbers that stand
alone are one, so that layers of one kind share a node: ``Block_3`` of a Python frame is ``Block``,
and ``layers.3`` of an annotation is ``layers.*``. An event belongs to the innermost label around
it; device work to that of its launch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.backward import forward_of
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import ALL_STEPS, MODULE, MODULE_MARK, REGION, shown_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

TreeBy = Literal["module", "stack"]
TREES: tuple[TreeBy, ...] = get_args(TreeBy)
#: What the labels are: modules, Python functions, or annotations where there are neither.
Labels = Literal["module", "function", "annotation"]

#: Lightning's annotation of a module: its class, then its name in the model. Source:
#: lightning/pytorch/profilers/pytorch.py.
_LIGHTNING: Final = late(r"\[pl\]\[module\](?:.*?: )?(.+)$")
#: Numbers that stand alone, as in ``layers.3`` and ``layer_3``; not in ``fc1`` and ``conv2d``.
_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


class CallTree(Frozen, frozen=True):
    """The nodes of a tree, parents before their children, and the node of each event.

    ``above`` is the index of the node around each, -1 for none; ``title`` its label. ``node`` is
    the innermost node around each event, -1 outside of all. ``entered`` are the events that have a
    label, and ``into`` their nodes.
    """

    labels: Labels
    above: Ints
    title: list[str]
    node: Ints
    entered: Ints
    into: Ints


def call_tree(trace: Events, by: TreeBy) -> CallTree:
    """The tree of the whole trace: of its modules, or of its Python functions.

    A trace without these has a tree of its annotations, in which what other threads do belongs to
    the annotation that is open at the time. By module, an operator of a backward pass belongs to
    the module whose forward operator it derives.
    """
    return trace.whole.once(_call_tree, by)


def _call_tree(trace: Events, by: TreeBy) -> CallTree:
    labels, kind, label_of = _labels(trace, by)
    known: dict[str, int] = {}
    members: list[set[str]] = []
    number = np.full(len(trace.names), -1, np.int64)
    rows = trace.is_kind(kind).nonzero()[0]
    for name in nesting.distinct(trace.name[rows]).tolist():
        if (found := label_of(trace.names[name])) is not None:
            merged, single = found
            number[name] = known.setdefault(merged, len(known))
            if len(members) < len(known):
                members.append(set())
            members[number[name]].add(single)
    label = np.full(len(trace), -1, np.int64)
    label[rows] = number[trace.name[rows]]
    node, nodes = nesting.paths(*trace.frames, label)
    entered = (label >= 0).nonzero()[0]
    into = node[entered]
    if labels == "annotation":
        _place_other_threads(trace, node, entered)
    _place_device(trace, node)
    if by == "module" and labels == "module":
        _place_backward(trace, node)
    # A label of one member is that member's name.
    titles = [min(one) if len(one) == 1 else name for name, one in zip(known, members, strict=True)]
    above = np.array([above for above, _ in nodes], np.int64)
    return CallTree(labels, above, [titles[last] for _, last in nodes], node, entered, into)


def _labels(
    trace: Events, by: TreeBy
) -> tuple[Labels, Kind, Callable[[str], tuple[str, str] | None]]:
    """What labels are made of: which kind of events, and (label, name if alone) of a name."""
    if by == "stack":
        if trace.has(Kind.PYTHON):
            return "function", Kind.PYTHON, _function
        return "annotation", Kind.ANNOTATION, _annotation
    for kind, label_of in (
        (Kind.ANNOTATION, _lightning),
        (Kind.PYTHON, _class),
        (Kind.ANNOTATION, _marked),
    ):
        if (trace.names_where(label_of) & trace.is_kind(kind)).any():
            return "module", kind, label_of
    return "annotation", Kind.ANNOTATION, _annotation


def _lightning(name: str) -> tuple[str, str] | None:
    found = _LIGHTNING.match(name)
    return (_NUMBER.sub("*", found[1]), found[1]) if found else None


def _class(name: str) -> tuple[str, str] | None:
    found = MODULE.match(name)
    return (found[1], found[1]) if found else None


def _marked(name: str) -> tuple[str, str] | None:
    found = name.removeprefix(MODULE_MARK)
    return (found, found) if name.startswith(MODULE_MARK) else None


def _function(name: str) -> tuple[str, str] | None:
    found = MODULE.match(name)
    text = f"nn.Module: {found[1]}" if found else name
    return text, text


def _annotation(name: str) -> tuple[str, str] | None:
    if name == REGION:
        return None
    shown = shown_name(name)
    return (shown, shown) if shown == ALL_STEPS else (_NUMBER.sub("*", shown), shown)


def _place_other_threads(trace: Events, node: Ints, entered: Ints) -> None:
    """Move what other threads do, as in a backward pass, to the annotation that is open then.

    It is that of the thread with most annotations; not if the other thread has its own.
    """
    if not len(entered):
        return
    main = np.bincount(trace.thread[entered]).argmax()
    host = (node < 0) & trace.is_kind(*HOST_KINDS) & (trace.thread != main)
    rows, events = entered[trace.thread[entered] == main], host.nonzero()[0]
    one_thread = np.zeros(len(trace), np.int32)
    end = trace.ts + trace.dur
    around = nesting.enclosing(trace.ts, end, trace.frames[0], rows, one_thread, events)
    node[events] = np.where(around >= 0, node[around], -1)


def _place_device(trace: Events, node: Ints) -> None:
    """Device work is where its launch is, memory where it was allocated or freed."""
    device = trace.device_rows
    launch = trace.launch[device]
    node[device] = np.where(launch >= 0, node[launch], -1)
    memory = trace.memory.event
    parent, depth = trace.frames
    rows = (depth >= 0).nonzero()[0]
    around = nesting.enclosing(trace.ts, trace.ts + trace.dur, parent, rows, trace.thread, memory)
    node[memory] = np.where(around >= 0, node[around], -1)


def _place_backward(trace: Events, node: Ints) -> None:
    """Move what runs in a backward pass to the module of its forward operator."""
    host = trace.is_kind(*HOST_KINDS).nonzero()[0]
    forward = forward_of(trace, host)
    there = np.where(forward >= 0, node[forward], -1)
    moved = np.full(len(trace) + 1, -1, np.int64)
    moved[host] = there
    for events, around in (
        (host, host),
        (trace.device_rows, trace.launch[trace.device_rows]),
        (trace.memory.event, trace.enclosing(trace.memory.event)),
    ):
        to = moved[around]
        node[events[to >= 0]] = to[to >= 0]
