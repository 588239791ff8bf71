"""The names of all that could run in this process: operators and modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def could_run() -> Mapping[str, frozenset[str]]:
    """By kind of scope, the names that torch and the user's code have registered.

    Empty where this torch does not tell its operators.
    """
    import torch

    list_names: Any = getattr(torch._C, "_dispatch_get_all_op_names", None)
    if list_names is None:
        return {}
    operators = {name.partition(".")[0] for name in list_names()}
    functions = {*dir(torch._C._functions), *_classes(torch.autograd.Function)}
    functions |= {f"{name}Backward" for name in functions}
    steps = {
        f"Optimizer.{what}#{name}.{what}"
        for name in _classes(torch.optim.Optimizer)
        for what in ("step", "zero_grad")
    }
    evaluated = {f"autograd::engine::evaluate_function: {name}" for name in functions}
    return {
        "op": frozenset(operators | functions | evaluated | steps),
        "module": frozenset(_classes(torch.nn.Module)),
    }


def _classes(base: type[Any]) -> Iterator[str]:
    for one in type.__subclasses__(base):
        yield one.__name__
        yield from _classes(one)
