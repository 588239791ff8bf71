"""Allocations and frees, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.cached import cached
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import MemoryArgs, decode, int64_column, whole_number
from pytest_torchprof.trace.nesting import distinct

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import Arguments
    from pytest_torchprof.trace.nesting import Bools, Ints


class Memory(Frozen, frozen=True, dict=True):
    """Allocations (positive) and frees (negative) in time order, one row per ``[memory]`` event.

    ``addr`` is None if the trace has no addresses, as in 2021. ``place`` is (c10's number of the
    device's type, 0 for the host; the device's index, -1 for none), one pair per row.
    """

    event: Ints
    addr: Ints | None
    bytes: Ints
    place: Ints

    @classmethod
    def of(cls, rows: Ints, args: Arguments) -> Memory:
        """From the arguments of these events."""
        if not len(rows):
            return _EMPTY
        decoded = decode(MemoryArgs, args)
        addresses = [a.addr for a in decoded]
        types = int64_column([a.device_type for a in decoded])
        indices = int64_column([whole_number(a.device_id) for a in decoded])
        return cls(
            rows,
            None if None in addresses else int64_column(addresses),
            int64_column([a.bytes for a in decoded]),
            np.stack([types, indices], 1),
        )

    @cached
    def on_device(self) -> Bools:
        """Whether it is the accelerator's memory, not the host's."""
        return np.not_equal(self.place[:, 0], 0)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Each place once, in order."""
        kind, index = self.place.T
        return [
            (one, other)
            for one in distinct(kind).tolist()
            for other in distinct(index[kind == one]).tolist()
        ]

    def device(self, on_device: bool) -> Memory:
        """The rows of the host's memory, or of the accelerators'."""
        if not (on_device or self.on_device.any()):
            return self
        return self.where(self.on_device == on_device)

    def where(self, keep: Bools) -> Memory:
        """Some of the rows."""
        addr = None if self.addr is None else self.addr[keep]
        return Memory(self.event[keep], addr, self.bytes[keep], self.place[keep])


_NONE: Ints = np.zeros(0, np.int64)
_EMPTY = Memory(_NONE, _NONE, _NONE, np.zeros((0, 2), np.int64))
