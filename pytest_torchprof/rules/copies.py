"""Rules about copies between the host's memory and the device's."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_torchprof.analysis.idle import idle_by_waits
from pytest_torchprof.arguments import decode_part
from pytest_torchprof.events import D2H, H2D, Kind
from pytest_torchprof.rules.calls import called, shown, sizes, step_of
from pytest_torchprof.rules.chips import device_type
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

_PAGEABLE = re.compile(r"Pageable")


def _aten(words: str) -> frozenset[str]:
    return frozenset(f"aten::{word}" for word in words.split())


#: Operators that make a tensor of numbers out of nothing, and those that overwrite one so.
_FILLED = _aten(
    "zeros ones full rand randn randint arange eye linspace logspace randperm normal scalar_tensor "
    "zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "tril_indices triu_indices "
    "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_"
)
#: What may stand between without a change of the numbers.
_PASSES = _aten(
    "pin_memory _pin_memory is_pinned detach alias view reshape unsqueeze squeeze t transpose "
    "permute lift_fresh detach_ requires_grad_ _unsafe_view expand"
)
_MOVES = _aten("to _to_copy copy_ cuda")
_MOST_PASSED = 4


class Filled(NamedTuple):
    """A copy to the device of what was just filled on the host."""

    call: int  # that copies
    maker: int  # the call that filled it
    bytes: int
    copy: int  # on the device
    words: str
    fix: str


@rule(
    "extra-cuda-copy",
    fix="make it where it is used: pass device= to the function that makes it",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="shapes device",
    bytes=Threshold(1, "B", "any: a copy costs a launch and a wait, whatever its size"),
)
def extra_cuda_copy(trace: Trace, *, bytes: float) -> Matches:  # noqa: A002
    """A tensor is filled or drawn on the CPU, and then moved to the device.

    What it does
        Looks for a tensor which the operator just before has filled (``zeros``, ``full``,
        ``arange``, ``fill_`` …) or drawn (``rand``, ``randn``, ``normal_`` …), and which is then
        copied to the device: a real copy of at least ``bytes``, of its shape and dtype. A view or
        ``pin_memory`` may stand in between, a computation may not; data from Python, from a file or
        a loader, a cast, and a move within the host or to ``meta`` are left alone. Of a module
        that is initialised and then moved, at most the tensor filled last counts.

    Why it is slow
        The CPU writes the tensor, the bus carries it, and the host mostly waits for that; the
        device would have filled it in one short kernel.

    Example
        .. code:: python

            mask = torch.ones(n, n).cuda()

    Use instead
        .. code:: python

            mask = torch.ones(n, n, device="cuda")
    """
    found = [f for f in trace.once(_filled) if f.bytes < 0 or f.bytes >= bytes]
    if not found:
        return NO_MATCHES
    event, maker, size = np.array([(f.call, f.maker, f.bytes) for f in found], np.int64).T
    said = [f"{f.words} on the CPU, then copied to the device" for f in found]
    copies = np.array([f.copy for f in found], np.int64)
    begin, end = _spans(trace, copies, maker)
    return Matches(
        event,
        said,
        None,
        trace.dur[maker] + _costs(trace, copies, event),
        size,
        fix=[f.fix for f in found],
        span_ns=(begin, end),
    )


_PINNED = (
    "keep the host's tensor in pinned memory (pin_memory=True in the DataLoader, or "
    "tensor.pin_memory() once) and copy with non_blocking=True"
)
_PINNED_BACK = (
    "copy into a pinned tensor that is kept (torch.empty(…, pin_memory=True).copy_(x, "
    "non_blocking=True)), and synchronize once before it is read"
)


@rule(
    "pageable-copy",
    fix=_PINNED,
    triggers=r".*Pageable",
    needs="device",
    bytes=Threshold(
        64 * 1024, "B", "CUDA copies up to 64 KiB to the device without a wait, by its guide"
    ),
)
def pageable_copy(trace: Trace, *, bytes: float) -> Matches:  # noqa: A002
    """A large copy between the device and pageable memory of the host.

    What it does
        Counts copies from or to pageable memory of more than ``bytes``. The profiler says so in the
        copy's name; where it does not, as on AMD, or says no size, there is no match. A copy that
        ``extra-cuda-copy`` finds is left to that rule: pinned memory would not mend it.

    Why it is slow
        The driver first copies through a pinned buffer of its own, piece by piece, so the bus is
        not filled, and the host waits whatever ``non_blocking`` says. CUDA's programming guide
        ("Asynchronous Concurrent Execution") exempts host-to-device copies of up to 64 KiB from
        the wait; its API reference ("API synchronization behavior") says how others wait.

    Example
        .. code:: python

            for batch in DataLoader(dataset, batch_size=256, num_workers=4):
                step(batch.cuda())

    Use instead
        .. code:: python

            for batch in DataLoader(dataset, batch_size=256, num_workers=4, pin_memory=True):
                step(batch.cuda(non_blocking=True))
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    large = trace.bytes[copies] > bytes
    large &= trace.names_where(_PAGEABLE.search)[copies]
    up = trace.names_where(H2D.search)[copies]
    large &= up | trace.names_where(D2H.search)[copies]
    if trace.records_shapes and large.any():
        large &= ~np.isin(copies, [f.copy for f in trace.once(_filled)])
    copies, up = copies[large], up[large]
    event = _launchers(trace, copies)
    cost = _costs(trace, copies, event)
    said = [
        "copied from pageable memory to the device" if h else "copied to pageable memory"
        for h in up.tolist()
    ]
    return Matches(
        event,
        said,
        None,
        cost,
        trace.bytes[copies],
        fix=[_PINNED if h else _PINNED_BACK for h in up.tolist()],
        span_ns=_spans(trace, copies, event),
    )


