"""Casts and copies: what kind each is, and whether it was needed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import called, sizes, step_of
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, are_named, operators_named, selected_operators
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import marked, once_selected
from pytest_torchprof.work.dispatch import EXPANSIONS, PARTS, SPLITS, WHOLE, aten
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.dataflow import Taken
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Whether a repeated copy may be of a new tensor, by what ran since the previous copy.

#: "bare": nothing ran that may have used the copy, except views and copies of other tensors.
#: "same": more ran, but nothing that can have made the source anew. "new": something can have.
Since = Literal["bare", "same", "new"]


class CopiedTensor(NamedTuple):
    """A tensor that is copied: its shape, its C++ type, and the type of its copy."""

    shape: tuple[int, ...]
    dtype: str
    to: str


COPIES = aten(
    "to _to_copy type_as float half double contiguous clone reshape flatten ravel copy copy_"
)
#: The same memory, or nothing of it.
SAME_MEMORY = WHOLE | EXPANSIONS | aten("result_type is_same_size")
READS = aten("item _local_scalar_dense is_nonzero equal allclose record_stream")
#: Fewer elements out than in, unless an axis has one element.
_REDUCTIONS = aten(
    "sum mean amax amin max min prod any all norm linalg_vector_norm argmax argmin var std "
    "var_mean std_mean logsumexp nansum median cross_entropy cross_entropy_loss nll_loss mse_loss "
    "l1_loss nll_loss_nd count_nonzero"
)
#: The result has the shape of the first tensor.
_LIKE_FIRST = aten(
    "softmax _softmax log_softmax layer_norm native_layer_norm rms_norm _fused_rms_norm batch_norm "
    "group_norm dropout native_dropout feature_dropout cumsum cumprod sort flip roll tril triu "
    "silu gelu celu elu selu leaky_relu hardtanh hardswish softplus masked_fill clamp clamp_min "
    "clamp_max instance_norm scaled_dot_product_attention zeros_like "
    "ones_like empty_like full_like rand_like randn_like"
)
#: The result has the shape that its tensors broadcast to.
_BROADCAST = aten(
    "add sub rsub mul div true_divide pow relu relu6 sigmoid tanh exp log sqrt rsqrt neg abs sin "
    "cos erf square reciprocal maximum minimum where eq ne lt le gt ge logical_and logical_or "
    "logical_not bitwise_and bitwise_or bitwise_not addcmul addcdiv lerp floor ceil round sign "
    "floor_divide remainder fmod atan2 log1p expm1 isnan isinf threshold mish log2 sinh"
)
_CREATORS = aten(
    "empty zeros ones full rand randn randint empty_strided new_empty new_zeros new_ones new_full"
)
_PRODUCTS = aten("mm matmul bmm linear addmm baddbmm mv addmv dot vdot")
_CONVOLUTIONS = frozenset(f"aten::conv{i}d" for i in (1, 2, 3)) | {"aten::convolution"}
#: Results that are truth values or indices, whatever the inputs.
_TESTS = aten(
    "eq ne lt le gt ge logical_and logical_or logical_not isnan isinf any all argmax argmin "
    "count_nonzero sort max min median"
)
_RAISED = _LIKE_FIRST | _REDUCTIONS | aten("pow exp expm1 log log2 log1p reciprocal rsqrt sinh")
_KEEP_TYPE = _LIKE_FIRST | _BROADCAST | _REDUCTIONS | _PRODUCTS | _CONVOLUTIONS
_INDICES = {"bool", "long", "long int"}
_LOW = {"c10::Half", "c10::BFloat16"}
_REAL = {"float", "double"} | _LOW


class OperatorCall(Frozen, frozen=True):
    """A call of an operator, decoded."""

    name: str
    dims: list[Any]
    types: list[Any]
    concrete: list[Any]

    @classmethod
    def of(cls, name: str, args: OpArgs) -> OperatorCall:
        """From the recorded arguments; empty lists for missing ones."""
        parts = [decode_part(bytes(p)) for p in (args.dims, args.types, args.concrete)]
        return cls(name, *([p if isinstance(p, list) else [] for p in parts]))

    @property
    def tensors(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of the tensors among the arguments."""
        pairs = zip(self.dims, self.types, strict=False)
        found = [(sizes(d), t) for d, t in pairs if t in ELEMENT_BYTES]
        return [(d, t) for d, t in found if d is not None]

    @property
    def has_list(self) -> bool:
        """Whether there is a list of tensors, whose types no trace has."""
        return "TensorList" in self.types or any("TensorList" in str(t) for t in self.types)


