"""Key averages: operators grouped by name, shape, place, or as a tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import numpy as np

from pytest_torchprof.analysis.attribution import callers_of
from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.memory import ACCUMULATE, usage
from pytest_torchprof.analysis.uncounted import uncounted_events, uncounted_operators
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen, Mutable, cached
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    ALL_STEPS,
    DEVICE_KINDS,
    HOST_KINDS,
    MODULE,
    MODULE_MARK,
    REGION,
    Kind,
    once_of_whole,
    once_per_trace,
    shown_name,
)
from pytest_torchprof.trace.steps import selects_by_time
from pytest_torchprof.trace.tree import forward_of, paths_of
from pytest_torchprof.work.counting import computing, has_shapes, op_flops, unknown_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Totals of events by name or another key, for tables, baselines and diffs.

#: Keys up to this many times the number of events are grouped by counting, not sorting.
_SPARSE = 8


class Groups:
    """Events by key: `keys` are distinct and ascending, and totals have an entry for each.

    The totals are in ns, FLOPs and calls, as int64.
    """

    def __init__(self, trace: Events, events: Ints, key: Ints) -> None:
        self.trace, self.events = trace, events
        if len(key) and int(key.max()) < _SPARSE * len(key) + 1024:
            there = np.bincount(key)
            self.keys: Ints = there.nonzero()[0]
            self.calls: Ints = there[self.keys]
            number = np.empty(len(there), np.int64)
            number[self.keys] = np.arange(len(self.keys))
            self.at: Ints = number[key]
        else:
            self.keys, self.at = np.unique(key, return_inverse=True)
            self.calls = np.bincount(self.at, minlength=len(self.keys))

    def total(self, values: Ints) -> Ints:
        """The sum of a value for each event, by group."""
        out = np.zeros(len(self.keys), np.int64)
        if values.any():
            np.add.at(out, self.at, values)
        return out

    @cached
    def outermost(self) -> Bools:
        """Which host events are not nested in another of their group, which includes them."""
        return ~inside_itself(self.trace, self.events, self.at)

    @property
    def self_cpu_ns(self) -> Ints:
        """Host time without nested events."""
        return self.total(self.trace.self_ns[self.events])

    @property
    def cpu_ns(self) -> Ints:
        """Host time with nested events, counting those of the same group once."""
        return self.total(np.where(self.outermost, self.trace.dur[self.events], 0))

    @property
    def cuda_ns(self) -> Ints:
        """Device time of what was launched inside, counting events of the same group once."""
        launched = self.trace.once(launched_ns)
        return self.total(np.where(self.outermost, launched[self.events], 0))

    @property
    def flops(self) -> Ints:
        """FLOPs of operators."""
        return self.total(op_flops(self.trace)[self.events])


def inside_itself(trace: Events, events: Ints, group: Ints) -> Bools:
    """Which of these host events run inside another of their group."""
    groups, parent = np.full(len(trace), -1, np.int64), trace.parent
    groups[events] = group
    found = np.zeros(len(events), bool)
    at = parent[events]
    todo = (at >= 0).nonzero()[0]
    at, own = at[todo], group[todo]
    while len(todo):
        same = groups[at] == own
        found[todo[same]] = True
        at = parent[at]
        left = ((at >= 0) & ~same).nonzero()[0]
        at = at[left]
        own = own[left]
        todo = todo[left]
    return found


# ---- Operators by name: how often, how long, how many FLOPs and bytes.


class OpRow(Mutable):
    """One operator's share of a trace; ``self_`` excludes operators nested in it."""

    name: str
    calls: int = 0
    #: Of these, those that read or write data themselves, see `work.counting.computing`.
    ops: int = 0
    self_cpu_ns: int = 0
    cpu_ns: int = 0
    self_cuda_ns: int = 0
    #: None where the FLOPs of any call are unknown.
    flops: int | None = 0
    allocated_cpu_bytes: int = 0
    allocated_cuda_bytes: int = 0
    peak_cpu_bytes: int = 0
    peak_cuda_bytes: int = 0
    leaked_cpu_bytes: int = 0
    leaked_cuda_bytes: int = 0
    kernels: int = 0
    #: Calls that add a gradient to an existing one, see `ACCUMULATE`.
    accumulations: int = 0


