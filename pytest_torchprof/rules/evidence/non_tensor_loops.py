"""Repetitions that are not a loop over the elements of a tensor, according to their operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.loop_bodies import differs, elements
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.trace.kinds import DEVICE_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Body, BodyCall

#: Cells of recurrent models: each step needs the previous result.
_CELL: Final = late(r"aten::\w+_cell$")
#: Operators with which a test compares tensors; a library's loops do not call them.
_CHECK: Final = late(r"aten::(allclose|equal|isclose)$")
_COMPARISON: Final = late(
    r"aten::(eq|ne|lt|le|gt|ge|__and__|__or__|bitwise_(and|or|not)|logical_\w+|isnan|isfinite|isin)$"
)
#: What may come between a comparison and the truth value that Python reads.
_COMPARED: Final = late(
    r"aten::(eq|ne|lt|le|gt|ge|__and__|__or__|bitwise_(and|or|not)|logical_\w+|all|any|abs|sub|rsub"
    r"|max|min|amax|amin|sum|norm|linalg_vector_norm|ceil|isfinite|isnan|isinf|div|item)$"
)
#: What Python calls to have the value of a tensor's one element.
READS: Final = ("aten::is_nonzero", "aten::item")
#: What one row per class may go through: a scatter or a one-hot product handles all classes.
_BY_CLASS: Final = late(
    r"aten::(eq|ne|lt|le|gt|ge|__and__|bitwise_and|logical_and|nonzero|nonzero_numpy|where|item|to"
    r"|index|index_put_|index_select|masked_select|empty|lift_fresh|mean|sum|nansum|prod|amax|amin"
    r"|max|min|var|std|norm|linalg_vector_norm|logsumexp|any|all|count_nonzero|square|abs|add|sub"
    r"|mul|div|pow|sqrt|rsqrt|exp|log|neg|copy_|fill_|add_|mul_|div_|clamp|sigmoid|tanh|stack"
    r"|scalar_tensor|\w+_like)$"
)
#: Operators that mark the elements of one class, or of one range of numbers.
MARKS: Final = late(r"aten::(eq|lt|le|gt|ge)$")
#: Operators that select the elements of a mask.
_BY_MASK: Final = late(r"aten::(index|index_select|masked_select|index_put_)(\.\w+)?$")
#: Operators that select a part and compute nothing, and those that join such parts.
_PARTS: Final = late(r"aten::(select|slice|narrow|detach|alias|(un)?squeeze|view)(\.\w+)?$")
_JOINS: Final = late(r"aten::(stack|cat|concat\w*|[hvd]stack|column_stack|pad_sequence)$")
#: Iterations that may have another shape, such as the first and the last.
ODD: Final = 2


def is_apart(body: Body, numbers: frozenset[int]) -> bool:
    """Whether a body is not a loop over elements, by its operators, or by sizes that differ.

    ``numbers`` are tensors that were split into single numbers; -1 for an unknown one.
    """
    names = _work(body)
    every = set(body.names)
    if any(_CHECK.match(name) or _CELL.match(name) for name in names):
        return True
    if set(names) == {"aten::is_nonzero"} or _is_compared(names):
        return True
    if set(names) == {"aten::copy_"} and any(map(_is_block, body.calls[: body.period])):
        return True  # a picture is assembled
    if {"aten::detach", "aten::item"} <= every and set(names) == {"aten::item"}:
        return True  # torch formats numbers
    if set(names) == {"aten::item"} and body.after.startswith("aten::_nested"):
        return True  # torch reads the sizes in a nested tensor
    if {"aten::isfinite", "aten::masked_select"} <= every:
        return True  # torch prints
    if names and set(names) <= set(READS) and reads_are_cheap(body):
        return True
    if all(map(_PARTS.match, body.names)) and not _JOINS.match(body.before):
        return True  # parts are selected, but nothing is computed from them
    if goes_through_classes(body, numbers):
        return False
    if any(_is_masked(body, at) and not picks(body, at) for at in range(body.period)):
        return True
    masks = any(call.base == "eq" for call in body.calls[: body.period])
    return not masks and any(_is_ragged(body, at) for at in range(body.period))


def reads_are_cheap(body: Body) -> bool:
    """Whether Python reads numbers on the CPU, where nothing waits for a device."""
    return not body.trace.has(*DEVICE_KINDS)


def _is_compared(names: list[str]) -> bool:
    """Whether Python reads the results of comparisons, and nothing else is done."""
    if not any(re.match(r"aten::(eq|ne|lt|le|gt|ge|all|any)$", name) for name in names):
        return False
    rest = [name for name in names if name not in READS]
    return len(rest) < len(names) and all(map(_COMPARED.match, rest))


def _is_block(call: BodyCall) -> bool:
    """Whether it selects several elements of a dimension."""
    return call.part is not None and call.part.keeps and call.part.high - call.part.low > 1


def _is_masked(body: Body, at: int) -> bool:
    """Whether the size of an operator's result does not follow from its operands' shapes."""
    name = body.names[at]
    if re.match(r"aten::(nonzero|masked_select|unique\w*|_unique2|where)$", name):
        return len(body.calls[at].tensors) < 3
    if not re.match(r"aten::index(\.\w+)?$", name) or body.looked < 2:
        return False
    before = body.calls[body.period + at - 1]
    if before.is_view:
        return before.types[:1] == ("bool",)
    return _COMPARISON.match(before.name) is not None


def _is_ragged(body: Body, at: int) -> bool:
    like = body.like(at)
    shapes = [call.part.result if call.part is not None else call.shapes for call in like]
    return sum(differs(shapes)) > ODD


def works_on_more(body: Body, most: float) -> bool:
    """Whether an operator does more work than its call's overhead, for any part."""
    masks = any(call.base == "eq" for call in body.calls[: body.period])
    for call in body.calls[: body.period]:
        if masks or call.is_view or LAYER.match(call.name) or call.in_place:
            continue
        if re.match(r"aten::(index|gather|take|index_select|index_put_)", call.name):
            continue
        if any(elements(shape) > most for shape in call.tensors):
            return True
    return False


