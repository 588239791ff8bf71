"""A rule about loops over a model's parameters, in Python."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import LAYER, guessed, is_trifle, mean_elements, shapes
from pytest_torchprof.rules.evidence.parameters import (
    ALL,
    AVERAGE,
    BESIDE,
    ELEMENTWISE,
    MAKES,
    NORM,
    OF_LISTS,
    OF_STEP,
    WRITES,
    advice,
    alpha_of,
    are_shapes_of_a_model,
    consecutive_calls,
    optimizer_steps,
    parameters_of,
    repeated,
    shapes_of,
)
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace.names import Names, are_named, operators_named
from pytest_torchprof.trace.tree import calls, free_named, once_selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.rules.evidence.parameters import OptimizerStep, _Shape
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken


_RANDOM: Final = Names(r"aten::(uniform|normal|bernoulli|erfinv)_$")
_PRODUCT: Final = Names(
    r"aten::(linalg_(?!vector_norm)\w+|(add|b|ba)?(mm|mv|bmm)|matmul|dot|eigh)$"
)
#: This many shapes are a model's, whatever else is known.
_MANY_SHAPES: Final = 4
#: What the functions for lists save per call, and in a loop with one call per parameter, measured
#: alternately with torch 2.13 on one CPU thread: 0.8 to 1.9 us, and 0.4 to 1.7; on a device, the
#: share of the loop's time.
_CALL_NS, _ONLY_CALL_NS, _SAVED_ON_DEVICE = 1_200, 1_000, 0.75
#: Per call of an average, of which one call replaces two to four: 2.1 to 3.2 us in 24 to 96
#: parameters of 80 to 9,000 elements, between steps of training.
_AVERAGE_CALL_NS: Final = 2_500


@rule(
    "per-parameter-loop",
    fix=OF_LISTS,
    triggers={
        rf"aten::({ELEMENTWISE})_?$|{NORM.pattern}": 1,
        f"{WRITES.pattern}|{MAKES.pattern}|{NORM.pattern}": "parameters",
    },
    needs="shapes",
    blind=lambda trace: guessed(trace, WRITES, MAKES, NORM),
    sees_host=True,
    parameters=Threshold(10, "1", "fewer gain a few microseconds at most"),
    cpu_elements=Threshold(
        16_384, "1", "on a CPU, larger parameters are bound by memory, with or without a loop"
    ),
    cpu_share=Threshold(
        0.01, "1", "of everything that the test does on a CPU, by operators, FLOPs and memory"
    ),
)
def per_parameter_loop(
    trace: Events, *, parameters: float, cpu_elements: float, cpu_share: float
) -> Matches:
    """A Python loop does the same to each parameter of a model, one after the other.

    ## What it does

    Counts loops that do the same few elementwise operations on at least `parameters` (10) tensors
    of a model one by one, or take their norms: averages of weights, hand-written updates,
    penalties, gradients that are scaled; and steps of optimizers other than torch's that do so. The
    operations are those that have a torch function for lists (`torch._foreach_…`).

    Not counted: torch's optimizers (see `single-tensor-optimizer`), initialization, copies and
    clones alone, and differences that a test reads. On a CPU, parameters of more than
    `cpu_elements` (16,384) elements on average, norms that are kept as tensors, and loops that
    would save less than `cpu_share` (0.01) of the test, decided by counts, gain nothing.

    ## Why it is slow

    Each operation on each parameter is a call from Python, and on a device a launch. Functions for
    lists need one call for all.

    ## Example

    ```python
    for average, parameter in zip(ema.parameters(), model.parameters()):
        average.mul_(decay).add_(parameter, alpha=1 - decay)
    ```

    ## Use instead

    ```python
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)
    ```

    For a penalty, which autograd must record, the sum of squares of all norms:

    ```python
    penalty = torch.stack(torch._foreach_norm(list(model.parameters()))).square().sum()
    ```
    """
    if once_selected(trace, _free_calls) < parameters and not any(
        step.own for step in optimizer_steps(trace)
    ):
        return NO_MATCHES_OF_CALLS
    loops = [*_loops(trace, int(parameters)), *_custom_steps(trace, int(parameters))]
    if not loops:
        return NO_MATCHES
    kept = [loop for loop in loops if loop.on_device or loop.pays(trace, cpu_elements)]
    found = [loop for loop in kept if loop.of_model]
    wants = len(found) < len(kept) or any(loop.unsure for loop in found)
    if not found:
        return NONE_SO_FAR if wants else NO_MATCHES
    called = sum(0 if loop.on_device else loop.called_ns for loop in found)
    if is_trifle(trace, called, cpu_share) and not any(loop.on_device for loop in found):
        return NONE_SO_FAR if wants else NO_MATCHES
    first, last = (np.array([loop.rows[at] for loop in found], np.int64) for at in (0, -1))
    since, until = trace.ts[first], trace.ts[last] + trace.dur[last]
    return Matches(
        first,
        [loop.message() for loop in found],
        cost_ns=np.array([loop.saved_ns(trace) for loop in found], np.int64),
        span_ns=(since, until),
        fix=[loop.fix for loop in found],
        wants_tensors=wants,
        last=last,
    )


class _Loop(Frozen, frozen=True):
    """What is done to ``count`` parameters, one after the other.

    ``of_model``: they are a model's; ``unsure``: a capture that identifies tensors may refute it.
    ``step`` is the class of the optimizer that does it, with this many ``calls``. ``what`` is their
    name in the message: parameters, or gradients and the like, if known. ``alpha``: the factor with
    which it adds another tensor in place, if known.
    """

    rows: Ints
    names: tuple[str, ...]
    count: int
    on_device: bool
    of_model: bool = True
    unsure: bool = False
    step: str = ""
    calls: int = 0
    what: str = "parameters"
    alpha: float | None = None

    @property
    def fix(self) -> str:
        return OF_STEP if self.step else advice(self.names, self.alpha)

    def message(self) -> str:
        if self.step:
            return f"{self.step} updates {self.count} parameters one by one"
        names = ", ".join(name.removeprefix("aten::") for name in self.names)
        return f"a loop calls {names} for each of {self.count} {self.what}"

    def pays(self, trace: Events, most_elements: float) -> bool:
        """Whether a CPU gains from doing it for all at once."""
        if mean_elements(trace.operands(self.rows)) > most_elements:
            return False
        work = [name for name in self.names if not BESIDE.match(name)]
        if all(NORM.match(name) for name in work):
            return False
        return not (len(work) == 1 and _is_by_tensor(trace, self.rows))

    def saved_ns(self, trace: Events) -> float:
        if self.on_device:
            end = trace.ts[self.rows[-1]] + trace.dur[self.rows[-1]]
            return float(end - trace.ts[self.rows[0]]) * _SAVED_ON_DEVICE
        # Like other costs, in this run's time, which includes the profiler.
        return self.called_ns / slowdown_share(trace)

    @property
    def called_ns(self) -> int:
        """The time that the avoided calls take on a CPU."""
        calls = self.calls or len(self.rows)
        if self.fix == AVERAGE and calls > self.count:
            return calls * _AVERAGE_CALL_NS
        return calls * (_CALL_NS if calls > self.count else _ONLY_CALL_NS)


def _is_by_tensor(trace: Events, rows: Ints) -> bool:
    """Whether tensors are scaled by a tensor of one element, not by a Python number."""
    (args,) = trace.operands(rows[:1])
    (dims,) = shapes(trace, rows[:1])
    kinds = bytes(args.types).replace(b" ", b"").strip(b"[]").split(b",")
    return len(dims) > 1 and dims[1] == () and len(kinds) > 1 and kinds[0] == kinds[1]


# ------------------------------------------------------------------------------- loops by hand


def _loops(trace: Events, least: int) -> Iterator[_Loop]:
    if once_selected(trace, _free_calls) < least:
        return
    rows = calls(trace)
    rows = rows[trace.selection[rows]]
    fits = are_named(trace, rows, *ALL)
    if np.count_nonzero(fits) < least:
        return
    for stretch in consecutive_calls(trace, rows, fits, least):
        for base, reps in repeated(trace, stretch, least):
            yield _judged(trace, base, reps, least)


def _free_calls(trace: Events) -> int:
    """How many calls could be of such a loop."""
    return int(trace.selection[free_named(trace, WRITES, MAKES, NORM)].sum())


def _judged(
    trace: Events, base: tuple[str, ...], reps: list[tuple[Ints, _Shape]], least: int
) -> _Loop:
    """Decide whether these are different tensors, and the parameters of a model."""
    kinds = {one for _, one in reps}
    mixed = len({len(one) for one in kinds}) > 1 and min(map(len, kinds)) == 1
    rows, count = np.concatenate([part for part, _ in reps]), len(reps)
    on_device = bool(launched_in(trace, rows[:1])[0][0] >= 0)
    takes = trace.taken(rows)
    alpha = alpha_of(trace, base, rows)
    loop = _Loop(rows, base, count, on_device, of_model=False, alpha=alpha)
    if _is_first(trace, base, int(rows[0])):
        return loop
    like = are_shapes_of_a_model(trace, Counter(kind for _, kind in reps))
    if takes is None:
        many = len(kinds) >= _MANY_SHAPES
        mixed = mixed and (
            (like and (many or kinds <= shapes_of(trace))) or (many and _is_update(base))
        )
        what = "parameters" if like else "tensors"
        return replace(loop, of_model=mixed, unsure=True, what=what)
    known = [[n for n in one if isinstance(n, int) and n >= 0] for one in takes]
    parts = [[*chain(*known[at : at + len(base)])] for at in range(0, len(known), len(base))]
    count = len({one[0] for one in parts if one})
    if count < least:
        return loop
    weights = parameters_of(trace)
    own = 2 * sum(not weights.isdisjoint(one) for one in parts) > len(parts) or (mixed and like)
    mixed = mixed and _writes_to_others(trace, rows, takes, least)
    what = "parameters" if own else "tensors"
    return replace(loop, count=count, of_model=own or mixed, what=what)


def _is_update(base: tuple[str, ...]) -> bool:
    """Whether an existing tensor is written to, as far as names tell."""
    return bool(WRITES.match(base[0])) or "aten::copy_" in base


def _writes_to_others(
    trace: Events, rows: Ints, takes: Sequence[tuple[Taken, ...]], least: int
) -> bool:
    """Whether at least ``least`` tensors are written to that the loop did not make."""
    own = frozenset[int]().union(*(trace.made(rows) or []))
    writes = are_named(trace, rows, WRITES).tolist()
    written = {one[0] for one, write in zip(takes, writes, strict=True) if write and one}
    return len(written - own - {-1}) >= least


def _is_first(trace: Events, base: tuple[str, ...], row: int) -> bool:
    """Whether weights are scaled that were just drawn, before any layer has used them."""
    if base not in {("aten::mul_",), ("aten::div_",)}:
        return False
    drawn, layers = operators_named(trace, _RANDOM), operators_named(trace, LAYER)
    return bool((drawn < row).any() and not (layers < row).any())


# ---------------------------------------------------------------------------- custom optimizers


def _custom_steps(trace: Events, least: int) -> Iterator[_Loop]:
    """Steps of optimizers other than torch's that do the same to each parameter."""
    for step in optimizer_steps(trace):
        if not step.own or step.loop().together:
            continue
        if are_named(trace, step.rows, _PRODUCT, LAYER).any():
            continue
        count = _updates(step)
        writes = step.rows[are_named(trace, step.rows, WRITES)]
        if count >= least:
            device = bool(launched_in(trace, writes[:1])[0][0] >= 0)
            names, calls = tuple(dict.fromkeys(step.calls)), len(step.calls)
            yield _Loop(writes, names, count, device, step=step.name, calls=calls)


def _updates(step: OptimizerStep) -> int:
    """How often it calls what it does once for each parameter."""
    counts = Counter(name for name in step.calls if WRITES.match(name))
    most = max(counts.values(), default=0)
    return min((n for n in counts.values() if 8 * n >= most), default=0)