def since(calls: list[OperatorCall], source: CopiedTensor) -> tuple[Since, list[int]]:
    """What the calls between two copies of such a source mean, and which of them select a part.

    If any do, "same" holds only if they select the same part again.
    """
    counts, parts = {prod(source.shape)}, []
    for i, call in enumerate(calls):
        if call.name in PARTS and call.tensors:
            shape, dtype = call.tensors[0]
            if dtype == source.dtype and prod(shape) > prod(source.shape):
                parts.append(i)
                counts.add(prod(shape))
        elif call.name in EXPANSIONS and call.tensors:
            counts.add(prod(call.tensors[0][0]))
    if any(_may_make(call, source, counts) for call in calls):
        return "new", parts
    used = any(
        call.name not in COPIES | SAME_MEMORY | PARTS or _is_back(call, source) for call in calls
    )
    return "same" if used else "bare", parts


def parts_may_be(call: OperatorCall, source: CopiedTensor) -> bool:
    """Whether the source may be, or be a view of, all of a part that this call split off."""
    if not call.tensors:
        return True
    shape, dtype = call.tensors[0]
    if dtype != source.dtype:
        return False
    name, numbers = call.name, [*map(_number, call.concrete[1:]), None, None]
    if name == "aten::unbind":
        numbers, name = [1, numbers[0]], "aten::split"
    axis = (numbers[1] or 0) + (len(shape) if (numbers[1] or 0) < 0 else 0)
    if name not in {"aten::chunk", "aten::split"} or not numbers[0] or axis >= len(shape):
        return True
    size = -(-shape[axis] // numbers[0]) if name == "aten::chunk" else numbers[0]
    rest = prod(shape[:axis]) * prod(shape[axis + 1 :])
    whole, last = divmod(shape[axis], size) if size else (0, 0)
    return prod(source.shape) in {rest * n for n, some in ((size, whole), (last, last)) if some}


def _may_make(call: OperatorCall, source: CopiedTensor, counts: set[int]) -> bool:
    """Whether the result may be the source, or what the source is a view of."""
    name, tensors = call.name, call.tensors
    if name in SAME_MEMORY | PARTS | READS:
        return False
    if name == "aten::set_":  # assigns a storage, as `copy.deepcopy` does for each tensor
        return True
    if name in COPIES and name != "aten::copy_":
        return _copy_makes(call, source, counts)
    if name.endswith("_") and not name.endswith("__"):
        # Writes to the source, or to a part of it.
        return (
            bool(tensors) and tensors[0][1] == source.dtype and prod(tensors[0][0]) <= max(counts)
        )
    if name in _CREATORS:
        size = next((s for s in map(_listed, call.concrete) if s is not None), None)
        return size is None or prod(size) in counts
    if not _may_have_type(call, source):
        return False
    if name in _CONVOLUTIONS and len(tensors) > 1 and len(source.shape) == len(tensors[0][0]):
        batch, channels = tensors[0][0][0], tensors[1][0][0]
        return not Counter([batch, channels]) - Counter(source.shape)
    count = _count(call)
    if count is None:
        return True
    return count in counts if name not in _REDUCTIONS else any(c < count for c in counts)


def _is_back(call: OperatorCall, source: CopiedTensor) -> bool:
    """Whether it casts the copy back to the source's dtype."""
    return source.dtype != source.to and call.tensors[:1] == [(source.shape, source.to)]


def _copy_makes(call: OperatorCall, source: CopiedTensor, counts: set[int]) -> bool:
    """Whether a copy of something else may be the source; the copy cast back does not count."""
    if not call.tensors:
        return True
    shape, dtype = call.tensors[0]
    if prod(shape) not in counts:
        return False
    if dtype == source.dtype:
        return source.dtype == source.to
    return dtype != source.to


def _may_have_type(call: OperatorCall, source: CopiedTensor) -> bool:
    types = {dtype for _, dtype in call.tensors}
    if source.dtype in types or call.has_list or not types:
        return True
    if source.dtype in _INDICES:
        return call.name in _TESTS or call.name not in _KEEP_TYPE
    # Under autocast, or with a requested dtype, these return float32 for any input.
    if source.dtype == "float" and call.name in _RAISED and types & _LOW:
        return True
    # Under autocast, products of floats have the lower precision.
    lowered = call.name in _PRODUCTS | _CONVOLUTIONS or "attention" in call.name
    return lowered and source.dtype in _LOW and bool(types & _REAL)


def _count(call: OperatorCall) -> int | None:
    """Elements of the result, an upper bound for a reduction; None if unknown."""
    name, shapes = call.name, [shape for shape, _ in call.tensors]
    if not shapes or call.has_list:
        return None
    if name in _LIKE_FIRST or name in _REDUCTIONS:
        return prod(shapes[0])
    if name in _BROADCAST:
        return prod(_broadcast(shapes))
    if name == "aten::embedding" and len(shapes) > 1:
        return prod(shapes[1]) * shapes[0][-1]
    if name in _PRODUCTS:
        return _product(name, shapes)
    return None


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(axis) if 0 not in axis else 0 for axis in zip(*padded, strict=True))