def picks(body: Body, at: int) -> bool:
    """Whether an index made of a number, or a mask of one class, selects part after part."""
    like = body.like(at)
    if len({call.shapes[:1] for call in like}) > 1 or len(body.source(at)) > 1:
        return False
    before = [body.calls[body.period + at - n] for n in range(1, body.period + 1)]
    if body.looked < 2:
        return False
    for n, call in enumerate(before[:4], 1):
        if call.base == "eq":
            values = [one.concrete for one in body.like((at - n) % body.period)]
            classes = sum(differs(values)) >= body.looked - 1
            return classes and all(map(_BY_CLASS.match, _work(body)))
        if call.base == "lift_fresh":
            return call.shapes[0] == ((1,),) and not body.calls[at].in_place
    return False


def goes_through_classes(body: Body, numbers: frozenset[int]) -> bool:
    """Whether each iteration marks what equals the next number, or is within the next range, and
    reduces what is marked, of the same tensors each time.
    """
    if body.looked < 2 or not any(map(_BY_MASK.match, body.names)):
        return False
    if not all(map(_BY_CLASS.match, _work(body))):
        return False
    marks = [at for at, name in enumerate(body.names) if MARKS.match(name)]
    taken = [at for at, name in enumerate(body.names) if _BY_MASK.match(name)]
    parts = {call.part.result for call in body.calls[: body.period] if call.part is not None}
    for at in (*marks, *taken):
        shapes = {call.shapes[:1] for call in body.like(at)}
        if len(shapes) > 1 or len(body.source(at)) > 1 or parts & set(body.calls[at].shapes[0]):
            return False
    return bool(marks) and all(_goes_on(body, at, numbers) for at in marks)


def _goes_on(body: Body, at: int, numbers: frozenset[int]) -> bool:
    """Whether a comparison is with another number each time."""
    like = body.like(at)
    if like[0].shapes[1:2] == ((),):
        return sum(differs([call.concrete for call in like])) >= body.looked - 1
    if like[0].shapes[1:2] != (((),),):
        return False
    before = [body.calls[n - 1].part for n in range(at, len(body.calls), body.period) if n]
    lows = [part.low for part in before if part is not None and not part.result]
    if len(lows) >= body.looked - 1:
        return sum(differs(lows)) >= len(lows) - 1
    if body.taken is None:
        return bool(numbers)
    return {row[1] for row in body.taken[at :: body.period]} <= numbers


def _work(body: Body) -> list[str]:
    return [n for n, call in zip(body.names, body.calls, strict=False) if not call.is_view]
