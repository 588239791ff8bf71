"""A rule about models that predict in training mode."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.calls import LAYER, own_tensors
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.names import Names, are_named, marks_named
from pytest_torchprof.trace.tree import BACKWARD, forward_calls, recorded
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_NORM: Final = Names(r"aten::batch_norm$")
_DROPOUT: Final = Names(r"aten::(feature_|alpha_|feature_alpha_)?dropout_?$")
_TRAINS: Final = Names(rf"{BACKWARD}|Optimizer\.")


@rule(
    "train-mode-inference",
    fix="call model.eval() before, and model.train() before the next training step",
    triggers=f"{_NORM.pattern}|{_DROPOUT.pattern}",
    repeats=Threshold(3, "1", "one or two passes may be meant, such as a check of the mode"),
)
def train_mode_inference(trace: Events, *, repeats: float) -> Matches:
    """A model predicts in training mode: with dropout, or with the batch's own statistics.

    ## What it does

    Counts stretches without a backward pass in which a module is called `repeats` (3) times or more
    without recording a graph, while its dropout is active, or its batch norms update their
    statistics. The place is the line around all of the calls. Only live tests are checked.

    Not counted: calls on one input, which sample a model's uncertainty; without dropout, calls
    whose results nothing reads, as these may be there for the statistics; calls between training
    steps, as of a teacher; what records a graph, see `missing-no-grad`.

    ## Why it is slow

    The results are wrong first of all: they depend on chance, or on the other samples of the batch.
    Dropout draws a random number for each element, and a batch norm reads its input once more. The
    cost is the time of the dropouts, and unknown for batch norms.

    ## Example

    ```python
    with torch.inference_mode():
        for batch in loader:
            predictions.append(model(batch).argmax(1))
    ```

    ## Use instead

    ```python
    model.eval()
    with torch.inference_mode():
        for batch in loader:
            predictions.append(model(batch).argmax(1))
    ```
    """
    if trace.tensors is None and not trace.could_know_tensors:
        return NO_MATCHES
    rows = forward_calls(trace)
    rows = np.sort(rows[trace.selection[rows]])
    rows = rows[~nesting.among(rows, recorded(trace).rows)]
    drops = _active(trace, rows[are_named(trace, rows, _DROPOUT)], 2)
    norms = _active(trace, rows[are_named(trace, rows, _NORM)], 5)
    if len(drops) + len(norms) < repeats:
        return NO_MATCHES
    if trace.tensors is None:
        return NONE_SO_FAR
    layers, known = rows[are_named(trace, rows, LAYER)], trace.module_calls
    if known is not None:
        layers = layers[nesting.among(known[layers], known[np.concatenate([drops, norms])])]
        layers = layers[known[layers] >= 0]
    part = np.searchsorted(marks_named(trace, _TRAINS), layers).tolist()
    calls = (layers if known is None else known[layers]).tolist()
    passes = defaultdict[tuple[int, object], dict[int, int]](dict)
    each = zip(layers.tolist(), part, own_tensors(trace, layers), calls, strict=True)
    for row, number, owns, call in each:
        for own in owns:
            passes[number, own].setdefault(call, row)
    found: list[Ints] = []
    for number in dict.fromkeys(part):
        mine = max((one for at, one in passes.items() if at[0] == number), key=len, default={})
        inside = nesting.among(calls, [*mine]) & (np.array(part) == number)
        begin, end = layers[inside][[0, -1]]
        drawn = drops[(drops > begin) & (drops < end)]
        again = dataflow(trace).again(np.array([*mine.values()], np.int64))
        if len(mine) < repeats or (len(drawn) and len(nesting.distinct(again)) < len(mine)):
            continue
        if len(drawn) or known is None or _are_read(trace, known, [*mine]):
            found.append(layers[inside])
    rows = np.array([one[0] for one in found], np.int64)
    last = np.array([one[-1] for one in found], np.int64)
    begin, end = trace.ts[rows], trace.ts[last] + trace.dur[last]
    at = trace.ts[drops]
    cost = [trace.dur[drops[(at > a) & (at < b)]].sum() for a, b in zip(begin, end, strict=True)]
    return Matches(
        rows,
        "a module in training mode is called again and again without a backward pass",
        cost_ns=np.array([one or -1 for one in cost], np.int64),
        span_ns=(begin, end),
        parts=found,
        wants_module_calls=bool(found),
    )


def _active(trace: Events, rows: Ints, flag: int) -> Ints:
    """Those of these calls whose argument at this position says that they train."""
    known = [decode_part(args.concrete) or [] for args in trace.operands(rows)]
    return rows[[one[flag : flag + 1] == ["True"] and one[1] != "0." for one in known]]


def _are_read(trace: Events, known: Ints, calls: list[int]) -> bool:
    """Whether something outside of these modules' calls reads what they leave."""
    graph = dataflow(trace)
    inside = nesting.among(known[graph.event], calls)
    readers = graph.readers_of(graph.writes.where(inside[graph.writes.node]).value)
    return not nesting.among(known[readers], calls).all()
