"""What a Python loop does to one tensor after the other, and whether they are parameters."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.rules.calls import are_called
from pytest_torchprof.rules.engine import identity
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.rules.shapes import shapes
from pytest_torchprof.trace.names import Names, are_named, operators_named
from pytest_torchprof.trace.tree import rows_of, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Bools, Ints

    #: What is done to each tensor; and for each the calls, and its shape.
    Loop = tuple[tuple[str, ...], list[tuple[Ints, tuple[int, ...]]]]
Shape = tuple[int, ...]

ELEMENTWISE: Final = (
    r"add|sub|mul|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max|neg|sqrt|rsqrt|pow|exp|sign"
    r"|abs|reciprocal|square"
)
#: What writes to the tensor that it takes first.
WRITES: Final = Names(rf"aten::({ELEMENTWISE}|copy)_$")
#: What makes another tensor of its shape.
MAKES: Final = Names(rf"aten::({ELEMENTWISE}|rsub|maximum|minimum)$")
NORM: Final = Names(r"aten::(norm|linalg_vector_norm|frobenius_norm)$")
SUM: Final = Names(r"aten::sum$")
READ: Final = Names(r"aten::item$")
#: What is between them, and no work.
BESIDE: Final = Names(r"aten::(detach|clone|alias|zeros_like|to)$|detach$")
#: What ``p.data = …`` asks.
_ASSIGNS: Final = "aten::_has_compatible_shallow_copy_type"
ALL: Final = (WRITES, MAKES, NORM, SUM, READ, BESIDE, Names(f"{_ASSIGNS}$"))
_OPTIMIZER: Final = Names(r"Optimizer\.")
_EMBEDDING: Final = Names(r"aten::embedding(_bag)?$")
#: Operators in what is done to one parameter, at most.
_LONGEST: Final = 24
#: Shapes of a loop's tensors that are those of a model's, of all.
_FITTING: Final = 0.9
#: Calls in a row that are looked at, unless some of them are on other shapes.
_MOST: Final = 4096
_SAMPLE: Final = 64


def stretches(trace: Trace, rows: Ints, fits: Bools, least: int) -> list[Ints]:
    """Calls that follow one upon the other on a thread, all of which fit."""
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


def _is_of_one_tensor(trace: Trace, rows: Ints) -> bool:
    """Whether more calls than a model has parameters are on tensors of one shape, as far as a look
    at some of them tells.
    """
    if len(rows) < _MOST:
        return False
    some = rows[:: len(rows) // _SAMPLE]
    return len({bytes(args.dims) for args in trace.operands(some)}) == 1


def repeated(trace: Trace, rows: Ints, least: int) -> Iterator[Loop]:
    """What is done to so many tensors each, one loop after the other."""
    units = _units(trace, rows)
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    said = [tuple(names[at] for at in unit) for unit, _ in units]
    roots = [_bodies(called, least) for called in said]
    often = Counter[tuple[str, ...]]()
    for bodies in roots:
        often.update(bodies)
    known = sorted(
        (body for body, times in often.items() if times >= least and len(body) <= _LONGEST),
        key=len,
        reverse=True,
    )
    reps: dict[tuple[str, ...], list[tuple[int, Ints, Shape]]] = {body: [] for body in known}
    number = 0
    for (unit, kind), called, bodies in zip(units, said, roots, strict=True):
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
                own = [i for i, name in enumerate(body) if name != _ASSIGNS]
                work = tuple(body[i] for i in own)
                yield work, [(part[own], kind) for _, part, kind in mine[start:stop]]


def _units(trace: Trace, rows: Ints) -> list[tuple[list[int], Shape]]:
    """Positions of calls that follow one upon the other on tensors of one shape, and the shape."""
    shape = [_common(dims) for dims in shapes(trace, rows)]
    units: list[tuple[list[int], Shape]] = []
    for at, one in enumerate(shape):
        if one == () and units:
            units[-1][0].append(at)  # of what was made of the tensor before
        elif one and units and units[-1][1] == one:
            units[-1][0].append(at)
        elif one:
            units.append(([at], one))
    return units


def _bodies(called: tuple[str, ...], least: int) -> list[tuple[str, ...]]:
    """What is called again and again on tensors of one shape: one body, or one after the other."""
    root = _root(called)
    if len(root) <= _LONGEST or len(called) < 2 * least:
        return [root] * (len(called) // len(root))
    number = {name: i for i, name in enumerate(dict.fromkeys(called))}
    numbers = np.array([number[name] for name in called])
    length = len(numbers)
    cover = np.zeros((_LONGEST, length), np.int64)  # how far each period goes from here
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
    """Two loops meet at tensors of one shape: the bodies of both, or just what it is."""
    found, at = list[tuple[str, ...]](), 0
    while at < len(called):
        body = next((one for one in bodies if called[at : at + len(one)] == one), None)
        if body is None:
            return [called]
        found.append(body)
        at += len(body)
    return found


def _common(dims: Sequence[Shape | None]) -> Shape | None:
    """The one shape of all tensors of an operator that are no scalars; None where they differ."""
    known = {one for one in dims if one}
    return None if len(known) > 1 else next(iter(known), ())


def _root(names: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest sequence of which these are repetitions."""
    size = len(names)
    roots = (n for n in range(1, size) if size % n == 0 and names[:n] * (size // n) == names)
    return names[: next(roots, size)]


_NO_WORK: Final = frozenset({"aten::item", "aten::sum", "aten::copy_", _ASSIGNS})


def is_work(base: tuple[str, ...]) -> bool:
    """Whether this is an update, or a norm: what torch does for lists."""
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


def are_shapes_of_a_model(trace: Trace, kinds: Counter[Shape]) -> bool:
    """Whether there are as many of each shape as parameters, or twice as many: of two loops."""
    known, _ = trace.once(_parameters)
    total = sum(known.values())
    if not total:
        return False
    times = 1 if sum(kinds.values()) <= total else 2
    fitting = sum(min(n, times * known[kind]) for kind, n in kinds.items())
    return fitting >= _FITTING * sum(kinds.values())


def parameters_of(trace: Trace) -> set[int]:
    """The numbers of what layers take besides their input, and of gradients."""
    return trace.once(_parameters)[1]


def shapes_of(trace: Trace) -> set[Shape]:
    """Of these, the shapes."""
    return set(trace.once(_parameters)[0])


def _parameters(trace: Trace) -> tuple[Counter[Shape], set[int]]:
    rows = operators_named(trace, LAYER)
    rows = rows[are_called(trace, rows)]  # within others, they take what these have made
    tables = are_named(trace, rows, _EMBEDDING).tolist()
    taken: Sequence[Sequence[Any]] = identity.taken(trace, rows) or [()] * len(rows)
    kinds, numbers = Counter[Shape](), set[int]()
    for dims, one, table in zip(shapes(trace, rows), taken, tables, strict=True):
        for at in (0,) if table else range(1, len(dims)):
            number = one[at] if at < len(one) else -1
            mine = number if isinstance(number, int) else -1
            kind = dims[at] if at < len(dims) else None
            if kind and (mine < 0 or mine not in numbers):
                kinds[kind] += 1
            numbers.add(mine)
    ends = rows_of(trace, "torch::autograd::AccumulateGrad")
    for one in identity.taken(trace, ends) or []:
        numbers.update(n for n in one if isinstance(n, int))
    return kinds, numbers - {-1}