def _product(name: str, shapes: list[tuple[int, ...]]) -> int | None:
    if name in {"aten::addmm", "aten::baddbmm", "aten::addmv"}:
        shapes = shapes[1:]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    a, b = shapes[:2]
    if name == "aten::linear":
        return prod(a[:-1]) * (b[0] if len(b) > 1 else 1)
    columns = b[-1] if len(b) > 1 else 1
    rows = a[-2] if len(a) > 1 else 1
    return prod(_broadcast([a[:-2], b[:-2]])) * rows * columns


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.lstrip("-").isdigit() else None


def _listed(text: Any) -> tuple[int, ...] | None:
    if not isinstance(text, str) or not text.startswith("["):
        return None
    items = [item.strip() for item in text.strip("[]").split(",") if item.strip()]
    return tuple(map(int, items)) if all(i.lstrip("-").isdigit() for i in items) else None


# ---- Runs of copies of one kind that may be of the same tensor.

#: Longer stretches between two copies are skipped: they are not a loop's body.
_LONGEST = 2000
#: This many calls are decoded at a time, backwards from the later copy.
_AT_ONCE = 16


class CopyRun(Frozen, frozen=True):
    """``tops`` are the calls that copied, in order; ``bare``: no copy is known to be used."""

    tops: Ints
    copies: Ints
    bare: bool


@dataclass
class Finder:
    """Finds runs among the copies of one trace."""

    trace: Events
    _known: dict[tuple[CopiedTensor, bytes], tuple[Since, list[int]]] = field(default_factory=dict)

    @cached_property
    def _calls(self) -> dict[int, Ints]:
        rows = np.flatnonzero(called(self.trace) & self.trace.selection)
        threads = self.trace.thread[rows]
        return {thread: rows[threads == thread] for thread in set(threads.tolist())}

    def runs(
        self, tops: Ints, copies: Ints, source: CopiedTensor, repeats: int
    ) -> Iterator[CopyRun]:
        """Runs of at least ``repeats`` copies of a kind, on one thread and in one step."""
        if len(tops) < repeats:
            return
        calls = self._calls[int(self.trace.thread[tops[0]])]
        at = np.searchsorted(calls, tops)
        stretches = [calls[a + 1 : b] for a, b in pairwise(at.tolist())]
        verdicts = list(self._verdicts(stretches, source))
        start = 0
        for i, verdict in enumerate([*verdicts, "new"]):
            if verdict != "new":
                continue
            inner = verdicts[start:i]
            between = stretches[start:i]
            if len(inner) + 1 >= repeats and self._is_one(calls, at[start], between, source):
                bare = all(v == "bare" for v in inner)
                yield CopyRun(tops[start : i + 1], copies[start : i + 1], bare)
            start = i + 1

    def _verdicts(self, stretches: Sequence[Ints], source: CopiedTensor) -> Iterator[Since]:
        """A verdict for each stretch between two copies; those with the same names share one."""
        found: list[Since] = []
        part_rows: list[Ints | None] = []
        for stretch in stretches:
            if len(stretch) > _LONGEST:
                found.append("new")
                part_rows.append(None)
                continue
            key = (source, self.trace.name[stretch].tobytes())
            if key not in self._known:
                self._known[key] = self._since(stretch, source)
            verdict, parts = self._known[key]
            found.append(verdict)
            part_rows.append(stretch[parts] if parts else None)
        taken = [None if rows is None else self._arguments(rows) for rows in part_rows]
        for i, verdict in enumerate(found):
            mine = taken[i]
            beside = [taken[j] for j in (i - 1, i + 1) if 0 <= j < len(taken)]
            same = mine is None or (mine in beside and None not in mine)
            yield verdict if same else "new"

    def _since(self, stretch: Ints, source: CopiedTensor) -> tuple[Since, list[int]]:
        later: list[OperatorCall] = []
        for end in range(len(stretch), 0, -_AT_ONCE):
            later = self._decoded(stretch[max(end - _AT_ONCE, 0) : end]) + later
            if since(later, source)[0] == "new":
                return "new", []
        return since(later, source)

    def _decoded(self, rows: Ints) -> list[OperatorCall]:
        names = [self.trace.names[i] for i in self.trace.name[rows].tolist()]
        return list(map(OperatorCall.of, names, self.trace.operands(rows)))

    def _arguments(self, rows: Ints) -> tuple[str | None, ...]:
        decoded = [decode_part(bytes(a.concrete)) for a in self.trace.operands(rows)]
        return tuple(str(c) if c else None for c in decoded)

    def _is_one(
        self, calls: Ints, first: int, stretches: Sequence[Ints], source: CopiedTensor
    ) -> bool:
        """Whether the copied tensors are not parts of one split tensor.

        In a loop over another tensor's parts, each part may produce something of the source's size.
        """
        names, numbers = self.trace.names, self.trace.name
        body = len(stretches[0]) if len(stretches) else 0
        before = calls[max(first - body - 3, 0) : first]
        split = [row for row in before.tolist() if names[numbers[row]] in SPLITS]
        if not split:
            return True
        within = {names[i] for stretch in stretches for i in set(numbers[stretch].tolist())}
        if within & (PARTS | EXPANSIONS):
            return False
        return not any(parts_may_be(call, source) for call in self._decoded(np.array(split)))