_ADDS = frozenset({"aten::add", "aten::add_"})

NO_OPERATOR = "(no operator)"


def op_rows(trace: Events, *, timed: bool = True) -> dict[str, OpRow]:
    """A row for each operator and annotation of the selected part of the trace, by name.

    ``timed``: with host times, which are 0 otherwise.
    """
    rows: dict[str, OpRow] = {}

    def row(name: str) -> OpRow:
        if (found := rows.get(name)) is None:
            found = rows[name] = OpRow(name)
        return found

    chosen = (trace.selection & trace.is_kind(Kind.OP, Kind.ANNOTATION)).nonzero()[0]
    if len(chosen):
        _fill(trace, chosen, row, timed=timed)
    unknown = (unknown_flops(trace) | uncounted_operators(trace)).nonzero()[0]
    for name in sorted(set(trace.name[unknown].tolist())):
        row(trace.names[name]).flops = None
    if len(device := selected_on_device(trace)):
        names = [NO_OPERATOR, *trace.names]
        by_owner = Groups(trace, device, launching_operators(trace, device) + 1)
        owners = [row(names[number]) for number in by_owner.keys.tolist()]
        is_kernel = (trace.kind[device] == Kind.KERNEL).astype(np.int64)
        _set(owners, "self_cuda_ns", by_owner.total(trace.dur[device]))
        _set(owners, "kernels", by_owner.total(is_kernel))
    for where, on_device in (("cpu", False), ("cuda", True)):
        used = usage(trace, on_device=on_device)
        for what in ("allocated", "peak", "leaked"):
            by_owner = getattr(used, f"{what}_by")
            column = f"{what}_{where}_bytes"
            for owner, size in by_owner.items():
                setattr(row(owner), column, size)
    return rows


def selected_on_device(trace: Events) -> Ints:
    """Kernels, copies and memsets of the selected part."""
    device = trace.device_rows
    return device[trace.selection[device]]


def _fill(trace: Events, chosen: Ints, row: Callable[[str], OpRow], *, timed: bool) -> None:
    """Calls, host time and FLOPs of these operators and annotations, into their rows."""
    groups = Groups(trace, chosen, trace.name[chosen])
    own = [row(trace.names[name]) for name in groups.keys.tolist()]
    _set(own, "calls", groups.calls)
    _set(own, "ops", groups.total(computing(trace)[chosen].astype(np.int64)))
    if timed:
        _set(own, "self_cpu_ns", groups.self_cpu_ns)
        _set(own, "cpu_ns", groups.cpu_ns)
    _set(own, "flops", groups.flops)
    if ACCUMULATE in trace.names:
        parent = trace.parent[chosen]
        accumulates = (parent >= 0) & trace.named(ACCUMULATE)[parent]
        accumulates &= trace.names_where(_ADDS.__contains__)[chosen]
        _set(own, "accumulations", groups.total(accumulates.astype(np.int64)))


def _set(rows: list[OpRow], column: str, values: Ints) -> None:
    for row, value in zip(rows, values.tolist(), strict=True):
        setattr(row, column, value)


def kernel_totals(trace: Events) -> dict[str, tuple[int, int]]:
    """(calls, total ns) of each kernel, copy and memset of the selected part, by name."""
    if not len(device := selected_on_device(trace)):
        return {}
    by_name = Groups(trace, device, trace.name[device])
    names = [trace.names[number] for number in by_name.keys.tolist()]
    totals = zip(by_name.calls.tolist(), by_name.total(trace.dur[device]).tolist(), strict=True)
    return dict(zip(names, totals, strict=True))


def launching_operators(trace: Events, device: Ints) -> Ints:
    """Name of the innermost operator (else annotation) that launched each device event, or -1."""
    event = callers_of(trace, device)
    return np.where(event >= 0, trace.name[event], -1)


