"""The rule about products with a vocabulary, whose results are the largest tensors of a model."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import took_ns
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.calls import sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.trace.tree import are_engine_steps, calls
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_PRODUCT: Final = Names(r"aten::(linear|matmul)$")
#: Operators that copy all positions, or make a view of them.
_PASSES: Final = late(
    r"aten::(to|_to_copy|float|half|double|bfloat16|contiguous|detach|alias|view_as|clone"
    r"|div_?|mul_?|true_divide_?|tanh_?|softmax|log_softmax)$"
)
_PARTS: Final = {"aten::select", "aten::slice", "aten::narrow", "aten::squeeze"}
#: How many calls after a product are searched for those that take its result.
_FAR: Final = 100
#: The number of a trace's products that are checked, from the first.
_MOST: Final = 2000
#: The position of a slice that takes everything.
_ALL: Final = -1
_LAST: Final = (
    "select the position before the product: lm_head(hidden[:, -1:]); transformers has "
    "logits_to_keep=1"
)
_OTHER: Final = "select the position before the product, as in lm_head(hidden[:, position])"


@rule(
    "all-logits",
    memory=True,
    fix=_LAST,
    triggers={r"aten::(select|slice|narrow)$": 1, _PRODUCT.pattern: 1},
    needs="shapes",
    vocabulary=Threshold(4, "1", "a layer inside a model makes at most a few times its input"),
    wasted=Threshold(2**16, "B", "computing less takes almost no time"),
)
def all_logits(trace: Events, *, vocabulary: float, wasted: float) -> Matches:
    """A product with a vocabulary is computed for all positions, and one is used.

    ## What it does

    Counts products of sequences with at least `vocabulary` (4) times as many outputs as inputs, of
    whose result only one position is taken, by an index or a slice: `logits[:, -1]`. Casts, scaling
    or a softmax of all of it may come in between. The rest of the result must be `wasted` (64 KiB)
    or more.

    Not counted: results of which anything takes more, such as a loss; one sample of a batch; and
    positions that a tensor selects. The cost is the other positions' share of the product's time.

    ## Why it is slow

    The vocabulary is the widest layer of a language model: a prompt of 1,000 tokens costs 1,000
    times as much as its last position, in time and in memory.

    ## Example

    ```python
    logits = lm_head(hidden)
    next_token = logits[:, -1].argmax(-1)
    ```

    ## Use instead

    ```python
    logits = lm_head(hidden[:, -1])
    next_token = logits.argmax(-1)
    ```
    """
    rows = calls(trace)
    rows = rows[trace.selection[rows] & ~are_engine_steps(trace, rows)]
    at = np.flatnonzero(are_named(trace, rows, _PRODUCT))[:_MOST]
    found: list[tuple[int, tuple[int, ...], int, int]] = []
    for place, args in zip(at.tolist(), trace.operands(rows[at]), strict=True):
        shape, item = _result(bytes(args.dims), bytes(args.types), vocabulary)
        rest = prod(shape) * item // shape[-2] * (shape[-2] - 1) if shape else 0
        if shape and rest >= wasted:
            used = _used(trace, rows, place, shape)
            found += [] if used is None else [(int(rows[place]), shape, used, rest)]
    if not found:
        return NO_MATCHES
    event = np.array([row for row, *_ in found], np.int64)
    took = took_ns(trace, event)
    return Matches(
        event,
        [
            f"logits of {shape[-1]:,} tokens for all positions, of which one is used"
            for _, shape, *_ in found
        ],
        cost_ns=took - took // np.array([shape[-2] for _, shape, *_ in found], np.int64),
        bytes=np.array([rest for *_, rest in found], np.int64),
        fix=[_LAST if used == shape[-2] - 1 else _OTHER for _, shape, used, _ in found],
        span_ns=around(trace, event),
    )


@lru_cache(maxsize=1000)
def _result(raw_dims: bytes, raw_types: bytes, vocabulary: float) -> tuple[tuple[int, ...], int]:
    """The shape of the result of a product of sequences with a vocabulary, whose positions are its
    second-to-last dimension, and the bytes of an element; empty for other products.
    """
    every = zip(map(sizes, decode_list(raw_dims)), decode_list(raw_types), strict=False)
    matrices = [(shape, dtype) for shape, dtype in every if shape and len(shape) > 1]
    if len(matrices) < 2 or len(matrices[-1][0]) != 2 or len(matrices[-2][0]) < 3:
        return (), 0
    (x, dtype), (weight, _) = matrices[-2:]
    outputs = weight[0] if weight[1] == x[-1] else weight[1]
    if x[-1] not in weight or outputs < vocabulary * x[-1] or x[-2] < 2:
        return (), 0
    return (*x[:-1], outputs), ELEMENT_BYTES.get(str(dtype), 2)


def _used(trace: Events, rows: Ints, place: int, shape: tuple[int, ...]) -> int | None:
    """The position that all users of a product's result soon after take; None if they take more."""
    product, shapes, used = rows[place], [shape], set[int]()  # the shapes have all positions
    for row in rows[place + 1 : place + 1 + _FAR].tolist():
        name, (args,) = trace.names[trace.name[row]], trace.operands(np.array([row]))
        again = trace.name[row] == trace.name[product]
        if trace.thread[row] != trace.thread[product] or (
            again and _result(bytes(args.dims), bytes(args.types), 0)[0] == shape
        ):
            break
        dims = decode_list(args.dims)
        dims += [one for listed in dims if isinstance(listed, list) for one in listed]
        whole = next((one for one in shapes if [*one] in dims), None)
        if whole is None or _PASSES.match(name):
            continue
        position = _position(name, args, whole)
        if position is None:
            return None
        if position == _ALL:
            shapes.append(whole[1:] if whole[0] == 1 and len(whole) > 2 else whole)
        else:
            used.add(position)
    return used.pop() if len(used) == 1 else None


def _position(name: str, args: OpArgs, shape: tuple[int, ...]) -> int | None:
    """The position that a call selects; `_ALL` for all, None for anything else."""
    texts = [*map(str, decode_list(args.concrete)[1:4]), "", "", ""][:3]
    axis, start, stop = (int(one) if re.fullmatch(r"-?\d+", one) else None for one in texts)
    if name not in _PARTS or (axis is None and name != "aten::squeeze"):
        return None
    size, at = shape[axis or 0], start or 0
    if name == "aten::narrow":
        stop = None if stop is None else at + stop
    elif name != "aten::slice":
        stop = at + 1 or None
    part = range(size)[at:stop]
    if len(part) == size:
        return _ALL
    fits = axis is not None and axis % len(shape) == len(shape) - 2 and len(part) == 1
    return part[0] if fits else None
