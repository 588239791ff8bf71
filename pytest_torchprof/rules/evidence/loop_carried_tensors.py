"""Whether a loop carries something from one iteration to the next, by the identity of tensors.

What an operator makes or writes is followed to what takes it. If that leads back to the same
operator in a later iteration, the iterations must run in sequence. So they must where each writes a
part of a tensor that each takes as a whole, such as a ring buffer. The exception is a sum that is
only added to, once or several times per iteration: that is a reduction. If several operators take
the same value of it, it is not one: a tree, or two sums that feed each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.rules.evidence.loop_bodies import IndexedPart, elements, irregular

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Body, BodyCall, Shape

#: Where a tensor is read or written, by the shape that was indexed; None: anywhere.
_Where: TypeAlias = Mapping["Shape", frozenset[tuple[int, int, int]]] | None

#: Operators that put values into a tensor without reading the old ones.
_STORES: Final = frozenset(
    {"copy_", "fill_", "zero_", "index_put_", "_index_put_impl_", "masked_fill_", "index_fill_",
     "index_copy_", "scatter_", "masked_scatter_", "put_", "normal_", "uniform_", "random_",
     "bernoulli_", "exponential_", "set_", "fill_diagonal_"}
)  # fmt: skip
#: Those of them that overwrite the whole tensor.
_WHOLE: Final = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "set_"})
#: Reductions, step by step: operators that add to their first argument, or multiply it, take a
#: maximum and so on. The operands of this first group are interchangeable.
_COMMUTES: Final = frozenset(
    {"add", "mul", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "logical_or",
     "logical_and", "logical_xor", "bitwise_or", "bitwise_and", "bitwise_xor", "__or__", "__and__"}
)  # fmt: skip
_PLUS: Final = "add"
#: Those that add, whatever comes in between.
_SUMS: Final = frozenset(
    {_PLUS, "sub", "addmm", "addr", "addcmul", "addcdiv", "addbmm", "baddbmm", "addmv", "index_add",
     "scatter_add"}
)  # fmt: skip
_ADDS: Final = _COMMUTES | _SUMS | frozenset({"scatter_reduce", "__ior__", "__iand__"})
#: What a sum may pass through besides the addition: these keep it unchanged.
_KEEPS: Final = frozenset({"copy_", "clone", "cat", "stack", "fill_", "index_put_"})
#: For operators that can write into a given tensor: the number of arguments without it.
_OUT: Final = {
    "add": 3, "sub": 3, "mul": 2, "div": 2, "matmul": 2, "mm": 2, "bmm": 2, "mv": 2, "addmm": 5,
    "exp": 1, "tanh": 1, "sigmoid": 1, "sqrt": 1, "pow": 2, "maximum": 2, "minimum": 2, "neg": 1,
    "where": 3, "cumsum": 3, "sin": 1, "cos": 1, "addcmul": 4, "lerp": 3, "index_select": 3,
}  # fmt: skip
_READS: Final = late(r"aten::(item|_local_scalar_dense|is_nonzero)$")
_UNSEEN: Final = late(r"aten::index(\.\w+)?$")
_WHOLE_NUMBERS: Final = frozenset({"long int", "long", "int", "bool", "unsigned char", "short int"})


@dataclass
class _Flow:
    """What was written so far, and how the operators of a body depend on one another.

    ``edges``: from an operator to those that take what it wrote, and whether each only adds to it.
    ``branches``: operators whose result was taken twice, or later than in the next iteration.
    ``touched``: the tensors that each operator takes.
    ``whole``: whether a tensor is taken as a whole after earlier iterations wrote parts of it.
    """

    body: Body
    apart: frozenset[int]
    writers: dict[int, list[tuple[int, _Where]]] = field(default_factory=dict)
    edges: dict[int, dict[int, bool]] = field(default_factory=lambda: defaultdict(dict))
    used: set[tuple[int, int]] = field(default_factory=set)
    branches: set[int] = field(default_factory=set)
    touched: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    parts: dict[int, list[IndexedPart]] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    last: int | None = None
    whole: bool = False


def is_carried(body: Body, apart: Iterable[int]) -> bool:
    """Whether an iteration takes what an earlier one made, other than to add to it.

    ``apart`` are tensors that were split earlier; each iteration takes one piece.
    """
    taken, made = body.taken, body.made
    if taken is None or made is None:
        return True
    flow = _Flow(body, frozenset(apart))
    new: set[int] = set()
    for at, call in enumerate(body.calls):
        arguments = [one if isinstance(one, tuple) else (one,) for one in taken[at]]
        makes = set(made[at]) - new
        new |= makes
        _take(flow, at, call, arguments, makes)
    return flow.whole or _feeds_itself(flow) or _picks_its_index(flow)


def _take(
    flow: _Flow, at: int, call: BodyCall, arguments: list[tuple[int, ...]], makes: set[int]
) -> None:
    """Follow one operator: what it reads, and what it makes or writes."""
    if call.is_view and not makes:
        if call.part is not None and arguments[0][0] >= 0:
            _index(flow, arguments[0][0], call.part)
        return
    base, target = call.base, -1
    if call.in_place:
        target = arguments[0][0] if arguments and arguments[0] else -1
    elif len(arguments) == _OUT.get(base, -2) + 1 and arguments[-1][:1] > (-1,):
        arguments, target, base = arguments[:-1], arguments[-1][0], "copy_"
    places = _places(flow, call, arguments)
    flow.touched[at % flow.body.period] |= places.keys()
    if base == "copy_" and target in sum(arguments[1:], ()) and _alone(places.get(target)):
        return  # ``x[i] += 1`` writes the part back to itself
    for number, tensors in enumerate(arguments):
        if number or not call.in_place or base not in _STORES:
            for tensor in tensors:
                if tensor >= 0:
                    _read(flow, at, tensor, places[tensor], first=number == 0, base=base)
    if _UNSEEN.match(call.name):
        _read_unseen(flow, at, arguments)
    flow.pending.difference_update(places)
    _write(flow, at, makes, target, places.get(target), whole=base in _WHOLE)


def _places(flow: _Flow, call: BodyCall, arguments: list[tuple[int, ...]]) -> dict[int, _Where]:
    """Where in each tensor an operator works; everywhere, if one argument is all of it."""
    out: dict[int, _Where] = {}
    for number, tensors in enumerate(arguments):
        for one, tensor in enumerate(tensors):
            if tensor >= 0:
                where = _where(flow, tensor, _shape(call, number, one))
                out[tensor] = None if out.get(tensor, where) is None else where
    return out


def _write(
    flow: _Flow, at: int, makes: set[int], target: int, where: _Where, *, whole: bool
) -> None:
    """What was made belongs to the operator; so does the written part of a tensor."""
    for tensor in makes:
        flow.writers[tensor] = [(at, None)]
    if target >= 0:
        before = flow.writers.setdefault(target, [])
        if whole:
            before[:] = [one for one in before if where is not None and one[1] != where]
        before.append((at, where))
    if makes or target >= 0:
        flow.last = at


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


def _read(flow: _Flow, at: int, tensor: int, where: _Where, *, first: bool, base: str) -> None:
    met = [one for one in flow.writers.get(tensor, ()) if _meet(where, one[1])]
    writers = [writer for writer, _ in met]
    if not writers:
        return
    period = flow.body.period
    if where is None:  # all of it, with the parts written before
        flow.whole |= any(there and writer // period < at // period for writer, there in met)
    name = base.removesuffix("_") if not base.startswith("__") else base
    adds = name in _COMMUTES or (first and name in _ADDS)
    for writer in writers:
        _link(flow, writer, at, adds=adds)
    if base not in _KEEPS:
        last = writers[-1]
        late = at // period - last // period > 1 and not flow.body.calls[at].in_place
        if late or (tensor, last) in flow.used:
            flow.branches.add(last % period)
        flow.used.add((tensor, last))


def _link(flow: _Flow, writer: int, at: int, *, adds: bool) -> None:
    """An operator takes what another one wrote."""
    to, here = flow.edges[writer % flow.body.period], at % flow.body.period
    to[here] = to.get(here, True) and adds


def _read_unseen(flow: _Flow, at: int, arguments: list[tuple[int, ...]]) -> None:
    """The profiler does not record the tensors that ``x[index]`` takes as its index.

    It is the last view of integers that was made just before, or else the last tensor.
    """
    before = flow.body.calls[at - 1] if at else None
    if before is not None and before.is_view and before.types[:1]:
        tensor = flow.body.taken[at - 1] if flow.body.taken else ()
        if before.types[0] in _WHOLE_NUMBERS and tensor and tensor[0] != arguments[0][0]:
            return
    if flow.last is not None and at - flow.last <= flow.body.period:
        _link(flow, flow.last, at, adds=False)


# ------------------------------------------------------------------------------------ what it means


def _feeds_itself(flow: _Flow) -> bool:
    """Whether an operator depends on itself, other than to add to a sum."""
    reached = {node: _reached(flow.edges, to) for node, to in flow.edges.items()}
    for node, found in reached.items():
        if node in found:
            ring = {other for other in found if node in reached.get(other, ())}
            if not _is_sum(flow, ring):
                return True
    return False


def _is_sum(flow: _Flow, ring: set[int]) -> bool:
    """Whether operators in a cycle only add to a sum that nothing else takes."""
    bases = [flow.body.calls[node].base.removesuffix("_") for node in ring]
    if len({_PLUS if base in _SUMS else base for base in bases}) > 1 or ring & flow.branches:
        return False
    ways = [(other, adds) for node in ring for other, adds in flow.edges[node].items()]
    return all(
        adds if other in ring else flow.body.calls[other].base in _KEEPS for other, adds in ways
    )


def _reached(after: Mapping[int, Iterable[int]], begin: Iterable[int]) -> set[int]:
    found, todo = set[int](), list(begin)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += after.get(node, ())
    return found


def _picks_its_index(flow: _Flow) -> bool:
    """Whether Python reads a number from a part that such a number may have selected."""
    body = flow.body
    picked = {
        source
        for at in range(body.period)
        if (parts := [call.part for call in body.like(at)])
        and None not in parts
        and irregular([part.low for part in parts if part is not None])
        for source in body.source(at)
    }
    reading = [at for at, name in enumerate(body.names) if _READS.match(name)]
    if not picked or not reading:
        return False
    before: dict[int, set[int]] = defaultdict(set)
    for node, to in flow.edges.items():
        for other in to:
            before[other].add(node)
    return any(flow.touched[node] & picked for node in _reached(before, reading))
