"""Which operator wrote what another one reads: the one graph of a trace's data flow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from pytest_torchprof.core.records import cached
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike, decode_list, decode_part
from pytest_torchprof.trace.names import (
    D2H,
    H2D,
    Kind,
    Names,
    are_named,
    operators_named,
)
from pytest_torchprof.trace.tree import engine_steps, marked
from pytest_torchprof.work.bytes import compulsory_bytes, is_elementwise, written
from pytest_torchprof.work.counting import all_computing
from pytest_torchprof.work.dispatch import EXPANSIONS, MAY_COPY, SPLITS, VIEWS, WHOLE, aten
from pytest_torchprof.work.operands import ELEMENT_BYTES, Operands, Tensor

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken

#: Who wrote a value: it was there before the trace; or something that the trace does not show, such
#: as NumPy, or nobody, as after ``torch.empty``.
OUTSIDE: Final = -1
UNKNOWN: Final = -2

#: The engine's node that stores a gradient. It reads one, and mostly computes nothing.
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
#: Operators that write to their first argument: ``add_``, ``__iadd__``, but not ``__and__``.
IN_PLACE: Final = Names(r"(?!aten::(detach_|requires_grad_)$)(.*[^_]_|.*::__i\w+__)$")
#: Those of them that do not read what they write over.
OVERWRITES: Final = aten(
    "copy_ fill_ zero_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ "
    "bernoulli_ eye_ arange_ _foreach_copy_ _foreach_zero_ set_"
)
#: Operators of other libraries, which may write to any argument, and torch's fused optimizers.
_WRITES_ALL: Final = Names(r"(?!aten::|autograd::|torch::|prim)\w+::\w+$|aten::_fused_\w+_$")
#: Operators that write to other arguments too: running statistics, and what scales gradients.
_NORMS: Final = aten(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit"
)
_ALSO_WRITES: Final = {
    **dict.fromkeys(_NORMS, (3, 4)),
    "aten::_batch_norm_with_update": (3, 4),
    "aten::_amp_foreach_non_finite_check_and_unscale_": (1,),
    "aten::_amp_update_scale_": (1,),
}
#: Operators that give Python a number, so that their last argument is no place for a result.
_TO_PYTHON: Final = aten("_local_scalar_dense equal allclose is_nonzero")
#: Operators that put a list of tensors into one.
_JOINS: Final = aten("cat _cat stack")
#: Operators that do not compute the same each time.
_RANDOM: Final = Names(
    r"aten::(\w*(rand|normal|uniform|bernoulli|dropout|exponential|geometric|cauchy|poisson|"
    r"multinomial|empty)\w*|\w*scaled_dot_product\w*)$"
)
#: Views of the whole tensor, or of repeated elements: they do not say which part is meant.
_SAME_PART: Final = WHOLE | EXPANSIONS


class Reads(NamedTuple):
    """What nodes read: one row per tensor, by node, then by argument; all int64.

    ``node``: its number in the graph. ``argument``: its position in the call. ``value``: the tensor
    as its last writer left it, a number, equal for two reads of the same contents. ``tensor``: its
    number as of `Events.taken`; where tensors are not identified, of all that look alike.
    """

    node: Ints
    argument: Ints
    tensor: Ints
    value: Ints

    def where(self, chosen: Bools | Ints | slice) -> Reads:
        """Some of the rows."""
        return Reads(*(column[chosen] for column in self))


class Writes(NamedTuple):
    """What nodes write: one row per tensor, by node; columns as those of `Reads`."""

    node: Ints
    tensor: Ints
    value: Ints

    def where(self, chosen: Bools | Ints | slice) -> Writes:
        """Some of the rows."""
        return Writes(*(column[chosen] for column in self))


_Columns = TypeVar("_Columns", Reads, Writes)


class Dataflow:
    """The data flow of a whole trace, in time order.

    Its nodes are the operators that read or write the data of tensors themselves, of nested ones
    the outermost, and the engine's nodes that store gradients. Views, allocations, and operators
    that only call others are no nodes; what flows through a view flows through its tensor. Each
    write makes a new *value* of the tensor.

    Questions take events, which need not be nodes: those of a call are all nodes within it.

    Attributes:
        exact: tensors were identified, by a live capture. Otherwise it is a *possible* graph: the
            value of a tensor is the latest result of so many elements of its type on the device
            and thread, and parts of tensors are not followed.
        event: the event of each node, in time order; int64.
        in_place: which nodes write to an argument.
        backward: which nodes run in the autograd engine.
        reads, writes: what each node reads and writes.
        writer: the node that wrote each value; `OUTSIDE` or `UNKNOWN` for none.
        tensor: the tensor of each value.
    """

    def __init__(self, trace: Events, *, exact: bool = True) -> None:
        self.trace, self.exact = trace, exact and trace.tensors is not None
        self.event = nodes_of(trace)
        self.thread = trace.thread[self.event]
        self._begin = trace.ts[self.event]
        self._end = self._begin + trace.dur[self.event]
        flow = _identified(trace, self.event) if self.exact else _possible(trace, self.event)
        self.in_place: Bools = flow.in_place
        self.backward: Bools = nesting.below(_marks(trace), trace.parent, self.event)
        self._number, keys = _dense(flow.reads[2], flow.writes[1])
        self._tensor_at = flow.tensor_at
        read, write = keys
        order = np.lexsort((flow.writes[0], write))
        node, key = flow.writes[0][order], write[order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(key) != 0) | (np.diff(node) != 0)
        node, key = node[first], key[first]
        self._written = key * self._span + node
        there = flow.allocated(self._number)
        self.writer = np.concatenate([node, np.where(there, UNKNOWN, OUTSIDE)])
        self.tensor = np.concatenate([self._number[key], self._number])
        self._tensor_key = np.concatenate([key, np.arange(len(self._number))])
        value = self._value(read, flow.reads[0])
        rows = np.lexsort((flow.reads[1], flow.reads[0]))
        self.reads = Reads(flow.reads[0], flow.reads[1], flow.reads[2], value).where(rows)
        rows = np.argsort(node, kind="stable")
        self.writes = Writes(node, self._number[key], np.arange(len(node))).where(rows)

    def __len__(self) -> int:
        return len(self.event)

    # ---------------------------------------- nodes and events

    def nodes(self, event: int) -> Ints:
        """The numbers of the nodes that this event is or contains, in time order."""
        trace = self.trace
        end = trace.ts[event] + trace.dur[event]
        low = int(self.event.searchsorted(event))
        high = int(self._begin.searchsorted(end, side="right"))
        some = np.arange(low, max(high, low))
        inside = (self.thread[some] == trace.thread[event]) & (self._end[some] <= end)
        found: Ints = some[inside]
        return found

    def node_of(self, events: Ints) -> Ints:
        """The number of the node that each event is, or is within; -1 for none."""
        around = nesting.nearest(self._is_node, self.trace.parent, events)
        return np.where(around >= 0, self.event.searchsorted(around), -1)

    # ---------------------------------------- what a call takes and leaves

    def taken(self, event: int) -> Reads:
        """What a call reads of what others wrote, in order; not what it has written itself."""
        found = self._rows(self.reads, self.nodes(event))
        inside = nesting.distinct(found.node)
        own = nesting.among(self.writer[found.value], inside) if len(inside) else inside > 0
        return found.where(~own)

    def left(self, event: int) -> Writes:
        """What a call wrote, and did not itself write over."""
        found = self._rows(self.writes, self.nodes(event))
        last = {tensor: row for row, tensor in enumerate(found.tensor.tolist())}
        return found.where(np.array(sorted(last.values()), np.int64))

    def values(self, events: Ints, argument: int = 0) -> Ints:
        """The value of the tensor at this position of each of these calls, as it begins.

        -1 if that is no tensor, or a list. The calls need not be nodes.
        """
        key, node = self._keys(events, argument), self.event.searchsorted(events)
        return np.where(key >= 0, self._value(key, node), -1)

    # ---------------------------------------- who wrote it, who reads it

    def writers(self, event: int) -> Ints:
        """The events that wrote what this one reads, once each; `OUTSIDE`, `UNKNOWN` among them."""
        return nesting.distinct(self._events(self.writer[self.taken(event).value]))

    def readers(self, event: int) -> Ints:
        """The events that read what this one left, before something writes over it, in order."""
        return self.readers_of(self.left(event).value)

    def readers_of(self, values: Ints) -> Ints:
        """The events that read any of these values, once each, in order."""
        order, value = self._by_value
        low, high = value.searchsorted(values), value.searchsorted(values, side="right")
        rows = order[_spread(low, high - low)]
        return nesting.distinct(self.event[self.reads.node[rows]])

    def writer_of(self, values: Ints) -> Ints:
        """The event that wrote each of these values; `OUTSIDE` or `UNKNOWN` for none."""
        return self._events(self.writer[values])

    def next_write(self, values: Ints) -> Ints:
        """The event that writes to the tensor of each of these values next; -1 for none."""
        key = self._tensor_key[values]
        written = len(self._written)
        at = np.where(values < written, values + 1, self._written.searchsorted(key * self._span))
        at = np.append(at, 0)[:-1]
        known = at < written
        known[known] = self._tensor_key[at[known]] == key[known]
        node = np.full(len(at), -1, np.int64)
        node[known] = self.writer[at[known]]
        return self._events(node)

    def is_changed(self, tensor: int, after: int, before: int) -> bool:
        """Whether something writes to a tensor after one event begins, before another one does.

        ``tensor``: its number, as of `Events.taken`. What the first event itself writes counts.
        """
        key = self._key(np.array([tensor, tensor]))
        first, last = self._value(key, self.event.searchsorted([after, before]))
        return bool(first != last and key[0] >= 0)

    def unused(self) -> Writes:
        """What nodes wrote and nothing read, whether or not something wrote over it."""
        read = np.zeros(len(self.writer), bool)
        read[self.reads.value] = True
        return self.writes.where(~read[self.writes.value])

    # ---------------------------------------- what depends on what

    def depends(self, event: int, on: int) -> bool:
        """Whether what one call wrote depends on what another one wrote before, over any path."""
        mine, sources = self.nodes(event), self.nodes(on)
        if not (len(mine) and len(sources)):
            return False
        first, last = int(sources[0]), int(mine[-1])
        low, high = self.reads.node.searchsorted([first, last + 1]).tolist()
        found = set(sources.tolist())
        targets = set(mine.tolist()) - found
        pairs = zip(
            self.reads.node[low:high].tolist(),
            self.writer[self.reads.value[low:high]].tolist(),
            strict=True,
        )
        for node, writer in pairs:
            if writer in found:
                found.add(node)
        return not targets.isdisjoint(found)

    def again(self, events: Ints) -> Ints:
        """A number for each of these calls, equal for those that compute the same again.

        They are of one operator with the same arguments, and read the same parts of the same
        values. -1 if it is not known: a random one, or a tensor that is not identified.
        """
        trace, out = self.trace, np.full(len(events), -1, np.int64)
        if not (self.exact and len(events)):
            return out
        known = dict[Any, int]()
        kinds, _, _ = alike(trace.name[events], trace.args[events])
        free = ~are_named(trace, events, _RANDOM, IN_PLACE, _WRITES_ALL)
        taken, nodes = trace.taken(events) or [], self.event.searchsorted(events)
        parts = self.parts(events)
        for i in free.nonzero()[0].tolist():
            if parts[i] and -1 not in parts[i]:
                numbers = np.array(flat_in_order(taken[i]))
                key = self._key(numbers)
                value = np.where(key >= 0, self._value(key, nodes[i]), -2 - numbers)
                out[i] = known.setdefault((int(kinds[i]), *value.tolist(), parts[i]), len(known))
        return out

    # ---------------------------------------- what is kept

    def released_ns(self, values: Ints) -> Ints:
        """When the memory of each value's tensor was released, ns on the trace's clock.

        -1 if it outlives the trace, or is not known.
        """
        known = {} if self.trace.tensors is None else self.trace.tensors.lifetimes()
        return np.array(
            [known.get(one, (-1, -1))[1] for one in self.tensor[values].tolist()], np.int64
        )

    def outlives(self, values: Ints, time_ns: int) -> Bools:
        """Which of these values' tensors still exist at this time, as far as known."""
        released = self.released_ns(values)
        return (released < 0) | (released > time_ns)

    # ---------------------------------------- internals

    @property
    def _span(self) -> int:
        return len(self.event) + 1

    def _value(self, key: Ints, node: Ints) -> Ints:
        """The value of the tensor with this key as each of these nodes begins; of -1, any."""
        at = self._written.searchsorted(key * self._span + node) - 1
        hit = at >= 0
        hit[hit] = self._written[at[hit]] // self._span == key[hit]
        return np.where(hit, at, len(self._written) + key)

    def _events(self, nodes: Ints) -> Ints:
        return np.where(nodes >= 0, np.append(self.event, -1)[nodes], nodes)

    @staticmethod
    def _rows(columns: _Columns, nodes: Ints) -> _Columns:
        low = columns.node.searchsorted(nodes)
        high = columns.node.searchsorted(nodes, side="right")
        return columns.where(_spread(low, high - low))

    @cached
    def _is_node(self) -> Bools:
        return marked(self.trace, self.event)

    @cached
    def _by_value(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.reads.value, kind="stable")
        return order, self.reads.value[order]

    def _keys(self, events: Ints, argument: int) -> Ints:
        """The key of the tensor at this position of each of these calls; -1 for none."""
        taken = self.trace.taken(events) if self.exact else None
        if taken is None:
            numbers = self._tensor_at(events, argument)
        else:
            some = [one[argument] if argument < len(one) else -1 for one in taken]
            numbers = np.array([one if isinstance(one, int) else -1 for one in some], np.int64)
        return self._key(numbers)

    def _key(self, numbers: Ints) -> Ints:
        """The keys of tensors with these numbers; -1 for those that no node reads or writes."""
        at = self._number.searchsorted(numbers)
        known = at < len(self._number)
        known[known] = self._number[at[known]] == numbers[known]
        return np.where(known, at, -1)

    def parts(self, events: Ints) -> list[tuple[int, ...]]:
        """Which part of its tensor each argument of these calls is: numbers, equal for one part.

        Only of tensors, also of those in lists; -1 for one that is not identified. A view's object
        is not told where it is made, only where it is taken: an object that was not seen before is
        what the latest views of its tensor made.
        """
        trace, known = self.trace, dict[Any, int]()
        wanted = {number for one in trace.taken(events) or () for number in flat_in_order(one)}
        views = operators_named(trace, _VIEW)
        views = views[~are_named(trace, trace.parent[views], _VIEW)]
        views = views[self.node_of(views) < 0]
        rows = nesting.distinct(np.concatenate([views, self.event, events]))
        origins: dict[int, _Origins] = {number: _Origins(known) for number in wanted}
        asked = dict[int, tuple[int, ...]](dict.fromkeys(events.tolist(), ()))
        are_views = nesting.among(rows, views).tolist()
        each = zip(
            rows.tolist(),
            are_views,
            trace.taken(rows) or (),
            trace.objects(rows) or (),
            strict=True,
        )
        for row, is_view, taken, objects in each:
            both = [one for one in zip(_all(taken), _all(objects), strict=True) if one[1] >= 0]
            pairs = [one for one in both if one[0] in wanted]
            if is_view:
                for number, one in pairs[:1]:
                    origins[number].view(one, _selects(trace, row))
            elif pairs:
                parts = [origins[number].of(one) for number, one in pairs]
                if row in asked:
                    asked[row] = tuple(parts + [-1] * (len(both) - len(pairs)))
        return [asked[row] for row in events.tolist()]


