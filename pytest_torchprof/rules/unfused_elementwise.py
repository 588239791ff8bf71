"""The rule about elementwise kernels that one kernel could replace."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.attribution import attribute, followed, launched_at
from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.estimates import repeats
from pytest_torchprof.analysis.kernels import device_of
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.arguments import alike, decode_list
from pytest_torchprof.trace.names import Kind, Names, are_named
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import within_named
from pytest_torchprof.work.bytes import REDUCTIONS, is_elementwise
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: torch's own elementwise kernels, on CUDA and ROCm.
_KERNEL: Final = late(r"(?!.*index_elementwise_kernel).*(elementwise_kernel|fused_dropout_kernel)")
_OTHERS: Final = Names(
    r"Optimizer\.|Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction"
)
#: A dropout and the sum after it, as around each layer of a transformer, are no chain.
_DROPOUT: Final = Names(r"aten::native_dropout(_backward)?$")
_ADDS: Final = Names(r"aten::add_?$")
_COMPILE: Final = "torch.compile this function or module: it makes one kernel of the chain"
#: Operators of a chain, in any order and beside others, and what does the same in one kernel.
_FUSED: Final = (
    ({"pow", "tanh", "mul"}, 'torch.nn.functional.gelu(x, approximate="tanh")'),
    ({"erf", "mul"}, "torch.nn.functional.gelu(x)"),
    ({"sigmoid", "mul"}, "torch.nn.functional.silu(x) or glu(x)"),
    ({"copy_", "pow"}, "torch.nn.functional.rms_norm"),
    ({"sub", "pow"}, "torch.nn.functional.layer_norm, or torch.var_mean"),
)
#: The same for chains of nothing else.
_FUSED_PAIRS: Final = (
    ({"mul_", "add_"}, "torch.Tensor.lerp_, or addcmul_"),
    ({"mul", "add"}, "torch.addcmul"),
)


def _unseen(trace: Events) -> Reason | None:
    """Elementwise kernels that graphs launched: their shapes are unknown."""
    return blind_kernels(trace, _KERNEL.match)


@rule(
    "unfused-elementwise",
    fix=_COMPILE,
    triggers=r".*(elementwise_kernel|fused_dropout_kernel)",
    needs="shapes device",
    blind=_unseen,
    timed=True,
    bytes=Threshold(
        8 * 2**20, "B", "a smaller result is read from the cache, and a kernel on it mostly starts"
    ),
    share=Threshold(0.03, "1", "below, it is hardly worth another form of the code"),
)
def unfused_elementwise(trace: Events, *, bytes: float, share: float) -> Matches:  # noqa: A002
    """Elementwise kernels pass large results to each other through the device's memory.

    ## What it does

    Looks for chains of torch's own elementwise kernels: consecutive on a stream, launched by
    operators in a row, each of which reads a tensor of `bytes` (8 MiB) or more that the one before
    it writes; a reduction may be the end. They count if all together cost `share` (0.03) or more of
    the device's span. The cost is what one kernel would not move, divided by the bandwidth.

    Not counted: compiled code, Triton kernels, an optimizer's step, dropout and the sum after it
    alone, and what a CUDA graph launched. A stored trace tells tensors apart by shape and dtype
    alone. Times decide here, so the matches may change with the machine.

    ## Why it is slow

    An elementwise kernel computes little: its time is that of reading its operands and writing its
    result. Five operators on one tensor move it ten times through memory, a fused kernel
    twice.

    ## Example

    ```python
    def activation(x):
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))
    ```

    ## Use instead

    ```python
    def activation(x):
        return torch.nn.functional.gelu(x, approximate="tanh")  # or torch.compile(activation)
    ```
    """
    span = sum(end - begin for begin, end in spans_of(trace).values())
    kernels = trace.selection & trace.is_kind(Kind.KERNEL)
    kernels &= trace.names_where(_KERNEL.match)
    if trace.dur[kernels].sum() < share * span:
        return NO_MATCHES
    chains = _chains(trace, bytes)
    costs = [_cost_ns(trace, one) for one in chains]
    if sum(costs) < max(share * span, 1):
        return NO_MATCHES
    names = [[trace.names[n][6:] for n in trace.name[one.call].tolist()] for one in chains]
    launched = [launched_at(trace, one.kernel) for one in chains]
    return Matches(
        np.array([one.call[0] for one in chains], np.int64),
        [
            f"{len(some)} kernels ({', '.join(some)}) pass on {[*one.shape]}"
            for one, some in zip(chains, names, strict=True)
        ],
        cost_ns=np.array(costs, np.int64),
        bytes=np.array([one.saved.sum() for one in chains], np.int64),
        fix=[_fix(some) for some in names],
        span_ns=(
            np.array([when[0] for when in launched], np.int64),
            np.array([when[-1] + 1 for when in launched], np.int64),
        ),
        wants_tensors=True,
    )


class _Chain(NamedTuple):
    """Kernels and their operators in order, and the bytes that each moves, -1 if unknown.

    ``saved`` are the bytes that each passes on to the next one, written and read, or only read if
    others need them, too; ``shape`` is that of the largest.
    """

    kernel: Ints
    call: Ints
    moved: Ints
    saved: Ints
    shape: tuple[int, ...]


def _chains(trace: Events, least_bytes: float) -> list[_Chain]:
    """Kernels that follow on each other on a stream, of which each reads what the one before wrote,
    of so many bytes at least.
    """
    work, graph = attribute(trace), dataflow(trace)
    order = np.lexsort((trace.ts[work.event], trace.thread[work.event]))
    event, call, moved = work.event[order], work.call[order], work.bytes[order]
    node, size, reads = graph.node_of(call), len(graph), graph.reads
    at = _pairs(trace, event, call)
    at = at[(node[at] >= 0) & (node[at + 1] >= 0)]
    at = at[followed(trace, event[at]).delays]
    # What the second operator of a pair reads of what the first one wrote.
    pairs = dict(zip((node[at] * size + node[at + 1]).tolist(), at.tolist(), strict=True))
    edges = graph.writer[reads.value] * size + reads.node
    rows = np.flatnonzero(among(edges, [*pairs]))
    read = {pairs[edge]: row for edge, row in zip(edges[rows].tolist(), rows.tolist(), strict=True)}
    at = np.array(sorted(read), np.int64)
    row = np.array([read[one] for one in at.tolist()], np.int64)
    passed = [*map(_tensor, trace.operands(graph.event[reads.node[row]]), reads.argument[row])]
    fine = np.array([one.bytes >= max(least_bytes, 1) for one in passed], bool)
    if not graph.exact:  # rather the same on one tensor after the other
        kind, _, _ = alike(trace.name[call], trace.args[call])
        fine &= kind[at] != kind[at + 1]
        fine[fine] = ~repeats(at[fine], kind[at[fine]], kind[at[fine] + 1])
    at, row, passed = at[fine], row[fine], [*compress(passed, fine)]
    times = [2 - (len(graph.readers_of(value)) > 1) for value in reads.value[row, None]]
    saved = np.array([one.bytes for one in passed], np.int64) * np.array(times, np.int64)
    found = list[_Chain]()
    for some in (
        np.split(np.arange(len(at)), np.flatnonzero(np.diff(at) > 1) + 1) if len(at) else []
    ):
        mine = slice(at[some[0]], at[some[-1]] + 2)
        shape = passed[some[np.argmax(saved[some])]].shape
        found.append(_Chain(event[mine], call[mine], moved[mine], np.append(saved[some], 0), shape))
    return found


def _tensor(args: OpArgs, at: int) -> Tensor:
    """The tensor at this position of a call."""
    shape, dtype = decode_list(args.dims)[at], decode_list(args.types)[at]
    return Tensor(sizes(shape) or (), dtype if dtype in ELEMENT_BYTES else "bool")


def _pairs(trace: Events, event: Ints, call: Ints) -> Ints:
    """Positions of elementwise kernels that, with the next one on their stream, may be of a chain;
    the next one may be a reduction.
    """
    a, b, first, second = event[:-1], event[1:], call[:-1], call[1:]
    pointwise = trace.is_kind(Kind.KERNEL) & trace.names_where(_KERNEL.match)
    writes, reduces = map(trace.names_where, (is_elementwise, REDUCTIONS.__contains__))
    fine = (first >= 0) & (second >= 0) & (first != second) & (trace.thread[a] == trace.thread[b])
    fine &= trace.thread[first] == trace.thread[second]
    fine &= pointwise[a] & writes[first]
    fine &= (pointwise[b] & writes[second]) | ((trace.kind[b] == Kind.KERNEL) & reduces[second])
    # A copy to the same dtype changes the layout.
    layout = are_named(trace, call, "aten::copy_")
    layout[layout] = [
        len({*decode_list(args.types)[:2]}) < 2 for args in trace.operands(call[layout])
    ]
    fine &= ~(layout[:-1] | layout[1:])
    drops, adds = (are_named(trace, call, one) for one in (_DROPOUT, _ADDS))
    fine &= ~((drops[:-1] & adds[1:]) | (adds[:-1] & drops[1:]))
    at = np.flatnonzero(fine)
    return at[~within_named(trace, call[at], _OTHERS)]


def _passed(trace: Events, calls: Ints, arguments: list[int]) -> list[Tensor]:
    """The tensor at this position of each of these calls."""
    found = list[Tensor]()
    for args, at in zip(trace.operands(calls), arguments, strict=True):
        shape, dtype = decode_list(args.dims)[at], decode_list(args.types)[at]
        found.append(Tensor(sizes(shape) or (), dtype if dtype in ELEMENT_BYTES else "bool"))
    return found


def _cost_ns(trace: Events, one: _Chain) -> int:
    """What a fused kernel would save, in ns: see the rule's page."""
    time, less = trace.dur[one.kernel], int(one.saved.sum())
    # A chain whose bytes are unknown in part moves more than it saves.
    share = less / max(int(np.maximum(one.moved, one.saved).sum()), 1)
    cost = min(int(time.sum()) * min(share, 1), int(time.sum() - time.max()))
    device = device_of(trace, int(trace.device[one.kernel[0]]), ())
    return int(cost if device is None else min(cost, less / device.bandwidth_bytes_per_s * 1e9))


def _fix(names: Sequence[str]) -> str:
    """What does the same in one kernel, if torch has it."""
    there = set(names)
    forms = [form for parts, form in _FUSED if parts <= there]
    forms += [form for parts, form in _FUSED_PAIRS if parts == there]
    known = next(iter(forms), None)
    return _COMPILE if known is None else f"{known}; or {_COMPILE}"
