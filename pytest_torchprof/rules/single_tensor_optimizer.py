"""A rule about torch's optimizers that update one parameter after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.rules.evidence.calls import guessed, is_trifle, mean_elements
from pytest_torchprof.rules.evidence.parameters import STEP, UPDATES, optimizer_steps
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import AutogradArgs, OpArgs, decode
from pytest_torchprof.trace.names import Kind

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.parameters import OptimizerStep
    from pytest_torchprof.trace.arguments import Arguments
    from pytest_torchprof.trace.events import Events

#: Classes that take ``fused=True``; others raise. Adagrad's was CPU-only for a long time.
#: Source: ``fused`` in torch/optim, 2.6 to 2.13.
_FUSED_ANYWHERE: Final = frozenset({"SGD", "Adam", "AdamW"})
_FUSED_ON_CPU: Final = frozenset({"Adagrad"})
_FUSED: Final = _FUSED_ANYWHERE | _FUSED_ON_CPU
#: Classes whose foreach form is faster on a CPU. ASGD's takes 1.2 to 2.5 times as long as the
#: loop there; Adafactor's and Rprop's gain a fifth at most.
_FOREACH_ON_CPU: Final = frozenset({"Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop"})
#: What a form for all parameters saves of the time to call a loop's operators: the share for many
#: parameters, and the number at which it is half of that, by class. Measured with torch 2.13 on one
#: CPU thread in scripts and between other work; in a bare loop of steps, two to eight parameters
#: save up to 1.7 times as much.
_SAVED: Final = {"SGD": (0.75, 10), "Adam": (0.8, 5), "AdamW": (0.8, 5), "Adagrad": (0.7, 7)}
_SAVED_BY_FOREACH: Final = (0.5, 6)
_SAVED_OF_PLAIN_SGD: Final = (0.6, 25)
#: The same on a device, where each operator is a launch.
_SAVED_ON_DEVICE: Final = (0.8, 2)

#: The time of an operator of the loop, and for each element.
_LOOP_CALL_NS, _LOOP_ELEMENT_NS = 3_000, 0.3


@rule(
    "single-tensor-optimizer",
    fix="pass foreach=True to the optimizer, or fused=True to SGD, Adam, AdamW and Adagrad",
    triggers=r"Optimizer\.step#",
    blind=lambda trace: guessed(trace, STEP),
    sees_host=True,
    parameters=Threshold(2, "1", "one parameter has nothing to be grouped with"),
    cpu_parameters=Threshold(
        10, "1", "on a CPU, foreach=True, and fused=True of a plain SGD, take longer for fewer"
    ),
    cpu_elements=Threshold(
        4096, "1", "on a CPU, for larger parameters the time for memory outweighs the savings"
    ),
    cpu_share=Threshold(
        0.03, "1", "next to a model that takes much longer, a step does not matter"
    ),
)
def single_tensor_optimizer(
    trace: Events,
    *,
    parameters: float,
    cpu_parameters: float,
    cpu_elements: float,
    cpu_share: float,
) -> Matches:
    """An optimizer updates its parameters one by one, though it has a form for all at once.

    ## What it does

    Counts the steps of torch's optimizers that updated at least `parameters` (2) parameters in a
    loop, where another form of that class is faster: on a device every class that takes `foreach`
    or `fused`, on a CPU `fused=True` of Adam, AdamW, Adagrad and SGD. A plain SGD, and
    `foreach=True` of Adadelta, Adamax, NAdam, RAdam and RMSprop, gain there from `cpu_parameters`
    (10) of at most `cpu_elements` (4,096) elements on average. The place is the line that
    constructed the optimizer, if a live test runs it.

    Not counted: sparse gradients, complex parameters on a CPU, `differentiable=True`, classes
    without such a form, and on a CPU steps that would save less than `cpu_share` (0.03) of the
    test, decided by counts.

    ## Why it is slow

    Each parameter takes several small operators, each with its own launch, where a few would do for
    all. On the CPU, this loop is the default. The cost is the part of the step's time that the
    other form saved in measurements.

    ## Example

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ```

    ## Use instead

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ```
    """
    found = optimizer_steps(trace)
    if not found:
        return NO_MATCHES
    on_device = [False] * len(found)
    if trace.has(Kind.KERNEL):
        events = np.array([step.event for step in found], np.int64)
        on_device = (launched_in(trace, events)[0] >= 0).tolist()
    kept, messages, fixes, costs = [], [], [], []
    saved_on_cpu_ns, on_cpu = 0.0, True
    for step, device in zip(found, on_device, strict=True):
        together, count, updates = step.loop()
        if step.known is None or together or count < parameters:
            continue
        if not device and _is_small(step, count):
            small = mean_elements(trace.operands(step.rows)) <= cpu_elements
            if step.known in _SLOWER_ON_CPU or count < cpu_parameters or not small:
                continue
        rows = step.rows[updates]
        args = trace.args[rows]
        text = args.as_list()
        complex_ = _COMPLEX in text or "aten::view_as_real" in step.calls
        if (complex_ and not device) or _records_a_graph(args):
            continue
        if device:
            saved = _share(_SAVED_ON_DEVICE, count)
        else:
            calls_ns, elements_ns = _in_loop_ns(step, args)
            saved_ns = _share(_saved_on_cpu(step, count), count) * calls_ns
            saved = saved_ns / (calls_ns + elements_ns)
            saved_on_cpu_ns += saved_ns
        kept.append(step.event)
        messages.append(f"{step.name} updates {count} parameters one by one")
        fixes.append(_BY_FOREACH if complex_ else _together(step.known, on_device=device))
        costs.append(int(step.took_ns * saved))
        on_cpu &= not device
    if not kept:
        return NO_MATCHES
    if on_cpu and is_trifle(trace, saved_on_cpu_ns, cpu_share):
        return NO_MATCHES
    rows, cost_ns = np.array(kept, np.int64), np.array(costs, np.int64)
    return Matches(
        rows,
        messages,
        fix=fixes,
        cost_ns=cost_ns,
        span_ns=around(trace, rows),
        by_constructor=True,
    )


#: How many updates of a step are checked for their sizes, and for whether they record a graph.
_SOME: Final = 20
_COMPLEX: Final = b"c10::complex"
_BY_FOREACH: Final = "pass foreach=True to the optimizer"
#: Classes without a form that is faster on a CPU.
_SLOWER_ON_CPU: Final = frozenset(UPDATES) - _FUSED - _FOREACH_ON_CPU


def _is_small(step: OptimizerStep, count: int) -> bool:
    """Whether so little is done to each parameter, or so little saved, that the CPU may lose."""
    if step.known == "SGD":
        return len(step.calls) < 2 * count
    return step.known not in _FUSED


def _share(saved: tuple[float, float], count: int) -> float:
    """What a form for all of so many parameters saves; see `_SAVED`."""
    share, half = saved
    return share * count / (count + half)


def _saved_on_cpu(step: OptimizerStep, count: int) -> tuple[float, float]:
    """What another form saves of the time to call this step's operators; see `_SAVED`."""
    if step.known == "SGD" and _is_small(step, count):
        return _SAVED_OF_PLAIN_SGD
    return _SAVED.get(step.known or "", _SAVED_BY_FOREACH)


def _in_loop_ns(step: OptimizerStep, args: Arguments) -> tuple[float, float]:
    """The estimated time of a step's loop on a CPU: to call its operators, and for elements.

    ``args``: of the operator that it runs once for each parameter: the others have operands of the
    same size. Elements of unknown number take no time.
    """
    elements = mean_elements(decode(OpArgs, args[:: 1 + len(args) // _SOME]))
    calls = len(step.rows)
    return calls * _LOOP_CALL_NS, calls * (
        elements if elements < math.inf else 0
    ) * _LOOP_ELEMENT_NS


def _together(known: str, *, on_device: bool) -> str:
    """What to pass to an optimizer of this class so that it updates all parameters at once."""
    if known in _FUSED_ANYWHERE or (known in _FUSED_ON_CPU and not on_device):
        return "pass fused=True to the optimizer"
    return _BY_FOREACH


def _records_a_graph(updates: Arguments) -> bool:
    """Whether a gradient can go through the step: its operators are nodes, each with a number."""
    some = decode(AutogradArgs, updates[:: 1 + len(updates) // _SOME])
    return len({args.sequence for args in some} - {-1}) > 1