def dataflow(trace: Events) -> Dataflow:
    """The graph of the whole trace, made once."""
    found: Dataflow = trace.whole.once(Dataflow)
    return found


def possible(trace: Events) -> Dataflow:
    """The possible graph of the whole trace, also if its tensors are identified."""
    if trace.tensors is None:
        return dataflow(trace)
    found: Dataflow = trace.whole.once(Dataflow, exact=False)
    return found


def nodes_of(trace: Events) -> Ints:
    """The events that are the graph's nodes, in time order, without making the graph."""
    found: Ints = trace.whole.once(_nodes)
    return found


def alike_nodes(trace: Events) -> tuple[Ints, list[int]]:
    """The kind of each node: its name and arguments; and the first node of each kind."""
    return trace.whole.once(_alike_nodes)


def _alike_nodes(trace: Events) -> tuple[Ints, list[int]]:
    event = nodes_of(trace)
    return alike(trace.name[event], trace.args[event])[:2]


def made_bytes(trace: Events) -> Ints:
    """The bytes that each node of the graph allocates and keeps; 0 without memory events."""
    found: Ints = trace.whole.once(_made_bytes)
    return found


def _made_bytes(trace: Events) -> Ints:
    event, memory = nodes_of(trace), trace.memory
    made = np.zeros(len(trace) + 1, np.int64)
    if len(memory.event):
        around = nesting.nearest(marked(trace, event), trace.parent, trace.enclosing(memory.event))
        np.add.at(made, around, memory.bytes)
    found: Ints = made[event]
    return found


