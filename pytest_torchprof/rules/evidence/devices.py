"""Tensors that go to the device, and those that are filled on the host."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import XPU_CALL
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.evidence.calls import called, sizes
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import (
    D2H,
    DEVICE_KINDS,
    H2D,
    Kind,
    Names,
    are_named,
)
from pytest_torchprof.trace.tree import parents
from pytest_torchprof.work import devices
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What rules need to know about the accelerator that a trace ran on.

#: Kernels that are compiled for compute capability 8.0 and later, and run only there.
_SINCE_AMPERE = late(
    r"ampere_|hopper_|blackwell_|sm(80|86|89|90|1[02]\d)_|cutlass_(8[069]|9\d|1[02]\d)_|nvjet"
)
#: AMD architectures for which torch has a fused attention kernel.
#: Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the list for AOTriton.
_AMD_FUSED = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"}

#: Dtypes of fused attention.
FUSED_TYPES = {"float", "c10::Half", "c10::BFloat16"}


#: Devices that multiply TF32 at least four times as fast as fp32, under any name: GA100, GH100 and
#: GB100. Other chips of these generations are sold with full and with half rate.
_WHOLE_RATE = {(8, 0), (9, 0), (10, 0), (10, 3)}


class Chip(NamedTuple):
    """``capability`` is CUDA's or HIP's, (0, 0) if unknown; ``name`` is the table's."""

    vendor: str | None
    capability: tuple[int, int]
    architecture: str | None = None
    name: str | None = None
    tf32_gain: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the trace tells what the device supports."""
        return self.capability != (0, 0) or self.architecture is not None

    @property
    def has_tf32(self) -> bool:
        """Whether it multiplies TF32: NVIDIA's since 8.0, others by the table of devices."""
        return self.runs_tf32 or self.tf32_gain is not None

    @property
    def runs_tf32(self) -> bool:
        """Whether torch can be told to run single-precision products as TF32.

        AMD's need ``HIPBLASLT_ALLOW_TF32=1``, too. Source: aten/src/ATen/Context.cpp, 2.5 to 2.9.
        """
        return self.vendor == "nvidia" and self.capability >= (8, 0)

    @property
    def may_have_tf32(self) -> bool:
        """Whether the trace leaves open if it can."""
        return self.vendor in {"nvidia", None} and not self.is_known

    @property
    def tf32_saves(self) -> float:
        """The largest share of an fp32 product's time that TF32 saves; 0 if unknown.

        It follows from the peaks; at most half, because faster kernels are bound by memory.
        """
        gain = self.tf32_gain
        if gain is None:
            gain = 2.0 if self.capability in _WHOLE_RATE else 1.0
        return min(max(1 - 1 / gain, 0.0), 0.5)

    def fuses_attention(self, dtype: str | None) -> bool:
        """Whether torch has a fused attention kernel for such inputs on this device.

        Source: sdp_utils.cpp as above: the memory-efficient kernel supports fp32 and fp16 from 5.0
        on, bf16 from 8.0 on; no kernel supports fp64 or complex numbers.
        """
        if self.vendor == "amd":
            return self.architecture in _AMD_FUSED and dtype in FUSED_TYPES
        least = {"float": (5, 0), "c10::Half": (5, 0), "c10::BFloat16": (8, 0)}.get(dtype or "")
        return self.vendor == "nvidia" and least is not None and self.capability >= least


def on_cpu(trace: Events, rows: Ints) -> Bools:
    """Which of these operators ran on the CPU: they launched nothing, and called no runtime.

    Without any call of a runtime, a trace that lists devices has only the host's side.
    """
    launched, _ = launched_in(trace, rows, kinds=DEVICE_KINDS)
    if not trace.has(Kind.RUNTIME):
        return (launched < 0) & (not trace.metadata.get("deviceProperties"))
    calls = nesting.above(np.flatnonzero(trace.is_kind(Kind.RUNTIME)), trace.parent)
    return (launched < 0) & ~calls[rows]


def chip_of(trace: Events, device: int) -> Chip:
    """The device with this index, from the driver's properties, else from its kernels' names."""
    return trace.once(_chip_of, device)


