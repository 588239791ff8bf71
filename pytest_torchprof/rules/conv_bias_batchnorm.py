"""Rules about layers that do not go together."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import blind_kernels, slowdown_share
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.evidence.calls import called, estimated_cpu_ns, guessed, shapes
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.arguments import AutogradArgs, decode, decode_part
from pytest_torchprof.trace.names import (
    OPERATOR,
    Kind,
    Names,
    are_named,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import compiled, operators_around, parents, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_CONVOLUTION: Final = Names(r"aten::(conv([123]d|_transpose[123]d)|_?convolution|linear)(\.\w+)?$")
_LINEAR: Final = "aten::linear"
_NORM: Final = Names(
    r"aten::(batch_norm|_batch_norm_impl_index|_?native_batch_norm(_legit)?|cudnn_batch_norm"
    r"|miopen_batch_norm|_batch_norm_with_update|batch_norm_stats|instance_norm)$|SyncBatchNorm$"
)
#: A batch norm of each sample alone, which calls one.
_INSTANCE: Final = "aten::instance_norm"
_BATCH: Final = Names(r"aten::batch_norm$")
#: These have no training flag: they always train.
_ALWAYS_TRAINS: Final = late(r"aten::(_batch_norm_with_update|batch_norm_stats)$|SyncBatch")
_NORM_STEP: Final = Names(r"autograd::engine::evaluate_function: \w*BatchNorm\w*$")
#: A ``BatchNorm`` module counts its batches with these, between the two, only in training.
_COUNTER: Final = Names(r"aten::add_?$")
#: It then reads their number for a plain average over them (``momentum=None``).
_READ: Final = Names(r"aten::item$")
#: The cost of a bias: to add it, and with a backward pass, to sum and keep its gradient; and for
#: each element of the result. Measured with torch 2.13 on one CPU thread, alternating with and
#: without: 8 to 10 us for linear layers, 9 to 17 us for convolutions of 1 x 1, and 19 to 30 us for
#: 3 x 3, of 128 to 520,000 elements; beyond caches, 0.2 to 0.5 ns for each element.
_FORWARD_NS, _LINEAR_NS, _ELEMENT_NS = 2_000, 9_500, 0.03
_BACKWARD_NS, _WIDE_BACKWARD_NS = 16_000, 23_000
_CACHED, _UNCACHED_NS = 2**19, 0.4
#: On a device, this fraction of the convolution's own time.
_PART: Final = 20


_NORM_KERNEL: Final = late(r"batch_?norm|bn_fw|bn_bw", re.IGNORECASE)


def _unseen_norms(trace: Events) -> Reason | None:
    """Batch norms that graphs launched: the operators before them are unknown; or the share of
    biases is a guess.
    """
    return blind_kernels(trace, _NORM_KERNEL.search) or guessed(trace, _NORM)


@rule(
    "conv-bias-batchnorm",
    fix="give the layer before the norm bias=False: the norm subtracts it with the mean",
    triggers={_NORM.pattern: 1, _CONVOLUTION.pattern: 1},
    needs="shapes",
    blind=_unseen_norms,
    sees_host=True,
    cpu_share=Threshold(
        0.01, "1", "in whole models on a CPU, no difference was measured without such biases"
    ),
)
def conv_bias_batchnorm(trace: Events, *, cpu_share: float) -> Matches:
    """A convolution adds a bias that the batch or instance norm after it subtracts right away.

    ## What it does

    Counts convolutions and linear layers with a bias whose result goes directly into a training
    batch norm, and nowhere else; and convolutions before an instance norm that uses the statistics
    of each sample. The place is the line that calls the layer, and the module is the layer.

    Not counted: norms in evaluation or with running statistics, group norms, results that something
    else takes too, and on a CPU biases that take less than `cpu_share` (0.01) of the test, decided
    by counts. A stored trace is judged by shapes, and says nothing in doubt.

    ## Why it is slow

    These norms subtract the mean of each channel, and with it the bias: adding it, its
    gradient, and its optimizer state are wasted.

    ## Example

    ```python
    nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
    ```

    ## Use instead

    ```python
    nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64))
    ```
    """

    def are_convolutions(events: Ints) -> Bools:
        operator: Bools = trace.kind[events] == OPERATOR
        return operator & are_named(trace, events, _CONVOLUTION)

    norms = operators_named(trace, _NORM)
    convolutions = operators_named(trace, _CONVOLUTION)
    convolutions = convolutions[trace.selection[convolutions]]
    convolutions = convolutions[~within(trace, convolutions, are_convolutions)]
    convolutions = convolutions[~compiled(trace, convolutions)]
    if not len(norms) or not len(convolutions):
        return NO_MATCHES
    after = _next_call(trace, convolutions)
    counts = are_named(trace, after, _COUNTER)
    counts[counts] = [_is_count(args) for args in trace.operands(after[counts])]
    norm = after.copy()
    norm[counts] = _next_call(trace, after[counts])
    reads = counts & are_named(trace, norm, _READ)
    norm[reads] = _next_call(trace, norm[reads])
    pairs = np.flatnonzero((norm >= 0) & among(norm, norms))
    events, messages, following, results = [], [], [], []
    wide, narrow = trace.operands(convolutions[pairs]), trace.operands(norm[pairs])
    for at, conv, bn in zip(pairs.tolist(), wide, narrow, strict=True):
        row, channels = int(convolutions[at]), _bias(conv)
        name = trace.names[trace.name[row]]
        trains = _trains(trace.names[trace.name[norm[at]]], bn, counted=bool(counts[at]))
        if channels and trains and _fits(name, conv, bn, channels):
            events.append(row)
            kind = "an instance" if _is_instance(trace, norm[at]) else "a batch"
            messages.append(f"{name} adds a bias of {channels} channels before {kind} norm")
            following.append(int(norm[at]))
            results.append(_first(decode_part(bn.dims)))
    if not events:
        return NO_MATCHES
    rows, after = np.array(events, np.int64), np.array(following, np.int64)
    first, kernel_ns = launched_in(trace, rows)
    on_cpu = first < 0
    estimated_ns = _estimated_ns(trace, rows, after, results)
    least_ns = cpu_share * estimated_cpu_ns(trace) if on_cpu.all() else 0.0
    if estimated_ns.sum() < least_ns:
        return NO_MATCHES
    own = _alone(trace, rows, after, results)
    own &= ~_needed_elsewhere(trace, rows, np.delete(convolutions, pairs))
    if estimated_ns[own].sum() < least_ns:
        return NONE_SO_FAR
    # Like other costs, in this run's time, which includes the profiler.
    cost_ns = np.where(on_cpu, estimated_ns / slowdown_share(trace), kernel_ns // _PART)
    rows = rows[own]
    messages = [messages[at] for at in np.flatnonzero(own).tolist()]
    ends = trace.ts[rows] + trace.dur[rows]
    return Matches(
        rows,
        messages,
        cost_ns=cost_ns[own].astype(np.int64),
        span_ns=(trace.ts[rows], ends),
        wants_tensors=True,
    )


def _estimated_ns(
    trace: Events, layers: Ints, norms: Ints, results: Sequence[list[int]]
) -> npt.NDArray[np.float64]:
    """What the bias of each layer before these norms takes on a CPU without the profiler."""
    elements = np.array([math.prod(shape) for shape in results], np.int64)
    weights = (one[1] for one in shapes(trace, layers))
    wide = [weight is not None and math.prod(weight[2:]) > 1 for weight in weights]
    backward_ns = np.where(wide, _WIDE_BACKWARD_NS, _BACKWARD_NS)
    backward_ns[are_named(trace, layers, _LINEAR)] = _LINEAR_NS
    ns = np.where(_backward_of(trace, norms) >= 0, backward_ns, _FORWARD_NS)
    uncached_ns = _UNCACHED_NS * np.maximum(elements - _CACHED, 0)
    return np.asarray(ns + _ELEMENT_NS * elements + uncached_ns)


def _alone(trace: Events, layers: Ints, norms: Ints, results: Sequence[list[int]]) -> Bools:
    """Which norms take the layer's result as its only users."""
    made = trace.made(layers) or [frozenset[int]()] * len(layers)
    takes = trace.taken(norms) or [()] * len(norms)
    inputs = [one[0] if one and isinstance(one[0], int) else -1 for one in takes]
    unknown = np.array(inputs, np.int64) < 0  # torch.func wraps tensors, which hides their identity
    users = set[int]() if trace.tensors is None else _users(trace, layers, norms, results)
    own = np.array([n in new and n not in users for n, new in zip(inputs, made, strict=True)], bool)
    if unknown.any():
        some = [results[at] for at in np.flatnonzero(unknown).tolist()]
        others = _may_have_others(trace, norms[unknown], some)
        own[unknown] = ~_takes_another(trace, layers[unknown], norms[unknown]) & ~others
    return own