def by_kind(
    trace: Events, rows: Ints, kind: Ints, least: int, also: Callable[[Ints], Ints] | None = None
) -> Iterator[Ints]:
    """Positions of at least ``least`` rows that share kind, thread and step."""
    step = step_of(trace, rows)
    keys = [kind, trace.thread[rows].astype(np.int64), step]
    if also is not None:
        keys.append(also(rows))
    order = np.lexsort((rows, *keys))
    changes = np.zeros(max(len(order) - 1, 0), bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group) >= least:
            yield group


def held(trace: Events, copies: Ints) -> int | None:
    """How many of these copies, except the last, still exist when the last one is made.

    None if the trace does not tell: no memory was recorded.
    """
    gone = freed(trace, copies)
    return None if gone is None else int((gone[:-1] > trace.ts[copies[-1]]).sum())


def freed(trace: Events, copies: Ints) -> Ints | None:
    """When each copy's memory was freed; the maximum if it was not. None: see `held`."""
    memory = trace.memory
    if memory.addr is None or not len(memory.event) or not len(copies):
        return None
    gets = np.flatnonzero(memory.bytes > 0)
    first = np.searchsorted(trace.ts[memory.event[gets]], trace.ts[copies])
    if not len(gets) or (first >= len(gets)).any():
        return None
    block = gets[first]
    if (trace.ts[memory.event[block]] > trace.ts[copies] + trace.dur[copies]).any():
        return None
    ends = trace.once(_next_at_address)[block]
    return np.where(ends >= 0, trace.ts[memory.event[ends]], np.iinfo(np.int64).max)


def _next_at_address(trace: Events) -> Ints:
    """For each memory event the next one at its address, or -1."""
    address = trace.memory.addr
    if address is None:
        return np.zeros(0, np.int64)
    order = np.argsort(address, kind="stable")
    same = np.diff(address[order]) == 0
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return after


# ---- Weights that autocast casts again: its cache does not hold them, or was cleared in between.

#: Operators whose inputs autocast casts, with the positions of their weight and bias.
WEIGHTS = {"aten::linear": (1, 2), "aten::addmm": (0, 2), "aten::mm": (1,), "aten::matmul": (1,)}
WEIGHTS |= {f"aten::conv{kind}": (1, 2) for kind in ("1d", "2d", "3d", "olution")}
WEIGHTS |= {f"aten::conv_transpose{i}d": (1, 2) for i in (1, 2, 3)}


def casts_of_weights(trace: Events, rows: Ints, owner: Ints) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias; by identity."""
    tensors, operands = trace.taken(rows) or [], trace.taken(owner) or []
    names = [trace.names[number] for number in trace.name[owner].tolist()]
    found = [
        bool(tensor) and tensor[0] in {taken[i] for i in WEIGHTS[name] if i < len(taken)}
        for tensor, taken, name in zip(tensors, operands, names, strict=True)
    ]
    return np.array(found, bool)


def recast(
    trace: Events, casts: tuple[Ints, Ints, Ints], kinds: list[CopiedTensor], least: int
) -> Iterable[tuple[Ints, CopiedTensor]]:
    """Positions of casts, each in an operator, of one weight again and again; by shapes.

    ``casts``: each cast, the operator it is in, its kind.
    """
    rows, owner, kind = casts
    weights = np.flatnonzero(_look_like_weights(trace, owner, kind, kinds))
    for group in by_kind(trace, rows[weights], kind[weights], least):
        mine = weights[group]
        source = kinds[kind[mine[0]]]
        if _times(trace, rows[mine], owner[mine], source) >= least:
            yield mine, source


def _times(trace: Events, rows: Ints, owner: Ints, source: CopiedTensor) -> int:
    """How often each weight of this kind is cast; 0 if unknown."""
    if params := gradients(trace, int(rows[0]), source):
        return len(rows) // params
    gone = freed(trace, rows)
    if gone is not None and (gone > _next_call(trace, owner)).any():  # the cache held some
        return len(rows) // max(1, held(trace, rows) or 0)
    return 0


def _next_call(trace: Events, owner: Ints) -> Ints:
    """When the user's code calls the next operator after the end of each of these."""
    starts = trace.ts[np.flatnonzero(called(trace))]
    after = np.searchsorted(starts, trace.ts[owner] + trace.dur[owner])
    return np.append(starts, np.iinfo(np.int64).max)[after]