def _chip_of(trace: Events, device: int) -> Chip:
    properties = _properties(trace, device)
    vendor = _vendor(trace, str(properties.get("name", "")))
    known = devices.find(properties)
    major = _number(properties.get("computeMajor"))
    if major:
        capability = (major, _number(properties.get("computeMinor")))
    elif known is not None and known.capability is not None:
        capability = known.capability
    elif vendor == "nvidia" and any(map(_SINCE_AMPERE.search, trace.names)):
        capability = (8, 0)
    else:
        capability = (0, 0)
    architecture = known.architecture if known is not None else None
    if architecture is None and vendor == "amd":
        architecture = {(9, 4): "gfx942", (9, 5): "gfx950"}.get(capability)
    if known is None or not {"fp32", "tf32"} <= set(known.peaks):
        return Chip(vendor, capability, architecture, known.name if known else None)
    gain = known.peaks["tf32"] / known.peaks["fp32"]
    return Chip(vendor, capability, architecture, known.name, gain)


def device_type(trace: Events) -> str:
    """The accelerator's name in torch: ``cuda``, also for AMD, unless the trace says otherwise."""
    noted = trace.facts.device_type
    if noted is not None:
        return noted
    xpu = trace.is_kind(Kind.RUNTIME) & trace.names_where(XPU_CALL.match)
    return "xpu" if xpu.any() else "cuda"


def _properties(trace: Events, device: int) -> Mapping[str, Any]:
    """Those of the device, or of all devices if they are alike: ROCm numbers events differently."""
    listed = trace.metadata.get("deviceProperties")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if _number(entry.get("id", -1)) == device:
            return entry
    first, *others = [{**entry, "id": None} for entry in entries] or [{}]
    return first if all(other == first for other in others) else {}


def _vendor(trace: Events, name: str) -> str | None:
    """By the calls of its runtime, else by the driver's name for it."""
    calls = trace.is_kind(Kind.RUNTIME)
    if (calls & trace.names_where(lambda n: n.startswith("hip"))).any():
        return "amd"
    if (calls & trace.names_where(re.compile(r"cuda|cu[A-Z]").match)).any():
        return "nvidia"
    words = {"nvidia": r"NVIDIA|Tesla|GeForce|Quadro", "amd": r"AMD|Radeon|Instinct"}
    found = [vendor for vendor, known in words.items() if re.search(known, name)]
    return found[0] if found else None


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


# ---- Moves between host and device: whether of a model's weights, and the origin of the data.

#: Series of copies, by number and whether they go to the device.
_Gos: TypeAlias = dict[tuple[int, bool], list[int]]

_MOVE = Names(r"aten::(to|_to_copy|cuda|copy_)$")
#: Only ``torch.nn.Module.to`` calls this, after it has moved a parameter.
_OF_A_MODULE = Names(r"aten::_has_compatible_shallow_copy_type$")
#: What may come between two moves of one series.
_BETWEEN = Names(r"aten::(empty|empty_like|empty_strided|detach|alias|lift_fresh|requires_grad_)$")
#: A series of at least this many tensors, of this many sizes, is more than a batch.
_MANY, _SIZES = 6, 4
#: Operators that make a tensor without copying data from another one.
_NEW = Names(
    r"aten::(empty|zeros|ones|full|rand|randn|randint|normal|arange|linspace|tensor|lift_fresh|"
    r"stack|cat|concat|concatenate|hstack|vstack|from_file|index|index_select|gather|embedding|"
    r"\w+_like|new_\w+)$"
)
_IN_PLACE = Names(r"aten::\w*[^_]_$")


def model_moves(trace: Events) -> Ints:
    """Copies by which a model is moved to the device, or back to the host, once."""
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)
    copies = copies[(up | trace.names_where(D2H.search))[copies]]
    if not len(copies):
        return copies
    if not trace.has(Kind.OP):
        return _of_weights_by_time(trace, copies, up[copies])
    copies = copies[trace.launch[copies] >= 0]
    calls = np.flatnonzero(called(trace) & trace.selection)
    calls = calls[np.argsort(trace.thread[calls], kind="stable")]
    marks, moves = are_named(trace, calls, _OF_A_MODULE), are_named(trace, calls, _MOVE)
    ends = ~(marks | moves | are_named(trace, calls, _BETWEEN))
    ends[1:] |= np.diff(trace.thread[calls]) != 0
    go = np.cumsum(ends)
    top = nesting.nearest(called(trace), trace.parent, trace.launch[copies])
    copies, top = copies[top >= 0], top[top >= 0]
    position = np.full(len(trace), -1, np.int64)
    position[calls] = np.arange(len(calls))
    moved = position[top]
    gos: _Gos = {}
    for i in np.flatnonzero(moves[moved]).tolist():
        gos.setdefault((int(go[moved[i]]), bool(up[copies[i]])), []).append(i)
    found = list[int]()
    for (one, _), some in _once(gos, trace.bytes[copies]):
        asked = np.flatnonzero(marks & (go == one))
        if len(asked):  # buffers are moved between parameters, without this call
            found += [i for i in some if asked[0] - 1 <= moved[i] < asked[-1]]
        elif _are_many(trace.bytes[copies[some]]):
            found += some
    return np.asarray(copies[sorted(found)])


