"""Loops in a user's code: what each turn does, and what one hands to the next."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import LAYER
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, are_named
from pytest_torchprof.trace.tensors import LONGEST_LIST, listed
from pytest_torchprof.trace.tree import calls
from pytest_torchprof.work.dispatch import VIEWS

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.calls import CallSequence as Sequence
    from pytest_torchprof.rules.evidence.calls import Stretch
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken


# ---- A loop's body: what its operators take in each iteration, and which parts of which tensors.

Shape: TypeAlias = tuple[int, ...]

#: The first iterations, which represent all of them.
_LOOKED: Final = 16
#: Types of arguments other than tensors, as traces name them.
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "None", "Device", "Generator"})
#: Types of Python numbers where an operator expects a tensor.
_NUMBERS: Final = frozenset({"double", "long int", "long", "bool", "c10::complex<double>"})
_INDEX: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")


class IndexedPart(Frozen, frozen=True):
    """What an index selects: along ``axis`` of a tensor of this shape, from ``low`` to ``high``."""

    shape: Shape
    axis: int
    low: int
    high: int
    keeps: bool

    @property
    def result(self) -> Shape:
        """The shape of the selection."""
        size = (self.high - self.low,) if self.keeps else ()
        return (*self.shape[: self.axis], *size, *self.shape[self.axis + 1 :])

    def meets(self, other: IndexedPart) -> bool:
        """Whether both are along one axis of tensors of one shape, and overlap there."""
        alike = (self.shape, self.axis) == (other.shape, other.axis)
        return alike and self.low < other.high and other.low < self.high


class BodyCall(Frozen, frozen=True):
    """An operator of one iteration: its name and its recorded arguments.

    ``shapes``: for each argument, the shapes of its tensors; empty for anything else.
    """

    name: str
    shapes: tuple[tuple[Shape, ...], ...]
    types: tuple[str, ...]
    concrete: bytes
    part: IndexedPart | None

    @property
    def tensors(self) -> list[Shape]:
        """The shapes of all tensors among the arguments, without Python numbers."""
        every = [
            (one, kind) for kind, some in zip(self.types, self.shapes, strict=True) for one in some
        ]
        own = next((kind for one, kind in every), "")
        return [one for one, kind in every if one or kind == own or kind not in _NUMBERS]

    def may_be_number(self, number: int) -> bool:
        """Whether an argument may be a Python number that the operator takes as a tensor."""
        return self.shapes[number] == ((),) and self.types[number] in _NUMBERS

    @property
    def base(self) -> str:
        """Its name without the namespace."""
        return self.name.rpartition("::")[2].partition(".")[0]

    @property
    def is_view(self) -> bool:
        """Whether it makes a view, or may."""
        name = self.name.partition(".")[0]
        return name in VIEWS or name == "aten::resize_"

    @property
    def in_place(self) -> bool:
        """Whether it writes into its first argument."""
        return self.base.endswith("_") and not self.base.endswith("__")


class Body:
    """The first iterations of a stretch: `calls`, in order, and their positions."""

    def __init__(
        self, trace: Events, sequence: Sequence, stretch: Stretch, most: int = _LOOKED
    ) -> None:
        self.trace, self.stretch = trace, stretch
        self.period = stretch.period
        self.looked = min(stretch.repeats, most)
        self._all = sequence.rows[stretch.start : stretch.stop]
        self.rows: Ints = self._all[: self.looked * self.period]
        #: The name of the call before the first one.
        self.after = trace.names[sequence.name[stretch.start - 1]] if stretch.start else ""
        ends = stretch.stop >= len(sequence.name)
        #: The name of the call after the last one.
        self.before = "" if ends else trace.names[sequence.name[stretch.stop]]

    @cached_property
    def names(self) -> list[str]:
        """The names of one iteration."""
        numbers = self.trace.name[self.rows[: self.period]].tolist()
        return [self.trace.names[number] for number in numbers]

    @cached_property
    def calls(self) -> list[BodyCall]:
        """The operators of the analyzed iterations."""
        known: dict[tuple[str, bytes, bytes, bytes], BodyCall] = {}
        out: list[BodyCall] = []
        names = self.names * self.looked
        for name, args in zip(names, self.trace.operands(self.rows), strict=True):
            key = (name, bytes(args.dims), bytes(args.types), bytes(args.concrete))
            if key not in known:
                known[key] = call_of(name, args)
            call = known[key]
            # torch 2.6 splits `x[i, :]` into two steps, of which the second selects all of the
            # first.
            if out and _is_all_of(call.part, out[-1].part):
                call = replace(call, part=out[-1].part)
            out.append(call)
        return out

    @cached_property
    def taken(self) -> list[tuple[Taken, ...]] | None:
        """The tensors that each call takes."""
        return self.trace.taken(self.rows)

    @cached_property
    def made(self) -> list[frozenset[int]] | None:
        """The tensors that each call makes."""
        return self.trace.made(self.rows)

    def like(self, at: int) -> list[BodyCall]:
        """One operator of the body in each of the analyzed iterations."""
        return self.calls[at :: self.period]

    def every(self, at: int) -> Ints:
        """The events of one operator of the body, in all iterations."""
        events: Ints = self._all[at :: self.period]
        return events

    def source(self, at: int) -> set[Taken]:
        """The tensors that are an operator's first argument; empty if unknown."""
        if self.taken is None:
            return set()
        return {some[0] if some else -1 for some in self.taken[at :: self.period]}