# ---- The nodes.


def _nodes(trace: Events) -> Ints:
    found = all_computing(trace).copy()
    # Of an operator that a mode or a subclass calls again, the inner one has the operands.
    rows = trace.is_kind(Kind.OP).nonzero()[0]
    above = trace.parent[rows]
    again = (above >= 0) & found[above] & (trace.name[above] == trace.name[rows])
    found[above[again]] = False
    found[rows[again]] = True
    found[operators_named(trace, ACCUMULATE)] = True
    events: Ints = found.nonzero()[0]
    return events


def _marks(trace: Events) -> Bools:
    """The steps of the autograd engine, as from `tree.marked`."""
    return marked(trace, engine_steps(trace))


class _Flow(NamedTuple):
    """What nodes read (node, argument, tensor) and write (node, tensor), in any order.

    ``allocated`` says of tensors whether they were allocated in the trace; ``tensor_at`` which
    tensor is at a position of calls, where that is not told otherwise.
    """

    reads: tuple[Ints, Ints, Ints]
    writes: tuple[Ints, Ints]
    in_place: Bools
    allocated: Any
    tensor_at: Any


# ---- The exact graph: tensors that a live capture identified.


def _identified(trace: Events, event: Ints) -> _Flow:
    taken, made = trace.taken(event) or [], trace.made(event) or []
    names = [trace.names[number] for number in trace.name[event].tolist()]
    writes_first = are_named(trace, event, IN_PLACE)
    writes_all = are_named(trace, event, _WRITES_ALL)
    allocates, idle = _allocates(trace, event), _evaluates(trace, event)
    reads, writes = list[tuple[int, int, int]](), list[tuple[int, int]]()
    over = list[bool]()  # whether what is there is not read
    in_place = np.zeros(len(event), bool)
    for node, (name, arguments, new) in enumerate(zip(names, taken, made, strict=True)):
        targets: Iterable[int] = () if node in idle else _ALSO_WRITES.get(name, ())
        replaces = name in OVERWRITES
        if writes_all[node]:
            targets = range(len(arguments))
        elif writes_first[node]:
            targets = (0, *targets)
        elif not allocates[node] and _may_have_out(name, arguments):
            targets, replaces = (len(arguments) - 1,), True
        for argument, one in enumerate(arguments):
            target = argument in targets
            for number in one if isinstance(one, tuple) else (one,):
                if number >= 0:
                    reads.append((node, argument, number))
                    over.append(target and replaces)
                    if target:
                        writes.append((node, number))
                        in_place[node] = True
        writes += [(node, number) for number in new]
    read = np.array(reads, np.int64).reshape(-1, 3).T
    kept = ~np.array(over, bool)
    if not kept.all():  # of a tensor that is written in part, the rest stays
        kept |= _are_parts(trace, event, read)
    write = np.array(writes, np.int64).reshape(-1, 2).T
    lifetimes = trace.tensors.lifetimes() if trace.tensors is not None else {}

    def allocated(numbers: Ints) -> Bools:
        return np.array([lifetimes.get(one, (-1, -1))[0] >= 0 for one in numbers.tolist()], bool)

    node, argument, number = read[:, kept]
    return _Flow((node, argument, number), (write[0], write[1]), in_place, allocated, None)


