"""A rule about biases that a norm subtracts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import is_trifle, shapes
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, are_named, operators_named, selected_operators
from pytest_torchprof.trace.tree import backward_of, compiled, marked
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.dataflow import Dataflow

_LAYER: Final = Names(r"aten::(conv([123]d|_transpose[123]d)|_?convolution|linear)(\.\w+)?$")
_NORM: Final = Names(
    r"aten::(batch_norm|_batch_norm_impl_index|_?native_batch_norm(_legit)?|cudnn_batch_norm"
    r"|miopen_batch_norm|_batch_norm_with_update|batch_norm_stats|instance_norm)$|SyncBatchNorm$"
)
#: These have no training flag: they always train.
_ALWAYS_TRAINS: Final = Names(r"aten::(_batch_norm_with_update|batch_norm_stats)$|SyncBatch")
_NORM_KERNEL: Final = late(r"batch_?norm|bn_fw|bn_bw", re.IGNORECASE)


@rule(
    "conv-bias-batchnorm",
    fix="give the layer before the norm bias=False: the norm subtracts it with the mean",
    triggers={_NORM.pattern: 1, _LAYER.pattern: 1},
    needs="shapes",
    blind=lambda trace: blind_kernels(trace, _NORM_KERNEL.search),  # the layers are unknown, too
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
    else takes too, a bias that is also used without a norm, and on a CPU layers that are less than
    `cpu_share` (0.01) of the test's operators. A stored trace is judged by shapes, and says nothing
    in doubt.

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
    layers, norms = (_outermost(trace, one) for one in (_LAYER, _NORM))
    layers = layers[trace.selection[layers] & ~compiled(trace, layers)]
    biases = [(*dims, None, None, None)[2] for dims in shapes(trace, layers)]
    channels = {row: bias for row, bias in zip(layers.tolist(), biases, strict=True) if bias}
    norms = norms[_train(trace, norms)]
    if not len(norms) or is_trifle(trace, len(channels), cpu_share):
        return NO_MATCHES
    graph, biased = dataflow(trace), np.array([*channels], np.int64)
    values = graph.values(norms)
    norms, values = norms[values >= 0], values[values >= 0]
    sources = nesting.nearest(marked(trace, biased), trace.parent, graph.writer_of(values))
    found = dict[int, int]()
    inputs = ((*dims, None)[0] or () for dims in shapes(trace, norms))
    alone = _take_alone(trace, graph, norms, values).tolist()
    for layer, norm, one, shape in zip(
        sources.tolist(), norms.tolist(), alone, inputs, strict=True
    ):
        known = layer >= 0 and shape[1:2] == channels[layer]
        linear = trace.names[trace.name[layer]].startswith("aten::linear")
        if known and one and not (linear and len(shape) > 2):
            found[layer] = norm
    if trace.tensors is not None:  # such as an encoder of two inputs, of which one is normalized
        weights = dict(zip(layers.tolist(), graph.values(layers, 2).tolist(), strict=True))
        others = {weights[row] for row in channels.keys() - found.keys()}
        found = {row: norm for row, norm in found.items() if weights[row] not in others}
    if is_trifle(trace, len(found), cpu_share) or not found:
        return NONE_SO_FAR
    rows, after = np.array(sorted(found.items()), np.int64).T
    instance = are_named(trace, after, "aten::instance_norm")
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    return Matches(
        rows,
        [
            f"{name} adds a bias of {channels[row][0]} channels before {'an' if one else 'a'} "
            f"{'instance' if one else 'batch'} norm"
            for name, row, one in zip(names, rows.tolist(), instance, strict=True)
        ],
        cost_ns=np.full(len(rows), -1, np.int64),
        span_ns=(trace.ts[rows], trace.ts[rows] + trace.dur[rows]),
        wants_tensors=True,
    )


def _outermost(trace: Events, names: Names) -> Ints:
    """The operators of these names that no other of them encloses."""
    rows = operators_named(trace, names)
    return rows[~nesting.below(marked(trace, rows), trace.parent, rows)]


def _train(trace: Events, norms: Ints) -> Bools:
    """Which norms use the statistics of what they normalize."""
    flags = [
        [part for part in decode_part(args.concrete) or [] if part in {"True", "False"}]
        for args in trace.operands(norms)
    ]
    found: Bools = np.array([one[:1] == ["True"] for one in flags], bool)
    found |= are_named(trace, norms, _ALWAYS_TRAINS)
    return found


def _take_alone(trace: Events, graph: Dataflow, norms: Ints, values: Ints) -> Bools:
    """Which norms are all that reads their value in a forward pass; False in doubt."""
    reads = graph.reads.where(~graph.backward[graph.reads.node])
    if graph.exact:
        owner = np.full(int(values.max(initial=-1)) + 1, -1)
        owner[values] = norms
        reads = reads.where(reads.value < len(owner))
        around = nesting.nearest(marked(trace, norms), trace.parent, graph.event[reads.node])
        other = (owner[reads.value] >= 0) & (around != owner[reads.value])
        return ~nesting.among(values, reads.value[other])
    # Gradients of several readers are added up; without any, what takes two tensors that look like
    # this one may take it, too.
    steps = backward_of(trace, norms)
    added = marked(trace, trace.parent[selected_operators(trace, "aten::add", "aten::add_")])
    found: Bools = ~added[steps]
    for at in np.flatnonzero(steps < 0).tolist():
        alike = (reads.tensor == graph.tensor[values[at]]) & (graph.event[reads.node] > norms[at])
        node = np.sort(reads.node[alike])
        found[at] = not (node[1:] == node[:-1]).any()
    return found
