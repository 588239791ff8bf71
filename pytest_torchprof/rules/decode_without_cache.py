"""Rules about models that generate one position after the other."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import BYTE_NS, FLOP_NS, guessed, least_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import Names, are_named, operators_named
from pytest_torchprof.trace.tree import calls, engine_steps
from pytest_torchprof.work.counting import op_flops
from pytest_torchprof.work.op_calls import call_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.op_calls import OpCall, Shape

#: Layers with weights, and the positions of these; attention has none.
_LAYER: Final = Names(
    r"aten::(linear|embedding|conv1d|matmul|addmm|mm|lstm|gru|rnn_\w+"
    r"|scaled_dot_product_attention|_transformer_encoder_layer_fwd|_native_multi_head_attention)$"
)
#: Operators that combine several positions.
_MIXES: Final = Names(
    r"aten::(scaled_dot_product_attention|softmax|lstm|gru|rnn_\w+|cumsum"
    r"|_transformer_encoder_layer_fwd|_native_multi_head_attention)$"
)
#: Layers that keep a state from position to position, so that none needs the earlier ones again.
_RECURRENT: Final = Names(r"aten::(lstm|gru|rnn_\w+)$")
#: Layers without products: they take little time, and are also used for things other than words.
_LOOKUP: Final = Names(r"aten::(embedding|scaled_dot_product_attention)$")
_STORES: Final = Names(r"aten::(copy_|fill_)$")
_INDEX: Final = Names(r"aten::(select|slice|narrow)$")
_JOIN: Final = Names(
    r"aten::(cat|concat|concatenate|hstack|vstack|row_stack|column_stack|stack|pad|constant_pad_nd)$"
)
#: The most new positions per step.
_FEW: Final = 8
_NONE: Final = np.zeros(0, np.int64)


@rule(
    "decode-without-cache",
    fix="keep what the layers computed for earlier positions (use_cache=True, a cache of keys "
    "and values, the state of a recurrent layer), and give the model only the new position",
    triggers={_LAYER.pattern: "repeats"},
    needs="shapes",
    blind=lambda trace: guessed(trace, _LAYER),
    sees_host=True,
    repeats=Threshold(16, "1", "a short sequence is as fast without a cache"),
    cpu_share=Threshold(
        0.001, "1", "of all that the test does on a CPU, by counts, not times; less does not matter"
    ),
)
def decode_without_cache(trace: Events, *, repeats: float, cpu_share: float) -> Matches:
    """A model generates, and recomputes all earlier positions for each new one.

    ## What it does

    Counts runs of `repeats` (16) steps or more in which the inputs of most layers grow each time by
    the same 1 to 8 positions in the sequence dimension, and which in between join something to a
    tensor of that length (`cat`), or write into a buffer at that position. The place is the line
    that calls the model in each step.

    Not counted: a window of constant length, a growing batch, steps with a backward pass; and on a
    CPU, less than `cpu_share` (0.001) of all that the test does, by counts, not times. Positions in
    a Python list that each step converts to a tensor are not detected.

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
    rows = operators_named(trace, _LAYER)
    if np.count_nonzero(trace.selection[rows]) < repeats:
        return NO_MATCHES
    every = calls(trace)
    every = every[trace.selection[every]]
    layers = every[are_named(trace, every, _LAYER)]
    if len(layers) < repeats or len(_growth(trace, every)) < repeats - 1:
        return NO_MATCHES
    found: list[_Run] = []
    for run in _runs(trace, layers, int(repeats)):
        if any(run.thread == x.thread and run.rows[0] < x.end for x in found):
            continue
        extended = _extended(trace, every, run)
        if extended is None or len(extended) < repeats - 1:
            continue
        computing = _computing(trace, layers, run)
        if len(computing) and _again_ns(trace, run) >= least_ns(trace, cpu_share):
            found.append(replace(run, extended=extended, computing=computing))
    if not found:
        return NO_MATCHES
    first = np.array([run.rows[0] for run in found])
    last = np.array([run.end for run in found])
    return Matches(
        first,
        [
            f"a model computes {run.lengths[0]} to {run.lengths[-1]} positions in "
            f"{len(run.lengths)} steps, all of them again in each"
            for run in found
        ],
        cost_ns=np.array([_slope(trace, run) for run in found], np.int64),
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        parts=[run.computing for run in found],
        in_steps=True,
        apart=np.array([row for run in found for row in run.extended]),
    )


