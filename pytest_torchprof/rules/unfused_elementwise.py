"""The rule about elementwise kernels that one kernel could replace."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.attribution import attribute, followed, launched_at
from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.kernels import device_of
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.arguments import alike, decode_list
from pytest_torchprof.trace.names import Kind, Names, are_named
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import within_named
from pytest_torchprof.work.bytes import REDUCTIONS, is_elementwise
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.core.unknown import Reason
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
#: Operators of a chain, in any order, and what does the same in one kernel: beside others, but for
#: the simple ones.
_SIMPLE: Final = {"mul", "add", "mul_", "add_"}
_FUSED: Final = (
    ({"pow", "tanh", "mul"}, 'torch.nn.functional.gelu(x, approximate="tanh")'),
    ({"erf", "mul"}, "torch.nn.functional.gelu(x)"),
    ({"sigmoid", "mul"}, "torch.nn.functional.silu(x) or glu(x)"),
    ({"copy_", "pow"}, "torch.nn.functional.rms_norm"),
    ({"sub", "pow"}, "torch.nn.functional.layer_norm, or torch.var_mean"),
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

    Not counted: compiled code, Triton kernels, an optimizer's step, dropout and the sum after it,
    and what a CUDA graph launched. A stored trace tells tensors apart by size and dtype alone.
    Times decide here, so the matches may change with the machine.

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
    work = attribute(trace)
    order = np.lexsort((trace.ts[work.event], trace.thread[work.event]))
    event, call, moved = work.event[order], work.call[order], work.bytes[order]
    passed = _passed(trace, event, call, bytes)
    found: list[tuple[Any, ...]] = []
    for chain in _chains(trace, call, sorted(passed)):
        mine = slice(chain[0], chain[-1] + 2)
        saved = np.array([*(passed[one][0] for one in chain), 0], np.int64)
        names = [trace.names[number][6:] for number in trace.name[call[mine]].tolist()]
        shape = [*max(passed[one] for one in chain)[1]]
        text = f"{len(names)} kernels ({', '.join(names)}) pass on {shape}"
        begin, *_, end = launched_at(trace, event[mine])
        cost = _cost_ns(trace, event[mine], moved[mine], saved)
        found.append((text, _fix(names), call[chain[0]], cost, saved.sum(), begin, end + 1))
    if sum(cost for _, _, _, cost, *_ in found) < max(share * span, 1):
        return NO_MATCHES
    texts, fixes, *columns = zip(*found, strict=True)
    rows, costs, total, begins, ends = np.array(columns, np.int64)
    return Matches(
        rows, texts, cost_ns=costs, bytes=total, fix=fixes, span_ns=(begins, ends),
        wants_tensors=True,
    )  # fmt: skip


def _passed(
    trace: Events, event: Ints, call: Ints, least_bytes: float
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """What each of these kernels passes on to the next one on its stream, by its position: the
    bytes that need not be written and read, or only read if others need them; and the shape.
    """
    graph = dataflow(trace)
    node, size, reads = graph.node_of(call), len(graph), graph.reads
    at = _pairs(trace, event, call)
    at = at[(node[at] >= 0) & (node[at + 1] >= 0)]
    at = at[followed(trace, event[at]).delays]
    pairs = dict(zip((node[at] * size + node[at + 1]).tolist(), at.tolist(), strict=True))
    edges = graph.writer[reads.value] * size + reads.node
    rows = np.flatnonzero(among(edges, [*pairs]))
    found = dict[int, tuple[int, tuple[int, ...]]]()
    mine = among(reads.value, reads.value[rows])
    readers = distinct(reads.value[mine] * size + reads.node[mine]) // size
    low, high = (readers.searchsorted(reads.value[rows], side) for side in ("left", "right"))
    every = trace.operands(graph.event[reads.node[rows]])
    for row, args, others in zip(rows.tolist(), every, (high - low > 1).tolist(), strict=True):
        argument = reads.argument[row]
        shape = sizes(decode_list(args.dims)[argument]) or ()
        number = prod(shape) * ELEMENT_BYTES.get(decode_list(args.types)[argument], 1)
        if number >= max(least_bytes, 1):
            found[pairs[int(edges[row])]] = number * (1 if others else 2), shape
    return found


def _chains(trace: Events, call: Ints, links: list[int]) -> list[list[int]]:
    """Links that follow on each other. In a possible graph, a call like an earlier one of a chain
    is rather on the next tensor.
    """
    exact, at = dataflow(trace).exact, np.array(links, np.int64)
    at = distinct(np.concatenate([at, at + 1]))
    kinds, _, _ = alike(trace.name[call[at]], trace.args[call[at]])
    kind = dict(zip(at.tolist(), kinds.tolist(), strict=True))
    chains, seen = list[list[int]](), set[int]()
    for one in links:
        follows = bool(chains) and chains[-1][-1] == one - 1
        seen = seen if follows else {kind[one]}
        if exact or kind[one + 1] not in seen:
            seen.add(kind[one + 1])
            chains[-1].append(one) if follows else chains.append([one])
    return chains


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
    types = [decode_list(args.types)[:2] for args in trace.operands(call[layout])]
    layout[layout] = [len({*one}) < 2 for one in types]
    fine &= ~(layout[:-1] | layout[1:])
    drops, adds = (are_named(trace, call, one) for one in (_DROPOUT, _ADDS))
    fine &= ~((drops[:-1] & adds[1:]) | (adds[:-1] & drops[1:]))
    at = np.flatnonzero(fine)
    return at[~within_named(trace, call[at], _OTHERS)]


def _cost_ns(trace: Events, kernel: Ints, moved: Ints, saved: Ints) -> int:
    """What a fused kernel would save of a chain, in ns: see the rule's page."""
    time, less = trace.dur[kernel], int(saved.sum())
    # A chain whose bytes are unknown in part moves more than it saves.
    share = less / max(int(np.maximum(moved, saved).sum()), 1)
    cost = min(int(time.sum()) * min(share, 1), int(time.sum() - time.max()))
    device = device_of(trace, int(trace.device[kernel[0]]), ())
    return int(cost if device is None else min(cost, less / device.bandwidth_bytes_per_s * 1e9))


def _fix(names: Sequence[str]) -> str:
    """What does the same in one kernel, if torch has it."""
    there = {*names}
    forms = [
        form for parts, form in _FUSED
        if parts == there or (parts <= there and not parts <= _SIMPLE)
    ]  # fmt: skip
    return f"{forms[0]}; or {_COMPILE}" if forms else _COMPILE
