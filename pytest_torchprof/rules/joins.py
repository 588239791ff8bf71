"""Whether a loop may carry something from one repetition to the next, as far as shapes tell.

Something is carried only where an operator joins it with the part that is taken, and makes a tensor
of its shape again. Where no operator of the body does, nothing is; where one does, shapes do not
tell whether it has the same tensor each time or what the last repetition made.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.late import late
from pytest_torchprof.rules.bodies import irregular

if TYPE_CHECKING:
    from pytest_torchprof.rules.bodies import Body, Call, Shape

#: Layers that take one tensor, besides their parameters.
_UNARY: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|embedding(_bag)?)$")
_PRODUCT: Final = late(r"aten::(matmul|mm|bmm|mv|dot|inner|vdot|outer|ger)$")
_SUM_IN_PLACE: Final = late(r"aten::(add|sub|addcmul|mul|addr|addmm|index_add|scatter_add)_$")
_STORE: Final = late(r"aten::(copy_|fill_|zero_|index_put_|masked_fill_)$")
_ITEM: Final = late(r"aten::(item|is_nonzero)$")
#: What keeps something between its calls, or joins all that came before.
_MODEL: Final = late(
    r"aten::(scaled_dot_product_attention|_transformer_encoder|lstm|gru|rnn_\w+|embedding|cumsum)$"
)


def may_carry(body: Body, pieces: set[Shape]) -> bool:
    """Whether what one repetition makes may be what the next one takes.

    ``pieces`` are the shapes of pieces of tensors that were taken apart before.
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
        return True  # a sum, or a tree: by shapes they are alike
    altered = [at for at in work if calls[at].in_place and not _STORE.match(calls[at].name)]
    return len(sums) > 1 or (bool(sums) and altered != sums)


def _is_harmless(body: Body, at: int, parts: set[Shape]) -> bool:
    """Whether what an operator makes cannot be one of the tensors that it takes."""
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


def _tensors(call: Call, parts: set[Shape]) -> list[Shape]:
    """The tensors that an operator takes; one of a single number is a factor, unless a part."""
    every = call.tensors
    return every if () in parts or not any(every) else [shape for shape in every if shape]


def _all_indexed(body: Body, at: int, tensors: list[Shape]) -> bool:
    """Whether the calls just before took so many parts, of the shapes that this one takes."""
    count = len(tensors)
    before = [body.calls[one].part for one in range(max(at - count, 0), at)]
    parts = [part for part in before if part is not None]
    if len(parts) != count or sorted(part.result for part in parts) != sorted(tensors):
        return False
    # Of a tensor that is written too, what was selected last may be what the last one made.
    if any(part.shape in _written(body) for part in parts):
        return len({(part.axis, part.low, part.high) for part in parts}) == 1
    return True


def _written(body: Body) -> set[Shape]:
    """The shapes of tensors of which parts are written."""
    one = body.calls[: body.period]
    before = (one[at - 1].part for at in range(1, len(one)) if _STORE.match(one[at].name))
    return {part.shape for part in before if part is not None}


def _makes_another(call: Call, parts: set[Shape]) -> bool:
    """Whether a product makes a tensor of another shape than that which is no part."""
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
    """Whether what is indexed may be what the call before has made."""
    calls = body.calls[: 2 * body.period]
    return any(
        call.part is not None and not before.is_view and call.part.shape in before.tensors
        for before, call in pairwise(calls)
        if not _STORE.match(before.name)
    )


def _overlaps(body: Body) -> bool:
    """Whether parts are written of a tensor of which the next repetition takes some again."""
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
                # The same part each time is that of another tensor, or of another index.
                if same is None or (same.low, same.high) != (a.low, a.high):
                    return True
    written = _written(body)
    return any(
        shape in written
        for at, call in enumerate(one)
        if not call.is_view and not _STORE.match(call.name)
        for shape in call.tensors
    )