def _is_all_of(part: IndexedPart | None, before: IndexedPart | None) -> bool:
    """Whether an index selects all of what the previous one selected."""
    return (
        part is not None
        and before is not None
        and part.keeps
        and part.shape == part.result == before.result
    )


def call_of(name: str, args: OpArgs) -> BodyCall:
    """An operator, from its recorded arguments."""
    dims, types, concrete = (decode_part(part) for part in (args.dims, args.types, args.concrete))
    dims = dims if isinstance(dims, list) else []
    kinds = types if isinstance(types, list) and len(types) == len(dims) else ["?"] * len(dims)
    shapes = tuple(_shapes(one, str(kind)) for one, kind in zip(dims, kinds, strict=True))
    part = None
    if _INDEX.match(name) and shapes and shapes[0] and isinstance(concrete, list):
        part = _part(name, shapes[0][0], concrete)
    return BodyCall(name, shapes, tuple(map(str, kinds)), bytes(args.concrete), part)


def _shapes(dims: Any, kind: str) -> tuple[Shape, ...]:
    if not isinstance(dims, list) or kind in _NO_TENSORS or (kind == "?" and not dims):
        return ()
    if dims and isinstance(dims[0], list):
        return tuple(tuple(one) for one in dims)
    return () if kind == "TensorList" else (tuple(dims),)


def _part(name: str, shape: Shape, concrete: list[Any]) -> IndexedPart | None:
    numbers = [_whole(one) for one in concrete[1:5]]
    axis = numbers[0] if numbers else None
    if axis is None or not shape or not -len(shape) <= axis < len(shape):
        return None
    axis, size = axis % len(shape), shape[axis]
    low = numbers[1] if len(numbers) > 1 else None
    if "select" in name:
        if low is None:
            return None
        low = low % size if size else 0
        return IndexedPart(shape, axis, low, low + 1, keeps=False)
    if "narrow" in name:
        if low is None or len(numbers) < 3 or numbers[2] is None:
            return None
        low = low % size if size else 0
        return IndexedPart(shape, axis, low, low + numbers[2], keeps=True)
    end = numbers[2] if len(numbers) > 2 and numbers[2] is not None else size
    low = 0 if low is None else low
    low, end = (one + size if one < 0 else one for one in (low, end))
    return IndexedPart(shape, axis, min(max(low, 0), size), max(min(end, size), low), keeps=True)


def _whole(text: Any) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", str(text)) else None


# ------------------------------------------------------------------------- tensors taken apart


class Pieces(Frozen, frozen=True):
    """A tensor that was split: the event, the shape of each piece, and their number."""

    row: int
    before: int
    piece: Shape
    count: int


def pieces(trace: Events, sequence: Sequence, least: int) -> list[Pieces]:
    """Tensors that were split into at least this many pieces of one shape."""
    out = []
    found = zip(
        sequence.apart.tolist(),
        sequence.before.tolist(),
        trace.operands(sequence.apart),
        strict=True,
    )
    for row, before, args in found:
        one = _piece(trace.names[trace.name[row]], args)
        if one is not None and one[1] >= least:
            out.append(Pieces(row, before, *one))
    return out


