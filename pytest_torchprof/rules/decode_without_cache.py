"""The rule about models that generate one position after the other."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.rules.calls import is_trifle, sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.trace.tree import calls, engine_steps
from pytest_torchprof.work.dataflow import dataflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Layers with weights, and attention, which has none.
_LAYER: Final = Names(
    r"aten::(linear|embedding|conv1d|matmul|addmm|mm|lstm|gru|rnn_\w+"
    r"|scaled_dot_product_attention|_transformer_encoder_layer_fwd|_native_multi_head_attention)$"
)
#: Layers that keep a state from position to position, so that none needs the earlier ones again.
_RECURRENT: Final = Names(r"aten::(lstm|gru|rnn_\w+)$")
#: Layers without products: they take little time, and are also used for things other than words.
_LOOKUP: Final = Names(r"aten::(embedding|scaled_dot_product_attention)$")
_JOINS: Final = Names(
    r"aten::(cat|concat\w*|[hd]stack|copy_|fill_|index_put_|index_copy_|scatter_)$"
)
#: The most new positions per step.
_FEW: Final = 8


@rule(
    "decode-without-cache",
    fix="keep what the layers computed for earlier positions (use_cache=True, a cache of keys "
    "and values, the state of a recurrent layer), and give the model only the new position",
    triggers={_LAYER.pattern: "repeats"},
    needs="shapes",
    repeats=Threshold(16, "1", "a short sequence is as fast without a cache"),
    cpu_share=Threshold(0.001, "1", "of all calls of the test on a CPU; fewer do not matter"),
)
def decode_without_cache(trace: Events, *, repeats: float, cpu_share: float) -> Matches:
    """A model generates, and recomputes all earlier positions for each new one.

    ## What it does

    Counts runs of `repeats` (16) steps or more in which the inputs of most layers grow each time by
    the same 1 to 8 positions in the sequence dimension, and depend on what the step before
    computed; in a stored trace, if something is joined (`cat`) or written in between. The place is
    the line that calls the model in each step. The cost is the share of these layers' time for
    positions that were computed before.

    Not counted: a window of constant length, a growing batch, steps with a backward pass; and on a
    CPU, fewer calls than `cpu_share` (0.001) of all that the test makes. Positions in a Python list
    that each step converts to a tensor are not detected.

    ## Why it is slow

    Step n does the work for n positions, though all but one were computed before: n²/2 in total,
    and more for attention.

    ## Example

    ```python
    for _ in range(steps):
        logits = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    ```

    ## Use instead

    ```python
    logits, cache = model(ids, cache=None)
    for _ in range(steps):
        token = logits[:, -1:].argmax(-1)
        logits, cache = model(token, cache=cache)
    ```
    """
    rows = calls(trace)
    rows = rows[trace.selection[rows]]
    layers = rows[are_named(trace, rows, _LAYER)]
    if len(layers) < repeats:
        return NO_MATCHES
    groups = _groups(trace, layers)
    runs = sorted(run for group in groups for run in _growing(trace, group, repeats))
    found: list[tuple[_Run, Ints, Ints]] = []
    for run in runs:
        if any(run.thread == x.thread and run.rows[0] <= x.rows[-1] for x, *_ in found):
            continue
        joins = _joins(trace, rows, run)
        if joins is not None and len(growing := _computing(trace, groups, runs, run)):
            found.append((run, growing, joins))
    if not found or is_trifle(trace, sum(len(growing) for _, growing, _ in found), cpu_share):
        return NO_MATCHES
    begin, end = zip(*(around(trace, growing) for _, growing, _ in found), strict=True)
    return Matches(
        np.array([run.rows[0] for run, *_ in found], np.int64),
        [
            f"a model computes {run.lengths[0]} to {run.lengths[-1]} positions in "
            f"{len(run.lengths)} steps, all of them again in each"
            for run, *_ in found
        ],
        cost_ns=np.array([_again_ns(trace, run, growing) for run, growing, _ in found], np.int64),
        span_ns=(np.array([*map(np.min, begin)]), np.array([*map(np.max, end)])),
        parts=[growing for _, growing, _ in found],
        in_steps=True,
        apart=np.concatenate([joins for *_, joins in found]),
        wants_tensors=not dataflow(trace).exact,
    )


#: The calls of one layer: the event, and the shape of the input.
_Group = list[tuple[int, tuple[int, ...]]]


class _Run(NamedTuple):
    """Steps: the first call of a layer in each, how many positions it gets, and all its calls."""

    rows: list[int]
    lengths: list[int]
    calls: list[int]
    thread: int


def _groups(trace: Events, layers: Ints) -> list[_Group]:
    """Calls of each layer of each thread, told apart by names and weights."""
    found: dict[object, _Group] = defaultdict(list)
    for row, args in zip(layers.tolist(), trace.operands(layers), strict=True):
        name = trace.names[trace.name[row]].removeprefix("aten::")
        weight, shape = _kind(name, args)
        if len(shape) > 1:
            found[int(trace.thread[row]), name, weight, len(shape)].append((row, shape))
    return [*found.values()]


def _kind(name: str, args: OpArgs) -> tuple[str, tuple[int, ...]]:
    """The shapes of a layer's weight, and of its input."""
    weight, at = {"embedding": (0, 1), "addmm": (2, 1)}.get(name, (1, 0))
    dims = [*decode_list(args.dims), [], [], []]
    return "" if "attention" in name else str(dims[weight]), sizes(dims[at]) or ()