def own_device_ns(trace: Events) -> Ints:
    """The device time of what each operator, else annotation, launched itself; 0 elsewhere."""
    device = selected_on_device(trace)
    owner = callers_of(trace, device)
    return nesting.summed(owner[owner >= 0], trace.dur[device[owner >= 0]], len(trace))


def self_cpu_ns(trace: Events) -> int:
    """Self time of all host events of the selected part, except our own annotation.

    torch's "Self CPU time total" (``_build_table`` in ``torch/autograd/profiler_util.py``):
    operators, annotations and runtime calls, each without nested events.
    """
    chosen = trace.selection & trace.is_kind(*HOST_KINDS)
    return int(trace.self_ns[chosen].sum()) if chosen.any() else 0


# ---- Key averages: host events grouped by name, shapes, call stack or module.

By = Literal["name", "shape", "stack", "module"]
GROUPINGS: tuple[By, ...] = get_args(By)

#: The field of `OpStats` that a grouping fills.
FIELD_OF: dict[By, str] = {"shape": "shapes", "stack": "stack", "module": "module"}

_IS_MODULE = re.compile(MODULE.pattern.replace(r"(\w+?)_\d+", r"(\w+_\d+)"))


@dataclass(frozen=True)
class OpStats:
    """One row of key averages: an operator, annotation or runtime call, or one group of its calls.

    ``self_`` excludes nested events; bytes are allocations less frees. ``flops`` are those of the
    calls that count, 0 where none does (it computes no products, or the operator around it or those
    within it count), None where those of a call are unknown. ``cuda`` is None without an
    accelerator, bytes without ``profile_memory``. ``share`` is the part (0 to 1) of all self device
    time, or of all self CPU time without device events.
    """

    ADDS_UP: ClassVar = (
        "calls",
        "self_cpu_ms",
        "self_cuda_ms",
        "self_cpu_bytes",
        "self_cuda_bytes",
        "flops",
        "share",
    )

    name: str
    calls: int
    self_cpu_ms: float
    cpu_ms: float
    self_cuda_ms: float | None
    cuda_ms: float | None
    self_cpu_bytes: int | None
    self_cuda_bytes: int | None
    flops: int | None
    share: float | None
    #: ``Input Dims``, where grouped by shape.
    shapes: Any = None
    #: Python functions, outermost first, joined by ``;``, where grouped by stack.
    stack: str | None = None
    #: ``nn.Module`` instances, outermost first, joined by ``.``, where grouped by module.
    module: str | None = None