def _piece(name: str, args: OpArgs) -> tuple[Shape, int] | None:
    dims, concrete = decode_part(args.dims), decode_part(args.concrete)
    if not isinstance(dims, list) or not isinstance(concrete, list) or not dims or not dims[0]:
        return None
    shape = tuple(dims[0])
    axis = _whole(concrete[-1])
    if axis is None or not -len(shape) <= axis < len(shape) or 0 in shape:
        return None
    axis %= len(shape)
    size = shape[axis]
    if name.endswith("unbind"):
        return (*shape[:axis], *shape[axis + 1 :]), size
    how = concrete[1] if len(concrete) > 1 else ""
    each = _whole(how)
    if each is not None and each > 0:
        if "chunk" in name or "tensor_split" in name:  # these take the number of pieces
            each = -(-size // each)
    elif "with_sizes" in name:
        sizes = {_whole(one) for one in re.findall(r"\d+", str(how))}
        each = sizes.pop() if len(sizes) == 1 else None
    if not each:
        return None
    return (*shape[:axis], each, *shape[axis + 1 :]), -(-size // each)


def elements(shape: Shape) -> int:
    """The number of elements of a tensor of this shape."""
    return prod(shape)


def differs(values: list[Any]) -> list[bool]:
    """Whether each of these differs from the one before it."""
    return [one != other for one, other in pairwise(values)]


def irregular(numbers: list[int]) -> bool:
    """Whether these do not simply count up or down, once or several times."""
    return len(set(np.diff(numbers).tolist())) > 2


# ---- Whether a loop may carry something from one iteration to the next, as far as shapes tell.
#
# Something is carried only if an operator joins it with the selected part. If no operator of the
# body takes two tensors, nothing is carried; else shapes do not tell whether one of them is the
# previous iteration's result.

#: Layers that take one tensor, besides their parameters.
_UNARY: Final = late(r"aten::(linear|_?conv\w*|\w+_norm|embedding(_bag)?)$")
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
    names = [calls[at].name for at in work]
    if any(map(_MODEL.match, names)) or _overlaps(body):
        return True
    if any(map(_ITEM.match, names)) and not all(map(_ITEM.match, names)):
        return True  # what Python reads may come back, as an index or as a factor
    altered = [at for at in work if calls[at].in_place and not _STORE.match(calls[at].name)]
    return not all(
        len(_tensors(calls[at], parts)) < 2
        or (altered == [at] and _SUM_IN_PLACE.match(calls[at].name))
        or _is_harmless(body, at, parts)
        for at in work
    )


def _is_harmless(body: Body, at: int, parts: set[Shape]) -> bool:
    """Whether an operator's result cannot be one of the tensors that it takes."""
    call = body.calls[at]
    tensors = _tensors(call, parts)
    if _STORE.match(call.name):
        before = body.calls[at - 1].part if at else None
        return "copy" not in call.name or (before is not None and before.result == tensors[0])
    if _UNARY.match(call.name):
        return not (parts & set(tensors[1:]))
    # All are parts that were just selected, none of a tensor that is also written.
    selected = [one.part for one in body.calls[max(at - len(tensors), 0) : at]]
    some = [part for part in selected if part is not None and part.shape not in _written(body)]
    return sorted(part.result for part in some) == sorted(tensors)


def _tensors(call: BodyCall, parts: set[Shape]) -> list[Shape]:
    """The tensors that an operator takes; a single number is a factor, unless it is a part."""
    every = call.tensors
    return every if () in parts or not any(every) else [shape for shape in every if shape]


def _written(body: Body) -> set[Shape]:
    """The shapes of tensors of which parts are written."""
    one = body.calls[: body.period]
    before = (one[at - 1].part for at in range(1, len(one)) if _STORE.match(one[at].name))
    return {part.shape for part in before if part is not None}


def _overlaps(body: Body) -> bool:
    """Whether an iteration takes a tensor that the one before it wrote or made, or a part of it."""
    calls, period, written = body.calls, body.period, _written(body)
    for before, call in pairwise(calls[: 2 * period]):
        made = not (before.is_view or _STORE.match(before.name))
        if made and call.part is not None and call.part.shape in before.tensors:
            return True
    work = [call for call in calls[:period] if not (call.is_view or _STORE.match(call.name))]
    if any(shape in written for call in work for shape in call.tensors):
        return True
    if body.looked < 2 or not any(call.in_place for call in calls[:period]):
        return False
    one, other = ([call.part for call in calls[n : n + period]] for n in (0, period))
    # The same part each time is of another tensor, or selected by another index.
    return any(
        a is not None and a != same and any(b is not None and a.meets(b) for b in other)
        for a, same in zip(one, other, strict=True)
    )


# ---- Whether a loop carries something from one iteration to the next, by the identity of
# tensors.
#
# The iterations must run in sequence if an operator takes what an earlier iteration made or wrote,
# or a part of it. The exception is a sum, a product, a maximum that each iteration only adds to,
# and that nothing else takes: a value that goes into two additions is a tree, or feeds another sum.

#: Where a tensor is read or written, by the shape that was indexed; None: anywhere.
_Where: TypeAlias = Mapping["Shape", frozenset[tuple[int, int, int]]] | None

#: Operators that overwrite a tensor, and those that put values into it, without reading it.
_WHOLE: Final = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "set_"})
_STORES: Final = _WHOLE | {
    "index_put_", "_index_put_impl_", "masked_fill_", "index_fill_", "index_copy_", "scatter_",
    "masked_scatter_", "put_", "bernoulli_", "exponential_", "fill_diagonal_",
}  # fmt: skip
#: Reductions, step by step, whose operands are interchangeable.
_COMMUTES: Final = frozenset(
    {"add", "mul", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "logical_or",
     "logical_and", "logical_xor", "bitwise_or", "bitwise_and", "bitwise_xor", "__or__", "__and__"}
)  # fmt: skip
#: Those that add to their first operand, whatever comes in between.
_SUMS: Final = frozenset(
    {"add", "sub", "addmm", "addr", "addcmul", "addcdiv", "addbmm", "baddbmm", "addmv", "index_add",
     "scatter_add"}
)  # fmt: skip
_ADDS: Final = _COMMUTES | _SUMS | {"scatter_reduce", "__ior__", "__iand__"}
#: What a sum may go through besides the addition: these keep it unchanged.
_KEEPS: Final = frozenset({"copy_", "clone", "cat", "stack", "fill_", "index_put_"})
_READS: Final = late(r"aten::(item|_local_scalar_dense|is_nonzero)$")
_UNSEEN: Final = late(r"aten::index(\.\w+)?$")
_WHOLE_NUMBERS: Final = frozenset({"long int", "long", "int", "bool", "unsigned char", "short int"})


@dataclass
class _Flow:
    """What was written so far: by which call and where, and the tensors from which it was made.

    ``picked``: the tensors of which parts are selected that may depend on what Python read.
    ``sums``: operators that add to what an earlier iteration wrote, and that wrote it; ``used``:
    those whose result is taken twice, or by anything but a sum; ``read``: which values were taken.
    """

    body: Body
    apart: frozenset[int]
    picked: set[Taken]
    writers: dict[int, list[tuple[int, _Where]]] = field(default_factory=dict)
    origins: dict[int, set[int]] = field(default_factory=dict)
    parts: dict[int, list[IndexedPart]] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    sums: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    read: set[tuple[int, int]] = field(default_factory=set)
    last: int | None = None


