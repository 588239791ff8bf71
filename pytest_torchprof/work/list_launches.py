"""How many kernels an operator on lists of tensors starts: one for each chunk of the lists."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any, Final

from pytest_torchprof.work.operands import Operands, UnknownOperandError

#: From the operands of a call to the kernels it starts; raises if it cannot tell.
LaunchRule = Callable[[Operands], int]

#: A launch takes so many tensors, by the number of lists, and so many chunks of so many elements.
#: With CUDA 13 it takes more of them. Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh.
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)
_MOST_CHUNKS: Final = 320
_CHUNK: Final = 65_536


def chunked(sizes: list[int], lists: int) -> int:
    """Launches for a list of tensors of these numbers of elements, and ``lists`` such lists.

    >>> chunked([10] * 110, 1), chunked([10] * 111, 1), chunked([65_536 * 321], 2)
    (1, 2, 2)
    """
    most = _MOST_TENSORS[min(max(lists, 1), len(_MOST_TENSORS)) - 1]
    launches = tensors = chunks = 0
    for size in filter(None, sizes):
        left = ceil(size / _CHUNK)
        tensors += 1
        if chunks + left >= _MOST_CHUNKS:
            more, chunks = divmod(chunks + left, _MOST_CHUNKS)
            launches, tensors = launches + more, int(chunks > 0)
        else:
            chunks += left
        if tensors == most:
            launches, chunks, tensors = launches + 1, 0, 0
    return launches + (chunks > 0)


def _sizes(call: Operands, at: int = 0) -> list[int]:
    """Elements of each tensor of a list; torch records lists of up to 30."""
    shapes = call.dims[at]
    if not shapes or not isinstance(shapes[0], list):
        raise UnknownOperandError
    return [prod(shape) for shape in shapes]


def foreach(written: int) -> LaunchRule:
    """One pass over the lists; ``written``: 1 if the results are lists of their own."""

    def rule(call: Operands) -> int:
        sizes = _sizes(call)
        if is_host_count(call):
            return 0
        lists = sum(1 for shapes in call.dims if shapes and isinstance(shapes[0], list))
        return chunked(sizes, lists + written)

    return rule


def is_host_count(call: Operands) -> bool:
    """Whether it adds a tensor to counters of steps, which optimizers keep on the host."""
    shapes = call.dims[0]
    plain = all(shape == [] for shape in shapes) and len(call.dims) == 3
    return plain and call.types[1] != "Scalar" and call.dims[1] == []


def is_long_list(name: str, call: Operands) -> bool:
    """Whether it works on a list of more tensors than torch records."""
    if not name.startswith(("aten::_foreach_", "aten::_fused_")):
        return False
    types = call.types if isinstance(call.types, list) else []
    dims = call.dims if isinstance(call.dims, list) else []
    return types[:1] == ["TensorList"] and dims[:1] == [[]]


def count_long_list(name: str, call: Operands, shapes: list[Any]) -> int:
    """Launches for such a list, with the shapes of the tensors; of fused ones only their number."""
    lists = call.types[: _lists_of(name)].count("TensorList")
    if name.startswith("aten::_fused_"):
        return chunked([1] * len(shapes), lists)
    try:
        sizes = [prod(shape) for shape in shapes]
        counters = not any(shapes) and len(call.types) == 3
        if counters and call.types[1] not in {"Scalar", "TensorList"}:
            return 0  # an optimizer's counters, on the host
        if name == "aten::_foreach_norm":
            return chunked(sizes, 1) + 2
        return max(chunked(sizes, lists + (not name.endswith("_"))), 1)
    except TypeError:
        return 1


def foreach_norm(call: Operands) -> int:
    """Zeros, the parts of each norm, and their sums."""
    return chunked(_sizes(call), 1) + 2


def fused(most: int) -> LaunchRule:
    """One pass over the lists of a fused optimizer, up to ``most``: its counters are apart."""

    def rule(call: Operands) -> int:
        lists = sum(1 for shapes in call.dims[:most] if shapes and isinstance(shapes[0], list))
        return chunked(_sizes(call), lists)

    return rule


def _lists_of(name: str) -> int:
    """How many lists a launch may take: of Adagrad, without its counters of steps."""
    return 3 if "adagrad" in name else len(_MOST_TENSORS)
