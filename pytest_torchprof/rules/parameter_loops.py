"""Loops in Python that do the same to one tensor after the other, and what to do instead."""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.calls import LAYER, mean_elements, shapes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, are_named, operators_named, selected_operators
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import are_called, calls, within_named
from pytest_torchprof.work.autograd import flat
from pytest_torchprof.work.repeats import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.rules.optimizer_steps import OptimizerStep
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

    _Shape = tuple[int, ...]

ELEMENTWISE: Final = (
    r"add|sub|mul|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max|neg|sqrt|rsqrt|pow|exp|sign"
    r"|abs|reciprocal|square"
)
#: Operators that write to their first argument, and that make another tensor of its shape.
WRITES: Final = Names(rf"aten::({ELEMENTWISE}|copy)_$")
MAKES: Final = Names(rf"aten::({ELEMENTWISE}|rsub|maximum|minimum)$")
NORM: Final = Names(r"aten::(norm|linalg_vector_norm|frobenius_norm)$")
_SUM: Final = Names(r"aten::(sum|item)$")
#: What stands between them without doing work, and what ``p.data = …`` calls.
_BESIDE: Final = Names(r"aten::(detach|clone|alias|zeros_like|to)$|detach$")
_ASSIGNS: Final = "aten::_has_compatible_shallow_copy_type"
_OPTIMIZER: Final = Names(r"Optimizer\.")
_PRODUCT: Final = Names(
    r"aten::(linalg_(?!vector_norm)\w+|(add|b|ba)?(mm|mv|bmm)|matmul|dot|eigh)$"
)
_EMBEDDING: Final = Names(r"aten::embedding(_bag)?$")
#: The most operators on one tensor.
_LONGEST: Final = 24
#: Instead of the number of a shape.
_NO_SHAPE, _SEVERAL = -1, -2


class Loop(Frozen, frozen=True):
    """What is done to ``count`` tensors: the calls, and the names of those on each of them.

    ``of_model``: they are a model's, as far as known; ``step``: the optimizer's class that does it.
    """

    rows: Ints
    names: tuple[str, ...]
    count: int
    of_model: bool = True
    step: str = ""

    @classmethod
    def of_step(cls, trace: Events, step: OptimizerStep) -> Loop:
        """The updates of an optimizer's step; of no tensors if it takes products of them."""
        rows = step.rows[are_named(trace, step.rows, WRITES)]
        counts = Counter(trace.name[rows].tolist()).values()
        each = [n for n in counts if 8 * n >= max(counts)]  # others are of a few tensors
        if are_named(trace, step.rows, _PRODUCT, LAYER).any() or not step.loops:
            each = []
        return cls(rows, tuple(dict.fromkeys(step.calls)), min(each, default=0), step=step.name)

    @property
    def message(self) -> str:
        """What was found."""
        if self.step:
            return f"{self.step} updates {self.count} parameters one by one"
        names = ", ".join(name.removeprefix("aten::") for name in self.names)
        return f"a loop calls {names} for each of {self.count} parameters"

    def fix(self, trace: Events) -> str:
        """What to do instead."""
        return OF_STEP if self.step else _advice(self.names, _alpha(trace, self))

    def pays(self, trace: Events, most_elements: float) -> bool:
        """Whether a CPU gains from doing it for all at once; a device always does."""
        if (launched_in(trace, self.rows[:1])[0] >= 0).any():
            return True
        if mean_elements(trace, self.rows) > most_elements:
            return False
        return not (all(map(NORM.match, self.names)) or _is_by_tensor(trace, self))


def _is_by_tensor(trace: Events, loop: Loop) -> bool:
    """Whether tensors are only scaled, by a tensor of one element and not by a Python number."""
    (args,), (dims,) = trace.operands(loop.rows[:1]), shapes(trace, loop.rows[:1])
    kinds = decode_part(args.types) or []
    return len(loop.names) == 1 and dims[1:2] == [()] and kinds[:1] == kinds[1:2]


def loops_in(trace: Events, least: int) -> Iterator[Loop]:
    """Calls that repeat, each time on tensors of one shape, ``least`` times or more."""
    rows = calls(trace)
    rows = rows[trace.selection[rows] & ~within_named(trace, rows, _OPTIMIZER)]
    fits = are_named(trace, rows, WRITES, MAKES, NORM, _SUM, _BESIDE, _ASSIGNS)
    part = np.cumsum(~fits) + trace.thread[rows].astype(np.int64) * (len(rows) + 1)
    fits &= ~are_named(trace, rows, _BESIDE)
    rows, key = rows[fits], (part * len(trace.names) + trace.name[rows])[fits]
    known: dict[_Shape, int] = {}
    single = [_single(dims, known) for dims in shapes(trace, rows)]
    shape, numbers = np.array(single, np.int64), [*known]
    for one in stretches(key, least, _LONGEST):
        body: Any = rows[:0].reshape(0, one.period)
        kinds: set[_Shape] = set()
        for start in range(one.start, one.start + one.period):
            stop = one.stop - (one.stop - start) % one.period
            at: Any = np.arange(start, stop).reshape(-1, one.period)
            high = shape[at].max(axis=1)
            alike = (high > _NO_SHAPE) & (
                (shape[at] == high[:, None]) | (shape[at] == _NO_SHAPE)
            ).all(axis=1)
            if alike.sum() > len(body):
                body, kinds = rows[at[alike]], {numbers[i] for i in distinct(high[alike]).tolist()}
        names = tuple(trace.names[number] for number in trace.name[body[:1].ravel()].tolist())
        if len(body) >= least and _is_work(names) and not _is_first(trace, names, int(body[0, 0])):
            own = [name != _ASSIGNS for name in names]
            yield _judged(trace, tuple(compress(names, own)), body[:, own], kinds, least)


