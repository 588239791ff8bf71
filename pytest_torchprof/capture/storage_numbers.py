"""The tensors that an operator took and made, identified by the profiler's storage numbers.

They are in what the profiler keeps in memory, not in the file that it writes, and creating them
takes as long as that file. So only captures that need them keep them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.cached import cached
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

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """What each argument is, for operators given by their starts (ns) and names.

        A number for a tensor, numbers for a list of tensors, -1 for anything else; empty for an
        operator that is not found.
        """
        found = self._found(starts, names)
        return [() if one is None else tuple(map(_taken, one.typed[1].inputs)) for one in found]

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        """The numbers of the tensors whose memory was allocated within each operator, and kept."""
        found = self._found(starts, names)
        return [frozenset() if one is None else self._within(one) for one in found]

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """The address of each operator's first argument, -1 if that is not a tensor."""
        found = self._found(starts, names)
        return [_NONE if one is None else _object(one.typed[1].inputs) for one in found]

    def addresses(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """Where the memory of each operator's first argument begins, -1 if that is no tensor."""
        found = self._found(starts, names)
        return [_NONE if one is None else _address(one.typed[1].inputs) for one in found]

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        """The list of tensors that each operator's first argument is, None if it is none."""
        found = self._found(starts, names)
        return [None if one is None else _listed(one.typed[1].inputs) for one in found]

    def _found(self, starts: Iterable[int], names: Iterable[str]) -> Iterator[Any]:
        events = self._indexed
        for start, name in zip(starts, names, strict=True):
            yield next(
                (
                    one
                    for one in events.get(int(start) + self._base_ns, ())
                    if one.name == name and hasattr(one.typed[1], "inputs")
                ),
                None,
            )

    def _within(self, event: Any) -> frozenset[int]:
        begin = bisect_left(self._starts, event.start_time_ns)
        end = bisect_right(self._starts, event.end_time_ns, begin)
        changes = [
            (one.start_tid, one.typed[1])
            for start in self._starts[begin:end]
            for one in self._indexed[start]
        ]
        kept, freed = set[int](), set[int]()
        for thread, change in changes:
            # Without an id nothing took it. A number has one allocation, and one release.
            known = thread == event.start_tid and getattr(change, "alloc_size", 0)
            if known and change.id is not None:
                (kept if change.alloc_size > 0 else freed).add(int(change.allocation_id))
        return frozenset(kept - freed)

    @cached
    def _indexed(self) -> dict[int, list[Any]]:
        """The events of the profiler's tree by start, an outer one before those below it.

        What is below an event need not run within it. Torch puts the thread of backward passes
        below what is open in the forward one when the first pass begins, and keeps it there. That
        may be what a region runs on the device. When it ends, torch ends an operator that began
        meanwhile, too. Source: build_tree in torch/csrc/profiler/collection.cpp.
        """
        events = dict[int, list[Any]]()
        todo = list(self._results.experimental_event_tree())
        while todo:
            event = todo.pop()
            # Each attribute of an event costs half a microsecond or more, so no other one is read.
            events.setdefault(event.start_time_ns, []).append(event)
            todo += event.children
        return events

    @cached
    def _starts(self) -> list[int]:
        return sorted(self._indexed)


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
