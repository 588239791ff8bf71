"""A tensor subclass that does less than it looks like, as a `DTensor` on one of its ranks does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map


class Halved(torch.Tensor):
    """Stands for two copies of the rows that it holds."""

    rows: torch.Tensor

    @classmethod
    def of(cls, half: torch.Tensor) -> Halved:
        shape = (2 * half.shape[0], *half.shape[1:])
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=half.dtype)
        made.rows = half
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        args = tree_map(lambda a: a.rows if isinstance(a, Halved) else a, args)
        return Halved.of(op(*args, **(kwargs or {})))
