"""Rules about loops over the elements of a tensor."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import (
    APART,
    CALL_NS,
    LAYER,
    Stretch,
    guessed,
    least_ns,
    sequence,
    stretches,
)
from pytest_torchprof.rules.evidence.calls import (
    CallSequence as Sequence,
)
from pytest_torchprof.rules.evidence.loops import (
    Body,
    Movers,
    elements,
    is_apart,
    is_carried,
    is_written_only,
    may_carry,
    pieces,
    works_on_more,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import Names, operators_named
from pytest_torchprof.trace.tree import are_gradchecked, are_outermost

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loops import Moving, Pieces, Shape
    from pytest_torchprof.trace.events import Events

_INDEX: Final = Names(
    r"aten::(select|slice|narrow|index|index_select|index_put_|gather|take|masked_select)(\.\w+)?$"
)
#: Products that are allowed in a loop: one product could replace them all.
_PRODUCT: Final = late(r"aten::(einsum|matmul|mm|bmm|mv|addmv|addbmm|baddbmm)$")

#: The same, and look-up layers.
_BY_ITSELF: Final = late(rf"{_PRODUCT.pattern}|aten::embedding(_bag)?$")
#: Layers on rows, whether of one sample or of several, which look the same.
_OF_ROWS: Final = late(r"aten::(linear|(_native_)?batch_norm|layer_norm|rms_norm)$")

#: Products that are layers on rows if their second factor stays the same.
_BY_MATRIX: Final = late(r"aten::(matmul|mm)$")

#: The number of iterations in which dependencies are followed, such as on the year before.
_FOLLOWED: Final = 128


@rule(
    "for-loop-indexing",
    fix="do it for the whole tensor at once: broadcasting, a reduction over the dimension, "
    "torch.where, cumsum, index_add or scatter_reduce for groups, torch.vmap, or tolist() for the "
    "numbers",
    triggers=rf"{_INDEX.pattern}|{APART.pattern}",
    blind=lambda trace: guessed(trace, _INDEX, APART),
    sees_host=True,
    repeats=Threshold(10, "1", "fewer are often unrolled on purpose"),
    operators=Threshold(24, "1", "a longer body is worth a loop, such as a model's layer"),
    elements=Threshold(
        65536, "1", "larger parts hide the cost of the calls, or are split to fit in memory"
    ),
    cpu_share=Threshold(
        0.003, "1", "of all that the test does on a CPU, by counts, not times; less does not matter"
    ),
)
def for_loop_indexing(
    trace: Events, *, repeats: float, operators: float, elements: float, cpu_share: float
) -> Matches:
    """A Python loop goes through a tensor element by element.

    ## What it does

    Counts loops: the same operators `repeats` (10) times or more in a row, at most `operators` (24)
    per iteration, each of which selects another part of one tensor, of at most `elements` (65,536)
    elements: by an index or slice, as a piece of a tensor that was split (`for row in x`, `chunk`),
    or by a mask of one class after the other (`x[labels == c].mean()`).

    Not counted: iterations that need what an earlier one made, other than to add it up (a live test
    identifies tensors; a stored trace is judged by shapes, and says nothing in doubt); parts that
    are only written with data from outside, such as images; batches that go through layers; numbers
    on the CPU that are only read (`int(i) for i in x`); what a test compares; and on a CPU loops of
    less than `cpu_share` (0.003) of the test, decided by counts.

    ## Why it is slow

    Each iteration pays again for its Python code, its calls and its launches, for the work on
    one element.

    ## Example

    ```python
    for i in range(len(x)):
        y[i] = x[i] * i
    ```

    ## Use instead

    ```python
    y = x * torch.arange(len(x))[:, None]
    ```
    """
    some = operators_named(trace, _INDEX)
    some = some[trace.selection[some]]
    indexed = len(some) >= repeats and np.count_nonzero(are_outermost(trace, some)) >= repeats
    if not indexed and not len(operators_named(trace, APART)):
        return NO_MATCHES
    calls = sequence(trace)
    apart = pieces(trace, calls, int(repeats))
    if not indexed and not apart:
        return NO_MATCHES
    finder = _Finder(trace, calls, apart, int(repeats), int(operators), elements)
    for stretch in stretches(calls.key, int(repeats), int(operators)):
        finder.look(stretch)
    found = sorted(finder.found, key=lambda loop: loop.stretch.start)
    loops = _that_matter(calls, found, least_ns(trace, cpu_share))
    return _matches(trace, calls, loops, wants_tensors=finder.wants_tensors)


def _matches(trace: Events, calls: Sequence, loops: list[_Loop], *, wants_tensors: bool) -> Matches:
    bounds = np.array([(x.stretch.start, x.stretch.stop - 1) for x in loops], np.int64)
    first, last = calls.rows[bounds.reshape(-1, 2)].T
    ends = trace.ts[last] + trace.dur[last]
    repeats = np.array([loop.stretch.repeats for loop in loops], np.int64)
    # One pass instead of many; includes Python's time between the calls.
    saved = (ends - trace.ts[first]) * (repeats - 1) // np.maximum(repeats, 1)
    return Matches(
        np.array([loop.row for loop in loops], np.int64),
        [loop.message for loop in loops],
        cost_ns=saved,
        span_ns=(trace.ts[first], ends),
        wants_tensors=wants_tensors,
    )


def _that_matter(calls: Sequence, loops: list[_Loop], least: float) -> list[_Loop]:
    """Those whose calls, with those of all loops of the same operators, take that many ns."""
    total = defaultdict[tuple[int, ...], float](float)
    kinds = []
    for loop in loops:
        start, stop, repeats = loop.stretch.start, loop.stretch.stop, loop.stretch.repeats
        kinds.append(tuple(calls.name[start : start + loop.stretch.period].tolist()))
        total[kinds[-1]] += (stop - start) * (repeats - 1) / repeats * CALL_NS
    return [loop for loop, kind in zip(loops, kinds, strict=True) if total[kind] >= least]


class _Loop(Frozen, frozen=True):
    """A stretch that goes through a tensor; ``row`` is the event of its first moving index."""

    stretch: Stretch
    row: int
    message: str


class _Finder:
    """Finds stretches that go through a tensor, the shortest iteration first."""

    def __init__(
        self,
        trace: Events,
        calls: Sequence,
        apart: list[Pieces],
        repeats: int,
        longest: int,
        most: float,
    ) -> None:
        self.found: list[_Loop] = []
        self.wants_tensors = False
        self._trace, self._calls, self._repeats, self._most = trace, calls, repeats, most
        self._longest = longest
        self._movers = Movers(trace, calls, apart, repeats)
        self._done = np.zeros(len(calls.rows), bool)
        is_index = [bool(_INDEX.match(name)) for name in trace.names]
        self._indexes = np.cumsum(np.concatenate([[0], np.array(is_index)[calls.name]]))

    def look(self, stretch: Stretch) -> None:
        """Keep the stretch if it is a loop over a tensor."""
        start, stop = stretch.start, stretch.stop
        indexed = self._indexes[stop] - self._indexes[start] >= self._repeats - 1
        if not indexed and not self._movers.any_before(stop):
            return
        if self._done[start:stop].any():
            return
        body = Body(self._trace, self._calls, stretch)
        if not self._movers.may_be(body) or is_apart(body, self._movers.numbers(body)):
            return
        if (moving := self._movers.of(body)) is None:
            # Two statements of a loop's body may call the same.
            twice = replace(stretch, period=2 * stretch.period)
            if twice.period > self._longest or twice.repeats < self._repeats:
                return
            body = Body(self._trace, self._calls, twice)
            if (moving := self._movers.of(body)) is None:
                return
            stretch = body.stretch
        if elements(moving.part) > self._most or works_on_more(body, self._most):
            return
        batches = _are_batches(body, moving.part)
        self.wants_tensors |= batches is None
        if batches is not False:
            return
        if not moving.pieces and is_written_only(body):
            self.wants_tensors |= body.taken is None
            return
        carried = self._carried(body, moving)
        if carried or are_gradchecked(self._trace, np.array([moving.row])).any():
            return
        if carried is None:
            self.wants_tensors = True
        else:
            self._done[start:stop] = True
            self.found.append(_Loop(stretch, moving.row, moving.message))

    def _carried(self, body: Body, moving: Moving) -> bool | None:
        """Whether an iteration needs what another one made; None if only a live test can tell."""
        layers = [name for name in body.names if LAYER.match(name)]
        model = any(not _BY_ITSELF.match(name) for name in layers)
        if model and not moving.part:
            return True  # a schedule that a model's steps look up
        if body.taken is not None:
            if is_carried(body, moving.apart):
                return True
            longer = body.looked < body.stretch.repeats
            return longer and is_carried(
                Body(self._trace, self._calls, body.stretch, _FOLLOWED), moving.apart
            )
        if may_carry(body, set(moving.pieces)) or (model and not _is_passed_on(body, moving)):
            return None
        return False


def _are_batches(body: Body, part: Shape) -> bool | None:
    """Whether layers take parts of several rows whose results are not collected.

    None if only a live test can tell.
    """
    at = next((at for at, name in enumerate(body.names) if LAYER.match(name)), None)
    if at is None or elements(part[:-1]) < 2:
        return False
    layer = body.calls[at]
    back = body.before == "aten::stack" or "aten::copy_" in body.names
    if back or layer.shapes[:1] != ((part,),):
        return False
    if _OF_ROWS.match(layer.name):
        return True
    return _is_fixed(body, at) if _BY_MATRIX.match(layer.name) else False


def _is_fixed(body: Body, at: int) -> bool | None:
    """Whether a product's second factor is the same tensor each time, as a layer's weights are.

    Parts of one tensor have its number, so nothing else may be selected. None if only a live
    test can tell.
    """
    if sum(bool(_INDEX.match(name)) for name in body.names) > 1:
        return False
    if body.taken is None:
        return None
    some = [one[1] for one in body.taken[at :: body.period] if len(one) > 1]
    return len(set(some)) == 1 and some[0] != -1


def _is_passed_on(body: Body, moving: Moving) -> bool:
    """Whether a layer's first operand has the part's size, and nothing joins two tensors."""
    layer = next((c for c in body.calls[: body.period] if LAYER.match(c.name)), None)
    if layer is None or not layer.shapes or not layer.shapes[0]:
        return False
    return elements(layer.shapes[0][0]) == elements(moving.part)