def _evaluates(trace: Events, event: Ints) -> set[int]:
    """Nodes that normalize by running statistics, which they leave as they are."""
    norms = are_named(trace, event, *_NORMS).nonzero()[0]
    flags = [decode_list(args.concrete)[5:6] for args in trace.operands(event[norms])]
    return {node for node, flag in zip(norms.tolist(), flags, strict=True) if flag == ["False"]}


def _may_have_out(name: str, arguments: tuple[Taken, ...]) -> bool:
    """Whether the last argument may be where the result is put: ``torch.mul(a, b, out=c)``."""
    if len(arguments) < 2 or name in _TO_PYTHON or not name.startswith("aten::"):
        return False
    last = arguments[-1]
    return isinstance(last, int) and last >= 0


def _allocates(trace: Events, event: Ints) -> Bools:
    """Which nodes keep memory that they allocate; all if the trace has no memory events."""
    memory = trace.memory
    if not len(memory.event):
        return np.ones(len(event), bool)
    return made_bytes(trace) > 0


def _are_parts(trace: Events, event: Ints, read: Any) -> Bools:
    """Which of these arguments are a part of their tensor, as far as some call takes more of it."""
    kinds, firsts = alike_nodes(trace)
    shapes = [_sizes(bytes(a.dims), bytes(a.strides)) for a in trace.operands(event[firsts])]
    width = max(map(len, shapes), default=0) + 1
    table = np.full((len(shapes), width), -1, np.int64)
    for row, some in enumerate(shapes):
        table[row, : len(some)] = some
    node, argument, number = read
    elements = table[kinds[node], np.minimum(argument, width - 1)]
    distinct, (at,) = _dense(number)
    most = np.zeros(len(distinct), np.int64)
    np.maximum.at(most, at, elements)
    found: Bools = elements < most[at]
    return found


