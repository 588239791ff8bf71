"""Key averages as a tree of modules, Python functions, or annotations, rolled up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.call_tree import CallTree, TreeBy, call_tree
from pytest_torchprof.analysis.uncounted_flops import uncounted_events
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.work.counting import has_shapes, op_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

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


def tree_rows(trace: Events, by: TreeBy = "module", depth: int | None = None) -> list[TreeRow]:
    """The tree of the selected part: each node before its children, the largest share first.

    Nodes in which nothing ran are left out. ``depth``: deeper nodes are part of those at this
    depth. Own numbers of all rows add up to the total.
    """
    return trace.once(_tree_rows, by, depth)


def _tree_rows(trace: Events, by: TreeBy, depth: int | None) -> list[TreeRow]:
    tree = call_tree(trace, by)
    levels = _levels(tree.above)
    target = np.arange(len(tree.above) + 1)  # the last is outside of all
    if depth is not None:
        for level in levels[depth:]:
            target[level] = target[tree.above[level]]
    own = {name: _folded(values, target) for name, values in _own(trace, tree).items()}
    total = {name: _rolled_up(values, tree.above, levels) for name, values in own.items()}
    shown = np.append((total["events"][:-1] > 0) & (target[:-1] == np.arange(len(tree.above))),
                      own["events"][-1] > 0)  # fmt: skip
    device = bool(trace.selection[trace.device_rows].any())
    key = "cuda_ns" if device else "cpu_ns"
    whole = int(own[key].sum())
    unknown = _unknown(trace, device=device)
    count, calls = _entered(trace, tree)
    order = _in_order(tree.above, np.flatnonzero(shown).tolist(), total[key], total["cpu_ns"])
    deep = np.zeros(len(tree.above) + 1, np.int64)
    for at, level in enumerate(levels):
        deep[level] = at + 1
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


def _levels(above: Ints) -> list[Ints]:
    """The nodes at depth 1, at depth 2, …"""
    depth = np.zeros(len(above), np.int64)
    level = np.flatnonzero(above < 0)
    found = []
    left = np.flatnonzero(above >= 0)
    while len(level):
        found.append(level)
        depth[level] = len(found)
        inside = depth[above[left]] == len(found)
        level, left = left[inside], left[~inside]
    return found


def _own(trace: Events, tree: CallTree) -> dict[str, Ints]:
    """Sums of each node without its children, by column; the last entry is outside of all."""
    size = len(tree.above) + 1
    node = np.where(tree.node < 0, size - 1, tree.node)
    host = (trace.selection & trace.is_kind(*HOST_KINDS)).nonzero()[0]
    device = trace.device_rows[trace.selection[trace.device_rows]]
    kernels = device[trace.kind[device] == Kind.KERNEL]

    def total(events: Ints, values: Ints | int = 1) -> Ints:
        out = np.zeros(size, np.int64)
        np.add.at(out, node[events], values)
        return out

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


def _folded(values: Ints, target: Ints) -> Ints:
    out = np.zeros(len(values), np.int64)
    np.add.at(out, target, values)
    return out


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
