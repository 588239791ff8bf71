"""The names of all that could run in this process: operators and modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any


def could_run() -> Mapping[str, frozenset[str]]:
    """By kind of scope, the names that torch and the user's code have registered.

    Empty where this torch does not tell its operators.
    """
    import torch

    # Operators come with modules, or by `torch.library`.
    registered = _of_torch(len(sys.modules), len(getattr(torch.library, "_defs", ())))
    if not registered:
        return {}
    steps = {
        f"Optimizer.{what}#{name}.{what}"
        for name in _classes(torch.optim.Optimizer)
        for what in ("step", "zero_grad")
    }
    functions = _with_backward(_classes(torch.autograd.Function))
    return {
        "op": registered.union(functions, steps),
        "module": frozenset(_classes(torch.nn.Module)),
    }


@lru_cache(maxsize=1)
def _of_torch(_modules: int, _defined: int) -> frozenset[str]:
    """Operators and functions of C++, which take 9 ms to list; the arguments date the answer."""
    import torch

    list_names: Any = getattr(torch._C, "_dispatch_get_all_op_names", None)
    if list_names is None:
        return frozenset()
    operators = {name.partition(".")[0] for name in list_names()}
    return frozenset(operators.union(_with_backward(dir(torch._C._functions))))


def _with_backward(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for one in (name, f"{name}Backward"):
            yield from (one, f"autograd::engine::evaluate_function: {one}")


def _classes(base: type[Any]) -> Iterator[str]:
    for one in type.__subclasses__(base):
        yield one.__name__
        yield from _classes(one)
