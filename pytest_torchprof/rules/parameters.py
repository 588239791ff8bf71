"""A rule about loops over a model's parameters, in Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device import launched_in
from pytest_torchprof.analysis.unprofiled import slowdown_share
from pytest_torchprof.rules import identity
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.rules.levels import calls
from pytest_torchprof.rules.names import Names, are_named, events_named, operators_named
from pytest_torchprof.rules.operands import mean_elements, shapes
from pytest_torchprof.rules.optimizers import steps
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints
    from pytest_torchprof.rules.optimizers import Step

    _Shape = tuple[int, ...]

_ELEMENTWISE: Final = (
    r"add|sub|mul|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max|neg|sqrt|rsqrt|pow|exp|sign"
    r"|abs|reciprocal|square"
)
#: What writes to the tensor that it takes first.
_WRITES: Final = Names(rf"aten::({_ELEMENTWISE}|copy)_$")
#: What makes another tensor of its shape.
_MAKES: Final = Names(rf"aten::({_ELEMENTWISE}|rsub|maximum|minimum)$")
_NORM: Final = Names(r"aten::(norm|linalg_vector_norm|frobenius_norm)$")
_SUM: Final = Names(r"aten::sum$")
_READ: Final = Names(r"aten::item$")
#: What is between them, and no work.
_BESIDE: Final = Names(r"aten::(detach|clone|alias|zeros_like|to)$|detach$")
_ALL: Final = (_WRITES, _MAKES, _NORM, _SUM, _READ, _BESIDE)
_OPTIMIZER: Final = Names(r"Optimizer\.")
_RANDOM: Final = Names(r"aten::(uniform|normal|bernoulli|erfinv)_$")
_PRODUCT: Final = Names(
    r"aten::(linalg_(?!vector_norm)\w+|(add|b|ba)?(mm|mv|bmm)|matmul|dot|eigh)$"
)
#: Operators in what is done to one parameter, at most.
_LONGEST: Final = 24
#: So many shapes are a model's, whatever else is known.
_MANY_SHAPES: Final = 4
#: What the functions for lists save of each call, and of a loop with one a parameter, measured with
#: torch 2.13 on one thread of a CPU, in turn: 1.0 to 1.5 us, and 0.4 to 0.7; of a device, the part
#: of the loop's time.
_CALL_NS, _ONLY_CALL_NS, _SAVED_ON_DEVICE = 1_200, 550, 0.75

_AVERAGE: Final = (
    "torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay), or "
    "torch.optim.swa_utils.AveragedModel with multi_avg_fn=get_ema_multi_avg_fn(decay)"
)
_OF_NORMS: Final = (
    "torch._foreach_norm(tensors) for all norms, or torch.nn.utils.clip_grad_norm_(parameters, "
    "max_norm), and read one value at the end"
)
_OF_LISTS: Final = (
    "call the functions for lists of tensors, as in torch._foreach_add_(parameters, gradients, "
    "alpha=-lr)"
)
_OF_STEP: Final = (
    "call the functions for lists of tensors in the optimizer's step (torch._foreach_mul_, "
    "torch._foreach_add_ …), or where torch has the optimizer, pass it foreach=True or fused=True"
)


@rule(
    "per-parameter-loop",
    fix=_OF_LISTS,
    triggers=rf"aten::({_ELEMENTWISE})_?$|{_NORM.pattern}",
    needs="shapes",
    parameters=Threshold(10, "1", "fewer gain some microseconds at most"),
    cpu_elements=Threshold(
        16_384, "1", "on a CPU, larger parameters take the time that memory takes, in a loop or not"
    ),
)
def per_parameter_loop(trace: Trace, *, parameters: float, cpu_elements: float) -> Matches:
    """A Python loop does the same to each parameter of a model, one after the other.

    What it does
        Counts loops that do the same few elementwise operations, or take the norm, of at least
        ``parameters`` (10) tensors one by one: averages of weights, updates by hand, weight decay,
        penalties, gradients that are scaled or whose norms are read. Tensors are a model's where
        they are of several shapes, with one dimension and with more, or where layers take them. A
        live test knows whether they are as many tensors; of a stored trace, shapes must be those of
        layers in it, or four different ones. The steps of optimizers that are not torch's own
        count, too, if they do the same to so many parameters, and no products.

        Not: torch's optimizers (`single-tensor-optimizer` is about those); layers; random numbers
        and fills, as when weights are initialised, nor scaling them before the model has run;
        copies alone, which look like ``load_state_dict``; differences that are read, as when a test
        compares two models; clones. On a CPU, not where the functions for lists gain nothing:
        parameters of more than ``cpu_elements`` (16,384) elements on average; norms that are kept
        as tensors, and products with a tensor of one element, as in torch's own
        ``clip_grad_norm_``.

    Why it is slow
        Each operation on each parameter is a call from Python, and on a device a launch. Functions
        for lists do with one call for all. On a CPU, an average of 20 parameters takes a fifth of
        the time.

    Example
        .. code:: python

            for average, parameter in zip(ema.parameters(), model.parameters()):
                average.mul_(decay).add_(parameter, alpha=1 - decay)

    Use instead
        .. code:: python

            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)
    """
    loops = [*_loops(trace, int(parameters)), *_custom_steps(trace, int(parameters))]
    kept = [loop for loop in loops if loop.on_device or loop.pays(trace, cpu_elements)]
    found = [loop for loop in kept if loop.of_model]
    wants = len(found) < len(kept) or any(loop.unsure for loop in found)
    if not found:
        return Matches(NO_MATCHES.event, "", wants_tensors=wants)
    first, last = (np.array([loop.rows[at] for loop in found], np.int64) for at in (0, -1))
    since, until = trace.ts[first], trace.ts[last] + trace.dur[last]
    return Matches(
        first,
        [loop.message() for loop in found],
        cost_ns=np.array([loop.saved_ns(trace) for loop in found], np.int64),
        span_ns=(since, until),
        fix=[loop.fix for loop in found],
        wants_tensors=wants,
    )


@dataclass(frozen=True)
class _Loop:
    """What is done to ``count`` parameters, one after the other.

    ``of_model``: they are a model's; ``unsure``: a capture that knows tensors may deny it.
    ``step`` is the class of the optimizer that does it, with so many ``calls``.
    """

    rows: Ints
    names: tuple[str, ...]
    count: int
    on_device: bool
    of_model: bool = True
    unsure: bool = False
    step: str = ""
    calls: int = 0

    @property
    def fix(self) -> str:
        short = {name.removeprefix("aten::") for name in self.names}
        if self.step:
            return _OF_STEP
        if short & {"lerp_", "lerp"} or {"mul_", "add_"} <= short:
            return _AVERAGE
        return _OF_NORMS if any(_NORM.match(name) for name in self.names) else _OF_LISTS

    def message(self) -> str:
        if self.step:
            return f"{self.step} updates {self.count} parameters one by one"
        said = ", ".join(name.removeprefix("aten::") for name in self.names)
        return f"a loop calls {said} for each of {self.count} parameters"

    def pays(self, trace: Trace, most_elements: float) -> bool:
        """Whether a CPU gains by doing it for all at once."""
        if mean_elements(trace, self.rows) > most_elements:
            return False
        work = [name for name in self.names if not _BESIDE.match(name)]
        if all(_NORM.match(name) for name in work):
            return False
        return not (len(work) == 1 and _is_by_tensor(trace, self.rows))

    def saved_ns(self, trace: Trace) -> float:
        if self.on_device:
            end = trace.ts[self.rows[-1]] + trace.dur[self.rows[-1]]
            return float(end - trace.ts[self.rows[0]]) * _SAVED_ON_DEVICE
        calls = self.calls or len(self.rows)
        each = _CALL_NS if calls > self.count else _ONLY_CALL_NS
        # As the others' costs, in this run's time, of which the profiler is a part.
        return calls * each / slowdown_share(trace)


def _is_by_tensor(trace: Trace, rows: Ints) -> bool:
    """Whether tensors are scaled by one of one element, and not by a number of Python's."""
    (args,) = trace.operands(rows[:1])
    (dims,) = shapes(trace, rows[:1])
    kinds = bytes(args.types).replace(b" ", b"").strip(b"[]").split(b",")
    return len(dims) > 1 and dims[1] == () and len(kinds) > 1 and kinds[0] == kinds[1]