@lru_cache(maxsize=10_000)
def _sizes(dims: bytes, strides: bytes) -> tuple[int, ...]:
    """How many elements each argument has, expanded ones once; -1 for what is no tensor."""
    shapes, steps = decode_part(dims), decode_part(strides)
    if not isinstance(shapes, list):
        return ()
    steps = steps if isinstance(steps, list) and len(steps) == len(shapes) else [None] * len(shapes)
    return tuple(_elements(*one) for one in zip(shapes, steps, strict=True))


def _elements(shape: Any, strides: Any = None) -> int:
    if not isinstance(shape, list) or any(type(n) is not int for n in shape):
        return -1
    if isinstance(strides, list) and len(strides) == len(shape):
        return prod(n for n, step in zip(shape, strides, strict=True) if step != 0)
    return prod(shape)


# ---- Which part of a tensor is taken: views made on the way, by their arguments.

#: Views that are another object than what they are of.
_VIEW: Final = Names(
    "|".join(
        f"{name}$"
        for name in sorted(VIEWS - MAY_COPY - aten("resolve_conj resolve_neg positive lift_fresh"))
        if not name.endswith("_")
    )
)


def _selects(trace: Events, row: int) -> Any:
    """What a view's arguments select; None for all of the tensor."""
    name = trace.names[trace.name[row]]
    if name in _SAME_PART and not name.startswith("aten::as_strided"):
        return None
    (args,) = trace.operands(np.array([row]))
    return name, bytes(args.dims), bytes(args.strides), bytes(args.concrete)