def _single(dims: Sequence[_Shape | None], known: dict[_Shape, int]) -> int:
    """The number of the one shape of all tensors of a call; `_NO_SHAPE` for only scalars."""
    some = [*{one for one in dims if one}]
    if len(some) > 1:
        return _SEVERAL
    return known.setdefault(some[0], len(known)) if some else _NO_SHAPE


def _judged(
    trace: Events, names: tuple[str, ...], body: Ints, kinds: set[_Shape], least: int
) -> Loop:
    """Count the tensors, and decide whether they are a model's: parameters, gradients or states."""
    rows = body.ravel()
    known, numbers = trace.once(_parameters)
    mixed = len({*map(len, kinds)}) > 1 and min(map(len, kinds)) == 1
    if (takes := trace.taken(rows)) is None:
        return Loop(rows, names, len(body), mixed and known.issuperset(kinds))
    each = [set(flat(takes[at : at + len(names)])) for at in range(0, len(rows), len(names))]
    own = 2 * sum(not numbers.isdisjoint(some) for some in each) > len(each)
    writes = are_named(trace, rows, WRITES).tolist()
    written = {one[0] for one, write in zip(takes, writes, strict=True) if write and one}
    count = len({takes[at][0] for at in range(0, len(rows), len(names)) if takes[at]})
    if mixed and not own:
        made = set[int]().union(*(trace.made(rows) or []))
        own = len(written - made - {-1}) >= least
    return Loop(rows, names, count, own)


def _is_work(names: tuple[str, ...]) -> bool:
    """Whether this is an update, or a norm: torch has functions on lists for these."""
    work = {name.removeprefix("aten::") for name in names}
    kinds = work - {"item", "sum", "copy_", _ASSIGNS.removeprefix("aten::")}
    if not kinds or ("item" in work and kinds & {"sub", "rsub"}):
        return False
    if any(map(NORM.match, names)):
        return True
    if "sum" in work:
        return bool(kinds & {"pow", "square", "mul", "abs"})
    return "item" not in work and (len(names) > 1 or any(map(WRITES.match, names)))


def _is_first(trace: Events, names: tuple[str, ...], row: int) -> bool:
    """Whether weights are scaled before any layer has used them."""
    layers = operators_named(trace, LAYER)
    return names in {("aten::mul_",), ("aten::div_",)} and len(layers) > 0 and row < layers[0]


def _parameters(trace: Events) -> tuple[set[_Shape], set[int]]:
    """The shapes and numbers of what layers take besides their input, and of gradients."""
    rows = operators_named(trace, LAYER)
    rows = rows[are_called(trace, rows)]  # nested ones take what their parents made
    tables = are_named(trace, rows, _EMBEDDING).tolist()
    found = [
        one
        for dims, table in zip(shapes(trace, rows), tables, strict=True)
        for one in (dims[:1] if table else dims[1:])
    ]
    taken = trace.taken(rows) or []
    numbers = flat(one[:1] if table else one[1:] for one, table in zip(taken, tables, strict=False))
    ends = selected_operators(trace, "torch::autograd::AccumulateGrad")
    return {one for one in found if one}, {*numbers, *flat(trace.taken(ends) or [])}


# ---- What to do instead of a loop over parameters, by what it calls.

_AVERAGE: Final = (
    "torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay), or "
    "torch.optim.swa_utils.AveragedModel with multi_avg_fn=get_ema_multi_avg_fn(decay)"
)
#: All that an average of weights calls.
_AVERAGES: Final = Names(r"aten::(lerp_?|mul_?|add_?|sub|copy_)$")
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


def _alpha(trace: Events, loop: Loop) -> float | None:
    """The factor with which the loop adds another tensor in place, if known."""
    if "aten::add_" not in loop.names:
        return None
    at = loop.names.index("aten::add_")
    (args,) = trace.operands(loop.rows[at : at + 1])
    concrete = decode_part(args.concrete) or []
    try:
        return float(concrete[2]) if len(concrete) > 2 else None
    except ValueError:
        return None


def _advice(names: Sequence[str], alpha: float | None) -> str:
    """What to do instead of these operators for each parameter.

    An average is `lerp`, or ``a * old + (1 - a) * new``, and no more. Momentum or a step are none:
    these add all of the new tensor, or subtract it.
    """
    short = {name.removeprefix("aten::") for name in names}
    part = alpha is None or 0 < alpha < 1 or "mul" in short
    blends = names.count("aten::mul") == 2 and short & {"add", "add_"}
    if all(map(_AVERAGES.match, names)) and (
        short & {"lerp_", "lerp"} or ({"mul_", "add_"} <= short and part) or blends
    ):
        return _AVERAGE
    return _OF_NORMS if "sum" in short or any(map(NORM.match, names)) else OF_LISTS
