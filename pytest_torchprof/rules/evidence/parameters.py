"""Steps of optimizers: whose they are, and what they call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import LAYER, are_called, shapes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    Names,
    are_named,
    marks_named,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.tree import (
    engine_steps_between,
    once_nested,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What a Python loop does to one tensor after the other, and whether they are parameters.

if TYPE_CHECKING:
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


def consecutive_calls(trace: Events, rows: Ints, fits: Bools, least: int) -> list[Ints]:
    """Consecutive calls on a thread, all of which fit."""
    edges = np.flatnonzero(np.diff(fits.astype(np.int8), prepend=0, append=0))
    found: list[Ints] = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start < least:
            continue
        part = rows[start:stop]
        part = part[~are_named(trace, part, BESIDE)]
        part = part[~within(trace, part, lambda events: are_named(trace, events, _OPTIMIZER))]
        threads = np.flatnonzero(np.diff(trace.thread[part])) + 1
        found += (one for one in np.split(part, threads) if len(one) >= least)
    return found


def repeated(trace: Events, rows: Ints, least: int) -> Iterator[Loop]:
    """What is done to at least ``least`` tensors each, one loop after the other."""
    units = _units(trace, rows)
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    roots = [_root(tuple(names[at] for at in unit)) for unit, _ in units]
    often = Counter[tuple[str, ...]]()
    for (unit, _), root in zip(units, roots, strict=True):
        often[root] += len(unit) // len(root)
    reps: dict[tuple[str, ...], list[tuple[int, Ints, _Shape]]] = {
        root: [] for root, times in often.items() if times >= least and len(root) <= _LONGEST
    }
    number = 0
    for (unit, kind), root in zip(units, roots, strict=True):
        for at in range(0, len(unit), len(root)):
            if root in reps:
                reps[root].append((number, rows[unit[at : at + len(root)]], kind))
            number += 1
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


# ---- What to do instead of a loop over parameters, by what it calls.

AVERAGE: Final = (
    "torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay), or "
    "torch.optim.swa_utils.AveragedModel with multi_avg_fn=get_ema_multi_avg_fn(decay)"
)
#: All that an average of weights calls.
_AVERAGES: Final = Names(rf"aten::(lerp_?|mul_?|add_?|sub|copy_|detach|alias|to|clone)$|{ASSIGNS}$")
_OF_NORMS: Final = (
    "one call for all, which autograd supports too: torch._foreach_norm(parameters) for norms, "
    "torch.stack(torch._foreach_norm(parameters)).square().sum() for a sum of squares, or "
    "torch.nn.utils.clip_grad_norm_(parameters, max_norm); and read one value at the end"
)
OF_LISTS: Final = (
    "call the functions for lists of tensors, as in torch._foreach_add_(parameters, gradients, "
    "alpha=-lr), or torch._foreach_add where autograd records the loop"
)
OF_STEP: Final = (
    "call the functions for lists of tensors in the optimizer's step (torch._foreach_mul_, "
    "torch._foreach_add_ …), or use torch's optimizer, if it has this one, with foreach=True or "
    "fused=True"
)


def advice(names: Sequence[str], alpha: float | None) -> str:
    """What to do instead of these operators for each parameter.

    ``alpha``: the factor with which another tensor is added in place, if known.
    """
    short = {name.removeprefix("aten::") for name in names}
    if _is_average(names, short, alpha):
        return AVERAGE
    return _OF_NORMS if "sum" in short or any(map(NORM.match, names)) else OF_LISTS


def _is_average(names: Sequence[str], short: set[str], alpha: float | None) -> bool:
    """Whether it looks like an average: `lerp`, or ``a * old + (1 - a) * new`` and no more.

    Not momentum or a step: these add all of the new tensor, or subtract it.
    """
    if not all(map(_AVERAGES.match, names)):
        return False
    blends = names.count("aten::mul") == 2 and short & {"add", "add_"}
    part = alpha is None or 0 < alpha < 1 or "mul" in short
    return bool(short & {"lerp_", "lerp"} or ({"mul_", "add_"} <= short and part) or blends)


#: By torch's class: the operator that its loop over single parameters runs once for each, and one
#: whose calls are to be subtracted; for classes with a foreach or a fused form.
#: Source: the functions ``_single_tensor_…`` in torch/optim, 1.8 to 2.13.
UPDATES: Final[Mapping[str, tuple[str, str | None]]] = {
    "ASGD": ("aten::mul_", "aten::sub"),  # the second mul_ is of the average
    "Adadelta": ("aten::div_", None),
    "Adafactor": ("aten::rsqrt_", None),
    "Adagrad": ("aten::addcmul_", None),
    "Adam": ("aten::addcdiv_", None),
    "AdamW": ("aten::addcdiv_", None),
    "Adamax": ("aten::addcdiv_", None),
    "NAdam": ("aten::addcmul_", None),
    "RAdam": ("aten::addcmul_", None),
    "RMSprop": ("aten::addcmul_", None),
    "Rprop": ("aten::clamp_", None),
    "SGD": ("aten::add_", "aten::mul_"),  # the second add_ is of the momentum
}
#: torch's other classes, which have no form for all parameters at once.
_NO_FORM: Final = frozenset({"LBFGS", "Muon", "SparseAdam"})
_NONE: Final = np.zeros(0, np.int64)

STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_TOGETHER: Final = late(r"aten::_(foreach|fused)_")


class OptimizerStep(Frozen, frozen=True):
    """An optimizer's step: its event and class, torch's class according to its calls, the operators
    that it calls directly once its loss is known, and their names; and how long it takes from then
    on.
    """

    event: int
    name: str
    known: str | None
    rows: Ints
    calls: tuple[str, ...]
    took_ns: int

    @property
    def own(self) -> bool:
        """Whether its loop, if it has any, is not torch's."""
        return self.known is None and self.name not in _NO_FORM

    def loop(self) -> ParameterLoop:
        """What these calls say of its loop."""
        return _loop(self.known, self.calls)


