"""A rule about loops over a model's parameters, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.rules.calls import is_trifle
from pytest_torchprof.rules.optimizer_steps import optimizer_steps
from pytest_torchprof.rules.parameter_loops import (
    ELEMENTWISE,
    MAKES,
    NORM,
    OF_LISTS,
    WRITES,
    Loop,
    loops_in,
)
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    NONE_SO_FAR,
    Matches,
    Threshold,
    rule,
)
from pytest_torchprof.trace.tree import free_named, once_selected

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@rule(
    "per-parameter-loop",
    fix=OF_LISTS,
    triggers={
        rf"aten::({ELEMENTWISE})_?$|{NORM.pattern}": 1,
        f"{WRITES.pattern}|{MAKES.pattern}|{NORM.pattern}": "parameters",
    },
    needs="shapes",
    sees_host=True,
    parameters=Threshold(10, "1", "fewer gain a few microseconds at most"),
    cpu_elements=Threshold(
        16_384, "1", "on a CPU, larger parameters are bound by memory, with or without a loop"
    ),
    cpu_share=Threshold(
        0.01, "1", "of all operators that the test calls on a CPU; less does not matter"
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

    Not counted: torch's optimizers (see `single-tensor-optimizer`), weights that are scaled before
    a layer takes them, copies and clones alone, and differences that a test reads. On a CPU,
    parameters of more than `cpu_elements` (16,384) elements on average, norms that are kept as
    tensors, and loops of less than `cpu_share` (0.01) of the test's operators gain nothing.

    ## Why it is slow

    Each operation on each parameter is a call from Python, and on a device a launch. Functions for
    lists need one call for all. The cost is the time of these calls for all parameters but one.

    ## Example

    ```python
    for average, parameter in zip(ema.parameters(), model.parameters()):
        average.mul_(decay).add_(parameter, alpha=1 - decay)
    ```

    ## Use instead

    ```python
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)
    ```
    """
    least, steps = int(parameters), [step for step in optimizer_steps(trace) if step.own]
    if once_selected(trace, _free_calls) < least and not steps:
        return NO_MATCHES_OF_CALLS
    loops = [*loops_in(trace, least), *(Loop.of_step(trace, step) for step in steps)]
    loops = [one for one in loops if one.count >= least and one.pays(trace, cpu_elements)]
    found = [one for one in loops if one.of_model]
    asks = trace.tensors is None and bool(loops)
    saved = [len(one.rows) * (one.count - 1) / one.count for one in found]
    if not found or is_trifle(trace, sum(saved), cpu_share):
        return NONE_SO_FAR if asks else NO_MATCHES
    first, last = (np.array([one.rows[at] for one in found], np.int64) for at in (0, -1))
    cost_ns = [trace.dur[one.rows].sum() * (one.count - 1) // one.count for one in found]
    return Matches(
        first,
        [one.message for one in found],
        cost_ns=np.array(cost_ns, np.int64),
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        fix=[one.fix(trace) for one in found],
        wants_tensors=asks,
        last=last,
    )


def _free_calls(trace: Events) -> int:
    """How many calls could be of such a loop."""
    return int(trace.selection[free_named(trace, WRITES, MAKES, NORM)].sum())