def is_carried(body: Body, apart: Iterable[int]) -> bool:
    """Whether an iteration takes what an earlier one made, other than to add to it.

    ``apart`` are tensors that were split earlier; each iteration takes one piece.
    """
    taken, made = body.taken, body.made
    if taken is None or made is None:
        return True
    flow = _Flow(body, frozenset(apart), _picked(body))
    new: set[int] = set()
    for at, call in enumerate(body.calls):
        arguments = [one if isinstance(one, tuple) else (one,) for one in taken[at]]
        makes = set(made[at]) - new
        new |= makes
        if _takes_earlier(flow, at, call, arguments, makes):
            return True
    return bool(flow.sums & flow.used)


def _picked(body: Body) -> set[Taken]:
    """The tensors of which other parts are selected than by counting up."""
    return {
        source
        for at in range(body.period)
        if None not in (parts := [call.part for call in body.like(at)])
        and irregular([part.low for part in parts if part is not None])
        for source in body.source(at)
    }


def _takes_earlier(
    flow: _Flow, at: int, call: BodyCall, arguments: list[tuple[int, ...]], makes: set[int]
) -> bool:
    """Whether an operator takes what an earlier iteration wrote; else what it writes is noted."""
    if call.is_view and not makes:
        if call.part is not None and arguments[0][0] >= 0:
            _index(flow, arguments[0][0], call.part)
        return False
    target = arguments[0][0] if call.in_place and arguments and arguments[0] else -1
    places = _places(flow, call, arguments)
    if call.base == "copy_" and target in sum(arguments[1:], ()) and _alone(places.get(target)):
        return False  # ``x[i] += 1`` writes the part back to itself
    for number, tensors in enumerate(arguments):
        if number or call.base not in _STORES:
            for one in tensors:
                if one >= 0 and _reads_earlier(flow, at, one, places[one], first=number == 0):
                    return True
    if _UNSEEN.match(call.name) and _reads_unseen(flow, at, arguments):
        return True
    origins = set(places).union(*(flow.origins.get(one, ()) for one in places))
    if _READS.match(call.name) and origins & flow.picked:
        return True
    flow.pending.difference_update(places)
    _write(flow, at, makes, target, places.get(target))
    flow.origins.update(dict.fromkeys(makes, origins))
    return False


def _write(flow: _Flow, at: int, makes: set[int], target: int, where: _Where) -> None:
    """What was made belongs to the operator; so does the written part of a tensor."""
    flow.writers.update({one: [(at, None)] for one in makes})
    if target >= 0:
        before = flow.writers.setdefault(target, [])
        if flow.body.calls[at].base in _WHOLE:
            before[:] = [one for one in before if where is not None and one[1] != where]
        before.append((at, where))
    if makes or target >= 0:
        flow.last = at


def _places(flow: _Flow, call: BodyCall, arguments: list[tuple[int, ...]]) -> dict[int, _Where]:
    """Where in each tensor an operator works; everywhere, if one argument is all of it."""
    out: dict[int, _Where] = {}
    for number, tensors in enumerate(arguments):
        for one, tensor in enumerate(tensors):
            if tensor >= 0:
                where = _where(flow, tensor, _shape(call, number, one))
                out[tensor] = None if out.get(tensor, where) is None else where
    return out


def _shape(call: BodyCall, number: int, one: int) -> Shape | None:
    shapes = call.shapes[number] if number < len(call.shapes) else ()
    return shapes[one] if one < len(shapes) else None


def _index(flow: _Flow, tensor: int, part: IndexedPart) -> None:
    """Whatever takes this tensor next takes only this part of it."""
    if tensor not in flow.pending:
        flow.parts[tensor] = []
        flow.pending.add(tensor)
    flow.parts[tensor].append(part)


def _where(flow: _Flow, tensor: int, shape: Shape | None) -> _Where:
    """Where in a tensor an operator works that takes it in this shape."""
    if tensor in flow.apart and tensor not in flow.pending:
        return {}  # a piece of it, not what was just indexed
    parts = flow.parts.get(tensor)
    if not parts or (shape is not None and elements(shape) > elements(parts[-1].result)):
        return None
    out: dict[Shape, set[tuple[int, int, int]]] = defaultdict(set)
    for part in parts:
        out[part.shape].add((part.axis, part.low, part.high))
    return {shape: frozenset(some) for shape, some in out.items()}


def _alone(where: _Where) -> bool:
    return where is not None and all(len(some) == 1 for some in where.values())


def _meet(one: _Where, other: _Where) -> bool:
    """Whether two places overlap; pieces of a split tensor do not."""
    if one == {} or other == {}:
        return one is None or other is None
    if one is None or other is None:
        return True
    return all(
        any(a[0] != b[0] or (a[1] < b[2] and b[1] < a[2]) for a in one[shape] for b in other[shape])
        for shape in one.keys() & other.keys()
    )


def _reads_earlier(flow: _Flow, at: int, tensor: int, where: _Where, *, first: bool) -> bool:
    """Whether an operator reads what an earlier iteration wrote, other than to add to a sum."""
    period, calls = flow.body.period, flow.body.calls
    writers = [writer for writer, there in flow.writers.get(tensor, ()) if _meet(where, there)]
    kind = _kind(calls[at])
    adds = kind in _COMMUTES or (first and kind in _ADDS)
    for writer in writers:
        away = at // period - writer // period
        adds &= kind == _kind(calls[writer]) or not away
        if away and (not adds or (away > 1 and not calls[at].in_place)):
            return True
        if away:
            flow.sums |= {writer % period, at % period}
    if writers and calls[at].base not in _KEEPS:
        value = tensor, writers[-1]
        if not adds or value in flow.read:
            flow.used.add(value[1] % period)
        flow.read.add(value)
    return False


