"""Rules about loops over the elements of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.late import late
from pytest_torchprof.core.plain import Plain
from pytest_torchprof.rules.bodies import Body, elements, pieces
from pytest_torchprof.rules.carried import is_carried
from pytest_torchprof.rules.engine.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.graphs import LAYER
from pytest_torchprof.rules.joins import may_carry
from pytest_torchprof.rules.moving import Movers
from pytest_torchprof.rules.ordinary import is_apart, works_on_more
from pytest_torchprof.rules.stretches import APART, Sequence, Stretch, sequence, stretches
from pytest_torchprof.rules.written import is_written_only
from pytest_torchprof.trace.levels import are_gradchecked
from pytest_torchprof.trace.names import Names, operators_named
from pytest_torchprof.trace.tree import are_outermost

if TYPE_CHECKING:
    from pytest_torchprof.rules.bodies import Pieces, Shape
    from pytest_torchprof.rules.moving import Moving
    from pytest_torchprof.trace.events import Trace

_INDEX: Final = Names(
    r"aten::(select|slice|narrow|index|index_select|index_put_|gather|take|masked_select)(\.\w+)?$"
)
#: Products that a loop over a tensor may have without being a model: one product does them all.
_PRODUCT: Final = late(r"aten::(einsum|matmul|mm|bmm|mv|addmv|addbmm|baddbmm)$")

#: These, and layers that look something up.
_BY_ITSELF: Final = late(rf"{_PRODUCT.pattern}|aten::embedding(_bag)?$")
#: Layers that take rows, of one sample or of several, which look alike.
_OF_ROWS: Final = late(r"aten::(linear|(_native_)?batch_norm|layer_norm|rms_norm)$")

#: So many repetitions are followed for what one takes of another, such as a year before.
_FOLLOWED: Final = 128


@rule(
    "for-loop-indexing",
    fix="do it for the whole tensor at once: broadcasting, a reduction over the dimension, "
    "torch.where, cumsum, index_add or scatter_reduce for groups, torch.vmap, or tolist() for the "
    "numbers",
    triggers=rf"{_INDEX.pattern}|{APART.pattern}",
    repeats=Threshold(10, "1", "fewer are as often unrolled on purpose"),
    operators=Threshold(24, "1", "a longer body is worth a repetition, such as a layer of a model"),
    elements=Threshold(65536, "1", "so much work hides what its calls cost, or is cut up to fit"),
)
def for_loop_indexing(
    trace: Trace, *, repeats: float, operators: float, elements: float
) -> Matches:
    """A Python loop goes through a tensor element by element.

    What it does
        Counts loops: the same operators ``repeats`` (10) times or more, one repetition after the
        other, at most ``operators`` (24) in each, which take another part of a tensor of one shape
        each time, of at most ``elements`` (65,536): by an index or slice (``x[i]``, ``narrow``,
        ``x[[i]]``, ``index_select`` of one element), as a piece of a tensor that was taken apart
        before (``for row in x``, ``zip(x, y)``, ``unbind``, ``split``, ``chunk``), or by a mask of
        one class, or range of numbers, after the other (``x[labels == c]``, by ``where`` or
        ``nonzero`` too) of which a reduction is taken.

        Not where a repetition needs what an earlier one made, as in a recurrence, an integration,
        a recursion over a table, a rollout, layers whose weights are one tensor, or a buffer that
        is taken as a whole where each repetition writes a part (``ring[t] = x; model(ring)``). A
        live test tells that by which tensor is which. A sum, a product or a maximum over the
        repetitions counts, added to once or several times in each, where what is added to goes
        nowhere else in the loop, and each of its values into one addition (not a tree). A stored
        trace has only shapes: where an operator joins the part with a tensor of the shape that it
        makes, nothing is said.

        Not where parts are only written, with what comes from outside: a record that is parsed, an
        image, a sample that is drawn, a model's output (``data[n] = row``). It counts if what is
        written is computed from a part of a tensor, from ranges of numbers, or from the same
        tensors in each repetition, as ``y[i] = x * i`` is, which a live test tells; and if one
        number fills a part of several elements.

        Not either: the same part each time, as the last token's or each layer's; pieces of
        different sizes, growing ones too; shifts by which a stencil takes most of a tensor, and all
        its pieces but one; blocks of which a picture is put together; the items of a DataLoader;
        steps of training, and of an optimizer; slices of several elements put through layers, which
        are batches, as are parts of several rows, unless a ``stack`` or ``y[i] = …`` puts the
        results back; schedules that a model's steps look up; a tensor that is printed; rows that a
        test compares (``allclose``, ``assert x[i] > 0``), from which an ``if`` does not differ;
        ``torch.autograd.gradcheck``; numbers on the CPU that are read one by one (``int(i) for i in
        x``), or parts that are kept in a list (``[x[i] for i in ids]``) without a ``stack``, and
        nothing else: these are trifles.
        What goes from one repetition to the next outside of tensors (``h = x.tolist()``) is not
        seen, but for an index that Python read. Where the trace does not say which part is taken,
        repetitions of at most 8 operators that have no layers and make no new tensor count.

    Why it is slow
        Each repetition pays for its Python code, its calls and its launches again, for the work on
        one element.

    Example
        .. code:: python

            for i in range(len(x)):
                y[i] = x[i] * i

    Use instead
        .. code:: python

            y = x * torch.arange(len(x))[:, None]
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
    finder = _Finder(trace, calls, apart, int(repeats), elements)
    for stretch in stretches(calls.key, int(repeats), int(operators)):
        finder.look(stretch)
    loops = sorted(finder.found, key=lambda loop: loop.stretch.start)
    return _matches(trace, calls, loops, wants_tensors=finder.wants_tensors)


