"""Weights that autocast casts again: its cache does not hold them, or was cleared in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.rules.evidence.calls import called, sizes, step_of
from pytest_torchprof.rules.evidence.copy_runs import by_kind, freed, held
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import selected_operators

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.rules.evidence.copied_again import CopiedTensor
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Operators whose inputs autocast casts, with the positions of their weight and bias.
WEIGHTS = {"aten::linear": (1, 2), "aten::addmm": (0, 2), "aten::mm": (1,), "aten::matmul": (1,)}
WEIGHTS |= {f"aten::conv{kind}": (1, 2) for kind in ("1d", "2d", "3d", "olution")}
WEIGHTS |= {f"aten::conv_transpose{i}d": (1, 2) for i in (1, 2, 3)}


def casts_of_weights(trace: Events, rows: Ints, owner: Ints) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias; by identity."""
    tensors, operands = trace.taken(rows) or [], trace.taken(owner) or []
    names = [trace.names[number] for number in trace.name[owner].tolist()]
    found = [
        bool(tensor) and tensor[0] in {taken[i] for i in WEIGHTS[name] if i < len(taken)}
        for tensor, taken, name in zip(tensors, operands, names, strict=True)
    ]
    return np.array(found, bool)


def recast(
    trace: Events, casts: tuple[Ints, Ints, Ints], kinds: list[CopiedTensor], least: int
) -> Iterable[tuple[Ints, CopiedTensor]]:
    """Positions of casts, each in an operator, of one weight again and again; by shapes.

    ``casts``: each cast, the operator it is in, its kind.
    """
    rows, owner, kind = casts
    weights = np.flatnonzero(_look_like_weights(trace, owner, kind, kinds))
    for group in by_kind(trace, rows[weights], kind[weights], least):
        mine = weights[group]
        source = kinds[kind[mine[0]]]
        if _times(trace, rows[mine], owner[mine], source) >= least:
            yield mine, source


def _times(trace: Events, rows: Ints, owner: Ints, source: CopiedTensor) -> int:
    """How often each weight of this kind is cast; 0 if unknown."""
    if params := gradients(trace, int(rows[0]), source):
        return len(rows) // params
    gone = freed(trace, rows)
    if gone is not None and (gone > _next_call(trace, owner)).any():  # the cache held some
        return len(rows) // max(1, held(trace, rows) or 0)
    return 0


def _next_call(trace: Events, owner: Ints) -> Ints:
    """When the user's code calls the next operator after the end of each of these."""
    starts = trace.ts[np.flatnonzero(called(trace))]
    after = np.searchsorted(starts, trace.ts[owner] + trace.dur[owner])
    return np.append(starts, np.iinfo(np.int64).max)[after]


def _look_like_weights(trace: Events, owner: Ints, kind: Ints, kinds: list[CopiedTensor]) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias, not of its input."""
    found = np.zeros(len(owner), bool)
    parts: dict[int, list[int]] = {}
    for i, row in enumerate(owner.tolist()):
        parts.setdefault(row, []).append(i)
    known: dict[tuple[int, bytes, bytes, tuple[int, ...]], list[bool]] = {}
    owners = np.array(list(parts), np.int64)
    for row, args in zip(owners.tolist(), trace.operands(owners), strict=True):
        mine = parts[row]
        name = int(trace.name[row])
        key = (name, bytes(args.dims), bytes(args.types), tuple(kind[mine].tolist()))
        if key not in known:
            casts = [kinds[k] for k in key[3]]
            known[key] = _weights(
                trace.names[name], decode_part(key[1]), decode_part(key[2]), casts
            )
        found[mine] = known[key]
    return found


def _weights(name: str, dims: Any, types: Any, casts: list[CopiedTensor]) -> list[bool]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return [False] * len(casts)
    operands = [(sizes(d), t) for d, t in zip(dims, types, strict=False)]
    at = WEIGHTS[name]
    inputs = [op for i, op in enumerate(operands) if i not in at]
    of = [op for i, op in enumerate(operands) if i in at and op[0] is not None]
    out = []
    for cast in reversed(casts):  # the input is cast last
        mine = (cast.shape, cast.dtype)
        if mine in inputs:
            inputs.remove(mine)
            out.append(False)
        else:
            out.append(mine in of)
    return out[::-1]


def gradients(trace: Events, row: int, source: CopiedTensor) -> int:
    """How many tensors of this shape and dtype get a gradient in the step of this event."""
    counts = trace.once(_gradients_by_step)
    step = int(step_of(trace, np.array([row]))[0])
    return counts.get((step, source.shape, source.dtype), 0)


def _gradients_by_step(trace: Events) -> dict[tuple[int, tuple[int, ...], str], int]:
    rows = selected_operators(trace, "torch::autograd::AccumulateGrad")
    counts: dict[tuple[int, tuple[int, ...], str], int] = {}
    for step, args in zip(step_of(trace, rows).tolist(), trace.operands(rows), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        shape = sizes(dims[0]) if isinstance(dims, list) and dims else None
        if shape is not None and isinstance(types, list) and types:
            key = (step, shape, str(types[0]))
            counts[key] = counts.get(key, 0) + 1
    return counts