def _needed_elsewhere(trace: Events, layers: Ints, others: Ints) -> Bools:
    """Layers whose bias is also used by another of these calls, without a norm to subtract it."""
    others = others[among(trace.name[others], trace.name[layers])]
    elsewhere = {one[2] for one in trace.taken(others) or [] if len(one) > 2} - {-1}
    takes = trace.taken(layers) or [()] * len(layers)
    return np.array([len(one) > 2 and one[2] in elsewhere for one in takes], bool)


def _users(trace: Events, layers: Ints, norms: Ints, results: Sequence[list[int]]) -> set[int]:
    """The tensors of such shapes that anything other than these norms takes."""
    rows = np.flatnonzero(called(trace))
    rows = rows[(rows > layers.min()) & ~among(rows, norms)]
    texts = {str(shape).replace(" ", "").encode() for shape in results}
    dims = [bytes(args.dims).replace(b" ", b"") for args in trace.operands(rows)]
    rows = rows[[any(text in one for text in texts) for one in dims]]
    found = set[int]()
    for one in trace.taken(rows) or []:
        for argument in one:
            found.update((argument,) if isinstance(argument, int) else argument)
    return found


def _may_have_others(trace: Events, norms: Ints, results: Sequence[list[int]]) -> Bools:
    """Which results may have other users: judged by their gradients, else by shapes."""
    back = _backward_of(trace, norms)
    adds = selected_operators(trace, "aten::add", "aten::add_")
    added = set(trace.parent[adds].tolist())
    later = _joining(trace, norms) if (back < 0).any() else []
    return np.array(
        [
            step in added if step >= 0 else any(at > norm and shape in dims for at, dims in later)
            for norm, step, shape in zip(norms.tolist(), back.tolist(), results, strict=True)
        ],
        bool,
    )