def op_stats(trace: Events, by: By = "name") -> list[OpStats]:
    """Rows of the selected part of a trace, the largest share first.

    Device work counts for the innermost operator around the call that launched it, memory for the
    innermost operator or annotation. What is outside of all of them is the row ``(no operator)``,
    whose ``calls`` are 0. ``ProfilerStep#7`` is shown as ``ProfilerStep*``.
    """
    chosen = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
    group, labels = _GROUPERS[by](trace, chosen)
    names, name = trace.shown_names
    groups = Groups(trace, chosen, group * len(names) + name[trace.name[chosen]])
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    own, uncounted = trace.once(own_device_ns), uncounted_events(trace)
    columns = {
        "calls": groups.calls,
        "self_cpu": groups.self_cpu_ns,
        "cpu": groups.cpu_ns,
        "self_cuda": groups.total(own[chosen]),
        "cuda": groups.cuda_ns,
        "flops": groups.flops,
        "unknown": groups.total(uncounted[chosen].astype(np.int64)),
    }
    cpu_bytes, cuda_bytes = (_net_bytes(trace, groups, on) for on in (False, True))
    unlinked = int(trace.dur[device].sum() - own[chosen].sum())
    whole = int(trace.dur[device].sum()) if len(device) else int(columns["self_cpu"].sum())
    value = {name: column.tolist() for name, column in columns.items()}
    group_of, name_of = (part.tolist() for part in np.divmod(groups.keys, max(len(names), 1)))

    def part(ns: int) -> float | None:
        return ns / whole if whole else None

    field = FIELD_OF.get(by)
    rows = [
        OpStats(
            name=names[name_of[i]],
            calls=value["calls"][i],
            self_cpu_ms=value["self_cpu"][i] / 1e6,
            cpu_ms=value["cpu"][i] / 1e6,
            self_cuda_ms=value["self_cuda"][i] / 1e6 if len(device) else None,
            cuda_ms=value["cuda"][i] / 1e6 if len(device) else None,
            self_cpu_bytes=cpu_bytes[i] if cpu_bytes else None,
            self_cuda_bytes=cuda_bytes[i] if cuda_bytes else None,
            flops=None if value["unknown"][i] else value["flops"][i],
            share=part(value["self_cuda"][i] if len(device) else value["self_cpu"][i]),
            **({field: labels(group_of[i])} if field else {}),
        )
        for i in range(len(groups.keys))
    ]
    outside = cpu_bytes[-1] if cpu_bytes else None, cuda_bytes[-1] if cuda_bytes else None
    if unlinked or any(outside):
        ms = unlinked / 1e6 if len(device) else None
        flops = None if uncounted[device].any() else 0
        rows.append(OpStats(NO_OPERATOR, 0, 0, 0, ms, ms, *outside, flops, part(unlinked)))
    return sorted(rows, key=lambda row: (-(row.share or 0), -row.self_cpu_ms, row.name))


def _net_bytes(trace: Events, groups: Groups, on_device: bool) -> list[int] | None:
    """Allocated less freed bytes by group, the last outside of all; None if not recorded."""
    memory = trace.memory.device(on_device)
    if not len(memory.bytes):
        return None
    count = len(groups.keys)
    row = np.full(len(trace), count, np.int64)
    row[groups.events] = groups.at
    outside_calls = ~trace.is_kind(Kind.RUNTIME)
    around = nesting.nearest(outside_calls, trace.parent, trace.enclosing(memory.event))
    inside = trace.selection[memory.event] & selects_by_time(trace)
    # What encloses the whole part, such as the annotation of the measured region, is not in it.
    within = (around >= 0) & trace.selection[around]
    into = np.where(within, row[around], np.where(inside, count, -1))
    total = nesting.summed(into[into >= 0], memory.bytes[into >= 0], count + 1)
    return total.tolist()  # type: ignore[no-any-return]


# -------------------------------------------------------------------- groupings

_Labels = Callable[[int], Any]