def _of_weights_by_time(trace: Events, copies: Ints, up: Bools) -> Ints:
    """The same without operators: the device runs no kernel between such copies."""
    kernels = np.sort(trace.ts[trace.is_kind(Kind.KERNEL)])
    go = np.searchsorted(kernels, trace.ts[copies])
    gos: _Gos = {}
    for i in np.argsort(trace.ts[copies], kind="stable").tolist():
        gos.setdefault((int(go[i]), bool(up[i])), []).append(i)
    every = (some for _, some in _once(gos, trace.bytes[copies]))
    return copies[sorted(i for some in every if _are_many(trace.bytes[copies[some]]) for i in some)]


def _once(gos: _Gos, size: Ints) -> Iterator[tuple[tuple[int, bool], list[int]]]:
    """Series unlike any other; batches, or a model that each step offloads, are alike."""
    alike = {key: (key[1], tuple(size[some].tolist())) for key, some in gos.items()}
    times = Counter(alike.values())
    return ((key, some) for key, some in gos.items() if times[alike[key]] == 1)


def _are_many(size: Ints) -> bool:
    return len(size) >= _MANY and len(set(size.tolist())) >= _SIZES


# -------------------------------------------------------------------- whose numbers


def from_maker(trace: Events, maker: int, call: int) -> bool | None:
    """Whether a call copies what another one filled; None if unknown."""
    if trace.tensors is None or (source := _source(trace, call)) is None:
        return None
    rows = _calls_between(trace, maker, call)
    return bool(_comes_from(trace, _filled_by(trace, maker), rows, source))


def came_down(trace: Events, down: int, up: int) -> bool | None:
    """Whether one ``copy_`` returns to the device what another one took from it; None if unknown.

    In between, NumPy makes tensors whose origin is unknown.
    """
    rows = _calls_between(trace, down, up)
    if trace.tensors is None:
        return False if are_named(trace, rows, _NEW).any() else None
    result, source = _first(trace, down), _source(trace, up)
    if result is None or source is None:
        return None
    return _comes_from(trace, {result}, rows, source)


def _comes_from(trace: Events, numbers: set[int], rows: Ints, source: int) -> bool | None:
    """Whether a tensor is one of these, or made from them by these calls; None: made by none."""
    mine, others = set(numbers), set[int]()
    taken, made = trace.taken(rows) or [], trace.made(rows) or []
    writes = are_named(trace, rows, _IN_PLACE).tolist()
    for arguments, results, write in zip(taken, made, writes, strict=True):
        flat = {n for one in arguments for n in ((one,) if isinstance(one, int) else one)}
        target = {arguments[0]} if write and arguments and isinstance(arguments[0], int) else set()
        (mine if flat & mine else others).update(results | target)
    if source in mine:
        return True
    return False if source in others else None


def _filled_by(trace: Events, row: int) -> set[int]:
    rows = np.array([row])
    made = set((trace.made(rows) or [frozenset()])[0])
    first = _first(trace, row)
    return made | {first} if first is not None and are_named(trace, rows, _IN_PLACE)[0] else made


def _source(trace: Events, row: int) -> int | None:
    """The tensor that ``x.to(…)`` or ``y.copy_(x)`` copies from."""
    taken = (trace.taken(np.array([row])) or [()])[0]
    at = 1 if trace.names[trace.name[row]] == "aten::copy_" else 0
    source = taken[at] if len(taken) > at else -1
    return source if isinstance(source, int) and source >= 0 else None


def _first(trace: Events, row: int) -> int | None:
    taken = (trace.taken(np.array([row])) or [()])[0]
    return taken[0] if taken and isinstance(taken[0], int) and taken[0] >= 0 else None


def _calls_between(trace: Events, first: int, last: int) -> Ints:
    """Calls on the same thread that begin after one call's end and before the other's start."""
    rows = np.flatnonzero(called(trace) & trace.selection)
    rows = rows[trace.thread[rows] == trace.thread[first]]
    since = trace.ts[first] + trace.dur[first]
    found: Ints = rows[(trace.ts[rows] >= since) & (trace.ts[rows] < trace.ts[last])]
    return found


# -------------------------------------------------------------------- copies and their operators