def _kind(call: BodyCall) -> str:
    """The operator's name, without what tells that it is in place; one for all that add."""
    name = call.base.removesuffix("_") if not call.base.startswith("__") else call.base
    return "add" if name in _SUMS else name


def _reads_unseen(flow: _Flow, at: int, arguments: list[tuple[int, ...]]) -> bool:
    """Whether ``x[index]`` takes an index of an earlier iteration: the profiler does not record it.

    It is the last view of integers that was made just before, or else the last tensor.
    """
    body, last = flow.body, flow.last
    before = body.calls[at - 1] if at else None
    if before is not None and before.is_view and before.types[:1]:
        tensor = body.taken[at - 1] if body.taken else ()
        if before.types[0] in _WHOLE_NUMBERS and tensor and tensor[0] != arguments[0][0]:
            return False
    return last is not None and at - last <= body.period and last // body.period < at // body.period


# ---- Repetitions that are not a loop over the elements of a tensor, according to their
# operators.

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


# ---- What a loop goes through: the tensor of which each iteration selects another part.

#: Operators for which the trace records which part they select.
_SELECTS: Final = late(r"aten::(select|slice|narrow)(\.\w+)?$")
#: Operators that select by a tensor: one element, or the elements of a mask.
_BY_TENSOR: Final = late(r"aten::(index|index_select|index_put_|masked_select)(\.\w+)?$")
#: Operators that make a tensor: parts of one that is made anew each time do not count.
_MAKER: Final = late(r"aten::(randn?|randint|randperm|normal|empty|zeros|ones|full)(_like)?$")
#: The most operators in an iteration if the trace does not say which element is selected.
_SHORT: Final = 8
#: The share of iterations that must select another part: data may select one twice in a row.
_MOVES: Final = 0.6


class Moving(Frozen, frozen=True):
    """What a stretch goes through: the event by which it begins, and the shape of a part.

    ``pieces``: whether they are of split tensors; ``apart``: which tensors these are, if known.
    """

    row: int
    message: str
    part: Shape
    pieces: frozenset[Shape] = frozenset()
    apart: frozenset[int] = frozenset()


class Movers:
    """Finds what a body goes through; ``apart`` are the tensors that were split."""

    def __init__(self, trace: Events, calls: Sequence, apart: list[Pieces], repeats: int) -> None:
        self._trace, self._calls, self._apart = trace, calls, apart
        self._repeats = repeats
        self._before = np.array([one.before for one in apart], np.int64)

    def any_before(self, stop: int) -> bool:
        """Whether a tensor was split before this call."""
        return bool((self._before <= stop).any())

    def may_be(self, body: Body) -> bool:
        """Whether there may be something, without looking at every operand."""
        if self.any_before(body.stretch.stop) or any(map(_BY_TENSOR.match, body.names)):
            return True
        for at, name in enumerate(body.names):
            if _SELECTS.match(name):
                parts = [bytes(a.concrete) for a in self._trace.operands(body.every(at))]
                if b"" in parts or len(set(parts)) > 1:
                    return True
        return False

    def of(self, body: Body) -> Moving | None:
        """What it goes through; None for nothing."""
        for at, name in enumerate(body.names):
            if _SELECTS.match(name) and (row := self._selected_part(body, at)) is not None:
                call = body.calls[at]
                part = call.part.result if call.part is not None else ()
                return self._with_pieces(body, Moving(row, _message(call), part))
        if (found := self._piece(body)) is not None:
            return found
        classes = goes_through_classes(body, frozenset())
        for at, name in enumerate(body.names):
            if _BY_TENSOR.match(name) and (classes or picks(body, at)):
                row = int(body.every(at)[0])
                shape = _result(body, at)
                return self._with_pieces(body, Moving(row, _message(body.calls[at]), shape))
        return None

    def _selected_part(self, body: Body, at: int) -> int | None:
        """The position of a select or slice that selects another part of one shape each time."""
        rows = body.every(at)
        operands = self._trace.operands(rows)
        dims = [bytes(args.dims) for args in operands]
        parts = [bytes(args.concrete) for args in operands]
        layers = any(LAYER.match(name) for name in body.names)
        if b"" in dims or not all(re.search(rb"\d", part) for part in parts):
            short = body.period <= _SHORT and not layers
            short = short and not any(map(_MAKER.match, body.names))
            moves = [short] * (len(rows) - 1)
        elif (layers and _is_batch(body.calls[at])) or _is_most(body.calls[at]):
            return None
        else:
            moves = [old != new for old, new in pairwise(parts)]
        if len(body.source(at)) > 1 or _is_only_read(body, at):
            return None
        same = np.array([a == b for a, b in pairwise(dims)], np.int8)
        edges = np.flatnonzero(np.diff(same, prepend=0, append=0)).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            moved = sum(moves[begin:end])
            if end - begin >= self._repeats - 1 and moved >= _MOVES * (end - begin):
                return int(rows[begin + moves[begin:end].index(True)])
        return None

    def _piece(self, body: Body) -> Moving | None:
        """The split tensor of which each iteration takes a piece."""
        for one, source in self._taken_apart(body):
            if _is_several(self._trace, one) and _meets_others(body, one.piece):
                continue
            return self._with_pieces(
                body, Moving(one.row, _iterated(self._trace, one.row), one.piece, apart=source)
            )
        return None

    def _with_pieces(self, body: Body, moving: Moving) -> Moving:
        every = self._taken_apart(body)
        shapes = frozenset(one.piece for one, _ in every)
        known = frozenset(number for _, source in every for number in source)
        return replace(moving, pieces=shapes, apart=moving.apart | known)

    def _taken_apart(self, body: Body) -> list[tuple[Pieces, frozenset[int]]]:
        """The tensors, split before or in the stretch, whose pieces an operator takes each time."""
        if not len(self._before):
            return []
        start, stop = body.stretch.start, body.stretch.stop
        least = start - body.period if body.taken is None else -1
        near = np.flatnonzero((self._before <= stop) & (self._before >= least))
        out: list[tuple[Pieces, frozenset[int]]] = []
        seen: set[tuple[Shape, frozenset[int]]] = set()
        for one in (self._apart[number] for number in near.tolist()):
            source = self._number(one) if body.taken is not None else frozenset[int]()
            if (one.piece, source) in seen:
                continue
            same = [x for x in near.tolist() if self._apart[x].piece == one.piece]
            count = sum(self._apart[x].count for x in same)
            if body.taken is None and not one.count - ODD <= body.stretch.repeats <= count + ODD:
                continue
            if _takes(body, one, source) or self._in_turn(body, one.piece, source):
                seen.add((one.piece, source))
                out.append((one, source))
        return out

    def _in_turn(self, body: Body, piece: Shape, source: frozenset[int]) -> bool:
        """Whether each piece is itself split in the stretch."""
        calls, start, stop = self._calls, body.stretch.start, body.stretch.stop
        inside = calls.apart[(calls.before >= start) & (calls.before <= stop)][: 2 * body.looked]
        if len(inside) < self._repeats - 1:
            return False
        shapes = (decode_part(args.dims) for args in self._trace.operands(inside))
        if sum(bool(dims) and tuple(dims[0]) == piece for dims in shapes) < self._repeats - 1:
            return False
        taken = self._trace.taken(inside)
        least = self._repeats - 1
        return taken is None or sum(_is_of(one[:1], source) for one in taken) >= least

    def numbers(self, body: Body) -> frozenset[int]:
        """The tensors that were split into single numbers, which the body takes."""
        found = frozenset[int]()
        if any(
            not self._apart[at].piece for at in np.flatnonzero(self._before <= body.stretch.stop)
        ):
            for one, source in self._taken_apart(body):
                if not one.piece:
                    found |= source or {-1}
        return found

    def _number(self, one: Pieces) -> frozenset[int]:
        taken = self._trace.taken(np.array([one.row]))
        first = taken[0][0] if taken and taken[0] else -1
        return frozenset([first]) if isinstance(first, int) and first >= 0 else frozenset()


