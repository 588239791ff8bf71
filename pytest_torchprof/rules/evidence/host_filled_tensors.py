"""Tensors that are filled on the host, and then moved to the device."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_torchprof.rules.evidence.accelerator import device_type
from pytest_torchprof.rules.evidence.calls import called, sizes
from pytest_torchprof.rules.evidence.device_moves import (
    copy_callers,
    from_maker,
    model_moves,
    what_is_copied,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import H2D
from pytest_torchprof.work.dtypes import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


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
