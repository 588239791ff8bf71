"""A rule about torch's optimizers that update one parameter after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.rules.calls import is_trifle, mean_elements
from pytest_torchprof.rules.optimizer_steps import FORMS, optimizer_steps
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.tree import numbers

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@rule(
    "single-tensor-optimizer",
    fix="pass foreach=True to the optimizer, or fused=True to SGD, Adam, AdamW and Adagrad",
    triggers=r"Optimizer\.step#",
    sees_host=True,
    parameters=Threshold(2, "1", "one parameter has nothing to be grouped with"),
    cpu_parameters=Threshold(
        10, "1", "on a CPU, foreach=True, and fused=True of a plain SGD, take longer for fewer"
    ),
    cpu_elements=Threshold(
        4096, "1", "on a CPU, for larger parameters the time for memory outweighs the savings"
    ),
    cpu_share=Threshold(
        0.03, "1", "of all operators that the test calls on a CPU; less does not matter"
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
    without such a form, and on a CPU steps that call less than `cpu_share` (0.03) of the
    test's operators.

    ## Why it is slow

    Each parameter takes several small operators, each with its own launch, where a few would do for
    all. On the CPU, this loop is the default. The cost is the time of the operators of all
    parameters but one.

    ## Example

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ```

    ## Use instead

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ```
    """
    found = [step for step in optimizer_steps(trace) if step.name in FORMS and step.loops]
    on_device = launched_in(trace, np.array([step.event for step in found], np.int64))[0] >= 0
    kept, messages, fixes, costs, calls = [], [], [], [], 0.0
    for step, device in zip(found, on_device.tolist(), strict=True):
        form = FORMS[step.name]
        updates = step.rows[[name == form.update for name in step.calls]]
        count = len(updates) - step.calls.count(form.less)
        faster = form.device if device else form.cpu
        if count < max(parameters, 1) or not faster:
            continue
        plain = step.name == "SGD" and len(step.calls) < 2 * count
        if not device and (faster == "foreach" or plain):
            elements = mean_elements(trace, step.rows)
            if count < cpu_parameters or elements > cpu_elements:
                continue
        text = trace.args[updates].as_list()
        complex_ = b"c10::complex" in text or "aten::view_as_real" in step.calls
        if (complex_ and not device) or len({*numbers(trace, updates).tolist(), -1}) > 2:
            continue  # the last: each update is a node of a graph, with differentiable=True
        kept.append(step.event)
        messages.append(f"{step.name} updates {count} parameters one by one")
        fixes.append(f"pass {'foreach' if complex_ else faster}=True to the optimizer")
        costs.append(int(trace.dur[step.rows].sum() * (count - 1) / count))
        calls += len(step.rows) * (count - 1) / count
    if not kept or is_trifle(trace, calls, cpu_share):
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