def _look_like_weights(trace: Events, owner: Ints, kind: Ints, kinds: list[CopiedTensor]) -> Bools:
    """Which of these casts, each in an operator, are of its weight or bias, not of its input."""
    found = np.zeros(len(owner), bool)
    parts: dict[int, list[int]] = {}
    for i, row in enumerate(owner.tolist()):
        parts.setdefault(row, []).append(i)
    known: dict[tuple[int, bytes, bytes, tuple[int, ...]], list[bool]] = {}
    owners = np.array(list(parts), np.int64)
    for row, args in zip(owners.tolist(), trace.operands(owners), strict=True):
        mine = parts[row]
        name = int(trace.name[row])
        key = (name, bytes(args.dims), bytes(args.types), tuple(kind[mine].tolist()))
        if key not in known:
            casts = [kinds[k] for k in key[3]]
            known[key] = _weights(
                trace.names[name], decode_part(key[1]), decode_part(key[2]), casts
            )
        found[mine] = known[key]
    return found


def _weights(name: str, dims: Any, types: Any, casts: list[CopiedTensor]) -> list[bool]:
    if not isinstance(dims, list) or not isinstance(types, list):
        return [False] * len(casts)
    operands = [(sizes(d), t) for d, t in zip(dims, types, strict=False)]
    at = WEIGHTS[name]
    inputs = [op for i, op in enumerate(operands) if i not in at]
    of = [op for i, op in enumerate(operands) if i in at and op[0] is not None]
    out = []
    for cast in reversed(casts):  # the input is cast last
        mine = (cast.shape, cast.dtype)
        if mine in inputs:
            inputs.remove(mine)
            out.append(False)
        else:
            out.append(mine in of)
    return out[::-1]


def gradients(trace: Events, row: int, source: CopiedTensor) -> int:
    """How many tensors of this shape and dtype get a gradient in the step of this event."""
    counts = trace.once(_gradients_by_step)
    step = int(step_of(trace, np.array([row]))[0])
    return counts.get((step, source.shape, source.dtype), 0)


def _gradients_by_step(trace: Events) -> dict[tuple[int, tuple[int, ...], str], int]:
    rows = selected_operators(trace, "torch::autograd::AccumulateGrad")
    counts: dict[tuple[int, tuple[int, ...], str], int] = {}
    for step, args in zip(step_of(trace, rows).tolist(), trace.operands(rows), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        shape = sizes(dims[0]) if isinstance(dims, list) and dims else None
        if shape is not None and isinstance(types, list) and types:
            key = (step, shape, str(types[0]))
            counts[key] = counts.get(key, 0) + 1
    return counts


# ---- Kinds of copies: their shape, their dtype, and the call that requested them.

TO_COPY: Final = Names(r"aten::_to_copy$")
CAST: Final = Names(r"aten::(_to_copy|to|type_as)$")
#: Operators that cast their own number, or an operand, to their dtype; most casts are in these.
_INNER: Final = Names(
    rf"aten::(?!(_to_copy|to|type_as|{'|'.join(n.removeprefix('aten::') for n in WEIGHTS)})$)"
)

_COPIES: Final = Names(r"aten::(clone|contiguous)$")
#: The memory formats of channels-last, in two and three dimensions, as torch records them.
#: Source: c10/core/MemoryFormat.h.
_CHANNELS_LAST: Final = {"2": "torch.channels_last", "3": "torch.channels_last_3d"}


def outer_casts(trace: Events) -> Ints:
    """The selected casts that no operator makes for itself."""
    return once_selected(trace, _outer_casts)


def _outer_casts(trace: Events) -> Ints:
    rows = operators_named(trace, TO_COPY)
    rows = rows[trace.selection[rows]]
    above = trace.parent[rows]
    inner = are_named(trace, above, CAST) & are_named(trace, trace.parent[above], _INNER)
    outer: Ints = rows[~inner]
    return outer


def chain(trace: Events, rows: Ints, names: Names) -> tuple[Ints, Ints]:
    """The outermost operator of these names around each row, and what encloses that, or -1."""
    top = rows.copy()
    above = trace.parent[top]
    todo = (above >= 0).nonzero()[0]
    while len(todo):
        todo = todo[are_named(trace, above[todo], names)]
        top[todo] = above[todo]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    return top, above


def kinds_of_casts(trace: Events, rows: Ints, least: float) -> tuple[list[CopiedTensor], Ints]:
    """Distinct kinds, and the kind of each cast, from the copy in it.

    -1 for a copy without a cast, and for one of fewer than ``least`` elements.
    """
    copies = selected_operators(trace, "aten::copy_")
    copies = copies[marked(trace, rows)[trace.parent[copies]]]
    known: dict[tuple[bytes, bytes], int] = {}
    kinds: dict[CopiedTensor, int] = {}
    kind = np.full(len(rows), -1, np.int64)
    at = np.searchsorted(rows, trace.parent[copies])
    for i, args in zip(at.tolist(), trace.operands(copies), strict=True):
        key = (bytes(args.dims), bytes(args.types))
        if key not in known:
            known[key] = _kind(decode_part(key[0]), decode_part(key[1]), kinds, least)
        kind[i] = known[key]
    return list(kinds), kind


def _kind(dims: Any, types: Any, kinds: dict[CopiedTensor, int], least: float) -> int:
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) < 2 > len(types):
        return -1
    shape, to, dtype = sizes(dims[1]), types[0], types[1]
    known = to in ELEMENT_BYTES and dtype in ELEMENT_BYTES
    if shape is None or prod(shape) < least or to == dtype or not known:
        return -1
    return kinds.setdefault(CopiedTensor(shape, dtype, to), len(kinds))