def copy_callers(trace: Events, copies: Ints) -> Ints:
    """The host event to report for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    around = parents(trace, call)
    return np.where(around >= 0, around, call)


def what_is_copied(trace: Events, events: Ints) -> list[tuple[tuple[int, ...], str] | None]:
    """Shape and dtype of what each ``copy_`` copies from; None if the trace lacks them."""
    is_copy = trace.is_kind(Kind.OP) & trace.named("aten::copy_")
    out: list[tuple[tuple[int, ...], str] | None] = []
    for row, args in zip(events.tolist(), trace.operands(np.maximum(events, 0)), strict=True):
        dims, types = decode_part(bytes(args.dims)), decode_part(bytes(args.types))
        known = row >= 0 and is_copy[row] and isinstance(dims, list) and isinstance(types, list)
        shape = sizes(dims[1]) if known and len(dims) > 1 and len(types) > 1 else None
        out.append(None if shape is None else (shape, str(types[1])))
    return out


# ---- Tensors that are filled on the host, and then moved to the device.


def _aten(words: str) -> frozenset[str]:
    return frozenset(f"aten::{word}" for word in words.split())


#: Operators that create or overwrite a tensor without reading data.
_FILLED = _aten(
    "zeros ones full rand randn randint arange eye linspace logspace randperm normal scalar_tensor "
    "zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "tril_indices triu_indices "
    "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_"
)
#: What may come in between without changing the numbers.
_PASSES = _aten(
    "pin_memory _pin_memory is_pinned detach alias view reshape unsqueeze squeeze t transpose "
    "permute lift_fresh detach_ requires_grad_ _unsafe_view expand"
)
_MOVES = _aten("to _to_copy copy_ cuda")
_MOST_PASSED = 4


class HostFilledTensor(NamedTuple):
    """A copy to the device of what was just filled on the host."""

    call: int  # that copies
    maker: int  # the call that filled it
    bytes: int
    copy: int  # on the device
    words: str
    fix: str


def host_filled_tensors(trace: Events) -> list[HostFilledTensor]:
    """The copies to the device of what was just filled on the host."""
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    copies = copies[trace.names_where(H2D.search)[copies]]
    events = copy_callers(trace, copies)
    is_called = called(trace)
    top = nesting.nearest(is_called, trace.parent, events)
    moves = (top >= 0) & trace.names_where(_MOVES.__contains__)[top]
    copies, events, top = copies[moves], events[moves], top[moves]
    makers = _makers(trace, np.flatnonzero(is_called & trace.selection), top)
    places = np.flatnonzero(makers >= 0)
    weights = set(trace.once(model_moves).tolist()) if len(places) else set()
    out, device = [], device_type(trace)
    moved = _moved_types(trace, top[places])
    for i, copied, cast in zip(
        places.tolist(), what_is_copied(trace, events[places]), moved, strict=True
    ):
        maker, copy = int(makers[i]), int(copies[i])
        made = _made(trace, maker)
        if copied is None or made is None or copy in weights:
            continue
        if made[1] not in {copied[1], cast}:
            continue
        if from_maker(trace, maker, int(top[i])) is False:
            continue
        if made[0] is None or prod(made[0]) == prod(copied[0]):
            name = trace.names[trace.name[maker]]
            words = f"{list(copied[0])} {torch_name(copied[1])} by {name}"
            fix = f"create it on the device: {_there(name, device)}"
            out.append(
                HostFilledTensor(int(top[i]), maker, int(trace.bytes[copy]), copy, words, fix)
            )
    return out


def _moved_types(trace: Events, calls: Ints) -> list[str]:
    """The dtype of what each of these calls moves, which it may cast before it copies.

    Source: aten/src/ATen/native/cuda/Copy.cu, where a copy that the host waits for is cast on the
    host.
    """
    found = []
    for row, args in zip(calls.tolist(), trace.operands(calls), strict=True):
        types = decode_part(bytes(args.types))
        at = 1 if trace.names[trace.name[row]] == "aten::copy_" else 0
        found.append(str(types[at]) if isinstance(types, list) and len(types) > at else "")
    return found


def _there(name: str, device: str) -> str:
    """How to call a filling function so that it works on the device.

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


def _makers(trace: Events, calls: Ints, top: Ints) -> Ints:
    """The previous call on its thread that filled a tensor, past calls that keep its numbers."""
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


def _made(trace: Events, row: int) -> tuple[tuple[int, ...] | None, str] | None:
    """Shape (None if not recorded) and dtype of what an operator fills."""
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
            # An operator that sets the size itself starts with an empty tensor.
            best = (None if shape == (0,) else shape, dtype)
            break
    return best
