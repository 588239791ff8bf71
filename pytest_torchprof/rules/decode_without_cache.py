"""The rule about models that generate one position after the other."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import took_ns
from pytest_torchprof.rules.calls import is_trifle, sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.trace.tree import calls, engine_steps
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Layers with weights, and attention, which has none.
_LAYER: Final = Names(
    r"aten::(linear|embedding|conv1d|matmul|addmm|mm|lstm|gru|rnn_\w+"
    r"|scaled_dot_product_attention|_transformer_encoder_layer_fwd|_native_multi_head_attention)$"
)
#: Layers that keep a state, so that no position needs the earlier ones again.
_RECURRENT: Final = Names(r"aten::(lstm|gru|rnn_\w+)$")
#: Layers without products: they take little time, and are also used for things other than words.
_LOOKUP: Final = Names(r"aten::(embedding|scaled_dot_product_attention)$")
_JOINS: Final = Names(r"aten::(cat|concat\w*|[hd]stack|copy_|fill_|index_\w+_|scatter_)$")
_MOST_NEW_POSITIONS: Final = 8


@rule(
    "decode-without-cache",
    fix="keep what the layers computed for earlier positions (use_cache=True, a recurrent layer's "
    "state), and give the model only the new one",
    triggers={_LAYER.pattern: "repeats"},
    needs="shapes",
    repeats=Threshold(16, "1", "a short sequence is as fast without a cache"),
    cpu_share=Threshold(0.001, "1", "of all calls of the test on a CPU; fewer do not matter"),
)
def decode_without_cache(trace: Events, *, repeats: float, cpu_share: float) -> Matches:
    """A model generates, and recomputes all earlier positions for each new one.

    ## What it does

    Counts runs of `repeats` (16) steps or more in which the inputs of most layers grow each time by
    the same 1 to 8 positions, and depend on what the step before computed (in a stored trace, if
    something is joined or written in between). The place is the line that calls the model. The cost
    is the share of these layers' time for positions that were computed before.

    Not counted: a window of constant length, a growing batch, steps with a backward pass; positions
    in a Python list; on a CPU, fewer calls than `cpu_share` (0.001) of all that the test makes.

    ## Why it is slow

    Step n does the work for n positions, though all but one were computed before: n²/2 in total.

    ## Example

    ```python
    for _ in range(steps):
        logits = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    ```

    ## Use instead

    ```python
    for _ in range(steps):
        logits, cache = model(token, cache=cache)
        token = logits[:, -1:].argmax(-1)
    ```
    """
    rows = calls(trace)
    rows = rows[trace.selection[rows]]
    layers, joins = (rows[are_named(trace, rows, names)] for names in (_LAYER, _JOINS))
    if min(len(layers), len(joins) + 1) < repeats:
        return NO_MATCHES
    groups = _groups(trace, layers)
    runs = sorted(run for group in groups for run in _growing(group, repeats))
    found: list[tuple[_Run, Ints, Ints]] = []
    for run in runs:
        same = [one for one, *_ in found if trace.thread[one.rows[0]] == trace.thread[run.rows[0]]]
        inside = (joins > run.rows[0]) & (joins < run.rows[-1])
        between = joins[inside & (trace.thread[joins] == trace.thread[run.rows[0]])]
        growing = _computing(trace, groups, runs, run)
        later = not same or run.rows[0] > same[-1].rows[-1]
        if later and len(growing) and _is_decoding(trace, run, between):
            found.append((run, growing, between))
    if not found or is_trifle(trace, sum(len(growing) for _, growing, _ in found), cpu_share):
        return NO_MATCHES
    begin, end = zip(*(around(trace, growing) for _, growing, _ in found), strict=True)
    text = "a model computes {} to {} positions in {} steps, all of them again in each"
    return Matches(
        np.array([run.rows[0] for run, *_ in found], np.int64),
        [text.format(one.lengths[0], one.lengths[-1], len(one.lengths)) for one, *_ in found],
        cost_ns=np.array([_again_ns(trace, run, growing) for run, growing, _ in found], np.int64),
        span_ns=(np.array([*map(np.min, begin)]), np.array([*map(np.max, end)])),
        parts=[growing for _, growing, _ in found],
        in_steps=True,
        apart=np.concatenate([joins for *_, joins in found]),
        wants_tensors=not dataflow(trace).exact,
    )


_Group = list[tuple[int, tuple[int, ...]]]  # the calls of a layer: event, shape of its input


class _Run(NamedTuple):
    """Steps: the first call of a layer in each, how many positions it gets, and all its calls."""

    rows: list[int]
    lengths: list[int]
    calls: list[int]


def _groups(trace: Events, layers: Ints) -> list[_Group]:
    """Calls of each layer of each thread, told apart by names and shapes of weights."""
    found: dict[object, _Group] = defaultdict(list)
    for row, args in zip(layers.tolist(), trace.operands(layers), strict=True):
        name = trace.names[trace.name[row]].removeprefix("aten::")
        weight, at = {"embedding": (0, 1), "addmm": (2, 1)}.get(name, (1, 0))
        dims = [*decode_list(args.dims), [], [], []]
        shape, own = sizes(dims[at]) or (), "" if "attention" in name else str(dims[weight])
        if len(shape) > 1:
            found[int(trace.thread[row]), name, own, len(shape)].append((row, shape))
    return [*found.values()]


def _growing(group: _Group, least: float) -> Iterator[_Run]:
    """Runs of so many steps at least in which its input grows along one axis, by as much each."""
    firsts = [group[0], *(new for old, new in pairwise(group) if new[1] != old[1])]
    start = 0
    more = [tuple(np.subtract(new, old).tolist()) for (_, old), (_, new) in pairwise(firsts)]
    for step, same in groupby(more):
        stop = start + len([*same])
        # Of a batch of samples, the first axis grows; of sequences, it may be the positions.
        fine = np.count_nonzero(step) == 1 and 0 < sum(step) <= _MOST_NEW_POSITIONS
        if fine and (not step[0] or len(step) == 3) and stop + 1 - start >= least:
            some, axis = firsts[start : stop + 1], step.index(sum(step))
            mine = [row for row, _ in group if some[0][0] <= row]
            yield _Run([row for row, _ in some], [shape[axis] for _, shape in some], mine)
        start = stop


def _is_decoding(trace: Events, run: _Run, joins: Ints) -> bool:
    """Whether each step depends on the one before, without a backward pass."""
    graph, steps = dataflow(trace), engine_steps(trace)
    if ((steps > run.rows[0]) & (steps < run.rows[-1])).any():
        return False
    if graph.exact:
        return all(graph.depends(new, on=old) for old, new in pairwise(run.rows))
    return len({*np.searchsorted(run.rows, joins).tolist()}) >= len(run.rows) - 1


def _computing(trace: Events, groups: list[_Group], runs: list[_Run], run: _Run) -> Ints:
    """The layers that compute all positions, but for the last step, whose end is unknown. None if
    they are few: less than half of what each step calls, without a product or a recurrent layer.
    """
    first, last = run.rows[0], run.rows[-1]
    every = [sum(first <= row < last for row, _ in group) for group in groups]
    regular = sum(times for times in every if times >= len(run.rows) - 1)
    grows = np.array(sorted({row for one in runs for row in one.calls}), np.int64)
    grows = grows[(grows >= first) & (grows < last) & (trace.thread[grows] == trace.thread[first])]
    few = 2 * len(grows) < regular and not are_named(trace, grows, _RECURRENT).any()
    found: Ints = grows[:0] if few or are_named(trace, grows, _LOOKUP).all() else grows
    return found


def _again_ns(trace: Events, run: _Run, growing: Ints) -> int:
    """The time of these layers for positions that were computed before."""
    again = np.append(0, np.array(run.lengths[:-1]) / np.array(run.lengths[1:]))
    at = np.searchsorted(run.rows, growing, side="right") - 1
    return int((took_ns(trace, growing) * again[at]).sum())