def kinds_of_clones(trace: Events, rows: Ints, least: float) -> tuple[list[CopiedTensor], Ints]:
    """Distinct shapes and dtypes, and a number for each clone's kind, which includes strides.

    -1 if unknown, or for fewer than ``least`` elements.
    """
    known: dict[tuple[bytes, bytes, bytes], int] = {}
    sources, kind = list[CopiedTensor](), []
    for args in trace.operands(rows):
        key = (bytes(args.dims), bytes(args.types), bytes(args.strides))
        if key not in known:
            dims, types, _ = map(decode_part, key)
            first = dims[0] if isinstance(dims, list) and dims else None
            shape, dtype = sizes(first), types[0] if isinstance(types, list) and types else ""
            if shape is None or prod(shape) < least or dtype not in ELEMENT_BYTES:
                known[key] = -1
            else:
                known[key] = len(sources)
                sources.append(CopiedTensor(shape, dtype, dtype))
        kind.append(known[key])
    return sources, np.array(kind, np.int64)


def layout_fix(trace: Events, copies: Ints) -> str | None:
    """What to do about copies that change the layout to channels-last; None if they do not."""
    row = copies[:1]
    if not are_named(trace, row, _COPIES).any():
        return None
    (args,) = trace.operands(row)
    concrete = decode_part(args.concrete)
    known = isinstance(concrete, list) and len(concrete) > 1
    layout = _CHANNELS_LAST.get(str(concrete[1])) if known else None
    if layout is None:
        return None
    return f"change its layout once, before the loop: x = x.to(memory_format={layout})"


# ---- Repeated copies of one unchanged tensor, for captures that identify tensors.

#: Operators that write to an existing tensor.
_IN_PLACE = Names(r"(?!aten::(detach_|requires_grad_)$)(.*[^_]_|.*::__i\w+__)$")
#: Those that write to their running statistics.
_STATISTICS = Names(r"aten::\w*batch_norm$")
#: Operators of other libraries, which may write to their inputs.
_FOREIGN = Names(r"(?!aten::|autograd::|torch::|prim)\w+::\w+$")
_FRESH = Names(r"aten::(clone|_to_copy)$")
#: In-place operators that are as fast when they make a new tensor: these need no copy. Without
#: ``relu_``: nn.ReLU(inplace=True) at the start of a model that gets a copy for it.
_ELEMENTWISE = Names(
    r"aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|tanh|sigmoid|clamp|clamp_min|"
    r"clamp_max|square|round|floor|ceil|reciprocal|remainder|lerp|addcmul|addcdiv)_$"
)


class _View(NamedTuple):
    """A call that makes a view of a tensor; ``part``: of less of it, by its arguments."""

    at: int
    object: int
    part: tuple[Any, ...] | None
    elements: int


def again(
    trace: Events, rows: Ints, kind: Ints, elements: Ints, least: int, backs: bool = False
) -> Iterator[Ints]:
    """Positions of copies of one tensor, each time the same part of it, in order.

    ``rows``: operators that copy their first argument; ``kind`` is equal for those that copy in the
    same way; ``elements`` is how many they copy. Between two of them, nothing has written to the
    tensor, no optimizer has made its step, and no backward pass has computed gradients. ``backs``:
    a copy counts as the tensor it was copied from.
    """
    taken = trace.taken(rows)
    if taken is None:
        return
    itself = np.array([_first(one) for one in taken], np.int64)
    aliases = _copied_from(trace, rows, itself) if backs else {}
    tensor = np.array([aliases.get(number, number) for number in itself.tolist()], np.int64)
    ends = trace.ts[selected_operators(trace, "torch::autograd::AccumulateGrad")]
    era = np.searchsorted(np.sort(ends), trace.ts[rows])
    keys = np.stack([tensor, kind, era], 1)
    _, key = np.unique(keys, axis=0, return_inverse=True)
    groups = [g for g in by_kind(trace, rows, key.reshape(-1), least) if tensor[g[0]] >= 0]
    if not groups:
        return
    asked = {int(tensor[group[0]]) for group in groups}
    objects = trace.objects(rows) or []
    written = _written(trace, asked | aliases.keys(), np.concatenate([rows[g] for g in groups]))
    views = _views(trace, asked, rows)
    for number, alias in aliases.items():
        written[alias] += written.pop(number, [])
    for group in groups:
        number = int(tensor[group[0]])
        changes = np.sort(trace.ts[np.array(written[number], np.int64)])
        change = np.searchsorted(changes, trace.ts[rows[group]]).tolist()
        parts: list[Any] = [None] * len(group)  # a tensor cast back is whole
        if (itself[group] == number).all():
            mine = [(int(trace.ts[rows[i]]), objects[i]) for i in group.tolist()]
            parts = _parts(mine, views[number], int(elements[group[0]]))
        same = defaultdict[Any, list[int]](list)
        for position, at, part in zip(group.tolist(), change, parts, strict=True):
            same[at, part].append(position)
        yield from (np.array(found, np.int64) for found in same.values() if len(found) >= least)


