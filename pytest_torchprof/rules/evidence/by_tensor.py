"""What a Python loop does to one tensor after the other, and whether they are parameters."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.rules.evidence.calls import are_called
from pytest_torchprof.rules.evidence.shapes import shapes
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import Names, are_named, operators_named, selected_operators
from pytest_torchprof.trace.tree import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

    #: The operators on each tensor; and for each tensor the calls, and its shape.
    Loop = tuple[tuple[str, ...], list[tuple[Ints, tuple[int, ...]]]]
_Shape = tuple[int, ...]

ELEMENTWISE: Final = (
    r"add|sub|mul|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max|neg|sqrt|rsqrt|pow|exp|sign"
    r"|abs|reciprocal|square"
)
#: Operators that write to their first argument.
WRITES: Final = Names(rf"aten::({ELEMENTWISE}|copy)_$")
#: Operators that make another tensor of its shape.
MAKES: Final = Names(rf"aten::({ELEMENTWISE}|rsub|maximum|minimum)$")
NORM: Final = Names(r"aten::(norm|linalg_vector_norm|frobenius_norm)$")
SUM: Final = Names(r"aten::sum$")
READ: Final = Names(r"aten::item$")
#: What stands between them without doing work.
BESIDE: Final = Names(r"aten::(detach|clone|alias|zeros_like|to)$|detach$")
#: What ``p.data = …`` calls.
ASSIGNS: Final = "aten::_has_compatible_shallow_copy_type"
ALL: Final = (WRITES, MAKES, NORM, SUM, READ, BESIDE, Names(f"{ASSIGNS}$"))
_OPTIMIZER: Final = Names(r"Optimizer\.")
_EMBEDDING: Final = Names(r"aten::embedding(_bag)?$")
#: The most operators on one parameter.
_LONGEST: Final = 24
#: The share of a loop's shapes that must be those of a model.
_FITTING: Final = 0.9
#: The most calls in a row on one shape, judged by a sample of them.
_MOST: Final = 4096
_SAMPLE: Final = 64


def consecutive_calls(trace: Events, rows: Ints, fits: Bools, least: int) -> list[Ints]:
    """Consecutive calls on a thread, all of which fit."""
    edges = np.flatnonzero(np.diff(fits.astype(np.int8), prepend=0, append=0))
    found = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start < least:
            continue
        part = rows[start:stop]
        part = part[~are_named(trace, part, BESIDE)]
        part = part[~within(trace, part, lambda events: are_named(trace, events, _OPTIMIZER))]
        threads = np.flatnonzero(np.diff(trace.thread[part])) + 1
        loops = (one for one in np.split(part, threads) if len(one) >= least)
        found += [one for one in loops if not _is_of_one_tensor(trace, one)]
    return found


def _is_of_one_tensor(trace: Events, rows: Ints) -> bool:
    """Whether more calls than a model has parameters are on tensors of one shape, judged by a
    sample of them.
    """
    if len(rows) < _MOST:
        return False
    some = rows[:: len(rows) // _SAMPLE]
    return len({bytes(args.dims) for args in trace.operands(some)}) == 1


def repeated(trace: Events, rows: Ints, least: int) -> Iterator[Loop]:
    """What is done to at least ``least`` tensors each, one loop after the other."""
    units = _units(trace, rows)
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    called_names = [tuple(names[at] for at in unit) for unit, _ in units]
    roots = [_bodies(called, least) for called in called_names]
    often = Counter[tuple[str, ...]]()
    for bodies in roots:
        often.update(bodies)
    known = sorted(
        (body for body, times in often.items() if times >= least and len(body) <= _LONGEST),
        key=len,
        reverse=True,
    )
    reps: dict[tuple[str, ...], list[tuple[int, Ints, _Shape]]] = {body: [] for body in known}
    number = 0
    for (unit, kind), called, bodies in zip(units, called_names, roots, strict=True):
        known_here = bodies if bodies[0] in reps else _tiled(called, known)
        at = 0
        for body in known_here:
            if body in reps:
                reps[body].append((number, rows[unit[at : at + len(body)]], kind))
            at, number = at + len(body), number + 1
    for body, mine in reps.items():
        if not is_work(body):
            continue
        cuts = [i for i, (a, b) in enumerate(pairwise(mine), 1) if b[0] - a[0] > least]
        for start, stop in pairwise([0, *cuts, len(mine)]):
            if stop - start >= least:
                own = [i for i, name in enumerate(body) if name != ASSIGNS]
                work = tuple(body[i] for i in own)
                yield work, [(part[own], kind) for _, part, kind in mine[start:stop]]


def _units(trace: Events, rows: Ints) -> list[tuple[list[int], _Shape]]:
    """Positions of consecutive calls on tensors of one shape, and the shape."""
    shape = [_common(dims) for dims in shapes(trace, rows)]
    units: list[tuple[list[int], _Shape]] = []
    for at, one in enumerate(shape):
        if one == () and units:
            units[-1][0].append(at)  # on a result of the same tensor
        elif one and units and units[-1][1] == one:
            units[-1][0].append(at)
        elif one:
            units.append(([at], one))
    return units


def _bodies(called: tuple[str, ...], least: int) -> list[tuple[str, ...]]:
    """What is called repeatedly on tensors of one shape: one body, or several in sequence."""
    root = _root(called)
    if len(root) <= _LONGEST or len(called) < 2 * least:
        return [root] * (len(called) // len(root))
    number = {name: i for i, name in enumerate(dict.fromkeys(called))}
    numbers = np.array([number[name] for name in called])
    length = len(numbers)
    cover = np.zeros((_LONGEST, length), np.int64)  # how far each period extends from here
    for period in range(1, _LONGEST + 1):
        unlike = np.flatnonzero(numbers[:-period] != numbers[period:])
        ends = np.append(unlike, length - period)
        here = np.arange(length - period)
        far = ends[np.searchsorted(ends, here)] - here
        whole = (far // period + 1) * period
        cover[period - 1, : length - period] = np.where(far >= period, whole, 0)
    best, found, at = cover.argmax(0), list[tuple[str, ...]](), 0
    while at < length:
        period = int(best[at]) + 1
        times = max(1, int(cover[period - 1, at]) // period)
        found += [called[at : at + period]] * times
        at += period * times
    return found


def _tiled(called: tuple[str, ...], bodies: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Where two loops share one shape: the bodies of both, else the sequence itself."""
    found, at = list[tuple[str, ...]](), 0
    while at < len(called):
        body = next((one for one in bodies if called[at : at + len(one)] == one), None)
        if body is None:
            return [called]
        found.append(body)
        at += len(body)
    return found


