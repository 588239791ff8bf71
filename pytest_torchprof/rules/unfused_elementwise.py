"""The rule about elementwise kernels that one kernel could replace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import launched_at
from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.kernels import device_of
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.rules.evidence.attention import POINTWISE_KERNEL, pointwise_chains
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.trace.nesting import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

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
    return blind_kernels(trace, POINTWISE_KERNEL.search)


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
        return torch.nn.functional.gelu(x, approximate="tanh")
    ```

    Or, for any such function:

    ```python
    activation = torch.compile(activation)
    ```
    """
    span = sum(end - begin for begin, end in spans_of(trace).values())
    kernels = trace.selection & trace.is_kind(Kind.KERNEL)
    kernels &= trace.names_where(POINTWISE_KERNEL.search)
    if trace.dur[kernels].sum() < share * span:
        return NO_MATCHES
    chains = pointwise_chains(trace, bytes)
    if not len(chains.kernel):
        return NO_MATCHES
    cost = _costs_ns(trace, chains.kernel, chains.chain, chains.saved, chains.bytes)
    if cost.sum() < max(share * span, 1):
        return NO_MATCHES
    starts = np.flatnonzero(np.diff(chains.chain, prepend=-1))
    stops = np.append(starts[1:], len(chains.chain))
    names = [trace.names[n].removeprefix("aten::") for n in trace.name[chains.call].tolist()]
    messages, fixes = list[str](), list[str]()
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        mine = names[start:stop]
        largest = start + int(np.argmax(chains.saved[start:stop]))
        shape = list(chains.shape[largest] or ())
        messages.append(f"{stop - start} kernels ({', '.join(mine)}) pass on {shape}")
        fixes.append(_fix(mine))
    launched = launched_at(trace, chains.kernel)
    return Matches(
        chains.call[starts],
        messages,
        cost_ns=cost,
        bytes=np.add.reduceat(chains.saved, starts),
        fix=fixes,
        span_ns=(launched[starts], launched[stops - 1] + 1),
        wants_tensors=True,
    )


def _costs_ns(trace: Events, kernel: Ints, chain: Ints, saved: Ints, moved: Ints) -> Ints:
    """What a fused kernel would save of each chain, in ns: see the rule's page."""
    time = trace.dur[kernel]
    total = np.bincount(chain, time)
    longest = np.zeros(len(total), np.int64)
    np.maximum.at(longest, chain, time)
    less = np.bincount(chain, saved)
    # A chain whose bytes are unknown in part moves more than it saves.
    whole = np.maximum(np.bincount(chain, np.maximum(moved, saved)), 1)
    cost = np.minimum(total * np.minimum(less / whole, 1), total - longest)
    for number in distinct(trace.device[kernel]).tolist():
        device = device_of(trace, number, ())
        mine = distinct(chain[trace.device[kernel] == number])
        if device is not None:
            cost[mine] = np.minimum(cost[mine], less[mine] / device.bandwidth_bytes_per_s * 1e9)
    out: Ints = cost.astype(np.int64)
    return out


def _fix(names: Sequence[str]) -> str:
    """What does the same in one kernel, if torch has it."""
    there = set(names)
    forms = [form for parts, form in _FUSED if parts <= there]
    forms += [form for parts, form in _FUSED_PAIRS if parts == there]
    known = next(iter(forms), None)
    return _COMPILE if known is None else f"{known}; or {_COMPILE}"