@rule(
    "copy-round-trip",
    fix="leave it on the device: do there what is done on the host in between, or keep a reference",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="device",
    bytes=Threshold(
        4096, "B", "smaller ones are results that are read, and the next inputs of that shape"
    ),
)
def copy_round_trip(trace: Trace, *, bytes: float) -> Matches:  # noqa: A002
    """Something is copied from the device to the host, and back to the device.

    What it does
        Pairs, within a step (of `torch.profiler`, of a DataLoader, or that an optimizer ends) and
        thread, each copy to the device with the latest earlier copy from it of the same size, and
        of the same shape and dtype where the trace has them, from ``bytes`` on. Traffic that starts
        at the host, an upload and then a download time and again, as of batches and their results,
        is no round trip. Activations that are offloaded on purpose are one.

    Why it is slow
        The host waits for the device to finish, the bus carries everything twice, and the device
        idles until it is back.

    Example
        .. code:: python

            scores = torch.from_numpy(scores.cpu().numpy().clip(0, 1)).cuda()

    Use instead
        .. code:: python

            scores = scores.clamp(0, 1)
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    up = trace.names_where(H2D.search)[copies]
    down = trace.names_where(D2H.search)[copies]
    keep = (up | down) & (trace.bytes[copies] >= bytes)
    copies, up = copies[keep], up[keep]
    if up.all() or not up.any():
        return NO_MATCHES
    order = np.argsort(trace.ts[trace.launch[copies]], kind="stable")
    copies, up = copies[order], up[order]
    events = _launchers(trace, copies)
    calls = trace.launch[copies]
    groups: dict[Any, list[int]] = {}
    shapes = _copied(trace, events)
    size, thread = trace.bytes[copies].tolist(), trace.thread[calls].tolist()
    step = step_of(trace, calls).tolist()
    for i, what in enumerate(shapes):
        groups.setdefault((size[i], what, thread[i], step[i]), []).append(i)
    pairs: list[tuple[int, int]] = []
    for members in groups.values():
        pairs += _round_trips(members, up)
    if not pairs:
        return NO_MATCHES
    out, back = np.array(sorted(pairs, key=lambda p: p[1]), np.int64).T
    cost = _costs(trace, copies, events)
    said = [_said(shapes[i], size[i]) for i in back.tolist()]
    (begin, _), (_, end) = (_spans(trace, copies[way], events[way]) for way in (out, back))
    size_2 = 2 * trace.bytes[copies[back]]
    return Matches(events[back], said, None, cost[out] + cost[back], size_2, span_ns=(begin, end))


# -------------------------------------------------------------------- what was filled


def _filled(trace: Trace) -> list[Filled]:
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    copies = copies[trace.names_where(H2D.search)[copies]]
    events = _launchers(trace, copies)
    is_called = called(trace)
    top = _called_around(trace, events, is_called)
    moves = (top >= 0) & trace.names_where(_MOVES.__contains__)[top]
    copies, events, top = copies[moves], events[moves], top[moves]
    makers = _makers(trace, np.flatnonzero(is_called & trace.selection), top)
    places = np.flatnonzero(makers >= 0)
    out, device = [], device_type(trace)
    for i, copied in zip(places.tolist(), _copied(trace, events[places]), strict=True):
        maker, copy = int(makers[i]), int(copies[i])
        made = _made(trace, maker)
        if copied is None or made is None or made[1] != copied[1]:
            continue
        if made[0] is None or prod(made[0]) == prod(copied[0]):
            name = trace.names[trace.name[maker]]
            words = f"{list(copied[0])} {shown(copied[1])} by {name}"
            fix = f"make it where it is used: {_there(name, device)}"
            out.append(Filled(int(top[i]), maker, int(trace.bytes[copy]), copy, words, fix))
    return out


def _there(name: str, device: str) -> str:
    """How to call what fills a tensor so that it does so on the device.

    >>> _there("aten::randn", "cuda"), _there("aten::normal_", "cuda")
    ('torch.randn(…, device="cuda")', 'torch.empty(…, device="cuda").normal_(…)')
    >>> _there("aten::new_zeros", "xpu"), _there("aten::ones_like", "cuda")
    ('x.new_zeros(…, device="xpu")', 'torch.ones_like(x, device="cuda")')
    """
    function, where = name.removeprefix("aten::"), f'device="{device}"'
    if function.endswith("_"):
        return f"torch.empty(…, {where}).{function}({'' if function == 'zero_' else '…'})"
    if function.startswith("new_"):
        return f"x.{function}(…, {where})"
    if function.endswith("_like"):
        return f"torch.{function}(x, {where})"
    return f"torch.{function}(…, {where})"


def _makers(trace: Trace, calls: Ints, top: Ints) -> Ints:
    """The call before on the same thread that filled a tensor, past what leaves it as it is."""
    order = np.lexsort((calls, trace.thread[calls]))
    before = np.full(len(calls), -1, np.int64)
    same = np.diff(trace.thread[calls[order]]) == 0
    before[order[1:][same]] = order[:-1][same]
    fills = trace.names_where(_FILLED.__contains__)
    passes = trace.names_where(_PASSES.__contains__)
    at = before[np.searchsorted(calls, top)]
    makers = np.full(len(top), -1, np.int64)
    for _ in range(_MOST_PASSED + 1):
        row = np.where(at >= 0, calls[at], -1)
        found = (row >= 0) & fills[row]
        makers[found] = row[found]
        at = np.where((row >= 0) & ~found & passes[row], before[at], -1)
    return makers


def _made(trace: Trace, row: int) -> tuple[tuple[int, ...] | None, str] | None:
    """Shape (None if it is not written down) and dtype of what an operator fills."""
    end = trace.ts[row] + trace.dur[row]
    inside = np.arange(row, min(row + 32, len(trace)))
    inside = inside[(trace.ts[inside] <= end) & (trace.thread[inside] == trace.thread[row])]
    inside = inside[trace.kind[inside] == Kind.OP]
    best: tuple[tuple[int, ...] | None, str] | None = None
    for args in trace.operands(inside):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        if not isinstance(dims, list) or not isinstance(types, list):
            continue
        for shape, dtype in zip(map(sizes, dims), types, strict=False):
            if dtype in {"", "Scalar", "ScalarList", "Device"} or shape is None:
                continue
            # An operator that sets the size itself starts with a tensor of no elements.
            best = (None if shape == (0,) else shape, dtype)
            break
    return best


# -------------------------------------------------------------------- copies and their operators


def _launchers(trace: Trace, copies: Ints) -> Ints:
    """The host event to name for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    around = np.where(call >= 0, trace.parent[call], -1)
    return np.where(around >= 0, around, call)


