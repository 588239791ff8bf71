"""Weights that autocast casts again: its cache does not hold them, or was emptied in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.arguments import decode_part
from pytest_torchprof.rules.calls import called, sizes, step_of
from pytest_torchprof.rules.runs import by_kind, freed, held
from pytest_torchprof.rules.tree import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints
    from pytest_torchprof.rules.runs import Finder
    from pytest_torchprof.rules.sources import Source

#: Operators that autocast makes cast, to where their weight and bias stand.
WEIGHTS = {"aten::linear": (1, 2), "aten::addmm": (0, 2), "aten::mm": (1,), "aten::matmul": (1,)}
WEIGHTS |= {f"aten::conv{kind}": (1, 2) for kind in ("1d", "2d", "3d", "olution")}
WEIGHTS |= {f"aten::conv_transpose{i}d": (1, 2) for i in (1, 2, 3)}


#: Operators with a weight in a model whose runs are looked for.
_LONGEST_MODEL = 1000


def recast(
    finder: Finder, casts: tuple[Ints, Ints, Ints], kinds: list[Source], least: int
) -> Iterable[tuple[Ints, Source]]:
    """Positions of casts, each in an operator, that are of one weight again and again.

    ``casts``: each cast, the operator it is in, its kind.
    """
    trace, (rows, owner, kind) = finder.trace, casts
    if len(rows) < least:
        return
    weighs = _of_weights(trace, owner, kind, kinds)
    weights, inputs = np.flatnonzero(weighs), np.flatnonzero(~weighs)
    if len(weights) < least:
        return
    by_step: dict[tuple[int, int], list[Ints]] = {}
    where = list(zip(trace.thread[rows].tolist(), step_of(trace, rows).tolist(), strict=True))
    for group in by_kind(trace, rows[weights], kind[weights], least):
        mine = weights[group]
        by_step.setdefault(where[mine[0]], []).append(mine)
    same = _of_one_input(finder, owner[inputs], rows[inputs], kind[inputs], kinds, least)
    for at, groups in by_step.items():
        calls = [_calls(trace, rows[m], owner[m], kinds[kind[m[0]]], same, least) for m in groups]
        known = {count for count in calls if count >= least}
        if 0 in calls and not any(0 < count < least for count in calls):
            here = weights[[where[i] == at for i in weights.tolist()]]
            known.add(_repetitions(owner[here], kind[here]))
            known = {count for count in known if count >= least}
        for mine, count in zip(groups, calls, strict=True):
            # What else a model that is called again casts each time, it casts as often.
            if count >= least or (count == 0 and any(len(mine) % again == 0 for again in known)):
                yield mine, kinds[kind[mine[0]]]


def _calls(trace: Trace, rows: Ints, owner: Ints, source: Source, same: Ints, least: int) -> int:
    """How often each weight of this kind is cast; 0 where nothing tells."""
    if params := gradients(trace, int(rows[0]), source):
        return max(1, len(rows) // params)
    gone = freed(trace, rows)
    if gone is not None and (gone > _next_call(trace, owner)).any():  # the cache held some
        return len(rows) // max(1, held(trace, rows) or 0)  # at least 1
    again = int(np.isin(owner, same).sum())
    return again if again >= least else 0


def _repetitions(owner: Ints, kind: Ints) -> int:
    """How often the same model runs, if its layers are seen within it; else 1.

    What repeats may as well be the layers of one model, unless it has in it what repeats: several
    alike (three or more), each of more than one operator, and then something else.
    """
    symbols: dict[int, list[int]] = {}
    for row, number in zip(owner.tolist(), kind.tolist(), strict=True):
        symbols.setdefault(row, []).append(number)
    numbers: dict[tuple[int, ...], int] = {}
    calls = [numbers.setdefault(tuple(symbols[row]), len(numbers)) for row in sorted(symbols)]
    sequence = np.array(calls, np.int64)
    total = len(sequence)
    for period in range(1, min(total // 2, _LONGEST_MODEL) + 1):
        if total % period == 0 and (sequence[period:] == sequence[:-period]).all():
            return total // period if _has_layers(sequence[:period]) else 1
    return 1


def _has_layers(sequence: Ints) -> bool:
    """Whether a stretch with two different numbers in it stands there three times in a row."""
    for length in range(2, len(sequence) // 3 + 1):
        alike = sequence[length:] == sequence[:-length]
        reach = np.flatnonzero(~np.concatenate([[False], alike, [False]]))
        for start, stop in zip(reach[:-1].tolist(), reach[1:].tolist(), strict=True):
            stretch = sequence[start : start + length]
            if stop - start > 2 * length and (stretch != stretch[0]).any():
                return True
    return False


def _next_call(trace: Trace, owner: Ints) -> Ints:
    """When the user's code calls the next operator after each of these has ended."""
    starts = trace.ts[np.flatnonzero(called(trace))]
    after = np.searchsorted(starts, trace.ts[owner] + trace.dur[owner])
    return np.append(starts, np.iinfo(np.int64).max)[after]


def _of_one_input(
    finder: Finder, owner: Ints, rows: Ints, kind: Ints, kinds: list[Source], least: int
) -> Ints:
    """Operators whose input was cast just as that of others, and not made anew in between."""
    found: list[Ints] = []
    asked = called(finder.trace)[owner]
    owner, rows, kind = owner[asked], rows[asked], kind[asked]
    for group in by_kind(finder.trace, rows, kind, least):
        tops = owner[group]
        if (np.diff(np.sort(tops)) > 0).all():
            runs = finder.runs(tops, rows[group], kinds[kind[group[0]]], least)
            found += [run.tops for run in runs]
    return np.concatenate([*found, np.zeros(0, np.int64)])


def _of_weights(trace: Trace, owner: Ints, kind: Ints, kinds: list[Source]) -> Bools:
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


def _weights(name: str, dims: Any, types: Any, casts: list[Source]) -> list[bool]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return [False] * len(casts)
    operands = [(sizes(d), t) for d, t in zip(dims, types, strict=False)]
    at = WEIGHTS[name]
    inputs = [op for i, op in enumerate(operands) if i not in at]
    of = [op for i, op in enumerate(operands) if i in at and op[0] is not None]
    out = []
    for cast in reversed(casts):  # the input is the last to be cast
        mine = (cast.shape, cast.dtype)
        if mine in inputs:
            inputs.remove(mine)
            out.append(False)
        else:
            out.append(mine in of)
    return out[::-1]


def gradients(trace: Trace, row: int, source: Source) -> int:
    """How many tensors of this shape and dtype get a gradient in the step of this event."""
    counts = trace.once(_gradients_by_step)
    step = int(step_of(trace, np.array([row]))[0])
    return counts.get((step, source.shape, source.dtype), 0)


def _gradients_by_step(trace: Trace) -> dict[tuple[int, tuple[int, ...], str], int]:
    rows = rows_of(trace, "torch::autograd::AccumulateGrad")
    counts: dict[tuple[int, tuple[int, ...], str], int] = {}
    for step, args in zip(step_of(trace, rows).tolist(), trace.operands(rows), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        shape = sizes(dims[0]) if isinstance(dims, list) and dims else None
        if shape is not None and isinstance(types, list) and types:
            key = (step, shape, str(types[0]))
            counts[key] = counts.get(key, 0) + 1
    return counts