def written_to(trace: Events, rows: Ints, elements: int) -> tuple[Bools, Bools]:
    """Which copies are written to, and which of them need to be copies: all except those that the
    next call, and none later, writes to as a whole.
    """
    results = [set(made) for made in trace.made(rows) or []]
    written = _written(trace, set().union(*results), rows, after=True)
    writes = [[row for one in made for row in written[one]] for made in results]
    later = np.append(_called(trace, rows, frozenset(trace.names)), len(trace))
    following = later[np.searchsorted(later, rows, side="right")].tolist()
    needed = [
        bool(some) and (some != [following[i]] or _needs(trace, np.array(some), elements))
        for i, some in enumerate(writes)
    ]
    return np.array([bool(some) for some in writes], bool), np.array(needed, bool)


def _needs(trace: Events, write: Ints, elements: int) -> bool:
    return not are_named(trace, write, _ELEMENTWISE)[0] or _elements(trace, write)[0] != elements


# -------------------------------------------------------------------- which tensor, and which part


def _first(taken: tuple[Taken, ...]) -> int:
    return taken[0] if taken and isinstance(taken[0], int) else -1


def _copied_from(trace: Events, rows: Ints, tensor: Ints) -> dict[int, int]:
    """For copies that are copied themselves, the tensor that the first of them was copied from."""
    sources = set(tensor.tolist())
    origin: dict[int, int] = {}
    for number, made in zip(tensor.tolist(), trace.made(rows) or [], strict=True):
        for one in made & sources:
            origin[one] = origin.get(number, number)
    return origin


def _parts(copies: list[tuple[int, int]], views: list[_View], elements: int) -> list[Any]:
    """Which part of the tensor each of these copies (when, of which object) is of.

    Decided by the calls that selected it, the last of them from the object that the first part was
    taken from; and by which of the objects that existed since then it was taken from.
    """
    before = [bisect_left(views, time, key=lambda view: view.at) for time, _ in copies]
    between = [views[a:b] for a, b in pairwise([0, *before])]
    parts = [view for view in views if view.part is not None and view.elements > elements]
    base = parts[0].object if parts else None
    found = list[Any]()
    path: tuple[Any, ...] = ()
    objects = dict[int, int]()
    for root, some in zip(_roots(copies, between), between, strict=True):
        own = tuple(view.part for view in some if view.part and view.elements > elements)
        if own and root == base:
            path, own, objects = own, (), {}
        found.append((path, own, objects.setdefault(root, len(objects))))
    return found


def _roots(copies: list[tuple[int, int]], between: list[list[_View]]) -> list[int]:
    """The object that each of these copies comes from, by the views made since the previous one.

    It is the first one, as each view is made of another; but the object that the next copy comes
    from, if that existed: a parameter is made as a view of the given tensor.
    """
    roots = [some[0].object if some else of for (_, of), some in zip(copies, between, strict=True)]
    for i in reversed(range(len(roots) - 1)):
        there = {copies[i][1], *(view.object for view in between[i])}
        if roots[i + 1] in there:
            roots[i] = roots[i + 1]
    return roots


def _views(trace: Events, tensors: set[int], copies: Ints) -> dict[int, list[_View]]:
    """The calls that make views of these tensors, by tensor, in time order."""
    found = defaultdict[int, list[_View]](list)
    rows = _called(trace, copies, SAME_MEMORY | PARTS | {"aten::reshape", "aten::flatten"})
    for row, taken in zip(rows.tolist(), trace.taken(rows) or [], strict=True):
        if (number := _first(taken)) in tensors:
            at = np.array([row])
            (args,), (of,) = trace.operands(at), trace.objects(at) or [0]
            name = trace.names[trace.name[row]]
            part = (name, bytes(args.dims), bytes(args.strides), bytes(args.concrete))
            elements = _elements(trace, at)[0]
            is_part = name in PARTS or name == "aten::as_strided"
            found[number].append(_View(int(trace.ts[row]), of, part if is_part else None, elements))
    return found