def _called_around(trace: Trace, events: Ints, is_called: Any) -> Ints:
    """The outermost operator around each event that a user's code called, or -1."""
    at = events.copy()
    todo = np.flatnonzero(at >= 0)
    while len(todo):
        todo = todo[~is_called[at[todo]]]
        at[todo] = trace.parent[at[todo]]
        todo = todo[at[todo] >= 0]
    return at


def _copied(trace: Trace, events: Ints) -> list[tuple[tuple[int, ...], str] | None]:
    """Shape and dtype of what each ``copy_`` copies from; None where the trace does not say."""
    is_copy = trace.is_kind(Kind.OP) & trace.named("aten::copy_")
    out: list[tuple[tuple[int, ...], str] | None] = []
    for row, args in zip(events.tolist(), trace.operands(np.maximum(events, 0)), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        known = row >= 0 and is_copy[row] and isinstance(dims, list) and isinstance(types, list)
        shape = sizes(dims[1]) if known and len(dims) > 1 and len(types) > 1 else None
        out.append(None if shape is None else (shape, str(types[1])))
    return out


def _costs(trace: Trace, copies: Ints, events: Ints) -> Ints:
    """Time of each copy on the device, and for how long it kept the device idle by holding up the
    host: while the host waits for work that the device still has, nothing is lost.
    """
    begin = trace.ts[np.maximum(events, 0)]
    held = np.where(events >= 0, trace.dur[events], 0)
    idle = np.where(events >= 0, idle_by_waits(trace, begin, begin + held), 0)
    return np.minimum(trace.dur[copies] + idle, np.maximum(trace.dur[copies], held))


def _spans(trace: Trace, copies: Ints, events: Ints) -> tuple[Ints, Ints]:
    """From the host event, if there is one, or the copy, to the end of both."""
    rows = np.where(events >= 0, events, copies)
    begin = np.minimum(trace.ts[rows], trace.ts[copies])
    ends = (trace.ts[some] + trace.dur[some] for some in (rows, copies))
    return begin, np.maximum(*ends)


def _round_trips(members: list[int], up: Any) -> list[tuple[int, int]]:
    """Pairs of one kind: each copy up with the latest copy down that has none yet."""
    ways = [bool(up[i]) for i in members]
    starts = ways[0] and len(ways) % 2 == 0
    if starts and all(way == (i % 2 == 0) for i, way in enumerate(ways)):
        return []  # uploads and downloads take turns, from the host's side
    waiting, pairs = list[int](), []
    for i, way in zip(members, ways, strict=True):
        if not way:
            waiting.append(i)
        elif waiting:
            pairs.append((waiting.pop(), i))
    return pairs


def _said(what: tuple[tuple[int, ...], str] | None, size: int) -> str:
    if what is None:
        return f"{size} bytes copied to the host and back"
    return f"{list(what[0])} {shown(what[1])} copied to the host and back"
