"""How data flows between runs of the same layers: whether each run is a separate pass."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.evidence.nodes import forward_calls, recorded
from pytest_torchprof.trace.name_index import Names, are_named, operators_named
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.rules.evidence.weights import Own
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

#: Operators that draw samples, as in a sampling step, and no layer except dropout.
_DRAWS: Final = Names(
    r"aten::(randn?|randint|randn?_like|randint_like|normal_?|uniform_|exponential_|multinomial"
    r"|poisson|random_)$"
)
#: A step with this many layers is not a cell of a recurrent network.
_MANY_LAYERS: Final = 6
#: The number of runs analyzed, and of calls before them.
_LOOKED: Final = 4
_MOST_CALLS: Final = 5_000


def are_passes(trace: Events, layers: Ints, first: Ints) -> bool:
    """Whether runs of layers, each of which begins with one of ``first``, are separate passes.

    They are not if each takes a different tensor that was computed before all of them, with a
    graph, as one head takes several features; nor if each continues with the output of the previous
    layers, as the cell of a recurrent network does, unless it draws samples or has many layers.
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
        operands = set(flat(trace.taken(inside) or ()))
        before.append({n for n in operands if made_by.get(n, begin) < first[0]})
        if _goes_on(trace, inside, layers, _taken(trace, end, first, layers), made_by):
            many = ((layers >= begin) & (layers < end)).sum() >= _MANY_LAYERS
            if not (many or are_named(trace, inside, _DRAWS).any()):
                return False
    return all(one == other for one, other in pairwise(before))


def once_a_call(
    trace: Events, rows: Ints, owns: Sequence[Own | None], repeats: float
) -> list[Own | None]:
    """The layers without those that run fewer times if one call of an outermost module counts once.

    A call in which samples are drawn between two runs of a layer is a loop of sampling steps: all
    of them count. So do runs outside of any module.
    """
    if trace.module_calls is None:
        return list(owns)
    runs: dict[Own, dict[int, list[int]]] = {}
    for row, own, call in zip(rows.tolist(), owns, trace.module_calls[rows].tolist(), strict=True):
        if own is not None:
            runs.setdefault(own, {}).setdefault(call, []).append(row)
    drawn = operators_named(trace, _DRAWS)
    draws: dict[int, list[int]] = {}
    for row, call in zip(drawn.tolist(), trace.module_calls[drawn].tolist(), strict=True):
        draws.setdefault(call, []).append(row)
    often = set[object]()
    for own, calls in runs.items():
        times = 0
        for call, mine in calls.items():
            steps = any(mine[0] < row < mine[-1] for row in draws.get(call, ()))
            times += len(mine) if call < 0 or steps else 1
        if times >= repeats:
            often.add(own)
    return [own if own in often else None for own in owns]


def _taken(trace: Events, begin: int, first: Ints, layers: Ints) -> set[int]:
    """What the run that begins there takes: its layers, as far as the next run is known."""
    later = first[first > begin]
    end = int(later[0]) if len(later) else begin + 1
    rows = layers[(layers >= begin) & (layers < end)]
    return set(flat(trace.taken(rows) or ()))


def _goes_on(
    trace: Events, inside: Ints, layers: Ints, later: set[int], made_by: dict[int, int]
) -> bool:
    """Whether the next run takes something that these calls made from their layers' outputs."""
    flowing = set[int]()
    is_layer = among(inside, layers)
    taken, made = trace.taken(inside) or (), trace.made(inside) or ()
    for row, layer, arguments, new in zip(inside.tolist(), is_layer, taken, made, strict=True):
        operands = flat([arguments])
        if layer or not flowing.isdisjoint(operands):
            flowing |= {n for n in new if made_by.get(n) == row}
            if trace.names[trace.name[row]].endswith("_") and operands:
                flowing.add(operands[0])
    return not flowing.isdisjoint(later)


def makers(trace: Events, before: int | None = None) -> dict[int, int]:
    """The operators that made tensors with a graph, by the tensors' numbers."""
    rows = np.sort(recorded(trace, None).rows)
    rows = rows if before is None else rows[rows < before]
    out: dict[int, int] = {}
    for row, new in zip(rows.tolist(), trace.made(rows) or (), strict=True):
        for one in new:
            out.setdefault(one, row)
    return out


def flat(taken: Iterable[tuple[Taken, ...]]) -> list[int]:
    """The numbers of all tensors among the arguments of operators."""
    every = (one for arguments in taken for one in arguments)
    return [n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]