class _Run(Frozen, frozen=True):
    """Steps: the first layer of each, and how many positions it gets; what joined them; and all
    layers that compute all positions.
    """

    rows: list[int]
    lengths: list[int]
    axis: int
    thread: int
    extended: list[int]
    computing: Ints

    @property
    def end(self) -> int:
        """The last known event of the run."""
        return max(self.rows[-1], self.extended[-1] if self.extended else -1)


def _runs(trace: Events, layers: Ints, least: int) -> list[_Run]:
    """Steps in which one layer gets more positions each time, by the layers' names and weights."""
    groups: dict[tuple[object, ...], list[tuple[int, Shape]]] = defaultdict(list)
    for row, args in zip(layers.tolist(), trace.operands(layers), strict=True):
        call = call_of(trace.names[trace.name[row]], args)
        key, shape = _kind(call)
        if shape is not None and len(shape) > 1:
            groups[(int(trace.thread[row]), call.name, len(shape), key)].append((row, shape))
    out = []
    for (thread, *_), some in groups.items():
        firsts = [some[0], *(new for old, new in pairwise(some) if new[1] != old[1])]
        if len(firsts) >= least:
            out += _growing(firsts, least, thread)
    return sorted(out, key=lambda run: run.rows[0])


def _kind(call: OpCall) -> tuple[object, Shape | None]:
    """What distinguishes a layer from others, and the shape of its input."""
    shapes = [one[0] if one else None for one in call.shapes]
    if call.base == "embedding":
        return tuple(shapes[:1]), shapes[1] if len(shapes) > 1 else None
    if call.base == "addmm":
        return tuple(shapes[2:3]), shapes[1] if len(shapes) > 1 else None
    if "attention" in call.base:
        return (), shapes[0] if shapes else None
    return tuple(shapes[1:2]), shapes[0] if shapes else None


def _growing(firsts: list[tuple[int, Shape]], least: int, thread: object) -> list[_Run]:
    out, start, step = list[_Run](), 0, None
    steps = [_step(old, new) for (_, old), (_, new) in pairwise(firsts)]
    for at, one in enumerate([*steps, None]):
        if one is None or (step is not None and one != step):
            if step is not None and at + 1 - start >= least:
                some, axis = firsts[start : at + 1], step[0]
                rows, lengths = [row for row, _ in some], [shape[axis] for _, shape in some]
                out.append(_Run(rows, lengths, axis, int(str(thread)), [], _NONE))
            start, step = at if one is not None else at + 1, one
        elif step is None:
            start, step = at, one
    return out