def _matches(trace: Trace, calls: Sequence, loops: list[_Loop], *, wants_tensors: bool) -> Matches:
    bounds = np.array([(x.stretch.start, x.stretch.stop - 1) for x in loops], np.int64)
    first, last = calls.rows[bounds.reshape(-1, 2)].T
    ends = trace.ts[last] + trace.dur[last]
    repeats = np.array([loop.stretch.repeats for loop in loops], np.int64)
    # Once instead of so often; Python's part between the calls too.
    saved = (ends - trace.ts[first]) * (repeats - 1) // np.maximum(repeats, 1)
    return Matches(
        np.array([loop.row for loop in loops], np.int64),
        [loop.said for loop in loops],
        cost_ns=saved,
        span_ns=(trace.ts[first], ends),
        wants_tensors=wants_tensors,
    )


class _Loop(Plain, frozen=True):
    """A stretch that goes through a tensor; ``row`` is the event of its first moving index."""

    stretch: Stretch
    row: int
    said: str


class _Finder:
    """Looks at stretches, the shortest repetition first, for those that go through a tensor."""

    def __init__(
        self, trace: Trace, calls: Sequence, apart: list[Pieces], repeats: int, most: float
    ) -> None:
        self.found: list[_Loop] = []
        self.wants_tensors = False
        self._trace, self._calls, self._repeats, self._most = trace, calls, repeats, most
        self._movers = Movers(trace, calls, apart, repeats)
        self._done = np.zeros(len(calls.rows), bool)
        told = [bool(_INDEX.match(name)) for name in trace.names]
        self._indexes = np.cumsum(np.concatenate([[0], np.array(told)[calls.name]]))

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
            return
        if elements(moving.part) > self._most or works_on_more(body, self._most):
            return
        if _are_batches(body, moving.part):
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
            self.found.append(_Loop(stretch, moving.row, moving.said))

    def _carried(self, body: Body, moving: Moving) -> bool | None:
        """Whether a repetition needs what another made; None where only a live test can tell."""
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


def _are_batches(body: Body, part: Shape) -> bool:
    """Whether layers take parts of several rows, which are not put back beside one another."""
    layer = next((c for c in body.calls[: body.period] if LAYER.match(c.name)), None)
    if layer is None or not _OF_ROWS.match(layer.name) or elements(part[:-1]) < 2:
        return False
    back = body.before == "aten::stack" or "aten::copy_" in body.names
    return layer.shapes[:1] == ((part,),) and not back


def _is_passed_on(body: Body, moving: Moving) -> bool:
    """Whether a layer's first operand is of the part's size, and nothing joins two tensors."""
    layer = next((c for c in body.calls[: body.period] if LAYER.match(c.name)), None)
    if layer is None or not layer.shapes or not layer.shapes[0]:
        return False
    return elements(layer.shapes[0][0]) == elements(moving.part)
