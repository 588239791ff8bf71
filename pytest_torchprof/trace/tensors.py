"""Which tensors operators took and made, as a live capture can tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

#: Which tensor an argument is, by number; those of a list of tensors; -1 for what is none.
Taken: TypeAlias = int | tuple[int, ...]


class Tensors(Protocol):
    """Which tensors operators took and made; only a live capture knows.

    A tensor is its storage from its allocation to its end: views of it have its number, and no
    tensor made later has. Operators are named by when they start, ns on the trace's clock, and by
    their names.
    """

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """Each operator's arguments, in order; nothing for one that is not known."""

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        """The tensors that got memory within each operator, kept it, and were taken later on."""

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """What object each operator's first argument is; views are others than their tensor."""