def _step(old: Shape, new: Shape) -> tuple[int, int] | None:
    """The axis along which a shape is longer than the previous one, and by how much."""
    if len(old) != len(new):
        return None
    more = [(axis, b - a) for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    return more[0] if len(more) == 1 and 0 < more[0][1] <= _FEW else None


def _extended(trace: Events, every: Ints, run: _Run) -> list[int] | None:
    """What extended the input of each step; None if it is not decoding."""
    first, last = run.rows[0], run.rows[-1]
    backward = engine_steps(trace)
    if ((backward > first) & (backward < last)).any():
        return None
    inside = every[(every > first) & (every < last) & (trace.thread[every] == run.thread)]
    if run.axis == 0 and not are_named(trace, inside, _MIXES).any():
        return None  # of a batch of samples
    joins = _growth(trace, inside)
    steps = np.searchsorted(run.rows, joins, side="right")
    before = inside[np.maximum(np.searchsorted(inside, joins) - 1, 0)]
    found: dict[int, int] = {}
    for row, step, args, index in zip(
        joins.tolist(), steps.tolist(), trace.operands(joins), before.tolist(), strict=True
    ):
        old, new = run.lengths[step - 1], run.lengths[step]
        call = call_of(trace.names[trace.name[row]], args)
        if are_named(trace, np.array([row]), _STORES)[0]:
            (at,) = trace.operands(np.array([index]))
            part = call_of(trace.names[trace.name[index]], at).part
            longer = part is not None and part.low <= old <= part.high <= new
        else:
            longer = _joins(call, old, new)
        if longer:
            found[step] = row
    return list(found.values())


def _computing(trace: Events, layers: Ints, run: _Run) -> Ints:
    """The layers of all steps that compute all positions; none if they are not the model's.

    Those are at least half of the layers in each step, with a product among them, or a recurrent
    one.
    """
    rows = layers[(layers >= run.rows[0]) & (trace.thread[layers] == run.thread)]
    step = np.searchsorted(run.rows, rows, side="right") - 1
    last = len(run.rows) - 1
    # Nothing tells where the last step ends: it has as many layers as the one before.
    until = np.searchsorted(step, last) + np.count_nonzero(step == last - 1)
    rows, step = rows[:until], step[:until]
    steps: list[dict[object, Shape]] = [{} for _ in run.rows]
    keys = list[object]()
    for row, number, args in zip(rows.tolist(), step.tolist(), trace.operands(rows), strict=True):
        call = call_of(trace.names[trace.name[row]], args)
        kind, shape = _kind(call)
        known, key = steps[number], (call.name, kind, 0)
        while key in known:
            key = (*key[:2], key[2] + 1)
        known[key] = shape or ()
        keys.append(key)
    # The first step may be of another kind.
    early, late = steps[(last - 1) // 2], steps[last]
    both = early.keys() & late.keys()
    longer = {key for key in both if _is_longer(early[key], late[key])}
    growing: Ints = rows[[key in longer for key in keys]]
    if are_named(trace, growing, _RECURRENT).any():
        return growing
    few = 2 * len(longer) < len(both)
    return _NONE if few or are_named(trace, growing, _LOOKUP).all() else growing


def _is_longer(old: Shape, new: Shape) -> bool:
    """Whether a shape has grown, and nowhere shrunk."""
    return (
        old != new and len(old) == len(new) and all(a <= b for a, b in zip(old, new, strict=True))
    )


def _growth(trace: Events, every: Ints) -> Ints:
    """Operators that join tensors, or write into a part of one."""
    stores = are_named(trace, every, _STORES)
    stores[stores] = are_named(trace, every[np.flatnonzero(stores) - 1], _INDEX)
    growth: Ints = every[stores | are_named(trace, every, _JOIN)]
    return growth


def _joins(call: OpCall, old: int, new: int) -> bool:
    """Whether a tensor of ``old`` positions is joined with the new ones."""
    some = call.shapes[0] if call.shapes else ()
    return len(some) > 1 and any(
        old in one and new - old in other and len(one) == len(other)
        for one in some
        for other in some
        if one is not other
    )


def _again_ns(trace: Events, run: _Run) -> float:
    """What positions that were computed before take on a CPU, by counts of FLOPs and bytes."""
    flops = np.flatnonzero(op_flops(trace))
    made = trace.memory.where(trace.memory.bytes > 0)
    row = np.concatenate([flops, made.event])
    ns = np.concatenate([op_flops(trace)[flops] * FLOP_NS, made.bytes * BYTE_NS])
    again = np.append(0, 1 - 1 / np.array(run.lengths, float))
    step = np.searchsorted(trace.ts[np.array(run.rows)], trace.ts[row], "right")
    return float((ns * again[step])[trace.ts[row] <= trace.ts[run.end]].sum())


def _slope(trace: Events, run: _Run) -> int:
    """How much longer the steps take for all positions than for the new ones."""
    took = np.diff(trace.ts[np.array(run.rows)]).astype(float)
    lengths = np.array(run.lengths[:-1], float)
    # The median slope between distant steps, so that a single delayed step does not matter.
    far = max(len(took) // 2, 1)
    slopes = (took[far:] - took[:-far]) / (lengths[far:] - lengths[:-far])
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return int(min(max(slope, 0.0) * (lengths - 1).sum(), took.sum()))