def _by_name(_trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    return np.zeros(len(events), np.int64), lambda _: None


def _by_shape(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    known: dict[bytes, int] = {}
    dims = (bytes(args.dims) for args in trace.operands(events))
    group = [known.setdefault(raw, len(known)) for raw in dims]
    raws = list(known)
    return np.array(group, np.int64), lambda i: decode_part(raws[i])


def _by_stack(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    return _by_path(trace, events, list(trace.names), ";")


def _by_module(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    matches = map(_IS_MODULE.match, trace.names)
    return _by_path(trace, events, [m[1] if m else None for m in matches], ".")


def _by_path(
    trace: Events, events: Ints, labels: Sequence[str | None], joint: str
) -> tuple[Ints, _Labels]:
    """Grouped by the labeled Python functions around them."""
    path, text = paths_of(trace, labels, joint)
    return path[events] + 1, lambda group: text(group - 1)


_GROUPERS: dict[By, Callable[[Events, Ints], tuple[Ints, _Labels]]] = {
    "name": _by_name,
    "shape": _by_shape,
    "stack": _by_stack,
    "module": _by_module,
}


# ---- Where each event belongs in a tree of modules, of Python functions, or of annotations.
#
# A node is a path of labels from the outermost in. Labels that differ only in numbers that stand
# alone are one, so that layers of one kind share a node: ``Block_3`` of a Python frame is
# ``Block``, and ``layers.3`` of an annotation is ``layers.*``. An event belongs to the innermost
# label around it; device work to that of its launch.

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


@once_of_whole
def call_tree(trace: Events, by: TreeBy) -> CallTree:
    """The tree of the whole trace: of its modules, or of its Python functions.

    A trace without these has a tree of its annotations, in which what other threads do belongs to
    the annotation that is open at the time. By module, an operator of a backward pass belongs to
    the module whose forward operator it derives.
    """
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
    around = trace.frame_around(memory)
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


# ---- Key averages as a tree of modules, Python functions, or annotations, rolled up.

#: The row of what is outside of all labels, by what the labels are.
OUTSIDE: Final = {
    "module": "(no module)",
    "function": "(no function)",
    "annotation": "(no annotation)",
}


@dataclass(frozen=True)
class TreeRow:
    """A node of a tree, see `call_tree`: its own numbers (``self_``), and those of its subtree.

    ``path`` are the labels from the outermost in, ``name`` the last one, ``depth`` their number.
    ``count`` is how many modules, functions or annotations share the node, ``calls`` how often they
    ran. CPU time is self time of operators, annotations and runtime calls; bytes are allocations
    less frees. ``flops`` are None where those of an operator or a kernel are unknown, ``cuda`` and
    ``kernels`` without device events, bytes without ``profile_memory``. ``share`` is the part (0 to
    1) of the subtree in all device time, or in all CPU time without device events.

    The row of what is outside of all labels has no path; its depth is 1, its count and calls 0.
    """

    ADDS_UP: ClassVar = (
        "self_cpu_ms",
        "self_cuda_ms",
        "self_cpu_bytes",
        "self_cuda_bytes",
        "self_flops",
        "self_kernels",
    )

    name: str
    path: list[str]
    depth: int
    count: int
    calls: int
    self_cpu_ms: float
    cpu_ms: float
    self_cuda_ms: float | None
    cuda_ms: float | None
    self_cpu_bytes: int | None
    cpu_bytes: int | None
    self_cuda_bytes: int | None
    cuda_bytes: int | None
    self_flops: int | None
    flops: int | None
    self_kernels: int | None
    kernels: int | None
    share: float | None


#: Columns that have an own number and one of the subtree.
_BOTH: Final = ("cpu_ns", "cuda_ns", "cpu_bytes", "cuda_bytes", "flops", "kernels")


@once_per_trace
def tree_rows(trace: Events, by: TreeBy = "module", depth: int | None = None) -> list[TreeRow]:
    """The tree of the selected part: each node before its children, the largest share first.

    Nodes in which nothing ran are left out. ``depth``: deeper nodes are part of those at this
    depth. Own numbers of all rows add up to the total.
    """
    tree = call_tree(trace, by)
    deep = _depths(tree.above)
    levels = [np.flatnonzero(deep == at) for at in range(1, int(deep.max()) + 1)]
    target = np.arange(len(tree.above) + 1)  # the last is outside of all
    if depth is not None:
        for level in levels[depth:]:
            target[level] = target[tree.above[level]]
    own = {
        name: nesting.summed(target, values, len(values))
        for name, values in _own(trace, tree).items()
    }
    total = {name: _rolled_up(values, tree.above, levels) for name, values in own.items()}
    shown = np.append((total["events"][:-1] > 0) & (target[:-1] == np.arange(len(tree.above))),
                      own["events"][-1] > 0)  # fmt: skip
    device = bool(trace.selection[trace.device_rows].any())
    key = "cuda_ns" if device else "cpu_ns"
    whole = int(own[key].sum())
    unknown = _unknown(trace, device=device)
    count, calls = _entered(trace, tree)
    order = _in_order(tree.above, np.flatnonzero(shown).tolist(), total[key], total["cpu_ns"])
    paths: dict[int, list[str]] = {-1: []}
    rows = []
    for node in order:
        outside = node == len(tree.above)
        if not outside:
            paths[node] = [*paths[int(tree.above[node])], tree.title[node]]
        numbers = {}
        for column in _BOTH:
            field, scale = (f"{column[:-3]}_ms", 1e6) if column.endswith("_ns") else (column, 0)
            for name, values in ((f"self_{field}", own), (field, total)):
                known = column not in unknown and not (
                    column == "flops" and values["unknown"][node]
                )
                value = int(values[column][node])
                numbers[name] = (value / scale if scale else value) if known else None
        rows.append(
            TreeRow(
                name=OUTSIDE[tree.labels] if outside else tree.title[node],
                path=[] if outside else paths[node],
                depth=1 if outside else int(deep[node]),
                count=0 if outside else int(count[node]),
                calls=0 if outside else int(calls[node]),
                share=int(total[key][node]) / whole if whole else None,
                **numbers,  # type: ignore[arg-type]
            )
        )
    return rows


def _depths(above: Ints) -> Ints:
    """How deep each node is, from 1; 0 for the last, which is outside of all."""
    depth = [0] * (len(above) + 1)
    for node, around in enumerate(above.tolist()):
        depth[node] = depth[around] + 1
    return np.array(depth, np.int64)


def _own(trace: Events, tree: CallTree) -> dict[str, Ints]:
    """Sums of each node without its children, by column; the last entry is outside of all."""
    size = len(tree.above) + 1
    node = np.where(tree.node < 0, size - 1, tree.node)
    host = (trace.selection & trace.is_kind(*HOST_KINDS)).nonzero()[0]
    device = trace.device_rows[trace.selection[trace.device_rows]]
    kernels = device[trace.kind[device] == Kind.KERNEL]

    def total(events: Ints, values: Ints | int = 1) -> Ints:
        return nesting.summed(node[events], values, size)

    columns = {
        "cpu_ns": total(host, trace.self_ns[host]),
        "cuda_ns": total(device, trace.dur[device]),
        "flops": total(host, op_flops(trace)[host]),
        "unknown": total(uncounted_events(trace).nonzero()[0]),
        "kernels": total(kernels),
    }
    events = total(host) + total(device)
    for column, on_device in (("cpu_bytes", False), ("cuda_bytes", True)):
        memory = trace.memory.device(on_device)
        inside = trace.selection[memory.event]
        columns[column] = total(memory.event[inside], memory.bytes[inside])
        events += total(memory.event[inside])
    return {**columns, "events": events}


def _rolled_up(values: Ints, above: Ints, levels: list[Ints]) -> Ints:
    """The sum of each node's subtree."""
    out = values.copy()
    for level in reversed(levels[1:]):
        np.add.at(out, above[level], out[level])
    return out


def _unknown(trace: Events, *, device: bool) -> set[str]:
    """Columns that the trace does not tell."""
    found = set() if device else {"cuda_ns", "kernels"}
    found |= set() if has_shapes(trace) else {"flops"}
    for column, on_device in (("cpu_bytes", False), ("cuda_bytes", True)):
        if not len(trace.memory.device(on_device).bytes):
            found.add(column)
    return found


def _entered(trace: Events, tree: CallTree) -> tuple[Ints, Ints]:
    """How many different events with a label share each node, and how many there are."""
    chosen = trace.selection[tree.entered]
    into, name = tree.into[chosen], trace.name[tree.entered[chosen]]
    size, width = len(tree.above), len(trace.names) + 1
    distinct = nesting.distinct(into * width + name)
    return np.bincount(distinct // width, minlength=size), np.bincount(into, minlength=size)


def _in_order(above: Ints, nodes: list[int], first: Ints, second: Ints) -> list[int]:
    """Depth first, siblings by these numbers, the largest first."""
    nodes.sort(key=lambda node: (int(first[node]), int(second[node]), -node))
    below: dict[int, list[int]] = {}
    for node in nodes:
        below.setdefault(int(above[node]) if node < len(above) else -1, []).append(node)
    out, stack = [], below.get(-1, []).copy()
    while stack:
        out.append(node := stack.pop())
        stack += below.get(node, ())
    return out
