"""Matrix products that ran on a device: sizes, operands, and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.tree import operators_around

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Operators that are one call of a matrix library each -> the position of their two matrices.
#: ``linear``, ``matmul`` and ``einsum`` enclose them.
PRODUCTS: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::_addmm_activation": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}


class Product(NamedTuple):
    """(batch x) M x K times (batch x) K x N: ``sizes`` are those of M, N and K.

    ``types`` are the C++ types of the two matrices. ``rows`` holds the dimensions that are
    contiguous in memory, along which a matrix library loads whole vectors, with the distances
    between the starts of the rows along them, in elements. The result is new and contiguous along
    N. In a trace without strides, a matrix may be contiguous along M or K, with unknown distances.
    """

    types: tuple[str, str]
    batch: int | None
    sizes: Mapping[str, int]
    rows: Mapping[str, frozenset[int]]

    @property
    def shapes(self) -> str:
        """In the usual notation: ``8x97x64 @ 8x64x97``."""
        batch = "" if self.batch is None else f"{self.batch}x"
        m, n, k = self.sizes.values()
        return f"{batch}{m}x{k} @ {batch}{k}x{n}"


class DeviceProducts(Frozen, frozen=True):
    """Selected product operators that launched kernels themselves, and those kernels.

    ``event`` are the operators; ``which`` gives the index of each in ``distinct``: its name and
    what it multiplies, None if unknown. ``kernel`` are all their kernels, ``at`` the position in
    ``event`` of each one's operator.
    """

    event: Ints
    which: Ints
    distinct: list[tuple[str, Product | None]]
    kernel: Ints
    at: Ints

    def __len__(self) -> int:
        return len(self.event)

    def kernel_ns(self, trace: Events) -> Ints:
        """Device time of each operator's kernels."""
        found = np.bincount(self.at, trace.dur[self.kernel], len(self))
        return found.astype(np.int64)

    def device(self, trace: Events) -> Ints:
        """Index of the device that each operator's kernels ran on, the last one if they differ."""
        found = np.full(len(self), -1, np.int64)
        found[self.at] = trace.device[self.kernel]
        return found

    def any_kernel(self, trace: Events, predicate: Callable[[str], object]) -> Bools:
        """Operators with a kernel whose name satisfies the predicate."""
        marked = names_fit(trace, self.kernel, predicate)
        return np.bincount(self.at, marked, len(self)) > 0


def device_products(trace: Events) -> DeviceProducts:
    """Matrix products of the selection that ran on a device."""
    return trace.once(_device_products)


def _device_products(trace: Events) -> DeviceProducts:
    if not any(name in PRODUCTS for name in trace.names):
        none = np.zeros(0, np.int64)
        return DeviceProducts(none, none, [], none, none)
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    call = operators_around(trace, trace.launch[kernels])
    own = names_fit(trace, call, PRODUCTS.__contains__)
    event, at = np.unique(call[own], return_inverse=True)
    return DeviceProducts(event, *_read(trace, event), kernels[own], at)


def names_fit(trace: Events, events: Ints, predicate: Callable[[str], object]) -> Bools:
    """Whether the name of each of these events satisfies the predicate; False for -1."""
    verdicts = np.fromiter(map(bool, map(predicate, trace.names)), bool, len(trace.names))
    named: Bools = verdicts[trace.name[events]] if len(verdicts) else np.zeros(len(events), bool)
    return (events >= 0) & named


def _read(trace: Events, events: Ints) -> tuple[Ints, list[tuple[str, Product | None]]]:
    known: dict[tuple[int, bytes, bytes, bytes], int] = {}
    names = trace.name[events].tolist()
    which = [
        known.setdefault((name, bytes(a.dims), bytes(a.types), bytes(a.strides)), len(known))
        for name, a in zip(names, trace.operands(events), strict=True)
    ]
    distinct = []
    for number, *parts in known:
        name, (dims, types, strides) = trace.names[number], map(decode_part, parts)
        distinct.append((name, _product(dims, types, strides, PRODUCTS[name])))
    return np.array(which, np.int64), distinct


def _product(dims: Any, types: Any, strides: Any, first: int) -> Product | None:
    """What a call multiplies; None where the trace does not say, or is inconsistent.

    >>> product = _product([[3, 97, 64], [3, 64, 97]], ["c10::Half", "c10::Half"], None, 0)
    >>> product.shapes, {name: sorted(rows) for name, rows in product.rows.items()}
    ('3x97x64 @ 3x64x97', {'N': [97], 'M': [], 'K': []})
    """
    dims, types, strides = (_pair(part, first) for part in (dims, types, strides))
    try:
        (*batch, m, k), (*others, inner, n) = dims
    except (TypeError, ValueError):
        return None
    numbers = [*batch, m, k, *others, inner, n]
    if (
        len(types) < 2
        or inner != k
        or len(batch) != len(others)
        or any(type(size) is not int for size in numbers)
    ):
        return None
    known = len(strides) == 2 and all(isinstance(own, list) and len(own) >= 2 for own in strides)
    left, right = (*strides,) if known else (None, None)
    depth, sizes = batch[0] if batch else None, {"M": m, "N": n, "K": k}
    rows: dict[str, frozenset[int]] = {"N": frozenset([n])}
    for matrix, names in ((left, "MK"), (right, "KN")):
        for name, apart in _rows(matrix, names, sizes):
            rows[name] = rows.get(name, frozenset()) | apart
    return Product((str(types[0]), str(types[1])), depth, sizes, rows)


def _pair(part: Any, first: int) -> list[Any]:
    return part[first : first + 2] if isinstance(part, list) else []


def _rows(
    strides: list[int] | None, names: str, sizes: Mapping[str, int]
) -> Iterator[tuple[str, frozenset[int]]]:
    """Along which dimensions of a matrix its rows lie, and the distances of rows and batches.

    torch copies a matrix if neither dimension is contiguous, or if its rows overlap.
    """
    if strides is None:
        yield from ((name, frozenset()) for name in names)
        return
    turned = strides[-1] != 1 and strides[-2] == 1
    name = names[0] if turned else names[1]
    own, apart = (strides[-2], strides[-1]) if turned else (strides[-1], strides[-2])
    copied = own != 1 or apart < sizes[name]
    yield name, frozenset([sizes[name]] if copied else [apart, *strides[:-2]])