# ------------------------------------------------------------------------------- loops by hand


def _loops(trace: Trace, least: int) -> Iterator[_Loop]:
    some = events_named(trace, _WRITES, _MAKES, _NORM)
    some = some[trace.selection[some]]
    if len(some) < least:
        return
    rows = calls(trace)
    rows = rows[trace.selection[rows]]
    fits = are_named(trace, rows, *_ALL)
    if np.count_nonzero(fits) < least:
        return
    for stretch in _stretches(trace, rows, fits, least):
        found = _repeated(trace, stretch, least)
        if found is not None:
            base, reps = found
            yield _judged(trace, base, reps, least)


def _stretches(trace: Trace, rows: Ints, fits: Bools, least: int) -> list[Ints]:
    """Calls that follow one upon the other on a thread, all of which fit."""
    edges = np.flatnonzero(np.diff(fits.astype(np.int8), prepend=0, append=0))
    found = []
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start < least:
            continue
        part = rows[start:stop]
        part = part[~are_named(trace, part, _BESIDE)]
        part = part[~within(trace, part, lambda events: are_named(trace, events, _OPTIMIZER))]
        threads = np.flatnonzero(np.diff(trace.thread[part])) + 1
        found += [one for one in np.split(part, threads) if len(one) >= least]
    return found


