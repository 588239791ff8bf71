"""Operators that make the host wait for a device, if their tensors are there, and how often.

They give a value to the host, or a result whose shape depends on values. A count is of one call;
operators nested in a call on the CPU do not matter, as for `work.launch_counts`. Sources: files of
PyTorch's ``aten/src/ATen/native``, beside each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.launch_counts import RECURRENT
from pytest_torchprof.work.views import aten

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import Operands

#: From the operands of a call to its reads; raises if it cannot tell.
ReadRule = Callable[["Operands"], int]


class HostRead(Frozen, frozen=True):
    """What the host waits for in a call: ``count`` times, for ``what``, by ``source``."""

    count: int | ReadRule
    what: str
    source: str


def _classes(call: Operands) -> int:
    """`one_hot(x, classes)`: without a number, the largest one is read."""
    return int(call.integers(1)[0] < 0)


def _range(call: Operands) -> int:
    """`histc(x, bins, min, max)`: without bounds, the least and the largest value."""
    return 2 * (call.text(2) == call.text(3))


_SHAPE: Final = "the size of its result"
_VALUE: Final = "a value"

READS: Final[Mapping[str, HostRead]] = {
    "aten::_local_scalar_dense": HostRead(1, _VALUE, "cuda/CUDAScalar.cu"),
    "aten::nonzero": HostRead(1, _SHAPE, "cuda/Nonzero.cu"),
    "aten::masked_select": HostRead(1, _SHAPE, "cuda/IndexKernel.cpp"),
    "aten::_unique2": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::_unique": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_dim": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_consecutive": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_dim_consecutive": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::equal": HostRead(1, _VALUE, "cuda/Equal.cpp"),
    "aten::bincount": HostRead(2, _SHAPE, "cuda/SummaryOps.cu"),
    "aten::histc": HostRead(_range, _VALUE, "cuda/SummaryOps.cu"),
    "aten::_coalesce": HostRead(1, _SHAPE, "sparse/cuda/SparseCUDATensor.cu"),
    "aten::one_hot": HostRead(_classes, _SHAPE, "Onehot.cpp"),
}

#: These start an unknown number of kernels, and read nothing. Source: ``cuda/linalg``, cuSOLVER.
SILENT: Final = RECURRENT | aten(
    "_fft_c2c _fft_c2r _fft_r2c linalg_inv_ex _linalg_solve_ex linalg_cholesky_ex "
    "linalg_lu_factor_ex linalg_lu_solve linalg_solve_triangular triangular_solve"
)

#: What `tolist` and `numpy` call one after the other, on a tensor's values as they are.
#: Source: torch/csrc/utils/tensor_list.cpp and tensor_numpy.cpp.
TO_PYTHON: Final = ("aten::resolve_conj", "aten::resolve_neg")


def count_reads(name: str, call: Operands) -> int:
    """Reads of one call; one where the trace lacks what the rule needs."""
    count = READS[name].count
    if isinstance(count, int):
        return count
    try:
        return count(call)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return 1