class _Origins:
    """Of one tensor, which part of it each object is that is taken, in time order.

    ``known`` numbers what is equal. ``_made``: the latest views, whose objects were not seen yet
    when the last one was made; ``_seen``: how many of them were.
    """

    def __init__(self, known: dict[Any, int]) -> None:
        self._known = known
        self._roots = set[int]()
        self._parts = dict[int, tuple[int, int]]()
        self._made = list[Any]()
        self._seen = self._turn = 0
        self._splits = False

    def view(self, one: int, selects: Any) -> None:
        """A view of this object is made."""
        base = self.of(one)
        if self._seen:
            self._made, self._seen, self._splits = [], 0, False
        self._made.append((base, selects))
        self._splits |= selects is not None and selects[0] in SPLITS
        self._turn += 1

    def of(self, one: int) -> int:
        """The number of the part that this object is."""
        part, turn = self._parts.get(one, (-1, -1))
        settled = self._seen >= len(self._made) and not self._splits
        if part >= 0 and (turn == self._turn or settled):
            return part
        if one in self._roots or not self._made:
            self._roots.add(one)
            return self._number(one)
        part = self._number((tuple(self._made), self._seen))
        self._seen += 1
        self._parts[one] = part, self._turn
        return part

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))


# ---- The possible graph: tensors that look alike.