def _takes(body: Body, pieces: Pieces, source: frozenset[int]) -> bool:
    """Whether one operator of the body takes such a piece in each iteration, and not most."""
    least, piece, most = body.looked - 1, pieces.piece, pieces.count / 2
    cheap = READS if reads_are_cheap(body) else ()
    for at in range(body.period):
        if body.names[at] in cheap:
            continue
        like = body.like(at)
        for number, shapes in enumerate(body.calls[at].shapes):
            if not 0 < shapes.count(piece) < most or _is_number(body, at, number):
                continue
            if sum(number < len(c.shapes) and piece in c.shapes[number] for c in like) < least:
                continue
            if body.taken is None:
                return True
            taken = (row[number : number + 1] for row in body.taken[at :: body.period])
            if sum(_is_of(one, source) for one in taken) >= least:
                return True
    return False


def _is_only_read(body: Body, at: int) -> bool:
    """Whether Python only reads the number on the CPU that an index selects."""
    part = body.calls[at].part
    if part is None or part.result or not reads_are_cheap(body):
        return False
    source = frozenset(one for one in body.source(at) if isinstance(one, int) and one >= 0)
    users = [
        body.names[n]
        for n, call in enumerate(body.calls[: body.period])
        if not call.is_view and () in call.tensors and (not source or _takes_any(body, n, source))
    ]
    return bool(users) and all(name in READS for name in users)


def _takes_any(body: Body, at: int, source: frozenset[int]) -> bool:
    return any(_is_of(row, source) for row in (body.taken or [])[at :: body.period])


def _is_number(body: Body, at: int, number: int) -> bool:
    """Whether an argument may be a Python number, as far as known."""
    call = body.calls[at]
    if body.taken is not None or MARKS.match(call.name) or call.base == "embedding":
        return False  # these take numbers as such, or take none
    return number > 0 and call.may_be_number(number)


def _is_of(taken: tuple[Taken, ...], source: frozenset[int]) -> bool:
    every = {number for one in taken for number in (one if isinstance(one, tuple) else (one,))}
    return not source.isdisjoint(every)


def _result(body: Body, at: int) -> Shape:
    return body.calls[at].shapes[0][0][1:] if body.calls[at].shapes[0] else ()


def _is_batch(call: BodyCall) -> bool:
    """Whether it is a slice of several elements."""
    return call.part is None or (call.part.keeps and call.part.high - call.part.low != 1)


