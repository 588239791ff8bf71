"""Whether a loop only writes one part after the other, with data from outside.

Rows that are read, drawn, or made by a model one by one have to be written one by one, and writing
them in place is the best way. Rows that are computed from the loop's index, or from the same
tensors each time, can be computed and written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.loop_bodies import differs, elements

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Body
    from pytest_torchprof.trace.tensors import Taken

_STORE: Final = late(r"aten::(copy_|fill_)$")
_TOLD: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")
#: Other operators that may select another part each time.
_TAKES: Final = late(
    r"aten::(index|index_select|index_put_|gather|take|take_along_dim|masked_select|unbind|split"
    r"|chunk)(\.\w+)?$"
)
#: Operators that make a tensor computed from their number arguments.
_FROM_NUMBERS: Final = late(r"aten::(arange|range|linspace|logspace|full|eye)(\.\w+)?$")


def is_written_only(body: Body) -> bool:
    """Whether all parts are only written to, with data from outside.

    If tensors are not identified, this means that the data does not depend on a range of numbers.
    """
    stores = [at for at, name in enumerate(body.names) if _STORE.match(name)]
    written = {at: places for at in stores if (places := _places(body, at))}
    if not written or any(map(_TAKES.match, body.names)):
        return False
    places = set[int]().union(*written.values())
    for at, name in enumerate(body.names):
        if _TOLD.match(name) and at not in places:
            parts = [call.part for call in body.like(at)]
            if None in parts or any(differs(parts)):
                return False
    if any(map(_FROM_NUMBERS.match, body.names)) or _computes_with_numbers(body):
        return False
    return any(_is_from_outside(body, at) for at in written)


def _places(body: Body, store: int) -> set[int]:
    """The indexes that lead to where an operator of the body writes."""
    at = store + (body.period if body.looked > 1 else 0)
    shapes = body.calls[at].shapes
    into = shapes[0][0] if shapes and shapes[0] else None
    out: set[int] = set()
    while into is not None and at > 0 and len(out) < body.period:
        at -= 1
        part = body.calls[at].part
        if part is None or part.result != into:
            # An older trace does not record the part: it is the preceding one.
            unknown = part is None and not out and _TOLD.match(body.calls[at].name)
            return {at % body.period} if unknown else out
        out.add(at % body.period)
        into = part.shape
    return out


def _is_from_outside(body: Body, store: int) -> bool:
    """Whether the written data is not one number for many elements, and not always one tensor."""
    first = body.calls[store]
    values = first.shapes[1] if len(first.shapes) > 1 else ()
    if elements(first.shapes[0][0]) > 1 and values in ((), ((),)):
        return False
    if not values or body.taken is None:
        return True
    sources = {row[1] for row in body.taken[store :: body.period] if len(row) > 1}
    return len(sources) > 1 or not sources.isdisjoint(_from_python(body))


def _from_python(body: Body) -> set[Taken]:
    """Tensors made from Python data; NumPy may give them the same memory each time."""
    at = [n for n, name in enumerate(body.names) if name == "aten::lift_fresh"]
    return {one for n in at for one in body.source(n)}


def _computes_with_numbers(body: Body) -> bool:
    """Whether an operator takes the same tensors each time, and numbers that may differ."""
    if body.taken is None:
        return False
    from_python = _from_python(body)
    for at, call in enumerate(body.calls[: body.period]):
        numbers = {n for n in range(1, len(call.shapes)) if call.may_be_number(n)}
        taken = {
            tuple(one for n, one in enumerate(row) if n not in numbers)
            for row in body.taken[at :: body.period]
        }
        if call.is_view or call.in_place or len(taken) > 1 or not call.tensors:
            continue
        if any(not from_python.isdisjoint(row) for row in taken):
            continue
        if numbers or any(differs([one.concrete for one in body.like(at)])):
            return True
    return False
