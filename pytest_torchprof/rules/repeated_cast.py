"""A tensor that is cast again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.rules.same_copies import (
    REPEATS,
    Copies,
    again,
    matches,
    outermost_of,
    unidentified,
    without_needed,
)
from pytest_torchprof.trace.names import Names, are_named, selected_operators
from pytest_torchprof.trace.tree import are_called, are_closed, in_backward, step_of
from pytest_torchprof.work.dataflow import ACCUMULATE
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_TO_COPY: Final = Names(r"aten::_to_copy$")
_CAST: Final = Names(r"aten::(_to_copy|to|type_as)$")
_KERNEL: Final = late(r"copy|cast|convert", re.IGNORECASE)
#: Operators whose inputs autocast casts, with the positions of their weight and bias.
_WEIGHTS: Final[Mapping[str, tuple[int, ...]]] = {
    "aten::linear": (1, 2), "aten::addmm": (0, 2), "aten::mm": (1,), "aten::matmul": (1,),
    **{f"aten::conv{kind}": (1, 2) for kind in ("1d", "2d", "3d", "olution")},
    **{f"aten::conv_transpose{i}d": (1, 2) for i in (1, 2, 3)},
}  # fmt: skip
_WEIGHTED: Final = Names("|".join(f"{re.escape(name)}$" for name in _WEIGHTS))

_ONCE: Final = "cast once, before the loop, or keep the tensor in the dtype in which it is used"
_NEW: Final = f"{_ONCE}, and then write out of place (x.div(y) instead of x.div_(y))"
_AUTOCAST: Final = (
    "cast the model once (model.to(torch.bfloat16)), or let autocast keep the casts: one "
    "context around all calls, its cache on, weights with requires_grad=True, and no_grad "
    "instead of inference_mode, in which it caches nothing"
)


def _unseen(trace: Events) -> Reason | None:
    """Casts that graphs launched, and those of unidentified tensors: what they cast is unknown."""
    return blind_kernels(trace, _KERNEL.search) or unidentified(trace, _TO_COPY)


@rule(
    "repeated-cast",
    fix=_ONCE,
    triggers={_TO_COPY.pattern: "repeats"},
    needs="shapes",
    blind=_unseen,
    sees_host=_TO_COPY.pattern,
    repeats=Threshold(REPEATS, "1", "per tensor; q, k and v of one input are three casts"),
    elements=Threshold(16, "1", "fewer cost only the call: a mean per channel, a step number"),
    cpu_share=Threshold(0.01, "1", "of the calls of a test on a CPU; fewer do not matter"),
)
def repeated_cast(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is cast between the same dtypes again and again.

    ## What it does

    Looks in each step for at least `repeats` casts of one tensor, or of one part of it, to one
    dtype, while nothing writes to it; the casts after the first one are counted. Under autocast
    only weights count, which it casts again if its cache does not keep them: in a context for each
    call, and always in `torch.inference_mode()`. A live test is captured once more to identify the
    tensors; in a stored trace, only casts by autocast count, if there are too many for the
    parameters that get a gradient.

    Not counted: tensors of fewer than `elements` elements; on a CPU, casts that are less than
    `cpu_share` of all calls; a cast whose result is written to, which needs the copy; what
    operators, backward passes, optimizers and loaders cast.

    ## Why it is slow

    Each cast reads and writes the whole tensor and, on an accelerator, launches a kernel.

    ## Example

    ```python
    for x in batches:
        y = F.linear(x, weight.to(torch.bfloat16))
    ```

    ## Use instead

    ```python
    weight_bf16 = weight.to(torch.bfloat16)
    for x in batches:
        y = F.linear(x, weight_bf16)
    ```

    Under autocast, `torch.no_grad()` rather than `torch.inference_mode()`, or a model that is cast
    once: `model.to(torch.bfloat16)`.
    """
    rows = selected_operators(trace, _TO_COPY)
    top, owner = outermost_of(trace, rows, _CAST)
    called = are_called(trace, top)
    # Those nested in other operators are torch's own, but for the weights of autocast.
    weighs = ~called & are_named(trace, owner, _WEIGHTED) & ~in_backward(trace, rows)
    called &= (owner < 0) | ~are_closed(trace, owner) | are_named(trace, owner, _WEIGHTED)
    weighs[weighs] = _are_weights(trace, rows[weighs], owner[weighs])
    if trace.could_know_tensors:
        more = any(True for _ in _casts(trace, rows[called | weighs], repeats, elements))
        return NONE_SO_FAR if more else NO_MATCHES
    found = []
    for mine, by in ((called, ""), (weighs, " by autocast")):
        for casts in _casts(trace, rows[mine], repeats, elements):
            if trace.tensors is None and not (by and _by_gradients(trace, casts, repeats)):
                continue
            kept = casts._replace(fix=_AUTOCAST) if by else without_needed(trace, casts, _NEW)
            if len(kept.rows) >= repeats:
                source, target = map(torch_name, casts.kind[1:])
                shape = list(casts.kind[0])
                what = f"{shape} cast from {source} to {target}{by} again and again"
                found.append((what, kept))
    return matches(trace, found, outermost=top, rows=rows, share=cpu_share)


def _casts(trace: Events, rows: Ints, repeats: float, elements: float) -> Iterator[Copies]:
    """Casts of one tensor to another dtype, at least so many of at least so many elements."""
    for casts in again(trace, rows, repeats, elements, _ONCE):
        if casts.kind[1] != casts.kind[2]:
            yield casts


def _are_weights(trace: Events, rows: Ints, owner: Ints) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias, and nothing else.

    Where tensors are not identified, by shapes.
    """
    cast: Any = trace.taken(rows) or trace.input_shapes(rows)
    given: Any = trace.taken(owner) or trace.input_shapes(owner)
    names = [trace.names[number] for number in trace.name[owner].tolist()]
    found = []
    for first, taken, name in zip(cast, given, names, strict=True):
        places = {at for at, other in enumerate(taken) if [other] == [*first[:1]]}
        found.append(bool(places) and places <= {*_WEIGHTS[name]})
    return np.array(found, bool)


def _by_gradients(trace: Events, casts: Copies, repeats: float) -> bool:
    """Whether there are too many casts for the parameters that get such a gradient in the step."""
    puts = selected_operators(trace, ACCUMULATE)
    puts = puts[step_of(trace, puts) == step_of(trace, casts.rows[:1])[0]]
    shape, source, _ = casts.kind
    each = zip(trace.input_shapes(puts), trace.input_types(puts), strict=True)
    weights = [dims for dims, types in each if dims[:1] == [[*shape]] and types[:1] == [source]]
    return 0 < repeats * len(weights) <= len(casts.rows)
