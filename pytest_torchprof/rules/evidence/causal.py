"""Whether attention is causal: only then what it computed for a position stays valid."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import Names, are_named

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_FUSED: Final = "aten::scaled_dot_product_attention"
#: Of layers that are one operator without gradients, the position of the mask.
_MASK_OF: Final = {
    "aten::_transformer_encoder_layer_fwd": 18,
    "aten::_native_multi_head_attention": 9,
}
_SOFTMAX: Final = "aten::softmax"
_ATTENDS: Final = Names(rf"({_FUSED}|{_SOFTMAX}|{'|'.join(_MASK_OF)})$")
#: The positions of the mask among the arguments, and of ``is_causal``.
#: Source: native_functions.yaml, torch 2.6 to 2.13.
_MASK_OF_FUSED, _CAUSAL = 3, 5
#: The product of queries and keys; and what may be between it and a softmax without a mask: views
#: and casts, and a scale of one number.
_PRODUCT: Final = late(r"aten::(matmul|bmm|einsum)$")
_VIEW: Final = late(
    r"aten::(view|reshape|_?unsafe_view|contiguous|to|float|half|type_as|transpose|permute"
    r"|(un)?squeeze|(un)?flatten|alias|detach|expand)$"
)
#: How many calls before a softmax are looked at.
_NEAR: Final = 16
_SCALE: Final = late(r"aten::(mul|div)_?$")


def sees_later_positions(trace: Events, step: Ints, lengths: Collection[int]) -> bool:
    """Whether all attention of so many positions, in one step's calls, sees those after them too.

    As in an encoder. Whatever may be a mask counts as causal, as does attention that is not known.
    """
    seen = False
    for at in np.flatnonzero(are_named(trace, step, _ATTENDS)).tolist():
        row = step[at]
        (args,) = trace.operands(row[None])
        name = trace.names[trace.name[row]]
        if not _attends(name, args, lengths):
            continue
        if name == _SOFTMAX:
            masked = _may_be_masked(trace, step[:at])
        elif name == _FUSED:
            masked = _is_given(args, _MASK_OF_FUSED) or _said(args, _CAUSAL) != "False"
        else:
            masked = _is_given(args, _MASK_OF[name])
        if masked:
            return False
        seen = True
    return seen


def _may_be_masked(trace: Events, before: Ints) -> bool:
    """Whether a mask may be applied between a product and the softmax after these calls."""
    near = before[-_NEAR:][::-1]
    for row, args in zip(near.tolist(), trace.operands(near), strict=True):
        name = trace.names[trace.name[row]]
        if _PRODUCT.match(name):
            return False
        if _VIEW.match(name):
            continue
        dims = decode_part(args.dims)
        other = sizes(dims[1]) if isinstance(dims, list) and len(dims) > 1 else None
        if not _SCALE.match(name) or other is None or prod(other) > 1:
            return True
    return True


def _attends(name: str, args: OpArgs, lengths: Collection[int]) -> bool:
    """Whether one of these numbers of positions attends to as many."""
    dims = decode_part(args.dims)
    shapes = [sizes(one) or () for one in dims] if isinstance(dims, list) else []
    if not shapes:
        return False
    if name in _MASK_OF:
        return not set(lengths).isdisjoint(shapes[0])
    if name == _SOFTMAX:
        both = shapes[0][-2:]
    else:
        both = tuple(one[-2] for one in shapes[:2] if len(one) > 1)
    return len(both) == 2 and both[0] == both[1] and both[0] in lengths


def _is_given(args: OpArgs, number: int) -> bool:
    """Whether an optional tensor is passed, or may be."""
    types = decode_part(args.types)
    return not isinstance(types, list) or len(types) <= number or types[number] != ""


def _said(args: OpArgs, number: int) -> str:
    """The value of an argument that is no tensor, if known."""
    concrete = decode_part(args.concrete)
    known = isinstance(concrete, list) and len(concrete) > number
    return str(concrete[number]) if known else ""
