"""What called operators take: scores of attention, or factors of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace.arguments import decode_list

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Bools, Ints

#: The types of scores.
FLOATS: Final = frozenset({"float", "double", "c10::Half", "c10::BFloat16"})


class Kind(NamedTuple):
    """The operands of calls that are alike: the shapes of all, and of those of floating point."""

    dims: list[Any]
    floats: list[tuple[int, ...]]

    def takes(self, elements: int, keys: int) -> bool:
        """Whether an operand has so many numbers, and as many along its last dimension as there are
        keys, or more than three dimensions.
        """
        return any(
            prod(one) == elements and (one[-1] == keys or len(one) > 3) for one in self.floats
        )

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether an operand has as many numbers, and the same last two dimensions in any order."""
        last = sorted(shape[-2:])
        return any(prod(one) == prod(shape) and sorted(one[-2:]) == last for one in self.floats)

    def scales(self, elements: int, keys: int) -> bool:
        """Whether factors of so many scores are numbers, or the same for all keys."""
        tensors = [_sizes(one) for one in self.dims[:2]]
        own = next((at for at, one in enumerate(tensors) if one and prod(one) == elements), -1)
        if own < 0:
            return True
        axes = size = 0
        while size < keys and axes < len(tensors[own]):
            axes += 1
            size = prod(tensors[own][-axes:])
        return all(prod(one[-axes:]) == 1 for at, one in enumerate(tensors) if at != own)

    def divides_by(self, elements: int) -> bool:
        """Whether so many scores are divisors."""
        first, *others = [prod(_sizes(one)) for one in self.dims[:2]] or [elements]
        return first != elements and elements in others

    def makes(self, elements: int) -> bool:
        """Whether two matrices, or batches of them, have a product with so many elements."""
        # The first operand of `baddbmm` is added.
        dims = self.dims[1:] if len(self.dims) > 2 else self.dims
        try:
            (*batch, m, _), (*others, _, n) = dims[:2]
            return int(max(prod(batch), prod(others)) * m * n) == elements
        except (TypeError, ValueError):
            return False


def kind_of(args: Any) -> Kind:
    """The same of one call's recorded operands."""
    dims, floats = decode_list(args.dims), list[tuple[int, ...]]()
    for size, dtype in zip(dims, decode_list(args.types), strict=False):
        some = isinstance(size, list) and bool(size) and isinstance(size[0], list)
        if some or dtype in FLOATS:
            floats += filter(None, map(_sizes, size if some else [size]))
    return Kind(dims, floats)


def _sizes(one: Any) -> tuple[int, ...]:
    """The shape of a tensor; empty for a number, and for anything else."""
    known = isinstance(one, list) and all(type(size) is int for size in one)
    return tuple(one) if known else ()


class Called(NamedTuple):
    """Called operators of a thread; the number of each one's kind, -1 for a view."""

    rows: Ints
    kind: Ints
    kinds: list[Kind]

    def where(self, rows: Ints, holds: Callable[[Kind], bool]) -> Bools:
        """For which of these operators it holds, by their position; False for views."""
        numbers = self.kind[rows].tolist()
        known = {one: one >= 0 and holds(self.kinds[one]) for one in set(numbers)}
        return np.array([known[one] for one in numbers], bool)
