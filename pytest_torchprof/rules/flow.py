"""What flows from one run of the same layers into the next: whether each is a pass of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.engine import identity
from pytest_torchprof.rules.nodes import forward_calls, recorded
from pytest_torchprof.trace.names import Names, are_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

#: What draws, as a step of sampling does, and no layer but dropout.
_DRAWS: Final = Names(
    r"aten::(randn?|randint|randn?_like|randint_like|normal_?|uniform_|exponential_|multinomial"
    r"|poisson|random_)$"
)
#: A step of so many layers is no cell of a recurrent network.
_MANY_LAYERS: Final = 6
#: So many runs are looked at, and so many calls before them.
_LOOKED: Final = 4
_MOST_CALLS: Final = 5_000


def are_passes(trace: Trace, layers: Ints, first: Ints) -> bool:
    """Whether runs of layers, each of which begins with one of ``first``, are a pass each.

    Not where each takes something else that was computed before them all, with a graph, as one head
    takes several features; nor where each goes on with what came out of the layers before, as the
    cell of a recurrent network does, unless it draws, or is many layers.
    """
    first = first[:_LOOKED]
    called = np.sort(forward_calls(trace))
    called = called[trace.thread[called] == trace.thread[first[0]]]
    if np.searchsorted(called, first[-1]) > _MOST_CALLS:
        return True
    made_by = makers(trace, int(first[-1]))
    before: list[set[int]] = []
    for begin, end in pairwise(first.tolist()):
        inside = called[(called >= begin) & (called < end)]
        operands = set(flat(identity.taken(trace, inside) or ()))
        before.append({n for n in operands if made_by.get(n, begin) < first[0]})
        if _goes_on(trace, inside, layers, _taken(trace, end, first, layers), made_by):
            many = ((layers >= begin) & (layers < end)).sum() >= _MANY_LAYERS
            if not (many or are_named(trace, inside, _DRAWS).any()):
                return False
    return all(one == other for one, other in pairwise(before))


def _taken(trace: Trace, begin: int, first: Ints, layers: Ints) -> set[int]:
    """What the run that begins there takes: of its layers as far as the next run is known."""
    later = first[first > begin]
    end = int(later[0]) if len(later) else begin + 1
    rows = layers[(layers >= begin) & (layers < end)]
    return set(flat(identity.taken(trace, rows) or ()))


def _goes_on(
    trace: Trace, inside: Ints, layers: Ints, later: set[int], made_by: dict[int, int]
) -> bool:
    """Whether the next run takes something that these calls made of what their layers made."""
    flowing = set[int]()
    is_layer = np.isin(inside, layers)
    taken, made = identity.taken(trace, inside) or (), identity.made(trace, inside) or ()
    for row, layer, arguments, new in zip(inside.tolist(), is_layer, taken, made, strict=True):
        operands = flat([arguments])
        if layer or not flowing.isdisjoint(operands):
            flowing |= {n for n in new if made_by.get(n) == row}
            if trace.names[trace.name[row]].endswith("_") and operands:
                flowing.add(operands[0])
    return not flowing.isdisjoint(later)


def makers(trace: Trace, before: int | None = None) -> dict[int, int]:
    """The operators that made tensors with a graph, by the tensors' numbers."""
    rows = np.sort(recorded(trace, None).rows)
    rows = rows if before is None else rows[rows < before]
    out: dict[int, int] = {}
    for row, new in zip(rows.tolist(), identity.made(trace, rows) or (), strict=True):
        for one in new:
            out.setdefault(one, row)
    return out


def flat(taken: Iterable[tuple[Taken, ...]]) -> list[int]:
    """The numbers of all tensors among the arguments of operators."""
    every = (one for arguments in taken for one in arguments)
    return [n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]
