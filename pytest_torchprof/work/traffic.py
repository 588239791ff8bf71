"""Compulsory bytes of an operator call: each input read once, each output written once.

The minimum for any implementation, whatever its caches. Elements that are expanded or overlap count
once; of a table, only the requested rows; an operand that is not read (the bias with ``beta=0``)
not at all. Temporary buffers and gradients that were not requested do not count. An operator that
is not in `TRAFFIC`, or a call that lacks what its rule needs, has no number. Positions in the rules
follow the schemas in PyTorch's ``native_functions.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.work.contractions import CONTRACTIONS
from pytest_torchprof.work.lookups import TABLES
from pytest_torchprof.work.operands import Operands
from pytest_torchprof.work.pointwise import POINTWISE

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import TrafficRule

_LARGEST = 2**63 - 1

TRAFFIC: Final[Mapping[str, TrafficRule]] = {**CONTRACTIONS, **POINTWISE, **TABLES}


def compulsory_bytes(
    name: str, dims: Any, types: Any, strides: Any, concrete: Any, item_bytes: int | None = None
) -> int | None:
    """Bytes of a call; None if there is no rule or the trace lacks what it needs.

    ``item_bytes`` is the element size of tensor lists, whose types a trace lacks.

    >>> compulsory_bytes("aten::mm", [[4, 5], [5, 6]], ["float", "float"], None, None)
    296
    """
    try:
        count = TRAFFIC[name](name, Operands(dims, types, concrete, strides, item_bytes))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
    return count if 0 <= count <= _LARGEST else None
