"""Attention written by hand: its chains of operators and kernels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.attribution import attribute, followed
from pytest_torchprof.analysis.estimates import kinds_of, numbered, passed_bytes, repeats
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import are_called, called
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike, decode_list
from pytest_torchprof.trace.names import (
    Kind,
    Names,
    are_named,
    count,
    named,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import engine_steps, marked, within, within_named
from pytest_torchprof.work.bytes import REDUCTIONS, is_elementwise
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What called operators take: scores of attention, or factors of them.

#: The types of scores.
FLOATS: Final = frozenset({"float", "double", "c10::Half", "c10::BFloat16"})


class FactorKind(NamedTuple):
    """The operands of calls that are alike: the shapes of all, and of those of floating point."""

    dims: list[Any]
    floats: list[tuple[int, ...]]

    def takes(self, elements: int, keys: int) -> bool:
        """Whether an operand has so many numbers, and as many along its last dimension as there are
        keys, or more than three dimensions.
        """
        return any(
            prod(one) == elements and (one[-1] == keys or len(one) > 3) for one in self.floats
        )

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether an operand has as many numbers, and the same last two dimensions in any order."""
        last = sorted(shape[-2:])
        return any(prod(one) == prod(shape) and sorted(one[-2:]) == last for one in self.floats)

    def scales(self, elements: int) -> bool:
        """Whether so many scores are multiplied or divided by a number, or by one per query."""
        tensors = [_sizes(one) for one in self.dims[:2]]
        return all(prod(one[-1:]) == 1 for one in tensors[1:]) and prod(tensors[0]) == elements


def kind_of(args: Any) -> FactorKind:
    """The same of one call's recorded operands."""
    dims, floats = decode_list(args.dims), list[tuple[int, ...]]()
    for size, dtype in zip(dims, decode_list(args.types), strict=False):
        some = isinstance(size, list) and bool(size) and isinstance(size[0], list)
        if some or dtype in FLOATS:
            floats += filter(None, map(_sizes, size if some else [size]))
    return FactorKind(dims, floats)


def _sizes(one: Any) -> tuple[int, ...]:
    """The shape of a tensor; empty for a number, and for anything else."""
    known = isinstance(one, list) and all(type(size) is int for size in one)
    return tuple(one) if known else ()


class Called(NamedTuple):
    """Called operators of a thread; the number of each one's kind, -1 for a view."""

    rows: Ints
    kind: Ints
    kinds: list[FactorKind]

    def where(self, rows: Ints, holds: Callable[[FactorKind], bool]) -> Bools:
        """For which of these operators it holds, by their position; False for views."""
        numbers = self.kind[rows].tolist()
        known = {one: one >= 0 and holds(self.kinds[one]) for one in set(numbers)}
        return np.array([known[one] for one in numbers], bool)


# ---- Attention written as separate operators: a product, a softmax of its result, another
# product.
#
# The shapes tell: the softmax takes as many scores as the first product makes, and along its last
# dimension as many as that product has columns; the second product sums over just these.

#: A softmax that is called, or a kernel that Inductor fused one into.
SOFTMAX: Final = Names(r"aten::(_safe_softmax|_?softmax)(\.int)?$|triton_(?!\w*backward)\w*softmax")
#: Products of batches of matrices; ``matmul`` and ``einsum`` are made of them.
PRODUCT: Final = Names(r"aten::(bmm|baddbmm_?)$")
#: Operators that compute nothing: they are no use of what they take.
_VIEW: Final = Names(
    r"aten::(view|_unsafe_view|_?reshape\w*|expand(_as)?|permute|transpose_?|t|unsqueeze_?"
    r"|squeeze_?|flatten|unflatten|as_strided|alias|movedim|swapaxes|contiguous|slice|select"
    r"|narrow|is_\w+)$"
)
#: Kernels of Inductor, which are no operators by name, and do any work of elements.
_TRITON: Final = Names(r"triton_\w+")
#: What a fused form does, too: scales, adds a mask or a bias, masks, casts.
_MASKS: Final = Names(
    r"aten::(mul_?|multiply|div_?|divide|true_divide|add_?|sub_?|rsub|masked_fill_?|where|to"
    r"|_to_copy|type_as|clone|copy_|fill_|detach|\w+_like|new_\w+|amax|max|baddbmm_?|index_put_)$"
)
#: What may come between the softmax and the second product: dropout, casts, rows without any key.
_AFTER: Final = Names(
    r"aten::(dropout_?|feature_dropout|native_dropout|_fused_dropout|to|_to_copy|type_as"
    r"|masked_fill_?|nan_to_num_?|where|clone)$"
)
#: What scales: a fused form does that only with a number, or one for each query.
_SCALES: Final = Names(r"aten::(mul_?|multiply_?|div_?|divide_?|true_divide_?)$")
_DROPOUT: Final = Names(r"aten::(feature_|native_|_fused_)?dropout_?$")
#: How many products before and after the softmax may be of other tensors, such as a position bias.
_PRODUCTS_APART: Final = 6
#: Products with more calls in between are not of one attention.
_MOST_BETWEEN: Final = 120
_NEVER: Final = np.iinfo(np.int64).max


