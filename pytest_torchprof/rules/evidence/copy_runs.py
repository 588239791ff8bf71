"""Runs of copies of one kind that may be of the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.evidence.calls import called, step_of
from pytest_torchprof.rules.evidence.copied_again import (
    CopiedTensor,
    OperatorCall,
    Since,
    parts_may_be,
    since,
)
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.views import EXPANSIONS, PARTS, SPLITS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Longer stretches between two copies are skipped: they are not a loop's body.
_LONGEST = 2000
#: This many calls are decoded at a time, backwards from the later copy.
_AT_ONCE = 16


class CopyRun(Frozen, frozen=True):
    """``tops`` are the calls that copied, in order; ``bare``: no copy is known to be used."""

    tops: Ints
    copies: Ints
    bare: bool


@dataclass
class Finder:
    """Finds runs among the copies of one trace."""

    trace: Events
    _known: dict[tuple[CopiedTensor, bytes], tuple[Since, list[int]]] = field(default_factory=dict)

    @cached_property
    def _calls(self) -> dict[int, Ints]:
        rows = np.flatnonzero(called(self.trace) & self.trace.selection)
        threads = self.trace.thread[rows]
        return {thread: rows[threads == thread] for thread in set(threads.tolist())}

    def runs(
        self, tops: Ints, copies: Ints, source: CopiedTensor, repeats: int
    ) -> Iterator[CopyRun]:
        """Runs of at least ``repeats`` copies of a kind, on one thread and in one step."""
        if len(tops) < repeats:
            return
        calls = self._calls[int(self.trace.thread[tops[0]])]
        at = np.searchsorted(calls, tops)
        stretches = [calls[a + 1 : b] for a, b in pairwise(at.tolist())]
        verdicts = list(self._verdicts(stretches, source))
        start = 0
        for i, verdict in enumerate([*verdicts, "new"]):
            if verdict != "new":
                continue
            inner = verdicts[start:i]
            between = stretches[start:i]
            if len(inner) + 1 >= repeats and self._is_one(calls, at[start], between, source):
                bare = all(v == "bare" for v in inner)
                yield CopyRun(tops[start : i + 1], copies[start : i + 1], bare)
            start = i + 1

    def _verdicts(self, stretches: Sequence[Ints], source: CopiedTensor) -> Iterator[Since]:
        """A verdict for each stretch between two copies; those with the same names share one."""
        found: list[Since] = []
        part_rows: list[Ints | None] = []
        for stretch in stretches:
            if len(stretch) > _LONGEST:
                found.append("new")
                part_rows.append(None)
                continue
            key = (source, self.trace.name[stretch].tobytes())
            if key not in self._known:
                self._known[key] = self._since(stretch, source)
            verdict, parts = self._known[key]
            found.append(verdict)
            part_rows.append(stretch[parts] if parts else None)
        taken = [None if rows is None else self._arguments(rows) for rows in part_rows]
        for i, verdict in enumerate(found):
            mine = taken[i]
            beside = [taken[j] for j in (i - 1, i + 1) if 0 <= j < len(taken)]
            same = mine is None or (mine in beside and None not in mine)
            yield verdict if same else "new"

    def _since(self, stretch: Ints, source: CopiedTensor) -> tuple[Since, list[int]]:
        later: list[OperatorCall] = []
        for end in range(len(stretch), 0, -_AT_ONCE):
            later = self._decoded(stretch[max(end - _AT_ONCE, 0) : end]) + later
            if since(later, source)[0] == "new":
                return "new", []
        return since(later, source)

    def _decoded(self, rows: Ints) -> list[OperatorCall]:
        names = [self.trace.names[i] for i in self.trace.name[rows].tolist()]
        return list(map(OperatorCall.of, names, self.trace.operands(rows)))

    def _arguments(self, rows: Ints) -> tuple[str | None, ...]:
        decoded = [decode_part(bytes(a.concrete)) for a in self.trace.operands(rows)]
        return tuple(str(c) if c else None for c in decoded)

    def _is_one(
        self, calls: Ints, first: int, stretches: Sequence[Ints], source: CopiedTensor
    ) -> bool:
        """Whether the copied tensors are not parts of one split tensor.

        In a loop over another tensor's parts, each part may produce something of the source's size.
        """
        names, numbers = self.trace.names, self.trace.name
        body = len(stretches[0]) if len(stretches) else 0
        before = calls[max(first - body - 3, 0) : first]
        split = [row for row in before.tolist() if names[numbers[row]] in SPLITS]
        if not split:
            return True
        within = {names[i] for stretch in stretches for i in set(numbers[stretch].tolist())}
        if within & (PARTS | EXPANSIONS):
            return False
        return not any(parts_may_be(call, source) for call in self._decoded(np.array(split)))


def by_kind(
    trace: Events, rows: Ints, kind: Ints, least: int, also: Callable[[Ints], Ints] | None = None
) -> Iterator[Ints]:
    """Positions of at least ``least`` rows that share kind, thread and step."""
    step = step_of(trace, rows)
    keys = [kind, trace.thread[rows].astype(np.int64), step]
    if also is not None:
        keys.append(also(rows))
    order = np.lexsort((rows, *keys))
    changes = np.zeros(max(len(order) - 1, 0), bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group) >= least:
            yield group


def held(trace: Events, copies: Ints) -> int | None:
    """How many of these copies, except the last, still exist when the last one is made.

    None if the trace does not tell: no memory was recorded.
    """
    gone = freed(trace, copies)
    return None if gone is None else int((gone[:-1] > trace.ts[copies[-1]]).sum())


def freed(trace: Events, copies: Ints) -> Ints | None:
    """When each copy's memory was freed; the maximum if it was not. None: see `held`."""
    memory = trace.memory
    if memory.addr is None or not len(memory.event) or not len(copies):
        return None
    gets = np.flatnonzero(memory.bytes > 0)
    first = np.searchsorted(trace.ts[memory.event[gets]], trace.ts[copies])
    if not len(gets) or (first >= len(gets)).any():
        return None
    block = gets[first]
    if (trace.ts[memory.event[block]] > trace.ts[copies] + trace.dur[copies]).any():
        return None
    ends = trace.once(_next_at_address)[block]
    return np.where(ends >= 0, trace.ts[memory.event[ends]], np.iinfo(np.int64).max)


def _next_at_address(trace: Events) -> Ints:
    """For each memory event the next one at its address, or -1."""
    address = trace.memory.addr
    if address is None:
        return np.zeros(0, np.int64)
    order = np.argsort(address, kind="stable")
    same = np.diff(address[order]) == 0
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return after