class _Alike(NamedTuple):
    """What calls of one kind read (argument, key) and write (key), and whether to an argument."""

    reads: tuple[tuple[int, Any], ...]
    writes: tuple[Any, ...]
    in_place: bool


def _possible(trace: Events, event: Ints) -> _Flow:
    numbers = dict[Any, int]()
    lane = _lanes(trace, event)
    source, target = _on_device(trace, event)

    def column(kinds: Ints, each: list[list[int]]) -> tuple[Ints, Ints]:
        """For each node, as often as its kind has entries: the node, and the entry."""
        count = np.array([len(one) for one in each], np.int64)
        flat = np.array([key for one in each for key in one], np.int64)
        node = np.repeat(np.arange(len(kinds)), count[kinds])
        return node, flat[_spread((np.cumsum(count) - count)[kinds], count[kinds])]

    def numbered(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    kinds, known = _kinds(trace, event, *alike_nodes(trace))
    read_node, read_key = column(kinds, [[numbered(key) for _, key in one.reads] for one in known])
    _, argument = column(kinds, [[at for at, _ in one.reads] for one in known])
    write_node, write_key = column(kinds, [[*map(numbered, one.writes)] for one in known])
    lanes = int(lane.max(initial=0)) + 1

    def tensor(key: Ints, node: Ints, device: Bools) -> Ints:
        return (key * 2 + device[node]) * lanes + lane[node]

    def tensor_at(events: Ints, position: int) -> Ints:
        some, each = _kinds(trace, events, *alike(trace.name[events], trace.args[events])[:2])
        keys = [dict(one.reads).get(position) for one in each]
        key = np.array([-1 if one is None else numbers.get(one, -1) for one in keys], np.int64)[
            some
        ]
        node = np.minimum(event.searchsorted(events), len(event) - 1)
        return np.where(key >= 0, tensor(key, node, source), -1)

    in_place = np.array([one.in_place for one in known], bool)[kinds]
    reads = read_node, argument, tensor(read_key, read_node, source)
    writes = write_node, tensor(write_key, write_node, target)
    return _Flow(reads, writes, in_place, lambda some: np.zeros(len(some), bool), tensor_at)


def _kinds(trace: Events, rows: Ints, kinds: Ints, firsts: list[int]) -> tuple[Ints, list[_Alike]]:
    """The kind of each of these calls, and what those of each kind read and write."""
    first = rows[firsts]
    names = [trace.names[number] for number in trace.name[first].tolist()]
    each = zip(names, trace.operands(first), strict=True)
    return kinds, [
        _alike(name, bytes(a.dims), bytes(a.types), bytes(a.strides), bytes(a.concrete))
        for name, a in each
    ]


@lru_cache(maxsize=10_000)
def _alike(name: str, *parts: bytes) -> _Alike:
    dims, types, strides, concrete = map(decode_part, parts)
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return _Alike((), (), IN_PLACE.match(name) is not None)
    reads = list[tuple[int, Any]]()
    for at, (shape, of) in enumerate(zip(dims, types, strict=True)):
        kind = str(of)
        if kind == "TensorList" and isinstance(shape, list):  # their type is not in the trace
            reads += [(at, (_elements(one), "float")) for one in shape]
        elif kind in ELEMENT_BYTES and not (shape == [] and at and kind in ("double", "long")):
            reads.append((at, (_elements(shape), kind)))
    reads = [one for one in reads if one[1][0] >= 0]
    in_place = IN_PLACE.match(name) is not None
    if in_place:
        writes = [key for at, key in reads if at == 0]
        if name in OVERWRITES:
            reads = [one for one in reads if one[0]]
    elif name.endswith("backward"):  # gradients are like what they are of
        writes = [key for _, key in reads]
    else:
        writes = _results(name, Operands(dims, types, concrete, strides), reads)
    return _Alike(tuple(reads), tuple(dict.fromkeys(writes)), in_place)


def _results(name: str, call: Operands, reads: list[tuple[int, Any]]) -> list[Any]:
    """What an operator makes: elements and type."""
    first = next((key for _, key in reads), None)
    if name in _JOINS:
        return [(sum(key[0] for at, key in reads if at == 0), "float")]
    if first is None or name == ACCUMULATE or name in _TO_PYTHON:
        return []
    try:
        if is_elementwise(name):
            made: Tensor = written(name, call)
            return [(prod(made.shape), made.dtype)]
        if "norm" in name or "softmax" in name:
            return [first]
        moved = compulsory_bytes(name, call.dims, call.types, call.strides, call.concrete)
        rest = None if moved is None else moved - sum(one.bytes for one in call.tensors())
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):  # malformed
        return [first]
    item = ELEMENT_BYTES[first[1]]
    return [first] if rest is None or rest <= 0 or rest % item else [(rest // item, first[1])]


def _lanes(trace: Events, event: Ints) -> Ints:
    """The thread of each node; of a thread that only runs backward passes, the only other one."""
    thread = trace.thread[event].astype(np.int64)
    others = nesting.distinct(thread[~nesting.below(_marks(trace), trace.parent, event)])
    return np.zeros(len(event), np.int64) if len(others) < 2 else thread


def _on_device(trace: Events, event: Ints) -> tuple[Bools, Bools]:
    """Whether each node reads memory of a device, and writes such memory, by what it launched."""
    reads, writes = np.zeros(len(event) + 1, bool), np.zeros(len(event) + 1, bool)
    rows = trace.device_rows
    rows = rows[trace.launch[rows] >= 0]
    if len(rows) and len(event):
        call = trace.launch[rows].astype(np.int64)
        around = nesting.nearest(marked(trace, event), trace.parent, call)
        rows, around = rows[around >= 0], around[around >= 0]
        node = event.searchsorted(around)
        copies = trace.is_kind(Kind.MEMCPY)[rows]
        up, down = (copies & trace.names_where(one.search)[rows] for one in (H2D, D2H))
        reads[node[~up]] = True
        writes[node[~down]] = True
    return reads[:-1], writes[:-1]


# ---- Columns.


def _dense(*columns: Ints) -> tuple[Ints, list[Ints]]:
    """The distinct numbers of all columns, and the columns as positions among them."""
    known = nesting.distinct(np.concatenate(columns))
    return known, [known.searchsorted(column) for column in columns]


def _spread(start: Ints, count: Ints) -> Ints:
    """``start``, ``start + 1``, … of each, ``count`` of them, in one column."""
    total = np.cumsum(count)
    found: Ints = np.repeat(start - (total - count), count)
    found += np.arange(len(found))
    return found


def flat_in_order(taken: Iterable[Taken]) -> list[int]:
    """The numbers of tensors, also of those in lists."""
    return [number for number in _all(taken) if number >= 0]


def _all(taken: Iterable[Taken]) -> list[int]:
    return [number for one in taken for number in (one if isinstance(one, tuple) else (one,))]
