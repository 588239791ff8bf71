"""A tree from the top down: each part as wide as its time, its children below it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from pytest_torchprof.core.structs import Mutable
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.html.plots.svg import drawing, element, mark, shown, text
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from pytest_torchprof.analysis.tree_rows import TreeRow

_WIDTH: Final = 960
_ROW: Final = 22
#: Narrower parts are merged.
_LEAST: Final = 4.0
#: So many parts are drawn at most, the largest; and so many levels.
MOST_PARTS: Final = 1200
MOST_LEVELS: Final = 28
#: Of a letter, on average, at the size of the labels.
_LETTER: Final = 7.2
#: A Python function as the profiler names it.
_FRAME: Final = re.compile(r".+\(\d+\): (.+)")
#: How much of all time a part itself takes, from which each shade begins.
_SHADES: Final = (0.2, 0.1, 0.05, 0.01)


class Node(Mutable):
    """A part of the tree: ``own`` and ``total`` are ms; ``names`` are several in a chain."""

    names: list[str]
    own: float
    total: float
    count: int
    below: list[Node] = msgspec.field(default_factory=list)

    @property
    def size(self) -> int:
        """How many parts the subtree has."""
        return 1 + sum(node.size for node in self.below)


def tree_of(rows: Sequence[TreeRow], *, on_device: bool, chains: bool = False) -> Node:
    """The rows, each parent before its children, below one root: by device time, or by CPU time.

    ``chains``: a part that is nothing but one child becomes one with it.
    """
    root = Node([], 0.0, 0.0, 0)
    path = [root]
    for row in rows:
        own, total = (row.self_cuda_ms, row.cuda_ms) if on_device else (row.self_cpu_ms, row.cpu_ms)
        node = Node([row.name], own or 0.0, total or 0.0, row.count)
        del path[row.depth :]
        path[-1].below.append(node)
        path.append(node)
    root.total = sum(node.total for node in root.below)
    if chains:
        root.below = [_chained(node) for node in root.below]
    return root


def _chained(node: Node) -> Node:
    while len(node.below) == 1 and not node.own:
        (child,) = node.below
        node = Node([*node.names, *child.names], child.own, child.total, child.count, child.below)
    node.below = [_chained(child) for child in node.below]
    return node


class _Box(Mutable):
    """Where a part stands; without a node, it is ``merged`` siblings."""

    x: float
    level: int
    width: float
    total: float
    node: Node | None
    merged: int = 0


def icicle(name: str, root: Node, label: str, what: str) -> Markup:
    """The plot; ``what`` is what the time is, such as ``device time``."""
    boxes = list(_boxes(root))
    deepest = max((box.level for box in boxes), default=0)
    parts = [_whole(root, what)]
    parts += [_part(box, root.total) for box in boxes]
    return drawing(name, _WIDTH, (deepest + 1) * _ROW, label, *parts, class_="icicle roomy")


def _boxes(root: Node) -> Iterator[_Box]:
    """The parts that are wide enough, and the rest of each row of siblings as one."""
    if not root.total:
        return
    sizes = sorted(_totals(root), reverse=True)
    least = max(root.total * _LEAST / _WIDTH, *sizes[MOST_PARTS : MOST_PARTS + 1], 0.0)
    stack = [(root, 0.0, 1)]
    while stack:
        parent, x, level = stack.pop()
        small, rest = 0, 0.0
        for child in parent.below:
            width = _WIDTH * child.total / root.total
            if child.total >= least:
                yield _Box(x, level, width, child.total, child)
                if level < MOST_LEVELS:
                    stack.append((child, x, level + 1))
                x += width
            else:
                small, rest = small + 1, rest + child.total
        if rest > 0:
            yield _Box(x, level, _WIDTH * rest / root.total, rest, None, small)


def _totals(root: Node) -> Iterator[float]:
    stack = [*root.below]
    while stack:
        node = stack.pop()
        yield node.total
        stack += node.below


def _whole(root: Node, what: str) -> Markup:
    words = f"{what}: {format_quantity(root.total, 'ms')}"
    box = element("rect", class_="h-root", x=0, y=0, width=_WIDTH, height=_ROW - 1)
    return mark(box, text(6, 15, words), title=words, value=root.total)


def _part(box: _Box, whole: float) -> Markup:
    top = box.level * _ROW
    share, time = cell("share", box.total / whole), format_quantity(box.total, "ms")
    if box.node is None:
        name, title, shade = f"{box.merged} more", f"{plural(box.merged, 'smaller part')}", "h-more"
    else:
        node = box.node
        times = f" ×{node.count}" if node.count > 1 else ""
        name = f"{node.names[-1]}{times}"
        title = " > ".join(shown(one, 120) for one in node.names[-4:])
        title = f"… > {title}{times}" if len(node.names) > 4 else f"{title}{times}"
        if node.own != node.total:
            time += f" ({format_quantity(node.own, 'ms')} itself)"
        if box.level == MOST_LEVELS and node.below:
            title += f"; {plural(node.size - 1, 'part')} below it are not drawn"
        shade = f"h-{sum(node.own / whole >= least for least in _SHADES)}"
    width = max(box.width - 1, 0.5)
    shapes = [element("rect", class_=shade, x=box.x, y=top, width=width, height=_ROW - 1)]
    letters = int((box.width - 10) / _LETTER)
    if letters >= 3:
        shapes.append(text(box.x + 5, top + 15, _label(name, letters)))
    return mark(*shapes, title=f"{title}: {time}, {share}", value=box.total)


def _label(name: str, letters: int) -> str:
    """What fits: of a Python function that does not, its name alone."""
    found = _FRAME.fullmatch(name) if len(name) > letters else None
    return shown(found[1] if found else name, letters)