def _common(dims: Sequence[_Shape | None]) -> _Shape | None:
    """The one shape of an operator's tensors other than scalars; None if they differ."""
    known = {one for one in dims if one}
    return None if len(known) > 1 else next(iter(known), ())


def _root(names: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest sequence of which these are repetitions."""
    size = len(names)
    roots = (n for n in range(1, size) if size % n == 0 and names[:n] * (size // n) == names)
    return names[: next(roots, size)]


_NO_WORK: Final = frozenset({"aten::item", "aten::sum", "aten::copy_", ASSIGNS})


def is_work(base: tuple[str, ...]) -> bool:
    """Whether this is an update, or a norm: torch has functions on lists for these."""
    work = [name.removeprefix("aten::") for name in base if not BESIDE.match(name)]
    kinds = {name for name in work if f"aten::{name}" not in _NO_WORK}
    if not kinds or ("item" in work and kinds & {"sub", "rsub"}):
        return False
    if any(NORM.match(name) for name in base):
        return True
    if "sum" in work:
        return bool(kinds & {"pow", "square", "mul", "abs"})
    return "item" not in work and (len(work) > 1 or any(WRITES.match(name) for name in base))


# ----------------------------------------------------------------------------- whose tensors


def are_shapes_of_a_model(trace: Events, kinds: Counter[_Shape]) -> bool:
    """Whether there are as many of each shape as parameters, or twice as many: two loops."""
    known, _ = trace.once(_parameters)
    total = sum(known.values())
    if not total:
        return False
    times = 1 if sum(kinds.values()) <= total else 2
    fitting = sum(min(n, times * known[kind]) for kind, n in kinds.items())
    return fitting >= _FITTING * sum(kinds.values())


def parameters_of(trace: Events) -> set[int]:
    """The numbers of the tensors that layers take besides their input, and of gradients."""
    return trace.once(_parameters)[1]


def shapes_of(trace: Events) -> set[_Shape]:
    """The shapes of `parameters_of`."""
    return set(trace.once(_parameters)[0])


def _parameters(trace: Events) -> tuple[Counter[_Shape], set[int]]:
    rows = operators_named(trace, LAYER)
    rows = rows[are_called(trace, rows)]  # nested ones take what their parents made
    tables = are_named(trace, rows, _EMBEDDING).tolist()
    taken: Sequence[Sequence[Any]] = trace.taken(rows) or [()] * len(rows)
    kinds, numbers = Counter[_Shape](), set[int]()
    for dims, one, table in zip(shapes(trace, rows), taken, tables, strict=True):
        for at in (0,) if table else range(1, len(dims)):
            number = one[at] if at < len(one) else -1
            mine = number if isinstance(number, int) else -1
            kind = dims[at] if at < len(dims) else None
            if kind and (mine < 0 or mine not in numbers):
                kinds[kind] += 1
            numbers.add(mine)
    ends = selected_operators(trace, "torch::autograd::AccumulateGrad")
    for one in trace.taken(ends) or []:
        numbers.update(n for n in one if isinstance(n, int))
    return kinds, numbers - {-1}


def alpha_of(trace: Events, base: tuple[str, ...], rows: Ints) -> float | None:
    """The ``alpha`` of an ``add_`` in the loop, if it has one."""
    if "aten::add_" not in base:
        return None
    at = base.index("aten::add_")
    (args,) = trace.operands(rows[at : at + 1])
    concrete = decode_part(args.concrete)
    known = isinstance(concrete, list) and len(concrete) > 2
    try:
        return float(concrete[2]) if known else None
    except ValueError:
        return None
