"""Attribute FLOPs and compulsory bytes of operators to kernels, each counted once.

FLOPs are those of the operator that counts, as everywhere else (`redispatch`). Bytes are those of
the innermost operator, because a convolution's bias is added by a separate kernel. An operator's
number goes only to its main kernels: those named after matrix products, convolutions or attention
(`MAIN_KERNEL`). Without any, FLOPs go to the kernels with the longest one's name, and bytes to all
of its kernels. Several kernels share a number by their time, so that all reach the same rate; but
the two products of a convolution's backward pass are as much work, on the same three tensors. What
a graph replays has no numbers, because the launch is outside of operators; nor have the FLOPs of
what is around such a launch a kernel. Copies and memsets record the bytes they moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import OpArgs, alike, decode_part
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.known_names import REGION
from pytest_torchprof.work import masks
from pytest_torchprof.work.counting import counts_flops, op_flops
from pytest_torchprof.work.devices.device import DTYPES
from pytest_torchprof.work.dtypes import ELEMENT_BYTES, PEAK
from pytest_torchprof.work.flops import FORMULAS
from pytest_torchprof.work.masks import MASKS
from pytest_torchprof.work.product_kernels import (
    FP32_KERNEL,
    INPUT_GRADIENT,
    TF32_KERNEL,
    WEIGHT_GRADIENT,
    is_main,
)
from pytest_torchprof.work.traffic import TRAFFIC, compulsory_bytes

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_GRAPH: Final = late(r"GraphLaunch")
#: Element types in kernel names, for operators on lists of tensors.
_OPAQUE: Final = late(r"OpaqueType<(\d+)")
_ELEMENT: Final = late(r"(?:CatArray\w*|Functor\w*)<(?:([\w:]+), )?([\w:]+)[,>]")


class AttributedWork(Frozen, frozen=True):
    """Per device event of the selection, as arrays of one length.

    ``event`` are event indices. ``call`` is the innermost operator around the launch, ``owner`` the
    number of its name (else the annotation's) in `Events.shown_names`; -1 for none. ``flops`` and
    ``bytes`` are -1 where unknown. ``done`` are the FLOPs that the kernel is rated by, those that a
    causal mask leaves, -1 where unknown; ``mask_unknown`` is whether the trace
    does not say if there is a mask. ``dtype`` is an index into `DTYPES`, -1 where there are no
    FLOPs or no types.
    """

    event: Ints
    call: Ints
    owner: Ints
    flops: Ints
    done: Ints
    mask_unknown: Bools
    bytes: Ints
    dtype: Ints


def attribute(trace: Events) -> AttributedWork:
    """The operator that launched each device event, and the work it had to do."""
    return trace.once(_attribute)


def _attribute(trace: Events) -> AttributedWork:
    event = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    launch = trace.launch[event]
    above = np.where(launch >= 0, trace.parent[launch], -1)
    distinct, at = np.unique(above, return_inverse=True)
    call, annotation, counted, typed = (found[at] for found in _climb(trace, distinct))
    named = np.where(call >= 0, call, annotation)
    owner = np.where(named >= 0, trace.shown_names[1][trace.name[named]], -1)

    replays = is_replayed(trace, launch)
    working = (trace.kind[event] == Kind.KERNEL) & ~replays
    main, part = trace.names_where(is_main)[event], _parts_of_backward(trace, event)
    none = np.full(len(event), -1, np.int64)

    flops = none.copy()
    rows = np.flatnonzero(working & (counted >= 0) & ~nesting.among(counted, counted[replays]))
    name, dur = trace.name[event[rows]], trace.dur[event[rows]]
    given = op_flops(trace)[counted[rows]]
    flops[rows] = _shares(counted[rows], dur, main[rows], part[rows], given, name)

    done, mask_unknown = _masked(trace, flops, counted)

    moved = np.where(trace.kind[event] == Kind.KERNEL, -1, trace.bytes[event])
    rows = np.flatnonzero(working & (call >= 0))
    owners, values = _traffic(trace, call[rows], event[rows])
    rows, owners, values = rows[owners >= 0], owners[owners >= 0], values[owners >= 0]
    moved[rows] = _shares(owners, trace.dur[event[rows]], main[rows], part[rows], values)

    dtype = none.copy()
    rows = np.flatnonzero(flops >= 0)
    dtype[rows] = _dtypes(trace, typed[rows], event[rows])
    return AttributedWork(event, call, owner, flops, done, mask_unknown, moved, dtype)


def is_replayed(trace: Events, launch: Ints) -> Bools:
    """Whether these launches (-1 for none) are of a graph of kernels."""
    return (launch >= 0) & trace.names_where(_GRAPH.search)[launch]


def replayed(trace: Events) -> int:
    """How many kernels of the selection a graph launched: their operators are unknown."""
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    return int(is_replayed(trace, trace.launch[kernels]).sum())


def _climb(trace: Events, start: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Around each start, itself included: innermost operator and annotation (below no operator),
    innermost operator whose FLOPs count, innermost one with a formula; -1 for none.
    """
    ops = trace.is_kind(Kind.OP)
    notes = trace.is_kind(Kind.ANNOTATION) & ~trace.named(REGION)
    counts = counts_flops(trace) | (op_flops(trace) > 0)
    formula = trace.names_where(FORMULAS.__contains__) & ops
    call, note, counted, typed = (
        nesting.nearest(where, trace.parent, start) for where in (ops, notes, counts, formula)
    )
    return call, note, counted, typed


def _parts_of_backward(trace: Events, event: Ints) -> Ints:
    """Which of a backward pass's two products these kernels compute: 1 or 2, 0 for neither."""
    of_input = trace.names_where(INPUT_GRADIENT.search)[event]
    of_weight = trace.names_where(WEIGHT_GRADIENT.search)[event]
    return np.where(of_input, 1, np.where(of_weight, 2, 0))


def _shares(
    owner: Ints, dur: Ints, main: Bools, side: Ints, value: Ints, name: Ints | None = None
) -> Ints:
    """Each kernel's share of its owner's value, -1 for kernels without a share.

    Without a main kernel: the kernels named like the longest one, or all if there are no names.
    Where each main kernel is on ``side`` 1 or 2, and there are both, each side has one half.
    """
    groups, at = np.unique(owner, return_inverse=True)
    count = len(groups)
    has_main = np.bincount(at, main, count) > 0
    order = np.lexsort((dur, at))  # the longest of each group comes last
    last = np.searchsorted(at[order], np.arange(count), side="right") - 1
    rest = np.ones(len(owner), bool) if name is None else name == name[order[last]][at]
    part = np.where(has_main[at], main, rest)
    weight = np.where(part, np.maximum(dur, 1), 0).astype(np.float64)
    ones, twos, none = (np.bincount(at, weight * (side == one), count) for one in (1, 2, 0))
    halved = (has_main & (ones > 0) & (twos > 0) & (none == 0))[at]
    weight[halved] /= np.where(side == 1, ones[at], twos[at])[halved]
    share = np.rint(value * (weight / np.bincount(at, weight, count)[at])).astype(np.int64)
    # Rounding must not add or lose any: the longest part takes the remainder.
    order = np.lexsort((weight, at))
    longest = order[np.searchsorted(at[order], np.arange(count), side="right") - 1]
    share[longest] = 0
    given = np.zeros(count, np.int64)
    np.add.at(given, at, share)
    share[longest] = value[longest] - given
    return np.where(part, share, -1)


def _masked(trace: Events, flops: Ints, counted: Ints) -> tuple[Ints, Bools]:
    """The FLOPs of each kernel that its mask leaves; and where the trace does not say."""
    done, mask_unknown = flops.copy(), np.zeros(len(flops), bool)
    rows = np.flatnonzero((flops >= 0) & trace.names_where(MASKS.__contains__)[counted])
    calls, at = np.unique(counted[rows], return_inverse=True)
    parts = np.ones(len(calls))
    silent = np.zeros(len(calls), bool)
    for i, (name, a) in enumerate(
        zip(trace.name[calls].tolist(), trace.operands(calls), strict=True)
    ):
        dims, types, concrete = map(decode_part, map(bytes, (a.dims, a.types, a.concrete)))
        share = masks.share(trace.names[name], dims, types, concrete)
        parts[i] = -1 if share is None else share
        silent[i] = not masks.is_known(trace.names[name], concrete)
    done[rows] = np.where(parts[at] < 0, -1, np.rint(flops[rows] * parts[at]))
    mask_unknown[rows] = silent[at]
    return done, mask_unknown


def _traffic(trace: Events, call: Ints, kernel: Ints) -> tuple[Ints, Ints]:
    """For the innermost operators around kernels: the operator whose bytes they moved, how many.

    That is the operator itself if it has a number, else the nearest one around it that has one,
    unless parts of that one have numbers too.
    """
    distinct, first, at = np.unique(call, return_index=True, return_inverse=True)
    owner, values = distinct.copy(), _bytes(trace, distinct, kernel[first])
    ops, ruled = trace.is_kind(Kind.OP), trace.names_where(TRAFFIC.__contains__)
    known = nesting.above(distinct[values >= 0], trace.parent)
    todo = np.flatnonzero(values < 0)
    while len(todo):
        owner[todo] = trace.parent[owner[todo]]
        todo = todo[owner[todo] >= 0]
        ask = todo[ruled[owner[todo]] & ops[owner[todo]] & ~known[owner[todo]]]
        values[ask] = _bytes(trace, owner[ask], kernel[first[ask]])
        todo = todo[values[todo] < 0]
    owner[values < 0] = -1
    return owner[at], values[at]


def _bytes(trace: Events, calls: Ints, kernels: Ints) -> Ints:
    """Compulsory bytes of these calls, -1 where unknown; and one kernel of each."""
    ruled = np.flatnonzero(trace.names_where(TRAFFIC.__contains__)[calls])
    out = np.full(len(calls), -1, np.int64)
    if not len(ruled):
        return out
    kinds, firsts, _ = alike(trace.name[calls[ruled]], trace.args[calls[ruled]])
    operands = trace.operands(calls[ruled[firsts]])
    of_kind = np.full(len(firsts), -1, np.int64)
    for kind, (name, a) in enumerate(
        zip(trace.name[calls[ruled[firsts]]].tolist(), operands, strict=True)
    ):
        parts = (bytes(a.dims), bytes(a.types), bytes(a.strides), bytes(a.concrete))
        if b"TensorList" not in parts[1]:
            of_kind[kind] = _moved(trace.names[name], parts)
            continue
        # The trace lacks the dtypes of the list's tensors: the kernel tells their size.
        mine = ruled[kinds == kind]
        by_kernel = {
            kernel: _moved(trace.names[name], parts, item_bytes(trace.names[kernel]))
            for kernel in nesting.distinct(trace.name[kernels[mine]]).tolist()
        }
        out[mine] = [by_kernel[kernel] for kernel in trace.name[kernels[mine]].tolist()]
    known = of_kind[kinds] >= 0
    out[ruled[known]] = of_kind[kinds][known]
    return out


def _moved(name: str, parts: tuple[bytes, ...], item: int = 0) -> int:
    """The compulsory bytes of a call with these operands, -1 if unknown."""
    dims, types, strides, concrete = map(decode_part, parts)
    count = compulsory_bytes(name, dims, types, strides, concrete, item or None)
    return -1 if count is None else count


def item_bytes(kernel: str) -> int:
    """Element size of a kernel on lists of tensors, 0 if its name does not tell."""
    if opaque := _OPAQUE.search(kernel):
        return int(opaque[1])
    element = _ELEMENT.search(kernel)
    known = (ELEMENT_BYTES.get(one or "", 0) for one in (element.groups() if element else ()))
    return next(filter(None, known), 0)


def _dtypes(trace: Events, typed: Ints, kernels: Ints) -> Ints:
    """The dtype that each kernel computed in: its operator's first tensor's, or TF32."""
    calls, at = np.unique(typed, return_inverse=True)
    seen: dict[bytes, int] = {}
    codes = [_code(args, seen) for args in trace.operands(calls)]
    code = np.array(codes, np.int64).reshape(-1)[at]
    single = code == DTYPES.index("fp32")
    allowed = trace.facts.allow_tf32 is True
    fast = trace.names_where(
        lambda name: TF32_KERNEL.search(name) or (allowed and not FP32_KERNEL.search(name))
    )
    return np.where(single & fast[kernels], DTYPES.index("tf32"), code)


def _code(args: OpArgs, seen: dict[bytes, int]) -> int:
    text = bytes(args.types)
    if text not in seen:
        types = decode_part(text)
        known = [PEAK[t] for t in types if str(t) in PEAK] if isinstance(types, list) else []
        seen[text] = known[0] if known else -1
    return seen[text]