def _is_most(call: BodyCall) -> bool:
    """Whether it selects more than half of a dimension, as the shifts of a stencil do."""
    part = call.part
    return part is not None and 2 * (part.high - part.low) > part.shape[part.axis] > 2


def _is_several(trace: Events, one: Pieces) -> bool:
    """Whether pieces have several elements of the split dimension."""
    return not trace.names[trace.name[one.row]].endswith("unbind") and _along(trace, one) != 1


def _meets_others(body: Body, piece: Shape) -> bool:
    """Whether pieces go through layers, or are combined with larger tensors: they are batches."""
    calls = body.calls[: body.period]
    if any(LAYER.match(call.name) for call in calls):
        return True
    every = (shape for call in calls if len(call.tensors) > 1 for shape in call.tensors)
    return any(elements(shape) > elements(piece) for shape in every)


def _along(trace: Events, one: Pieces) -> int:
    whole = (decode_part(trace.operands(np.array([one.row]))[0].dims) or [[]])[0]
    sizes = [b for a, b in zip(whole, one.piece, strict=False) if a != b]
    return sizes[0] if sizes else 1


def _message(call: BodyCall) -> str:
    shape = f" on a tensor of {list(call.shapes[0][0])}" if call.shapes and call.shapes[0] else ""
    return f"a loop calls {call.name}{shape} for one part after the other"


def _iterated(trace: Events, row: int) -> str:
    dims = decode_part(trace.operands(np.array([row]))[0].dims)
    shape = f" of {dims[0]}" if dims and dims[0] else ""
    name = trace.names[trace.name[row]]
    return f"a loop takes one piece after the other of a tensor{shape}, by {name}"


# ---- Whether a loop only writes one part after the other, with data from outside.
#
# Rows that are read, drawn, or made by a model one by one have to be written one by one, and
# writing them in place is the best way. Rows that are computed from the loop's index, or from the
# same tensors each time, can be computed and written at once.

_STORING: Final = late(r"aten::(copy_|fill_)$")
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
    stores = [at for at, name in enumerate(body.names) if _STORING.match(name)]
    written = {at: places for at in stores if (places := _places_written(body, at))}
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


def _places_written(body: Body, store: int) -> set[int]:
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


# ---- Tensors that grow: each was joined from the previous one and something new.

JOIN: Final = Names(
    r"aten::(cat|concat|concatenate|hstack|vstack|row_stack|column_stack|stack|pad|constant_pad_nd)$"
)

_Key: TypeAlias = tuple["Shape", ...]


class Link(Frozen, frozen=True):
    """A join: its event, which tensor is the previous one, and the result.

    ``old``: the elements that were copied before, those of the growing tensor.
    """

    row: int
    call: BodyCall
    out: Shape
    old: int
    axis: int


@dataclass
class Chain:
    """Joins that each take the previous one's result; ``listed``: a growing list of tensors."""

    links: list[Link] = field(default_factory=list)
    listed: bool = False

    @property
    def rows(self) -> list[int]:
        """The events of the joins."""
        return [link.row for link in self.links]

    @property
    def is_cut(self) -> bool:
        """Whether its last list is as long as a trace records, so that longer ones may follow."""
        last = self.links[-1].call.shapes
        return self.listed and bool(last) and len(last[0]) == LONGEST_LIST


def chains(trace: Events, least: int) -> list[Chain]:
    """All chains with at least ``least`` links, by their end."""
    return [one for one in trace.once(_chains) if len(one.links) >= least]


def may_have_more(trace: Events, least: int, bytes: float) -> bool:  # noqa: A002
    """Whether lists longer than a trace records may grow in ``least`` joins, of at least these
    ``bytes`` in total; tensors are not identified, and only the results' sizes are known, if any.
    """
    long = [row for row, call in trace.once(_joins) if _is_long(call)]
    if not long:
        return False
    known = max((one.rows for one in trace.once(_chains) if one.is_cut), key=len, default=[])
    sizes = _allocated(trace, np.array([*known, *long], np.int64))
    if sizes is None:
        return len(known) + len(long) >= least
    return len(known) + len({*sizes[len(known) :]}) >= least and sum(sizes) >= bytes


def _allocated(trace: Events, rows: Ints) -> list[int] | None:
    """The largest block that each call allocated; None if the trace has no memory events."""
    memory = trace.memory
    if not len(memory.event):
        return None
    at, sizes = trace.ts[memory.event].tolist(), memory.bytes.tolist()
    begins, ends = trace.ts[rows].tolist(), (trace.ts[rows] + trace.dur[rows]).tolist()
    return [
        max(sizes[bisect_left(at, begin) : bisect_right(at, end)], default=0)
        for begin, end in zip(begins, ends, strict=True)
    ]


def _is_long(call: BodyCall) -> bool:
    """Whether it takes a list of which the trace has no shapes."""
    return call.types[:1] == ("TensorList",) and not call.shapes[0]


def _joins(trace: Events) -> list[tuple[int, BodyCall]]:
    rows = calls(trace)
    rows = rows[trace.selection[rows] & are_named(trace, rows, JOIN)]
    found = [
        (row, call_of(trace.names[trace.name[row]], args))
        for row, args in zip(rows.tolist(), trace.operands(rows), strict=True)
    ]
    long = [at for at, (_, call) in enumerate(found) if _is_long(call)]
    for at, known in zip(long, listed(trace, rows[long]) or (), strict=False):
        row, call = found[at]
        if known is not None:
            found[at] = row, replace(call, shapes=(known.shapes, *call.shapes[1:]))
    return found


