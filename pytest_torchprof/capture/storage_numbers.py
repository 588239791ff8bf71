"""The tensors that an operator took and made, identified by the profiler's storage numbers.

They are in what the profiler keeps in memory, not in the file that it writes, and creating them
takes as long as that file. So only captures that need them keep them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pytest_torchprof.trace.tensors import ListedTensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_torchprof.trace.tensors import Taken

#: The number for something that is not a tensor, or is unknown.
_NONE = -1


class StorageNumbers:
    """The numbers of the tensors of a capture's operators; decoded on request.

    Views of a tensor have its number, and no later tensor reuses it. See `events.Tensors`.
    ``base_ns`` is the offset from the trace's clock to the profiler's.
    """

    def __init__(self, results: Any, base_ns: int) -> None:
        self._results = results
        self._base_ns = base_ns
        self._threads: list[_Level] | None = None

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """What each argument is, for operators given by their starts (ns) and names.

        A number for a tensor, numbers for a list of tensors, -1 for anything else; empty for an
        operator that is not found.
        """
        found = self._found(starts, names)
        return [() if n is None else tuple(map(_taken, n.event.typed[1].inputs)) for n in found]

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        """The numbers of the tensors whose memory was allocated within each operator, and kept."""
        found = self._found(starts, names)
        return [frozenset() if node is None else frozenset(_made(node.event)) for node in found]

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """The address of each operator's first argument, -1 if that is not a tensor."""
        found = self._found(starts, names)
        return [_NONE if node is None else _object(node.event.typed[1].inputs) for node in found]

    def addresses(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """Where the memory of each operator's first argument begins, -1 if that is no tensor."""
        found = self._found(starts, names)
        return [_NONE if node is None else _address(node.event.typed[1].inputs) for node in found]

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        """The list of tensors that each operator's first argument is, None if it is none."""
        found = self._found(starts, names)
        return [None if node is None else _listed(node.event.typed[1].inputs) for node in found]

    def _found(self, starts: Iterable[int], names: Iterable[str]) -> Iterator[_Node | None]:
        if self._threads is None:
            self._threads = _levels(self._results.experimental_event_tree())
        for start, name in zip(starts, names, strict=True):
            at = int(start) + self._base_ns
            nodes = (level.find(at, name) for level in self._threads)
            yield next((node for node in nodes if node is not None), None)


class _Node:
    """An event of the profiler's tree; its children are read on first use."""

    __slots__ = ("_below", "event")

    def __init__(self, event: Any) -> None:
        self.event = event
        self._below: _Level | None = None

    @property
    def below(self) -> _Level:
        if self._below is None:
            self._below = _Level(self.event.children)
        return self._below


class _Level:
    """Sibling events, by their starts.

    They may overlap: torch puts a backward pass's thread below the region of the forward one, and
    what the device ran below the region that launched it.
    """

    __slots__ = ("_ends", "_nodes", "_starts")

    def __init__(self, events: Iterable[Any]) -> None:
        self._nodes = sorted(
            (_Node(event) for event in events), key=lambda node: node.event.start_time_ns
        )
        self._starts = [node.event.start_time_ns for node in self._nodes]
        #: The latest end of each node and of all before it.
        self._ends = list(accumulate((node.event.end_time_ns for node in self._nodes), max))

    def find(self, start: int, name: str) -> _Node | None:
        """The operator with this name and start, here or below."""
        at = bisect_right(self._starts, start) - 1
        while at >= 0 and self._ends[at] >= start:
            node = self._nodes[at]
            event = node.event
            if self._starts[at] == start and event.name == name and _is_operator(event):
                return node
            if event.end_time_ns >= start and (below := node.below.find(start, name)) is not None:
                return below
            at -= 1
        return None


def _levels(roots: Iterable[Any]) -> list[_Level]:
    threads: dict[int, list[Any]] = {}
    for event in roots:
        threads.setdefault(event.start_tid, []).append(event)
    return [_Level(events) for events in threads.values()]


def _is_operator(event: Any) -> bool:
    return hasattr(event.typed[1], "inputs")


def _taken(argument: Any) -> Taken:
    if isinstance(argument, list):
        return tuple(_number(one) for one in argument)
    return _number(argument)


def _number(argument: Any) -> int:
    # Not its ``id``: two tensors share it if their Python objects had the same address.
    number = getattr(argument, "allocation_id", None)
    # Tensors wrapped by torch.func have no memory of their own, and share one number.
    return _NONE if number is None or not argument.storage_data_ptr else int(number)


def _object(arguments: Any) -> int:
    return getattr(arguments[0], "impl_ptr", _NONE) if arguments else _NONE


def _address(arguments: Any) -> int:
    return (getattr(arguments[0], "storage_data_ptr", None) or _NONE) if arguments else _NONE


def _listed(arguments: Any) -> ListedTensors | None:
    one = arguments[0] if arguments else None
    if not isinstance(one, list) or not one:
        return None
    shapes = tuple(tuple(tensor.sizes) for tensor in one)
    return ListedTensors(shapes, max(tensor.dtype.itemsize for tensor in one))


def _made(event: Any) -> set[int]:
    made: set[int] = set()
    freed: set[int] = set()
    todo = [event]
    while todo:
        for child in todo.pop().children:
            fields = child.typed[1]
            if hasattr(fields, "alloc_size"):
                if fields.id is not None:  # else nothing took it
                    # A number has one allocation, and one release.
                    (made if fields.alloc_size > 0 else freed).add(int(fields.allocation_id))
            else:
                todo.append(child)
    return made - freed