# -------------------------------------------------------------------- what is written to


def _written(
    trace: Events, tensors: set[int], copies: Ints, *, after: bool = False
) -> defaultdict[int, list[int]]:
    """The operators that write to these tensors, by tensor.

    ``after``: also past the last copy, and no ``out=``.
    """
    found = defaultdict[int, list[int]](list)
    begin = trace.ts[copies].min()
    end = np.iinfo(np.int64).max if after else trace.ts[copies].max()
    rows = operators_named(trace, _IN_PLACE, _STATISTICS, _FOREIGN)
    rows = rows[(trace.ts[rows] > begin) & (trace.ts[rows] < end)]
    rows = rows[~are_named(trace, trace.parent[rows], _FRESH)]
    outer = ~are_named(trace, trace.parent[rows], _IN_PLACE)  # not nested in another
    rows = rows[outer]
    statistics, foreign = are_named(trace, rows, _STATISTICS), are_named(trace, rows, _FOREIGN)
    where = zip(rows.tolist(), statistics.tolist(), foreign.tolist(), strict=True)
    for (row, own, other), taken in zip(where, trace.taken(rows) or [], strict=True):
        if own:
            hit = taken[3:5]
        elif other or (taken and isinstance(taken[0], tuple)):
            hit = taken
        else:
            hit = taken[:1]
        for number in tensors.intersection(_flat(hit)):
            found[number].append(row)
    if after:  # other operators take results last, too
        return found
    rows = _called(trace, copies, None)
    rows = rows[(trace.ts[rows] > begin) & (trace.ts[rows] < end)]
    rows = rows[~are_named(trace, rows, _IN_PLACE, _STATISTICS, _FOREIGN)]
    last = [taken[-1] if len(taken) > 1 else -1 for taken in trace.taken(rows) or []]
    mine = [i for i, one in enumerate(last) if one in tensors]
    mine = [mine[i] for i in np.flatnonzero(~_leave_memory(trace, rows[mine])).tolist()]
    for i, made in zip(mine, trace.made(rows[mine]) or [], strict=True):
        if not made and isinstance(out := last[i], int):  # torch.mul(…, out=x)
            found[out].append(int(rows[i]))
    return found


def _leave_memory(trace: Events, rows: Ints) -> Bools:
    """After which of these operators more memory is allocated than before: they make something,
    whether or not another operator takes it.
    """
    memory = trace.memory
    allocated = np.append(0, np.cumsum(memory.bytes))
    at, ends = trace.ts[memory.event], trace.ts[rows] + trace.dur[rows]
    begin, end = np.searchsorted(at, trace.ts[rows]), np.searchsorted(at, ends, side="right")
    found: Bools = allocated[end] > allocated[begin]
    return found


def _called(trace: Events, copies: Ints, names: frozenset[str] | None) -> Ints:
    """Calls of these names, or all except views and reads, on the threads of the copies."""
    rows: Ints = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[among(trace.thread[rows], trace.thread[copies])]
    other = names is None
    listed = SAME_MEMORY | PARTS | READS | COPIES if names is None else names
    wanted = np.array([(name in listed) != other for name in trace.names], bool)
    found: Ints = rows[wanted[trace.name[rows]]]
    return found


def _flat(taken: Iterable[Taken]) -> Iterator[int]:
    for one in taken:
        yield from (one,) if isinstance(one, int) else one


def _elements(trace: Events, rows: Ints) -> list[int]:
    """The number of elements of each call's first argument; -1 if unknown."""
    out = []
    for args in trace.operands(rows):
        dims = decode_part(bytes(args.dims))
        shape = sizes(dims[0]) if isinstance(dims, list) and dims else None
        out.append(-1 if shape is None else prod(shape))
    return out


# ---- Which casts only undo what a promotion to double precision did.


class Sized(NamedTuple):
    """A call: its event, and the number of elements that it works on."""

    row: int
    elements: int


def casts_back(
    promotions: set[int], work: Iterable[Sized], casts: Iterable[Sized], busy: Ints
) -> Iterator[int]:
    """The events of casts of what such work made, one for each of the events that promote.

    They are of as many elements, or of another number if none of the other calls, ``busy``, ran
    since the work. Other casts are of other tensors, such as the next batch.
    """
    made, last = Counter[int](), -1
    own = {call.row for call in work}
    for row, elements in sorted((*work, *casts)):
        if row in own:
            made[elements] += row in promotions
            last = row
            continue
        follows = np.searchsorted(busy, row) == np.searchsorted(busy, last, "right")
        size = elements if made[elements] or not follows else max(+made, default=elements)
        if made[size]:
            made[size] -= 1
            yield row
