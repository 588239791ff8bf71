"""Which tensors operators took and made, as identified by a live capture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: The number of an argument's tensor; the numbers for a list of tensors; -1 for anything else.
Taken: TypeAlias = int | tuple[int, ...]

#: The most tensors of a list whose shapes a trace has; a longer list has none.
#: Source: TENSOR_LIST_DISPLAY_LENGTH_LIMIT in torch/csrc/profiler/util.h, 2.13.
LONGEST_LIST: Final = 30


class ListedTensors(NamedTuple):
    """A list of tensors, of any length: their shapes, and the bytes of an element of the widest."""

    shapes: tuple[tuple[int, ...], ...]
    item_bytes: int


class Tensors(Protocol):
    """Which tensors operators took and made; only a live capture knows.

    A tensor is its storage from allocation to release: views of it have its number, and no later
    tensor reuses it. Operators are identified by their starts, ns on the trace's clock, and by
    their names.
    """

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """Each operator's arguments, in order; empty for an unknown one."""

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        """The tensors whose memory was allocated within each operator, kept, and taken later."""

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """The object that each argument is, as for `taken`; views differ from their tensor."""

    def lifetimes(self) -> Mapping[int, tuple[int, int]]:
        """When each tensor's memory was allocated and released, ns on the trace's clock; -1: not
        within the trace.
        """

    def addresses(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """Where the memory of each operator's first argument begins, as memory events have it."""

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        """The list that each operator's first argument is; None if it is none, or is unknown."""


def addresses(trace: Events, events: Ints) -> list[int] | None:
    """For each of these operators, where the memory of its first argument's tensor begins.

    -1 for no tensor; None if the trace does not identify tensors.
    """
    return None if trace.tensors is None else trace.tensors.addresses(*keys_of(trace, events))


def listed(trace: Events, events: Ints) -> list[ListedTensors | None] | None:
    """For each of these operators, the list of tensors that is its first argument, of any length.

    None if the trace does not identify tensors.
    """
    return None if trace.tensors is None else trace.tensors.listed(*keys_of(trace, events))


def keys_of(trace: Events, events: Ints) -> tuple[list[int], list[str]]:
    """The keys by which `Tensors` knows these operators: start times and names."""
    names = [trace.names[number] for number in trace.name[events].tolist()]
    return trace.ts[events].tolist(), names