def _backward_of(trace: Events, norms: Ints) -> Ints:
    """The autograd engine's step that computes each norm's gradient, or -1."""
    steps = operators_named(trace, _NORM_STEP)
    numbers = [args.sequence for args in decode(AutogradArgs, trace.args[steps])]
    known = dict(zip(numbers, steps.tolist(), strict=True))
    recorded = norms.copy()
    instances = np.array([_is_instance(trace, row) for row in norms], bool)
    if instances.any():
        inner = np.append(operators_named(trace, _BATCH), norms[instances].max())
        recorded[instances] = inner[np.searchsorted(inner, norms[instances])]
    mine = [args.sequence for args in decode(AutogradArgs, trace.args[recorded])]
    return np.array([known.get(n, -1) if n >= 0 else -1 for n in mine], np.int64)


def _is_instance(trace: Events, row: int) -> bool:
    """Whether it is an instance norm."""
    return bool(trace.names[trace.name[row]] == _INSTANCE)


def _joining(trace: Events, norms: Ints) -> list[tuple[int, list[Any]]]:
    """Calls after the first norm, except layers, that take two or more tensors; with shapes."""
    rows = np.flatnonzero(called(trace))
    rows = rows[(rows > norms.min()) & ~are_named(trace, rows, _CONVOLUTION, _NORM)]
    found = []
    for row, args in zip(rows.tolist(), trace.operands(rows), strict=True):
        dims = decode_part(args.dims) or []
        flat = [one for part in dims for one in (part if _is_list(part) else [part])]
        if sum(bool(one) for one in flat) > 1:
            found.append((row, flat))
    return found


def _is_list(dims: Any) -> bool:
    """Whether these are the shapes of a list of tensors."""
    return bool(dims) and isinstance(dims[0], list)


