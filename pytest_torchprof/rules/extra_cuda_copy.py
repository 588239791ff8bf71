"""The rule about tensors that are made on the host, and then moved to the device."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.rules.chip import device_type
from pytest_torchprof.rules.moves import (
    comes_from,
    copy_callers,
    copy_costs,
    copy_spans,
    model_moves,
    operand,
    source_of,
    what_is_copied,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import H2D, Kind, Names, are_named
from pytest_torchprof.trace.tree import called
from pytest_torchprof.work.operands import torch_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Operators that create or overwrite a tensor without reading data.
_FILLED: Final = Names(
    r"aten::((zeros|ones|full|rand|randn|randint)(_like)?|new_(zeros|ones|full)|arange|eye|linspace"
    r"|logspace|randperm|normal|scalar_tensor|tril_indices|triu_indices|(fill|zero|normal|uniform"
    r"|random|bernoulli|exponential|log_normal|cauchy|geometric)_)$"
)
#: What may come in between without changing the numbers.
_PASSES: Final = Names(
    r"aten::(_?pin_memory|is_pinned|detach_?|alias|view|reshape|unsqueeze|squeeze|t|transpose"
    r"|permute|lift_fresh|requires_grad_|_unsafe_view|expand)$"
)
_MOVES: Final = Names(r"aten::(to|_to_copy|copy_|cuda)$")
_MOST_PASSED: Final = 4
#: So many events and arguments are looked at, to find what an operator fills.
_INSIDE, _ARGUMENTS = 32, 4


class FilledCopy(NamedTuple):
    """A copy to the device of what was just filled on the host."""

    call: int  # that copies
    maker: int  # the call that filled it
    copy: int  # on the device
    dtype: str
    shape: tuple[int, ...]


@rule(
    "extra-cuda-copy",
    fix="create it on the device: pass device= to the function that creates it",
    triggers=r".*(HtoD|HostToDevice|M2D)",
    needs="shapes device",
    bytes=Threshold(1, "B", "any: a copy costs a launch and a wait, whatever its size"),
)
def extra_cuda_copy(trace: Events, *, bytes: float) -> Matches:  # noqa: A002
    """A tensor is filled or drawn on the CPU, and then moved to the device.

    ## What it does

    Looks for a tensor that the preceding operator filled (`zeros`, `arange` …) or drew (`rand`,
    `normal_` …), and that is then copied to the device: at least `bytes`, of its shape and dtype. A
    live test is captured once more to find out whether this tensor is moved, or another one of its
    shape.

    Not counted: data from Python, a file or a loader; what is computed in between; the parameters
    of a module that is moved.

    ## Why it is slow

    The CPU writes the tensor, the bus transfers it, and the host usually waits for that; the
    device would have filled it in one short kernel.

    ## Example

    ```python
    mask = torch.ones(n, n).cuda()
    ```

    ## Use instead

    ```python
    mask = torch.ones(n, n, device="cuda")
    ```
    """
    found = [one for one in trace.once(filled_copies) if not 0 <= trace.bytes[one.copy] < bytes]
    if not found:
        return NO_MATCHES
    event, maker, copies = np.array([one[:3] for one in found], np.int64).T
    names = [trace.names[name] for name in trace.name[maker].tolist()]
    return Matches(
        event,
        [
            f"{list(one.shape)} {torch_name(one.dtype)} by {name} on the CPU, then copied to the "
            "device"
            for one, name in zip(found, names, strict=True)
        ],
        None,
        trace.dur[maker] + copy_costs(trace, copies, event),
        trace.bytes[copies],
        fix=[f"create it on the device: {_there(name, device_type(trace))}" for name in names],
        span_ns=(trace.ts[maker], copy_spans(trace, copies, event)[1]),
        wants_tensors=True,
    )


def _there(name: str, device: str) -> str:
    """How to call a filling function so that it works on the device.

    >>> _there("aten::randn", "cuda"), _there("aten::normal_", "cuda")
    ('torch.randn(…, device="cuda")', 'torch.empty(…, device="cuda").normal_(…)')
    """
    function, where = name.removeprefix("aten::"), f'device="{device}"'
    if function.endswith("_"):
        return f"torch.empty(…, {where}).{function}({'' if function == 'zero_' else '…'})"
    like = "x" if function.endswith("_like") else "…"
    return f"{'x' if function.startswith('new_') else 'torch'}.{function}({like}, {where})"


def filled_copies(trace: Events) -> list[FilledCopy]:
    """The copies to the device of what was just filled on the host, but not of a model."""
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    copies = copies[trace.names_where(H2D.search)[copies]]
    calls = np.flatnonzero(called(trace) & trace.selection)
    calls = calls[np.argsort(trace.thread[calls], kind="stable")]
    events = copy_callers(trace, copies)
    top = nesting.nearest(called(trace), trace.parent, events)
    moves = (top >= 0) & are_named(trace, np.maximum(top, 0), _MOVES)
    place = np.full(len(trace) + 1, -1, np.int64)
    place[calls] = np.arange(len(calls))
    found = list[FilledCopy]()
    for copy, event, call in np.stack([copies, events, top], axis=1)[moves].tolist():
        if (maker := _maker(trace, calls, int(place[call]))) < 0:
            continue
        moved, made = what_is_copied(trace, event), _filled(trace, maker)
        if moved is None or made is None:
            continue
        if made[0] is not None and prod(made[0]) != prod(moved[0]):
            continue
        # A copy that the host waits for is cast on the host, before. Source: cuda/Copy.cu.
        if made[1] not in (moved[1], (operand(trace, call, source_of(trace, call)) or moved)[1]):
            continue
        if trace.tensors is not None and not comes_from(trace, maker, call):
            continue
        found.append(FilledCopy(call, maker, copy, moved[1], moved[0]))
    weights = {*trace.once(model_moves).tolist()} if found else set()
    return [one for one in found if one.copy not in weights]


def _maker(trace: Events, calls: Ints, at: int) -> int:
    """The call before this one, past those that keep numbers, if it fills a tensor; or -1."""
    before = calls[max(at - _MOST_PASSED - 1, 0) : at][::-1]
    before = before[trace.thread[before] == trace.thread[calls[at]]]
    others = before[~are_named(trace, before, _PASSES)][:1]
    return int(others[0]) if are_named(trace, others, _FILLED).any() else -1


def _filled(trace: Events, row: int) -> tuple[tuple[int, ...] | None, str] | None:
    """Shape and dtype of what an operator fills, by the last operator in it that takes a tensor;
    the shape is None where it is not recorded.
    """
    inside = np.arange(row, min(row + _INSIDE, len(trace)))
    inside = inside[trace.thread[inside] == trace.thread[row]]
    inside = inside[trace.ts[inside] <= trace.ts[row] + trace.dur[row]]
    inside = inside[trace.kind[inside] == Kind.OP]
    known = (operand(trace, one, at) for one in inside[::-1].tolist() for at in range(_ARGUMENTS))
    first = next(filter(None, known), None)
    # An operator that sets the size itself starts with an empty tensor.
    return (None, first[1]) if first is not None and first[0] == (0,) else first