def _chains(trace: Events) -> list[Chain]:
    joins = trace.once(_joins)
    rows = np.array([row for row, _ in joins], np.int64)
    taken, made = trace.taken(rows), trace.made(rows)
    waiting: dict[_Key, deque[tuple[Chain, int]]] = defaultdict(deque)
    out = []
    for at, (row, call) in enumerate(joins):
        joined = _joined(call)
        if joined is None:
            continue
        shape, axis = joined
        chain, old, listed = _before(call, shape, waiting, (at, taken, made))
        if chain is None:
            chain = Chain()
            out.append(chain)
            old = max(map(prod, call.shapes[0]))
        chain.listed |= listed
        chain.links.append(Link(row, call, shape, old, axis))
        waiting[(shape,)].append((chain, at))
        if call.shapes and len(call.shapes[0]) > 1:
            waiting[call.shapes[0]].append((chain, at))
    return out


def _before(
    call: BodyCall,
    out: Shape,
    waiting: dict[_Key, deque[tuple[Chain, int]]],
    known: tuple[int, list[tuple[Taken, ...]] | None, list[frozenset[int]] | None],
) -> tuple[Chain | None, int, bool]:
    """The chain that a join continues, how much of it is old, and whether it is a list."""
    at, taken, made = known
    elements = call.shapes[0] if call.shapes else ()
    for number, shape in enumerate(elements):
        if shape == out or not prod(shape):
            continue
        found = _first(waiting.get((shape,)), lambda one, n=number: _is_it(taken, made, one, at, n))
        if found is not None:
            return found, prod(shape), False
    if len(elements) > 2:
        found = _first(
            waiting.get(elements[:-1]), lambda one: taken is None or _begins(taken, one, at)
        )
        if found is not None:
            return found, sum(map(prod, elements[:-1])), True
    return None, 0, False


def _first(some: deque[tuple[Chain, int]] | None, fits: object) -> Chain | None:
    """Remove and return the longest waiting chain that fits."""
    for one in list(some or ()):
        chain, at = one
        if fits(at):  # type: ignore[operator]
            some.remove(one)  # type: ignore[union-attr]
            return chain
    return None


def _is_it(
    taken: list[tuple[Taken, ...]] | None,
    made: list[frozenset[int]] | None,
    before: int,
    at: int,
    number: int,
) -> bool:
    """Whether an operand is the result of an earlier join, as far as known."""
    if taken is None or made is None:
        return True
    first = taken[at][0] if taken[at] else -1
    one = first[number] if isinstance(first, tuple) and number < len(first) else first
    return one in made[before]


def _begins(taken: list[tuple[Taken, ...]], before: int, at: int) -> bool:
    """Whether a list of tensors begins with an earlier list."""
    old, new = taken[before][:1], taken[at][:1]
    if not old or not new or isinstance(old[0], int) or isinstance(new[0], int):
        return False
    return new[0][: len(old[0])] == old[0]


def _joined(call: BodyCall) -> tuple[Shape, int] | None:
    """The shape of a join's result, and the axis along which it is longer than its input."""
    some = [shape for shape in call.shapes[0] if shape != (0,)] if call.shapes else []
    if not some:
        return None
    concrete = decode_part(call.concrete)
    if call.base in ("pad", "constant_pad_nd"):
        return _padded(some[0], concrete)
    axis = 0
    if call.base in ("cat", "concat", "concatenate", "stack"):
        text = str(concrete[1]) if isinstance(concrete, list) and len(concrete) > 1 else "0"
        axis = int(text) if re.fullmatch(r"-?\d+", text) else 0
    elif call.base == "hstack":
        axis = 0 if len(some[0]) == 1 else 1
    elif call.base == "column_stack":
        some, axis = [(*shape, 1) if len(shape) == 1 else shape for shape in some], 1
    else:
        some = [(1, *shape) if len(shape) == 1 else shape for shape in some]
    if call.base == "stack":
        shape = list(some[0])
        axis %= len(shape) + 1
        shape.insert(axis, len(some))
        return tuple(shape), axis
    rank = len(some[0])
    if not rank or any(len(shape) != rank for shape in some) or not -rank <= axis < rank:
        return None
    axis %= rank
    total = sum(shape[axis] for shape in some)
    return (*some[0][:axis], total, *some[0][axis + 1 :]), axis


def _padded(shape: Shape, concrete: object) -> tuple[Shape, int] | None:
    text = str(concrete[1]) if isinstance(concrete, list) and len(concrete) > 1 else ""
    sizes = [int(one) for one in re.findall(r"-?\d+", text)]
    if not sizes or len(sizes) > 2 * len(shape):
        return None
    out, axes = list(shape), []
    for number in range(len(sizes) // 2):
        more = sizes[2 * number] + sizes[2 * number + 1]
        if more:
            axes.append(len(shape) - 1 - number)
            out[axes[-1]] += more
    return (tuple(out), axes[0]) if len(axes) == 1 and tuple(out) != shape else None


def between(trace: Events, first: int, last: int) -> Ints:
    """The calls between these two events on their thread."""
    rows = calls(trace)
    rows = rows[trace.thread[rows] == trace.thread[first]]
    low, high = rows.searchsorted([first, last])
    inside: Ints = rows[low + 1 : high]
    return inside
