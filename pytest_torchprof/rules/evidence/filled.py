"""Which tensors operators fill or make: their shapes and sizes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.tensors import listed
from pytest_torchprof.work.dtypes import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


class Filled(NamedTuple):
    """One tensor; a stored trace does not tell the dtype of those of a list, taken as float32."""

    elements: int
    bytes: int


def filled(trace: Events, rows: Ints) -> list[Filled] | None:
    """Each tensor that these operators fill or make; None if any size is unknown."""
    out = list[Filled]()
    lists = listed(trace, rows) or [None] * len(rows)
    for row, known, args in zip(rows.tolist(), lists, trace.operands(rows), strict=True):
        if known is not None and known.shapes:
            out += [Filled(prod(one), prod(one) * known.item_bytes) for one in known.shapes]
            continue
        dtype, *_ = decode_part(args.types) or [""]
        shapes = [sizes(decode_part(one.encode())) for one in filled_shapes(trace, row)]
        for shape in shapes or [None]:
            if shape is None:
                return None
            out.append(Filled(prod(shape), prod(shape) * ELEMENT_BYTES.get(dtype, 4)))
    return out


def filled_shapes(trace: Events, row: int) -> list[str]:
    """The shapes of what an operator fills or makes, one or those of a list; none for a list so
    long that torch omits it.
    """
    (args,) = trace.operands(np.array([row]))
    name = trace.names[trace.name[row]]
    if name in ("aten::zeros", "aten::new_zeros"):
        concrete = decode_part(args.concrete)
        known = concrete if isinstance(concrete, list) else []
        return [str(one) for one in known if str(one).startswith("[")][:1]
    dims = decode_part(args.dims)
    if isinstance(dims, list) and dims and dims[0] and isinstance(dims[0][0], list):
        return [str(one) for one in dims[0]]
    if "_foreach_" in name or not isinstance(dims, list):
        return []
    return [str(one) for one in dims[:1]]