class ParameterLoop(NamedTuple):
    """Of a step: whether it already uses a form for all parameters at once; how many parameters a
    class of torch's updates one by one; and which of its calls such a loop runs once for each.
    """

    together: bool
    updated: int
    updates: Ints


@lru_cache(maxsize=100)
def _loop(known: str | None, calls: tuple[str, ...]) -> ParameterLoop:
    """Cached, because the steps of a test call the same."""
    together = any(map(_TOGETHER.match, set(calls)))
    if known is None:
        return ParameterLoop(together, 0, _NONE)
    once, off = UPDATES[known]
    updates = np.array([at for at, call in enumerate(calls) if call == once], np.int64)
    updated = len(updates) - (calls.count(off) if off else 0)
    return ParameterLoop(together, updated, updates)


def optimizer_steps(trace: Events) -> list[OptimizerStep]:
    """The selected steps of optimizers."""
    return trace.once(_steps)


def _steps(trace: Events) -> list[OptimizerStep]:
    events, named = once_nested(trace, _marked)
    if not len(events):
        return []
    if not (chosen := trace.selection[events]).all():
        named = [*compress(named, chosen)]
        events = events[chosen]
    rows, calls, took = _called(trace, events, sparse="SGD" in named)
    found = [name if name in UPDATES else None for name in named]
    return [*map(OptimizerStep, events.tolist(), named, found, rows, calls, took)]


def _marked(trace: Events) -> tuple[Ints, list[str]]:
    """All annotations of steps, and the classes in their names."""
    events = marks_named(trace, STEP)
    return events, [_class_name(trace.names[number]) for number in trace.name[events].tolist()]


def _called(
    trace: Events, events: Ints, *, sparse: bool
) -> tuple[list[Ints], list[tuple[str, ...]], list[int]]:
    """What each step calls directly once its loss is known, with names, and how long it takes from
    then on.
    """
    ts = trace.ts
    ends = ts[events] + trace.dur[events]
    stops = ts.searchsorted(ends).tolist()
    called: list[Ints] = []
    names: list[tuple[str, ...]] = []
    took: list[int] = []
    for step, stop, end in zip(events.tolist(), stops, ends.tolist(), strict=True):
        rows, calls, since = once_nested(trace, _called_between, step, stop, sparse)
        called.append(rows)
        names.append(calls)
        took.append(end - int(ts[since]))
    return called, names, took


def _called_between(
    trace: Events, step: int, stop: int, sparse: bool
) -> tuple[Ints, tuple[str, ...], int]:
    """What a step calls up to an event, with names; and since which event its loss is known."""
    # With a closure, the updates follow its backward pass.
    ran = engine_steps_between(trace, step, stop)
    since, begin = (int(ran[-1]), int(ran[-1])) if len(ran) else (step, step + 1)
    mine = trace.parent[begin:stop] == step
    if sparse:
        left_out = once_nested(trace, _sparse_additions)
        mine[left_out[(left_out >= begin) & (left_out < stop)] - begin] = False
    rows = mine.nonzero()[0]
    rows += begin
    rows.flags.writeable = False
    return rows, tuple(map(trace.names.__getitem__, trace.name[rows].tolist())), since


@lru_cache(maxsize=1000)
def _class_name(name: str) -> str:
    found = STEP.match(name)
    return found[1] if found else ""


def _sparse_additions(trace: Events) -> Ints:
    """In-place additions of a sparse tensor: they call the form with an output."""
    above = trace.parent[operators_named(trace, "aten::add")]
    return above[are_named(trace, above, "aten::add_")]
