"""Whether a loop may carry something from one iteration to the next, as far as shapes tell.

Something is carried only if an operator joins it with the selected part, and the result has its
shape again. If no operator of the body does, nothing is carried; if one does, shapes do not tell
whether it takes the same tensor each time or the previous iteration's result.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.loop_bodies import irregular

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Body, BodyCall, Shape

#: Layers that take one tensor, besides their parameters.
_UNARY: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|embedding(_bag)?)$")
_PRODUCT: Final = late(r"aten::(matmul|mm|bmm|mv|dot|inner|vdot|outer|ger)$")
_SUM_IN_PLACE: Final = late(r"aten::(add|sub|addcmul|mul|addr|addmm|index_add|scatter_add)_$")
_STORE: Final = late(r"aten::(copy_|fill_|zero_|index_put_|masked_fill_)$")
_ITEM: Final = late(r"aten::(item|is_nonzero)$")
#: Operators that keep something between calls, or combine all earlier inputs.
_MODEL: Final = late(
    r"aten::(scaled_dot_product_attention|_transformer_encoder|lstm|gru|rnn_\w+|embedding|cumsum)$"
)


def may_carry(body: Body, pieces: set[Shape]) -> bool:
    """Whether an iteration may take what the previous one made.

    ``pieces`` are the shapes of pieces of tensors that were split earlier.
    """
    calls, period = body.calls, body.period
    parts = {call.part.result for call in calls if call.part is not None} | pieces
    first = period if body.looked > 1 else 0
    work = [at for at in range(first, first + period) if not calls[at].is_view]
    joins = [at for at in work if len(_tensors(calls[at], parts)) > 1]
    if any(_MODEL.match(name) for name in body.names):
        return True
    if _reads(body, work) or _overlaps(body) or _made_anew(body):
        return True
    sums = [at for at in joins if _SUM_IN_PLACE.match(calls[at].name)]
    rest = [at for at in joins if at not in sums]
    if not all(_is_harmless(body, at, parts) for at in rest):
        return True  # a sum or a tree: shapes cannot distinguish them
    altered = [at for at in work if calls[at].in_place and not _STORE.match(calls[at].name)]
    return len(sums) > 1 or (bool(sums) and altered != sums)


def _is_harmless(body: Body, at: int, parts: set[Shape]) -> bool:
    """Whether an operator's result cannot be one of the tensors that it takes."""
    call = body.calls[at]
    tensors = _tensors(call, parts)
    if _STORE.match(call.name):
        before = body.calls[at - 1].part if at else None
        return "copy" not in call.name or (before is not None and before.result == tensors[0])
    if _UNARY.match(call.name):
        return not (parts & set(tensors[1:]))
    if _all_indexed(body, at, tensors):
        return True
    if _PRODUCT.match(call.name) and len(tensors) == 2:
        return _makes_another(call, parts)
    return False


def _tensors(call: BodyCall, parts: set[Shape]) -> list[Shape]:
    """The tensors that an operator takes; a single number is a factor, unless it is a part."""
    every = call.tensors
    return every if () in parts or not any(every) else [shape for shape in every if shape]


def _all_indexed(body: Body, at: int, tensors: list[Shape]) -> bool:
    """Whether the preceding calls selected as many parts, with the shapes that this one takes."""
    count = len(tensors)
    before = [body.calls[one].part for one in range(max(at - count, 0), at)]
    parts = [part for part in before if part is not None]
    if len(parts) != count or sorted(part.result for part in parts) != sorted(tensors):
        return False
    # If the tensor is also written, the last selection may be what the previous iteration made.
    if any(part.shape in _written(body) for part in parts):
        return len({(part.axis, part.low, part.high) for part in parts}) == 1
    return True


def _written(body: Body) -> set[Shape]:
    """The shapes of tensors of which parts are written."""
    one = body.calls[: body.period]
    before = (one[at - 1].part for at in range(1, len(one)) if _STORE.match(one[at].name))
    return {part.shape for part in before if part is not None}


def _makes_another(call: BodyCall, parts: set[Shape]) -> bool:
    """Whether a product's result and its operand other than a part differ in shape."""
    left, right = call.tensors
    if left in parts and right in parts:
        others = [left, right] if left != right or len(left) != 1 else []
    else:
        others = [one for one in (left, right) if one not in parts]
    return all(one != _product(call.base, left, right) for one in others)


def _product(base: str, left: Shape, right: Shape) -> Shape:
    if base in ("outer", "ger"):
        return (*left, *right)
    if base in ("dot", "vdot") or (len(left) == 1 and len(right) == 1):
        return ()
    if len(right) == 1:
        return left[:-1]
    if len(left) == 1:
        return (*right[:-2], right[-1])
    return (*left[:-1], right[-1])


def _reads(body: Body, work: list[int]) -> bool:
    """Whether numbers that Python reads may come back, as an index or as a factor."""
    if not any(_ITEM.match(name) for name in body.names):
        return False
    if any(
        irregular([call.part.low for call in body.like(at) if call.part is not None])
        for at, name in enumerate(body.names)
        if "select" in name or "slice" in name
    ):
        return True
    rest = (body.calls[at] for at in work)
    return any(not (_ITEM.match(call.name) or _STORE.match(call.name)) for call in rest)


def _made_anew(body: Body) -> bool:
    """Whether the indexed tensor may be the previous call's result."""
    calls = body.calls[: 2 * body.period]
    return any(
        call.part is not None and not before.is_view and call.part.shape in before.tensors
        for before, call in pairwise(calls)
        if not _STORE.match(before.name)
    )


def _overlaps(body: Body) -> bool:
    """Whether an iteration writes a part of a tensor that the next one selects."""
    calls, period = body.calls, body.period
    if body.looked < 2 or not any(call.in_place for call in calls[:period]):
        return False
    one, other = calls[:period], calls[period : 2 * period]
    for at, call in enumerate(one):
        if call.part is None:
            continue
        for next_ in other:
            if next_.part is None or next_.part.shape != call.part.shape:
                continue
            a, b = call.part, next_.part
            if a.axis == b.axis and a.low < b.high and b.low < a.high:
                same = other[at].part
                # The same part each time is of another tensor, or selected by another index.
                if same is None or (same.low, same.high) != (a.low, a.high):
                    return True
    written = _written(body)
    return any(
        shape in written
        for at, call in enumerate(one)
        if not call.is_view and not _STORE.match(call.name)
        for shape in call.tensors
    )
