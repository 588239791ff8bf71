"""Kinds of copies: their shape, their dtype, and the call that requested them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.rules.evidence.autocast import WEIGHTS
from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.rules.evidence.copied_again import CopiedTensor
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import (
    Names,
    are_named,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.same_calls import once_selected
from pytest_torchprof.trace.tree import marked
from pytest_torchprof.work.dtypes import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


TO_COPY: Final = Names(r"aten::_to_copy$")
CAST: Final = Names(r"aten::(_to_copy|to|type_as)$")
#: Operators that cast their own number, or an operand, to their dtype; most casts are in these.
_INNER: Final = Names(
    rf"aten::(?!(_to_copy|to|type_as|{'|'.join(n.removeprefix('aten::') for n in WEIGHTS)})$)"
)

_COPIES: Final = Names(r"aten::(clone|contiguous)$")
#: The memory formats of channels-last, in two and three dimensions, as torch records them.
#: Source: c10/core/MemoryFormat.h.
_CHANNELS_LAST: Final = {"2": "torch.channels_last", "3": "torch.channels_last_3d"}


def outer_casts(trace: Events) -> Ints:
    """The selected casts that no operator makes for itself."""
    return once_selected(trace, _outer_casts)


def _outer_casts(trace: Events) -> Ints:
    rows = operators_named(trace, TO_COPY)
    rows = rows[trace.selection[rows]]
    above = trace.parent[rows]
    inner = are_named(trace, above, CAST) & are_named(trace, trace.parent[above], _INNER)
    outer: Ints = rows[~inner]
    return outer


def chain(trace: Events, rows: Ints, names: Names) -> tuple[Ints, Ints]:
    """The outermost operator of these names around each row, and what encloses that, or -1."""
    top = rows.copy()
    above = trace.parent[top]
    todo = (above >= 0).nonzero()[0]
    while len(todo):
        todo = todo[are_named(trace, above[todo], names)]
        top[todo] = above[todo]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    return top, above


def kinds_of_casts(trace: Events, rows: Ints, least: float) -> tuple[list[CopiedTensor], Ints]:
    """Distinct kinds, and the kind of each cast, from the copy in it.

    -1 for a copy without a cast, and for one of fewer than ``least`` elements.
    """
    copies = selected_operators(trace, "aten::copy_")
    copies = copies[marked(trace, rows)[trace.parent[copies]]]
    known: dict[tuple[bytes, bytes], int] = {}
    kinds: dict[CopiedTensor, int] = {}
    kind = np.full(len(rows), -1, np.int64)
    at = np.searchsorted(rows, trace.parent[copies])
    for i, args in zip(at.tolist(), trace.operands(copies), strict=True):
        key = (bytes(args.dims), bytes(args.types))
        if key not in known:
            known[key] = _kind(decode_part(key[0]), decode_part(key[1]), kinds, least)
        kind[i] = known[key]
    return list(kinds), kind


def _kind(dims: Any, types: Any, kinds: dict[CopiedTensor, int], least: float) -> int:
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) < 2 > len(types):
        return -1
    shape, to, dtype = sizes(dims[1]), types[0], types[1]
    known = to in ELEMENT_BYTES and dtype in ELEMENT_BYTES
    if shape is None or prod(shape) < least or to == dtype or not known:
        return -1
    return kinds.setdefault(CopiedTensor(shape, dtype, to), len(kinds))


def kinds_of_clones(trace: Events, rows: Ints, least: float) -> tuple[list[CopiedTensor], Ints]:
    """Distinct shapes and dtypes, and a number for each clone's kind, which includes strides.

    -1 if unknown, or for fewer than ``least`` elements.
    """
    known: dict[tuple[bytes, bytes, bytes], int] = {}
    sources, kind = list[CopiedTensor](), []
    for args in trace.operands(rows):
        key = (bytes(args.dims), bytes(args.types), bytes(args.strides))
        if key not in known:
            dims, types, _ = map(decode_part, key)
            first = dims[0] if isinstance(dims, list) and dims else None
            shape, dtype = sizes(first), types[0] if isinstance(types, list) and types else ""
            if shape is None or prod(shape) < least or dtype not in ELEMENT_BYTES:
                known[key] = -1
            else:
                known[key] = len(sources)
                sources.append(CopiedTensor(shape, dtype, dtype))
        kind.append(known[key])
    return sources, np.array(kind, np.int64)


def layout_fix(trace: Events, copies: Ints) -> str | None:
    """What to do about copies that change the layout to channels-last; None if they do not."""
    row = copies[:1]
    if not are_named(trace, row, _COPIES).any():
        return None
    (args,) = trace.operands(row)
    concrete = decode_part(args.concrete)
    known = isinstance(concrete, list) and len(concrete) > 1
    layout = _CHANNELS_LAST.get(str(concrete[1])) if known else None
    if layout is None:
        return None
    return f"change its layout once, before the loop: x = x.to(memory_format={layout})"
