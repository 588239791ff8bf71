"""What to do instead of a loop over parameters, by what it calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_torchprof.rules.evidence.by_tensor import ASSIGNS, NORM, WRITES

AVERAGE: Final = (
    "torch._foreach_lerp_(averages, list(model.parameters()), 1 - decay), or "
    "torch.optim.swa_utils.AveragedModel with multi_avg_fn=get_ema_multi_avg_fn(decay)"
)
#: All that an average of weights calls; and what changes a tensor before its norm is taken, so that
#: functions for norms alone do not do.
_AVERAGES: Final = frozenset(
    {
        "lerp",
        "lerp_",
        "mul",
        "mul_",
        "add",
        "add_",
        "sub",
        "copy_",
        "detach",
        "alias",
        "to",
        "clone",
    }
    | {ASSIGNS.removeprefix("aten::")}
)
_CHANGES: Final = frozenset({"abs", "mul", "div", "add", "sub", "pow", "sqrt"})
_OF_NORMS: Final = (
    "torch._foreach_norm(tensors) for all norms, or torch.nn.utils.clip_grad_norm_(parameters, "
    "max_norm), and read one value at the end"
)
OF_LISTS: Final = (
    "call the functions for lists of tensors, as in torch._foreach_add_(parameters, gradients, "
    "alpha=-lr)"
)
#: Measured with torch 2.13 on one CPU thread, forward and backward alternately, for 14 to 40
#: parameters: 0.5 to 0.75 of the loop's time.
_OF_SUMS: Final = (
    "one call for all, which autograd supports too: "
    "torch.stack(torch._foreach_norm(parameters)).square().sum() for a sum of squares, and "
    "torch.stack(torch._foreach_norm(parameters, 1)).sum() of absolute values; of differences, "
    "with torch._foreach_sub before"
)
_OF_NEW_LISTS: Final = (
    "call the functions for lists of tensors that make new ones, which autograd supports, as in "
    "torch._foreach_add(parameters, gradients, alpha=-lr)"
)
OF_STEP: Final = (
    "call the functions for lists of tensors in the optimizer's step (torch._foreach_mul_, "
    "torch._foreach_add_ …), or use torch's optimizer, if it has this one, with foreach=True or "
    "fused=True"
)


def advice(names: Sequence[str], alpha: float | None, *, graph: bool) -> str:
    """What to do instead of these operators for each parameter.

    ``alpha``: the factor with which another tensor is added in place, if known; ``graph``: autograd
    records the loop.
    """
    short = {name.removeprefix("aten::") for name in names}
    if _is_average(names, short, alpha):
        return AVERAGE
    norms = any(NORM.match(name) for name in names)
    writes = any(WRITES.match(name) for name in names)
    if not writes and ((norms and graph) or ("sum" in short and not norms)):
        return _OF_SUMS
    if norms and not short & _CHANGES:
        return _OF_NORMS
    return _OF_NEW_LISTS if graph and not writes else OF_LISTS


def _is_average(names: Sequence[str], short: set[str], alpha: float | None) -> bool:
    """Whether it looks like an average: `lerp`, or ``a * old + (1 - a) * new`` and no more.

    Not momentum or a step: these add all of the new tensor, or subtract it.
    """
    if not short <= _AVERAGES:
        return False
    blends = names.count("aten::mul") == 2 and short & {"add", "add_"}
    part = alpha is None or 0 < alpha < 1 or "mul" in short
    return bool(short & {"lerp_", "lerp"} or ({"mul_", "add_"} <= short and part) or blends)