def _growing(trace: Events, group: _Group, least: float) -> Iterator[_Run]:
    """Runs of so many steps at least in which its input grows along one axis, by as much each."""
    firsts = [group[0], *(new for old, new in pairwise(group) if new[1] != old[1])]
    steps = [_step(old[1], new[1]) for old, new in pairwise(firsts)]
    start = 0
    for step, same in groupby(steps):
        stop = start + len([*same])
        if step is not None and stop + 1 - start >= least:
            some = firsts[start : stop + 1]
            mine = [row for row, _ in group if some[0][0] <= row]
            lengths = [shape[step[0]] for _, shape in some]
            yield _Run([row for row, _ in some], lengths, mine, int(trace.thread[mine[0]]))
        start = stop


def _step(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, int] | None:
    """The axis along which a shape is longer than the previous one, and by how much."""
    more = [(axis, b - a) for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    one_axis = len(more) == 1 and 0 < more[0][1] <= _FEW
    # Of a batch of samples, the first axis grows; of sequences, it may be the positions.
    return more[0] if one_axis and (more[0][0] or len(new) == 3) else None


def _joins(trace: Events, rows: Ints, run: _Run) -> Ints | None:
    """What extended the input of each step; None if it is not decoding."""
    first, last = run.rows[0], run.rows[-1]
    backward = engine_steps(trace)
    if ((backward > first) & (backward < last)).any():
        return None
    joins = rows[are_named(trace, rows, _JOINS) & (trace.thread[rows] == run.thread)]
    joins = joins[(joins > first) & (joins < last)]
    graph = dataflow(trace)
    if graph.exact:
        fine = all(graph.depends(new, on=old) for old, new in pairwise(run.rows))
    else:
        fine = len({*np.searchsorted(run.rows, joins).tolist()}) >= len(run.rows) - 1
    return joins if fine else None


def _computing(trace: Events, groups: list[_Group], runs: list[_Run], run: _Run) -> Ints:
    """The layers that compute all positions, without the last step, whose end is unknown; none if
    they are not the model's: half of those that each step calls, with a product, or a recurrent one.
    """
    first, last, steps = run.rows[0], run.rows[-1], len(run.rows) - 1
    every = [[row for row, _ in group if first <= row < last] for group in groups]
    regular = sum(len(mine) for mine in every if len(mine) >= steps)
    grows = {row for one in runs if one.thread == run.thread for row in one.calls}
    growing = np.array(sorted(row for row in grows if first <= row < last), np.int64)
    few = 2 * len(growing) < regular and not are_named(trace, growing, _RECURRENT).any()
    return growing[:0] if few or are_named(trace, growing, _LOOKUP).all() else growing


def _again_ns(trace: Events, run: _Run, growing: Ints) -> int:
    """The time of these layers for positions that were computed before."""
    kernel, launched = launched_in(trace, growing)
    took = np.where(kernel >= 0, launched, trace.dur[growing])
    step = np.searchsorted(run.rows, growing, side="right") - 1
    again = np.append(0, np.array(run.lengths[:-1]) / np.array(run.lengths[1:]))
    return int((took * again[step]).sum())