def _takes_another(trace: Events, convolutions: Ints, norms: Ints) -> Bools:
    """Which norms take a tensor without a gradient, although the convolution's result has one.

    Their backward pass omits the gradient of the input.
    """
    backs = selected_operators(trace, "aten::native_batch_norm_backward") if len(norms) else norms
    masks = [(decode_part(args.concrete) or [""])[-1] for args in trace.operands(backs)]
    nodes = trace.parent[backs[[mask.startswith("[False") for mask in masks]]]
    constant = {args.sequence for args in decode(AutogradArgs, trace.args[nodes[nodes >= 0]])}
    # A convolution that made a node of the graph: the next one has another number.
    before, after = (decode(AutogradArgs, trace.args[rows]) for rows in (convolutions, norms))
    pairs = ((a.sequence, b.sequence) for a, b in zip(before, after, strict=True))
    return np.array([0 <= a < b and b in constant for a, b in pairs], bool)


def _next_call(trace: Events, rows: Ints) -> Ints:
    """The operator that the same code calls next, on the same thread; -1 for none."""
    thread, enclosing = trace.thread, operators_around(trace, parents(trace, rows))
    ops = np.flatnonzero(trace.is_kind(Kind.OP))
    end = trace.ts[rows] + trace.dur[rows]
    found = np.full(len(rows), -1, np.int64)
    # Usually the next one that begins after the end, except if that is on another thread.
    at = np.searchsorted(trace.ts[ops], end)
    todo = np.arange(len(rows))
    while len(todo := todo[at[todo] < len(ops)]):
        there = ops[at[todo]]
        hit = thread[there] == thread[rows[todo]]
        found[todo[hit]] = there[hit]
        todo = todo[~hit]
        at[todo] += 1
    known = np.flatnonzero(found >= 0)
    found[known[operators_around(trace, parents(trace, found[known])) != enclosing[known]]] = -1
    return found


def _is_count(args: OpArgs) -> bool:
    """Whether it is an addition to a single number, such as a count of batches."""
    dims, types = decode_part(args.dims), decode_part(args.types)
    return bool(dims) and dims[0] == [] and (not types or types[0].startswith("long"))


def _bias(conv: OpArgs) -> int:
    """Channels of the convolution's bias; 0 if it has none."""
    dims = decode_part(conv.dims) or []
    bias = dims[2] if len(dims) > 2 else []
    return bias[0] if len(bias) == 1 and isinstance(bias[0], int) else 0


def _trains(name: str, norm: OpArgs, *, counted: bool) -> bool:
    if _ALWAYS_TRAINS.match(name):
        return True
    flags = [part for part in decode_part(norm.concrete) or [] if part in {"True", "False"}]
    return flags[0] == "True" if flags else counted


def _fits(name: str, conv: OpArgs, norm: OpArgs, channels: int) -> bool:
    """Whether the norm's input has the shape of the layer's result."""
    source, result = (_first(decode_part(args.dims)) for args in (conv, norm))
    if len(source) != len(result) or len(result) < 2:
        return False
    if [result[0], result[1]] != [source[0], channels]:
        return False
    if name == _LINEAR:
        return len(source) == 2
    size = None if "transpose" in name else _size(conv, source)
    return size is None or size == result[2:]


def _first(dims: Any) -> list[int]:
    found = dims[0] if dims else []
    return found if all(isinstance(n, int) for n in found) else []


def _size(conv: OpArgs, source: list[int]) -> list[int] | None:
    """Height, width … of a convolution's result; None if the trace lacks any of it."""
    concrete = decode_part(conv.concrete) or []
    parts = [decode_part(part.encode()) for part in concrete[3:6]]
    kernel = (decode_part(conv.dims) or [[], []])[1][2:]
    known = len(parts) == 3 and all(isinstance(p, list) and len(p) == len(kernel) for p in parts)
    if not known or "True" in concrete[6:7]:  # of aten::convolution: transposed
        return None
    rows = zip(source[2:], kernel, *parts, strict=True)
    return [(n + 2 * pad - step * (k - 1) - 1) // stride + 1 for n, k, stride, pad, step in rows]