class Attention(NamedTuple):
    """One run of attention, as event indices of operators that the code called.

    ``over`` are those over the scores between the products, the softmax among them, in order.
    ``dtype`` is the type of what is multiplied, ``shape`` that of the scores, and ``sizes`` are
    those of a head's keys and values. ``drops``: a dropout drops some weights.
    """

    first: int
    softmax: int
    last: int
    over: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[int, int]
    drops: bool


class _Product(NamedTuple):
    batch: int
    m: int
    k: int
    n: int
    dtype: str


def attentions(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    """All runs of attention among the selected operators, in time order.

    Their scores take so many bytes at least, and there are so many queries or so many keys.
    """
    return trace.once(_attentions, least_bytes, length)


def _attentions(trace: Events, least_bytes: float, length: float) -> list[Attention]:
    if not count(trace, SOFTMAX) or count(trace, PRODUCT) < 2:
        return []
    softmax = selected_operators(trace, SOFTMAX)
    if not len(softmax):
        return []
    fused = trace.names_where(lambda name: name.startswith("triton_"))[softmax]
    softmax = softmax[fused | are_called(trace, softmax)]
    products = operators_named(trace, PRODUCT)
    found = []
    for thread in nesting.distinct(trace.thread[softmax]).tolist():
        own = products[trace.thread[products] == thread]
        mine = softmax[trace.thread[softmax] == thread]
        if len(own) > 1:
            found += _of_thread(trace, mine, own, (least_bytes, length))
    return sorted(found, key=lambda one: one.softmax)


def _of_thread(
    trace: Events, softmax: Ints, products: Ints, least: tuple[float, float]
) -> list[Attention]:
    thread = int(trace.thread[softmax[0]])
    at = np.searchsorted(products, softmax)
    near = nesting.distinct(
        (at[:, None] + np.arange(-_PRODUCTS_APART, _PRODUCTS_APART))
        .clip(0, len(products) - 1)
        .ravel()
    )
    sizes = dict(zip(near.tolist(), _read(trace, products[near]), strict=True))
    scores = [_scores(args) for args in trace.operands(softmax)]
    following = np.append(softmax[1:], np.iinfo(np.int64).max).tolist()
    found = []
    for row, after, shape, place in zip(
        softmax.tolist(), following, scores, at.tolist(), strict=True
    ):
        if shape == ():
            continue
        pair = _pair(sizes, products, shape, place, after)
        if pair is None:
            continue
        (before, made), (behind, taken), known = pair
        written = prod(known) * ELEMENT_BYTES[made.dtype]
        if written < least[0] or max(known[-2:]) < least[1]:
            continue
        first, last = int(products[before]), int(products[behind])
        heads = made.k, taken.batch * taken.m * taken.n * taken.k // prod(known)
        found.append(Attention(first, row, last, (), made.dtype, known, heads, False))
    return _chains(trace, thread, found) if found else []


def _scores(args: Any) -> tuple[int, ...] | None:
    """The shape that a softmax takes; empty for one that is none of attention, None if unknown."""
    dims, concrete = decode_list(args.dims), decode_list(args.concrete)
    shape = dims[0] if dims else None
    if not (isinstance(shape, list) and shape and all(type(size) is int for size in shape)):
        return None
    axis = str(concrete[1]) if len(concrete) > 1 else "-1"
    if len(shape) < 3 or axis not in {"-1", "", str(len(shape) - 1)} or shape[-2] < 2:
        return ()
    return tuple(shape)


def _read(trace: Events, rows: Ints) -> list[_Product | None]:
    out: list[_Product | None] = []
    for name, args in zip(trace.name[rows].tolist(), trace.operands(rows), strict=True):
        first = 0 if trace.names[name] == "aten::bmm" else 1
        dims, types = decode_list(args.dims)[first:], decode_list(args.types)[first:]
        try:
            (b, m, k), (_, _, n) = dims[:2]
            one = _Product(int(b), int(m), int(k), int(n), str(types[0]))
        except (TypeError, ValueError, IndexError):
            out.append(None)
        else:
            out.append(one if one.dtype in FLOATS else None)
    return out


_Found = tuple[int, _Product]


def _pair(
    sizes: dict[int, _Product | None],
    products: Ints,
    shape: tuple[int, ...] | None,
    place: int,
    after: int,
) -> tuple[_Found, _Found, tuple[int, ...]] | None:
    """The last product that made such scores, and the first that takes them; with their shape."""
    for before in range(place - 1, max(place - _PRODUCTS_APART, 0) - 1, -1):
        made = sizes.get(before)
        if made is None:
            continue
        own = shape or (made.batch, made.m, made.n)
        if own[-2] < 2 or prod(own) != made.batch * made.m * made.n:
            continue
        if own[-1] not in (made.m, made.n):
            continue
        for behind in range(place, min(place + _PRODUCTS_APART, len(products))):
            taken = sizes.get(behind)
            if products[behind] > after:
                break
            if taken is not None and taken.k == own[-1] and prod(own) in (
                taken.batch * taken.m * taken.k,
                taken.batch * taken.k * taken.n,
            ):  # fmt: skip
                return (before, made), (behind, taken), own
        return None
    return None


def _chains(trace: Events, thread: int, candidates: list[Attention]) -> list[Attention]:
    """Those of these products, softmaxes and products that are attention, as their callers."""
    rows = np.flatnonzero(called(trace) & (trace.thread == thread))
    compiled = operators_named(trace, _TRITON)
    if len(compiled):
        rows = nesting.distinct(np.concatenate([rows, compiled[trace.thread[compiled] == thread]]))
    three = np.array([(one.first, one.softmax, one.last) for one in candidates], np.int64)
    outer = nesting.nearest(marked(trace, rows), trace.parent, three.ravel()).reshape(-1, 3)
    at = np.searchsorted(rows, outer)
    begin, middle, end = at.T
    good = (outer >= 0).all(axis=1) & (begin < middle) & (middle < end)
    good &= end <= begin + _MOST_BETWEEN
    if not good.any():
        return []
    read = ~are_named(trace, rows, _VIEW)
    read[: begin[good].min()] = False
    for first, last in at[good][:, [0, 2]].tolist():
        read[first + 1 : last] = True
    mine = rows[read]
    number, firsts, _ = alike(trace.name[mine], trace.args[mine])
    kind = np.full(len(rows), -1, np.int64)
    kind[read] = number
    around = Called(rows, kind, list(map(kind_of, trace.operands(mine[firsts]))))
    following = np.maximum(np.append(begin[good][1:], len(rows)), end[good] + 1)
    known: dict[Any, tuple[Ints, bool] | None] = {}
    found = []
    for one, until in zip(np.flatnonzero(good).tolist(), following.tolist(), strict=True):
        places, candidate = at[one].tolist(), candidates[one]
        # Layers that are alike are looked at once.
        calls = around.kind[places[0] : until].tobytes()
        key = calls, tuple(place - places[0] for place in places), candidate.shape
        if key not in known:
            known[key] = _over(trace, around, candidate.shape, places, until)
        if (over := known[key]) is not None:
            between, drops = over
            first, softmax, last = rows[places].tolist()
            chain = tuple(rows[places[0] + between].tolist())
            found.append(Attention(first, softmax, last, chain, *candidate[4:7], drops))
    return found


def _over(
    trace: Events, around: Called, shape: tuple[int, ...], places: list[int], following: int
) -> tuple[Ints, bool] | None:
    """The operators over the scores, counted from the first product, and whether one drops some;
    None if a fused form could not do all of their work.

    ``places`` are those of the three operators among the called ones, ``following`` is where the
    next attention begins.
    """
    begin, middle, end = places
    elements, keys = prod(shape), shape[-1]
    at = np.arange(begin + 1, end)
    at = at[at != middle]
    at = at[around.where(at, lambda kind: kind.takes(elements, keys))]
    early, late = at[at < middle], at[at > middle]
    before, after = around.rows[early], around.rows[late]
    if not are_named(trace, before, _MASKS, _VIEW, _TRITON).all():
        return None
    if not are_named(trace, after, _AFTER, _VIEW, _TRITON).all():
        return None
    scaling = early[are_named(trace, before, _SCALES)]
    if not around.where(scaling, lambda kind: kind.scales(elements)).all():
        return None
    rest = np.arange(end + 1, following)
    if around.where(rest, lambda kind: kind.takes_shape(shape)).any():
        return None  # what else takes the weights, before the next attention
    drops = _drops(trace, after[are_named(trace, after, _DROPOUT)])
    return np.concatenate([early, [middle], late]) - begin, drops


def _drops(trace: Events, rows: Ints) -> bool:
    """Whether a dropout drops anything: its probability is not 0, and it is in training."""
    for args in trace.operands(rows):
        concrete = [str(one) for one in decode_list(args.concrete)]
        if len(concrete) < 3 or (concrete[1].strip("0.") != "" and concrete[2] != "False"):
            return True
    return False


def are_kept(trace: Events, found: list[Attention]) -> Bools:
    """Whose weights still exist when the next attention has its own, as the trace's memory tells.

    That of the last layer tells nothing: if half of those with one shape keep theirs, all do. False
    where the trace has no memory events. A graph keeps weights, too.
    """
    kept, memory = np.zeros(len(found), bool), trace.memory
    if memory.addr is None or not len(memory.event) or len(found) < 2:
        return kept
    order = np.lexsort((trace.ts[memory.event], memory.addr))
    addr, size, at = memory.addr[order], memory.bytes[order], trace.ts[memory.event][order]
    # An address is allocated and freed in turn.
    freed = np.append(np.where(addr[1:] == addr[:-1], at[1:], _NEVER), _NEVER)
    new = np.flatnonzero(size > 0)
    new = new[np.argsort(at[new], kind="stable")]
    begin = trace.ts[[one.softmax for one in found]]
    end = trace.ts[[one.last for one in found]]
    first, last = np.searchsorted(at[new], begin), np.searchsorted(at[new], end)
    for number, one in enumerate(found[:-1]):
        mine = new[first[number] : last[number]]
        mine = mine[size[mine] >= 2 * prod(one.shape)]
        kept[number] = bool((freed[mine] > begin[number + 1]).any())
    shapes: dict[tuple[int, ...], int] = {}
    shape = np.array([shapes.setdefault(one.shape, len(shapes)) for one in found])
    mostly = 2 * np.bincount(shape, kept) >= np.bincount(shape)
    of_each: Bools = mostly[shape]
    return of_each


# ---- Chains of elementwise kernels, each of which reads what the one before it wrote.

#: torch's own elementwise kernels, on CUDA and ROCm.
POINTWISE_KERNEL: Final = late(r"elementwise_kernel|fused_dropout_kernel")
_INDEXES: Final = late(r"index_elementwise_kernel")
_OPTIMIZER: Final = Names(r"Optimizer\.")
_COMPILED: Final = Names(r"Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction")
_CHAIN_DROPOUT: Final = frozenset({"aten::native_dropout", "aten::native_dropout_backward"})
_ADDS: Final = frozenset({"aten::add", "aten::add_"})


class PointwiseChains(Frozen, frozen=True):
    """Chains as parts of arrays: ``kernel`` and its operator ``call``, in order, and the number of
    the ``chain`` that each belongs to, from 0.

    ``saved`` are the bytes between a kernel and the next one of its chain that a fused kernel would
    not move: the result is written and read, or only read if it may be needed later. ``bytes`` are
    all that it moves, -1 if unknown. ``shape`` are the results' shapes.
    """

    kernel: Ints
    call: Ints
    chain: Ints
    saved: Ints
    bytes: Ints
    shape: Sequence[tuple[int, ...] | None]


def pointwise_chains(trace: Events, least_bytes: float) -> PointwiseChains:
    """All chains of two or more kernels, in which each result takes ``least_bytes`` or more.

    Two kernels belong together if they are consecutive on their stream, their operators are on one
    thread, and the second operator reads a tensor of the shape and dtype that the first one writes.
    The last one may be a reduction. A call like an earlier one of a chain begins the next chain.
    """
    return trace.once(_pointwise_chains, least_bytes)


def _pointwise_chains(trace: Events, least_bytes: float) -> PointwiseChains:
    work = attribute(trace)
    order = np.lexsort((trace.ts[work.event], trace.thread[work.event]))
    event, call, moved = work.event[order], work.call[order], work.bytes[order]
    at = _pairs(trace, event, call)
    calls, place = np.unique(call[np.concatenate([at, at + 1])], return_inverse=True)
    first, second = place[: len(at)], place[len(at) :]
    kinds, kind = kinds_of(trace, calls)
    pairs, pair = np.unique(kind[first] * len(kinds) + kind[second], return_inverse=True)
    size_of = [
        passed_bytes(kinds[one // len(kinds)], kinds[one % len(kinds)]) for one in pairs.tolist()
    ]
    size = np.array(size_of, np.int64)[pair]
    linked = (size >= max(least_bytes, 1)) & followed(trace, event[at]).delays
    kept = _keeps(trace, calls[first]) | np.array([k.is_sum for k in kinds], bool)[kind[first]]
    kept |= are_named(trace, calls[second], *REDUCTIONS)
    alike = numbered([k.alike for k in kinds])[kind]
    at, size, kept, first, second = (c[linked] for c in (at, size, kept, first, second))
    linked = ~repeats(at, alike[first], alike[second])
    at, size, kept = at[linked], size[linked], kept[linked]

    # Runs of pairs that follow on each other, each with one kernel more than pairs.
    chain = np.cumsum(np.diff(at, prepend=-2) > 1) - 1
    members = distinct(np.concatenate([at, at + 1]))
    number = chain[np.maximum(np.searchsorted(at, members, side="right") - 1, 0)]
    saved = np.zeros(len(members), np.int64)
    saved[np.searchsorted(members, at)] = np.where(kept, size, 2 * size)
    shapes = dict(zip(calls.tolist(), (kinds[k].shape for k in kind.tolist()), strict=True))
    found = PointwiseChains(
        event[members],
        call[members],
        number,
        saved,
        moved[members],
        [shapes.get(one) for one in call[members].tolist()],
    )
    return _without_dropout_and_add(trace, found)


def _pairs(trace: Events, event: Ints, call: Ints) -> Ints:
    """Positions of kernels that, with the next one on their stream, may be of a chain."""
    pointwise = trace.is_kind(Kind.KERNEL) & trace.names_where(
        lambda name: POINTWISE_KERNEL.search(name) and not _INDEXES.search(name)
    )
    writes = trace.names_where(is_elementwise)
    reduces = trace.names_where(REDUCTIONS.__contains__)
    a, b = event[:-1], event[1:]
    first, second = call[:-1], call[1:]
    fine = (first >= 0) & (second >= 0) & (first != second)
    fine &= pointwise[a] & writes[first] & (trace.thread[a] == trace.thread[b])
    fine &= (pointwise[b] & writes[second]) | ((trace.kind[b] == Kind.KERNEL) & reduces[second])
    fine &= trace.thread[first] == trace.thread[second]
    at = np.flatnonzero(fine)
    inside = within_named(trace, call[at], _OPTIMIZER, _COMPILED)
    return at[~inside]


def _keeps(trace: Events, calls: Ints) -> Bools:
    """Whether a backward pass may need the results of these calls: then they are written anyway."""
    steps = engine_steps(trace)
    if not len(steps):
        return np.zeros(len(calls), bool)
    return ~within(trace, calls, lambda events: among(events, steps))


def _without_dropout_and_add(trace: Events, found: PointwiseChains) -> PointwiseChains:
    """Without chains of a dropout and the sum of its result with something, as around a layer."""
    dropout, adds = (named(trace, *names)[found.call] for names in (_CHAIN_DROPOUT, _ADDS))
    count = np.bincount(found.chain)
    alone = (count == 2) & (np.bincount(found.chain, dropout | adds) == 2)
    alone &= np.bincount(found.chain, dropout) == 1
    keep = ~alone[found.chain]
    number = np.cumsum(~alone) - 1
    return PointwiseChains(
        found.kernel[keep],
        found.call[keep],
        number[found.chain[keep]],
        found.saved[keep],
        found.bytes[keep],
        [shape for shape, one in zip(found.shape, keep.tolist(), strict=True) if one],
    )