def _repeated(
    trace: Trace, rows: Ints, least: int
) -> tuple[tuple[str, ...], list[tuple[Ints, _Shape]]] | None:
    """What is done to each tensor, and for each the calls and its shape; None if not so often."""
    shape = [_common(dims) for dims in shapes(trace, rows)]
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    units: list[tuple[list[int], _Shape]] = []
    for at, one in enumerate(shape):
        if one == () and units:
            units[-1][0].append(at)  # of what was made of the tensor before
        elif one and units and units[-1][1] == one:
            units[-1][0].append(at)
        elif one:
            units.append(([at], one))
    said = [tuple(names[at] for at in unit) for unit, _ in units]
    bases = Counter[tuple[str, ...]]()
    for called in said:
        root = _root(called)
        bases[root] += len(called) // len(root)
    if not bases:
        return None
    (base, _), *_ = bases.most_common(1)
    if len(base) > _LONGEST or not _is_work(base):
        return None
    reps: list[tuple[Ints, _Shape]] = []
    for (unit, kind), names_of in zip(units, said, strict=True):
        if _root(names_of) == base:
            reps += [(rows[part], kind) for part in np.array(unit).reshape(-1, len(base))]
    return (base, reps) if len(reps) >= least else None


def _common(dims: Sequence[_Shape | None]) -> _Shape | None:
    """The one shape of all tensors of an operator that are no scalars; None where they differ."""
    known = {one for one in dims if one}
    return None if len(known) > 1 else next(iter(known), ())


def _root(names: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest sequence of which these are repetitions."""
    size = len(names)
    roots = (n for n in range(1, size) if size % n == 0 and names[:n] * (size // n) == names)
    return names[: next(roots, size)]


def _is_work(base: tuple[str, ...]) -> bool:
    """Whether this is an update, or a norm: what torch does for lists."""
    work = [name.removeprefix("aten::") for name in base if not _BESIDE.match(name)]
    kinds = {name for name in work if name not in {"item", "sum", "copy_"}}
    if not kinds or ("item" in work and kinds & {"sub", "rsub"}):
        return False
    if any(_NORM.match(name) for name in base):
        return True
    if "sum" in work:
        return bool(kinds & {"pow", "square", "mul", "abs"})
    return "item" not in work and (len(work) > 1 or any(_WRITES.match(name) for name in base))


def _judged(
    trace: Trace, base: tuple[str, ...], reps: list[tuple[Ints, _Shape]], least: int
) -> _Loop:
    """Whether these tensors are as many, and the parameters of a model."""
    kinds = {one for _, one in reps}
    mixed = len({len(one) for one in kinds}) > 1 and min(map(len, kinds)) == 1
    rows, count = np.concatenate([part for part, _ in reps]), len(reps)
    on_device = bool(launched_in(trace, rows[:1])[0][0] >= 0)
    takes = identity.taken(trace, rows)
    if _is_first(trace, base, int(rows[0])):
        return _Loop(rows, base, count, on_device, of_model=False)
    if takes is None:
        mixed = mixed and (len(kinds) >= _MANY_SHAPES or kinds <= _shapes_of_layers(trace))
        return _Loop(rows, base, count, on_device, of_model=mixed, unsure=True)
    known = [[n for n in one if isinstance(n, int) and n >= 0] for one in takes]
    parts = [[*chain(*known[at : at + len(base)])] for at in range(0, len(known), len(base))]
    count = len({one[0] for one in parts if one})
    if count >= least and not mixed:
        of_layers = _taken_by_layers(trace)
        mixed = 2 * sum(not of_layers.isdisjoint(one) for one in parts) > len(parts)
    return _Loop(rows, base, count, on_device, of_model=count >= least and mixed)


def _is_first(trace: Trace, base: tuple[str, ...], row: int) -> bool:
    """Whether weights are scaled that were drawn just now, before any layer has taken them."""
    if base not in {("aten::mul_",), ("aten::div_",)}:
        return False
    drawn, layers = operators_named(trace, _RANDOM), operators_named(trace, LAYER)
    return bool((drawn < row).any() and not (layers < row).any())


def _shapes_of_layers(trace: Trace) -> set[_Shape]:
    """Of what layers take besides their input, and of their gradients."""
    layers = operators_named(trace, LAYER)
    return {one for dims in shapes(trace, layers) for one in dims[1:] if one}


def _taken_by_layers(trace: Trace) -> set[int]:
    """What layers take besides their input."""
    taken = identity.taken(trace, operators_named(trace, LAYER)) or []
    return {n for one in taken for n in one[1:] if isinstance(n, int) and n >= 0}


# ---------------------------------------------------------------------------- custom optimizers


def _custom_steps(trace: Trace, least: int) -> Iterator[_Loop]:
    """Steps of optimizers that are not torch's, and do the same to each parameter."""
    for step in steps(trace):
        if not step.own or step.together or are_named(trace, step.rows, _PRODUCT, LAYER).any():
            continue
        count = _updates(step)
        writes = step.rows[are_named(trace, step.rows, _WRITES)]
        if count >= least:
            device = bool(launched_in(trace, writes[:1])[0][0] >= 0)
            names, calls = tuple(dict.fromkeys(step.calls)), len(step.calls)
            yield _Loop(writes, names, count, device, step=step.name, calls=calls)


def _updates(step: Step) -> int:
    """How often it calls what it does once for each parameter."""
    counts = Counter(name for name in step.calls if _WRITES.match(name))
    most = max(counts.values(), default=0)
    return min((n for n in counts.values() if 8 * n >= most), default=0)
